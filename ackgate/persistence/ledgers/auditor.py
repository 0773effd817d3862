"""The auditor: reads and verifies every copy of every entry, and brings back what is missing.

Edge. `replication` decides what to do; the auditor reads, copies and at last changes the metadata:

    look      window by window, each bookie of the ensemble in turn; digests are verified
    copy      good entries to the bookie that lacks them, or to a spare; durable there before ...
    change    ... the ensemble names the spare, by compare-and-set

It may stop between any two steps, and start again: a second run finds the copies that nothing refers to
yet, and no reference changes before its copies are complete. It may run beside live writers (it leaves
an open ledger's last fragment alone, and writers tolerate changes to earlier ones), beside deletions,
and beside other auditors.

Bounded: one window of entries in memory, and a number of bytes in a second.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from ackgate.errors import (
    AckGateError,
    DigestMismatchError,
    MetadataConflictError,
    NoSuchLedgerError,
    StorageError,
)
from ackgate.persistence.bookies.entry_codec import CrcDigest
from ackgate.persistence.ledgers.quorum import held_count
from ackgate.persistence.ledgers.replication import FragmentFinding, plan_repair, spans
from ackgate.persistence.nodes.changes import until_won
from ackgate.persistence.ports import DigestType, Fragment, LedgerState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Sequence

    from ackgate.persistence.bookies.bookie import Bookie
    from ackgate.persistence.bookies.entry_codec import Digest, StoredEntry
    from ackgate.persistence.bookies.settings import AuditSettings
    from ackgate.persistence.ledgers.bookie_pool import BookiePool
    from ackgate.persistence.ledgers.catalog import CatalogEntry, LedgerCatalog
    from ackgate.persistence.ledgers.replication import FragmentSpan, Move
    from ackgate.persistence.ports import LedgerMetadata

logger = logging.getLogger(__name__)

WINDOW_ENTRIES_MAX: Final = 1000

_CONFLICTS_MAX: Final = 20
"""Changes of metadata that lose against others in a row; the next audit tries again."""


@dataclass(slots=True)
class LedgerAudit:
    """What an audit found in one ledger, and what it repaired."""

    ledger_id: int
    metadata: LedgerMetadata | None
    """None: it could not be read."""
    fragments: list[FragmentFinding] = field(default_factory=list)
    """As they were found; those that are still written are not among them."""
    repaired_entries: int = 0
    """Copies of entries that were made."""
    repaired_bytes: int = 0
    moved_places: int = 0
    """Places of ensembles that were given to other bookies."""
    stuck: list[str] = field(default_factory=list)
    """What could not be repaired, and why."""
    error: str | None = None
    """Why the ledger could not be looked at to the end."""
    is_deleted: bool = False
    """It was deleted meanwhile: nothing is wrong."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing was found wrong."""
        return self.is_deleted or (
            self.error is None and all(finding.is_whole for finding in self.fragments)
        )

    @property
    def is_mended(self) -> bool:
        """Whether something was found wrong, and nothing is any more."""
        return not self.is_whole and self.error is None and not self.stuck

    @property
    def missing_copies(self) -> int:
        """Copies of entries that were not there."""
        return sum(
            copy.expected - copy.good - len(copy.damaged)
            for finding in self.fragments
            for copy in finding.copies
        )

    @property
    def damaged_copies(self) -> int:
        """Copies of entries whose bytes were not what was written."""
        return sum(len(copy.damaged) for finding in self.fragments for copy in finding.copies)

    @property
    def lost_entries(self) -> int:
        """Entries of which no good copy was found."""
        return sum(len(finding.without_good_copy) for finding in self.fragments)


@dataclass(slots=True)
class AuditTotals:
    """Sums over the ledgers of an audit."""

    ledgers: int = 0
    under_replicated_ledgers: int = 0
    """Ledgers in which something was wrong when they were examined."""
    unmended_ledgers: int = 0
    """Ledgers in which something is still wrong."""
    missing_copies: int = 0
    damaged_copies: int = 0
    lost_entries: int = 0
    repaired_entries: int = 0
    repaired_bytes: int = 0
    moved_places: int = 0
    failed_ledgers: int = 0
    """Ledgers that could not be examined."""

    def add(self, audit: LedgerAudit, *, is_repair: bool) -> None:
        self.ledgers += 1
        self.under_replicated_ledgers += not audit.is_whole and audit.error is None
        self.unmended_ledgers += not (audit.is_whole or (is_repair and audit.is_mended))
        self.missing_copies += audit.missing_copies
        self.damaged_copies += audit.damaged_copies
        self.lost_entries += audit.lost_entries
        self.repaired_entries += audit.repaired_entries
        self.repaired_bytes += audit.repaired_bytes
        self.moved_places += audit.moved_places
        self.failed_ledgers += audit.error is not None


