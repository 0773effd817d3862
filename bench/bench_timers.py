"""Timers: what one costs among a million live ones, ours beside what Python has.

Nanoseconds a timer, the best of some rounds, the cyclic collector on as it is in every program:
schedule them all (time-outs uniform over ten minutes), cancel them all in random order, ask for the
next deadline after that, schedule them again and let all of them expire at once. One by one means a
Python loop over the structure's own call, loop included.

What the peers do when a timer is cancelled differs: asyncio and the heap mark it and keep it, the
sorted list takes it out. asyncio's expiry calls a callback, ours and the others' hand out an item.

Kafka's wheel runs in a JVM (`bench/peers/kafka`) if there is one and Maven can fetch the artifact.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ackgate.dispatcher.timing import BatchWheel, TimingWheel

if TYPE_CHECKING:
    from collections.abc import Callable

SEED = 20261121
START_MS = 1_700_000_000_000
HORIZON_MS = 600_000
KAFKA = Path(__file__).parent / "peers" / "kafka"
KAFKA_MAIN = "org.apache.kafka.server.util.timer.KafkaTimers"


class _Timers(Protocol):
    """One structure under measurement."""

    def add_all(self, deadlines_ms: list[int]) -> None: ...

    def cancel_all(self, order: list[int]) -> None: ...

    def settle(self) -> None: ...

    def expire_all(self) -> int: ...


class _OurTimers:
    """Our wheel, one by one."""

    def __init__(self, slots_per_level: int = 1_024) -> None:
        self.wheel: TimingWheel[None] = TimingWheel(
            start_ms=START_MS, slots_per_level=slots_per_level
        )

    def add_all(self, deadlines_ms: list[int]) -> None:
        schedule = self.wheel.schedule
        self.timers = [schedule(None, deadline_ms) for deadline_ms in deadlines_ms]
        self.settle()

    def cancel_all(self, order: list[int]) -> None:
        timers = [self.timers[number] for number in order]
        began = time.perf_counter()
        cancel = self.wheel.cancel
        for timer in timers:
            cancel(timer)
        self.cancelled_s = time.perf_counter() - began
        assert self.wheel.size == 0

    def settle(self) -> None:
        assert (self.wheel.next_deadline_ms is None) == (not self.wheel.size)

    def expire_all(self) -> int:
        count = 0
        for _ in self.wheel.advance(START_MS + HORIZON_MS, 1 << 30):
            count += 1
        return count


class _OurArrays:
    """Our wheel, by arrays."""

    def __init__(self) -> None:
        self.wheel = BatchWheel(start_ms=START_MS)

    def add_all(self, deadlines_ms: Any) -> None:
        self.wheel.add(np.arange(len(deadlines_ms)), deadlines_ms)
        self.settle()

    def cancel_all(self, order: Any) -> None:
        began = time.perf_counter()
        self.wheel.cancel(order)
        self.cancelled_s = time.perf_counter() - began
        assert self.wheel.size == 0

    def settle(self) -> None:
        assert (self.wheel.next_deadline_ms is None) == (not self.wheel.size)

    def expire_all(self) -> int:
        return self.wheel.advance(START_MS + HORIZON_MS, 1 << 30).size


class _AsyncioTimers:
    """`call_at` of asyncio's own event loop, and `cancel` of its handles."""

    def __init__(self) -> None:
        self.loop = asyncio.SelectorEventLoop()
        self.count = 0

    def fire(self) -> None:
        self.count += 1

    def add_all(self, deadlines_ms: list[int]) -> None:
        at, fire = self.loop.call_at, self.fire
        early_s = self.loop.time() - START_MS / 1000 - HORIZON_MS / 1000  # all of them are past
        self.timers = [at(deadline_ms / 1000 + early_s, fire) for deadline_ms in deadlines_ms]

    def cancel_all(self, order: list[int]) -> None:
        timers = [self.timers[number] for number in order]
        began = time.perf_counter()
        for timer in timers:
            timer.cancel()
        self.cancelled_s = time.perf_counter() - began

    def settle(self) -> None:
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()  # takes the cancelled ones out

    def expire_all(self) -> int:
        self.settle()
        while self.count < len(self.timers):
            self.settle()
        self.loop.close()
        return self.count


