"""BookKeeper's client over real bookies and ZooKeeper, on asyncio.

Edge: the way in. It speaks wire protocol v2 and keeps metadata as the Java client does, so that either
reads, fences and recovers what the other writes::

    client = await BookKeeperClient.connect("zk+hierarchical://127.0.0.1:2181/ledgers")
    writer = await client.create(LedgerOptions(3, 3, 2))
    entry_id = await writer.add_entry(b"...")
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from ackgate.errors import (
    CallerError,
    ClosedHandleError,
    CorruptRecordError,
    DigestMismatchError,
    MetadataConflictError,
    NoSuchLedgerError,
)
from ackgate.persistence.bookkeeper.cluster import BookKeeperCluster, parse_cluster_uri
from ackgate.persistence.bookkeeper.connections import BookieConnections
from ackgate.persistence.bookkeeper.metadata_format import StoredMetadata
from ackgate.persistence.bookkeeper.protocol import LAST_ENTRY, EntryCodec
from ackgate.persistence.bookkeeper.reads import BookKeeperReads
from ackgate.persistence.bookkeeper.recovery import Recovery
from ackgate.persistence.bookkeeper.settings import BookKeeperSettings
from ackgate.persistence.bookkeeper.writer import BookKeeperWriter
from ackgate.persistence.ledgers.handles import ReadHandle, confirmed_of
from ackgate.persistence.ledgers.quorum import check_quorum
from ackgate.persistence.metadata.zookeeper import ZooKeeperMetadataStore
from ackgate.persistence.ports import Fragment, LedgerMetadata, LedgerOptions, LedgerState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackgate.persistence.metadata.session_options import SessionOptions

_LIST_AT_ONCE = 64


class BookKeeperClient:
    """Implements `LedgerClient`. Make it with `connect`."""

    def __init__(
        self,
        cluster: BookKeeperCluster,
        *,
        settings: BookKeeperSettings | None = None,
        marks: Mapping[str, bytes] | None = None,
        is_read_only: bool = False,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`marks` go into the custom metadata of every ledger that is made here.

        With marks, `ledger_ids` lists only ledgers that have them: other applications may use the
        cluster, too.
        """
        self._cluster = cluster
        self._settings = settings or BookKeeperSettings()
        self._marks = dict(marks or {})
        self._is_read_only = is_read_only
        self._clock_ms = clock_ms
        self._connections = BookieConnections(
            cluster, timeout_seconds=self._settings.timeout_seconds
        )
        self._without_batches: set[str] = set()
        self._recoveries: dict[int, asyncio.Task[LedgerMetadata]] = {}
        self._marked: dict[int, bool] = {}
        """Of ledgers that were looked at: marks never change."""
        self._is_closed = False

    @classmethod
    async def connect(
        cls,
        uri: str,
        *,
        settings: BookKeeperSettings | None = None,
        session: SessionOptions | None = None,
        marks: Mapping[str, bytes] | None = None,
        is_read_only: bool = False,
    ) -> Self:
        """Begin a session at ``zk+hierarchical://HOST:PORT[;HOST:PORT...]/ledgers``.

        `is_read_only`: nothing is written or fenced, in ZooKeeper or on bookies. Raises
        `ConfigurationError` (the address, no cluster there), `MetadataStoreError` (no server).
        """
        servers, root = parse_cluster_uri(uri)
        store = await ZooKeeperMetadataStore.open(servers, read_only=is_read_only, options=session)
        try:
            cluster = await BookKeeperCluster.open(store, root)
        except BaseException:
            await store.close()
            raise
        return cls(cluster, settings=settings, marks=marks, is_read_only=is_read_only)

    # ------------------------------------------------------------------------------------- writing

    async def new_ledger_id(self) -> int:
        """An id that nobody else is given, for a ledger that is made later or never. Never 0."""
        self._check_writable()
        return await self._cluster.new_id() or await self._cluster.new_id()

    async def create(
        self, options: LedgerOptions, *, ledger_id: int | None = None
    ) -> BookKeeperWriter:
        """As the port has it; of an id that `new_ledger_id` gave (BookKeeper's createLedgerAdv)."""
        self._check_writable()
        check_quorum(options.ensemble_size, options.write_quorum, options.ack_quorum)
        ensemble = await self._connections.choose(options.ensemble_size)
        made = StoredMetadata(
            LedgerMetadata(
                ledger_id=await self.new_ledger_id() if ledger_id is None else ledger_id,
                state=LedgerState.OPEN,
                ensemble_size=options.ensemble_size,
                write_quorum=options.write_quorum,
                ack_quorum=options.ack_quorum,
                digest_type=options.digest_type,
                fragments=(Fragment(0, tuple(ensemble)),),
                last_entry_id=-1,
                length_bytes=0,
                created_ms=self._clock_ms(),
                custom_metadata={**options.custom_metadata, **self._marks},
            ),
            options.password,
            create_token=secrets.randbits(63),
        )
        while True:
            try:
                stored = await self._cluster.create(made)
                break
            except MetadataConflictError:
                if ledger_id is not None:
                    raise
            new_id = await self.new_ledger_id()  # somebody made one without asking the counter
            made = made.changed(replace(made.metadata, ledger_id=new_id))
        reads = self._reads(stored)
        return BookKeeperWriter(stored, self._cluster, self._connections, reads, self._settings)

    # ------------------------------------------------------------------------------------- reading

    async def open(self, ledger_id: int, *, password: bytes = b"") -> ReadHandle[StoredMetadata]:
        self._check_writable()
        stored = await self._checked(ledger_id, password)
        reads = self._reads(stored)
        metadata = await self._recovered(stored, reads)
        confirmed = await confirmed_of(metadata, reads)
        return ReadHandle(metadata, reads, self._cluster, confirmed)

    async def _recovered(self, stored: StoredMetadata, reads: BookKeeperReads) -> LedgerMetadata:
        """Whoever opens a ledger while it is being recovered here waits for that."""
        ledger_id = stored.metadata.ledger_id
        running = self._recoveries.get(ledger_id)
        if running is None:
            recovery = Recovery(
                stored,
                self._cluster,
                self._connections,
                reads,
                self._settings.recovery_step_entries,
            )
            running = asyncio.get_running_loop().create_task(recovery.run())
            self._recoveries[ledger_id] = running
            running.add_done_callback(lambda _: self._recoveries.pop(ledger_id, None))
        return await asyncio.shield(running)

    async def open_without_recovery(
        self, ledger_id: int, *, password: bytes = b""
    ) -> ReadHandle[StoredMetadata]:
        self._check_open()
        stored = await self._checked(ledger_id, password)
        reads = self._reads(stored)
        confirmed = await confirmed_of(stored.metadata, reads)
        return ReadHandle(stored.metadata, reads, self._cluster, confirmed)

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        self._check_open()
        return (await self._cluster.read(ledger_id)).metadata

    async def is_empty(self, ledger_id: int) -> bool:
        self._check_open()
        stored = await self._cluster.read(ledger_id)
        metadata = stored.metadata
        if metadata.state is LedgerState.CLOSED:
            return metadata.last_entry_id < 0
        if metadata.fragments[-1].first_entry_id > 0:
            return False
        copies = await self._reads(stored).ask_ensemble(metadata, LAST_ENTRY)
        return all(copy.is_absent for copy in copies)

    async def ledger_ids(self) -> list[int]:
        self._check_open()
        ledger_ids = await self._cluster.ledger_ids()
        if not self._marks:
            return ledger_ids
        unknown = [i for i in ledger_ids if i not in self._marked]
        for at in range(0, len(unknown), _LIST_AT_ONCE):
            await asyncio.gather(*map(self._look_for_marks, unknown[at : at + _LIST_AT_ONCE]))
        return [i for i in ledger_ids if self._marked.get(i)]

    async def _look_for_marks(self, ledger_id: int) -> None:
        try:
            custom = (await self._cluster.read(ledger_id)).metadata.custom_metadata
        except NoSuchLedgerError:
            return
        except CorruptRecordError:
            custom = {}
        self._marked[ledger_id] = self._marks.items() <= custom.items()

    # ------------------------------------------------------------------------------------ the rest

    async def delete(self, ledger_id: int) -> None:
        """Remove the metadata. Bookies drop the entries by themselves, later."""
        self._check_writable()
        await self._cluster.remove(ledger_id)
        self._marked.pop(ledger_id, None)

    async def close(self) -> None:
        """End the connections and the session. Handles that are open take no more adds."""
        if self._is_closed:
            return
        self._is_closed = True
        for recovery in self._recoveries.values():
            recovery.cancel()
        await self._connections.close()
        await self._cluster.close()

    async def _checked(self, ledger_id: int, password: bytes) -> StoredMetadata:
        stored = await self._cluster.read(ledger_id)
        if stored.password != password:
            raise DigestMismatchError(
                f"ledger {ledger_id}: the password is not the one it was created with"
            )
        return stored

    def _reads(self, stored: StoredMetadata) -> BookKeeperReads:
        metadata = stored.metadata
        codec = EntryCodec(metadata.ledger_id, metadata.digest_type, stored.password)
        return BookKeeperReads(codec, self._connections, self._settings, self._without_batches)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedHandleError("this client of BookKeeper is closed")

    def _check_writable(self) -> None:
        self._check_open()
        if self._is_read_only:
            raise CallerError("this client of BookKeeper was opened for reading only")
