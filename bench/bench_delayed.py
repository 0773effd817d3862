"""Delayed entries in memory: the four experiments of Pulsar's time-bucket tracker, ours and peers.

``python -m bench --only bench_delayed``, or one case in this process:
``python -m bench.bench_delayed ours runs 1 10 10000000``.

10,000,000 entries in ledgers of 50,000, ``x`` messages a millisecond, keys of ``2**y`` ms. Each case
is measured in a process of its own: resident set before and after, the most in between, and what the
structure says of itself. Shapes:

- ``runs``: in order of publishing, times ascending; as in the experiments
- ``shuffled``: the same entries, added in random order
- ``random``: in order of publishing, each with a random one of the times: no two neighbours fall
  due together. No structure can be as small then (log2(10,000,000 / keys) bits for each entry and
  more), and Pulsar's has a bitmap for nearly each of them
"""

from __future__ import annotations

import heapq
import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ackgate.cursor import Position
from ackgate.dispatcher.delayed import DelaySettings, TimeBucketTracker
from bench.usage import peak_bytes, resident_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Column = NDArray[np.int64]

ENTRIES: Final = 10_000_000
LEDGER_ENTRIES: Final = 50_000
NOW_MS: Final = 1_700_000_000_000
FIRST_MS: Final = NOW_MS + 3_600_000
LAST_MS: Final = FIRST_MS + 100_000_000

EXPERIMENTS: Final = {(1, 10): 25.0, (4, 10): 20.48, (8, 10): 11.0, (8, 15): 2.25}
"""Messages a ms and bits -> MB as published for Pulsar's structure, in runs. The heap: 240 MB."""

FEISTEL_KEYS: Final = (0x9E37, 0x79B9, 0x7F4A, 0x7C15)


