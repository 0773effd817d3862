"""The benchmark of "Apache Kafka, Purgatory, and Hierarchical Timing Wheels", all its parts.

Requests arrive with exponentially distributed gaps; each carries 100 bytes, is watched under 3 of
100 keys (as in Kafka's `TestPurgatoryPerformance`), has a time-out of 200 ms, and takes a time drawn
from a log-normal distribution: 75 % within 60 ms, half within 20 ms (few time out), or 75 % within
400 ms, half within 200 ms (half time out). A million a run, at rates up to 200,000 requests/s.

Time is virtual and goes on by 1 ms: what arrives in that millisecond is enqueued, what is done by
then is completed by its handle, then the clock is advanced. So a run depends on nothing but its seed,
and what is measured is what it costs:

* **CPU** is processor seconds of the whole run for each second of virtual time: cores needed to keep
  up. The driver's own part, some tenths of a microsecond a request, is in it and shown apart.
* **enqueue rate** is what one core can do: the target while CPU is below 1, else the target / CPU.
* **gc** is the time in Python's cyclic collector, in ms for each second of virtual time.
* **kept** is the most requests, live and done, that something still referred to.

The old design: a heap (Java's DelayQueue) and lists by key; what is completed stays in both until it
is met or purged; whenever requests or places in lists are more than the purge bound, the reaper
scans the heap and all lists. It runs once a millisecond at most. The new one: our `Purgatory`, with
wheels of 20 slots as in the blog and of our default.
"""

from __future__ import annotations

import gc
import heapq
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ackgate.dispatcher.timing import SLOTS_PER_LEVEL, Purgatory
from bench.pictures import Line, line_chart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SEED: Final = 20261121
TIMEOUT_MS: Final = 200
KEYS: Final = 100
KEYS_PER_REQUEST: Final = 3
START_MS: Final = 1_700_000_000_000
OLD_PURGE_BOUND: Final = 10_000
"""Requests, or places in lists, before the old reaper scans: the default of its time."""

RATES: Final = (25_000, 50_000, 100_000, 150_000, 200_000)
SHAPES: Final = {"few time out": (20.0, 60.0), "half time out": (200.0, 400.0)}
PICTURES: Final = Path(__file__).resolve().parents[1] / "docs" / "pictures"


class Workload(NamedTuple):
    """One run's requests, by millisecond."""

    keys: list[tuple[int, ...]]
    arrivals: list[int]
    """How many requests have come by the end of each millisecond."""
    done: list[list[int]]
    """Which requests are done in each millisecond."""


class Request:
    """A fake request: waits for nothing."""

    __slots__ = ("is_completed", "payload")

    def __init__(self) -> None:
        self.payload = bytes(100)
        self.is_completed = False

    def try_complete(self) -> bool:
        """Never by itself."""
        return False


class NewDesign:
    """Our purgatory."""

    def __init__(self, slots_per_level: int) -> None:
        self.purgatory: Purgatory[int, Request] = Purgatory(
            slots_per_level=slots_per_level, start_ms=START_MS
        )
        self.completed = self.expired = self.kept = 0
        self.timers: list[Any] = []

    def enqueue(self, keys: tuple[int, ...], deadline_ms: int) -> None:
        """Watch a request."""
        self.timers.append(self.purgatory.try_complete_else_watch(Request(), keys, deadline_ms))

    def complete(self, number: int) -> None:
        """The request is done."""
        if self.purgatory.complete(self.timers[number]) is not None:
            self.completed += 1

    def advance(self, now_ms: int) -> None:
        """Let expire what is due."""
        for _ in self.purgatory.advance(now_ms, 1 << 30):
            self.expired += 1
        self.kept = max(self.kept, self.purgatory.stats.estimated_total)


