"""Watches on ZooKeeper: the mirror's wishes made, what it finds out told.

Edge for the loop only: turns the looks of `TreeMirror` into requests, and answers and fired watches
into its facts, all in the order in which they came.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kazoo import exceptions as zk
from kazoo.protocol.states import EventType

from ackgate.errors import AckGateError
from ackgate.persistence.metadata.watches import Watches
from ackgate.persistence.metadata.zookeeper_mirror import LookKind, Stat, TreeMirror
from ackgate.persistence.ports import WatchKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from kazoo.protocol.states import WatchedEvent

    from ackgate.persistence.metadata.kazoo_bridge import KazooBridge
    from ackgate.persistence.metadata.zookeeper_mirror import NodeLook
    from ackgate.persistence.metadata.zookeeper_requests import Requests
    from ackgate.persistence.ports import WatchEvent

logger = logging.getLogger(__name__)

LOOK_AGAIN_SECONDS: Final = 1.0
"""A look that the server refused for a reason of its own is repeated after this."""

_KINDS: Final = {
    EventType.CREATED: WatchKind.CREATED,
    EventType.CHANGED: WatchKind.CHANGED,
    EventType.DELETED: WatchKind.DELETED,
    EventType.CHILD: None,
}


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
        """There is none; on the next one everything is looked at anew."""
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
            self._mirror.heard(_KINDS[event.type], event.path[len(self._root) :] or "/")
            self._look()

    def _look(self) -> None:
        """Make the looks that the mirror wants, then tell what it has found out.

        In this order, so that who hears of a change and reads does so after the next watch is set.
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
