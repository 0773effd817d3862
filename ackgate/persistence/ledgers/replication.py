"""Which copies of a ledger's entries are missing or bad, and what to do about it.

Pure. The auditor reads and verifies, this module decides, as BookKeeper's auto-recovery does:

- closed ledgers, and the closed fragments of open ones, are brought back to their write quorum;
- the last fragment of an open ledger belongs to its writer (or its recovery), and is left alone;
- a writable bookie gets the entries that it lacks, in its place of the ensemble;
- a spare replaces one that is gone or takes no writes: first the spare gets all entries of that
  place, then the metadata name it in the ensemble.

A place changes only if nothing is lost by it: while an entry has no good copy elsewhere, the bookie
that may have one stays in the ensemble, however long it is away.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ackgate.persistence.ledgers.quorum import held_count, holds
from ackgate.persistence.ports import LedgerState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from ackgate.persistence.ports import LedgerMetadata


class EntryRanges:
    """A set of entry ids, as inclusive ranges. They come in ascending."""

    __slots__ = ("_ranges",)

    def __init__(self, entry_ids: Iterable[int] = ()) -> None:
        self._ranges: list[tuple[int, int]] = []
        for entry_id in entry_ids:
            self.add(entry_id)

    def add(self, entry_id: int) -> None:
        """Take one that is above all others."""
        if self._ranges and self._ranges[-1][1] == entry_id - 1:
            self._ranges[-1] = (self._ranges[-1][0], entry_id)
        else:
            self._ranges.append((entry_id, entry_id))

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self._ranges)

    def __iter__(self) -> Iterator[int]:
        for first, last in self._ranges:
            yield from range(first, last + 1)

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """First and last of each."""
        return tuple(self._ranges)

    def text(self, ranges_max: int = 8) -> str:
        """For people: `0-41, 43, and 7 more`."""
        named = [f"{a}-{b}" if a < b else str(a) for a, b in self._ranges[:ranges_max]]
        left = len(self._ranges) - len(named)
        return ", ".join(named) + (f", and {left} more ranges" if left else "")


class FragmentSpan(NamedTuple):
    """A fragment with its end."""

    first_entry_id: int
    last_entry_id: int
    """Below the first one when it is empty, or open: then its end is not known."""
    ensemble: tuple[str, ...]
    is_open: bool
    """Still written, or to be recovered: not the auditor's."""


def spans(metadata: LedgerMetadata, open_until: int = -1) -> list[FragmentSpan]:
    """The fragments of a ledger, first to last. `open_until`: where an open one ends, if known."""
    fragments = metadata.fragments
    is_closed = metadata.state is LedgerState.CLOSED
    found = []
    for i, fragment in enumerate(fragments):
        is_last = i + 1 == len(fragments)
        if not is_last:
            last = fragments[i + 1].first_entry_id - 1
            if is_closed:
                last = min(last, metadata.last_entry_id)
        else:
            last = metadata.last_entry_id if is_closed else open_until
        found.append(
            FragmentSpan(
                fragment.first_entry_id, last, fragment.ensemble, is_last and not is_closed
            )
        )
    return found


@dataclass(slots=True)
class CopyFinding:
    """What one bookie of an ensemble has of what it should have."""

    place: int
    bookie_id: str
    expected: int
    good: int = 0
    missing: EntryRanges = field(default_factory=EntryRanges)
    damaged: EntryRanges = field(default_factory=EntryRanges)
    trouble: str | None = None
    """Why nothing, or not everything, could be asked for."""

    @property
    def is_whole(self) -> bool:
        """Whether everything is there and good."""
        return self.good == self.expected

    def lacking(self) -> list[int]:
        """Entries to give it, ascending."""
        return sorted({*self.missing, *self.damaged})


