"""Writes at the moments that other settings of pace give: linger, rate limits, flushes.

Pure. The writer's own states, in the recording's time; a write takes as long as the recording's last
one before it took, and fails where that failed.

    IDLE --an ack--> WAITING (linger, rate limit, backoff) --> WRITING (latency) --> IDLE, or WAITING
                        ^                                         |                  if acks came
                        '---------------- failed -----------------'
"""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.errors import NodeTooLargeError
from ackgate.persistence.outcome import PersistWhere
from ackgate.persistence.write_pace import WritePace
from ackgate.pipeline.jobs.what_if.moments import Failing, TapeWrites, Write, outcome_of
from ackgate.pipeline.jobs.what_if.specials import Moved
from ackgate.pipeline.jobs.what_if.storage_times import StorageTimes
from ackgate.pipeline.jobs.what_if.writing import CursorWrites

if TYPE_CHECKING:
    from ackgate.config.persistence import PersistenceSettings
    from ackgate.pipeline.jobs.what_if.moments import Life
    from ackgate.pipeline.jobs.what_if.tape import Tape
    from ackgate.pipeline.jobs.what_if.writing import Written

SEED: Final = 0
"""Of the jitter of backoffs."""

US: Final = 1_000_000


class _Phase(enum.Enum):
    IDLE = enum.auto()
    WAITING = enum.auto()
    WRITING = enum.auto()


class _UnderWay(NamedTuple):
    written: Written
    began_us: int
    version: int
    acked: int


