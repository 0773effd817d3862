"""Ledgers begun and deleted on one bookie: simultaneous calls share one sync.

Edge: tasks on the loop; the work itself is the register's, in the bookie's storage lane.

A bookie that cannot write a ledger's origin (its disk is full, or hangs) still takes the ledger's entries
if it can: the origin stays in memory until a round succeeds. A ledger id that the bookie has already is
rejected at once, for good.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ackgate.errors import ConfigurationError, StorageError
from ackgate.persistence.bookies.register import Mark

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ackgate.persistence.bookies.register import LedgerOrigin, LedgerRegister

logger = logging.getLogger(__name__)

_LATE_MAX: Final = 10_000
"""Origins kept in memory while the disk takes none; beyond it the oldest are dropped."""


class RegisterRounds:
    """What is waiting to be begun or deleted on one bookie, and the round that runs."""

    def __init__(
        self,
        bookie_name: str,
        register: LedgerRegister,
        on_storage: Callable[[Callable[[], set[int]]], Awaitable[set[int]]],
        holds: Callable[[int], bool],
    ) -> None:
        """`holds`: whether entries of a ledger are here; asked in the storage lane."""
        self._name = bookie_name
        self._register = register
        self._on_storage = on_storage
        self._holds = holds
        self._mark = Mark()
        self._beginning: dict[int, LedgerOrigin] = {}
        self._deleting: set[int] = set()
        self._late: dict[int, LedgerOrigin] = {}
        self._round: asyncio.Task[set[int]] | None = None

    @property
    def late_count(self) -> int:
        """Origins that are not on disk yet."""
        return len(self._late)

    async def begin(self, origin: LedgerOrigin, mark: Mark) -> None:
        """Return when the origin of a new ledger is durable.

        Raises `ConfigurationError` if the bookie has a ledger of this id, `StorageError` if the
        origin cannot be written now.
        """
        self._mark = self._mark.with_(mark)
        self._beginning[origin.ledger_id] = origin
        taken: set[int] = set()
        try:
            while origin.ledger_id in self._beginning:
                taken = await asyncio.shield(self._running())
        except StorageError:
            if self._beginning.pop(origin.ledger_id, None) is not None:
                self.put_off(origin)
            raise
        if origin.ledger_id in taken:
            raise ConfigurationError(
                f"{self._name} has a ledger {origin.ledger_id} already: the metadata store has given"
                " its id out a second time, so it is older than the bookie; stop the broker and run"
                " `ackgate ledgers adopt` (docs/operations.md, Backup and restore)"
            )

    def put_off(self, origin: LedgerOrigin) -> None:
        """Write it when the disk takes it."""
        self._late[origin.ledger_id] = origin
        while len(self._late) > _LATE_MAX:
            del self._late[next(iter(self._late))]

    def try_late(self) -> None:
        """The disk takes writes: so it may take these."""
        if self._late and self._round is None:
            self._beginning.update(self._late)
            self._running().add_done_callback(_log_failure)

    async def delete(self, ledger_id: int) -> None:
        """Return when it is durable that the ledger was deleted. Raises `StorageError`."""
        self._late.pop(ledger_id, None)
        self._deleting.add(ledger_id)
        while ledger_id in self._deleting:
            await asyncio.shield(self._running())

    def _running(self) -> asyncio.Task[set[int]]:
        if self._round is None:
            self._round = asyncio.get_running_loop().create_task(self._run())
        return self._round

    async def _run(self) -> set[int]:
        beginning, deleting, mark = dict(self._beginning), set(self._deleting), self._mark
        late = frozenset(self._late)

        def write() -> set[int]:
            if deleting:
                self._register.delete(sorted(deleting))
            held = {i for i in beginning if i not in late and self._holds(i)}
            new = [origin for i, origin in beginning.items() if i not in held]
            return held | self._register.begin(new, mark)

        try:
            taken = await self._on_storage(write)
        except StorageError:
            for ledger_id in late:
                self._beginning.pop(ledger_id, None)
            raise
        finally:
            self._round = None
        for ledger_id in beginning:
            self._beginning.pop(ledger_id, None)
            self._late.pop(ledger_id, None)
        self._deleting -= deleting
        return taken


def _log_failure(done: asyncio.Task[set[int]]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        logger.warning("origins of ledgers are not written yet: %s", error)
