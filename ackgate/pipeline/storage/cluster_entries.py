"""Entries and metadata of ledgers that lie on a BookKeeper cluster, read through its client.

Edge: a session with ZooKeeper and connections to bookies, begun when the first thing is asked for, and an
event loop of its own that runs only within a call. Nothing is written or fenced.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from ackgate.errors import CorruptRecordError, NoSuchLedgerError
from ackgate.extras import named_extras
from ackgate.pipeline.storage.damage import Damage
from ackgate.pipeline.storage.entry_columns import FIRST_ENTRIES, columns_of_payloads, next_entries
from ackgate.pipeline.storage.ranges import ENTRY_BYTES

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
    from typing import Self

    from ackgate.config.persistence import PersistenceSettings
    from ackgate.persistence.bookkeeper import BookKeeperClient
    from ackgate.persistence.ports import LedgerEntry, LedgerMetadata, UnrecoveredReader
    from ackgate.pipeline.storage.bookie_files import FoundFile
    from ackgate.pipeline.storage.entry_columns import EntryColumns
    from ackgate.pipeline.storage.ranges import EntryRange

T = TypeVar("T")

_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class ClusterPlace:
    """A BookKeeper cluster, as a broker's settings name it. Can be pickled."""

    settings: PersistenceSettings = field(repr=False)
    marks: Mapping[str, bytes] = field(default_factory=dict)
    """Custom metadata of the ledgers that count; others are not listed."""

    async def connect(self) -> BookKeeperClient:
        """Connect to the cluster.

        Raises `ConfigurationError`, `MetadataStoreError`, `MissingExtraError`.
        """
        with named_extras("bookkeeper"):
            from ackgate.persistence.bookkeeper import (  # noqa: PLC0415  only where it is wanted
                BookKeeperClient,
            )
        return await BookKeeperClient.connect_with(
            self.settings, marks=self.marks, is_read_only=True
        )


class OpenCluster:
    """A cluster's ledgers, for blocking callers. Close it, or use it in a `with`."""

    def __init__(self, place: ClusterPlace) -> None:
        self._place = place
        self._runner = asyncio.Runner()
        self._client: BookKeeperClient | None = None

    def ledger_ids(self) -> list[int]:
        """Ids of all ledgers that have the marks, ascending."""
        return self._run(self._ledger_ids())

    def metadata_of(self, ledger_ids: Iterable[int]) -> dict[int, LedgerMetadata]:
        """Metadata of the ledgers that exist, in this order. Raises `CorruptRecordError`."""
        return self._run(self._metadata_of(list(ledger_ids)))

    def files_of(self, _: int) -> list[FoundFile]:
        """Always empty: the bookies of a cluster keep their files to themselves."""
        return []

    def located(self, entry_range: EntryRange) -> EntryRange:
        """The range as it is: the cluster's client finds its entries."""
        return entry_range

    def split_entry_ids(self, whole: EntryRange, split_bytes: int) -> list[int]:
        """Where to cut, if entries are of one size."""
        about = whole.metadata
        mean = about.length_bytes // max(1, about.last_entry_id + 1) or ENTRY_BYTES
        step = max(1, split_bytes // mean)
        return list(range(whole.first_entry_id + step, whole.last_entry_id + 1, step))

    def read(
        self, part: EntryRange, *, skips: bool, damages: list[Damage]
    ) -> Iterator[EntryColumns]:
        """The entries, a bounded number at a time.

        `skips`: leave out entries of which no copy is good; `damages` gets them. Raises
        `CorruptRecordError` otherwise, `NoSuchLedgerError`, `WrongPasswordError`, `StorageError`.
        """
        reader = self._run(self._opened(part.ledger_id))
        first, stop, count = part.first_entry_id, part.last_entry_id + 1, FIRST_ENTRIES
        while first < stop:
            behind = min(first + count, stop)
            entries = self._run(_read(reader, part, first, behind - 1, damages if skips else None))
            batch = columns_of_payloads(
                np.array([entry.entry_id for entry in entries], np.int64),
                [entry.payload for entry in entries],
            )
            if entries:
                yield batch
            count = next_entries(count, batch.size)
            first = behind

    def close(self) -> None:
        try:
            if self._client is not None:
                self._runner.run(self._client.close())
        finally:
            self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------- in the loop

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    async def _connected(self) -> BookKeeperClient:
        if self._client is None:
            self._client = await self._place.connect()
        return self._client

    async def _ledger_ids(self) -> list[int]:
        return await (await self._connected()).ledger_ids()

    async def _metadata_of(self, ledger_ids: Sequence[int]) -> dict[int, LedgerMetadata]:
        client = await self._connected()

        async def one(ledger_id: int) -> LedgerMetadata | None:
            try:
                return await client.metadata(ledger_id)
            except NoSuchLedgerError:
                return None

        found: dict[int, LedgerMetadata] = {}
        for at in range(0, len(ledger_ids), _AT_ONCE):
            some = ledger_ids[at : at + _AT_ONCE]
            answers = await asyncio.gather(*map(one, some))
            found |= {i: a for i, a in zip(some, answers, strict=True) if a is not None}
        return found

    async def _opened(self, ledger_id: int) -> UnrecoveredReader:
        password = self._place.settings.ledger_password
        client = await self._connected()
        return await client.open_without_recovery(ledger_id, password=password)


async def _read(
    reader: UnrecoveredReader, part: EntryRange, first: int, last: int, damages: list[Damage] | None
) -> list[LedgerEntry]:
    try:
        return await reader.read_unconfirmed(first, last)
    except CorruptRecordError:
        if damages is None:
            raise
    found: list[LedgerEntry] = []
    for entry_id in range(first, last + 1):
        try:
            found += await reader.read_unconfirmed(entry_id, entry_id)
        except CorruptRecordError as error:
            ensemble = ",".join(part.fragment.ensemble)
            where = f"ledger {part.ledger_id}"
            damages.append(
                Damage(
                    part.ledger_id, ensemble, where, 0, 0, str(error), entry_id - 1, entries_lost=1
                )
            )
    return found