class PacedMoments:
    """See the module."""

    def __init__(self, life: Life, settings: PersistenceSettings) -> None:
        self._player = life.player
        self._settings = settings
        self._writes = CursorWrites(life.player.cursor, settings, owner_epoch=life.owner_epoch)
        self._times = StorageTimes()
        self._pace = WritePace(seed=SEED)
        self._start_us = life.start_us
        self._durable_version = life.durable_version
        self._phase = _Phase.IDLE
        self._until_us = 0
        self._under_way: _UnderWay | None = None
        self._since_ms: int | None = None
        self._tape: Tape | None = None
        self._acked = 0

    def configure(self, settings: PersistenceSettings) -> None:
        """Holds from the next write on."""
        self._settings = settings
        self._writes.configure(settings)

    def run(self, tape: Tape) -> TapeWrites:
        """The writes that are durable within it."""
        self._player.load(tape)
        self._tape = tape
        self._times.hear(tape)
        found = TapeWrites([], [], 0)
        failed_before = self._pace.ledger.errors + self._pace.node.errors
        hurries = self._hurries(tape)
        while True:
            if self._phase is _Phase.IDLE and not self._wake(tape):
                break
            if self._phase is _Phase.WAITING and hurries and hurries[0] <= self._until_us:
                self._until_us = max(hurries.pop(0), tape.start_us)
                self._pace.hurry()
            if self._until_us > tape.end_us:
                break
            while hurries and hurries[0] <= self._until_us:
                hurries.pop(0)
            if self._phase is _Phase.WAITING:
                self._attempt(tape, found)
            else:
                self._durable(tape, found)
        self._close(tape, found)
        self._player.finish()
        self._acked = int(tape.acked[-1]) if len(tape) else self._acked
        failed = self._pace.ledger.errors + self._pace.node.errors - failed_before
        return found._replace(failed_attempts=failed)

    # ------------------------------------------------------------------ the phases

    def _wake(self, tape: Tape) -> bool:
        """Out of IDLE, if there is anything to write in this tape."""
        call = int(tape.versions.searchsorted(self._durable_version, side="right"))
        if call < len(tape):
            at_us = int(tape.times_us[call])
            linger_us = self._settings.ack_persist_linger_ms * 1000
            self._wait(max(at_us + linger_us, self._due_us(is_dirty=True)), at_us)
            return True
        is_dirty = self._player.cursor.version > self._durable_version
        if is_dirty or self._pace.is_on_fallback:
            self._wait(max(tape.start_us, self._due_us(is_dirty=is_dirty)), tape.start_us)
            return True
        return False

    def _wait(self, until_us: int, now_us: int) -> None:
        """No longer than until all that is dirty is flushed."""
        flush_us = self._settings.managed_ledger_cursor_position_flush_seconds * US
        passed_us = now_us - self._start_us
        next_flush_us = self._start_us + (passed_us // flush_us + 1) * flush_us
        self._phase = _Phase.WAITING
        self._until_us = min(until_us, next_flush_us)

    def _attempt(self, tape: Tape, found: TapeWrites) -> None:
        """The ledger, or else the node."""
        now_us, pace, settings = self._until_us, self._pace, self._settings
        now = self._seconds(now_us)
        self._play_to(tape, now_us)
        version = self._player.cursor.version
        is_dirty = version > self._durable_version
        pace.begin(now, writes_per_second=settings.managed_ledger_default_mark_delete_rate_limit)
        written: Written | None = None
        if pace.ledger.try_at <= now:
            if self._times.fails("ledger", now_us):
                self._writes.lose_ledger()
                pace.ledger_failed(now)
            else:
                self._writes.ledger_id = self._times.ledger_id
                written = self._writes.to_ledger(now, now_us // 1000)
        if written is None and is_dirty and pace.node.try_at <= now:
            written = self._into_node(now_us)
        if written is not None:
            self._under_way = _UnderWay(written, now_us, version, self._acked)
            self._phase = _Phase.WRITING
            self._until_us = now_us + self._times.latency_us(written, now_us)
            return
        if is_dirty and self._since_ms is None:
            self._since_ms = now_us // 1000
            found.failings.append(Failing(now_us, self._calls_by(tape, now_us), self._since_ms))
        if is_dirty or pace.is_on_fallback:
            self._wait(max(now_us + 1, self._due_us(is_dirty=is_dirty)), now_us)
        else:
            self._phase = _Phase.IDLE

    def _into_node(self, now_us: int) -> Written | None:
        now = self._seconds(now_us)
        if not self._times.fails("metadata-store", now_us):
            try:
                return self._writes.to_node(now_us // 1000)
            except NodeTooLargeError:
                pass
        self._pace.node_failed(now)
        return None

    def _durable(self, tape: Tape, found: TapeWrites) -> None:
        """The write under way is through."""
        under_way, now_us = self._under_way, self._until_us
        assert under_way is not None
        self._under_way = None
        self._tell(tape, found, under_way, now_us)
        written = under_way.written
        size = written.ledger_bytes + written.node_bytes
        if written.where is PersistWhere.LEDGER:
            self._pace.ledger_wrote(size)
        else:
            self._pace.node_wrote(
                size,
                self._seconds(now_us),
                writes_per_second=self._settings.fallback_rate_limit,
            )
        self._phase = _Phase.IDLE
        calls = self._calls_by(tape, now_us)
        newest = int(tape.versions[calls - 1]) if calls else self._player.cursor.version
        if newest > self._durable_version:  # they came meanwhile: no linger
            self._wait(max(now_us, self._due_us(is_dirty=True)), now_us)

    def _tell(self, tape: Tape, found: TapeWrites, under_way: _UnderWay, now_us: int) -> None:
        outcome = outcome_of(
            under_way.written,
            at_ms=now_us // 1000,
            duration_ms=(now_us - under_way.began_us) / 1000,
        )
        self._durable_version = under_way.version
        calls = self._calls_by(tape, now_us)
        found.writes.append(Write(now_us, calls, under_way.acked, outcome))
        if self._since_ms is not None:
            self._since_ms = None
            found.failings.append(Failing(now_us, calls, None))

    def _close(self, tape: Tape, found: TapeWrites) -> None:
        """The broker closed the cursor: what was under way is done, and the rest is written."""
        last = [recorded for recorded in tape.outcomes if recorded.outcome.is_last]
        if not last:
            return
        now_us = last[-1].time_us
        if self._under_way is not None:
            self._tell(tape, found, self._under_way, now_us)
            self._under_way = None
        self._phase = _Phase.IDLE
        self._player.finish()
        self._acked = int(tape.acked[-1]) if len(tape) else self._acked
        version = self._player.cursor.version
        is_dirty = version > self._durable_version
        written: Written | None = None
        if is_dirty or self._writes.has_ledger:
            written = self._writes.to_node_if_it_fits(now_us // 1000)
        if written is None and is_dirty:
            written = self._writes.to_ledger(self._seconds(now_us), now_us // 1000)
        if written is not None:
            under_way = _UnderWay(written, now_us, version, self._acked)
            self._tell(tape, found, under_way, now_us)
            found.writes[-1] = replace(
                found.writes[-1], outcome=replace(found.writes[-1].outcome, is_last=True)
            )

    # ---------------------------------------------------------------------- pieces

    def _hurries(self, tape: Tape) -> list[int]:
        """When the broker wrote at once: for whoever moved the cursor."""
        moved = [call for call, each in tape.specials.items() if isinstance(each, Moved)]
        return tape.times_us[sorted(moved)].tolist()

    def _play_to(self, tape: Tape, now_us: int) -> None:
        calls = self._calls_by(tape, now_us)
        self._player.play(calls)
        if calls:
            self._acked = int(tape.acked[calls - 1])

    def _calls_by(self, tape: Tape, now_us: int) -> int:
        return int(tape.times_us.searchsorted(now_us, side="right"))

    def _due_us(self, *, is_dirty: bool) -> int:
        return self._start_us + round(self._pace.due_at(is_dirty=is_dirty) * US)

    def _seconds(self, now_us: int) -> float:
        return (now_us - self._start_us) / US
