"""Converts rows of the table ``delivery_journal`` to events of a replay, and its results to rows.

Pure, except for Arrow. Batches come sorted by topic, subscription, settings group, epoch and
sequence; they are cut where one of the first four changes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ackgate.persistence.deliveries.columns import KINDS
from ackgate.pipeline.jobs.what_if.events import NONE, NUMBERS, WORDS, Events, joined, made

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ackgate.pipeline.jobs.what_if.replay import SubscriptionReplay
    from ackgate.pipeline.jobs.what_if.tallies import Sums

PIECE_EVENTS: Final = 32_768
"""Events replayed at a time: bounds the size of a tape."""

_KIND_NAMES: Final = pa.array([kind.value for kind in KINDS])

GROUP: Final = "settings_group"
"""Column: which part of the variants a task replays."""


class EvenFeed:
    """Feeds a replay in pieces of equal size, so that batch sizes do not affect results."""

    def __init__(self, replay: SubscriptionReplay, *, events_max: int = PIECE_EVENTS) -> None:
        self._replay = replay
        self._events_max = events_max
        self._waiting: list[Events] = []
        self._count = 0

    def feed(self, events: Events) -> None:
        """Take the next events; replay them as soon as they fill a piece."""
        if self._waiting and self._waiting[0].owner_epoch != events.owner_epoch:
            self._pass_on(0)
        self._waiting.append(events)
        self._count += len(events)
        if self._count >= self._events_max:
            self._pass_on(self._count % self._events_max)

    def finished(self) -> SubscriptionReplay:
        """Replay the remaining events, and return the finished replay."""
        self._pass_on(0)
        self._replay.finish()
        return self._replay

    def _pass_on(self, kept: int) -> None:
        """Replay all waiting events except the last `kept`."""
        if not self._waiting:
            return
        whole = joined(self._waiting)
        stop = len(whole) - kept
        for start in range(0, stop, self._events_max):
            self._replay.feed(whole.part(start, min(start + self._events_max, stop)))
        self._waiting = [whole.part(stop, len(whole))] if kept else []
        self._count = kept


class Key(NamedTuple):
    """A stream of events: its topic and subscription, and the group of settings that replays it."""

    topic: str
    subscription: str
    group: int


def keyed_events(batch: pa.RecordBatch) -> Iterator[tuple[Key, Events]]:
    """Split a batch into events of one key and one epoch each."""
    size = batch.num_rows
    if not size:
        return
    columns = {name: batch.column(name) for name in batch.schema.names}
    topics, subscriptions = (
        columns[name].dictionary_encode() for name in ("topic", "subscription")
    )
    groups, epochs = (_numbers(columns[name]) for name in (GROUP, "owner_epoch"))
    parts = (_codes(topics), _codes(subscriptions), groups, epochs)
    is_new = np.zeros(size, dtype=np.bool_)
    for part in parts:
        is_new[1:] |= part[1:] != part[:-1]
    is_new[0] = True
    events = _events(columns)
    cuts = [*np.flatnonzero(is_new).tolist(), size]
    for start, stop in pairwise(cuts):
        key = Key(topics[start].as_py(), subscriptions[start].as_py(), int(groups[start]))
        part_of = events.part(start, stop) if len(cuts) > 2 else events
        yield key, part_of.of_epoch(int(epochs[start]))


def _events(columns: dict[str, Any]) -> Events:
    kinds = pc.index_in(columns["event"], value_set=_KIND_NAMES)
    numbers = {name: _numbers(columns[name]) for name in NUMBERS}
    words = {name: _sparse(columns[name]) for name in WORDS}
    return made(0, _numbers(columns["sequence"]), _numbers(kinds), numbers, words)


def _numbers(column: pa.Array) -> NDArray[np.int64]:
    filled = pc.fill_null(pc.cast(column, pa.int64()), NONE)
    array: NDArray[np.int64] = filled.to_numpy(zero_copy_only=False)
    return array


def _codes(column: pa.DictionaryArray) -> NDArray[np.int64]:
    return _numbers(column.indices)


def _sparse(column: pa.Array) -> dict[int, Any]:
    places = np.flatnonzero(pc.is_valid(column).to_numpy(zero_copy_only=False))
    if not places.size:
        return {}
    found = column.take(pa.array(places)).dictionary_encode()
    words = found.dictionary.to_pylist()
    return {
        at: words[code] for at, code in zip(places.tolist(), found.indices.to_pylist(), strict=True)
    }


@dataclass(frozen=True, slots=True)
class SumColumns:
    """`tallies.Sums` as columns, with seconds for microseconds and means for areas."""

    recorded_seconds: float
    entries_acked: int
    paused_seconds: float
    pauses: int
    postponed: int
    writes: int
    snapshots: int
    ledgers_begun: int
    node_writes: int
    failed_attempts: int
    bytes_written: int
    node_bytes: int
    entries_dropped_max: int
    ranges_max: int
    redeliveries_mean: float
    """Mean number of entries that would be delivered again after a crash at a random moment."""
    not_durable_mean: float
    """Of these, the entries that are acked and not durable."""
    redeliveries_max: int
    delayed_entries: int
    buckets_written: int
    buckets_max: int
    segments_written: int
    segments_loaded: int
    delayed_bytes_written: int
    delayed_memory_max: int


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One subscription under some settings."""

    variant: str
    changes: str
    """``NAME=VALUE``, joined by commas."""
    moments: str
    """``recorded``: writes when the broker wrote; ``paced``: when its own settings say so."""
    sums: SumColumns
    paused_for: str
    """Reasons for pauses with their seconds, longest first."""


