"""Writes at the moments that other settings of pace give: linger, rate limits, flushes.

Pure. The broker's own write path (`persistence.cursors.write_path`) runs in the recording's time: it
says when to write and what. Each write takes as long as the recording's last one before it, or fails
where that failed.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

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
from ackgate.persistence.records.limits import packing
from ackgate.persistence.records.outcome import PersistWhere
from ackgate.pipeline.jobs.what_if.moments import Failing, ReplayedWrite, TapeWrites
from ackgate.pipeline.jobs.what_if.specials import CursorMoved
from ackgate.pipeline.jobs.what_if.tape import Recorded
from ackgate.pipeline.jobs.what_if.writing import FIRST_LEDGER_ID

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.config.persistence import PersistenceSettings
    from ackgate.persistence.cursors.write_path import StateWrite, WriteStep
    from ackgate.persistence.records.envelope import Packing
    from ackgate.persistence.records.outcome import PersistOutcome
    from ackgate.pipeline.jobs.what_if.moments import Life
    from ackgate.pipeline.jobs.what_if.tape import RecordedFailure, Tape

LATENCY_US: Final = 2_000
"""Of a write, as long as the recording has none of its kind."""

STORES: Final = ("ledger", "metadata-store")

US: Final = 1_000_000


class StorageTimes:
    """Of one cursor."""

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
        told: list[Recorded | RecordedFailure] = [*tape.outcomes, *tape.failures]
        for each in sorted(told, key=lambda each: each.sequence):
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
        """The node's value."""
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
    """See the module."""

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
