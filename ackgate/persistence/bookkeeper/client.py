"""BookKeeper's client over real bookies and ZooKeeper, on asyncio.

Edge: the way in. It speaks wire protocol v2 and keeps metadata as the Java client does, so that either
reads, fences and recovers what the other writes::

    client = await BookKeeperClient.connect("zk+hierarchical://127.0.0.1:2181/ledgers")
    writer = await client.create(LedgerOptions(3, 3, 2))
    entry_id = await writer.add_entry(b"...")
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Self

from ackgate.errors import (
    CallerError,
    ClosedHandleError,
    CorruptRecordError,
    DigestMismatchError,
    MetadataConflictError,
    NoSuchLedgerError,
    WrongPasswordError,
)
from ackgate.persistence.bookkeeper.cluster import BookKeeperCluster, parse_cluster_uri
from ackgate.persistence.bookkeeper.connections import BookieConnections
from ackgate.persistence.bookkeeper.handshake import Security
from ackgate.persistence.bookkeeper.lasting_store import LastingStore
from ackgate.persistence.bookkeeper.metadata_format import StoredMetadata
from ackgate.persistence.bookkeeper.protocol import LAST_ENTRY, EntryCodec
from ackgate.persistence.bookkeeper.reads import BookKeeperReads
from ackgate.persistence.bookkeeper.recovery import Recovery
from ackgate.persistence.bookkeeper.settings import BookKeeperSettings, client_settings
from ackgate.persistence.bookkeeper.verification import verify_copies
from ackgate.persistence.bookkeeper.writer import BookKeeperWriter
from ackgate.persistence.ledgers.auditor import LedgerAudit
from ackgate.persistence.ledgers.handles import ReadHandle, confirmed_of
from ackgate.persistence.ledgers.quorum import check_quorum
from ackgate.persistence.metadata.session_options import SessionOptions
from ackgate.persistence.nodes.changes import until_won
from ackgate.persistence.nodes.unnamed_ledgers import DELETION_KEY
from ackgate.persistence.ports import Fragment, LedgerMetadata, LedgerOptions, LedgerState
from ackgate.persistence.zookeeper.store import ZooKeeperMetadataStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ackgate.config.persistence import PersistenceSettings
    from ackgate.persistence.bookkeeper.cluster import KnownBookie
    from ackgate.persistence.bookkeeper.handshake import BookieDiskSpace
    from ackgate.persistence.bookkeeper.statistics import BookKeeperStatistics

logger = logging.getLogger(__name__)

_LIST_AT_ONCE = 64

_USED_SECONDS_MAX = 0.5
"""How long the bookies of a new ledger may take to say that they know nothing of it."""


class LedgerMarks(NamedTuple):
    """The ownership marks among a ledger's custom metadata."""

    ledger_id: int
    custom_metadata: Mapping[str, bytes]
    is_ours: bool
    """Whether the client's marks are among them."""


