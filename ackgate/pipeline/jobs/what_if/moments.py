"""When a cursor is written: at the moments of the recording, or by the pace that other settings give.

Pure. Both answer with the writes that became durable within a tape.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from ackgate.config.persistence import PersistenceSettings
    from ackgate.persistence.records.outcome import PersistOutcome
    from ackgate.pipeline.jobs.what_if.tape import Recorded, Tape, TapePlayer
    from ackgate.pipeline.jobs.what_if.writing import WrittenRecords


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

    def configure(self, settings: PersistenceSettings) -> None:
        """Settings have changed."""

    def run(self, tape: Tape) -> TapeWrites:
        """The next stretch."""


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
    outcome = written.plan.outcome(
        where=written.where,
        bytes_written=written.ledger_bytes + written.node_bytes,
        at_ms=at_ms,
        duration_ms=duration_ms,
    )
    return replace(
        outcome,
        is_ledger_begun=written.is_ledger_begun,
        node_bytes=written.node_bytes,
        is_last=is_last,
        cursor_ledger_id=cursor_ledger_id,
    )
