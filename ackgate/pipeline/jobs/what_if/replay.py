"""Replays the recorded traffic of one subscription under many settings side by side.

Pure. Events come in order, any number at a time; memory does not grow with their number. `walk`
digests each stretch once for all settings. Settings that write the same records at the same moments
share the writing.

    events --> Walk --> tape --+--> moments of settings 1, 3 --> writes --> gates 1, 3
                               +--> moments of settings 2    --> writes --> gate 2

A life of a subscription begins when it is recovered or created. It ends when the subscription is
deleted, or with its owner's epoch. Under all settings it begins with the state of the recording.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ackgate.cursor import ManagedCursor
from ackgate.errors import CorruptRecordError
from ackgate.persistence.deliveries.columns import KINDS, EventKind
from ackgate.persistence.deliveries.details import Configured, Opened, Subscribed, decode_detail
from ackgate.persistence.records.codec import decode_record
from ackgate.persistence.records.outcome import RecoveryReport
from ackgate.persistence.records.values import SnapshotRecord
from ackgate.pipeline.jobs.what_if.delays import SNAPSHOT_KEYS, DelayReplay
from ackgate.pipeline.jobs.what_if.differences import Differences
from ackgate.pipeline.jobs.what_if.events import Events, joined
from ackgate.pipeline.jobs.what_if.gating import ReplayedGate
from ackgate.pipeline.jobs.what_if.moments import Life, PacedMoments, RecordedMoments
from ackgate.pipeline.jobs.what_if.tallies import Exposure, Sums, Tallies
from ackgate.pipeline.jobs.what_if.tape import (
    LedgerClosed,
    LedgerOpened,
    LedgersTrimmed,
    TapePlayer,
    grow,
)
from ackgate.pipeline.jobs.what_if.variants import RECORDED, WRITE_KEYS, Variant
from ackgate.pipeline.jobs.what_if.walk import Walk, ledgers_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ackgate.config.settings import Settings
    from ackgate.cursor import CursorSnapshot, MessageLedgers, Position
    from ackgate.pipeline.jobs.what_if.moments import Moments
    from ackgate.pipeline.jobs.what_if.tape import Tape

INTERVAL_US: Final = 3_600_000_000

_BORDERS: Final = (
    EventKind.OPENED,
    EventKind.CONFIGURED,
    EventKind.SUBSCRIBED,
    EventKind.RECOVERED,
    EventKind.UNSUBSCRIBED,
    EventKind.DROPPED,
)
"""Events at which a tape ends. They are not part of a tape."""


@dataclass(slots=True)
class Coverage:
    """Counts of what could be replayed of the recording."""

    events: int = 0
    events_skipped: int = 0
    """Events of epochs whose beginning is no longer in the journal, or after a gap."""
    events_missing: int = 0
    """Events that the broker dropped from its journal."""
    epochs: int = 0
    cursor_bytes_max: int = 0
    """Highest memory estimate of the cursor, in bytes."""


@dataclass(slots=True)
class _Shared:
    """Shared by variants that write the same records at the same moments."""

    moments: Moments
    exposure: Exposure
    tallies: Tallies


@dataclass(slots=True)
class _Of:
    """State of one variant over all lives."""

    variant: Variant
    pauses: Tallies
    writes: Tallies
    delays: Tallies
    gate: ReplayedGate | None = None
    is_paced: bool = False
    """Whether its writes were paced in some life."""
    delay_replay: DelayReplay | None = None


@dataclass(slots=True)
class _Epoch:
    """State of the present owner's epoch."""

    number: int
    settings: dict[str, str]
    ledgers: MessageLedgers
    walk: Walk | None = None
    shared: dict[Any, _Shared] = field(default_factory=dict)


