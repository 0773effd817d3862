"""The metadata store in ZooKeeper, through kazoo.

Edge for the loop; the thread and the sockets are `kazoo_bridge`'s. kazoo reports the session's
states, and we add one rule: a session without contact for as long as its timeout is lost, whether or
not a server can be reached, because by then the servers have expired it::

    CONNECTED <----> SUSPENDED --expired, or time-out by our clock--> LOST --renew()--> CONNECTED
        |                `-- calls wait                                 `-- calls fail, nothing is sent
        `-- calls are sent

As in ZooKeeper itself, a read may be older than another session's last write, but never older than
what this session has read, written, or got from a watch. Compare-and-set settles the rest.

kazoo retries nothing: reads that a broken connection interrupted are repeated here, writes fail
with `OutcomeUnknownError`. Values above the size guard are rejected before they reach a server, which
would drop the connection and all its other requests.

A connection string is ``host:port,host:port/root``.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from kazoo import exceptions as zk
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from ackgate.errors import (
    CallerError,
    ClosedHandleError,
    ConfigurationError,
    MetadataConflictError,
    MetadataStoreError,
    NodeExistsError,
    NoSuchNodeError,
    SessionLostError,
)
from ackgate.persistence.metadata.session_options import SessionOptions
from ackgate.persistence.ports import NodeValue, SessionState
from ackgate.persistence.ports.node_rules import (
    MUST_NOT_EXIST,
    NODE_BYTES_MAX,
    check_path,
    check_value,
    conflict,
    split,
)
from ackgate.persistence.zookeeper.requests import Requests
from ackgate.persistence.zookeeper.session import ZooKeeperSession
from ackgate.persistence.zookeeper.watches import ZooKeeperWatches

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kazoo.client import KazooClient

    from ackgate.persistence.ports import WatchEvent
    from ackgate.persistence.zookeeper.kazoo_bridge import Answer


PORT: Final = 2181
"""ZooKeeper's own, for a host without one."""

HOSTS_MAX: Final = 64
"""More is a mistake in writing, not an ensemble."""

ROOT_BYTES_MAX: Final = 1024
"""The root comes before every path, and is no part of what the size guard allows for it."""

_HOST: Final = re.compile(r"(?P<host>[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5}))?", re.ASCII)


class ZooKeeperAddress(NamedTuple):
    """Where the servers are, and below which node this store lives."""

    hosts: tuple[str, ...]
    """``host:port``, each with its port."""
    root: str
    """Empty, or an absolute path without a slash at the end."""

    def __str__(self) -> str:
        return ",".join(self.hosts) + self.root


def parse_address(address: str) -> ZooKeeperAddress:
    """Take the part after ``zk:`` apart. Raises `ConfigurationError` naming the whole URL."""
    servers, slash, rest = address.partition("/")
    try:
        return ZooKeeperAddress(_hosts(servers), _root(slash + rest) if slash and rest else "")
    except (ValueError, CallerError) as error:
        raise ConfigurationError(
            f"metadataStoreUrl {'zk:' + address!r}: {error}; it must read "
            "zk:HOST:PORT[,HOST:PORT...][/ROOT]"
        ) from None


def _hosts(servers: str) -> tuple[str, ...]:
    found = []
    for server in servers.split(","):
        match = _HOST.fullmatch(server.strip())
        if match is None:
            raise ValueError(f"{server.strip()!r} is no HOST:PORT")
        port = int(match["port"] or PORT)
        if not 0 < port < 65_536:
            raise ValueError(f"{port} is no port")
        found.append(f"{match['host']}:{port}")
    if len(found) > HOSTS_MAX:
        raise ValueError(f"{len(found)} hosts, at most {HOSTS_MAX} are taken")
    return tuple(dict.fromkeys(found))


def _root(root: str) -> str:
    check_path(root)
    if len(root.encode()) > ROOT_BYTES_MAX:
        raise ValueError(f"the root is longer than {ROOT_BYTES_MAX} bytes")
    return root


logger = logging.getLogger(__name__)

RACES_MAX: Final = 100
"""How often a node may come and go between two steps of one call before that gives up."""

_ANY_VERSION: Final = -1
"""ZooKeeper's."""


