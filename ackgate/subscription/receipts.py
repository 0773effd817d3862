"""Receipts that wait until their acks are durable. Pure.

Versions only grow and every receipt waits equally long, so one queue is in order of both::

    ask    v7  v7  v9  v12  v12          durable(9) takes the first three,
    until  +30 s ------------->          expire(now) those that waited too long

Invariant: each receipt is answered once, with success only when its version is durable.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic

from ackgate.errors import PersistTimeoutError
from ackgate.subscription.entries import ConsumerT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.errors import AckGateError
    from ackgate.subscription.ready import Receipt


class ReceiptQueue(Generic[ConsumerT]):
    """The receipts of one subscription."""

    __slots__ = ("_answered", "_waiting", "durable_version")

    def __init__(self, durable_version: int) -> None:
        self._waiting: deque[tuple[int, Receipt[ConsumerT]]] | None = None
        """(deadline in ms, receipt). None until the first: an empty deque takes 700 bytes."""
        self._answered: list[Receipt[ConsumerT]] = []
        self.durable_version = durable_version
        """Everything up to this version is durable."""

    def __len__(self) -> int:
        return len(self._waiting or ())

    @property
    def next_deadline_ms(self) -> int | None:
        """When the oldest receipt has waited too long; None: none waits."""
        return self._waiting[0][0] if self._waiting else None

    def ask(self, receipt: Receipt[ConsumerT], deadline_ms: int) -> None:
        """Answer the receipt when its version is durable, or with an error at the deadline."""
        if receipt.version <= self.durable_version:
            self._answered.append(receipt)
        else:
            if self._waiting is None:
                self._waiting = deque()
            self._waiting.append((deadline_ms, receipt))

    def answer(self, receipt: Receipt[ConsumerT]) -> None:
        """Answer the receipt now, durable or not."""
        self._answered.append(receipt)

    def durable(self, version: int) -> None:
        """Answer the receipts up to this version: it is durable."""
        self.durable_version = max(self.durable_version, version)
        waiting = self._waiting
        while waiting and waiting[0][1].version <= self.durable_version:
            self._answered.append(waiting.popleft()[1])

    def expire(self, now_ms: int) -> None:
        """Answer receipts that have waited too long with `PersistTimeoutError`."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= now_ms:
            receipt = waiting.popleft()[1]
            error = PersistTimeoutError(
                f"the ack is applied, but its version {receipt.version} did not become durable in time"
            )
            self._answered.append(receipt._replace(error=error))

    def fail(self, error: AckGateError) -> None:
        """Answer every receipt that waits with this error: no write will ever come."""
        self._answered += [receipt._replace(error=error) for _, receipt in self._waiting or ()]
        self._waiting = None

    def take(self) -> Sequence[Receipt[ConsumerT]]:
        """Take the receipts that were answered since the last call."""
        if not self._answered:
            return ()
        taken, self._answered = self._answered, []
        return taken

    def check(self) -> None:
        versions = [receipt.version for _, receipt in self._waiting or ()]
        assert versions == sorted(versions)
        assert not versions or versions[0] > self.durable_version
