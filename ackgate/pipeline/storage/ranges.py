"""Entries of one ledger that are read in one go.

Pure. A ledger's fragments each lie on bookies of their own; a range never spans two of them::

    fragments    0 ........ 499 | 500 ............ 1200           last entry: 1200
    ranges       [0, 499]         [500, 1200]
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.persistence.ledgers.catalog import PasswordCheck
    from ackgate.persistence.ports import Fragment, LedgerMetadata

ENTRY_BYTES: Final = 1024
"""What an entry of a ledger is taken for whose size is not known."""


@dataclass(frozen=True, slots=True)
class EntryRange:
    """Entries first..last (both included) of one fragment of a ledger. Can be pickled."""

    metadata: LedgerMetadata
    first_entry_id: int
    last_entry_id: int
    password_check: PasswordCheck | None = None
    """What the ledger's metadata node keeps of its password; reading digests of type MAC needs it."""
    files: Mapping[str, tuple[str, ...]] | None = None
    """Names of the fragment's files, by bookie. None: nobody has looked yet."""

    @property
    def ledger_id(self) -> int:
        return self.metadata.ledger_id

    @property
    def entry_count(self) -> int:
        """How many entries there are."""
        return self.last_entry_id - self.first_entry_id + 1

    @property
    def fragment(self) -> Fragment:
        """The fragment that has the entries."""
        return next(
            fragment
            for fragment in reversed(self.metadata.fragments)
            if fragment.first_entry_id <= self.first_entry_id
        )


def plan_ranges(
    metadata: LedgerMetadata,
    last_entry_id: int,
    *,
    first_entry_id: int = 0,
    password_check: PasswordCheck | None = None,
) -> list[EntryRange]:
    """Ranges of the entries first..last (both included), one per fragment, in order.

    `last_entry_id` is the border: a closed ledger's last entry, an open one's last add confirmed.
    """
    firsts = [fragment.first_entry_id for fragment in metadata.fragments]
    ranges = []
    for first, behind in pairwise([*firsts, max(last_entry_id, firsts[-1]) + 1]):
        start = max(first, first_entry_id)
        stop = min(behind - 1, last_entry_id)
        if start <= stop:
            ranges.append(EntryRange(metadata, start, stop, password_check))
    return ranges
