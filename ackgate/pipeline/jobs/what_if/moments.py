"""Decides when a cursor is written and forms its writes: at recorded moments, or at another pace.

Pure. `RecordedMoments.run` and `PacedMoments.run` return the writes that became durable within a
tape. Settings that change amid a life may turn the one into the other (`RecordedMoments.at_own_pace`).

`RecordedMoments` forms the state of each recorded version again. The journal reports a write when
it is durable, but the write holds the state of when it began. So the replay's cursor lags behind
the recording, and tapes are kept until no write needs them any more::

    calls       5   6   7   8   9  10
    recording       '-- version 6 --'persisted
    replay      plays up to version 6 when it comes to "persisted"

The recording decides which attempts failed, and whether a full ledger could be replaced. It never
decides the content of a write, which is only compared with it.

`PacedMoments` runs the broker's own write path (`persistence.cursors.write_path`) in the
recording's time: the path decides when to write and what. Each write takes as long as the last
recorded write of its kind, or fails if the recording's writes to that store failed then.

The broker's own planner, chain and codec (`CursorWrites`) decide what a write holds, and whether a
ledger is begun for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ackgate.config.field import INT_MAX
from ackgate.errors import NodeTooLargeError, StorageError
from ackgate.persistence.cursors.node import CursorNode, encode_cursor_node
from ackgate.persistence.cursors.write_path import (
    AppendRecord,
    BeginLedger,
    PutState,
    RoundReport,
    SettleNode,
    WaitUntil,
    WritePath,
)
from ackgate.persistence.records.forming import NackWrites, RecordChain, RecordForming
from ackgate.persistence.records.limits import packing
from ackgate.persistence.records.outcome import PersistWhere
from ackgate.pipeline.jobs.what_if.tape import CursorMoved, Recorded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.config.persistence import PersistenceSettings
    from ackgate.cursor import ManagedCursor
    from ackgate.persistence.cursors.write_path import StateWrite, WriteStep
    from ackgate.persistence.records.envelope import Packing
    from ackgate.persistence.records.forming import FormedRecord
    from ackgate.persistence.records.outcome import PersistOutcome
    from ackgate.persistence.records.planner import PersistPlan
    from ackgate.pipeline.jobs.what_if.tape import RecordedFailure, Tape, TapePlayer

FIRST_LEDGER_ID: Final = 1
"""Id of a cursor ledger whose recorded id is unknown. It affects a byte or two of the node."""

AGE_SLACK_SECONDS: Final = 0.01
"""Added to a ledger's age: the broker measures it with another clock than its timestamps."""

LATENCY_US: Final = 2_000
"""Duration of a write if the recording has had none of its kind so far."""

STORES: Final = ("ledger", "metadata-store")

US: Final = 1_000_000


class ReplayedNode:
    """The cursor's node without properties."""

    __slots__ = ("bytes_max", "owner_epoch")

    def __init__(self, owner_epoch: int) -> None:
        self.owner_epoch = owner_epoch
        self.bytes_max = INT_MAX

    def encode(
        self, *, cursor_ledger_id: int | None, state: bytes | None, packing: Packing
    ) -> bytes:
        return encode_cursor_node(
            CursorNode(self.owner_epoch, cursor_ledger_id, state, {}), packing
        )


class WrittenRecords(NamedTuple):
    """One formed write: its plan, its place, and its bytes there."""

    plan: PersistPlan
    where: PersistWhere
    ledger_bytes: int
    node_bytes: int
    is_ledger_begun: bool


