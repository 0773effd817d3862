"""Pending negative acks in memory: ours and Pulsar's structures, by the seed's numbers.

``python -m bench --only bench_nacks``, or one case in this process:
``python -m bench.bench_nacks frames runs 1000000``.

10,000 nacks a second with an hour's delay each, ledgers of 50,000 entries, 8 precision bits: 2,560
entries come back together. Each case is measured in a process of its own: resident set before and
after (the allocator has given back what is free; of 1,000,000 ten are held at once), and what the
structure says of itself; times are of the processor. Pulsar's map before PIP-393 takes 64 MB for
1,000,000 and 512 MB for 10,000,000 by the seed; its goal is one hundredth of that. Shapes:

- ``runs``: in order, as the seed assumes
- ``shuffled``: the same entries and times, added in random order
- ``random``: each entry with a random time within the hour: no two neighbours come back together

Pulsar's own structures run in a JVM (`bench/peers/pulsar/NackMaps.java`) if there is one, with its
jars in ``ACKGATE_BENCH_PULSAR_LIB``; there, memory is the heap after a collection.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import shutil
import subprocess
import sys
import time
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ackgate.cursor import NackedLedger, Position, earliest_nacks
from ackgate.dispatcher.nacks import NackTracker
from bench.usage import resident_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Column = NDArray[np.int64]

SEED: Final = 20261121
NOW_MS: Final = 1_700_000_000_000
DELAY_MS: Final = 3_600_000
LEDGER_ENTRIES: Final = 50_000
NACKS_PER_MS: Final = 10
FRAME_ENTRIES: Final = 1_000
"""The client's most positions in one REDELIVER command."""

BITS: Final = 8
IMAGE_BYTES: Final = 65_536
"""Default of ``pendingNacksMaxBytesToPersist``."""

SEED_MB: Final = {1_000_000: 64.0, 10_000_000: 512.0}
"""Published for Pulsar's map before PIP-393."""

SHAPES: Final = ("runs", "shuffled", "random")
COPIES: Final = {1_000_000: 10}
"""Small ones are held several times at once: a process by itself varies by a megabyte."""

PEER: Final = Path(__file__).parent / "peers" / "pulsar" / "NackMaps.java"


def run(*, smoke: bool) -> dict[str, Any]:
    """All of it."""
    figures: dict[str, Any] = {}
    for entries in (10_000,) if smoke else SEED_MB:
        of_count: dict[str, Any] = {}
        for shape in SHAPES[: 1 if smoke else None]:
            of_shape: dict[str, Any] = {"by arrays": in_a_process("arrays", shape, entries)}
            if entries <= 1_000_000 or shape == "runs":
                of_shape["in frames of 1,000"] = in_a_process("frames", shape, entries)
            if entries <= 1_000_000:
                of_shape["one by one"] = in_a_process("singly", shape, entries)
                of_shape["peer: dict of deadlines"] = in_a_process("dict", shape, entries)
            if not (smoke or (entries > 1_000_000 and shape != "runs")):
                of_shape["peer: Pulsar's map before PIP-393"] = in_a_jvm("old", shape, entries)
                of_shape["peer: Pulsar's map of PIP-393"] = in_a_jvm("new", shape, entries)
            published = SEED_MB.get(entries)
            if published:
                taken = of_shape["by arrays"]["resident MB"]
                of_shape["ours, of the seed's figure"] = f"{taken / published:.3%}"
            of_count[shape] = of_shape
        figures[f"{entries} nacks"] = of_count
    return figures


