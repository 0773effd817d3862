"""Which bookies hold an entry, and up to where a ledger is confirmed.

Pure. Entries are striped: entry e lies on the bookies ``(e + i) % ensemble_size`` of the ensemble,
i < write_quorum. Its *stripe class* is ``e % ensemble_size``; all entries of a class have the same
write set, so confirmation is worked out per class and not per entry:

    ensemble 3, write 2, ack 2       bookie 0   bookie 1   bookie 2
                       class 0          x          x
                       class 1                     x          x
                       class 2          x                     x
    synced through                     19         19          9     -> class 0 confirmed to 19,
                                                                       classes 1 and 2 only to 9

A bookie syncs in the order in which it was sent entries, so one number a bookie says it all: every
entry up to that number *which belongs there* is synced there.
"""

from __future__ import annotations

from itertools import compress, cycle
from typing import TYPE_CHECKING

from ackgate.errors import CallerError, ConfigurationError, NoSuchEntryError
from ackgate.persistence.bookies.entry_codec import PARTS_PER_ENTRY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from ackgate.persistence.ports import Fragment, LedgerMetadata

ENSEMBLE_SIZE_MAX = 64
"""More bookies than one ledger ever needs; bounds the work per group commit."""


def check_quorum(ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
    """Raise `ConfigurationError` unless ensemble >= write quorum >= ack quorum >= 1."""
    if not ENSEMBLE_SIZE_MAX >= ensemble_size >= write_quorum >= ack_quorum >= 1:
        raise ConfigurationError(
            f"impossible quorum: ensemble size {ensemble_size}, write quorum {write_quorum}, "
            f"ack quorum {ack_quorum}; allowed: {ENSEMBLE_SIZE_MAX} >= ensemble >= write >= ack >= 1"
        )


def write_set(entry_id: int, ensemble_size: int, write_quorum: int) -> tuple[int, ...]:
    """Places in the ensemble that hold this entry, first choice first."""
    return tuple((entry_id + i) % ensemble_size for i in range(write_quorum))


def holds(place: int, entry_id: int, ensemble_size: int, write_quorum: int) -> bool:
    """Whether the bookie at this place of the ensemble is to hold this entry."""
    return (place - entry_id) % ensemble_size < write_quorum


def held_count(place: int, first: int, last: int, ensemble_size: int, write_quorum: int) -> int:
    """How many of the entries first..last (both included) the bookie at this place is to hold."""
    if write_quorum == ensemble_size:
        return last - first + 1
    rounds, rest = divmod(last - first + 1, ensemble_size)
    return rounds * write_quorum + sum(
        holds(place, entry_id, ensemble_size, write_quorum)
        for entry_id in range(last - rest + 1, last + 1)
    )


def parts_of_place(
    parts: Sequence[bytes],
    first_entry_id: int,
    place: int,
    ensemble_size: int,
    write_quorum: int,
    *,
    parts_per_entry: int = PARTS_PER_ENTRY,
) -> bytes:
    """Join those pieces whose entries belong on the bookie at this place of the ensemble."""
    mask = [
        holds(place, first_entry_id + i, ensemble_size, write_quorum)
        for i in range(ensemble_size)
        for _ in range(parts_per_entry)
    ]
    return b"".join(compress(parts, cycle(mask)))


def fragment_parts(
    fragments: tuple[Fragment, ...], first: int, last: int
) -> Iterator[tuple[Fragment, int, int]]:
    """The fragments that hold first..last, each with its part of it."""
    for i, fragment in enumerate(fragments):
        end = fragments[i + 1].first_entry_id - 1 if i + 1 < len(fragments) else last
        start, end = max(first, fragment.first_entry_id), min(last, end)
        if start <= end:
            yield fragment, start, end


def confirmed_parts(
    metadata: LedgerMetadata, first: int, last: int, last_add_confirmed: int
) -> Iterator[tuple[Fragment, int, int]]:
    """As `fragment_parts`, of entries that are confirmed.

    Raises `CallerError` when first..last is no range, `NoSuchEntryError` beyond the border.
    """
    ledger_id = metadata.ledger_id
    if not 0 <= first <= last:
        raise CallerError(f"ledger {ledger_id}: entries {first}..{last} are no range")
    if last > last_add_confirmed:
        raise NoSuchEntryError(
            f"entry {ledger_id}:{last} is beyond the last add confirmed, {last_add_confirmed}"
        )
    return fragment_parts(metadata.fragments, first, last)


def with_fragment(fragments: tuple[Fragment, ...], new: Fragment) -> tuple[Fragment, ...]:
    """These and a new one after them, or in place of the last if both begin at the same entry.

    No entry was confirmed in the one that it replaces: its ensemble never counted.
    """
    kept = fragments[:-1] if fragments[-1].first_entry_id == new.first_entry_id else fragments
    return (*kept, new)


def is_covered(
    silent: frozenset[int] | set[int], ensemble_size: int, write_quorum: int, ack_quorum: int
) -> bool:
    """Whether no entry can have an ack quorum on places alone that gave no answer."""
    return all(
        len(silent.intersection(write_set(stripe, ensemble_size, write_quorum))) < ack_quorum
        for stripe in range(ensemble_size)
    )


class ConfirmedBorder:
    """Works out up to where the ack quorum has synced."""

    __slots__ = ("_ack_quorum", "_ensemble_size", "_synced", "_write_quorum")

    def __init__(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        self._ensemble_size = ensemble_size
        self._write_quorum = write_quorum
        self._ack_quorum = ack_quorum
        self._synced = [-1] * ensemble_size

    def synced(self, place: int, last_entry_id: int) -> None:
        """The bookie at this place has synced all that it was sent up to this entry."""
        self._synced[place] = max(self._synced[place], last_entry_id)

    def replaced(self, place: int, last_add_confirmed: int) -> None:
        """Another bookie has this place now; it begins after the last add confirmed."""
        self._synced[place] = last_add_confirmed

    def border(self, awaited: Collection[int] = ()) -> int:
        """Every entry up to this one has its ack quorum; the next has not (or was not sent).

        `awaited`: places that have to have theirs, too.
        """
        border = self._quorum_border()
        for place in awaited:
            missing = self._synced[place] + 1
            while not holds(place, missing, self._ensemble_size, self._write_quorum):
                missing += 1
            border = min(border, missing - 1)
        return border

    def _quorum_border(self) -> int:
        size, write, ack = self._ensemble_size, self._write_quorum, self._ack_quorum
        if size == 1:
            return self._synced[0]
        if write == size:
            return sorted(self._synced)[size - ack]
        first_unconfirmed = []
        for stripe in range(size):
            copies = sorted(self._synced[(stripe + i) % size] for i in range(write))
            after = copies[write - ack] + 1
            first_unconfirmed.append(after + (stripe - after) % size)
        return min(first_unconfirmed) - 1

    def reaches_ack_quorum(self, lost: set[int]) -> bool:
        """Whether every stripe class still has an ack quorum without the bookies at these places."""
        size, write, ack = self._ensemble_size, self._write_quorum, self._ack_quorum
        return all(
            sum((stripe + i) % size not in lost for i in range(write)) >= ack
            for stripe in range(size)
        )
