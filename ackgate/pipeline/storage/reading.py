"""Reading a range of entries: each once, ascending, verified, from whichever copy is good.

Edge: blocking. Striped entries lie on several bookies; as few of them are read as hold everything::

    ensemble 3, write quorum 2      bookie 0     0  .  2  3  .  5      read
                                    bookie 1     0  1  .  3  4  .      read: with bookie 0 that is all
                                    bookie 2     .  1  2  .  4  5      only for entries that are missing

What these do not give is looked for on every bookie that should have it, in its journals too (entries
that are in no fragment file yet). What is still missing then is lost: an error that says where, or
with ``on_corrupt="skip"`` a count in `damages`.
"""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np

from ackgate.errors import NoSuchEntryError, UnknownFormatError
from ackgate.persistence.ledgers.quorum import holds
from ackgate.pipeline.storage.bookie_files import OpenBookies, storage_errors
from ackgate.pipeline.storage.cluster_entries import ClusterPlace, OpenCluster
from ackgate.pipeline.storage.damage import Damage
from ackgate.pipeline.storage.entry_columns import (
    FIRST_ENTRIES,
    columns_of_payloads,
    joined,
    next_entries,
)
from ackgate.pipeline.storage.places import BookiePlaces

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ackgate.persistence.bookies.entry_codec import StoredEntry
    from ackgate.pipeline.storage.bookie_files import BookieFiles
    from ackgate.pipeline.storage.entry_columns import EntryColumns
    from ackgate.pipeline.storage.fragment_stream import FragmentStream
    from ackgate.pipeline.storage.ranges import EntryRange

OnCorrupt = Literal["fail", "skip", "report"]
""""skip" leaves out damaged entries, but fails for those of a later version; "report" leaves out both."""

LedgerPlaces: TypeAlias = BookiePlaces | ClusterPlace
"""Where ledgers lie: plain, for the driver and every worker."""

OpenPlaces: TypeAlias = OpenBookies | OpenCluster

_NAMED_MAX: Final = 5
"""Damaged places that an error message names."""


def open_places(places: LedgerPlaces) -> OpenPlaces:
    """For many ranges. Close it, or use it in a `with`."""
    return OpenCluster(places) if isinstance(places, ClusterPlace) else OpenBookies(places)


def read_range(
    bookies: LedgerPlaces | OpenPlaces,
    entry_range: EntryRange,
    *,
    on_corrupt: OnCorrupt = "fail",
    damages: list[Damage] | None = None,
) -> Iterator[EntryColumns]:
    """The range's entries. For many ranges pass what `open_places` has opened.

    `damages` gets every damaged place that was met, when the reading is over. Raises
    `NoSuchEntryError` (a `CorruptRecordError`) naming bookies, files and bytes, `UnknownFormatError`
    when a later version wrote a file that nobody else has, `StorageError`.
    """
    with contextlib.ExitStack() as stack:
        if isinstance(bookies, ClusterPlace | BookiePlaces):
            opened = open_places(bookies)
            stack.callback(opened.close)
        else:
            opened = bookies
        if isinstance(opened, OpenCluster):
            met: list[Damage] = [] if damages is None else damages
            yield from opened.read(entry_range, skips=on_corrupt != "fail", damages=met)
            return
        stack.enter_context(storage_errors(entry_range.ledger_id))
        reading = _Reading(opened, entry_range, on_corrupt)
        stack.callback(reading.close)
        try:
            yield from reading.batches()
        finally:
            if damages is not None:
                damages += reading.damages()