@dataclass(slots=True)
class FragmentFinding:
    """What the bookies of one fragment have."""

    ledger_id: int
    span: FragmentSpan
    write_quorum: int
    copies: list[CopyFinding]
    is_verified: bool
    """False: digests could not be verified without the password."""
    without_good_copy: EntryRanges = field(default_factory=EntryRanges)
    """Entries that no bookie that answers has a good copy of."""

    @classmethod
    def begin(
        cls, metadata: LedgerMetadata, span: FragmentSpan, *, is_verified: bool
    ) -> FragmentFinding:
        size, quorum = metadata.ensemble_size, metadata.write_quorum
        copies = [
            CopyFinding(
                place,
                bookie_id,
                held_count(place, span.first_entry_id, span.last_entry_id, size, quorum),
            )
            for place, bookie_id in enumerate(span.ensemble)
        ]
        return cls(metadata.ledger_id, span, quorum, copies, is_verified)

    @property
    def is_whole(self) -> bool:
        """Whether every copy is there and good."""
        return all(copy.is_whole for copy in self.copies)

    @property
    def is_lost(self) -> bool:
        """Whether entries have no good copy and every bookie was asked."""
        return bool(self.without_good_copy) and all(copy.trouble is None for copy in self.copies)

    def share(self, place: int) -> Iterator[int]:
        """Entries that belong to a place of the ensemble."""
        size = len(self.span.ensemble)
        for entry_id in range(self.span.first_entry_id, self.span.last_entry_id + 1):
            if holds(place, entry_id, size, self.write_quorum):
                yield entry_id

    def take_window(
        self,
        first: int,
        last: int,
        good: Sequence[Collection[int] | None],
        seen: Sequence[Collection[int]],
        elsewhere: Collection[int] = (),
    ) -> None:
        """What was found of entries first..last: per place the good ones (None: not answered).

        `seen`: entries of which there was any copy; `elsewhere`: good ones outside the ensemble.
        """
        size = len(self.span.ensemble)
        for entry_id in range(first, last + 1):
            is_good_somewhere = entry_id in elsewhere
            for copy in self.copies:
                if not holds(copy.place, entry_id, size, self.write_quorum):
                    continue
                found = good[copy.place]
                if found is None:
                    continue
                if entry_id in found:
                    copy.good += 1
                    is_good_somewhere = True
                elif entry_id in seen[copy.place]:
                    copy.damaged.add(entry_id)
                else:
                    copy.missing.add(entry_id)
            if not is_good_somewhere:
                self.without_good_copy.add(entry_id)


class CopyBack(NamedTuple):
    """Give a bookie what it lacks."""

    place: int
    bookie_id: str
    entry_ids: tuple[int, ...]


class Move(NamedTuple):
    """Give a spare all that belongs to a place, then the place."""

    place: int
    from_bookie: str
    to_bookie: str


class RepairPlan(NamedTuple):
    """What to do for one fragment."""

    copies: tuple[CopyBack, ...]
    moves: tuple[Move, ...]
    stuck: tuple[str, ...]
    """What cannot be done now, and why."""


def plan_repair(
    finding: FragmentFinding, *, writable: Collection[str], waited_for: Collection[str] = ()
) -> RepairPlan:
    """Decide how to repair a fragment.

    `waited_for`: bookies that are away, but not yet given up.
    """
    copies: list[CopyBack] = []
    moves: list[Move] = []
    stuck: list[str] = []
    if not finding.is_verified:
        return RepairPlan((), (), ("without the ledger's password no copy is known to be good",))
    hopeless = set(finding.without_good_copy)
    ensemble = list(finding.span.ensemble)
    for copy in finding.copies:
        if copy.is_whole:
            continue
        if copy.trouble is None and copy.bookie_id in writable:
            entry_ids = tuple(e for e in copy.lacking() if e not in hopeless)
            if entry_ids:
                copies.append(CopyBack(copy.place, copy.bookie_id, entry_ids))
            continue
        why = copy.trouble or f"bookie {copy.bookie_id} takes nothing"
        if copy.bookie_id in waited_for:
            stuck.append(f"{why}; it is waited for")
        elif hopeless and any(e in hopeless for e in finding.share(copy.place)):
            stuck.append(f"{why}, and it may have the only good copies")
        elif (spare := _spare(writable, ensemble, finding.ledger_id + copy.place)) is None:
            stuck.append(f"{why}, and there is no spare")
        else:
            ensemble[copy.place] = spare
            moves.append(Move(copy.place, copy.bookie_id, spare))
    if finding.is_lost:
        stuck.append(f"no good copy is left of entries {finding.without_good_copy.text()}")
    return RepairPlan(tuple(copies), tuple(moves), tuple(stuck))


def _spare(writable: Collection[str], ensemble: Sequence[str], turn: int) -> str | None:
    """The same one each time: what an interrupted repair has copied is found again."""
    free = sorted(set(writable).difference(ensemble))
    return free[turn % len(free)] if free else None
