"""One subscription at a glance: its main figures, how bad its state is, and why, in sentences.

Pure, frozen. The page, `ackgate overview` and `ackgate stats` show the same sentences. The same row
describes a subscription that was read from its files: what lives in memory only is then None.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ackgate.described import count, span, statistic
from ackgate.dispatcher import PauseReason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ackgate.broker.stats.holes import Hole

QUIET_MS: Final = 30_000
"""If nothing is sent or acked for so long, the subscription is not merely slow."""

SHUTS_SOON_SECONDS: Final = 3_600.0
"""A gate that is forecast to shut within this time is a risk."""

FILL_RISKY: Final = 0.8
"""If the gate is off, so large a share of the range limit is a risk: acks would be dropped."""


class Severity(enum.Enum):
    """How bad it is, worst first."""

    STUCK = "stuck"
    """It delivers nothing, or nothing new, and will not recover by itself."""
    AT_RISK = "at-risk"
    """It works, but a crash now, or more of the same, would do harm."""
    WAITING = "waiting"
    """It waits for its clients: for consumers, or for their acks."""
    FINE = "fine"


@dataclass(slots=True, kw_only=True)
class OverviewRow:
    """One subscription. In a row from files, what lives in memory only is None.

    Not frozen, since 20,000 are made at a time; nobody changes one that `judged` has returned.
    """

    topic: str = statistic("The topic or partition, with its namespace")
    subscription: str = statistic("Its name")
    severity: Severity = statistic("`stuck`, `at-risk`, `waiting` or `fine`")
    type: str | None = statistic(
        "Exclusive, Shared, Failover or Key_Shared; None before a consumer"
    )
    is_gate_enabled: bool | None = statistic("Whether the gate can shut")
    gate_reasons: Mapping[PauseReason, int] = statistic(
        "Why the gate is shut, and since when; empty while it is open", "ms since 1970"
    )
    shut_since_ms: int | None = statistic("When the gate shut; null while it is open")
    shuts_in_seconds: float | None = statistic(
        "When the gate will shut at the rate of the last minute; null: it does not grow", "seconds"
    )
    ranges: int = statistic("Ack ranges", title="ranges")
    ranges_max: int | None = statistic("The most ranges that are persisted", title="limit")
    backlog: int | None = statistic("Entries not acked", title="backlog")
    undelivered: int | None = statistic(
        "Of the backlog, the entries that no consumer has and that wait for no time"
    )
    unacked_messages: int | None = statistic(
        "Messages sent to consumers and not acked yet; of Exclusive and Failover entries",
        title="unacked",
    )
    comes_again: int = statistic(
        "Acked entries, and parts of batches, that a crash now would deliver again", title="again"
    )
    is_on_fallback: bool | None = statistic(
        "Whether the state goes to the metadata store because the ledger fails"
    )
    failing_since_ms: int | None = statistic(
        "Since when the state cannot be persisted; null: it can", "ms since 1970"
    )
    last_failure: str | None = statistic("Why the last write that failed did")
    read_failure: str | None = statistic("Why the last read failed; null: none did")
    delayed: int | None = statistic("Entries that wait for their delivery time", title="delayed")
    nacks: int | None = statistic("Entries that wait after a negative ack", title="nacks")
    next_due_ms: int | None = statistic("When the next of both is due", "ms since 1970")
    consumers: int | None = statistic("Its consumers", title="consumers")
    consumers_with_room: int | None = statistic("Of these, the ones that would take more now")
    is_blocked_on_unacked: bool | None = statistic(
        "Whether too many unacked messages stop all deliveries"
    )
    last_sent_ms: int | None = statistic("The last delivery", "ms since 1970, 0 for never")
    last_acked_ms: int | None = statistic("The last ack", "ms since 1970, 0 for never")
    why: tuple[str, ...] = statistic("What is wrong, in sentences, the worst first", default=())
    broker: str = statistic(
        "The page of the broker that has loaded it; empty: the one that answers", default=""
    )
    ranges_history: tuple[tuple[int, int], ...] = statistic(
        "The ranges over up to an hour: pairs of a time in ms since 1970 and a count", default=()
    )

    @property
    def fill(self) -> float:
        """Ranges as a share of the limit."""
        return self.ranges / self.ranges_max if self.ranges_max else 0.0

    def quiet_ms(self, now_ms: int) -> int:
        """Time since anything was sent or acked."""
        return now_ms - max(self.last_sent_ms or 0, self.last_acked_ms or 0)


def judged(row: OverviewRow, now_ms: int) -> OverviewRow:
    """Set the row's severity, and return the row."""
    row.severity = _severity(row, now_ms)
    return row


def _severity(row: OverviewRow, now_ms: int) -> Severity:
    if row.failing_since_ms is not None or row.gate_reasons or row.read_failure is not None:
        return Severity.STUCK
    is_quiet = row.last_sent_ms is not None and row.quiet_ms(now_ms) >= QUIET_MS
    if is_quiet and row.undelivered and row.consumers and not row.consumers_with_room:
        return Severity.STUCK
    if (
        row.comes_again
        or row.is_on_fallback
        or (row.shuts_in_seconds is not None and row.shuts_in_seconds < SHUTS_SOON_SECONDS)
        or row.fill >= FILL_RISKY
    ):
        return Severity.AT_RISK
    if (row.undelivered and not row.consumers) or (is_quiet and row.unacked_messages):
        return Severity.WAITING
    return Severity.FINE


