"""A million delayed messages in one topic of a real broker, killed and started again.

    python -m bench.bench_delayed_broker [--messages 1000000] [--trackers buckets memory]

The real client publishes messages that are due in an hour or two, in no order; a Shared subscription
holds them back. Then the broker gets `kill -9` and is started again on the same directory. Told for
each kind of tracker:

    end_s              how long it took to end
    listens_s          from starting the process to its listening
    subscribed_s       from listening until the topic is loaded and a consumer is there: from then on
                       whatever falls due is given out
    snapshots_known_s  until every snapshot's metadata is read (a poll's time included)
    message_s          until a message without delay, published then, is delivered: it lies behind
                       everything that must be read again
    index_s            until all delayed entries are known again
    read_again         delayed entries that were read from the topic for that (0: all came from snapshots)
    resident_mb        memory of the broker

It is killed, and after that stopped in good order.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

import pulsar

from ackgate.testing import BrokerProcess
from bench.usage import resident_bytes

TOPIC: Final = "persistent://public/default/delayed"
FACTORIES: Final = {
    "buckets": "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory",
    "memory": "org.apache.pulsar.broker.delayed.InMemoryDelayedDeliveryTrackerFactory",
}
HOUR_MS: Final = 3_600_000


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--trackers", nargs="+", choices=FACTORIES, default=list(FACTORIES))
    arguments = parser.parse_args()
    print(json.dumps({k: measure(k, arguments.messages) for k in arguments.trackers}, indent=2))


def run(*, smoke: bool) -> dict[str, Any]:
    """Figures for a million messages (5,000 in a smoke run)."""
    return {kind: measure(kind, 5_000 if smoke else 1_000_000) for kind in FACTORIES}


def measure(kind: str, count: int) -> dict[str, Any]:
    """One tracker's figures."""
    settings = {
        "delayedDeliveryTrackerFactoryClassName": FACTORIES[kind],
        "delayedDeliveryFixedDelayDetectionLookahead": 0,
    }
    with (
        tempfile.TemporaryDirectory(prefix="ackgate-bench-") as directory,
        BrokerProcess(Path(directory) / "data", settings=settings) as broker,
    ):
        published = _publish(broker, count)
        _wait(lambda: _held(broker)["delayedEntries"] >= count, 600)
        _wait(lambda: _is_settled(_held(broker)), 120)
        before = _held(broker)
        return {
            "messages": count,
            "published_per_s": round(count / published),
            "resident_mb": round(resident_bytes(broker.pid) / 1e6),
            "resident_of_an_empty_broker_mb": round(_empty_resident_bytes() / 1e6),
            "index_bytes_an_entry": round(before["delayedBytes"] / count, 3),
            **_bucket_figures(before),
            "killed": _restarted(broker, count, is_killed=True),
            "stopped": _restarted(broker, count, is_killed=False),
        }


def _restarted(broker: BrokerProcess, count: int, *, is_killed: bool) -> dict[str, Any]:
    began = time.perf_counter()
    if is_killed:
        broker.kill()
    else:
        broker.stop()
    ended = time.perf_counter()
    broker.start()
    ready = time.perf_counter()
    client = _client(broker)
    consumer = client.subscribe(TOPIC, "s", consumer_type=pulsar.ConsumerType.Shared)
    subscribed = time.perf_counter()
    _wait(lambda: not (_held(broker)["buckets"] or {}).get("bucketsUnread"), 600)
    recovered = time.perf_counter()
    client.create_producer(TOPIC).send(b"now")
    message = consumer.receive(300_000)
    assert message.data() == b"now"
    consumer.acknowledge(message)
    delivered = time.perf_counter()
    _wait(lambda: _held(broker)["delayedEntries"] >= count, 600)
    known = time.perf_counter()
    after = _held(broker)
    client.close()
    return {
        "end_s": round(ended - began, 2),
        "listens_s": round(ready - ended, 2),
        "subscribed_s": round(subscribed - ready, 3),
        "snapshots_known_s": round(recovered - ready, 3),
        "message_s": round(delivered - ready, 3),
        "index_s": round(known - ready, 3),
        "read_again": after["entriesOffered"],
        "resident_mb": round(resident_bytes(broker.pid) / 1e6),
    }


def _bucket_figures(held: dict[str, Any]) -> dict[str, Any]:
    buckets = held["buckets"]
    if buckets is None:
        return {}
    return {
        "buckets": buckets["buckets"],
        "loaded_entries": buckets["loadedEntries"],
        "snapshot_bytes_an_entry": round(
            buckets["snapshotBytes"] / max(1, held["delayedEntries"] - buckets["loadedEntries"]), 2
        ),
    }


def _publish(broker: BrokerProcess, count: int) -> float:
    client = _client(broker)
    client.subscribe(TOPIC, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(
        TOPIC, block_if_queue_full=True, max_pending_messages=5_000, batching_enabled=False
    )
    rng = random.Random(1)
    began = time.perf_counter()
    now_ms = time.time_ns() // 1_000_000
    for _ in range(count):
        due_ms = now_ms + HOUR_MS + rng.randrange(HOUR_MS)
        producer.send_async(b"later", _unconfirmed, deliver_at=due_ms)
    producer.flush()
    took = time.perf_counter() - began
    _wait(lambda: _held(broker)["delayedEntries"] >= count, 600)
    client.close()
    return took


def _unconfirmed(result: pulsar.Result, _: pulsar.MessageId) -> None:
    assert result == pulsar.Result.Ok, result


def _client(broker: BrokerProcess) -> pulsar.Client:
    return pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def _held(broker: BrokerProcess) -> dict[str, Any]:
    path = TOPIC.replace("://", "/")
    with urllib.request.urlopen(f"{broker.admin_url}/admin/v2/{path}/delayed") as response:
        held: dict[str, Any] = json.loads(response.read())["subscriptions"]["s"]
    return held


def _is_settled(held: dict[str, Any]) -> bool:
    buckets = held["buckets"]
    return buckets is None or not (buckets["bucketsStoring"] or buckets["snapshotsToDelete"])


def _wait(condition: Any, seconds: float) -> None:
    deadline = time.perf_counter() + seconds
    while not condition():
        assert time.perf_counter() < deadline, "not in time"
        time.sleep(0.01)


def _empty_resident_bytes() -> int:
    with (
        tempfile.TemporaryDirectory(prefix="ackgate-bench-") as directory,
        BrokerProcess(Path(directory)) as broker,
    ):
        return resident_bytes(broker.pid)


if __name__ == "__main__":
    main()
