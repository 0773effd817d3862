"""Watches on ZooKeeper: what is known of the watched part of the tree, so that no change is left unreported.

Edge for the loop only: `ZooKeeperWatches` turns the looks of `TreeMirror` into requests, and answers
and fired watches into its facts, all in the order in which they came. The mirror is pure.

ZooKeeper's watches fire once, say little, and are gone after a lost connection. So the mirror keeps,
for every node at or below a watched path, what identifies its state: the transaction that made it,
the last one that changed it, and its children's names. It takes answers, fired watches and new
connections; it returns `looks`, the requests to make next, and `events`, the differences found::

    fired(CHANGED /t/a) --> looks: stat of /t/a, with a new watch
    stat_seen(/t/a, ..) --> events: CHANGED /t/a, unless nothing is new
    connected()         --> looks: stat and list of everything, with new watches

An answer and the watch that it sets are one step at the server, and facts come in the order in which
the server put them. Hence a change after a look fires its watch, an earlier one is in the answer, and
every difference is reported, several in quick succession as one.

A newly watched path has to be read first; until then it is `unsettled`. Nodes found then are no
changes, and not reported. Reads below the path should wait until then: they could return nodes whose
later deletion would not be reported.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kazoo import exceptions as zk
from kazoo.protocol.states import EventType

from ackgate.errors import AckGateError
from ackgate.persistence.metadata.watches import Watches, is_at_or_below
from ackgate.persistence.ports import WatchEvent, WatchKind
from ackgate.persistence.ports.node_rules import split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kazoo.protocol.states import WatchedEvent

    from ackgate.persistence.zookeeper.kazoo_bridge import KazooBridge
    from ackgate.persistence.zookeeper.requests import Requests

logger = logging.getLogger(__name__)

LOOK_AGAIN_SECONDS: Final = 1.0
"""A look that the server refused for a reason of its own is repeated after this."""

_KINDS: Final = {
    EventType.CREATED: WatchKind.CREATED,
    EventType.CHANGED: WatchKind.CHANGED,
    EventType.DELETED: WatchKind.DELETED,
    EventType.CHILD: None,
}


class Stat(NamedTuple):
    """What ZooKeeper says of a node, as far as it matters here."""

    czxid: int
    """The transaction that made it."""
    mzxid: int
    """The transaction that wrote its value last."""


class LookKind(enum.Enum):
    """Which request a look makes."""

    STAT = "stat"
    """Whether the node is there; sets a watch for its coming, changing and going."""
    LIST = "list"
    """The names of its children; sets a watch for their coming and going."""


class NodeLook(NamedTuple):
    """A request to make of one node."""

    path: str
    kind: LookKind


@dataclass(slots=True)
class _Seen:
    """A node as last seen."""

    baseline: str | None
    """The watched path under which it was found at the very beginning; None for one that came."""
    stat: Stat | None = None
    children: set[str] | None = None


class TreeMirror:
    """The nodes at and below all watched paths of one session."""

    def __init__(self, *, ignored: Iterable[str] = ()) -> None:
        """Nodes at the paths in `ignored` are treated as if they were not there."""
        self.looks: list[NodeLook] = []
        """Requests to make, in order. The caller removes them."""
        self.events: list[WatchEvent] = []
        """Changes to report, in order. The caller removes them."""
        self._ignored = frozenset(ignored)
        self._roots: dict[str, int] = {}
        self._nodes: dict[str, _Seen] = {}
        self._unsettled: dict[str, set[NodeLook]] = {}

    @property
    def node_count(self) -> int:
        return len(self._nodes)

    @property
    def is_settled(self) -> bool:
        """Whether every watched path has been looked at."""
        return not self._unsettled

    def is_unsettled_at(self, path: str) -> bool:
        """Whether a node at this path may or may not be known yet."""
        return any(is_at_or_below(path, root) for root in self._unsettled)

    # ------------------------------------------------------------------ what is watched

    def add_root(self, root: str) -> None:
        """Watch a path and all nodes below it."""
        self._roots[root] = self._roots.get(root, 0) + 1
        if self._roots[root] == 1 and not self._is_covered(root):
            look = NodeLook(root, LookKind.STAT)
            self._unsettled[root] = {look}
            self.looks.append(look)

    def remove_root(self, root: str) -> None:
        """Stop watching one of those paths."""
        self._roots[root] -= 1
        if self._roots[root] > 0:
            return
        del self._roots[root]
        was_unsettled = self._unsettled.pop(root, None) is not None
        for path in [path for path in self._nodes if not self._is_watched(path)]:
            del self._nodes[path]
        for other in self._roots:
            if is_at_or_below(other, root) and not self._is_covered(other):
                look = NodeLook(other, LookKind.STAT)
                self.looks.append(look)
                if was_unsettled and other not in self._nodes:
                    self._unsettled[other] = {look}

    # ------------------------------------------------------------------ facts

    def connected(self) -> None:
        """There is a connection, on which no watch is set yet."""
        self.looks = [
            NodeLook(root, LookKind.STAT) for root in self._roots if root not in self._nodes
        ]
        for path in self._nodes:
            self.looks += (NodeLook(path, LookKind.STAT), NodeLook(path, LookKind.LIST))

    def lost(self) -> None:
        """The session is over: nothing is watched any more."""
        self.looks.clear()
        self.events.clear()
        self._roots.clear()
        self._nodes.clear()
        self._unsettled.clear()

    def fired(self, kind: WatchKind | None, path: str) -> None:
        """A watch has fired: for the node itself, or (None) for its children's names."""
        known = path in self._nodes
        match kind:
            case None:
                if known:
                    self.looks.append(NodeLook(path, LookKind.LIST))
            case WatchKind.DELETED:
                if known:
                    self._forget(path)
                elif path in self._roots:
                    self.looks.append(NodeLook(path, LookKind.STAT))
            case WatchKind.CREATED if not known:
                if path in self._roots:
                    self._adopt(path, self._baseline_of(path))
            case _:
                if known:
                    self.looks.append(NodeLook(path, LookKind.STAT))

    def stat_seen(self, path: str, stat: Stat | None) -> None:
        """The answer to a look: the node is there, or is not."""
        look = NodeLook(path, LookKind.STAT)
        if stat is None:
            if path in self._nodes:
                self._forget(path)
        elif path in self._nodes:
            self._compare(path, self._nodes[path], stat)
        elif path in self._roots:
            self._adopt(path, self._baseline_of(path), stat)
        self._settle(look)

    def list_seen(self, path: str, names: Iterable[str] | None, stat: Stat | None) -> None:
        """The answer to a look: the children's names; None if the node is not there."""
        node = self._nodes.get(path)
        if node is not None and names is None:
            self._forget(path)
        elif node is not None and names is not None:
            if stat is not None:
                self._compare(path, node, stat)
            if self._nodes.get(path) is node:
                self._compare_children(path, node, names)
        self._settle(NodeLook(path, LookKind.LIST))

    # ------------------------------------------------------------------ inside

    def _compare(self, path: str, node: _Seen, stat: Stat) -> None:
        before, node.stat = node.stat, stat
        if before is None or before == stat:
            return
        if before.czxid != stat.czxid:  # it was deleted and created again
            self._forget(path)
            self._adopt(path, None, stat)
        else:
            self._notify(WatchKind.CHANGED, path)

    def _compare_children(self, path: str, node: _Seen, names: Iterable[str]) -> None:
        found = {name for name in names if _child(path, name) not in self._ignored}
        baseline = node.baseline if node.children is None else None
        for name in sorted((node.children or set()) - found):
            self._forget(_child(path, name))
        node.children = found
        for name in sorted(found):
            if _child(path, name) not in self._nodes:
                self._adopt(_child(path, name), baseline)

    def _adopt(self, path: str, baseline: str | None, stat: Stat | None = None) -> None:
        """A node is there that was not, or was not looked for before."""
        self._nodes[path] = _Seen(baseline, stat)
        if baseline is None:
            self._notify(WatchKind.CREATED, path)
        parent = self._nodes.get(split(path)[0]) if path != "/" else None
        if parent is not None and parent.children is not None:
            parent.children.add(split(path)[1])
        looks = [NodeLook(path, LookKind.LIST)]
        if stat is None:
            looks.insert(0, NodeLook(path, LookKind.STAT))
        self.looks += looks
        if baseline is not None and baseline in self._unsettled:
            self._unsettled[baseline].update(looks)

    def _forget(self, path: str) -> None:
        """A node is gone, and so is all that was below it."""
        node = self._nodes.pop(path, None)
        if node is None:
            return
        for name in sorted(node.children or ()):
            self._forget(_child(path, name))
        self._notify(WatchKind.DELETED, path)
        parent = self._nodes.get(split(path)[0]) if path != "/" else None
        if parent is not None and parent.children is not None:
            parent.children.discard(split(path)[1])
        for kind in LookKind:
            self._settle(NodeLook(path, kind))
        if path in self._roots:
            self.looks.append(NodeLook(path, LookKind.STAT))

    def _notify(self, kind: WatchKind, path: str) -> None:
        if path != "/":
            self.events.append(WatchEvent(kind, path))

    def _settle(self, look: NodeLook) -> None:
        for root in [root for root, open_looks in self._unsettled.items() if look in open_looks]:
            self._unsettled[root].discard(look)
            if not self._unsettled[root]:
                del self._unsettled[root]

    def _baseline_of(self, root: str) -> str | None:
        return root if root in self._unsettled else None

    def _is_covered(self, root: str) -> bool:
        return any(other != root and is_at_or_below(root, other) for other in self._roots)

    def _is_watched(self, path: str) -> bool:
        return any(is_at_or_below(path, root) for root in self._roots)


