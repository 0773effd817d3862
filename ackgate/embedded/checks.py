"""What a host passes in, checked before it changes anything. Pure."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeGuard

from ackgate.cursor import Position, run_of_positions
from ackgate.dispatcher.held import TIME_MS_MAX
from ackgate.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.cursor import MessageLedgers, Span
    from ackgate.subscription import EntryFacts

_FACTS: Final = attrgetter("position", "message_count", "deliver_at_ms")


def is_count(value: object) -> TypeGuard[int]:
    """Whether it is a number from 0 on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_time(value: object) -> bool:
    """Whether it is a time in ms since 1970."""
    return is_count(value) and value <= TIME_MS_MAX


def check_position(position: object) -> None:
    """Raise `CallerError` for anything but a position: a bare pair would end up in the ack state."""
    if not isinstance(position, Position) or not all(isinstance(part, int) for part in position):
        raise CallerError(f"neither a message nor a position: {position!r}")


def check_entries(
    entries: Sequence[EntryFacts], spans: Sequence[Span], ledgers: MessageLedgers
) -> None:
    """Raise `CallerError` unless a host's `read` returned the entries of the spans, in their order.

    Those that do not exist any more may be missing.
    """
    try:
        facts = list(map(_FACTS, entries))
    except (TypeError, AttributeError) as error:
        raise CallerError(f"`read` returned no entries: {error}") from None
    for position, message_count, deliver_at_ms in facts:
        check_position(position)
        if not is_count(message_count) or not message_count or not is_time(deliver_at_ms):
            raise CallerError(
                f"`read` returned {position} with {message_count!r} messages, due at {deliver_at_ms!r}"
            )
    found = [position for position, _, _ in facts]
    wanted = [
        position
        for span in spans
        for position in run_of_positions(span.ledger_id, span.start, span.stop)
    ]
    if found != wanted:
        came = set(found)
        left = [position for position in wanted if position in came or ledgers.exists(position)]
        if found != left:
            raise CallerError(f"`read` was asked for {_named(left)} and returned {_named(found)}")


def _named(positions: Sequence[Position]) -> str:
    shown = ", ".join(map(str, positions[:3]))
    return f"{len(positions)} entries ({shown}{', ...' if len(positions) > 3 else ''})"