class SubscriptionReplay:
    """Replays one subscription of one topic under all variants."""

    def __init__(self, variants: Sequence[Variant], *, interval_us: int = INTERVAL_US) -> None:
        self.coverage = Coverage()
        self.differences = Differences()
        self.interval_us = interval_us
        self._all = [
            _Of(v, Tallies(interval_us), Tallies(interval_us), Tallies(interval_us))
            for v in variants
        ]
        self._epoch: _Epoch | None = None
        self._seen = (-1, -1)
        self._pending: Events | None = None

    # ------------------------------------------------------------------------- results

    def totals(self) -> Iterator[tuple[Variant, bool, Sums, Mapping[str, int]]]:
        """Yield each variant, whether it was ever paced, its sums, and its paused us by reason."""
        for of in self._all:
            sums = of.writes.total()
            sums.add(of.pauses.total())
            sums.add(of.delays.total())
            yield of.variant, of.is_paced, sums, dict(of.pauses.paused_reasons_us)

    def timelines(self) -> Iterator[tuple[Variant, int, Sums]]:
        """Yield variant, interval number (since 1970) and sums, for each variant and interval."""
        for of in self._all:
            parts = (of.writes, of.pauses, of.delays)
            for number in sorted({number for part in parts for number in part.by_interval}):
                sums = Sums()
                for tallies in parts:
                    if number in tallies.by_interval:
                        sums.add(tallies.by_interval[number])
                yield of.variant, number, sums

    # -------------------------------------------------------------------------- events

    def feed(self, events: Events) -> None:
        """Replay the next events. Skips those seen before, by epoch and sequence number."""
        epoch, last = self._seen
        if events.owner_epoch < epoch:
            return
        if events.owner_epoch > epoch:
            self._end_epoch()
            last = -1
        start = int(np.searchsorted(events.sequences, last, side="right"))
        if start == len(events):
            return
        events = events.part(start, len(events)) if start else events
        self._seen = (events.owner_epoch, int(events.sequences[-1]))
        self.coverage.events += len(events)
        for part in _parts(events):
            self._take(part)

    def finish(self) -> None:
        """End the replay: there are no more events."""
        self._end_epoch()

    def _take(self, events: Events) -> None:
        """Replay events of which only the first may be a border (`_BORDERS`)."""
        kind = KINDS[int(events.kinds[0])]
        if kind in _BORDERS:
            self._flush()
            self._cross(kind, events)
            events = events.part(1, len(events))
            if not len(events):
                return
        epoch = self._epoch
        if epoch is None:
            self.coverage.events_skipped += len(events)
        elif epoch.walk is None:
            _note_topic(events, epoch.ledgers)
        else:
            self._replay(epoch, epoch.walk, events, is_last=False)

    def _cross(self, kind: EventKind, events: Events) -> None:
        if kind is EventKind.OPENED:
            self._open(events)
            return
        epoch = self._epoch
        if kind is EventKind.DROPPED:
            self.coverage.events_missing += int(events.numbers["version"][0])
            self._end_epoch()
        elif epoch is None:
            self.coverage.events_skipped += 1
        elif kind is EventKind.CONFIGURED:
            self._configure(epoch, events)
        elif kind is EventKind.UNSUBSCRIBED:
            self._end_life(epoch)
        else:
            self._begin_life(epoch, kind, events)

    def _open(self, events: Events) -> None:
        self._end_epoch()
        opened = decode_detail(Opened, events.words["detail"].get(0))
        self._epoch = _Epoch(events.owner_epoch, dict(opened.settings), ledgers_of(opened))
        self.coverage.epochs += 1

    def _configure(self, epoch: _Epoch, events: Events) -> None:
        detail = decode_detail(Configured, events.words["detail"].get(0))
        epoch.settings.update(detail.settings)
        now_us = int(events.numbers["time_us"][0])
        walk = epoch.walk
        if walk is None:
            return
        all_settings = [of.variant.settings(epoch.settings) for of in self._all]
        walk.watch_budgets(_strict_limits(all_settings))
        for of, settings in zip(self._all, all_settings, strict=True):
            assert of.gate is not None
            assert of.delay_replay is not None
            of.gate.configure(settings, now_us, is_budget_left=walk.budget_is_left)
            of.delay_replay.configure(settings)
            shared = epoch.shared[of.variant.name]
            is_paced = of.variant.is_paced(epoch.settings)
            if is_paced and isinstance(shared.moments, RecordedMoments):
                shared.moments = shared.moments.at_own_pace(settings.persistence, now_us)
            of.is_paced = of.is_paced or is_paced
            shared.moments.configure(settings.persistence)

    # --------------------------------------------------------------------------- lives

    def _begin_life(self, epoch: _Epoch, kind: EventKind, events: Events) -> None:
        self._end_life(epoch)
        text = events.words["detail"].get(0)
        if kind is EventKind.SUBSCRIBED:
            subscribed = decode_detail(Subscribed, text)
            if not subscribed.is_durable:
                return  # a reader's subscription: the broker stores nothing of it
            state: CursorSnapshot | Position = subscribed.position
            durable_version = 0
        else:
            durable_version = decode_detail(RecoveryReport, text).version
            state = _recovered(events.words["state"].get(0))
        start_us = int(events.numbers["time_us"][0])
        all_settings = {of.variant.name: of.variant.settings(epoch.settings) for of in self._all}
        recorded = Variant(RECORDED).settings(epoch.settings)
        is_on = recorded.cursor.acknowledgment_at_batch_index_level_enabled
        epoch.walk = Walk(
            _cursor(state, epoch.ledgers, batch_index_acks=is_on),
            epoch.ledgers,
            start_us=start_us,
            strict_limits=_strict_limits(all_settings.values()),
        )
        by_key: dict[Any, _Shared] = {}
        self._begin_delays(all_settings)
        for of in self._all:
            settings = all_settings[of.variant.name]
            is_paced = of.variant.is_paced(epoch.settings)
            of.is_paced = of.is_paced or is_paced
            key = of.variant.changes_of(WRITE_KEYS)
            if key not in by_key:
                ledgers = epoch.ledgers.copy()
                cursor = _cursor(state, ledgers, batch_index_acks=is_on)
                life = Life(TapePlayer(cursor, ledgers), epoch.number, durable_version, start_us)
                moments: Moments = (
                    PacedMoments(life, settings.persistence)
                    if is_paced
                    else RecordedMoments(
                        life,
                        settings.persistence,
                        has_recorded_settings=settings.persistence == recorded.persistence,
                    )
                )
                by_key[key] = _Shared(moments, Exposure(start_us), Tallies(self.interval_us))
            epoch.shared[of.variant.name] = by_key[key]
            of.gate = ReplayedGate(
                settings,
                start_us,
                ranges=epoch.walk.cursor.range_count,
                batches=epoch.walk.cursor.partly_acked_count,
            )

    def _begin_delays(self, all_settings: Mapping[str, Settings]) -> None:
        """Create the delay replays, once: they outlive owners. Equal changes share one."""
        by_key: dict[Any, _Of] = {}
        for of in self._all:
            if of.delay_replay is None:
                settings = all_settings[of.variant.name]
                first = by_key.setdefault(of.variant.changes_of(SNAPSHOT_KEYS), of)
                if first is of:
                    of.delay_replay = DelayReplay(settings)
                else:
                    of.delay_replay, of.delays = first.delay_replay, first.delays

    def _replay(self, epoch: _Epoch, walk: Walk, events: Events, *, is_last: bool) -> None:
        if self._pending is not None:
            events = joined([self._pending, events])
            self._pending = None
        tape, taken = walk.digest(events, is_last=is_last)
        if taken < len(events):
            self._pending = events.part(taken, len(events))
        if taken:
            self._play(epoch, tape)

    def _play(self, epoch: _Epoch, tape: Tape) -> None:
        done: dict[int, Any] = {}
        for of in self._all:
            shared = epoch.shared[of.variant.name]
            written = done.get(id(shared))
            if written is None:
                written = done[id(shared)] = shared.moments.run(tape)
                shared.tallies.add_tape(tape)
                shared.tallies.add_writes(tape, written)
                shared.exposure.run(tape, written.writes, shared.tallies)
            if of.delay_replay is not None and id(of.delays) not in done:
                done[id(of.delays)] = True
                of.delay_replay.run(tape, of.delays)
            assert of.gate is not None
            edges = of.gate.run(tape, written)
            of.pauses.add_edges(edges, tape)
            if of.variant.name == RECORDED:
                self.differences.compare(tape, written.writes, edges)

    def _flush(self) -> None:
        """Acks still waiting for the rest of their command will not get it."""
        pending, epoch = self._pending, self._epoch
        if pending is not None and epoch is not None and epoch.walk is not None:
            self._pending = None
            self._replay(epoch, epoch.walk, pending, is_last=True)

    def _end_life(self, epoch: _Epoch) -> None:
        walk = epoch.walk
        if walk is None:
            return
        self.differences.add(epoch.number, walk.differences)
        self.coverage.cursor_bytes_max = max(self.coverage.cursor_bytes_max, walk.cursor_bytes)
        self.differences.end_life()
        epoch.walk = None
        for of in self._all:
            of.writes.merge(epoch.shared[of.variant.name].tallies)
            of.gate = None
            of.pauses.end_life()
        epoch.shared.clear()

    def _end_epoch(self) -> None:
        self._flush()
        if self._epoch is not None:
            self._end_life(self._epoch)
            self._epoch = None


