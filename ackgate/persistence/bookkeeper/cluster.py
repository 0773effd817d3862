"""What a BookKeeper cluster keeps in ZooKeeper: ledgers, their ids, and which bookies there are.

Edge: over our ZooKeeper store. Nodes are exactly those of the Java client, so that both may work on one
cluster. Sources: BookKeeper's `AbstractZkLedgerManager`, `LongZkLedgerIdGenerator`,
`ZKRegistrationClient`.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.config.persistence import METADATA_SERVICE_URI
from ackgate.errors import (
    CallerError,
    ConfigurationError,
    MetadataConflictError,
    NoSuchLedgerError,
    NoSuchNodeError,
    OutcomeUnknownError,
    StorageError,
)
from ackgate.persistence.bookkeeper.metadata_format import (
    BookieAddress,
    BookieService,
    address_of,
    decode_address,
    decode_metadata,
    decode_service,
    encode_metadata,
)
from ackgate.persistence.nodes.changes import put_unique
from ackgate.persistence.ports.node_rules import MUST_NOT_EXIST

if TYPE_CHECKING:
    from ackgate.persistence.bookkeeper.lasting_store import LastingStore
    from ackgate.persistence.bookkeeper.metadata_format import StoredMetadata
    from ackgate.persistence.ports import LedgerMetadata

_SHORT_ID_MAX: Final = 2**31 - 2
"""Ids above it have a longer path, and come from another counter."""

_LAYOUTS: Final = {
    "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory": False,
    "org.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory": True,
}
"""Layout -> whether even small ids have the long path."""


class BookieState(enum.Enum):
    """What ZooKeeper knows of a bookie."""

    WRITABLE = "writable"
    READ_ONLY = "read-only"
    """Its disks are full, as a rule. Entries can be read."""
    AWAY = "away"
    """It has been in the cluster, and is not registered now."""


_REGISTERED: Final = {
    BookieState.WRITABLE: "available",
    BookieState.READ_ONLY: "available/readonly",
}


class KnownBookie(NamedTuple):
    """A bookie of the cluster, as ZooKeeper has it."""

    bookie_id: str
    state: BookieState
    service: BookieService
    error: str | None = None
    """Why its registration could not be read."""

    @property
    def address(self) -> BookieAddress | None:
        """Where it takes entries, as far as known."""
        try:
            return address_of(self.bookie_id, self.service)
        except StorageError:
            return None


_LIST_AT_ONCE: Final = 64


class ClusterAddress(NamedTuple):
    """A cluster's URI taken apart."""

    servers: str
    """The ZooKeeper servers, as ``host:port,host:port``."""
    root: str
    """The node that all of the cluster's nodes lie below: as a rule ``/ledgers``."""


def parse_cluster_uri(uri: str) -> ClusterAddress:
    """Take ``zk+hierarchical://host:port;host:port/ledgers`` apart. Raises `ConfigurationError`."""
    match = METADATA_SERVICE_URI.fullmatch(uri)
    if match is None:
        raise ConfigurationError(
            f"metadata service {uri!r}: it must read zk+hierarchical://HOST:PORT[;HOST:PORT...]/ledgers"
        )
    return ClusterAddress(match[1].replace(";", ","), match[2])


def ledger_node(ledger_id: int, *, is_long: bool = False) -> str:
    """The path of a ledger's node below the root, as BookKeeper's `StringUtils` makes it."""
    if ledger_id <= _SHORT_ID_MAX and not is_long:
        digits = f"{ledger_id:010d}"
        return f"/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
    digits = f"{ledger_id:019d}"
    return f"/{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"


