"""Acks that wait to hear that they are durable.

Pure: it keeps callbacks and hands them back, and calls none. Versions are asked for in ascending
order, so what a write covers is always the front of the queue.

    asked   v3   v3   v7   v9         durable up to v7 -> the first three
            '--------------'
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Done: TypeAlias = Callable[[BaseException | None], None]


class ReceiptQueue(Protocol):
    """What a `CursorStore` keeps waiting acks in: made with whom to tell of overdue ones."""

    def __len__(self) -> int:
        """How many wait."""
        ...

    def add(self, version: int, timeout_seconds: float, done: Done) -> None:
        """Someone waits for `version` to be durable, so long. It is not durable yet."""
        ...

    def take_durable(self, version: int) -> Sequence[Done]:
        """This version is durable: remove and return those that wait for it or an earlier one."""
        ...

    def take_all(self) -> Sequence[Done]:
        """Remove and return everything: there will be no further write."""
        ...


class _Receipt(NamedTuple):
    version: int
    deadline: float
    done: Done


class Receipts:
    """The queue of one cursor."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        # Made when needed: an empty deque takes 700 bytes, and most cursors are idle.
        self._waiting: deque[_Receipt] | None = None

    def __len__(self) -> int:
        return len(self._waiting) if self._waiting is not None else 0

    @property
    def next_deadline(self) -> float | None:
        """When the oldest receipt is overdue."""
        return self._waiting[0].deadline if self._waiting else None

    def add(self, version: int, deadline: float, done: Done) -> None:
        """Someone waits for `version` to be durable."""
        waiting = self._waiting
        if waiting is None:
            waiting = self._waiting = deque()
        elif waiting and waiting[-1].version > version:
            version = waiting[-1].version  # later than needed, never earlier
        waiting.append(_Receipt(version, deadline, done))

    def take_durable(self, version: int) -> list[Done]:
        """Remove and return those whose version is reached."""
        taken: list[Done] = []
        waiting = self._waiting
        if waiting is not None:
            while waiting and waiting[0].version <= version:
                taken.append(waiting.popleft().done)
            if not waiting:
                self._waiting = None
        return taken

    def take_overdue(self, now: float) -> list[Done]:
        """Remove and return those whose deadline has come."""
        taken: list[Done] = []
        waiting = self._waiting
        while waiting and waiting[0].deadline <= now:
            taken.append(waiting.popleft().done)
        return taken

    def take_all(self) -> list[Done]:
        """Remove and return everything: there will be no further write."""
        taken = [receipt.done for receipt in self._waiting or ()]
        self._waiting = None
        return taken
