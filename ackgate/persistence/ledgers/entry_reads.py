"""Reads the entries of one ledger, from any bookie that has a good copy.

Edge. Digests are verified at every read. A bad copy is reported, and the next bookie is
read; a read fails only when no bookie is left. When a bookie is slow the next one is read as well, and
the first good copy counts. Bookies that did not answer lately come last.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.errors import (
    DigestMismatchError,
    NoSuchEntryError,
    StorageError,
)
from ackgate.persistence.ledgers.handles import Confirmed
from ackgate.persistence.ledgers.quorum import confirmed_parts, held_count
from ackgate.persistence.ports import LedgerEntry

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from ackgate.persistence.bookies.entry_codec import Digest, StoredEntry
    from ackgate.persistence.ledgers.bookie_pool import BookiePool
    from ackgate.persistence.ports import Fragment, LedgerMetadata

logger = logging.getLogger(__name__)

DIGEST_DOES_NOT_FIT: Final = "the digest does not fit"

REPORTED_MAX: Final = 1000
"""Bad copies remembered as reported, since readers read the same entries again and again."""

_LOOK_AHEAD: Final = 1000
"""Entries looked for at a time beyond the last add confirmed."""


class BadCopy(NamedTuple):
    """A bookie could not give an entry that it should have."""

    ledger_id: int
    entry_id: int
    """First entry concerned."""
    bookie_id: str
    reason: str


_reported: Final[OrderedDict[BadCopy, None]] = OrderedDict()


def log_bad_copy(bad: BadCopy) -> None:
    """The default report: a log line, once for each bad copy however often it is read."""
    # A bookie that does not answer at all is reported once a ledger, not once an entry.
    about = bad if bad.reason == DIGEST_DOES_NOT_FIT else bad._replace(entry_id=-1)
    if about in _reported:
        _reported.move_to_end(about)
        return
    _reported[about] = None
    if len(_reported) > REPORTED_MAX:
        _reported.popitem(last=False)
    logger.error(
        "bad copy of entry %d:%d on bookie %s: %s",
        bad.ledger_id,
        bad.entry_id,
        bad.bookie_id,
        bad.reason,
    )


class EntryReads:
    """Reads and verifies entries of one ledger."""

    __slots__ = ("_ledger_id", "_on_bad_copy", "_pool", "_speculative_seconds", "digest")

    def __init__(
        self,
        ledger_id: int,
        digest: Digest,
        pool: BookiePool,
        on_bad_copy: Callable[[BadCopy], None],
        speculative_seconds: float | None = None,
    ) -> None:
        self._ledger_id = ledger_id
        self.digest = digest
        self._pool = pool
        self._on_bad_copy = on_bad_copy
        self._speculative_seconds = speculative_seconds

    async def read(
        self, metadata: LedgerMetadata, first: int, last: int, last_add_confirmed: int
    ) -> list[LedgerEntry]:
        """As the port's `read`, with the border given."""
        entries: list[LedgerEntry] = []
        for fragment, start, end in confirmed_parts(metadata, first, last, last_add_confirmed):
            entries += await self._read_span(metadata, fragment, start, end)
        return entries

    async def _read_span(
        self, metadata: LedgerMetadata, fragment: Fragment, first: int, last: int
    ) -> list[LedgerEntry]:
        found: dict[int, LedgerEntry] = {}
        damaged: set[int] = set()
        failures: list[str] = []
        wanted = last - first + 1
        copies = self._copies(metadata, fragment, first, last)
        async with contextlib.aclosing(copies):
            async for bookie_id, stored in copies:
                if isinstance(stored, StorageError):
                    failures.append(str(stored))
                    self.report(first, bookie_id, str(stored))
                    continue
                self._verify(stored, bookie_id, found, damaged)
                if len(found) == wanted:
                    # Several bookies, and several files of one bookie, give them in any order.
                    return [found[entry_id] for entry_id in range(first, last + 1)]
        if not failures and metadata.write_quorum < metadata.ensemble_size:
            await self._look_further(fragment, first, last, found, damaged)
            if len(found) == wanted:
                return [found[entry_id] for entry_id in range(first, last + 1)]
        missing = next(entry_id for entry_id in range(first, last + 1) if entry_id not in found)
        place_text = f"entry {self._ledger_id}:{missing}"
        if missing in damaged:
            raise DigestMismatchError(f"{place_text}: no copy has a digest that fits its bytes")
        if failures:
            raise StorageError(f"{place_text}: {'; '.join(failures)}")
        raise NoSuchEntryError(f"{place_text}: on none of {', '.join(fragment.ensemble)}")

    async def _look_further(
        self,
        fragment: Fragment,
        first: int,
        last: int,
        found: dict[int, LedgerEntry],
        damaged: set[int],
    ) -> None:
        """Ask every bookie again for all of the range.

        One that holds more than its share may have stopped looking too early.
        """
        for bookie_id in fragment.ensemble:
            stored = await self._ask(bookie_id, first, last, last - first + 1)
            self._verify(
                [e for e in stored if e.entry_id not in damaged], bookie_id, found, damaged
            )

    async def _copies(
        self, metadata: LedgerMetadata, fragment: Fragment, first: int, last: int
    ) -> AsyncGenerator[tuple[str, list[StoredEntry] | StorageError]]:
        """What each bookie has of first..last, the preferred one first, the others if need be."""
        asked: dict[asyncio.Task[list[StoredEntry] | StorageError], str] = {}
        seconds = self._speculative_seconds
        try:
            for bookie_id, expected in self._askable(metadata, fragment, first, last):
                bookie = self._pool.get(bookie_id)
                if bookie is not None:
                    cached = bookie.read_cached(self._ledger_id, first, last, expected)
                    if cached is not None:
                        yield bookie_id, cached
                        continue
                answer = self._ask_safely(bookie_id, first, last, expected)
                if seconds is None or metadata.write_quorum == 1:
                    yield bookie_id, await answer
                    continue
                asked[asyncio.get_running_loop().create_task(answer)] = bookie_id
                done, _ = await asyncio.wait(
                    asked, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    yield asked.pop(task), task.result()
            while asked:
                done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield asked.pop(task), task.result()
        finally:
            for task in asked:
                task.cancel()

    def _askable(
        self, metadata: LedgerMetadata, fragment: Fragment, first: int, last: int
    ) -> list[tuple[str, int]]:
        """Bookies in the order in which to ask them, each with how many entries it should have."""
        size, quorum = metadata.ensemble_size, metadata.write_quorum
        willing: list[tuple[str, int]] = []
        silent: list[tuple[str, int]] = []
        for i in range(size):
            place = (first + i) % size
            expected = held_count(place, first, last, size, quorum)
            if expected:
                bookie = self._pool.get(fragment.ensemble[place])
                group = silent if bookie is not None and bookie.is_silent else willing
                group.append((fragment.ensemble[place], expected))
        return willing + silent

    async def _ask_safely(
        self, bookie_id: str, first: int, last: int, expected: int
    ) -> list[StoredEntry] | StorageError:
        try:
            return await self._ask(bookie_id, first, last, expected)
        except StorageError as error:
            return error

    async def _ask(self, bookie_id: str, first: int, last: int, expected: int) -> list[StoredEntry]:
        bookie = self._pool.get(bookie_id)
        if bookie is None:
            raise StorageError(f"bookie {bookie_id} is not here")
        return await bookie.read(self._ledger_id, first, last, expected)

    def _verify(
        self,
        stored: list[StoredEntry],
        bookie_id: str,
        found: dict[int, LedgerEntry],
        damaged: set[int],
    ) -> None:
        matches = self.digest.matches
        bad: dict[int, None] = {}
        for entry in stored:
            entry_id = entry.entry_id
            if entry_id in found:
                continue
            if matches(entry):
                found[entry_id] = LedgerEntry(entry_id, entry.payload)
            else:
                bad[entry_id] = None
        for entry_id in bad:
            if entry_id in found:
                continue  # one of several copies on the same bookie is good
            self.report(entry_id, bookie_id, DIGEST_DOES_NOT_FIT)
            damaged.add(entry_id)

    def report(self, entry_id: int, bookie_id: str, reason: str) -> None:
        """Report a bad copy to the host."""
        self._on_bad_copy(BadCopy(self._ledger_id, entry_id, bookie_id, reason))

    async def last_confirmed(self, metadata: LedgerMetadata) -> Confirmed:
        """Up to where the bookies know the ledger to be confirmed.

        Those that do not answer are left out: the answer may be too low, never too high. Raises
        `StorageError` if none answers.
        """
        best = Confirmed(-1, 0)
        failures: list[str] = []
        bookie_ids = {b for fragment in metadata.fragments for b in fragment.ensemble}
        for bookie_id in sorted(bookie_ids):
            bookie = self._pool.get(bookie_id)
            try:
                if bookie is None:
                    raise StorageError(f"bookie {bookie_id} is not here")  # noqa: TRY301
                entries = await bookie.last_entries(self._ledger_id)
            except StorageError as error:
                failures.append(str(error))
                continue
            for entry in entries:
                if entry.last_add_confirmed > best.last_add_confirmed and self.digest.matches(
                    entry
                ):
                    best = Confirmed(entry.last_add_confirmed, entry.confirmed_bytes)
        if len(failures) == len(bookie_ids):
            raise StorageError(f"ledger {self._ledger_id}: {'; '.join(failures)}")
        # A fragment begins after what was confirmed when it was made.
        border = metadata.fragments[-1].first_entry_id - 1
        if best.last_add_confirmed < border:
            between = await self.read(metadata, best.last_add_confirmed + 1, border, border)
            best = Confirmed(border, best.length_bytes + sum(len(e.payload) for e in between))
        return best

    async def last_found(self, metadata: LedgerMetadata, last_add_confirmed: int) -> int:
        """The highest entry that can be read, going up from the last add confirmed without a gap."""
        last = last_add_confirmed
        while True:
            found: set[int] = set()
            for bookie_id in metadata.fragments[-1].ensemble:
                try:
                    stored = await self._ask(bookie_id, last + 1, last + _LOOK_AHEAD, _LOOK_AHEAD)
                except StorageError:
                    continue
                found.update(entry.entry_id for entry in stored if self.digest.matches(entry))
            start = last
            while last + 1 in found:
                last += 1
            if last < start + _LOOK_AHEAD:
                return last
