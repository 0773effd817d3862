"""May this broker still deliver? Only while it is certain that nobody else owns its topics.

Edge. Fencing keeps a broker that was stopped (SIGSTOP, a frozen virtual machine) from *writing* once
another has taken over; it cannot keep it from sending what lies in its memory, and some of that may
have been acked at the new owner since. So a round of deliveries asks for the lease first, and waits
for it when it has run out: the session is asked for, and either it still lives, or it is lost and
the topics go.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ackgate.errors import AckGateError, ClosedHandleError, OwnershipError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackgate.persistence.ports import MetadataStore

log = logging.getLogger(__name__)

ASK_AGAIN_SECONDS: Final = 0.5
"""Pause before the session is asked for again when the metadata store cannot say."""


class Lease:
    """The lease of one broker on all that it owns."""

    __slots__ = ("_asking", "_metadata", "_waiting")

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._waiting: dict[object, Callable[[], None]] = {}
        self._asking: asyncio.Task[None] | None = None

    def holds(self) -> bool:
        """Whether everything that is owned is still owned, for certain."""
        return asyncio.get_running_loop().time() < self._metadata.lease_until

    def when_held(self, waiter: object, callback: Callable[[], None]) -> None:
        """Call back when it holds again; once per waiter, however often it asks.

        When the session is lost nobody is called: its topics are closed.
        """
        self._waiting[waiter] = callback
        if self._asking is None:
            log.warning("the session may have expired: deliveries wait until that is known")
            self._asking = asyncio.get_running_loop().create_task(self._ask())

    async def _ask(self) -> None:
        try:
            while not self.holds():
                try:
                    await self._metadata.children("/")
                except (OwnershipError, ClosedHandleError):
                    self._waiting.clear()
                    return
                except AckGateError as error:
                    log.debug("the session could not be asked for: %s", error)
                if not self.holds():
                    await asyncio.sleep(ASK_AGAIN_SECONDS)
        finally:
            self._asking = None
        waiting, self._waiting = self._waiting, {}
        for callback in waiting.values():
            callback()
