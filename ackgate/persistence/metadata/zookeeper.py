"""The metadata store in ZooKeeper, through kazoo.

Edge for the loop; the thread and the sockets are `kazoo_bridge`'s. The session is told of by kazoo,
with one state of our own making: a session that has been out of touch for as long as its time-out is
lost, whether or not a server can be asked, because by then the servers have given it up::

    CONNECTED <----> SUSPENDED --expired, or time-out by our clock--> LOST --renew()--> CONNECTED
        |                `-- calls wait                                 `-- calls fail, nothing is sent
        `-- calls are sent

As in ZooKeeper itself, a read may be older than another session's last write, but never older than
what this session has read, written, or been told of by a watch. Compare-and-set settles the rest.

kazoo retries nothing: reads that a broken connection interrupted are asked again here, writes fail
with `OutcomeUnknownError`. Values above the size guard are refused before they reach a server, which
would answer by dropping the connection, and everything else that was under way on it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from kazoo import exceptions as zk
from kazoo.protocol.states import EventType
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from ackgate.errors import (
    AckGateError,
    CallerError,
    ClosedHandleError,
    ConfigurationError,
    MetadataConflictError,
    MetadataStoreError,
    NodeExistsError,
    NoSuchNodeError,
    SessionLostError,
)
from ackgate.persistence.metadata.kazoo_bridge import KazooBridge
from ackgate.persistence.metadata.rules import (
    MUST_NOT_EXIST,
    NODE_BYTES_MAX,
    check_path,
    check_value,
    conflict,
    split,
)
from ackgate.persistence.metadata.session_options import SessionOptions
from ackgate.persistence.metadata.watches import Watches
from ackgate.persistence.metadata.zookeeper_address import parse_address
from ackgate.persistence.metadata.zookeeper_mirror import LookKind, Stat, TreeMirror
from ackgate.persistence.metadata.zookeeper_requests import Requests
from ackgate.persistence.ports import NodeValue, SessionState, WatchKind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kazoo.client import KazooClient
    from kazoo.protocol.states import WatchedEvent

    from ackgate.persistence.metadata.kazoo_handler import Answer
    from ackgate.persistence.metadata.zookeeper_address import ZooKeeperAddress
    from ackgate.persistence.metadata.zookeeper_mirror import Look
    from ackgate.persistence.ports import WatchEvent

logger = logging.getLogger(__name__)

RACES_MAX: Final = 100
"""How often a node may come and go between two steps of one call before that gives up."""

LOOK_AGAIN_SECONDS: Final = 1.0
"""A look that the server refused for a reason of its own is repeated after this."""

HEARTBEAT: Final = 0.25
"""Share of the session time-out after which a session that has nothing to ask asks all the same."""

_ANY_VERSION: Final = -1
"""ZooKeeper's."""

