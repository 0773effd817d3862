"""Writes at the moments at which the broker wrote: the state of the same version, formed again.

Pure. A write is told when it is durable, and holds the state of when it began; so the cursor of the
replay stays behind, and tapes wait here until no write needs them any more.

    calls       5   6   7   8   9  10
    recording       '-- version 6 --'persisted
    replay      plays up to version 6 when it comes to "persisted"

What the stores did is taken as it was: which attempts failed, and that a full ledger could not be
replaced. What a write held is never taken from the recording, only compared with it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from ackgate.persistence.records.outcome import PersistWhere
from ackgate.pipeline.jobs.what_if.moments import Failing, ReplayedWrite, TapeWrites, outcome_of
from ackgate.pipeline.jobs.what_if.tape import Recorded
from ackgate.pipeline.jobs.what_if.writing import CursorWrites

if TYPE_CHECKING:
    from ackgate.config.persistence import PersistenceSettings
    from ackgate.pipeline.jobs.what_if.moments import Life
    from ackgate.pipeline.jobs.what_if.tape import RecordedFailure, Tape
    from ackgate.pipeline.jobs.what_if.writing import WrittenRecords

AGE_SLACK_SECONDS: Final = 0.01
"""The broker measures a ledger's age with another clock than its timestamps."""


class RecordedMoments:
    """See the module."""

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
        told: list[Recorded | RecordedFailure] = [*tape.outcomes, *tape.failures]
        for each in sorted(told, key=lambda each: each.sequence):
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