def why(row: OverviewRow, oldest: Hole | None, now_ms: int) -> tuple[str, ...]:
    """What is wrong, and what the subscription waits for. `oldest`: its oldest hole, or None."""
    return tuple(_sentences(row, oldest, now_ms))


def _sentences(row: OverviewRow, oldest: Hole | None, now_ms: int) -> Iterator[str]:
    hole = None
    if oldest is not None and (row.ranges or row.gate_reasons):
        hole = f"oldest hole {hole_text(oldest, now_ms)}"
    if row.gate_reasons:
        since = "" if row.shut_since_ms is None else f" for {span(now_ms - row.shut_since_ms)}"
        reasons = "; ".join(_reason(reason, row) for reason in row.gate_reasons)
        yield f"dispatch is paused{since}: {reasons}"
        if hole is not None:
            yield hole
    if row.failing_since_ms is not None:
        yield (
            f"acks cannot be persisted for {span(now_ms - row.failing_since_ms)}: "
            f"{row.last_failure or 'the stores do not answer'}"
        )
    if row.read_failure is not None:
        yield f"messages cannot be read: {row.read_failure}"
    if row.comes_again:
        yield f"{count(row.comes_again, 'acked entry', 'acked entries')} would come again after a crash"
    if row.is_on_fallback:
        yield "the cursor's ledger fails: its state goes to the metadata store"
    if row.shuts_in_seconds is not None and not row.gate_reasons:
        yield (
            f"the gate shuts in {span(row.shuts_in_seconds * 1000)} if ranges go on growing as in "
            f"the last minute ({row.ranges:,} of {row.ranges_max or 0:,})"
        )
    elif not row.gate_reasons and row.fill >= FILL_RISKY:
        yield f"{row.ranges:,} ack ranges, and {row.ranges_max:,} are the most that are persisted"
    if hole is not None and not row.gate_reasons:
        yield hole
    if row.consumers is not None and row.backlog:
        yield from _waits(row, now_ms)


def _reason(reason: PauseReason, row: OverviewRow) -> str:
    limit = row.ranges_max or 0
    match reason:
        case PauseReason.RANGES_LIVE:
            return f"{row.ranges:,} ack ranges of {limit:,}"
        case PauseReason.RANGES_PERSISTED:
            return f"the last write kept no more than {limit:,} ranges and was not complete"
        case PauseReason.BATCH_INDEXES:
            return "more partly acked batches than are persisted"
        case PauseReason.SIZE_GUARD:
            return "the metadata store's size limit cut the last write"
        case PauseReason.PERSIST_FAILING:
            return "acks cannot be persisted"
        case PauseReason.BUDGET:
            return (
                f"strict mode, {row.ranges:,} ack ranges: one more delivery could exceed {limit:,}"
            )


def hole_text(hole: Hole, now_ms: int) -> str:
    """Describe a hole: where it is, and which consumer has it since when."""
    since = "" if hole.since_ms is None else f" for {span(now_ms - hole.since_ms)}"
    match hole.state.value:
        case "held":
            return f"{hole.first} held by consumer {hole.holder}{since}"
        case "delayed":
            return f"{hole.first} waits for its delivery time"
        case "nacked":
            return f"{hole.first} waits after a negative ack"
        case "unread":
            return f"{hole.first} was not delivered yet"
        case _:
            return f"{hole.first} waits to be delivered again"


def _waits(row: OverviewRow, now_ms: int) -> Iterator[str]:
    backlog, unacked, undelivered = (
        row.backlog or 0,
        row.unacked_messages or 0,
        row.undelivered or 0,
    )
    if not row.consumers:
        yield f"no consumer; {count(backlog, 'entry waits', 'entries wait')}"
    elif row.is_blocked_on_unacked:
        yield f"blocked: {count(unacked, 'message')} sent and not acked, the most that are allowed"
    elif undelivered and not row.consumers_with_room:
        yield f"no consumer has room for more; {count(undelivered, 'entry waits', 'entries wait')}"
    if unacked:
        acked = row.last_acked_ms or 0
        since = f", no ack for {span(now_ms - acked)}" if acked else ""
        yield f"{count(unacked, 'message')} sent and not acked yet{since}"
    if row.delayed:
        yield f"{row.delayed:,} of {backlog:,} entries delayed{_next_due(row, now_ms)}"
    if row.nacks:
        yield (
            f"{count(row.nacks, 'negatively acked entry waits', 'negatively acked entries wait')}"
            f"{'' if row.delayed else _next_due(row, now_ms)}"
        )


def _next_due(row: OverviewRow, now_ms: int) -> str:
    if row.next_due_ms is None:
        return ""
    if row.next_due_ms <= now_ms:
        return ", the next is due"
    return f", the next in {span(row.next_due_ms - now_ms)}"
