"""The dumbest cursor that could be right: sets of positions, everything recomputed every time."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from ackgate.cursor import Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ackgate.cursor import CursorGrowth, CursorSnapshot


@dataclass
class TopicModel:
    """Ledger id -> number of entries, and what was there once."""

    ledgers: dict[int, int] = field(default_factory=dict)
    trimmed: list[Position] = field(default_factory=list)
    newest_ever: int = 0

    def entries(self) -> list[Position]:
        return [
            Position(id_, e) for id_, count in sorted(self.ledgers.items()) for e in range(count)
        ]

    def trim(self, ledger_id: int) -> None:
        count = self.ledgers.pop(ledger_id)
        if count:
            self.trimmed.append(Position(ledger_id, count - 1))

    def after(self, position: Position) -> Position:
        """The next existing entry, or where the next one is expected."""
        later = [entry for entry in self.entries() if entry > position]
        if later:
            return later[0]
        newest = max(self.ledgers)
        return Position(newest, self.ledgers[newest])

    def at_or_after(self, position: Position) -> Position:
        return position if position in self.entries() else self.after(position)

    def before(self, position: Position) -> Position:
        earlier = [entry for entry in self.entries() if entry < position]
        return earlier[-1] if earlier else Position(position.ledger_id, -1)


def runs(entries: Iterable[Position]) -> list[tuple[int, int, int]]:
    """Maximal runs, per ledger, half-open."""
    found: list[tuple[int, int, int]] = []
    for ledger_id, entry_id in sorted(entries):
        if found and found[-1][0] == ledger_id and found[-1][2] == entry_id:
            found[-1] = (ledger_id, found[-1][1], entry_id + 1)
        else:
            found.append((ledger_id, entry_id, entry_id + 1))
    return found


class CursorModel:
    """Acked and partly acked positions above a mark-delete."""

    def __init__(self, topic: TopicModel, mark_delete: Position) -> None:
        self.topic = topic
        self.mark_delete = mark_delete
        self.acked: set[Position] = set()
        self.unacked: dict[Position, int] = {}
        self.properties: dict[str, int] = {}
        self.read_position = topic.after(mark_delete)
        self.forced_at: Position | None = None
        self.is_pure = False

    def persisted(self) -> object:
        """All that a snapshot holds; the version changes exactly when this does."""
        return (
            self.mark_delete,
            frozenset(self.acked),
            frozenset(self.unacked.items()),
            frozenset(self.properties.items()),
        )

    def is_acked(self, position: Position) -> bool:
        return position <= self.mark_delete or position in self.acked

    def is_refused(self, position: Position) -> bool:
        return position.entry_id < 0 or not (
            position <= self.mark_delete or position in self.topic.entries()
        )

    def backlog(self) -> list[Position]:
        return [entry for entry in self.topic.entries() if not self.is_acked(entry)]

    def hole_count(self) -> int:
        """Unacked runs (over borders) with something acked behind them."""
        if not self.acked:
            return 0
        behind = [
            self.is_acked(entry)
            for entry in self.topic.entries()
            if self.mark_delete < entry <= max(self.acked)
        ]
        return sum(not before and now for before, now in pairwise(behind))

    def settle(self) -> None:
        while (following := self.topic.after(self.mark_delete)) in self.acked:
            self.mark_delete = following
        self.acked = {entry for entry in self.acked if entry > self.mark_delete}
        self.unacked = {p: m for p, m in self.unacked.items() if not self.is_acked(p)}
        if self.read_position <= self.mark_delete and self.mark_delete != self.forced_at:
            self.read_position = self.topic.after(self.mark_delete)

    def ack(self, positions: Iterable[Position]) -> int:
        new = {position for position in positions if not self.is_acked(position)}
        self.acked |= new
        self.settle()
        return len(new)

    def ack_indexes(self, position: Position, mask: int) -> int:
        if self.is_acked(position):
            return 0
        left = self.unacked.get(position, mask) & mask
        if left == 0:
            return self.ack([position])
        self.unacked[position] = left
        return 0

    def ack_through(self, position: Position) -> None:
        self.mark_delete = max(self.mark_delete, position)
        self.settle()

    def reset(self, position: Position) -> None:
        target = self.topic.at_or_after(position)
        before = self.persisted()
        self.mark_delete = self.topic.before(target)
        self.acked, self.unacked = set(), {}
        self.read_position = target
        self.is_pure &= self.persisted() == before

    def trimmed(self, ledger_id: int) -> None:
        first = min(self.topic.ledgers)
        for last in self.topic.trimmed:
            if last.ledger_id < first:
                self.ack_through(last)
        kept = {p for p in self.acked if p.ledger_id != ledger_id}
        unacked = {p: m for p, m in self.unacked.items() if p.ledger_id != ledger_id}
        self.is_pure &= len(kept) == len(self.acked) and len(unacked) == len(self.unacked)
        self.acked, self.unacked = kept, unacked
        self.settle()
        self.read_position = self.topic.at_or_after(self.read_position)


@dataclass(frozen=True)
class Folded:
    """What a reader of records knows: a snapshot and the growths after it."""

    version: int
    mark_delete: Position
    acked: frozenset[Position]
    unacked: Mapping[Position, int]
    properties: Mapping[str, int]

    @classmethod
    def of(cls, snapshot: CursorSnapshot) -> Folded:
        return cls(
            snapshot.version,
            snapshot.mark_delete,
            frozenset(_positions(snapshot)),
            dict(snapshot.unacked_indexes),
            dict(snapshot.properties),
        )

    def plus(self, growth: CursorGrowth) -> Folded:
        assert growth.base_version == self.version
        acked = self.acked | set(_positions(growth))
        unacked = {**self.unacked, **growth.unacked_indexes}
        return Folded(
            growth.version,
            growth.mark_delete,
            frozenset(entry for entry in acked if entry > growth.mark_delete),
            {p: m for p, m in unacked.items() if p > growth.mark_delete and p not in acked},
            self.properties if growth.properties is None else dict(growth.properties),
        )


def _positions(state: CursorSnapshot | CursorGrowth) -> list[Position]:
    return [Position(id_, entry) for id_, bitmap in state.acked.items() for entry in bitmap]