class CursorWrites:
    """Forms the writes of one cursor, one after the other, as the broker does. Stores nothing."""

    __slots__ = ("_chain", "_forming", "_settings", "cursor", "ledger_id")

    def __init__(
        self, cursor: ManagedCursor, settings: PersistenceSettings, *, owner_epoch: int
    ) -> None:
        self.cursor = cursor
        self._settings = settings
        self._forming = RecordForming(cursor, NackWrites(0), ReplayedNode(owner_epoch), settings)
        self._chain: RecordChain | None = None
        self.ledger_id = FIRST_LEDGER_ID
        """Id for the next cursor ledger that is begun."""

    def configure(self, settings: PersistenceSettings) -> None:
        """Use these settings from the next write on."""
        self._settings = self._forming.settings = settings

    @property
    def has_ledger(self) -> bool:
        """Whether a cursor ledger is open."""
        return self._chain is not None

    def is_ledger_full(self, now: float) -> bool:
        """Whether the next record should begin another ledger."""
        chain = self._chain
        return chain is not None and (
            chain.is_full(self._settings, now=now) or chain.is_from_before(self.cursor.grown_since)
        )

    def lose_ledger(self) -> None:
        """Give up the open ledger after a failed append: the next record begins another one."""
        self._chain = None

    def to_ledger(self, now: float, now_ms: int, *, begins: bool | None = None) -> WrittenRecords:
        """Form a write of the present state to the open ledger, or to a new one.

        `begins`: whether to begin a ledger; None: only if the open one is full. Without an open
        ledger one is always begun.
        """
        chain = self._chain
        if chain is None or (self.is_ledger_full(now) if begins is None else begins):
            return self._begin_ledger(now, now_ms)
        formed = self._forming.next_record(chain, now=now, now_ms=now_ms)
        written = self._append(chain, formed)
        return WrittenRecords(formed.plan, PersistWhere.LEDGER, written, 0, is_ledger_begun=False)

    def fail_to_roll(self, now_ms: int) -> None:
        """Take the state as the broker did for a new ledger that it then could not begin."""
        self._forming.first_record(now_ms)

    def to_node(self, now_ms: int) -> WrittenRecords:
        """Form a write of the present state to the node, cut to what fits.

        Raises `NodeTooLargeError` if not even the mark-delete fits.
        """
        return self._put(self._forming.for_node(now_ms))

    def to_node_if_it_fits(self, now_ms: int) -> WrittenRecords | None:
        """Form a write of the whole state to the node; None if it does not fit."""
        formed = self._forming.whole_for_node(now_ms)
        return None if formed is None else self._put(formed)

    def _begin_ledger(self, now: float, now_ms: int) -> WrittenRecords:
        first = self._forming.first_record(now_ms)
        self._chain = chain = RecordChain(opened_at=now)
        written = self._append(chain, first.formed)
        state = self._forming.inline_state(first, self.ledger_id)
        node_bytes = self._node_bytes(self.ledger_id, state)
        plan = first.formed.plan
        return WrittenRecords(plan, PersistWhere.LEDGER, written, node_bytes, is_ledger_begun=True)

    def _append(self, chain: RecordChain, formed: FormedRecord) -> int:
        record = formed.plan.record
        entries = chain.begin(record, formed.encoded, self._settings)
        chain.appended(record, formed.encoded, entry_count=len(entries))
        return sum(map(len, entries))

    def _put(self, formed: FormedRecord) -> WrittenRecords:
        self._chain = None
        node_bytes = self._node_bytes(None, formed.encoded)
        return WrittenRecords(
            formed.plan, PersistWhere.METADATA_STORE, 0, node_bytes, is_ledger_begun=False
        )

    def _node_bytes(self, ledger_id: int | None, state: bytes | None) -> int:
        value = self._forming.node.encode(
            cursor_ledger_id=ledger_id, state=state, packing=packing(self._settings)
        )
        return len(value)


@dataclass(frozen=True, slots=True)
class ReplayedWrite:
    """One durable write of a replay."""

    durable_us: int
    calls: int
    """Number of the tape's calls before it was durable."""
    acked: int
    """Entries acked in memory when its state was taken."""
    outcome: PersistOutcome
    recorded: Recorded | None = None
    """The recorded write at the same moment; None if paced."""


class Failing(NamedTuple):
    """A change at `time_us`: writes have been failing since `since_ms`; None: they work again."""

    time_us: int
    calls: int
    since_ms: int | None


class TapeWrites(NamedTuple):
    """Durable writes and failures of a replay within one tape."""

    writes: list[ReplayedWrite]
    failings: list[Failing]
    failed_attempts: int


class Moments(Protocol):
    """Decides when the cursor is written in one life of a subscription, and forms the writes."""

    def configure(self, settings: PersistenceSettings) -> None: ...

    def run(self, tape: Tape) -> TapeWrites: ...


class Life(NamedTuple):
    """What a life of a subscription begins with."""

    player: TapePlayer
    owner_epoch: int
    durable_version: int
    start_us: int