class _HeapTimers:
    """`heapq` of pairs; cancelled ones are remembered and left out when they are popped."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, int]] = []
        self.cancelled: set[int] = set()

    def add_all(self, deadlines_ms: list[int]) -> None:
        heap, push = self.heap, heapq.heappush
        for pair in zip(deadlines_ms, range(len(deadlines_ms)), strict=True):
            push(heap, pair)

    def cancel_all(self, order: list[int]) -> None:
        began = time.perf_counter()
        cancel = self.cancelled.add
        for number in order:
            cancel(number)
        self.cancelled_s = time.perf_counter() - began

    def settle(self) -> None:
        heap, pop, cancelled = self.heap, heapq.heappop, self.cancelled
        while heap and heap[0][1] in cancelled:
            pop(heap)

    def expire_all(self) -> int:
        heap, pop, cancelled, count = self.heap, heapq.heappop, self.cancelled, 0
        while heap:
            if pop(heap)[1] not in cancelled:
                count += 1
        return count


class _SortedTimers:
    """`sortedcontainers.SortedList` of pairs."""

    def __init__(self) -> None:
        from sortedcontainers import SortedList

        self.timers = SortedList()

    def add_all(self, deadlines_ms: list[int]) -> None:
        self.deadlines_ms = deadlines_ms
        add = self.timers.add
        for pair in zip(deadlines_ms, range(len(deadlines_ms)), strict=True):
            add(pair)

    def cancel_all(self, order: list[int]) -> None:
        began = time.perf_counter()
        remove, deadlines_ms = self.timers.remove, self.deadlines_ms
        for number in order:
            remove((deadlines_ms[number], number))
        self.cancelled_s = time.perf_counter() - began

    def settle(self) -> None:
        assert not self.timers

    def expire_all(self) -> int:
        timers, count = self.timers, 0
        while timers:
            timers.pop(0)
            count += 1
        return count


def run(*, smoke: bool) -> dict[str, Any]:
    """All figures."""
    count, rounds = (2_000, 1) if smoke else (1_000_000, 3)
    numbers = random.Random(SEED)
    deadlines_ms = [START_MS + 1 + numbers.randrange(HORIZON_MS) for _ in range(count)]
    order = list(range(count))
    numbers.shuffle(order)
    lists = deadlines_ms, order
    arrays = np.array(deadlines_ms), np.array(order)
    figures: dict[str, Any] = {
        "timers": count,
        "our wheel, one by one": _best(_OurTimers, lists, rounds),
        "our wheel of 20 slots": _best(lambda: _OurTimers(20), lists, rounds),
        "our wheel, arrays": _best(_OurArrays, arrays, 3 * rounds),
        "asyncio": _best(_AsyncioTimers, lists, rounds),
        "heapq": _best(_HeapTimers, lists, rounds),
    }
    try:
        figures["sortedcontainers"] = _best(_SortedTimers, lists, 1)
    except ImportError:
        figures["sortedcontainers"] = "not installed"
    figures |= _kafka(count, rounds)
    figures["slower than ours one by one"] = {
        name: _ratios(figures[name], figures["our wheel, one by one"])
        for name in ("asyncio", "heapq", "sortedcontainers", "kafka, wheel of 20")
        if isinstance(figures.get(name), dict)
    }
    return figures


def _kafka(count: int, rounds: int) -> dict[str, Any]:
    """Kafka's wheel of 20 slots, its default, and of 256."""
    if not (shutil.which("mvn") and shutil.which("javac")):
        return {"kafka": "no Maven or no JDK"}
    with tempfile.TemporaryDirectory(prefix="ackgate-bench-") as work:
        lib, out = Path(work) / "lib", Path(work) / "out"
        copy = f"dependency:copy-dependencies -DoutputDirectory={lib} -DincludeScope=runtime"
        fetch = ["mvn", "-q", "-B", "-f", str(KAFKA / "pom.xml"), *copy.split()]
        source = str(KAFKA / "KafkaTimers.java")
        main = ["java", "-Xmx2g", "-cp", f"{out}:{lib}/*", KAFKA_MAIN]
        try:
            _told(fetch)
            _told(["javac", "-cp", f"{lib}/*", "-d", str(out), source])
            told = {
                f"kafka, wheel of {slots}": _told([*main, str(count), str(slots), str(rounds)])
                for slots in (20, 256)
            }
        except (OSError, subprocess.SubprocessError) as error:
            return {"kafka": f"not to be had: {error}"}
    names = ("add_ns", "cancel_ns", "expire_ns")
    return {
        name: dict(zip(names, map(float, line.split()), strict=True)) for name, line in told.items()
    }


def _told(command: list[str]) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    return done.stdout


def _best(make: Callable[[], _Timers], inputs: tuple[Any, Any], rounds: int) -> dict[str, float]:
    figures = [_measure(make, *inputs) for _ in range(rounds)]
    return {name: min(each[name] for each in figures) for name in figures[0]}


def _measure(make: Callable[[], _Timers], deadlines_ms: Any, order: Any) -> dict[str, float]:
    count = len(deadlines_ms)
    timers: Any = make()
    began = time.perf_counter()
    timers.add_all(deadlines_ms)
    figures = {"add_ns": _ns(began, count)}
    timers.cancel_all(order)
    figures["cancel_ns"] = round(timers.cancelled_s / count * 1e9, 1)
    began = time.perf_counter()
    timers.settle()
    figures["after_cancel_ns"] = _ns(began, count)
    timers = make()
    timers.add_all(deadlines_ms)
    began = time.perf_counter()
    assert timers.expire_all() == count
    figures["expire_ns"] = _ns(began, count)
    return figures


def _ratios(theirs: dict[str, float], ours: dict[str, float]) -> dict[str, float]:
    return {
        name.removesuffix("_ns"): round(theirs[name] / ours[name], 2)
        for name in ours
        if name != "after_cancel_ns"
    }


def _ns(began: float, count: int) -> float:
    return round((time.perf_counter() - began) / count * 1e9, 1)


if __name__ == "__main__":
    print(json.dumps(run(smoke="--smoke" in sys.argv), indent=2))