# ---------------------------------------------------------------------------- pieces


def _parts(events: Events) -> Iterator[Events]:
    """Cut the events before each border."""
    borders = events.places(*_BORDERS).tolist()
    cuts = [0, *(place for place in borders if place), len(events)]
    for start, stop in pairwise(cuts):
        yield events.part(start, stop)


def _strict_limits(all_settings: Iterable[Settings]) -> list[int]:
    limits = {
        settings.persistence.managed_ledger_max_unacked_ranges_to_persist
        for settings in all_settings
        if settings.dispatcher.dispatcher_pause_on_ack_state_strict_enabled
        and settings.dispatcher.dispatcher_pause_on_ack_state_persistent_enabled
    }
    return sorted(limits)


def _recovered(stored: bytes | None) -> CursorSnapshot:
    record = decode_record(stored or b"")
    if not isinstance(record, SnapshotRecord):
        raise CorruptRecordError("a recovered state is no snapshot")
    return record.snapshot


def _cursor(
    state: CursorSnapshot | Position, ledgers: MessageLedgers, *, batch_index_acks: bool
) -> ManagedCursor:
    if isinstance(state, tuple):
        return ManagedCursor(ledgers, state, batch_index_acks=batch_index_acks)
    return ManagedCursor.from_snapshot(ledgers, state, batch_index_acks=batch_index_acks)[0]


def _note_topic(events: Events, ledgers: MessageLedgers) -> None:
    """Apply the topic's events to its ledgers while the subscription does not exist."""
    for at in events.places(
        EventKind.PUBLISHED,
        EventKind.LEDGER_OPENED,
        EventKind.LEDGER_CLOSED,
        EventKind.LEDGER_TRIMMED,
    ).tolist():
        ledger_id = int(events.numbers["ledger_id"][at])
        entries = int(events.numbers["entry_id"][at]) + 1
        match KINDS[int(events.kinds[at])]:
            case EventKind.PUBLISHED:
                grow(ledgers, ledger_id, entries)
            case EventKind.LEDGER_OPENED:
                LedgerOpened(ledger_id).apply_to(ledgers)
            case EventKind.LEDGER_CLOSED:
                LedgerClosed(ledger_id, entries).apply_to(ledgers)
            case _:
                LedgersTrimmed((ledger_id,)).apply_to(ledgers)
