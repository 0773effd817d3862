"""Ledgers begun and deleted on one bookie: simultaneous calls share one sync.

Edge: tasks on the loop; the work itself is the register's, in the bookie's storage lane.

A bookie that cannot write a ledger's origin (its disk is full, or hangs) still takes the ledger's entries
if it can: the origin stays in memory until a round succeeds. A ledger id that the bookie has already is
rejected at once, for good.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.errors import AckGateError, ConfigurationError, StorageError
from ackgate.persistence.bookies.register import Mark

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from ackgate.persistence.bookies.origins import LedgerOrigin
    from ackgate.persistence.bookies.register import LedgerRegister

logger = logging.getLogger(__name__)

_LATE_MAX: Final = 10_000
"""Origins kept in memory while the disk takes none; beyond it the oldest are dropped."""


class _Beginning(NamedTuple):
    """A ledger that waits for the next round."""

    origin: LedgerOrigin
    answer: asyncio.Future[AckGateError | None]


class RegisterRounds:
    """What is waiting to be begun or deleted on one bookie, and the round that runs."""

    def __init__(
        self,
        bookie_name: str,
        register: LedgerRegister,
        on_storage: Callable[[Callable[[], set[int]]], Awaitable[set[int]]],
        holds: Callable[[Collection[int]], set[int]],
    ) -> None:
        """`holds`: of which ledgers entries are here; asked in the storage lane."""
        self._name = bookie_name
        self._register = register
        self._on_storage = on_storage
        self._holds = holds
        self._mark = Mark()
        self._beginning: dict[int, _Beginning] = {}
        self._deleting: set[int] = set()
        self._late: dict[int, LedgerOrigin] = {}
        self._round: asyncio.Task[AckGateError | None] | None = None

    @property
    def late_count(self) -> int:
        """Origins that are not on disk yet."""
        return len(self._late)

    def begin(self, origin: LedgerOrigin, mark: Mark) -> asyncio.Future[AckGateError | None]:
        """Answered when the origin of a new ledger is durable: None, or why it is not.

        `ConfigurationError` if the bookie has a ledger of this id, `StorageError` if the origin
        cannot be written now.
        """
        self._mark = self._mark.with_(mark)
        answer: asyncio.Future[AckGateError | None] = asyncio.get_running_loop().create_future()
        waiting = self._beginning.get(origin.ledger_id)
        if waiting is not None and not waiting.answer.cancelled():
            answer.set_result(self._taken(origin.ledger_id))
            return answer
        self._beginning[origin.ledger_id] = _Beginning(origin, answer)
        self._running()
        return answer

    def put_off(self, origin: LedgerOrigin) -> asyncio.Future[AckGateError | None]:
        """Write it when the disk takes it. The answer is there already."""
        self._late[origin.ledger_id] = origin
        while len(self._late) > _LATE_MAX:
            del self._late[next(iter(self._late))]
        answer: asyncio.Future[AckGateError | None] = asyncio.get_running_loop().create_future()
        answer.set_result(None)
        return answer

    def try_late(self) -> None:
        """The disk takes writes: so it may take these."""
        if self._late:
            self._running()

    async def delete(self, ledger_id: int) -> None:
        """Return when it is durable that the ledger was deleted. Raises `StorageError`."""
        self._late.pop(ledger_id, None)
        self._deleting.add(ledger_id)
        while ledger_id in self._deleting:
            error = await asyncio.shield(self._running())
            if error is not None:
                raise error

    def _running(self) -> asyncio.Task[AckGateError | None]:
        if self._round is None:
            self._round = asyncio.get_running_loop().create_task(self._run())
        return self._round

    async def _run(self) -> AckGateError | None:
        """One round: why it failed, or None."""
        beginning, self._beginning = self._beginning, {}
        deleting, mark = set(self._deleting), self._mark
        new = {i: each.origin for i, each in beginning.items()}
        late = {i: origin for i, origin in self._late.items() if i not in new}

        def write() -> set[int]:
            if deleting:
                self._register.delete(sorted(deleting))
            held = self._holds(new)
            origins = [origin for i, origin in new.items() if i not in held]
            return held | self._register.begin([*origins, *late.values()], mark)

        taken: set[int] = set()
        error: AckGateError | None = None
        try:
            taken = await self._on_storage(write)
        except AckGateError as caught:
            error = caught
        except BaseException:
            for each in beginning.values():
                each.answer.cancel()
            raise
        finally:
            self._round = None
            if self._beginning:
                self._running()
        if error is None:
            self._deleting -= deleting
            for ledger_id, origin in late.items():
                if self._late.get(ledger_id) is origin:
                    del self._late[ledger_id]
        elif late and not beginning:
            logger.warning("origins of ledgers are not written yet: %s", error)
        for ledger_id, each in beginning.items():
            if isinstance(error, StorageError):
                self.put_off(each.origin)
            if not each.answer.done():
                each.answer.set_result(self._taken(ledger_id) if ledger_id in taken else error)
        return error

    def _taken(self, ledger_id: int) -> ConfigurationError:
        return ConfigurationError(
            f"{self._name} has a ledger {ledger_id} already: the metadata store has given"
            " its id out a second time, so it is older than the bookie; stop the broker and run"
            " `ackgate ledgers adopt` (docs/operations.md, Backup and restore)"
        )