class _Pace:
    """Limits the bytes that are read and written in a second."""

    def __init__(self, bytes_per_second: float | None) -> None:
        self.bytes_per_second = bytes_per_second
        self._free_at = 0.0

    async def spend(self, count: int) -> None:
        """Return when that many bytes may have been read or written."""
        if self.bytes_per_second is None:
            await asyncio.sleep(0)
            return
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now) + count / self.bytes_per_second
        await asyncio.sleep(self._free_at - now)


class Auditor:
    """Audits the ledgers of one metadata store. Made by `BookieLedgerClient.auditor`."""

    def __init__(
        self,
        catalog: LedgerCatalog,
        pool: BookiePool,
        settings: AuditSettings,
        *,
        password: bytes = b"",
    ) -> None:
        """`password`: ledgers protected by MACs are verified and repaired only with their password."""
        self._catalog = catalog
        self._pool = pool
        self._settings = settings
        self._password = password
        self._pace = _Pace(settings.bytes_per_second)
        self._away_since: dict[str, float] = {}

    def configure(self, settings: AuditSettings) -> None:
        self._settings = settings
        self._pace.bytes_per_second = settings.bytes_per_second

    async def audit(
        self, *, is_repair: bool, ledger_ids: Sequence[int] | None = None
    ) -> AsyncIterator[LedgerAudit]:
        """Check ledgers, by default all of them, and optionally repair them.

        A bad ledger does not stop the audit of the others. Raises `MetadataStoreError`, `OwnershipError`.
        """
        if ledger_ids is None:
            ledger_ids = await self._catalog.ledger_ids()
        if is_repair:
            await self._pool.try_failed()
        for ledger_id in ledger_ids:
            yield await self.audit_ledger(ledger_id, is_repair=is_repair)

    async def ledgers_of_lost_bookies(self) -> AsyncIterator[tuple[int, bool]]:
        """Ledgers that name a bookie that is not here, and whether it has been away long enough.

        Reads metadata only.
        """
        for ledger_id in await self._catalog.ledger_ids():
            try:
                metadata = (await self._catalog.read(ledger_id)).metadata
            except AckGateError:
                continue  # the next full audit says what is wrong
            named = {b for span in spans(metadata) if not span.is_open for b in span.ensemble}
            away = {b for b in named if self._pool.get(b) is None}
            if away:
                yield ledger_id, not away & self._waited_for(away)
            await asyncio.sleep(0)

    async def audit_ledger(
        self, ledger_id: int, *, is_repair: bool, open_until: int = -1
    ) -> LedgerAudit:
        """Audit one ledger, and repair it if `is_repair`.

        `open_until`: the last entry to examine in the open fragment, which is never repaired.
        """
        audit = LedgerAudit(ledger_id, None)
        written: set[str] = set()
        try:
            entry = await self._catalog.read(ledger_id)
            audit.metadata = entry.metadata
            for span in spans(entry.metadata, open_until):
                if span.last_entry_id < span.first_entry_id:
                    continue
                work = _FragmentAudit(self, entry, span, audit, written)
                finding = await work.look()
                audit.fragments.append(finding)
                if is_repair and not finding.is_whole and not span.is_open:
                    entry = await work.mend(finding)
        except NoSuchLedgerError:
            audit.is_deleted = True
        except (StorageError, DigestMismatchError) as error:
            audit.error = str(error)
        except AckGateError as error:
            audit.error = f"{type(error).__name__}: {error}"
        await self._clean_up(audit, written)
        return audit

    async def _clean_up(self, audit: LedgerAudit, written: Collection[str]) -> None:
        """Delete the copies made for a ledger that was deleted meanwhile."""
        bookies = [bookie for b in written if (bookie := self._pool.get(b)) is not None]
        if not bookies:
            return
        if not audit.is_deleted and await self._catalog.exists(audit.ledger_id):
            if audit.metadata is not None and audit.metadata.state is LedgerState.CLOSED:
                for bookie in bookies:
                    bookie.ledger_mended(audit.ledger_id)
            return
        audit.is_deleted = True
        for bookie in bookies:
            try:
                await bookie.delete_ledger(audit.ledger_id)
            except StorageError as error:
                logger.warning("ledger %d: files not removed: %s", audit.ledger_id, error)

    def _waited_for(self, bookie_ids: Collection[str]) -> set[str]:
        """Bookies among these that are absent, but not for long enough to be replaced."""
        now = asyncio.get_running_loop().time()
        waited_for = set()
        for bookie_id in bookie_ids:
            if self._pool.get(bookie_id) is not None:
                self._away_since.pop(bookie_id, None)
                continue
            since = self._away_since.setdefault(bookie_id, now)
            if now - since < self._settings.lost_bookie_delay_seconds:
                waited_for.add(bookie_id)
        return waited_for

    def _digest(self, entry: CatalogEntry) -> Digest | None:
        """The digest to verify the ledger with; None: that needs the password."""
        metadata = entry.metadata
        if metadata.digest_type is DigestType.CRC32C:
            return CrcDigest()
        try:
            return entry.password.digest(metadata.ledger_id, metadata.digest_type, self._password)
        except DigestMismatchError:
            return None


