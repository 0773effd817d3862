"""The dispatchers and the gate alone: what giving, acking and giving again cost an entry.

Figures are nanoseconds an entry unless named otherwise; the best of some runs. Reads are of 100
entries, as the broker's; acks are those of entries that have been in flight for a while.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ackgate.cursor import Position
from ackgate.dispatcher import (
    ConsumerSpec,
    DispatchLimits,
    EntriesRead,
    Gate,
    GateSettings,
    KeySharedDispatcher,
    KeySharedPolicy,
    SharedDispatcher,
    SingleActiveDispatcher,
)
from ackgate.dispatcher.keys import make_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ackgate.dispatcher import Dispatcher

READ_ENTRIES = 100
KEYS = 5_000
LIMITS = DispatchLimits(
    unacked_messages_per_consumer_max=10**9,
    unacked_messages_per_subscription_max=10**9,
    key_shared_look_ahead_per_consumer_max=0,
    key_shared_look_ahead_per_subscription_max=0,
)
PERMITS = 10**9


class Sizes(NamedTuple):
    """How much work one run does."""

    entries: int
    in_flight: int
    calls: int
    repeats: int


FULL = Sizes(entries=200_000, in_flight=50_000, calls=200_000, repeats=3)
SMOKE = Sizes(entries=2_000, in_flight=500, calls=1_000, repeats=1)


class Costs(NamedTuple):
    """Nanoseconds an entry."""

    give: float
    ack: float


def run(*, smoke: bool) -> dict[str, Any]:
    """All figures."""
    sizes = SMOKE if smoke else FULL
    return {
        "shared_1_consumer": _costs(sizes, _shared, consumers=1, one_by_one=False),
        "shared_1_consumer_acks_one_by_one": _costs(sizes, _shared, consumers=1, one_by_one=True),
        "shared_4_consumers": _costs(sizes, _shared, consumers=4, one_by_one=False),
        "shared_1000_consumers": _costs(sizes, _shared, consumers=1_000, one_by_one=False),
        "key_shared_4_consumers": _costs(sizes, _key_shared, consumers=4, one_by_one=False),
        "exclusive": _costs(sizes, _exclusive, consumers=1, one_by_one=False),
        "give_again": _redeliveries(sizes),
        "gate": _gate(sizes),
        "murmur3_8_bytes_ns": _each(sizes, lambda: make_hash(b"key-1234")),
    }


def _shared() -> Dispatcher:
    return SharedDispatcher(LIMITS)


def _key_shared() -> Dispatcher:
    return KeySharedDispatcher(LIMITS, KeySharedPolicy())


def _exclusive() -> Dispatcher:
    return SingleActiveDispatcher(LIMITS, is_exclusive=True, topic="persistent://a/b/c")


def _costs(
    sizes: Sizes, make: Callable[[], Dispatcher], *, consumers: int, one_by_one: bool
) -> dict[str, float]:
    runs = [
        _give_and_ack(make(), sizes, consumers=consumers, one_by_one=one_by_one)
        for _ in range(sizes.repeats)
    ]
    return {
        "give_ns": round(min(costs.give for costs in runs)),
        "ack_ns": round(min(costs.ack for costs in runs)),
    }


def _give_and_ack(
    dispatcher: Dispatcher, sizes: Sizes, *, consumers: int, one_by_one: bool
) -> Costs:
    """Entries go out by the hundred and are acked by who got them, `in_flight` entries later."""
    for consumer in range(consumers):
        dispatcher.add_consumer(consumer, ConsumerSpec(f"c{consumer}"), 0)
        dispatcher.add_permits(consumer, PERMITS)
    key_hash = dispatcher.key_hash
    owners: list[tuple[int, list[Position]]] = []
    to_ack = 0
    giving = acking = 0
    for positions in _blocks(sizes.entries):
        hashes = None
        if key_hash is not None:
            hashes = [key_hash(b"key-%d" % (entry_id % KEYS)) for _, entry_id in positions]
        began = time.perf_counter_ns()
        read = dispatcher.next_read(has_unread=True, gate_open=True)
        assert read is not None
        deliveries = dispatcher.assign(read, EntriesRead(positions, None, hashes))
        giving += time.perf_counter_ns() - began
        owners += [
            (delivery.consumer, [positions[index] for index in delivery.indexes])
            for delivery in deliveries
        ]
        if positions[0].entry_id < sizes.in_flight:
            continue
        for consumer, given in owners[to_ack : to_ack + len(deliveries)]:
            began = time.perf_counter_ns()
            if one_by_one:
                for position in given:
                    dispatcher.acked(consumer, position)
            else:
                dispatcher.acked_many(consumer, given)
            acking += time.perf_counter_ns() - began
        to_ack += len(deliveries)
    acked = sum(len(given) for _, given in owners[:to_ack])
    return Costs(giving / sizes.entries, acking / acked)


def _blocks(entries: int) -> Iterator[list[Position]]:
    for first in range(0, entries, READ_ENTRIES):
        yield [Position(1, entry) for entry in range(first, first + READ_ENTRIES)]


def _redeliveries(sizes: Sizes) -> dict[str, float]:
    """One consumer gives everything back, and gets it again; half of it through a shut gate."""
    dispatcher = _shared()
    dispatcher.add_consumer(1, ConsumerSpec("c"), 0)
    dispatcher.add_permits(1, PERMITS)
    for positions in _blocks(sizes.in_flight):
        read = dispatcher.next_read(has_unread=True, gate_open=True)
        assert read is not None
        dispatcher.assign(read, EntriesRead(positions))
    began = time.perf_counter_ns()
    dispatcher.redeliver(1, None)
    back_ns = (time.perf_counter_ns() - began) / sizes.in_flight
    again_ns = _replay(dispatcher, gate_open=True)
    dispatcher.acked_many(1, [Position(1, entry) for entry in range(0, sizes.in_flight, 2)])
    dispatcher.redeliver(1, None)
    holes_ns = _replay(dispatcher, gate_open=False)
    return {
        "redeliver_ns": round(back_ns),
        "replay_ns": round(again_ns),
        "replay_holes_first_ns": round(holes_ns),
    }


def _replay(dispatcher: Dispatcher, *, gate_open: bool) -> float:
    began = time.perf_counter_ns()
    replayed = 0
    while read := dispatcher.next_read(
        has_unread=False, gate_open=gate_open, is_acked=lambda position: not position[1] & 1
    ):
        replayed += len(read.positions)
        dispatcher.assign(read, EntriesRead(read.positions))
    return (time.perf_counter_ns() - began) / replayed


def _gate(sizes: Sizes) -> dict[str, float]:
    """`observe` after every ack: nothing near, off, shut, and crossing at every call."""
    settings = GateSettings(enabled=True, ranges_max=1_000)
    still = Gate(settings, 0)
    off = Gate(GateSettings(), 0)
    shut = Gate(settings, 0)
    flapping = Gate(settings, 0)
    ranges = iter(range(10**9))

    def observe(gate: Gate, ranges_live: int) -> None:
        gate.observe(ranges_live=ranges_live, batch_indexes_live=0, now_ms=0)

    return {
        "observe_open_ns": _each(sizes, lambda: observe(still, 500)),
        "observe_off_ns": _each(sizes, lambda: observe(off, 500)),
        "observe_shut_ns": _each(sizes, lambda: observe(shut, 5_000)),
        "observe_edge_ns": _each(sizes, lambda: observe(flapping, 1_000 + (next(ranges) & 1))),
    }


def _each(sizes: Sizes, call: Callable[[], object]) -> float:
    best = sys.maxsize
    for _ in range(sizes.repeats):
        began = time.perf_counter_ns()
        for _ in range(sizes.calls):
            call()
        best = min(best, time.perf_counter_ns() - began)
    return round(best / sizes.calls)


if __name__ == "__main__":
    print(json.dumps(run(smoke="--smoke" in sys.argv), indent=2))