class ZooKeeperMetadataStore:
    """One session to ZooKeeper at a time. Implements `MetadataStore`. Make it with `open`."""

    def __init__(
        self,
        address: ZooKeeperAddress,
        *,
        read_only: bool,
        node_bytes_max: int,
        options: SessionOptions,
    ) -> None:
        self._name = f"zk:{address}"
        self._root = address.root
        self._is_read_only = read_only
        self._node_bytes_max = node_bytes_max
        self._options = options
        self._acl = CREATOR_ALL_ACL if options.acl == "creator" else OPEN_ACL_UNSAFE
        self._requests = Requests(self._name, timeout_seconds=options.operation_timeout_seconds)
        self._watches = ZooKeeperWatches(self._root, self._requests)
        self._session = ZooKeeperSession(
            self._name,
            address.hosts,
            options=options,
            requests=self._requests,
            watches=self._watches,
        )
        self._renewing = asyncio.Lock()
        self._closing: asyncio.Future[None] | None = None

    @classmethod
    async def open(
        cls,
        address: str,
        *,
        read_only: bool = False,
        node_bytes_max: int = NODE_BYTES_MAX,
        options: SessionOptions | None = None,
    ) -> Self:
        """Begin a session at ``host:port,host:port/root``, making the root unless `read_only`.

        Raises `ConfigurationError` (the address), `MetadataStoreError` (no server, no permission).
        """
        store = cls(
            parse_address(address),
            read_only=read_only,
            node_bytes_max=node_bytes_max,
            options=options or SessionOptions(),
        )
        try:
            await store._session.begin()
            await store._prepare_root()
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def node_bytes_max(self) -> int:
        return self._node_bytes_max

    @property
    def session_state(self) -> SessionState:
        return self._session.state

    @property
    def lease_until(self) -> float:
        return self._session.lease_until

    @property
    def session_timeout_ms(self) -> int:
        """The session timeout that the server granted; it may differ from what was asked for."""
        return self._session.timeout_ms

    # ------------------------------------------------------------------ the port

    async def get(self, path: str) -> NodeValue | None:
        check_path(path)
        full = self._root + path
        try:
            value, stat = await self._read(path, lambda client: client.get_async(full))
        except zk.NoNodeError:
            return None
        except zk.ZookeeperError as error:
            raise self._failure(path, error) from error
        return NodeValue(
            value or b"", stat.version, stat.ctime, stat.mtime, stat.ephemeralOwner != 0
        )

    async def put(self, path: str, value: bytes, *, expected_version: int | None) -> int:
        self._check_write(path, value)
        try:
            if expected_version is None:
                return await self._put_anyway(path, bytes(value))
            if expected_version == MUST_NOT_EXIST:
                await self._create(path, bytes(value), ephemeral=False)
                return 0
            return await self._set(path, bytes(value), expected_version)
        except zk.NodeExistsError:
            raise MetadataConflictError(f"{path} exists, expected that it does not") from None
        except zk.NoNodeError:
            raise conflict(path, None, expected_version or 0) from None
        except zk.BadVersionError:
            raise _changed(path, expected_version) from None
        except zk.ZookeeperError as error:
            raise self._failure(path, error) from error

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> None:
        self._check_write(path, value)
        try:
            await self._create(path, bytes(value), ephemeral=ephemeral)
        except zk.NodeExistsError:
            raise NodeExistsError(f"{path} exists already") from None
        except zk.ZookeeperError as error:
            raise self._failure(path, error) from error

    async def create_sequential(self, prefix: str) -> str:
        """Make an empty ephemeral node whose name is `prefix` and a number that the server gives.

        Returns its path. The number ascends among the children of one parent. Parents are made as
        needed. ZooKeeper alone has it: it is no part of the port.
        """
        self._check_write(prefix, b"")
        try:
            return await self._create(prefix, b"", ephemeral=True, is_sequential=True)
        except zk.ZookeeperError as error:
            raise self._failure(prefix, error) from error

    async def sync(self, path: str) -> None:
        """Reads after this see whatever had been written when it was called. ZooKeeper's sync."""
        check_path(path)
        full = self._root + path
        try:
            await self._read(path, lambda client: client.sync_async(full))
        except zk.ZookeeperError as error:
            raise self._failure(path, error) from error

    async def delete(self, path: str, *, expected_version: int | None = None) -> None:
        self._check_write(path, b"")
        full, version = self._root + path, _asked_version(expected_version)
        try:
            await self._write(path, lambda client: client.delete_async(full, version))
        except zk.NoNodeError:
            raise NoSuchNodeError(f"{path} does not exist") from None
        except zk.BadVersionError:
            raise _changed(path, expected_version) from None
        except zk.NotEmptyError:
            raise CallerError(f"{path} has children and cannot be deleted") from None
        except zk.ZookeeperError as error:
            raise self._failure(path, error) from error

    async def children(self, path: str) -> list[str]:
        if path != "/":
            check_path(path)
        full = self._full(path)
        try:
            names = await self._read(path, lambda client: client.get_children_async(full))
        except zk.NoNodeError:
            return []
        except zk.ZookeeperError as error:
            raise self._failure(path, error) from error
        return sorted(names)

    def watch(self, path: str, on_event: Callable[[WatchEvent], None]) -> Callable[[], None]:
        """See `MetadataStore.watch`.

        Calls at or below the path wait until the watch is set, so what they read is watched.
        """
        return self._watches.watch(path, on_event)

    def on_session_change(self, on_change: Callable[[SessionState], None]) -> Callable[[], None]:
        return self._session.on_change(on_change)

    async def renew(self) -> None:
        async with self._renewing:
            self._check_open()
            if self._session.state is SessionState.LOST:
                await self._session.begin()
                logger.info("new metadata session: store=%s", self._name)

    async def close(self) -> None:
        """See `MetadataStore.close`. What has not been sent yet fails."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_future()
            try:
                await self._session.close(
                    ClosedHandleError(f"the metadata store {self._name} is closed")
                )
            finally:
                self._closing.set_result(None)
        await asyncio.shield(self._closing)

    async def _prepare_root(self) -> None:
        if not self._root:
            return
        try:
            if await self._read("/", lambda client: client.exists_async(self._root)) is None:
                if self._is_read_only:
                    raise ConfigurationError(f"there is no metadata store at {self._name}")
                await self._ensure(self._root)
        except zk.ZookeeperError as error:
            raise self._failure("/", error) from error

    # ------------------------------------------------------------------ calls

    async def _read(self, path: str, send: Callable[[KazooClient], Answer]) -> Any:  # noqa: ANN401
        return await self._ask(path, send, is_repeatable=True)

    async def _write(
        self, path: str, send: Callable[[KazooClient], Answer], size_bytes: int = 0
    ) -> Any:  # noqa: ANN401
        return await self._ask(path, send, is_repeatable=False, size_bytes=size_bytes)

    def _ask(
        self,
        path: str,
        send: Callable[[KazooClient], Answer],
        *,
        is_repeatable: bool,
        size_bytes: int = 0,
    ) -> Awaitable[Any]:
        self._check_open()
        if self._session.state is SessionState.LOST:
            raise self._requests.lost()
        return self._requests.ask(
            send,
            path=path,
            is_repeatable=is_repeatable,
            size_bytes=size_bytes,
            is_held=self._watches.is_unsettled_at(path),
        )

    async def _set(self, path: str, value: bytes, version: int) -> int:
        full = self._root + path
        stat = await self._write(
            path, lambda client: client.set_async(full, value, version), len(value)
        )
        return int(stat.version)

    async def _put_anyway(self, path: str, value: bytes) -> int:
        for _ in range(RACES_MAX):
            try:
                return await self._set(path, value, _ANY_VERSION)
            except zk.NoNodeError:
                pass
            try:
                await self._create(path, value, ephemeral=False)
                return 0
            except zk.NodeExistsError:
                pass
        raise MetadataStoreError(f"{path} came and went {RACES_MAX} times while it was written")

    async def _create(
        self, path: str, value: bytes, *, ephemeral: bool, is_sequential: bool = False
    ) -> str:
        full, acl = self._root + path, self._acl
        for _ in range(RACES_MAX):
            try:
                made = await self._write(
                    path,
                    lambda client: client.create_async(
                        full, value, acl=acl, ephemeral=ephemeral, sequence=is_sequential
                    ),
                    len(value),
                )
                return str(made).removeprefix(self._root)
            except zk.NoNodeError:
                await self._ensure(split(full)[0])
        raise MetadataStoreError(f"the parents of {path} were deleted {RACES_MAX} times")

    async def _ensure(self, full: str) -> None:
        """Make an empty node and its parents. Doing it twice is the same, so it may be repeated."""
        for _ in range(RACES_MAX):
            try:
                await self._ask(
                    "/",
                    lambda client: client.create_async(full, b"", acl=self._acl),
                    is_repeatable=True,
                )
                return
            except zk.NodeExistsError:
                return
            except zk.NoNodeError:
                await self._ensure(split(full)[0])
        raise MetadataStoreError(f"the parents of {full} were deleted {RACES_MAX} times")

    def _check_write(self, path: str, value: bytes) -> None:
        check_path(path)
        check_value(path, value, self._node_bytes_max)
        if self._is_read_only:
            raise CallerError(f"{self._name} was opened for reading only")

    def _check_open(self) -> None:
        if self._closing is not None:
            raise ClosedHandleError(f"the metadata store {self._name} is closed")

    def _full(self, path: str) -> str:
        return (self._root or "/") if path == "/" else self._root + path

    def _failure(self, path: str, error: zk.ZookeeperError) -> Exception:
        """Our error for one of ZooKeeper's that is not a matter of versions."""
        where = f"{path} in {self._name}"
        match error:
            case zk.NoAuthError():
                return MetadataStoreError(
                    f"{where}: not allowed by the node's access list"
                    f" (metadataStoreDigest is {'set' if self._options.digest else 'not set'})"
                )
            case zk.NoChildrenForEphemeralsError():
                return CallerError(f"{where}: an ephemeral node above it cannot have children")
            case zk.BadArgumentsError():
                return CallerError(f"{where}: refused by ZooKeeper")
            case zk.SessionExpiredError():
                return SessionLostError(f"{where}: the session has expired")
            case _:
                return MetadataStoreError(f"{where}: {type(error).__name__} {error}".rstrip())


def _asked_version(expected_version: int | None) -> int:
    """ZooKeeper takes -1 for any version; here it is one that no node has."""
    if expected_version is None:
        return _ANY_VERSION
    return expected_version if expected_version >= 0 else -2


def _changed(path: str, expected_version: int | None) -> MetadataConflictError:
    return MetadataConflictError(f"{path} has another version, expected version {expected_version}")