def outcome_of(
    written: WrittenRecords,
    *,
    at_ms: int,
    duration_ms: float,
    is_last: bool = False,
    cursor_ledger_id: int | None = None,
) -> PersistOutcome:
    """Build the outcome that the broker would have recorded for this write."""
    return written.plan.outcome(
        where=written.where,
        bytes_written=written.ledger_bytes + written.node_bytes,
        at_ms=at_ms,
        duration_ms=duration_ms,
        is_ledger_begun=written.is_ledger_begun,
        node_bytes=written.node_bytes,
        is_last=is_last,
        cursor_ledger_id=cursor_ledger_id,
    )


class RecordedMoments:
    """Forms the writes of the recorded versions again, at the recorded moments."""

    def __init__(
        self, life: Life, settings: PersistenceSettings, *, has_recorded_settings: bool
    ) -> None:
        self._has_recorded_settings = has_recorded_settings
        self._player = life.player
        self._writes = CursorWrites(life.player.cursor, settings, owner_epoch=life.owner_epoch)
        self.tapes: deque[Tape] = deque()
        """Tapes that a later write may still need, oldest first."""
        self._version = life.durable_version
        self._acked = 0
        self._failed: set[str] = set()
        self._since_ms: int | None = None
        self._life = life
        self._times = StorageTimes()

    def at_own_pace(self, settings: PersistenceSettings, now_us: int) -> PacedMoments:
        """Go on at the pace of these settings from `now_us` on, where the last tape has ended.

        The next write begins a cursor ledger, as after a start.
        """
        while self.tapes:
            tape = self.tapes.popleft()
            self._player.finish()
            self._acked = int(tape.acked[-1]) if len(tape) else self._acked
            if self.tapes:
                self._player.load(self.tapes[0])
        paced = PacedMoments(
            self._life._replace(durable_version=self._version), settings, times=self._times
        )
        paced.go_on(now_us, acked=self._acked, is_failing=self._since_ms is not None)
        return paced

    def configure(self, settings: PersistenceSettings) -> None:
        """Use these settings from the next tape on."""
        self._writes.configure(settings)

    def run(self, tape: Tape) -> TapeWrites:
        """Form the writes that became durable within the tape."""
        if not self.tapes:
            self._player.load(tape)
        self.tapes.append(tape)
        self._times.hear(tape)
        found = TapeWrites([], [], len(tape.failures))
        results: list[Recorded | RecordedFailure] = [*tape.outcomes, *tape.failures]
        for each in sorted(results, key=lambda each: each.sequence):
            if isinstance(each, Recorded):
                found.writes.append(self._write(each))
                since_ms = None
            else:
                self._failed.add(each.store)
                since_ms = each.detail.failing_since_ms
            if since_ms != self._since_ms:
                self._since_ms = since_ms
                found.failings.append(Failing(each.time_us, each.calls, since_ms))
        self._play_to(self._version)  # and calls that left the version as it was
        if self._player.calls == len(self.tapes[0]) and len(self.tapes) == 1:
            self._player.finish()
            self.tapes.clear()
        return found

    def _write(self, recorded: Recorded) -> ReplayedWrite:
        outcome = recorded.outcome
        self._version = outcome.version
        self._play_to(outcome.version)
        if outcome.cursor_ledger_id is not None:
            self._writes.ledger_id = outcome.cursor_ledger_id
        written = self._again(recorded)
        self._failed.clear()
        replayed = outcome_of(
            written,
            at_ms=outcome.at_ms,
            duration_ms=outcome.duration_ms,
            is_last=outcome.is_last,
            cursor_ledger_id=self._writes.ledger_id if self._writes.has_ledger else None,
        )
        return ReplayedWrite(recorded.time_us, recorded.calls, self._acked, replayed, recorded)

    def _again(self, recorded: Recorded) -> WrittenRecords:
        outcome, writes = recorded.outcome, self._writes
        now_ms = outcome.written_ms
        began = (outcome.at_ms - outcome.duration_ms) / 1000
        to_node = outcome.where is PersistWhere.METADATA_STORE
        if outcome.is_last and (to_node or "metadata-store" not in self._failed):
            written = writes.to_node_if_it_fits(now_ms)
            if written is not None:
                return written
        elif to_node:
            return writes.to_node(now_ms)
        return self._into_ledger(recorded, began, now_ms)

    def _into_ledger(self, recorded: Recorded, began: float, now_ms: int) -> WrittenRecords:
        outcome, writes = recorded.outcome, self._writes
        if self._failed and outcome.is_ledger_begun:
            writes.lose_ledger()
        begins = writes.is_ledger_full(began + AGE_SLACK_SECONDS)
        is_kept = begins and not outcome.is_ledger_begun
        if self._has_recorded_settings and is_kept:
            begins = False  # it was full, and the broker could not replace it
        if not outcome.is_delta and (self._failed or is_kept):
            writes.fail_to_roll(now_ms)
        return writes.to_ledger(began, now_ms, begins=begins)

    def _play_to(self, version: int) -> None:
        while True:
            tape = self.tapes[0]
            calls = int(tape.versions.searchsorted(version, side="right"))
            if calls < len(tape) or len(self.tapes) == 1:
                break
            self._player.finish()
            self._acked = int(tape.acked[-1]) if len(tape) else self._acked
            self.tapes.popleft()
            self._player.load(self.tapes[0])
        self._player.play(calls)
        if calls:
            self._acked = int(tape.acked[calls - 1])