@dataclass(frozen=True, slots=True)
class IntervalRow:
    """One subscription under some settings, in one interval of time."""

    variant: str
    from_ms: int
    until_ms: int
    sums: SumColumns


@dataclass(frozen=True, slots=True)
class DifferenceRow:
    """One value that a replay under the recorded settings did not reproduce."""

    owner_epoch: int
    sequence: int
    field: str
    recorded: str
    replayed: str


@dataclass(frozen=True, slots=True)
class CoverageRow:
    """How much of one subscription's recording was replayed and compared."""

    events: int
    events_skipped: int
    events_missing: int
    epochs: int
    writes_compared: int
    sizes_not_compared: int
    gate_changes_compared: int
    differences: int
    cursor_bytes_max: int


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """All results of one subscription and one group of settings."""

    topic: str
    subscription: str
    settings_group: int
    results: list[ResultRow]
    intervals: list[IntervalRow]
    differences: list[DifferenceRow]
    coverage: CoverageRow


def replay_row(
    replay: SubscriptionReplay, topic: str, subscription: str, settings_group: int
) -> ReplayRow:
    """Build the row of a finished replay."""
    return ReplayRow(
        topic=topic,
        subscription=subscription,
        settings_group=settings_group,
        results=list(result_rows(replay)),
        intervals=list(interval_rows(replay)),
        differences=list(difference_rows(replay)),
        coverage=coverage_row(replay),
    )


def result_rows(replay: SubscriptionReplay) -> Iterator[ResultRow]:
    """Yield a row for each variant."""
    for variant, is_paced, sums, paused in replay.totals():
        reasons = sorted(paused.items(), key=lambda each: (-each[1], each[0]))
        yield ResultRow(
            variant=variant.name,
            changes=",".join(f"{key}={text}" for key, text in variant.changes.items()),
            moments="paced" if is_paced else "recorded",
            sums=sum_columns(sums),
            paused_for="; ".join(f"{reason} {us / 1e6:.3f} s" for reason, us in reasons),
        )


def interval_rows(replay: SubscriptionReplay) -> Iterator[IntervalRow]:
    """Yield a row for each variant and interval."""
    width_ms = replay.interval_us // 1000
    for variant, number, sums in replay.timelines():
        from_ms = number * width_ms
        yield IntervalRow(variant.name, from_ms, from_ms + width_ms, sum_columns(sums))


def difference_rows(replay: SubscriptionReplay) -> Iterator[DifferenceRow]:
    """Yield a row for each listed difference."""
    for owner_epoch, found in replay.differences.rows:
        yield DifferenceRow(
            owner_epoch, found.sequence, found.field, found.recorded, found.replayed
        )


def coverage_row(replay: SubscriptionReplay) -> CoverageRow:
    coverage, differences = replay.coverage, replay.differences
    return CoverageRow(
        events=coverage.events,
        events_skipped=coverage.events_skipped,
        events_missing=coverage.events_missing,
        epochs=coverage.epochs,
        writes_compared=differences.writes_compared,
        sizes_not_compared=differences.sizes_not_compared,
        gate_changes_compared=differences.gate_changes_compared,
        differences=differences.count,
        cursor_bytes_max=coverage.cursor_bytes_max,
    )


def sum_columns(sums: Sums) -> SumColumns:
    taken = asdict(sums)
    recorded_us, paused_us = taken.pop("recorded_us"), taken.pop("paused_us")
    not_durable, in_flight = taken.pop("not_durable_area"), taken.pop("in_flight_area")
    return SumColumns(
        recorded_seconds=recorded_us / 1e6,
        paused_seconds=paused_us / 1e6,
        redeliveries_mean=(not_durable + in_flight) / recorded_us if recorded_us else 0.0,
        not_durable_mean=not_durable / recorded_us if recorded_us else 0.0,
        **taken,
    )
