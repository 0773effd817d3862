"""All cores: eight topics on one worker and on two, in turns; and how soon a killed worker's topics go on.

Messages of 100 bytes, unbatched: published, then received and acknowledged one by one with receipts, out of
order. The client sends frames that it made beforehand and counts what comes back, so that it takes little of
the cores that it shares with the workers.

Where other processes want the cores, too, two workers get a larger share of them than one, and the ratio of
the rates says little. `by_processor_time` does not depend on that: it is what two full cores would do beside
one, by the processor time that a message took all processes of the broker.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.cursor import Position
from ackgate.persistence.nodes.owner_nodes import topic_hash
from ackgate.testing import BrokerProcess
from bench.usage import cpu_seconds
from tests.support.wire_client import EARLIEST, DisconnectedError, RefusedError, WireClient
from tests.support.wire_lookup import find_owner

if TYPE_CHECKING:
    from collections.abc import Callable

TOPICS: Final = 8
BUNDLES: Final = 4
"""Of a namespace, by default: two topics in each."""

WORKERS: Final = 2
RATIO_MIN: Final = 1.6
HEAL_SECONDS_MAX: Final = 1.0
OUT_OF_ORDER: Final = 16
"""Acks are shuffled among so many."""

PAYLOAD: Final = bytes(100)
PAUSE_SECONDS: Final = 0.01
BACK_SECONDS_MAX: Final = 60.0

_SETTINGS: Final = {
    "brokerServicePort": 0,
    "webServicePort": 0,
    "managedLedgerMaxEntriesPerLedger": 1_000_000,  # positions of acks are known beforehand
}


def run(*, smoke: bool) -> dict[str, Any]:
    """All figures."""
    return measure(count=50 if smoke else 10_000, rounds=1 if smoke else 3)


def measure(*, count: int, rounds: int) -> dict[str, Any]:
    """`count` messages to each topic, `rounds` times on one worker and on two."""
    with (
        tempfile.TemporaryDirectory(prefix="ackgate-bench-") as directory,
        _Brokers(Path(directory) / "one", settings=_SETTINGS) as one,
        _Brokers(Path(directory) / "two", settings={**_SETTINGS, "brokerWorkers": WORKERS}) as two,
    ):
        figures: dict[str, Any] = {"topics": TOPICS, "messages_per_topic": count}
        figures |= _beside(one, two, count, rounds)
        figures["killed_worker"] = asyncio.run(_heal(two, rounds))
    return figures


class _Brokers(BrokerProcess):
    """One process, or a supervisor and its workers."""

    @property
    def workers(self) -> list[dict[str, Any]]:
        """Process and addresses of each worker."""
        found = []
        for path in sorted(self.data_directory.glob("workers/*/lock")):
            try:
                found.append(json.loads(path.read_bytes()))
            except ValueError:
                continue  # it is just being started
        return found

    @property
    def cpu_seconds(self) -> float:
        pids = [self.pid, *(int(worker["pid"]) for worker in self.workers)]
        return sum(map(cpu_seconds, pids))


def _beside(one: _Brokers, two: _Brokers, count: int, rounds: int) -> dict[str, Any]:
    rates: dict[str, list[tuple[float, float]]] = {"one_worker": [], "two_workers": []}
    cpu: dict[str, list[float]] = {"one_worker": [], "two_workers": []}
    client: list[float] = []
    for number in range(rounds):
        for name, brokers in (("one_worker", one), ("two_workers", two)):
            before = brokers.cpu_seconds
            *rate, busy = asyncio.run(_once(brokers, _topics(number), count))
            rates[name].append((rate[0], rate[1]))
            cpu[name].append((brokers.cpu_seconds - before) / (TOPICS * count))
            client.append(busy / (TOPICS * count))
    figures: dict[str, Any] = {}
    for index, what in enumerate(("published", "received_acked")):
        single, double = (statistics.median(rate[index] for rate in rates[name]) for name in rates)
        figures[what] = {
            "one_worker_per_s": round(single),
            "two_workers_per_s": round(double),
            "ratio": f"{double / single:.2f} (at least {RATIO_MIN})",
        }
    single, double = (statistics.median(cpu[name]) for name in cpu)
    figures["by_processor_time"] = {
        "one_worker_us_per_message": round(single * 1e6, 1),
        "two_workers_us_per_message": round(double * 1e6, 1),
        "ratio": round(WORKERS * single / double, 2) if double else 0.0,
        "client_us_per_message": round(statistics.median(client) * 1e6, 1),
    }
    return figures


def _topics(number: int) -> list[str]:
    """As many of each bundle: two workers own as many of them."""
    found: dict[int, list[str]] = {bundle: [] for bundle in range(BUNDLES)}
    tried = 0
    while any(len(topics) < TOPICS // BUNDLES for topics in found.values()):
        topic = f"persistent://public/default/round-{number}-{tried}"
        topics = found[topic_hash(topic) * BUNDLES >> 32]
        if len(topics) < TOPICS // BUNDLES:
            topics.append(topic)
        tried += 1
    return [topic for topics in found.values() for topic in topics]


# ---------------------------------------------------------------------------------------- throughput


async def _once(brokers: _Brokers, topics: list[str], count: int) -> tuple[float, float, float]:
    """Messages per second published, and received with an ack each; processor time of the client."""
    loads = [await _Load.prepare(brokers.service_url, topic, count) for topic in topics]
    busy = time.process_time()
    began = time.perf_counter()
    await asyncio.gather(*(load.publish() for load in loads))
    published = time.perf_counter()
    await asyncio.gather(*(load.consume() for load in loads))
    done = time.perf_counter()
    busy = time.process_time() - busy
    for load in loads:
        await load.client.close()
    return TOPICS * count / (published - began), TOPICS * count / (done - published), busy


class _Counting(WireClient):
    """Once told to, it only counts frames, by their kind."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Callable[[int], None] | None = None
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        if self.count is None:
            super().data_received(data)
            return
        data = self._rest + data
        at, end = 0, len(data)
        while end - at >= 10:
            size = int.from_bytes(data[at : at + 4], "big") + 4
            if end - at < size:
                break
            self.count(data[at + 9])  # the command's first field is its kind
            at += size
        self._rest = data[at:]