class StorageTimes:
    """How long the recorded writes of one cursor took, and when writes to a store failed."""

    def __init__(self) -> None:
        self._latencies: dict[str, tuple[list[int], list[int]]] = {}
        self._changes: dict[str, tuple[list[int], list[bool]]] = {
            store: ([], []) for store in STORES
        }
        self.ledger_id = FIRST_LEDGER_ID
        """Id of the newest cursor ledger in the recording."""

    def hear(self, tape: Tape) -> None:
        """Take in the next tape's recorded writes; of older ones keep the last of each kind."""
        for times, values in self._latencies.values():
            del times[:-1], values[:-1]
        for times, states in self._changes.values():
            del times[:-1], states[:-1]
        results: list[Recorded | RecordedFailure] = [*tape.outcomes, *tape.failures]
        for each in sorted(results, key=lambda each: each.sequence):
            if isinstance(each, Recorded):
                self._hear_of(each)
            else:
                self._change(each.store, each.time_us, fails=True)

    def _hear_of(self, recorded: Recorded) -> None:
        outcome = recorded.outcome
        if outcome.cursor_ledger_id is not None:
            self.ledger_id = outcome.cursor_ledger_id
        duration_us = max(1, round(outcome.duration_ms * 1000))
        began_us = recorded.time_us - duration_us
        times, values = self._latencies.setdefault(_kind(outcome), ([], []))
        times.append(began_us)
        values.append(duration_us)
        if outcome.where is PersistWhere.LEDGER:
            self._change("ledger", began_us, fails=False)
        if outcome.node_bytes:
            self._change("metadata-store", began_us, fails=False)

    def _change(self, store: str, at_us: int, *, fails: bool) -> None:
        times, states = self._changes[store]
        if (states[-1] if states else False) != fails:
            times.append(max(at_us, times[-1]) if times else at_us)
            states.append(fails)

    def latency_us(self, written: StateWrite, now_us: int) -> int:
        """Duration in us of a write begun now: that of the last recorded one of its kind."""
        times, values = self._latencies.get(_kind(written), ((), ()))
        if not times:
            return LATENCY_US
        return values[max(0, bisect_right(times, now_us) - 1)]

    def fails(self, store: str, now_us: int) -> bool:
        """Whether a write to this store fails if it is begun now."""
        times, states = self._changes[store]
        at = bisect_right(times, now_us) - 1
        return at >= 0 and states[at]


def _kind(write: StateWrite | PersistOutcome) -> str:
    if write.where is PersistWhere.METADATA_STORE:
        return "node"
    return "begun" if write.is_ledger_begun else "ledger"


class _Node:
    """The cursor's node as a `NodeView`: always certain and connected, without properties."""

    path = "what-if"
    is_certain = is_connected = True
    bytes_max = INT_MAX
    cursor_properties: Mapping[str, str] = {}

    def __init__(self, owner_epoch: int) -> None:
        self.owner_epoch = owner_epoch
        self.cursor_ledger_id: int | None = None

    def encode(
        self, *, cursor_ledger_id: int | None, state: bytes | None, packing: Packing
    ) -> bytes:
        return encode_cursor_node(
            CursorNode(self.owner_epoch, cursor_ledger_id, state, {}), packing
        )


