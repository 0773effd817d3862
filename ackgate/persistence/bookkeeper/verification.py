"""Every copy of every entry of a ledger on a BookKeeper cluster, read and verified.

Edge; reads only, and fences nothing. A bookie that has every entry is asked for many at a time; what it
does not give so is asked for one by one, so that each missing or damaged copy has its name. The password
that the digests need lies in the ledger's metadata.

BookKeeper mends what is missing by itself (AutoRecovery). It does not look at digests unless an operator has
switched that on.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ackgate.errors import AckGateError, DigestMismatchError, NoSuchLedgerError
from ackgate.persistence.ledgers.auditor import LedgerAudit
from ackgate.persistence.ledgers.handles import confirmed_of
from ackgate.persistence.ledgers.quorum import holds
from ackgate.persistence.ledgers.replication import FragmentFinding, spans
from ackgate.persistence.ports import LedgerState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.persistence.bookkeeper.reads import BookKeeperReads
    from ackgate.persistence.ledgers.replication import FragmentSpan
    from ackgate.persistence.ports import LedgerEntry, LedgerMetadata

_WINDOW_ENTRIES_MAX: Final = 2_048
_WINDOW_BYTES: Final = 4 * 1024 * 1024
"""Aim for one copy's share of a window: it is in memory until it was looked at."""


async def verify_copies(metadata: LedgerMetadata, reads: BookKeeperReads) -> LedgerAudit:
    """What each bookie has of what it should have; of an open ledger as far as entries are found now."""
    audit = LedgerAudit(metadata.ledger_id, metadata)
    try:
        open_until = -1
        if metadata.state is not LedgerState.CLOSED:
            confirmed = await confirmed_of(metadata, reads)
            open_until = await reads.last_found(metadata, confirmed.last_add_confirmed)
        for span in spans(metadata, open_until):
            if span.first_entry_id <= span.last_entry_id:
                audit.fragments.append(await _Looking(metadata, reads, span).look())
    except NoSuchLedgerError:
        audit.is_deleted = True
    except AckGateError as error:
        audit.error = str(error)
    return audit


class _Looking:
    """Reads and verifies every copy in one fragment."""

    def __init__(
        self, metadata: LedgerMetadata, reads: BookKeeperReads, span: FragmentSpan
    ) -> None:
        self._metadata = metadata
        self._reads = reads
        self._span = span
        self._finding = FragmentFinding.begin(metadata, span, is_verified=True)

    async def look(self) -> FragmentFinding:
        first, step = self._span.first_entry_id, self._first_step()
        while first <= self._span.last_entry_id:
            last = min(first + step - 1, self._span.last_entry_id)
            size, quorum = self._metadata.ensemble_size, self._metadata.write_quorum
            wanted = [
                [i for i in range(first, last + 1) if holds(copy.place, i, size, quorum)]
                for copy in self._finding.copies
            ]
            copies = await asyncio.gather(*map(self._copy, range(len(wanted)), wanted))
            good = [found for found, _, _ in copies]
            self._finding.take_window(first, last, good, [damaged for _, damaged, _ in copies])
            mean = max((size for *_, size in copies), default=0)
            step = min(max(_WINDOW_BYTES // max(mean, 1), 1), _WINDOW_ENTRIES_MAX)
            first = last + 1
        return self._finding

    def _first_step(self) -> int:
        """How many entries the first window may hold, whatever their size."""
        metadata = self._metadata
        if metadata.state is not LedgerState.CLOSED:
            return 1
        mean = metadata.length_bytes // max(metadata.last_entry_id + 1, 1)
        return min(max(_WINDOW_BYTES // max(mean, 1), 1), _WINDOW_ENTRIES_MAX)

    async def _copy(
        self, place: int, entry_ids: Sequence[int]
    ) -> tuple[set[int] | None, set[int], int]:
        """Read one copy.

        Returns good ids (None: no answer), damaged ids, and the good ones' mean size.
        """
        copy = self._finding.copies[place]
        if copy.trouble is not None:
            return None, set(), 0
        found: dict[int, LedgerEntry] = {}
        if entry_ids and self._metadata.write_quorum == self._metadata.ensemble_size:
            await self._reads.read_copies(copy.bookie_id, entry_ids[0], entry_ids[-1], found)
        damaged: set[int] = set()
        missing = [entry_id for entry_id in entry_ids if entry_id not in found]
        at_once = self._reads.at_once
        sizes = [len(entry.payload) for entry in found.values()]
        good = set(found)
        for at in range(0, len(missing), at_once):
            some = missing[at : at + at_once]
            asked = await asyncio.gather(*(self._reads.ask(copy.bookie_id, i) for i in some))
            for entry_id, answer in zip(some, asked, strict=True):
                if answer.entry is not None:
                    good.add(entry_id)
                    sizes.append(len(answer.entry.payload))
                elif isinstance(answer.error, DigestMismatchError):
                    damaged.add(entry_id)
                elif answer.error is not None:
                    copy.trouble = str(answer.error)
                    return None, set(), 0
        return good, damaged, sum(sizes) // max(len(sizes), 1)
