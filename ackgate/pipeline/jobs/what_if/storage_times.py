"""How long writes took in the recording, and when they failed: what a replay's own writes meet.

Pure. The last known holds until the next; before the first, that one.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from ackgate.persistence.records.outcome import PersistWhere
from ackgate.pipeline.jobs.what_if.tape import Recorded
from ackgate.pipeline.jobs.what_if.writing import FIRST_LEDGER_ID

if TYPE_CHECKING:
    from ackgate.persistence.cursors.write_path import StateWrite
    from ackgate.persistence.records.outcome import PersistOutcome
    from ackgate.pipeline.jobs.what_if.tape import RecordedFailure, Tape

LATENCY_US: Final = 2_000
"""Of a write, as long as the recording has none of its kind."""

STORES: Final = ("ledger", "metadata-store")


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