class BookKeeperClient:
    """A client of a BookKeeper cluster: implements `LedgerClient`. Make it with `connect`."""

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

        With marks, `ledger_ids` lists only ledgers that have them, and `delete` refuses all others: other
        applications may use the cluster, too. Raises `ConfigurationError` for certificates that cannot be
        read.
        """
        self._cluster = cluster
        self._settings = settings or BookKeeperSettings()
        self._marks = dict(marks or {})
        self._stamps: dict[str, bytes] = {}
        self._is_read_only = is_read_only
        self._clock_ms = clock_ms
        self._connections = BookieConnections(
            cluster,
            timeout_seconds=self._settings.timeout_seconds,
            security=_security_of(self._settings),
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
        session = session or SessionOptions()
        store = LastingStore(
            await ZooKeeperMetadataStore.open(servers, read_only=is_read_only, options=session),
            wait_seconds=session.operation_timeout_seconds,
        )
        try:
            cluster = await BookKeeperCluster.open(store, root)
            return cls(cluster, settings=settings, marks=marks, is_read_only=is_read_only)
        except BaseException:
            await store.close()
            raise

    @classmethod
    async def connect_with(
        cls,
        settings: PersistenceSettings,
        *,
        marks: Mapping[str, bytes] | None = None,
        is_read_only: bool = False,
    ) -> Self:
        """As `connect`, to the cluster that a broker's settings name, with their TLS and login."""
        return await cls.connect(
            settings.bookkeeper_metadata_service_uri,
            settings=client_settings(settings),
            # Bookies read the nodes of ledgers, too.
            session=replace(SessionOptions.of(settings), acl="open"),
            marks=marks,
            is_read_only=is_read_only,
        )

    # ------------------------------------------------------------------------------------- cluster

    @property
    def instance_id(self) -> str:
        """The cluster's name, which its bookies keep in their cookies."""
        return self._cluster.instance_id

    # ------------------------------------------------------------------------------------- writing

    def stamp(self, custom_metadata: Mapping[str, bytes]) -> None:
        """Set the custom metadata that ledgers made from now on have besides the marks."""
        self._stamps = dict(custom_metadata)

    async def new_ledger_id(self) -> int:
        """An id that no other client gets, for a ledger that is made later or never. Never 0."""
        self._check_writable()
        return await self._cluster.new_id() or await self._cluster.new_id()

    async def create(
        self, options: LedgerOptions, *, ledger_id: int | None = None
    ) -> BookKeeperWriter:
        """Make a ledger, as the port says.

        `ledger_id`: one from `new_ledger_id` (createLedgerAdv).
        """
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
                custom_metadata={**options.custom_metadata, **self._stamps, **self._marks},
            ),
            options.password,
            create_token=secrets.randbits(63),
        )
        while True:
            try:
                await self._refuse_used(made)
                stored = await self._cluster.create(made)
                break
            except MetadataConflictError as conflict:
                if ledger_id is not None:
                    raise
                logger.warning("%s: another id is taken", conflict)
            made = made.changed(replace(made.metadata, ledger_id=await self.new_ledger_id()))
        self._connections.counters.ledgers_created += 1
        reads = self._reads(stored)
        return BookKeeperWriter(stored, self._cluster, self._connections, reads, self._settings)

    async def _refuse_used(self, made: StoredMetadata) -> None:
        """Raise `MetadataConflictError` for an id of which its bookies have entries.

        ZooKeeper's data were put back to an older state then, and its counter with them: bookies would
        keep the old entries, and serve them as the new ledger's. One that does not answer soon is not
        waited for.
        """
        asked = asyncio.ensure_future(self._reads(made).ask_ensemble(made.metadata, LAST_ENTRY))
        await asyncio.wait([asked], timeout=_USED_SECONDS_MAX)
        if not asked.done():
            asked.cancel()
            return
        for bookie_id, copy in zip(
            made.metadata.fragments[0].ensemble, asked.result(), strict=True
        ):
            if copy.entry is not None or isinstance(copy.error, DigestMismatchError):
                raise MetadataConflictError(
                    f"ledger {made.metadata.ledger_id} does not exist, and bookie {bookie_id} has entries of"
                    " it: was ZooKeeper put back to an older state?"
                )

    # ------------------------------------------------------------------------------------- reading

    async def open(self, ledger_id: int, *, password: bytes = b"") -> ReadHandle[StoredMetadata]:
        self._check_writable()
        stored = await self._checked(ledger_id, password)
        reads = self._reads(stored)
        metadata = await self._recovered(stored, reads)
        confirmed = await confirmed_of(metadata, reads)
        return ReadHandle(metadata, reads, self._cluster, confirmed)

    async def _recovered(self, stored: StoredMetadata, reads: BookKeeperReads) -> LedgerMetadata:
        """A second call for the ledger waits for the recovery that the first one began."""
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
            if stored.metadata.state is not LedgerState.CLOSED:
                self._connections.counters.ledgers_recovered += 1
            running = asyncio.get_running_loop().create_task(
                recovery.run(self._settings.timeout_seconds)
            )
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

    async def verify(self, ledger_id: int) -> LedgerAudit:
        """Read every copy of every entry. Nothing is fenced, nothing is mended.

        What is wrong is in the answer, also a ledger that does not exist. No password is needed.
        """
        self._check_open()
        audit: LedgerAudit | None = None
        while True:
            try:
                stored = await self._cluster.read(ledger_id, is_latest=audit is not None)
            except NoSuchLedgerError:
                return LedgerAudit(ledger_id, None, is_deleted=True)
            except CorruptRecordError as error:
                return LedgerAudit(ledger_id, None, error=str(error))
            if audit is not None and stored.metadata == audit.metadata:
                return audit
            audit = await verify_copies(stored.metadata, self._reads(stored))
            if audit.is_whole:
                return (
                    audit  # else it may have been deleted, or changed, while its copies were read
                )

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

    async def newest_marks(self, count: int) -> list[LedgerMarks]:
        """Marks of the cluster's last `count` ledgers, whichever client made them."""
        self._check_open()
        return await self._marks_of((await self._cluster.ledger_ids())[-count:])

    async def marks_since(self, ledger_id: int) -> list[LedgerMarks]:
        """Marks of this ledger and all later ones, whichever client made them."""
        self._check_open()
        return await self._marks_of([i for i in await self._cluster.ledger_ids() if i >= ledger_id])

    async def _marks_of(self, newest: Sequence[int]) -> list[LedgerMarks]:
        found: list[LedgerMarks] = []
        for at in range(0, len(newest), _LIST_AT_ONCE):
            some = newest[at : at + _LIST_AT_ONCE]
            customs = await asyncio.gather(*map(self._custom_metadata, some))
            found += (
                LedgerMarks(i, custom, self._marks.items() <= custom.items())
                for i, custom in zip(some, customs, strict=True)
                if custom is not None
            )
        return found

    async def _custom_metadata(self, ledger_id: int) -> Mapping[str, bytes] | None:
        """Custom metadata; None: no such ledger. Empty if its metadata cannot be read."""
        try:
            return (await self._cluster.read(ledger_id)).metadata.custom_metadata
        except NoSuchLedgerError:
            return None
        except CorruptRecordError:
            return {}

    async def _look_for_marks(self, ledger_id: int) -> None:
        custom = await self._custom_metadata(ledger_id)
        if custom is not None:
            self._marked[ledger_id] = self._marks.items() <= custom.items()

    # ------------------------------------------------------------------------------------- bookies

    async def bookies(self) -> list[KnownBookie]:
        """All bookies that ZooKeeper knows of, in order of their ids. None of them is asked."""
        self._check_open()
        return await self._cluster.bookies()

    async def disk_space(self, bookie_id: str) -> BookieDiskSpace:
        """Ask a bookie for its disk space. Raises `StorageError`, `BookieRefusedError`."""
        self._check_open()
        return await self._connections.disk_space(bookie_id)

    # ------------------------------------------------------------------------------------ the rest

    def statistics(self) -> BookKeeperStatistics:
        """The client's counters, as they are now. The client may be closed."""
        return self._connections.statistics()

    async def delete(self, ledger_id: int) -> None:
        """Remove the metadata. Bookies drop the entries by themselves, later.

        Raises `NoSuchLedgerError`, and `CallerError` for a ledger without this client's marks.
        """
        self._check_writable()
        if self._marks:
            await self._look_for_marks(ledger_id)
            if self._marked.get(ledger_id) is False:
                raise CallerError(f"ledger {ledger_id} is another application's: it is not deleted")
        await self._cluster.remove(ledger_id)
        self._marked.pop(ledger_id, None)

    async def announce_deletion(self, ledger_ids: Iterable[int]) -> None:
        self._check_writable()
        for ledger_id in ledger_ids:

            async def attempt(ledger_id: int = ledger_id) -> None:
                stored = await self._cluster.read(ledger_id)
                custom = stored.metadata.custom_metadata
                if DELETION_KEY not in custom:
                    announced = {**custom, DELETION_KEY: b"1"}
                    await self._cluster.replace(
                        stored, replace(stored.metadata, custom_metadata=announced)
                    )

            with contextlib.suppress(NoSuchLedgerError):
                await until_won(attempt, of=f"ledger {ledger_id}")

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
            raise WrongPasswordError(
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


def _security_of(settings: BookKeeperSettings) -> Security:
    return Security(settings.tls.loaded() if settings.tls is not None else None, settings.login)