class _Load:
    """One topic: a connection to its owner, and everything that will be sent, made beforehand."""

    def __init__(self, client: _Counting, sends: bytes, acks: list[bytes], flow: bytes) -> None:
        self.client = client
        self._sends = sends
        self._acks = acks
        self._flow = flow
        self._receipts = self._messages = self._answers = self._acked = 0
        self._is_done = asyncio.Event()

    @classmethod
    async def prepare(cls, url: str, topic: str, count: int) -> _Load:
        """Subscribe, and publish one message, which shows the ledger."""
        owner = await find_owner([url.removeprefix("pulsar://")], topic)
        client = await _Counting.connect(*owner)
        consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
        producer = await client.producer(topic)
        ledger_id, first = await producer.send(PAYLOAD)
        sends = b"".join(producer.frame(PAYLOAD) for _ in range(count - 1))
        order = list(range(first, first + count))
        for start in range(0, count, OUT_OF_ORDER):
            block = order[start : start + OUT_OF_ORDER]
            random.Random(start).shuffle(block)
            order[start : start + OUT_OF_ORDER] = block
        request_id = client.next_id()
        acks = [
            consumer.ack_frames((Position(ledger_id, entry),), request_id + index)
            for index, entry in enumerate(order)
        ]
        flow = pb.BaseCommand(type=pb.BaseCommand.FLOW)
        flow.flow.consumer_id, flow.flow.messagePermits = consumer.consumer_id, count
        return cls(client, sends, acks, _frame(flow))

    async def publish(self) -> None:
        """All, and until all receipts have come."""
        self.client.count = self._on_receipt
        if not self._sends:
            return
        await self.client.send_bulk(self._sends)
        await self._is_done.wait()
        self._is_done.clear()

    def _on_receipt(self, kind: int) -> None:
        if kind == pb.BaseCommand.SEND_RECEIPT:
            self._receipts += 1
            if self._receipts == len(self._acks) - 1:
                self._is_done.set()

    async def consume(self) -> None:
        """All, with an ack each, and until all of those are durable."""
        self.client.count = self._on_message
        self.client.send_bytes(self._flow)
        await self._is_done.wait()

    def _on_message(self, kind: int) -> None:
        if kind == pb.BaseCommand.MESSAGE:
            self._messages += 1
            if self._messages % OUT_OF_ORDER == 0 or self._messages == len(self._acks):
                self.client.send_bytes(b"".join(self._acks[self._acked : self._messages]))
                self._acked = self._messages
        elif kind == pb.BaseCommand.ACK_RESPONSE:
            self._answers += 1
            if self._answers == len(self._acks):
                self._is_done.set()


def _frame(command: pb.BaseCommand) -> bytes:
    body = command.SerializeToString()
    return (len(body) + 4).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body


# ---------------------------------------------------------------------------------------- a kill


async def _heal(brokers: _Brokers, rounds: int) -> dict[str, Any]:
    """`kill -9` of the worker that owns a topic, to the first message from another one."""
    seconds = []
    address = brokers.service_url.removeprefix("pulsar://")
    for number in range(rounds):
        topic = f"persistent://public/default/killed-{number}"
        owner = await find_owner([address], topic)
        async with await WireClient.connect(*owner) as client:
            await client.subscribe(topic, "s", initial_position=EARLIEST)
            await (await client.producer(topic)).send(PAYLOAD)
        dead = next(
            worker for worker in brokers.workers if worker["pulsar"].endswith(f":{owner.port}")
        )
        os.kill(int(dead["pid"]), signal.SIGKILL)
        began = time.perf_counter()
        await _first_message(address, topic)
        seconds.append(time.perf_counter() - began)
        await _until_back(brokers, int(dead["pid"]))
    return {
        "rounds": rounds,
        "kill_to_first_message_s_median": round(statistics.median(seconds), 3),
        "kill_to_first_message_s_max": f"{max(seconds):.3f} (at most {HEAL_SECONDS_MAX:g})",
    }


async def _first_message(address: str, topic: str) -> None:
    """As a client does it: through the one address, again and again."""
    while True:
        try:
            owner = await find_owner([address], topic)
            async with await WireClient.connect(*owner) as client:
                consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
                consumer.flow(1)
                await consumer.receive()
                return
        except (RefusedError, DisconnectedError, OSError):
            await asyncio.sleep(PAUSE_SECONDS)


async def _until_back(brokers: _Brokers, dead: int) -> None:
    async with asyncio.timeout(BACK_SECONDS_MAX):
        while True:
            living = [worker for worker in brokers.workers if worker["pid"] != dead]
            if len(living) == WORKERS and all("pulsar" in worker for worker in living):
                return
            await asyncio.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    print(json.dumps(run(smoke="--smoke" in sys.argv), indent=2))