def _child(path: str, name: str) -> str:
    return f"/{name}" if path == "/" else f"{path}/{name}"


class ZooKeeperWatches:
    """All watches of one store. They end with the session."""

    def __init__(self, root: str, requests: Requests) -> None:
        self._root = root
        self._requests = requests
        self._watches = Watches()
        self._mirror = TreeMirror(ignored=() if root else ("/zookeeper",))
        self._bridge: KazooBridge | None = None
        self._sessions = 0

    def is_unsettled_at(self, path: str) -> bool:
        """Whether a call that concerns this path should wait for a watch to stand."""
        return self._mirror.is_unsettled_at(path)

    def watch(self, path: str, on_event: Callable[[WatchEvent], None]) -> Callable[[], None]:
        cancel_telling = self._watches.add(path, on_event)
        self._mirror.add_root(path)
        session: int | None = self._sessions
        self._look()

        def cancel() -> None:
            nonlocal session
            cancel_telling()
            if session == self._sessions:
                self._mirror.remove_root(path)
                self._look()
            session = None

        return cancel

    def connected(self, bridge: KazooBridge) -> None:
        """There is a connection, on which no watch is set yet."""
        self._bridge = bridge
        self._mirror.connected()
        self._look()

    def suspended(self) -> None:
        """The connection is gone; on the next one everything is read again."""
        self._bridge = None

    def lost(self) -> None:
        """The session is over, and every watch with it."""
        self._bridge = None
        self._sessions += 1
        self._watches.clear()
        self._mirror.lost()

    def fired(self, bridge: KazooBridge, event: WatchedEvent) -> None:
        """One of ZooKeeper's watches has fired."""
        if bridge is self._bridge and event.type in _KINDS:
            self._mirror.fired(_KINDS[event.type], event.path[len(self._root) :] or "/")
            self._look()

    def _look(self) -> None:
        """Make the mirror's looks, then report its events.

        In this order, so that a read after a notification comes after the next watch is set.
        """
        bridge = self._bridge
        if bridge is not None:
            looks, self._mirror.looks = self._mirror.looks, []
            for look in looks:
                self._request(bridge, look)
        events, self._mirror.events = self._mirror.events, []
        self._watches.fire(events)
        if self._mirror.is_settled:
            self._requests.release()

    def _request(self, bridge: KazooBridge, look: NodeLook) -> None:
        full, watch = (self._root + look.path).rstrip("/") or "/", bridge.watch
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
        look: NodeLook,
        found: Any,  # noqa: ANN401
        error: BaseException | None,
    ) -> None:
        if bridge is not self._bridge:
            return  # on the next connection everything is read again
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
                asyncio.get_running_loop().call_later(
                    LOOK_AGAIN_SECONDS, self._look_again, bridge, look
                )
                return
        self._look()

    def _look_again(self, bridge: KazooBridge, look: NodeLook) -> None:
        if bridge is self._bridge:
            self._mirror.looks.append(look)
            self._look()


def _stat(stat: Any) -> Stat | None:  # noqa: ANN401
    return None if stat is None else Stat(stat.czxid, stat.mzxid)
