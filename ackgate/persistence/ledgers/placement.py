"""Which bookies a ledger goes to.

Pure. Ledgers are spread by turns: each new one begins one bookie further on. A bookie whose last
write failed is taken only when the others do not suffice, and after it was tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def choose_ensemble(bookie_ids: Sequence[str], size: int, turn: int) -> tuple[str, ...] | None:
    """`size` of these bookies, beginning at the turn's; None when there are not enough."""
    if size > len(bookie_ids):
        return None
    start = turn % len(bookie_ids)
    return tuple(bookie_ids[(start + i) % len(bookie_ids)] for i in range(size))


def choose_spare(bookie_ids: Sequence[str], ensemble: Sequence[str], turn: int) -> str | None:
    """One of these bookies that is not in the ensemble, beginning at the turn's."""
    for i in range(len(bookie_ids)):
        candidate = bookie_ids[(turn + i) % len(bookie_ids)]
        if candidate not in ensemble:
            return candidate
    return None