_KINDS: Final = {
    EventType.CREATED: WatchKind.CREATED,
    EventType.CHANGED: WatchKind.CHANGED,
    EventType.DELETED: WatchKind.DELETED,
    EventType.CHILD: None,
}


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
        self._hosts = address.hosts
        self._root = address.root
        self._is_read_only = read_only
        self._node_bytes_max = node_bytes_max
        self._options = options
        self._acl = CREATOR_ALL_ACL if options.acl == "creator" else OPEN_ACL_UNSAFE
        self._loop = asyncio.get_running_loop()
        self._requests = Requests(self._name, timeout_seconds=options.operation_timeout_seconds)
        self._watches = Watches()
        self._mirror = TreeMirror(ignored=() if self._root else ("/zookeeper",))
        self._on_change: dict[object, Callable[[SessionState], None]] = {}
        self._state = SessionState.LOST
        self._bridge: KazooBridge | None = None
        self._connecting: asyncio.Future[None] | None = None
        self._renewing = asyncio.Lock()
        self._time_out: asyncio.TimerHandle | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
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
            await store._begin()
            await store._prepare_root()
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def node_bytes_max(self) -> int:
        """See `MetadataStore.node_bytes_max`."""
        return self._node_bytes_max

    @property
    def session_state(self) -> SessionState:
        """See `MetadataStore.session_state`."""
        return self._state

    @property
    def lease_until(self) -> float:
        """See `MetadataStore.lease_until`."""
        if self._state is SessionState.LOST:
            return -math.inf
        return self._requests.in_touch_at + self.session_timeout_ms / 1000

    @property
    def session_timeout_ms(self) -> int:
        """As the server granted it."""
        bridge = self._bridge
        return bridge.session_timeout_ms if bridge else self._options.session_timeout_ms

    # ------------------------------------------------------------------ the port

    async def get(self, path: str) -> NodeValue | None:
        """See `MetadataStore.get`."""
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
        """See `MetadataStore.put`."""
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
        """See `MetadataStore.create`."""
        self._check_write(path, value)
        try:
            await self._create(path, bytes(value), ephemeral=ephemeral)
        except zk.NodeExistsError:
            raise NodeExistsError(f"{path} exists already") from None
        except zk.ZookeeperError as error:
            raise self._failure(path, error) from error

    async def delete(self, path: str, *, expected_version: int | None = None) -> None:
        """See `MetadataStore.delete`."""
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
        """See `MetadataStore.children`."""
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

        Calls that concern the path wait until the watch stands, so what they see is watched.
        """
        cancel_telling = self._watches.add(path, on_event)
        self._mirror.add_root(path)
        session = self._bridge
        self._look()

        def cancel() -> None:
            nonlocal session
            cancel_telling()
            if session is not None and session is self._bridge and not session.is_over:
                self._mirror.remove_root(path)
                self._look()
            session = None

        return cancel

    def on_session_change(self, on_change: Callable[[SessionState], None]) -> Callable[[], None]:
        """See `MetadataStore.on_session_change`."""
        key = object()
        self._on_change[key] = on_change

        def cancel() -> None:
            self._on_change.pop(key, None)

        return cancel

    async def renew(self) -> None:
        """See `MetadataStore.renew`."""
        async with self._renewing:
            self._check_open()
            if self._state is SessionState.LOST:
                await self._begin()
                logger.info("metadata session begun anew: store=%s", self._name)

    async def close(self) -> None:
        """See `MetadataStore.close`. What has not been sent yet fails."""
        if self._closing is None:
            self._closing = self._loop.create_future()
            self._stop_clock()
            self._state = SessionState.LOST
            closed = ClosedHandleError(f"the metadata store {self._name} is closed")
            self._requests.end(closed)
            self._watches.clear()
            self._mirror.lost()
            self._on_change.clear()
            if self._connecting is not None and not self._connecting.done():
                self._connecting.set_exception(closed)
            try:
                if self._bridge is not None:
                    await self._bridge.close()
            finally:
                self._requests.abandon(closed)
                self._closing.set_result(None)
        await asyncio.shield(self._closing)

    # ------------------------------------------------------------------ the session

    async def _begin(self) -> None:
        """Connect for a new session. Raises `MetadataStoreError` when that takes too long."""
        seconds = self._options.operation_timeout_seconds
        self._connecting = self._loop.create_future()
        bridge = self._bridge = KazooBridge(
            self._hosts,
            session_timeout_ms=self._options.session_timeout_ms,
            digest=self._options.digest,
            on_state=self._session_changed,
            on_watch=self._watch_fired,
            on_batch=self._requests.send,
        )
        bridge.start()
        try:
            async with asyncio.timeout(seconds):
                await self._connecting
        except TimeoutError:
            raise MetadataStoreError(
                f"no session with {self._name} within {seconds:g} s"
                f" (metadataStoreOperationTimeoutSeconds): {bridge.problem or 'not connected'}"
            ) from None
        finally:
            self._connecting = None
            if self._state is not SessionState.CONNECTED:
                bridge.give_up()

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

    def _session_changed(self, bridge: KazooBridge, state: SessionState) -> None:
        if bridge is not self._bridge or self._closing is not None:
            return
        match state:
            case SessionState.CONNECTED if not bridge.is_over:
                self._connected(bridge)
            case SessionState.SUSPENDED if self._state is SessionState.CONNECTED:
                self._suspended(bridge)
            case SessionState.LOST:
                self._lost("the servers have given it up")

    def _connected(self, bridge: KazooBridge) -> None:
        self._stop_clock()
        if self._state is SessionState.SUSPENDED:
            logger.info("metadata session resumed: store=%s", self._name)
        if self._connecting is not None and not self._connecting.done():
            self._connecting.set_result(None)
        self._requests.connected(bridge)
        self._change(SessionState.CONNECTED)
        self._mirror.connected()
        self._look()
        self._keep_in_touch(bridge)

    def _suspended(self, bridge: KazooBridge) -> None:
        logger.warning("metadata session suspended: store=%s", self._name)
        self._stop_clock()
        self._requests.suspended()
        seconds = bridge.session_timeout_ms / 1000
        self._time_out = self._loop.call_later(
            seconds, self._lost, f"out of touch for its time-out of {seconds:g} s"
        )
        self._change(SessionState.SUSPENDED)

    def _lost(self, why: str) -> None:
        self._stop_clock()
        if self._bridge is not None:
            self._bridge.give_up()
        if self._connecting is not None:
            if not self._connecting.done():
                self._connecting.set_exception(
                    MetadataStoreError(f"no session with {self._name}: it was refused")
                )
            return
        if self._state is SessionState.LOST:
            return
        logger.warning("metadata session lost: store=%s, %s", self._name, why)
        self._requests.end(self._requests.lost())
        self._watches.clear()
        self._mirror.lost()
        self._change(SessionState.LOST)

    def _change(self, state: SessionState) -> None:
        if state is not self._state:
            self._state = state
            for on_change in list(self._on_change.values()):
                self._loop.call_soon(on_change, state)

    def _keep_in_touch(self, bridge: KazooBridge) -> None:
        """Ask for something small again and again: `lease_until` moves on with its answers."""
        if bridge is self._bridge and self._state is SessionState.CONNECTED:
            full = self._full("/")
            self._requests.look(lambda client: client.exists_async(full), lambda *_: None, path="/")
            seconds = bridge.session_timeout_ms / 1000 * HEARTBEAT
            self._heartbeat = self._loop.call_later(seconds, self._keep_in_touch, bridge)

    def _stop_clock(self) -> None:
        for timer in (self._time_out, self._heartbeat):
            if timer is not None:
                timer.cancel()
        self._time_out = self._heartbeat = None

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
        if self._state is SessionState.LOST:
            raise self._requests.lost()
        return self._requests.ask(
            send,
            path=path,
            is_repeatable=is_repeatable,
            size_bytes=size_bytes,
            is_held=self._mirror.is_unsettled_at(path),
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

    async def _create(self, path: str, value: bytes, *, ephemeral: bool) -> None:
        full, acl = self._root + path, self._acl
        for _ in range(RACES_MAX):
            try:
                await self._write(
                    path,
                    lambda client: client.create_async(full, value, acl=acl, ephemeral=ephemeral),
                    len(value),
                )
                return
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

    # ------------------------------------------------------------------ watches

    def _watch_fired(self, bridge: KazooBridge, event: WatchedEvent) -> None:
        if bridge is self._bridge and event.type in _KINDS:
            self._mirror.heard(_KINDS[event.type], event.path[len(self._root) :] or "/")
            self._look()

    def _look(self) -> None:
        """Make the looks that the mirror wants, then tell what it has found out.

        In this order, so that who hears of a change and reads does so after the next watch is set.
        """
        bridge = self._bridge
        if self._state is SessionState.CONNECTED and bridge is not None:
            looks, self._mirror.looks = self._mirror.looks, []
            for look in looks:
                self._request(bridge, look)
        events, self._mirror.events = self._mirror.events, []
        self._watches.fire(events)
        if self._mirror.is_settled:
            self._requests.release()

    def _request(self, bridge: KazooBridge, look: Look) -> None:
        full, watch = self._full(look.path), bridge.watch
        if look.kind is LookKind.STAT:
            send = lambda client: client.exists_async(full, watch=watch)  # noqa: E731
        else:
            send = lambda client: client.get_children_async(  # noqa: E731
                full, watch=watch, include_data=True
            )
        self._requests.look(send, partial(self._looked, bridge, look), path=look.path)

    def _looked(
        self,
        bridge: KazooBridge,
        look: Look,
        found: Any,  # noqa: ANN401
        error: BaseException | None,
    ) -> None:
        if bridge is not self._bridge or self._state is not SessionState.CONNECTED:
            return  # on the next connection everything is looked at anew
        match error:
            case None if look.kind is LookKind.STAT:
                self._mirror.stat_seen(look.path, _stat(found))
            case None:
                names, stat = found
                self._mirror.list_seen(look.path, names, _stat(stat))
            case zk.NoNodeError():
                self._mirror.list_seen(look.path, None, None)
            case zk.NoAuthError():
                logger.warning("metadata node may not be watched: path=%s", look.path)
                self._mirror.list_seen(look.path, (), None)
            case AckGateError():
                return  # the connection broke, or the session is over
            case _:
                logger.warning("metadata watch is set again: path=%s, %r", look.path, error)
                self._loop.call_later(LOOK_AGAIN_SECONDS, self._look_again, bridge, look)
                return
        self._look()

    def _look_again(self, bridge: KazooBridge, look: Look) -> None:
        if bridge is self._bridge:
            self._mirror.looks.append(look)
            self._look()


def _stat(stat: Any) -> Stat | None:  # noqa: ANN401
    return None if stat is None else Stat(stat.czxid, stat.mzxid)


def _asked_version(expected_version: int | None) -> int:
    """ZooKeeper takes -1 for any version; here it is one that no node has."""
    if expected_version is None:
        return _ANY_VERSION
    return expected_version if expected_version >= 0 else -2


def _changed(path: str, expected_version: int | None) -> MetadataConflictError:
    return MetadataConflictError(f"{path} has another version, expected version {expected_version}")