def in_a_process(structure: str, shape: str, entries: int) -> dict[str, Any]:
    """One case, measured in a fresh process."""
    command = [sys.executable, "-m", "bench.bench_nacks", structure, shape, str(entries)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def in_a_jvm(structure: str, shape: str, entries: int) -> dict[str, Any]:
    """The same with a structure of Pulsar's."""
    lib = os.environ.get("ACKGATE_BENCH_PULSAR_LIB")
    if lib is None or shutil.which("java") is None:
        return {"skipped": "needs java, and Pulsar's jars in ACKGATE_BENCH_PULSAR_LIB"}
    command = ["java", "-Xmx4g", "-cp", f"{lib}/*", str(PEER), structure, shape]
    done = subprocess.run(
        [*command, str(entries), str(BITS)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return {"not measured": done.stderr.strip().splitlines()[-1]}
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


# -- one case


def measure(structure: str, shape: str, entries: int) -> dict[str, Any]:
    """One case, in this process."""
    warm_up(SUBJECTS[structure])
    copies = 1 if structure == "dict" or shape == "random" else COPIES.get(entries, 1)
    before = _kept_bytes()
    subjects, spent = [], 0.0
    for _ in range(copies):
        subject = SUBJECTS[structure]()
        subjects.append(subject)
        for ledger_id, entry_ids, times in batches(shape, entries):
            began = time.process_time()
            subject.add(ledger_id, entry_ids, times)
            spent += time.process_time() - began
        subject.settle()
    resident = (_kept_bytes() - before) / copies
    spent /= copies
    figures: dict[str, Any] = {
        "add, ns an entry": round(spent / entries * 1e9, 1),
        "resident MB": round(resident / 1e6, 3),
        "resident bytes an entry": round(resident / entries, 3),
    }
    if subject.byte_count is not None:
        figures["own MB"] = round(subject.byte_count / 1e6, 3)
    span_ms = DELAY_MS if shape == "random" else entries // NACKS_PER_MS
    began = time.process_time()
    first = subject.pop_through(NOW_MS + DELAY_MS + span_ms // 100)
    figures[f"pop the first {first}, ms"] = round((time.process_time() - began) * 1e3, 2)
    figures |= subject.more(entries)
    began = time.process_time()
    rest = subject.pop_through(NOW_MS + 3 * DELAY_MS)
    figures[f"pop the other {rest}, ms"] = round((time.process_time() - began) * 1e3, 1)
    assert subject.pop_through(NOW_MS + 9 * DELAY_MS) == 0
    return figures


def warm_up(make: Callable[[], Any]) -> None:
    """What is not the subject's is in memory, and code has run once."""
    for shape in SHAPES:
        subject = make()
        for batch in batches(shape, LEDGER_ENTRIES):
            subject.add(*batch)
        subject.settle()
        subject.pop_through(NOW_MS + 9 * DELAY_MS)


def batches(shape: str, entries: int) -> Iterator[tuple[int, Column, Column]]:
    """What is nacked: ledger, entry ids, when they are to come back (ms after the first nack)."""
    rng = np.random.default_rng(SEED)
    for first in range(0, entries, LEDGER_ENTRIES):
        numbers = np.arange(first, min(first + LEDGER_ENTRIES, entries))
        if shape != "runs":
            numbers = rng.permutation(numbers)
        times = numbers // NACKS_PER_MS
        if shape == "random":
            times = rng.integers(0, DELAY_MS, numbers.size)
        yield 10_000 + first // LEDGER_ENTRIES, numbers % LEDGER_ENTRIES, times


class Arrays:
    """The tracker, a ledger at a time."""

    def __init__(self) -> None:
        self.tracker = NackTracker()

    def add(self, ledger_id: int, entry_ids: Column, times: Column) -> None:
        """Entries of a ledger."""
        self.tracker.add_many(ledger_id, entry_ids, NOW_MS, delays_ms=DELAY_MS + times)

    def settle(self) -> None:
        """Some time later: what is full is run-optimised."""
        self.tracker.add(Position(1, 0), NOW_MS + 60_000, delay_ms=10 * DELAY_MS)

    @property
    def byte_count(self) -> int | None:
        """As it says of itself."""
        return self.tracker.byte_estimate

    def pop_through(self, now_ms: int) -> int:
        """A thousand at a time, as a dispatcher with room for so many."""
        count = 0
        while popped := len(self.tracker.pop_due(now_ms, 1_000).positions):
            count += popped
        return count

    def more(self, entries: int) -> dict[str, Any]:
        """Acks of what waits, and an image to be stored."""
        ledger_id = 10_000 + (entries - 1) // LEDGER_ENTRIES
        positions = [Position(ledger_id, n) for n in range(0, 10_000, 10)]
        began = time.process_time()
        acked = sum(map(self.tracker.discard, positions))
        each = (time.process_time() - began) / len(positions)
        assert acked
        began = time.process_time()
        nacks = earliest_nacks(
            starmap(NackedLedger, self.tracker.parts()), IMAGE_BYTES, precision_bits=BITS
        )
        return {
            "ack of what waits, ns": round(each * 1e9),
            f"an image of the earliest {nacks.entry_count}, ms": round(
                (time.process_time() - began) * 1e3, 2
            ),
        }


class Frames(Arrays):
    """The tracker, as the nacks come: 1,000 at a time, the clock moving on."""

    def __init__(self) -> None:
        super().__init__()
        self._passed_ms = 0

    def add(self, ledger_id: int, entry_ids: Column, times: Column) -> None:
        """Entries of a ledger."""
        for start in range(0, entry_ids.size, FRAME_ENTRIES):
            frame = slice(start, start + FRAME_ENTRIES)
            self._frame(ledger_id, entry_ids[frame], DELAY_MS + times[frame])

    def _frame(self, ledger_id: int, entry_ids: Column, delays: Column) -> None:
        passed_ms = max(int(delays.min()) - DELAY_MS, self._passed_ms)
        self._passed_ms = min(passed_ms, self._passed_ms + FRAME_ENTRIES // NACKS_PER_MS)
        left = np.maximum(delays - self._passed_ms, 0)
        self.tracker.add_many(ledger_id, entry_ids, NOW_MS + self._passed_ms, delays_ms=left)


class Singly(Arrays):
    """The tracker, one by one: with the loop, and the making of positions."""

    def add(self, ledger_id: int, entry_ids: Column, times: Column) -> None:
        """Entries of a ledger."""
        add = self.tracker.add
        for entry_id, at_ms in zip(entry_ids.tolist(), times.tolist(), strict=True):
            add(Position(ledger_id, entry_id), NOW_MS, delay_ms=DELAY_MS + at_ms)


class DictOfDeadlines:
    """A peer: the old tracker in Python, all of it looked through each time."""

    byte_count: int | None = None

    def __init__(self) -> None:
        self.deadlines: dict[Position, int] = {}

    def add(self, ledger_id: int, entry_ids: Column, times: Column) -> None:
        """Entries of a ledger."""
        for entry_id, at_ms in zip(entry_ids.tolist(), times.tolist(), strict=True):
            self.deadlines[Position(ledger_id, entry_id)] = NOW_MS + DELAY_MS + at_ms

    def settle(self) -> None:
        """Nothing to do."""

    def pop_through(self, now_ms: int) -> int:
        """All that is due."""
        due = [position for position, at_ms in self.deadlines.items() if at_ms <= now_ms]
        for position in due:
            del self.deadlines[position]
        return len(due)

    def more(self, _: int) -> dict[str, Any]:
        """Nothing."""
        return {}


SUBJECTS: Final[dict[str, Callable[[], Any]]] = {
    "arrays": Arrays,
    "frames": Frames,
    "singly": Singly,
    "dict": DictOfDeadlines,
}


def _kept_bytes() -> int:
    """Of this process, without what is free."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return resident_bytes()


if __name__ == "__main__":
    name, shape_, count_ = sys.argv[1:]
    print(json.dumps(measure(name, shape_, int(count_))))