def run(*, smoke: bool) -> dict[str, Any]:
    """All of it."""
    entries = 20_000 if smoke else ENTRIES
    figures: dict[str, Any] = {}
    for (x, y), published in list(EXPERIMENTS.items())[: 1 if smoke else None]:
        of_experiment: dict[str, Any] = {"published MB": published}
        for shape in ("runs", "shuffled", "random"):
            of_experiment[shape] = in_a_process("ours", shape, x, y, entries)
        figures[f"x={x} y={y}"] = of_experiment
    figures["one by one"] = in_a_process("ours-singly", "runs", 1, 10, entries // 10)
    for peer in ("heapq", "sortedcontainers"):
        figures[f"{peer}, a tenth of the entries"] = {
            shape: in_a_process(peer, shape, 1, 10, entries // 10) for shape in ("runs", "shuffled")
        }
    figures["Pulsar's structures, in the JVM"] = in_the_jvm(entries)
    return figures


def in_the_jvm(entries: int) -> dict[str, Any]:
    """The heap, and the time buckets of apache/pulsar#23611, with Pulsar's own jars.

    ``ACKGATE_BENCH_PULSAR_LIB`` names the directory they are in: ``bench/peers/pulsar/start.sh`` and
    Maven make one.
    """
    lib = os.environ.get("ACKGATE_BENCH_PULSAR_LIB")
    if not lib or not shutil.which("javac"):
        return {"not measured": "no JDK, or no ACKGATE_BENCH_PULSAR_LIB"}
    figures: dict[str, Any] = {}
    source = str(Path(__file__).parent / "peers" / "delayed" / "DelayedPeers.java")
    cases = [("heap", "runs", 1, 10), *(("buckets", "runs", *each) for each in EXPERIMENTS)]
    with TemporaryDirectory() as classes:
        subprocess.run(["javac", "-cp", f"{lib}/*", "-d", classes, source], check=True)
        java = ["java", "-Xmx2g", "-cp", f"{classes}:{lib}/*", "DelayedPeers"]
        for structure, shape, x, y in cases:
            done = subprocess.run(
                [*java, structure, shape, str(x), str(y), str(entries)],
                capture_output=True,
                text=True,
                check=True,
            )
            last = done.stdout.strip().splitlines()[-1]
            figures[f"{structure}, {shape}, x={x} y={y}"] = json.loads(last)
    return figures


def in_a_process(structure: str, shape: str, x: int, y: int, entries: int) -> dict[str, Any]:
    """One case, measured in a fresh process."""
    command = [sys.executable, "-m", "bench.bench_delayed", structure, shape]
    done = subprocess.run(
        [*command, str(x), str(y), str(entries)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return {"not measured": done.stderr.strip().splitlines()[-1]}
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def measure(structure: str, shape: str, x: int, y: int, entries: int) -> dict[str, Any]:
    """One case, in this process."""
    subject = SUBJECTS[structure](y)
    mixed(np.arange(min(LEDGER_ENTRIES, entries)), entries)  # what is not the subject's is there
    before = resident_bytes()
    reset_peak()
    spent = 0.0
    for ledger_ids, entry_ids, times in batches(shape, x, entries):
        began = time.perf_counter()
        subject.add(ledger_ids, entry_ids, times)
        spent += time.perf_counter() - began
    figures: dict[str, Any] = {
        "add, ns an entry": round(spent / entries * 1e9),
        "own MB": round(subject.byte_count / 1e6, 3),
        "resident MB": round((resident_bytes() - before) / 1e6, 2),
        "resident MB at most": round((peak_bytes() - before) / 1e6, 2),
    }
    count = min(entries // 10, 1_000_000)
    for name, pop in subject.pops.items():
        began = time.perf_counter()
        popped = pop(count)
        spent = time.perf_counter() - began
        assert popped == count, (name, popped)
        figures[f"pop {count} {name}, ms"] = round(spent * 1e3, 1)
    return figures


def batches(shape: str, x: int, entries: int) -> Iterator[tuple[Column, Column, Column]]:
    """What is to be added: ledger ids, entry ids, times; in batches as large as a ledger."""
    for first in range(0, entries, LEDGER_ENTRIES):
        numbers = np.arange(first, min(first + LEDGER_ENTRIES, entries))
        places = numbers
        if shape == "random":
            numbers = mixed(numbers, entries)
        elif shape == "shuffled":
            places = mixed(numbers, entries)
            places = places[np.argsort(places // LEDGER_ENTRIES, kind="stable")]
            numbers = places
        yield 10_000 + places // LEDGER_ENTRIES, places % LEDGER_ENTRIES, FIRST_MS + numbers // x


def mixed(numbers: Column, below: int) -> Column:
    """A permutation of 0..below-1 (Feistel, walking cycles), without holding it in memory."""
    half = (max(below - 1, 3).bit_length() + 1) // 2
    mask = (1 << half) - 1

    def once(values: Column) -> Column:
        left, right = values >> half, values & mask
        for key in FEISTEL_KEYS:
            left, right = (
                right,
                left ^ (((right * key >> 5) ^ (right * right * 0x2545 >> 9)) & mask),
            )
        return (left << half) | right

    values = once(numbers)
    while (beyond := values >= below).any():
        values[beyond] = once(values[beyond])
    return values


# -- subjects


class Ours:
    """The tracker, by arrays."""

    def __init__(self, bits: int) -> None:
        settings = DelaySettings(tick_ms=1 << bits)
        warm = TimeBucketTracker(settings)
        ids = np.arange(LEDGER_ENTRIES)
        for times in (ids, ids * 7919 % 99_991):
            warm.add_many(1, ids, FIRST_MS + times, NOW_MS)
            warm.pop_due(LAST_MS, LEDGER_ENTRIES)
        self.tracker = TimeBucketTracker(settings)
        self.pops: dict[str, Callable[[int], int]] = {
            "as columns": lambda n: self.tracker.pop_due_arrays(LAST_MS, n)[0].size,
            "as positions": lambda n: len(self.tracker.pop_due(LAST_MS, n)),
            "a thousand at a time": self._pop_in_thousands,
        }

    def add(self, ledger_ids: Column, entry_ids: Column, times: Column) -> None:
        """Entries, ordered by ledger."""
        borders = (np.flatnonzero(np.diff(ledger_ids)) + 1).tolist()
        for first, stop in zip((0, *borders), (*borders, ledger_ids.size), strict=True):
            chosen = slice(first, stop)
            self.tracker.add_many(int(ledger_ids[first]), entry_ids[chosen], times[chosen], NOW_MS)

    def _pop_in_thousands(self, count: int) -> int:
        return sum(len(self.tracker.pop_due(LAST_MS, 1_000)) for _ in range(count // 1_000))

    @property
    def byte_count(self) -> int:
        """As it says of itself."""
        return self.tracker.byte_estimate


class OursSingly(Ours):
    """The tracker, entry by entry: with the loop, and the making of positions."""

    def add(self, ledger_ids: Column, entry_ids: Column, times: Column) -> None:
        """Entries, one by one."""
        add = self.tracker.add
        rows = zip(ledger_ids.tolist(), entry_ids.tolist(), times.tolist(), strict=True)
        for ledger_id, entry_id, at_ms in rows:
            add(Position(ledger_id, entry_id), at_ms, NOW_MS)


class Triples:
    """A peer that keeps a triple for each entry, in Python."""

    def __init__(self, push: Callable[[Any], None], pop: Callable[[], Any]) -> None:
        self._push, self._pop = push, pop
        self._count = 0
        self.pops: dict[str, Callable[[int], int]] = {
            "one by one": lambda count: len([self._pop() for _ in range(count)])
        }

    def add(self, ledger_ids: Column, entry_ids: Column, times: Column) -> None:
        """Entries, one by one."""
        push = self._push
        for triple in zip(times.tolist(), ledger_ids.tolist(), entry_ids.tolist(), strict=True):
            push(triple)
        self._count += ledger_ids.size

    @property
    def byte_count(self) -> int:
        """Tuple, three numbers, a pointer."""
        return self._count * (8 + 64 + 3 * 32)


def heap_of_triples(_bits: int) -> Triples:
    """As Pulsar had before."""
    heap: list[tuple[int, int, int]] = []
    return Triples(partial(heapq.heappush, heap), partial(heapq.heappop, heap))


def sorted_triples(_bits: int) -> Triples:
    """A sorted list of lists."""
    triples: Any = importlib.import_module("sortedcontainers").SortedList()
    return Triples(triples.add, partial(triples.pop, 0))


SUBJECTS: Final[dict[str, Callable[[int], Any]]] = {
    "ours": Ours,
    "ours-singly": OursSingly,
    "heapq": heap_of_triples,
    "sortedcontainers": sorted_triples,
}


# -- memory


def reset_peak() -> None:
    """Have the kernel forget the peak so far, where it may be asked to."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


if __name__ == "__main__":
    name, shape_, *numbers_ = sys.argv[1:]
    print(json.dumps(measure(name, shape_, *map(int, numbers_))))
