"""Delayed messages that fall due together, through a real broker and the real client.

    python -m bench.bench_delayed_burst [--messages 1000000] [--kinds prompt memory buckets]

A million messages are published, all to be delivered at one time some minutes later; a Shared
consumer waits for them, and acks each. Told for each kind of tracker, and for messages without a
delay, which the consumer finds in the topic when it comes:

    published    messages a second while they are published (and held)
    resident     memory of the broker when all are held, less that of an idle one
    out          messages a second from the first delivery to the last
    broker cpu   of the broker, for a message, on its way in and on its way out
    worst wait   longest answer of the admin interface meanwhile: how long anything held up the loop
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, Final, Self

import pulsar

from ackgate.testing import BrokerProcess
from bench.usage import cpu_seconds, resident_bytes

TOPIC: Final = "persistent://public/default/burst"
PACKAGE: Final = "org.apache.pulsar.broker.delayed."
KINDS: Final = {
    "prompt": PACKAGE + "InMemoryDelayedDeliveryTrackerFactory",
    "memory": PACKAGE + "InMemoryDelayedDeliveryTrackerFactory",
    "buckets": PACKAGE + "BucketDelayedDeliveryTrackerFactory",
}
PUBLISHED_PER_SECOND_MIN: Final = 5_000
"""Slower than this, and the first fall due before the last are stored."""

PAYLOAD: Final = bytes(100)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    arguments = parser.parse_args()
    print(json.dumps({k: measure(k, arguments.messages) for k in arguments.kinds}, indent=2))


def run(*, smoke: bool) -> dict[str, Any]:
    """Figures for a million messages (2,000 in a smoke run)."""
    return {kind: measure(kind, 2_000 if smoke else 1_000_000) for kind in KINDS}


def measure(kind: str, count: int) -> dict[str, Any]:
    """One kind's figures."""
    settings = {
        "delayedDeliveryTrackerFactoryClassName": KINDS[kind],
        "delayedDeliveryFixedDelayDetectionLookahead": 0,
    }
    with (
        tempfile.TemporaryDirectory(prefix="ackgate-bench-") as directory,
        BrokerProcess(Path(directory) / "data", settings=settings) as broker,
    ):
        client = pulsar.Client(
            broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        idle_bytes = resident_bytes(broker.pid)
        receiver = _Receiver(count)
        client.subscribe(TOPIC, "s", consumer_type=pulsar.ConsumerType.Shared).close()
        if kind != "prompt":
            receiver.subscribe(client)
        producer = client.create_producer(
            TOPIC, block_if_queue_full=True, max_pending_messages=5_000, batching_enabled=False
        )
        due = time.time() + 3 + count / PUBLISHED_PER_SECOND_MIN
        how = {} if kind == "prompt" else {"deliver_at": int(due * 1000)}
        with _Watch(broker) as into:
            for _ in range(count):
                producer.send_async(PAYLOAD, _unconfirmed, **how)
            producer.flush()
        held_bytes = resident_bytes(broker.pid) - idle_bytes
        assert receiver.count == 0, "published too slowly"
        if kind != "prompt":
            time.sleep(max(0.0, due - time.time() - 1.5))
        with _Watch(broker) as out:
            if kind == "prompt":
                receiver.subscribe(client)
            receiver.is_done.wait(3_600)
        client.close()
        return {
            "messages": count,
            "published_per_s": round(count / into.seconds),
            "resident_mb": round(held_bytes / 1e6),
            "out_s": round(receiver.seconds, 2),
            "out_per_s": round(count / receiver.seconds),
            "broker_cpu_in_us": round(1e6 * into.cpu_seconds / count, 1),
            "broker_cpu_out_us": round(1e6 * out.cpu_seconds / count, 1),
            "worst_wait_in_ms": round(1e3 * into.worst_seconds),
            "worst_wait_out_ms": round(1e3 * out.worst_seconds),
        }


class _Receiver:
    """Counts and acks what it is given."""

    def __init__(self, expected: int) -> None:
        self.count = 0
        self.is_done = threading.Event()
        self._expected = expected
        self._began = self._ended = 0.0

    def subscribe(self, client: pulsar.Client) -> None:
        client.subscribe(
            TOPIC, "s", consumer_type=pulsar.ConsumerType.Shared, message_listener=self._on_message
        )

    @property
    def seconds(self) -> float:
        return self._ended - self._began

    def _on_message(self, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        if not self.count:
            self._began = time.perf_counter()
        self.count += 1
        consumer.acknowledge(message)
        if self.count == self._expected:
            self._ended = time.perf_counter()
            self.is_done.set()


class _Watch:
    """The broker's time while something is done, and how long it leaves others waiting."""

    def __init__(self, broker: BrokerProcess) -> None:
        assert broker.pid is not None
        self.seconds = self.cpu_seconds = self.worst_seconds = 0.0
        self._pid = broker.pid
        self._url = f"{broker.admin_url}/admin/v2/clusters"
        self._is_over = threading.Event()
        self._probe = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> Self:
        self._began, self._cpu = time.perf_counter(), cpu_seconds(self._pid)
        self._probe.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._began
        self.cpu_seconds = cpu_seconds(self._pid) - self._cpu
        self._is_over.set()
        self._probe.join()

    def _ask(self) -> None:
        while not self._is_over.wait(0.02):
            began = time.perf_counter()
            with urllib.request.urlopen(self._url, timeout=60) as response:
                response.read()
            self.worst_seconds = max(self.worst_seconds, time.perf_counter() - began)


def _unconfirmed(result: pulsar.Result, _: pulsar.MessageId) -> None:
    assert result == pulsar.Result.Ok, result


if __name__ == "__main__":
    main()