class _FragmentAudit:
    """Audits one fragment of a ledger."""

    def __init__(
        self,
        auditor: Auditor,
        entry: CatalogEntry,
        span: FragmentSpan,
        audit: LedgerAudit,
        written: set[str],
    ) -> None:
        self._auditor = auditor
        self._pool = auditor._pool
        self._entry = entry
        self._metadata: LedgerMetadata = entry.metadata
        self._span = span
        self._audit = audit
        self._written = written
        digest = auditor._digest(entry)
        self._is_verified = digest is not None
        self._is_good: Callable[[StoredEntry], bool] = (
            digest.matches if digest is not None else lambda _: True
        )
        self._window_entries = self._first_window()

    def _first_window(self) -> int:
        metadata = self._metadata
        if metadata.state is not LedgerState.CLOSED or metadata.last_entry_id < 0:
            return 16
        mean = metadata.length_bytes // (metadata.last_entry_id + 1)
        return self._window_of(mean)

    def _window_of(self, entry_bytes: int) -> int:
        most = self._auditor._settings.window_bytes // max(entry_bytes, 1)
        return min(max(most, 1), WINDOW_ENTRIES_MAX)

    # ------------------------------------------------------------------------------------- looking

    async def look(self) -> FragmentFinding:
        """Read and verify every copy of every entry."""
        finding = FragmentFinding.begin(self._metadata, self._span, is_verified=self._is_verified)
        for copy in finding.copies:
            if copy.expected and self._pool.get(copy.bookie_id) is None:
                copy.trouble = f"bookie {copy.bookie_id} is not here"
        first = self._span.first_entry_id
        while first <= self._span.last_entry_id:
            last = min(first + self._window_entries - 1, self._span.last_entry_id)
            await self._look_at(finding, first, last)
            first = last + 1
        return finding

    async def _look_at(self, finding: FragmentFinding, first: int, last: int) -> None:
        size, quorum = self._metadata.ensemble_size, self._metadata.write_quorum
        good: list[set[int] | None] = []
        seen: list[set[int]] = []
        largest = read_bytes = 0
        for copy in finding.copies:
            expected = held_count(copy.place, first, last, size, quorum)
            bookie = self._pool.get(copy.bookie_id)
            is_here: set[int] = set()
            is_good: set[int] | None = set()
            if not expected:
                pass
            elif copy.trouble is not None or bookie is None:
                is_good = None
            else:
                try:
                    stored = await self._read(bookie, first, last, expected)
                except StorageError as error:
                    copy.trouble, is_good = str(error), None
                else:
                    is_here = {entry.entry_id for entry in stored}
                    is_good = {entry.entry_id for entry in stored if self._is_good(entry)}
                    copy_bytes = sum(len(entry.payload) for entry in stored)
                    read_bytes += copy_bytes
                    largest = max(largest, copy_bytes // max(len(stored), 1))
            good.append(is_good)
            seen.append(is_here)
        all_good = set[int]().union(*(ids for ids in good if ids is not None))
        lacking = [e for e in range(first, last + 1) if e not in all_good]
        elsewhere = await self._elsewhere(lacking) if lacking else {}
        finding.take_window(first, last, good, seen, elsewhere)
        self._window_entries = self._window_of(largest) if largest else self._window_entries
        await self._auditor._pace.spend(read_bytes)

    async def _read(
        self, bookie: Bookie, first: int, last: int, expected: int
    ) -> list[StoredEntry]:
        ledger_id, wanted = self._metadata.ledger_id, last - first + 1
        stored = await bookie.read(ledger_id, first, last, expected)
        if expected < wanted and len({entry.entry_id for entry in stored}) != expected:
            # It holds more than its share, and may have stopped looking too early.
            stored = await bookie.read(ledger_id, first, last, wanted)
        return stored

    async def _elsewhere(self, entry_ids: Sequence[int]) -> dict[int, StoredEntry]:
        """Good copies on bookies that are not in the ensemble: of former members, or left over."""
        return await self._ask(
            [b for b in self._pool if b.bookie_id not in self._span.ensemble], entry_ids
        )

    async def _ask(
        self, bookies: Sequence[Bookie], entry_ids: Sequence[int]
    ) -> dict[int, StoredEntry]:
        wanted = set(entry_ids)
        found: dict[int, StoredEntry] = {}
        for bookie in bookies:
            left = wanted - found.keys()
            if not left:
                break
            try:
                first, last = min(left), max(left)
                stored = await bookie.read(self._metadata.ledger_id, first, last, last - first + 1)
            except StorageError:
                continue
            for entry in stored:
                if entry.entry_id in left and self._is_good(entry):
                    found[entry.entry_id] = entry
        return found

    # ------------------------------------------------------------------------------------- mending

    async def mend(self, finding: FragmentFinding) -> CatalogEntry:
        """Repair what can be repaired. Returns the metadata as they are then."""
        auditor = self._auditor
        plan = plan_repair(
            finding,
            writable=self._pool.writable(),
            waited_for=auditor._waited_for(self._span.ensemble),
        )
        self._audit.stuck += [f"{self._name}: {why}" for why in plan.stuck]
        for copy in plan.copies:
            bookie = self._pool.get(copy.bookie_id)
            if bookie is not None:
                await self._try(self._copy(bookie, copy.entry_ids), f"bookie {copy.bookie_id}")
        for move in plan.moves:
            await self._try(self._move(finding, move), f"bookie {move.to_bookie}")
        return self._entry

    @property
    def _name(self) -> str:
        return f"entries {self._span.first_entry_id}-{self._span.last_entry_id}"

    async def _try(self, work: Coroutine[None, None, None], where: str) -> None:
        try:
            await work
        except (StorageError, MetadataConflictError) as error:
            self._audit.stuck.append(f"{self._name}: {where}: {error}")

    async def _copy(self, target: Bookie, entry_ids: Sequence[int]) -> None:
        for window in self._windows(entry_ids):
            sources = [b for b in self._pool if b is not target]
            sources.sort(key=lambda b: b.bookie_id not in self._span.ensemble)
            found = await self._ask(sources, window)
            if len(found) < len(window):
                lacking = min(set(window) - found.keys())
                raise StorageError(f"entry {self._metadata.ledger_id}:{lacking}: no good copy now")
            await self._write(target, [found[e] for e in window])

    def _windows(self, entry_ids: Sequence[int]) -> Iterator[Sequence[int]]:
        """Cut entry ids into groups that each span at most one window."""
        start = 0
        while start < len(entry_ids):
            stop = start + 1
            while (
                stop < len(entry_ids) and entry_ids[stop] - entry_ids[start] < self._window_entries
            ):
                stop += 1
            yield entry_ids[start:stop]
            start = stop

    async def _write(self, target: Bookie, entries: list[StoredEntry]) -> None:
        self._written.add(target.bookie_id)
        await target.rewrite(entries, self._span.first_entry_id)
        count = sum(len(entry.payload) for entry in entries)
        self._audit.repaired_entries += len(entries)
        self._audit.repaired_bytes += count
        await self._auditor._pace.spend(2 * count)

    async def _move(self, finding: FragmentFinding, move: Move) -> None:
        target = self._pool.get(move.to_bookie)
        if target is None:
            return
        for window in self._windows(list(finding.share(move.place))):
            # An audit that was interrupted may have brought them already.
            there = await self._ask([target], window)
            missing = [entry_id for entry_id in window if entry_id not in there]
            if missing:
                await self._copy(target, missing)
            else:
                await self._auditor._pace.spend(sum(len(e.payload) for e in there.values()))
        if await self._change_ensemble(move):
            self._audit.moved_places += 1

    async def _change_ensemble(self, move: Move) -> bool:
        """False: another process has changed the fragment since, and this work was in vain."""
        ledger_id, first = self._metadata.ledger_id, self._span.first_entry_id

        async def attempt() -> bool:
            metadata = self._entry.metadata
            fragments = list(metadata.fragments)
            known = Fragment(first, self._span.ensemble)
            if known not in fragments:
                return False
            changed = tuple(
                move.to_bookie if place == move.place else bookie_id
                for place, bookie_id in enumerate(known.ensemble)
            )
            fragments[fragments.index(known)] = Fragment(first, changed)
            try:
                self._entry = await self._auditor._catalog.replace(
                    self._entry, replace(metadata, fragments=tuple(fragments))
                )
            except MetadataConflictError:
                self._entry = await self._auditor._catalog.read(ledger_id)
                raise
            self._span = self._span._replace(ensemble=changed)
            logger.warning(
                "ledger %d: entries %d-%d are on %s instead of %s now",
                ledger_id,
                first,
                self._span.last_entry_id,
                move.to_bookie,
                move.from_bookie,
            )
            return True

        of = f"the metadata of ledger {ledger_id}"
        return await until_won(attempt, of=of, attempts_max=_CONFLICTS_MAX)
