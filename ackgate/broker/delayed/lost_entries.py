"""Entries that a tracker had and lost, with a snapshot that cannot be read: they are read again.

Edge. They lie behind the read position, unacked, and nobody else has them. Each is read from the
topic and offered to the tracker, as if the cursor had come by; what is due by now goes to the
dispatcher. When the cursor itself goes back over them (the last consumer has left), it reads them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ackgate.broker.reads import joined
from ackgate.cursor.position import Position
from ackgate.errors import AckGateError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyroaring import BitMap

    from ackgate.broker.entry import Entry
    from ackgate.broker.subscription import Subscription

log = logging.getLogger(__name__)

READ_ENTRIES_MAX: Final = 500
"""Entries that are read at a time."""

RETRY_SECONDS: Final = 1.0
"""Pause after a read that failed."""


class LostEntries:
    """Those of one subscription."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._lost: dict[int, BitMap] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def entry_count(self) -> int:
        """Entries that nobody has, until they are read."""
        return sum(map(len, self._lost.values()))

    def add(self, lost: Mapping[int, BitMap]) -> None:
        """The tracker has lost these."""
        for ledger_id, entries in lost.items():
            self._lost[ledger_id] = (
                self._lost[ledger_id] | entries if ledger_id in self._lost else entries
            )
        subscription = self._subscription
        log.warning(
            "subscription %s of %s: %d delayed entries are read again: their snapshot is lost",
            subscription.name,
            subscription.topic.name,
            self.entry_count,
        )
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Read no more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while self._lost:
                ledger_id = min(self._lost)
                entries = self._lost[ledger_id]
                group = entries[:READ_ENTRIES_MAX]
                positions = [Position(ledger_id, entry_id) for entry_id in group]
                if await self._read(positions):
                    entries -= group
                    if not entries:
                        self._lost.pop(ledger_id, None)
                else:
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._task = None

    async def _read(self, positions: list[Position]) -> bool:
        """Read and offer these; False: not now."""
        subscription = self._subscription
        wanted = [position for position in positions if self._is_lost(position)]
        try:
            entries = await subscription.topic.ledger.reads.read(joined(wanted))
        except AckGateError as error:
            log.warning(
                "subscription %s of %s: lost delayed entries cannot be read yet: %s",
                subscription.name,
                subscription.topic.name,
                error,
            )
            return False
        self._offer([entry for entry in entries if self._is_lost(entry.position)])
        return True

    def _is_lost(self, position: Position) -> bool:
        """Whether still nobody has it."""
        subscription = self._subscription
        cursor, dispatcher = subscription.cursor, subscription.dispatcher
        return (
            position < cursor.read_position
            and not cursor.is_acked(position)
            and position not in subscription.held
            and (dispatcher is None or dispatcher.holder(position) is None)
        )

    def _offer(self, entries: list[Entry]) -> None:
        subscription = self._subscription
        due = subscription.held.sift(
            entries,
            subscription.topic.parts.clock_ms(),
            is_active=subscription.topic.delayed_delivery.is_active,
        )
        if due and subscription.dispatcher is not None:
            subscription.dispatcher.queue_due([entry.position for entry in due])
        subscription.ask_round()