class _Reading:
    """One reading of one range."""

    def __init__(
        self, bookies: OpenBookies, entry_range: EntryRange, on_corrupt: OnCorrupt
    ) -> None:
        self._range = entry_range
        self._on_corrupt = on_corrupt
        self._ledger_id = entry_range.ledger_id
        self._size = entry_range.metadata.ensemble_size
        self._quorum = entry_range.metadata.write_quorum
        self._ensemble = entry_range.fragment.ensemble
        self._digest = bookies.digest(entry_range)
        self._copies = [bookies.bookie(bookie) for bookie in self._ensemble]
        self._examined: list[Damage] | None = None
        self._missing: list[Damage] = []
        self._streams: list[FragmentStream] = []
        for place in self._places_to_read():
            files = self._copies[place]
            assert files is not None
            self._streams += files.streams(
                self._ledger_id,
                self._digest,
                names=self._names(place),
                fragment=entry_range.fragment.first_entry_id,
                first=entry_range.first_entry_id,
                last=entry_range.last_entry_id,
            )

    def _places_to_read(self) -> list[int]:
        """As few places as hold every entry, of those that are there."""
        size, chosen = self._size, []
        open_classes = set(range(size))
        start = self._ledger_id % size
        for place in [*range(start, size), *range(start)]:
            held = {c for c in open_classes if holds(place, c, size, self._quorum)}
            if held and self._copies[place] is not None and self._names(place) != ():
                chosen.append(place)
                open_classes -= held
        return chosen

    def _names(self, place: int) -> tuple[str, ...] | None:
        """Of the files that hold the range there, if somebody has looked."""
        files = self._range.files
        return None if files is None else files.get(self._ensemble[place], ())

    def batches(self) -> Iterator[EntryColumns]:
        """The entries, a bounded number at a time."""
        first, stop = self._range.first_entry_id, self._range.last_entry_id + 1
        for stream in self._streams:
            stream.skip_to(first)
        count = FIRST_ENTRIES
        while first < stop:
            behind = min(first + count, stop)
            batch = self._batch(first, behind)
            size = batch.size
            if len(batch.entry_ids):
                yield batch
            count = next_entries(count, size)
            first = behind

    def _batch(self, first: int, behind: int) -> EntryColumns:
        with _collecting_later():
            taken = [joined(stream.take(behind - 1)) for stream in self._streams]
        entry_ids = np.arange(first, behind, dtype=np.int64)
        if len(taken) == 1 and np.array_equal(taken[0].entry_ids, entry_ids):
            return taken[0]
        found: dict[int, bytes] = {}
        for columns in taken:
            found.update(zip(columns.entry_ids.tolist(), columns.payloads, strict=True))
        missing = [entry_id for entry_id in range(first, behind) if entry_id not in found]
        if missing:
            lost = self._look_further(missing, found)
            if lost:
                self._lose(lost)
                entry_ids = np.setdiff1d(entry_ids, np.array(lost, np.int64), assume_unique=True)
        payloads = [found[entry_id] for entry_id in entry_ids.tolist()]
        return columns_of_payloads(entry_ids, payloads)

    # ------------------------------------------------------------------------------- other copies

    def _look_further(self, missing: list[int], found: dict[int, bytes]) -> list[int]:
        """Add to `found` what other copies have. Returns what is in none."""
        copies = [(place, files) for place, files in enumerate(self._copies) if files is not None]
        for place, files in copies:
            missing = self._look(missing, found, place, files, is_moving=False)
        for place, files in copies:
            missing = self._look(missing, found, place, files, is_moving=True)
        return missing

    def _look(
        self,
        missing: list[int],
        found: dict[int, bytes],
        place: int,
        files: BookieFiles,
        *,
        is_moving: bool,
    ) -> list[int]:
        held = [i for i in missing if holds(place, i, self._size, self._quorum)]
        if not held:
            return missing
        find = files.find_moving if is_moving else files.find
        self._keep_good(find(self._ledger_id, held[0], held[-1]), set(held), found)
        return [entry_id for entry_id in missing if entry_id not in found]

    def _keep_good(
        self, entries: Iterable[StoredEntry], wanted: set[int], found: dict[int, bytes]
    ) -> None:
        for entry in entries:
            if (
                entry.entry_id in wanted
                and entry.ledger_id == self._ledger_id
                and self._digest.matches(entry)
            ):
                found[entry.entry_id] = entry.payload

    # ------------------------------------------------------------------------------------- damage

    def _lose(self, lost: list[int]) -> None:
        """Raise `NoSuchEntryError` for lost entries, unless they are to be skipped."""
        culprits: dict[int, Damage] = {}
        for entry_id in lost:
            damage = self._culprit(entry_id)
            damage.entries_lost += 1
            culprits[id(damage)] = damage
        is_later = any(damage.is_later_format for damage in culprits.values())
        if self._on_corrupt == "report" or (self._on_corrupt == "skip" and not is_later):
            return
        named = list(culprits.values())
        named += [
            damage
            for damage in self._examined or ()
            if id(damage) not in culprits and damage.behind_entry_id < lost[-1]
        ]
        kind = UnknownFormatError if is_later else NoSuchEntryError
        raise kind(
            f"ledger {self._ledger_id}: no good copy of {_words(lost)}: "
            + "; ".join(map(str, named[:_NAMED_MAX]))
        )

    def _culprit(self, entry_id: int) -> Damage:
        """The damaged place nearest in front of a lost entry, on one of its bookies."""
        if self._examined is None:
            self._examined = self._examine()
        bookies = {
            bookie
            for place, bookie in enumerate(self._ensemble)
            if holds(place, entry_id, self._size, self._quorum)
        }
        fitting = [
            damage
            for damage in self._examined
            if damage.bookie in bookies and damage.behind_entry_id < entry_id
        ]
        if fitting:
            return max(fitting, key=lambda damage: damage.behind_entry_id)
        for damage in self._missing:
            if damage.bookie in bookies:
                return damage
        place = entry_id % self._size
        files = self._copies[place]
        where, why = ("", "no such bookie here")
        if files is not None:
            where, why = str(files.directory), "the entry is in none of its files"
        self._missing.append(
            Damage(self._ledger_id, self._ensemble[place], where, 0, 0, why, entry_id - 1)
        )
        return self._missing[-1]

    def _examine(self) -> list[Damage]:
        """Every damaged place of every copy. Reads them all: only once something is lost."""
        damages = []
        for files in filter(None, self._copies):
            for stream in files.streams(self._ledger_id, self._digest):
                while stream.take(self._range.last_entry_id, groups_max=1):
                    pass
                damages += stream.damages
                if stream.torn_tail is not None:
                    damages.append(stream.torn_tail)
                stream.close()
        return damages

    def damages(self) -> list[Damage]:
        """The damaged places met so far; a torn tail only if it has lost something."""
        if self._examined is None:
            return [damage for stream in self._streams for damage in stream.damages]
        counted = [d for d in self._examined if not d.is_tail or d.entries_lost]
        return counted + self._missing

    def close(self) -> None:
        for stream in self._streams:
            stream.close()


@contextlib.contextmanager
def _collecting_later() -> Iterator[None]:
    """Keep the garbage collector from walking over a batch's entries again and again.

    There are no cycles among them. Without it a read takes half as long again.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _words(entry_ids: list[int]) -> str:
    if len(entry_ids) == 1:
        return f"entry {entry_ids[0]}"
    return f"{len(entry_ids)} entries from {entry_ids[0]} to {entry_ids[-1]}"