class BookKeeperCluster:
    """The ZooKeeper nodes of one BookKeeper cluster. Make it with `open`."""

    def __init__(self, store: LastingStore, root: str) -> None:
        self._store = store
        self._root = root
        self._is_long = False
        self._has_long_ids = False
        self.instance_id = ""
        """What its bookies' cookies say, too: the cluster's name for good."""

    @classmethod
    async def open(cls, store: LastingStore, root: str) -> BookKeeperCluster:
        """Open the cluster at this root, after a check of its layout.

        Raises `ConfigurationError` if there is no cluster, or one of an unknown layout.
        """
        cluster = cls(store, root)
        node = await store.get(f"{root}/LAYOUT")
        if node is None:
            raise ConfigurationError(f"there is no BookKeeper cluster at {root} in ZooKeeper")
        lines = node.value.decode("ascii", "replace").split("\n")
        name = lines[1].rpartition(":")[0] if len(lines) > 1 else ""
        if lines[0] != "2" or name not in _LAYOUTS:
            raise ConfigurationError(f"{root}/LAYOUT: {node.value!r} is not understood")
        cluster._is_long = _LAYOUTS[name]
        instance = await store.get(f"{root}/INSTANCEID")
        cluster.instance_id = instance.value.decode("ascii", "replace") if instance else ""
        cluster._has_long_ids = await store.get(f"{root}/idgen-long") is not None
        return cluster

    async def close(self) -> None:
        """End the session to ZooKeeper."""
        await self._store.close()

    # ------------------------------------------------------------------------------------- bookies

    async def writable_bookies(self) -> list[str]:
        """Ids of the bookies that take entries, as far as ZooKeeper knows."""
        names = await self._store.children(f"{self._root}/available")
        return [name for name in names if name != "readonly"]

    async def address(self, bookie_id: str) -> BookieAddress:
        """Where the bookie listens now. Raises `StorageError`."""
        _, value = await self._registration(bookie_id)
        return decode_address(bookie_id, value)

    async def bookies(self) -> list[KnownBookie]:
        """All that are registered, or have been and left a cookie; in order of their ids."""
        below = ("cookies", "available", "available/readonly")
        lists = await asyncio.gather(*(self._store.children(f"{self._root}/{b}") for b in below))
        found = sorted({name for names in lists for name in names} - {"readonly"})
        bookies: list[KnownBookie] = []
        for at in range(0, len(found), _LIST_AT_ONCE):
            bookies += await asyncio.gather(*map(self._known, found[at : at + _LIST_AT_ONCE]))
        return bookies

    async def _known(self, bookie_id: str) -> KnownBookie:
        state, value = await self._registration(bookie_id)
        try:
            return KnownBookie(bookie_id, state, decode_service(bookie_id, value))
        except StorageError as error:
            return KnownBookie(bookie_id, state, BookieService(), str(error))

    async def _registration(self, bookie_id: str) -> tuple[BookieState, bytes]:
        for state, below in _REGISTERED.items():
            node = await self._store.get(f"{self._root}/{below}/{bookie_id}")
            if node is not None:
                return state, node.value
        return BookieState.AWAY, b""

    # ------------------------------------------------------------------------------------- ledgers

    async def new_id(self) -> int:
        """An id that no other client gets."""
        if not self._has_long_ids:
            ledger_id = await self._next_number(f"{self._root}/idgen/ID-")
            if 0 <= ledger_id <= _SHORT_ID_MAX:
                return ledger_id
            self._has_long_ids = True
        parent = f"{self._root}/idgen-long"
        highs = [n for n in await self._store.children(parent) if n.startswith("HOB-")]
        high = max((int(name.removeprefix("HOB-")) for name in highs), default=1)
        low = await self._next_number(f"{parent}/HOB-{high:010d}/ID-")
        if low < 0:
            raise CallerError(f"{parent}: the ids of HOB-{high:010d} are used up")
        return high << 32 | low

    async def _next_number(self, prefix: str) -> int:
        while True:
            with contextlib.suppress(OutcomeUnknownError):  # the node goes with the session
                made = await self._store.create_sequential(prefix)
                break
        with contextlib.suppress(OutcomeUnknownError, NoSuchNodeError):
            await self._store.delete(made)
        return int(made.removeprefix(prefix))

    async def read(self, ledger_id: int, *, is_latest: bool = False) -> StoredMetadata:
        """Read a ledger's metadata. Raises `NoSuchLedgerError`, `CorruptRecordError`.

        `is_latest`: with all that has been written by now. Otherwise a server that lags may answer.
        """
        path = self._path(ledger_id)
        if is_latest:
            await self._store.sync(path)
        node = await self._store.get(path)
        if node is None:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
        return decode_metadata(
            ledger_id, node.value, version=node.version, created_ms=node.created_ms
        )

    async def create(self, stored: StoredMetadata) -> StoredMetadata:
        """Write a new ledger's metadata. Raises `MetadataConflictError` if the id is taken."""
        version = await put_unique(
            self._store,
            self._path(stored.metadata.ledger_id),
            encode_metadata(stored),
            replaces=None,
            version=MUST_NOT_EXIST,
        )
        return stored._replace(version=version)

    async def replace(self, stored: StoredMetadata, metadata: LedgerMetadata) -> StoredMetadata:
        """Write changed metadata. Raises `MetadataConflictError`, `NoSuchLedgerError`."""
        changed = stored.changed(metadata)
        try:
            version = await put_unique(
                self._store,
                self._path(metadata.ledger_id),
                encode_metadata(changed),
                replaces=encode_metadata(stored),
                version=stored.version,
            )
        except NoSuchNodeError:
            raise NoSuchLedgerError(f"ledger {metadata.ledger_id} does not exist") from None
        return changed._replace(version=version)

    async def remove(self, ledger_id: int) -> None:
        """Remove a ledger's metadata. Bookies drop its entries later.

        Raises `NoSuchLedgerError`.
        """
        path = self._path(ledger_id)
        try:
            await self._store.delete(path)
        except NoSuchNodeError:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist") from None
        except OutcomeUnknownError:
            with contextlib.suppress(NoSuchNodeError):
                await self._store.delete(path)
        parent = path.rpartition("/")[0]
        while parent != self._root:
            try:
                await self._store.delete(parent)
            except (CallerError, MetadataConflictError, OutcomeUnknownError):
                return  # it has other children
            parent = parent.rpartition("/")[0]

    async def ledger_ids(self) -> list[int]:
        """All ledgers of the cluster, of all clients, in order."""
        short = await self._walk(2, r"\d{2}")
        long = await self._walk(4, r"\d{3}")
        return sorted((*short, *long))

    async def _walk(self, depth: int, first: str) -> list[int]:
        """Ids from the leaves `depth` levels down; names on the way are digits."""
        level = [
            f"/{name}"
            for name in await self._store.children(self._root)
            if re.fullmatch(first, name)
        ]
        pattern = re.compile(r"\d{4}")
        for left in range(depth - 1, -1, -1):
            if left == 0:
                pattern = re.compile(r"L\d{4}")
            found: list[str] = []
            for at in range(0, len(level), _LIST_AT_ONCE):
                some = level[at : at + _LIST_AT_ONCE]
                lists = await asyncio.gather(*(self._store.children(self._root + p) for p in some))
                found += [
                    f"{path}/{name}"
                    for path, names in zip(some, lists, strict=True)
                    for name in names
                    if pattern.fullmatch(name)
                ]
            level = found
        return [int(path.replace("/", "").replace("L", "")) for path in level]

    def _path(self, ledger_id: int) -> str:
        return self._root + ledger_node(ledger_id, is_long=self._is_long)