class OldDesign:
    """A heap, lists by key, and a reaper."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Request]] = []
        self.watchers: defaultdict[int, list[Request]] = defaultdict(list)
        self.watched = 0
        self.completed = self.expired = self.kept = 0
        self.requests: list[Request | None] = []

    def enqueue(self, keys: tuple[int, ...], deadline_ms: int) -> None:
        """Watch a request."""
        request = Request()
        if request.try_complete():
            return
        for key in keys:
            self.watchers[key].append(request)
        self.watched += len(keys)
        if not request.try_complete():
            heapq.heappush(self.heap, (deadline_ms, len(self.requests), request))
        self.requests.append(request)

    def complete(self, number: int) -> None:
        """The request is done."""
        request = self.requests[number]
        self.requests[number] = None
        if request is not None and not request.is_completed:
            request.is_completed = True
            self.completed += 1

    def advance(self, now_ms: int) -> None:
        """Let expire what is due; purge if there is too much."""
        heap = self.heap
        self.kept = max(self.kept, len(heap))
        while heap and heap[0][0] <= now_ms:
            request = heapq.heappop(heap)[2]
            if not request.is_completed:
                request.is_completed = True
                self.expired += 1
        if self.watched >= OLD_PURGE_BOUND:
            for key, watching in self.watchers.items():
                self.watchers[key] = [each for each in watching if not each.is_completed]
            self.watched = sum(map(len, self.watchers.values()))
        if len(heap) >= OLD_PURGE_BOUND:
            self.heap = [each for each in heap if not each[2].is_completed]
            heapq.heapify(self.heap)


class NoDesign:
    """The driver alone."""

    def __init__(self) -> None:
        self.completed = self.expired = self.kept = 0

    def enqueue(self, keys: tuple[int, ...], deadline_ms: int) -> None:
        """Nothing."""

    def complete(self, number: int) -> None:
        """Nothing."""

    def advance(self, now_ms: int) -> None:
        """Nothing."""


DESIGNS: Final[dict[str, Callable[[], Any]]] = {
    "old": OldDesign,
    "new, wheel of 20": lambda: NewDesign(20),
    f"new, wheel of {SLOTS_PER_LEVEL}": lambda: NewDesign(SLOTS_PER_LEVEL),
}


def run(*, smoke: bool) -> dict[str, Any]:
    """All figures; the pictures too, unless it is a smoke run."""
    count = 2_000 if smoke else 1_000_000
    rates = (10_000, 200_000) if smoke else RATES
    figures: dict[str, Any] = {"requests": count}
    for shape, (median_ms, upper_ms) in SHAPES.items():
        of_shape: dict[str, dict[str, Any]] = {}
        figures[shape] = of_shape
        for rate in rates:
            workload = _workload(count, rate, median_ms, upper_ms)
            of_shape[f"{rate}/s"] = {
                "driver_us_per_request": _measure(NoDesign, workload, rate)["us_per_request"],
                **{name: _measure(make, workload, rate) for name, make in DESIGNS.items()},
            }
    if not smoke:
        _draw(figures, rates)
    return figures


def _workload(count: int, rate: int, median_ms: float, upper_ms: float) -> Workload:
    """Requests of one run. `upper_ms` is what three quarters of them stay below."""
    numbers = np.random.default_rng(SEED)
    arrival_ms = np.cumsum(numbers.exponential(1_000 / rate, count))
    sigma = np.log(upper_ms / median_ms) / NormalDist().inv_cdf(0.75)
    takes_ms = numbers.lognormal(np.log(median_ms), sigma, count)
    in_time = np.flatnonzero(
        takes_ms < TIMEOUT_MS
    )  # the others are never completed, as in the blog
    done_ms = (arrival_ms[in_time] + takes_ms[in_time]).astype(np.int64) + 1
    last_ms = int(arrival_ms[-1]) + TIMEOUT_MS + 2
    order = np.argsort(done_ms, kind="stable")
    ends = np.searchsorted(done_ms[order], np.arange(last_ms + 1), side="right")
    done = [each.tolist() for each in np.split(in_time[order], ends[:-1])]
    keys = numbers.integers(0, KEYS, (count, KEYS_PER_REQUEST))
    return Workload(
        keys=list(map(tuple, keys.tolist())),
        arrivals=np.searchsorted(arrival_ms, np.arange(1, last_ms + 2)).tolist(),
        done=done,
    )


def _measure(make: Callable[[], Any], workload: Workload, rate: int) -> dict[str, Any]:
    design = make()
    keys, count, arrived = workload.keys, len(workload.keys), 0
    gc.collect()
    collector = _CollectorTime()
    gc.callbacks.append(collector)
    began = time.process_time()
    for millisecond, (arrivals, done) in enumerate(
        zip(workload.arrivals, workload.done, strict=True)
    ):
        now_ms = START_MS + millisecond
        deadline_ms = now_ms + TIMEOUT_MS
        for number in range(arrived, arrivals):
            design.enqueue(keys[number], deadline_ms)
        arrived = arrivals
        for number in done:
            design.complete(number)
        design.advance(now_ms)
    cpu_s = time.process_time() - began
    gc.callbacks.remove(collector)
    assert arrived == count
    assert make is NoDesign or design.completed + design.expired == count
    seconds = count / rate
    return {
        "us_per_request": round(cpu_s / count * 1e6, 2),
        "cpu": round(cpu_s / seconds, 3),
        "enqueue_per_s": round(rate / max(1.0, cpu_s / seconds)),
        "completed_share": round(design.completed / count, 4),
        "gc_ms_per_s": round(collector.spent_s / seconds * 1e3, 1),
        "kept": design.kept,
    }


class _CollectorTime:
    def __init__(self) -> None:
        self.spent_s = self.began = 0.0

    def __call__(self, phase: str, _details: object) -> None:
        if phase == "start":
            self.began = time.perf_counter()
        else:
            self.spent_s += time.perf_counter() - self.began


def _draw(figures: dict[str, Any], rates: Sequence[int]) -> None:
    PICTURES.mkdir(exist_ok=True)
    for figure, title, label in (
        ("enqueue_per_s", "Enqueue rate of one core", "requests/s"),
        ("cpu", "Processor time", "cores"),
        ("gc_ms_per_s", "Time in the cyclic collector", "ms a second"),
        ("kept", "Requests kept, live and done", "requests"),
    ):
        for shape in SHAPES:
            lines = [
                Line(
                    name,
                    [(rate, figures[shape][f"{rate}/s"][name][figure]) for rate in rates],
                    is_dashed=name == "old",
                )
                for name in DESIGNS
            ]
            name = f"purgatory-{figure.split('_', maxsplit=1)[0]}-{shape.split()[0]}.svg"
            line_chart(PICTURES / name, f"{title}, {shape}", "target requests/s", label, lines)


if __name__ == "__main__":
    print(json.dumps(run(smoke="--smoke" in sys.argv), indent=2))
