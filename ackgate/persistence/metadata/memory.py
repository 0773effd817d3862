"""The metadata store in memory: the port's whole behaviour and no durability.

Edge for the loop only. `MemoryTree` is the "server"; each `MemoryMetadataStore` is one session to
it, so two brokers of one test can share a tree, and a session can be suspended, resumed and expired
by the test that owns it.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ackgate.errors import (
    CallerError,
    ClosedHandleError,
    NodeExistsError,
    NoSuchNodeError,
    SessionLostError,
    StoreSuspendedError,
)
from ackgate.persistence.metadata.watches import SessionListeners, Watches
from ackgate.persistence.ports import NodeValue, SessionState, WatchEvent, WatchKind
from ackgate.persistence.ports.node_rules import (
    MUST_NOT_EXIST,
    NODE_BYTES_MAX,
    check_path,
    check_value,
    conflict,
    split,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class _Node:
    value: bytes
    version: int
    created_ms: int
    modified_ms: int
    owner: MemoryMetadataStore | None
    children: set[str] = field(default_factory=set)


class MemoryTree:
    """The nodes, and the sessions that look at them."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {"/": _Node(b"", 0, 0, 0, None)}
        self._sessions: list[MemoryMetadataStore] = []

    def join(self, session: MemoryMetadataStore) -> None:
        self._sessions.append(session)

    def leave(self, session: MemoryMetadataStore) -> None:
        """A session ends, and its ephemeral nodes with it."""
        if session not in self._sessions:
            return
        self._sessions.remove(session)
        for path in [p for p, node in self._nodes.items() if node.owner is session]:
            self.remove(path)

    def find(self, path: str) -> _Node | None:
        """The node at a path."""
        return self._nodes.get(path)

    def add(self, path: str, node: _Node) -> None:
        """Put a new node in its place, making the parents that are missing."""
        parent_path, name = split(path)
        parent = self._nodes.get(parent_path)
        if parent is None:
            parent = _Node(b"", 0, node.created_ms, node.created_ms, None)
            self.add(parent_path, parent)
        if parent.owner is not None:
            raise CallerError(f"{parent_path} is ephemeral and cannot have children")
        parent.children.add(name)
        self._nodes[path] = node
        self.notify(WatchKind.CREATED, path)

    def remove(self, path: str) -> None:
        """Take out a node that has no children."""
        parent_path, name = split(path)
        del self._nodes[path]
        self._nodes[parent_path].children.discard(name)
        self.notify(WatchKind.DELETED, path)

    def notify(self, kind: WatchKind, path: str) -> None:
        """Notify every session's watchers of a change."""
        for session in self._sessions:
            session.hear(WatchEvent(kind, path))


class MemoryMetadataStore:
    """One session to a `MemoryTree`. Implements `MetadataStore`. Make it on a running loop."""

    def __init__(
        self,
        tree: MemoryTree | None = None,
        *,
        node_bytes_max: int = NODE_BYTES_MAX,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._tree = tree if tree is not None else MemoryTree()
        self._node_bytes_max = node_bytes_max
        self._clock_ms = clock_ms
        self._loop = asyncio.get_running_loop()
        self._state = SessionState.CONNECTED
        self._is_closed = False
        self._watches = Watches()
        self._listeners = SessionListeners(self._loop)
        self._tree.join(self)
        self.lease_until = math.inf
        """See `MetadataStore.lease_until`; the test that lets sessions expire moves it."""

    @property
    def tree(self) -> MemoryTree:
        """What other sessions may join."""
        return self._tree

    @property
    def node_bytes_max(self) -> int:
        return self._node_bytes_max

    @property
    def session_state(self) -> SessionState:
        return self._state

    # ------------------------------------------------------------------ the port

    async def get(self, path: str) -> NodeValue | None:
        self._check_usable()
        check_path(path)
        node = self._tree.find(path)
        if node is None:
            return None
        return NodeValue(
            node.value, node.version, node.created_ms, node.modified_ms, node.owner is not None
        )

    async def put(self, path: str, value: bytes, *, expected_version: int | None) -> int:
        self._check_usable()
        check_path(path)
        check_value(path, value, self._node_bytes_max)
        node = self._tree.find(path)
        if node is None:
            if expected_version not in {None, MUST_NOT_EXIST}:
                raise conflict(path, None, expected_version or 0)
            self._add(path, value, owner=None)
            return 0
        if expected_version is not None and expected_version != node.version:
            raise conflict(path, node.version, expected_version)
        node.value = bytes(value)
        node.version += 1
        node.modified_ms = self._clock_ms()
        self._tree.notify(WatchKind.CHANGED, path)
        return node.version

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> None:
        self._check_usable()
        check_path(path)
        check_value(path, value, self._node_bytes_max)
        if self._tree.find(path) is not None:
            raise NodeExistsError(f"{path} exists already")
        self._add(path, value, owner=self if ephemeral else None)

    async def delete(self, path: str, *, expected_version: int | None = None) -> None:
        self._check_usable()
        check_path(path)
        node = self._tree.find(path)
        if node is None:
            raise NoSuchNodeError(f"{path} does not exist")
        if expected_version is not None and expected_version != node.version:
            raise conflict(path, node.version, expected_version)
        if node.children:
            raise CallerError(f"{path} has {len(node.children)} children and cannot be deleted")
        self._tree.remove(path)

    async def children(self, path: str) -> list[str]:
        self._check_usable()
        if path != "/":
            check_path(path)
        node = self._tree.find(path)
        return sorted(node.children) if node is not None else []

    def watch(self, path: str, on_event: Callable[[WatchEvent], None]) -> Callable[[], None]:
        return self._watches.add(path, on_event)

    def on_session_change(self, on_change: Callable[[SessionState], None]) -> Callable[[], None]:
        return self._listeners.add(on_change)

    async def renew(self) -> None:
        if self._is_closed:
            raise ClosedHandleError("the metadata store is closed")
        if self._state is SessionState.LOST:
            self._tree.join(self)
            self._change(SessionState.CONNECTED)

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._watches.clear()
            self._listeners.clear()
            self._state = SessionState.LOST
            self._tree.leave(self)

    # ------------------------------------------------------------------ for tests

    def suspend(self) -> None:
        """The connection is gone, the session may yet live."""
        self._change(SessionState.SUSPENDED)

    def resume(self) -> None:
        """The connection is back in time."""
        self._change(SessionState.CONNECTED)

    def expire(self) -> None:
        """The server gave the session up: its ephemeral nodes and its watches go."""
        self._watches.clear()
        self._tree.leave(self)
        self._change(SessionState.LOST)

    # ------------------------------------------------------------------ inside

    def hear(self, event: WatchEvent) -> None:
        """Notify the watchers of a change in the tree, after the call that made it."""
        if keys := self._watches.concerned(event):
            self._loop.call_soon(self._watches.notify, keys, event)

    def _add(self, path: str, value: bytes, owner: MemoryMetadataStore | None) -> None:
        now_ms = self._clock_ms()
        self._tree.add(path, _Node(bytes(value), 0, now_ms, now_ms, owner))

    def _change(self, state: SessionState) -> None:
        if state is not self._state:
            self._state = state
            self._listeners.notify(state)

    def _check_usable(self) -> None:
        if self._is_closed:
            raise ClosedHandleError("the metadata store is closed")
        if self._state is SessionState.SUSPENDED:
            raise StoreSuspendedError("the session to the metadata store is suspended")
        if self._state is SessionState.LOST:
            raise SessionLostError("the session to the metadata store has expired")
