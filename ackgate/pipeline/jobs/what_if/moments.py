"""When a cursor is written, and what: at the recorded moments, or at the pace of other settings.

Pure. Both return the writes that became durable within a tape.

`RecordedMoments` forms the state of the same version again. A write is reported when it is durable, and
holds the state of when it began; so the replay's cursor is older, and tapes wait here until no write
needs them any more::

    calls       5   6   7   8   9  10
    recording       '-- version 6 --'persisted
    replay      plays up to version 6 when it comes to "persisted"

The results of the stores come from the recording: which attempts failed, and that a full ledger could
not be replaced. The content of a write never does; it is only compared with it.

`PacedMoments` runs the broker's own write path (`persistence.cursors.write_path`) in the recording's
time: it says when to write and what. Each write takes as long as the recording's last one before it, or
fails where that failed.

What a write holds, and whether a ledger is begun for it, comes from the broker's own planner, chain and
codec (`CursorWrites`).
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
"""A cursor ledger of which nobody knows the number has this one: it decides a byte or two."""

AGE_SLACK_SECONDS: Final = 0.01
"""The broker measures a ledger's age with another clock than its timestamps."""

LATENCY_US: Final = 2_000
"""Time of a write, in microseconds, as long as the recording has none of its kind."""

STORES: Final = ("ledger", "metadata-store")

US: Final = 1_000_000


class ReplayedNode:
    """The cursor's node, but for the properties that users gave it."""

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
    """What one write held, and what it took."""

    plan: PersistPlan
    where: PersistWhere
    ledger_bytes: int
    node_bytes: int
    is_ledger_begun: bool


class CursorWrites:
    """The writes of one cursor, from its opening on."""

    __slots__ = ("_chain", "_forming", "_settings", "cursor", "ledger_id")

    def __init__(
        self, cursor: ManagedCursor, settings: PersistenceSettings, *, owner_epoch: int
    ) -> None:
        self.cursor = cursor
        self._settings = settings
        self._forming = RecordForming(cursor, NackWrites(0), ReplayedNode(owner_epoch), settings)
        self._chain: RecordChain | None = None
        self.ledger_id = FIRST_LEDGER_ID
        """Of the next ledger that is begun."""

    def configure(self, settings: PersistenceSettings) -> None:
        """Holds from the next write on."""
        self._settings = self._forming.settings = settings

    @property
    def has_ledger(self) -> bool:
        """Whether a cursor ledger is open."""
        return self._chain is not None

    def is_ledger_full(self, now: float) -> bool:
        """Whether the next record should begin another one."""
        chain = self._chain
        return chain is not None and (
            chain.is_full(self._settings, now=now) or chain.is_from_before(self.cursor.grown_since)
        )

    def lose_ledger(self) -> None:
        """An append failed: the next record begins another ledger."""
        self._chain = None

    def to_ledger(self, now: float, now_ms: int, *, begins: bool | None = None) -> WrittenRecords:
        """The present state, into the open ledger, or a new one where that is due.

        `begins`: whether to begin a ledger; None: if the open one is full.
        """
        chain = self._chain
        if chain is None or (self.is_ledger_full(now) if begins is None else begins):
            return self._begin_ledger(now, now_ms)
        formed = self._forming.next_record(chain, now=now, now_ms=now_ms)
        written = self._append(chain, formed)
        return WrittenRecords(formed.plan, PersistWhere.LEDGER, written, 0, is_ledger_begun=False)

    def fail_to_roll(self, now_ms: int) -> None:
        """A new ledger was to be begun and could not be: the state was taken for it."""
        self._forming.first_record(now_ms)

    def to_node(self, now_ms: int) -> WrittenRecords:
        """The present state, cut to what fits into the node. Raises `NodeTooLargeError`."""
        return self._put(self._forming.for_node(now_ms))

    def to_node_if_it_fits(self, now_ms: int) -> WrittenRecords | None:
        """All of it, or nothing."""
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
    """Calls of the tape before it was durable."""
    acked: int
    """Entries acked in memory when its state was taken."""
    outcome: PersistOutcome
    recorded: Recorded | None = None
    """The write of the recording at this moment."""


class Failing(NamedTuple):
    """From here on writes have been failing since; None: no more."""

    time_us: int
    calls: int
    since_ms: int | None


class TapeWrites(NamedTuple):
    """What became of a tape's acks."""

    writes: list[ReplayedWrite]
    failings: list[Failing]
    failed_attempts: int


class Moments(Protocol):
    """Writes one life of a subscription's cursor."""

    def configure(self, settings: PersistenceSettings) -> None: ...

    def run(self, tape: Tape) -> TapeWrites: ...