class _UnderWay(NamedTuple):
    step: StateWrite
    until_us: int
    ledger_bytes: int
    node_bytes: int
    acked: int


class PacedMoments:
    """Writes at the pace of the variant's settings, by the broker's own write path."""

    def __init__(
        self, life: Life, settings: PersistenceSettings, *, times: StorageTimes | None = None
    ) -> None:
        """`times`: of the recording so far; default: it begins."""
        self._player = life.player
        self._settings = settings
        self._node = _Node(life.owner_epoch)
        self._path = WritePath(
            life.player.cursor,
            self._node,
            settings,
            durable_version=life.durable_version,
            mark_delete=life.player.cursor.mark_delete,
        )
        self._times = StorageTimes() if times is None else times
        self._start_us = self._now_us = life.start_us
        self._ask_us: int | None = None
        """When to ask the write path for its next step; None: when the state changes next."""
        self._under_way: _UnderWay | None = None
        self._was_failing = False
        self._acked = 0

    def go_on(self, now_us: int, *, acked: int, is_failing: bool) -> None:
        """Begin amid a life, at `now_us`. What is not durable then is a change of that moment."""
        self._now_us = now_us
        self._acked = acked
        self._was_failing = is_failing
        if self._path.is_dirty:
            self._path.changed(self._seconds(now_us))
            self._ask_us = now_us

    def configure(self, settings: PersistenceSettings) -> None:
        """Pass changed settings to the write path."""
        self._settings = settings
        self._path.configure(settings)

    def run(self, tape: Tape) -> TapeWrites:
        """Play the tape; return the writes that became durable within it."""
        self._player.load(tape)
        self._times.hear(tape)
        found = TapeWrites([], [], 0)
        failed_before = self._failed_attempts
        hurries = self._hurries(tape)
        while True:
            if self._under_way is not None:
                if self._under_way.until_us > tape.end_us:
                    if hurries:
                        self._path.hurry(roll=False)  # the next write, once this one is done
                    break
                self._end(tape, found, self._under_way)
                continue
            at_us = self._next_moment(tape, hurries)
            if at_us is None:
                break
            self._ask(tape, found, at_us)
        self._close(tape, found)
        self._player.finish()
        self._acked = int(tape.acked[-1]) if len(tape) else self._acked
        return found._replace(failed_attempts=self._failed_attempts - failed_before)

    @property
    def _failed_attempts(self) -> int:
        return self._path.ledger.errors + self._path.node_store.errors

    # ------------------------------------------------------------------ moments

    def _next_moment(self, tape: Tape, hurries: list[int]) -> int | None:
        """Return the time in us at which to ask the write path next; None: not in this tape.

        It is that of a change, a deadline of the path, a periodic flush or a move of the cursor.
        """
        at_us = self._ask_us
        if at_us is None:
            first = int(tape.versions.searchsorted(self._path.durable_version, side="right"))
            if first == len(tape):
                return None
            at_us = int(tape.times_us[first])
            self._play_to(tape, at_us)
            self._path.changed(self._seconds(at_us))
            self._now_us = max(self._now_us, at_us)
            while hurries and hurries[0] < at_us:
                hurries.pop(0)  # there was nothing to write at that time
        hurry_us = min([self._next_flush_us(), *hurries[:1]])
        moment_us = min(at_us, hurry_us)
        if moment_us > tape.end_us:
            return None
        if hurry_us <= at_us:
            if hurries and hurries[0] == hurry_us:
                hurries.pop(0)
            self._path.hurry(roll=False)
        self._now_us = max(self._now_us, moment_us)
        return self._now_us

    def _next_flush_us(self) -> int:
        """Time in us of the next periodic flush, which writes all that is dirty."""
        flush_us = self._settings.managed_ledger_cursor_position_flush_seconds * US
        return self._start_us + ((self._now_us - self._start_us) // flush_us + 1) * flush_us

    def _hurries(self, tape: Tape) -> list[int]:
        """Times in us at which the cursor was moved, which the broker writes at once."""
        moved = [call for call, each in tape.specials.items() if isinstance(each, CursorMoved)]
        return tape.times_us[sorted(moved)].tolist()

    # ------------------------------------------------------------------ steps

    def _ask(self, tape: Tape, found: TapeWrites, now_us: int) -> None:
        self._play_to(tape, now_us)
        path = self._path
        step = path.next_step(self._seconds(now_us), now_us // 1000)
        match step:
            case None:
                self._ask_us = None
            case WaitUntil(at=at):
                self._ask_us = max(now_us + 1, self._start_us + round(at * US))
            case RoundReport():
                self._note_failing(tape, found, now_us)
                self._ask_us = now_us
            case _:
                self._begin(step, now_us)

    def _begin(self, step: WriteStep, now_us: int) -> None:
        """Begin a step of the write path. It fails at once, or ends after the recorded latency."""
        path, now = self._path, self._seconds(now_us)
        if self._times.fails(step.where.value, now_us):
            path.failed(StorageError("it failed in the recording"), now)
            self._ask_us = now_us
            return
        ledger_bytes = node_bytes = 0
        match step:
            case AppendRecord(entries=entries):
                ledger_bytes = sum(map(len, entries))
            case BeginLedger(entries=entries):
                ledger_id = self._times.ledger_id
                path.ledger_created(step, ledger_id)
                self._node.cursor_ledger_id = ledger_id
                ledger_bytes = sum(map(len, entries))
                node_bytes = self._node_bytes(ledger_id, path.inline_state(step))
            case PutState(formed=formed):
                self._node.cursor_ledger_id = None
                node_bytes = self._node_bytes(None, formed.encoded)
        assert not isinstance(step, SettleNode)
        until_us = now_us + self._times.latency_us(step, now_us)
        self._under_way = _UnderWay(step, until_us, ledger_bytes, node_bytes, self._acked)

    def _node_bytes(self, ledger_id: int | None, state: bytes | None) -> int:
        return len(
            self._node.encode(
                cursor_ledger_id=ledger_id, state=state, packing=packing(self._settings)
            )
        )

    def _end(self, tape: Tape, found: TapeWrites, under_way: _UnderWay) -> None:
        """Report the write under way to the path as durable, and add it to `found`."""
        now_us = self._now_us = under_way.until_us
        self._under_way = None
        report = self._path.wrote(
            self._seconds(now_us),
            now_us // 1000,
            ledger_bytes=under_way.ledger_bytes,
            node_bytes=under_way.node_bytes,
        )
        assert report.outcome is not None
        calls = self._calls_by(tape, now_us)
        found.writes.append(ReplayedWrite(now_us, calls, under_way.acked, report.outcome))
        self._note_failing(tape, found, now_us)
        self._ask_us = now_us

    def _note_failing(self, tape: Tape, found: TapeWrites, now_us: int) -> None:
        since_ms = self._path.failing_since_ms
        if (since_ms is not None) != self._was_failing:
            self._was_failing = since_ms is not None
            found.failings.append(Failing(now_us, self._calls_by(tape, now_us), since_ms))

    def _close(self, tape: Tape, found: TapeWrites) -> None:
        """If the tape closes the cursor, end the write under way and make the last write."""
        last = [recorded for recorded in tape.outcomes if recorded.outcome.is_last]
        if not last:
            return
        now_us = last[-1].time_us
        if self._under_way is not None:
            self._end(tape, found, self._under_way._replace(until_us=now_us))
        self._player.finish()
        self._acked = int(tape.acked[-1]) if len(tape) else self._acked
        if self._path.begin_last():
            self._write_last(tape, found, now_us)
        self._ask_us = None

    def _write_last(self, tape: Tape, found: TapeWrites, now_us: int) -> None:
        """Try one place after the other, as a cursor that is being closed does."""
        while self._under_way is None:
            try:
                step = self._path.next_last_step(self._seconds(now_us), now_us // 1000)
            except NodeTooLargeError:
                continue
            if step is None:
                return
            self._begin(step, now_us)
        self._end(tape, found, self._under_way._replace(until_us=now_us))

    # ------------------------------------------------------------------ pieces

    def _play_to(self, tape: Tape, now_us: int) -> None:
        calls = self._calls_by(tape, now_us)
        self._player.play(calls)
        if calls:
            self._acked = int(tape.acked[calls - 1])

    def _calls_by(self, tape: Tape, now_us: int) -> int:
        return int(tape.times_us.searchsorted(now_us, side="right"))

    def _seconds(self, now_us: int) -> float:
        return (now_us - self._start_us) / US
