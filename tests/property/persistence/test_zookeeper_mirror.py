"""Random trees, changes, delays and lost connections: no change is left untold.

A small server has ZooKeeper's one-time watches. Facts wait in a queue, as they would on the wire, and
the tree changes between any two of them. Whenever all is quiet, what was told must lead from the tree
that was found at first to the tree that is there.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import pytest

from ackgate.persistence import WatchEvent, WatchKind
from ackgate.persistence.ports.node_rules import split
from ackgate.persistence.zookeeper.watches import LookKind, NodeLook, Stat, TreeMirror

ROOTS = ["/t", "/t/a", "/u", "/"]
NAMES = ["a", "b", "c"]


class Server:
    """A tree, its watches, and the wire to one client."""

    def __init__(self) -> None:
        self.zxid = 1
        self.nodes = {"/": Stat(0, 0)}
        self.wire: deque[Callable[[TreeMirror], None]] = deque()
        self.data_watches: set[str] = set()
        self.child_watches: set[str] = set()

    def children(self, path: str) -> list[str]:
        return [split(other)[1] for other in self.nodes if other != "/" and split(other)[0] == path]

    def answer(self, look: NodeLook) -> None:
        path, stat = look.path, self.nodes.get(look.path)
        if look.kind is LookKind.STAT:
            self.data_watches.add(path)
            self.wire.append(lambda mirror: mirror.stat_seen(path, stat))
        elif stat is None:
            self.wire.append(lambda mirror: mirror.list_seen(path, None, None))
        else:
            self.child_watches.add(path)
            names = self.children(path)
            self.wire.append(lambda mirror: mirror.list_seen(path, names, stat))

    def fire(self, watches: set[str], kind: WatchKind | None, path: str) -> None:
        if path in watches:
            watches.discard(path)
            self.wire.append(lambda mirror: mirror.fired(kind, path))

    def change(self, rng: random.Random) -> None:
        self.zxid += 1
        path = rng.choice(["/t", "/u"])
        for _ in range(rng.randrange(4)):
            path = f"{path}/{rng.choice(NAMES)}"
        parent = split(path)[0]
        if path not in self.nodes:
            if parent in self.nodes:
                self.nodes[path] = Stat(self.zxid, self.zxid)
                self.fire(self.data_watches, WatchKind.CREATED, path)
                self.fire(self.child_watches, None, parent)
        elif rng.random() < 0.4:
            self.nodes[path] = Stat(self.nodes[path].czxid, self.zxid)
            self.fire(self.data_watches, WatchKind.CHANGED, path)
        elif not self.children(path):
            del self.nodes[path]
            self.fire(self.data_watches, WatchKind.DELETED, path)
            self.fire(self.child_watches, WatchKind.DELETED, path)
            self.fire(self.child_watches, None, parent)

    def break_connection(self) -> None:
        self.wire.clear()
        self.data_watches.clear()
        self.child_watches.clear()


class Client:
    """The mirror, and what it has told."""

    def __init__(self, server: Server, rng: random.Random) -> None:
        self.server = server
        self.rng = rng
        self.mirror = TreeMirror()
        self.asked: deque[NodeLook] = deque()
        self.told: list[WatchEvent] = []

    def take(self) -> None:
        self.asked.extend(self.mirror.looks)
        self.mirror.looks = []
        self.told += self.mirror.events
        self.mirror.events = []

    def step(self) -> bool:
        """One request reaches the server, or one fact the client. False when all is quiet."""
        can_ask, can_hear = bool(self.asked), bool(self.server.wire)
        if not can_ask and not can_hear:
            return False
        if can_ask and (not can_hear or self.rng.random() < 0.5):
            self.server.answer(self.asked.popleft())
        else:
            self.server.wire.popleft()(self.mirror)
            self.take()
        return True

    def settle(self) -> None:
        while self.step():
            pass

    def reconnect(self) -> None:
        self.server.break_connection()
        self.asked.clear()
        for _ in range(self.rng.randrange(6)):
            self.server.change(self.rng)
        self.mirror.connected()
        self.take()


def _below(nodes: dict[str, Stat], roots: list[str]) -> dict[str, Stat]:
    return {
        path: stat
        for path, stat in nodes.items()
        if path != "/" and any(r in {"/", path} or path.startswith(r + "/") for r in roots)
    }


def _check(before: dict[str, Stat], told: list[WatchEvent], after: dict[str, Stat]) -> None:
    known = set(before)
    for event in told:
        match event.kind:
            case WatchKind.CREATED:
                assert event.path not in known, event
                known.add(event.path)
            case WatchKind.CHANGED:
                assert event.path in known, event
            case WatchKind.DELETED:
                assert not any(path.startswith(event.path + "/") for path in known), event
                known.remove(event.path)
    assert known == set(after)
    named = {event.path for event in told}
    assert {path for path in before | after if before.get(path) != after.get(path)} <= named


@pytest.mark.parametrize("seed", range(300))
def test_what_is_told_leads_from_the_first_tree_to_the_last(seed: int) -> None:
    rng = random.Random(seed)
    server = Server()
    client = Client(server, rng)
    for _ in range(rng.randrange(12)):
        server.change(rng)
    roots = rng.sample(ROOTS, rng.randint(1, 3))
    for root in roots:
        client.mirror.add_root(root)
    client.take()
    assert not client.mirror.is_settled
    client.settle()
    assert client.mirror.is_settled
    assert client.told == []
    for _ in range(8):
        before = _below(server.nodes, roots)
        client.told = []
        for _ in range(rng.randrange(30)):
            match rng.random():
                case draw if draw < 0.35:
                    server.change(rng)
                case draw if draw < 0.37:
                    client.reconnect()
                case _:
                    client.step()
        client.settle()
        _check(before, client.told, _below(server.nodes, roots))
        if len(roots) > 1 and rng.random() < 0.2:
            client.mirror.remove_root(roots.pop())
            client.take()
            client.settle()
    assert client.mirror.node_count == len(_below(server.nodes, roots)) + ("/" in roots)


@pytest.mark.parametrize("seed", range(100))
def test_a_first_look_that_is_interrupted_is_finished(seed: int) -> None:
    rng = random.Random(seed)
    server = Server()
    client = Client(server, rng)
    for _ in range(20):
        server.change(rng)
    client.mirror.add_root("/t")
    client.take()
    for _ in range(5):
        for _ in range(rng.randrange(6)):
            client.step()
        server.break_connection()
        client.asked.clear()
        client.mirror.connected()
        client.take()
    assert client.told == []
    client.settle()
    assert client.mirror.is_settled
    assert client.told == []
    assert client.mirror.node_count == len(_below(server.nodes, ["/t"]))


def test_a_lost_session_watches_nothing() -> None:
    server = Server()
    client = Client(server, random.Random(0))
    client.mirror.add_root("/t")
    client.mirror.lost()
    client.mirror.connected()
    client.take()
    assert not client.asked
    assert client.mirror.is_settled