class Life(NamedTuple):
    """With what a life begins."""

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
    """The outcome that the broker would have seen."""
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
    """Writes at the recorded moments: the recorded states, formed again."""

    def __init__(
        self, life: Life, settings: PersistenceSettings, *, has_recorded_settings: bool
    ) -> None:
        self._has_recorded_settings = has_recorded_settings
        self._player = life.player
        self._writes = CursorWrites(life.player.cursor, settings, owner_epoch=life.owner_epoch)
        self.tapes: deque[Tape] = deque()
        """Those that a write may still need, oldest first."""
        self._version = life.durable_version
        self._acked = 0
        self._failed: set[str] = set()
        self._since_ms: int | None = None

    def configure(self, settings: PersistenceSettings) -> None:
        """Holds from the next tape on."""
        self._writes.configure(settings)

    def run(self, tape: Tape) -> TapeWrites:
        """The writes that were durable within it."""
        if not self.tapes:
            self._player.load(tape)
        self.tapes.append(tape)
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
        self._play_to(self._version)  # calls that changed nothing since then wait for no write
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
            begins = False  # it is full, and could not be replaced then
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
    """How long the recorded writes of one cursor took, and which failed."""

    def __init__(self) -> None:
        self._latencies: dict[str, tuple[list[int], list[int]]] = {}
        self._changes: dict[str, tuple[list[int], list[bool]]] = {
            store: ([], []) for store in STORES
        }
        self.ledger_id = FIRST_LEDGER_ID
        """Number of the newest cursor ledger of the recording."""

    def hear(self, tape: Tape) -> None:
        """The recording goes on. What is older than this tape is of no more use, but the last."""
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
        """How long this write takes, begun now."""
        times, values = self._latencies.get(_kind(written), ((), ()))
        if not times:
            return LATENCY_US
        return values[max(0, bisect_right(times, now_us) - 1)]

    def fails(self, store: str, now_us: int) -> bool:
        """Whether an attempt to write there fails now."""
        times, states = self._changes[store]
        at = bisect_right(times, now_us) - 1
        return at >= 0 and states[at]


def _kind(write: StateWrite | PersistOutcome) -> str:
    if write.where is PersistWhere.METADATA_STORE:
        return "node"
    return "begun" if write.is_ledger_begun else "ledger"


class _Node:
    """The cursor's node as a `NodeView`: always certain, without the properties that users gave it."""

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

    def __init__(self, life: Life, settings: PersistenceSettings) -> None:
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
        self._times = StorageTimes()
        self._start_us = self._now_us = life.start_us
        self._ask_us: int | None = None
        """When to ask the path for its next step; None: when the next ack comes."""
        self._under_way: _UnderWay | None = None
        self._was_failing = False
        self._acked = 0

    def configure(self, settings: PersistenceSettings) -> None:
        """New settings hold from the next write on."""
        self._settings = settings
        self._path.configure(settings)

    def run(self, tape: Tape) -> TapeWrites:
        """The writes that became durable within the tape."""
        self._player.load(tape)
        self._times.hear(tape)
        found = TapeWrites([], [], 0)
        failed_before = self._failed_attempts
        hurries = self._hurries(tape)
        while True:
            if self._under_way is not None:
                if self._under_way.until_us > tape.end_us:
                    break
                self._end(tape, found, self._under_way)
                continue
            at_us = self._next_moment(tape, hurries)
            if at_us is None or at_us > tape.end_us:
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
        """When something is to be asked next: an ack, a deadline, a flush, or a move that hurries."""
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
                hurries.pop(0)  # nothing was to be written then
        hurry_us = min([self._next_flush_us(), *hurries[:1]])
        if hurry_us <= at_us:
            if hurries and hurries[0] == hurry_us:
                hurries.pop(0)
            self._path.hurry(roll=False)
        self._now_us = max(self._now_us, min(at_us, hurry_us))
        return self._now_us

    def _next_flush_us(self) -> int:
        """When everything that is dirty is flushed next."""
        flush_us = self._settings.managed_ledger_cursor_position_flush_seconds * US
        return self._start_us + ((self._now_us - self._start_us) // flush_us + 1) * flush_us

    def _hurries(self, tape: Tape) -> list[int]:
        """When the broker wrote immediately, because somebody had moved the cursor."""
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
        """It fails at once, or takes its time."""
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
        """The write under way is durable."""
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
        """The broker closed the cursor: what was under way is done, and the rest is written."""
        last = [recorded for recorded in tape.outcomes if recorded.outcome.is_last]
        if not last:
            return
        now_us = last[-1].time_us
        if self._under_way is not None:
            self._end(tape, found, self._under_way._replace(until_us=now_us))
        self._player.finish()
        self._acked = int(tape.acked[-1]) if len(tape) else self._acked
        if not self._path.begin_last():
            return
        try:
            step = self._path.next_last_step(self._seconds(now_us), now_us // 1000)
        except NodeTooLargeError:
            return
        if step is not None:
            self._begin(step, now_us)
            if self._under_way is not None:
                self._end(tape, found, self._under_way._replace(until_us=now_us))
        self._ask_us = None

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
