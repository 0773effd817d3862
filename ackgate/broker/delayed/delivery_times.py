"""Which entries are delayed, as columns for a tracker. Decides, and does no I/O."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ackgate.broker.entry import Entry

_DELIVER_AT: Final = attrgetter("deliver_at_ms")
_LEDGER_ID: Final = attrgetter("position.ledger_id")


class DelayedOfLedger(NamedTuple):
    """Delayed entries of one message ledger: two columns of one length."""

    ledger_id: int
    entry_ids: list[int]
    deliver_at_ms: list[int]


def any_delayed(entries: Iterable[Entry]) -> bool:
    """Whether any of them has a delivery time."""
    return max(map(_DELIVER_AT, entries), default=0) > 0


def delayed_by_ledger(entries: Sequence[Entry], now_ms: int) -> list[DelayedOfLedger]:
    """Those of the entries, in order of position, whose time is still to come."""
    if max(map(_DELIVER_AT, entries), default=0) <= now_ms:
        return []
    delayed = [entry for entry in entries if entry.deliver_at_ms > now_ms]
    groups = [(ledger_id, list(group)) for ledger_id, group in groupby(delayed, _LEDGER_ID)]
    return [
        DelayedOfLedger(
            ledger_id,
            [entry.position.entry_id for entry in group],
            [entry.deliver_at_ms for entry in group],
        )
        for ledger_id, group in groups
    ]
