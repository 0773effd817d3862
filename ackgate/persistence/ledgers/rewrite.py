"""Entries written to a bookie a second time, byte for byte: by recovery, and by the auditor.

Edge. The fence of the ledger does not apply: these entries are part of it already.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ackgate.persistence.bookies.entry_codec import batch_of
from ackgate.persistence.system.futures import fail, resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.errors import AckGateError
    from ackgate.persistence.bookies.bookie import Bookie
    from ackgate.persistence.bookies.entry_codec import StoredEntry


async def rewrite(bookie: Bookie, entries: Sequence[StoredEntry], fragment_id: int) -> None:
    """Write entries of one ledger, ascending; return when they are durable.

    Raises `StorageError`.
    """
    sink = _Rewrite(entries[0].ledger_id)
    bookie.add(batch_of(entries, fragment_id), sink)
    await sink.done


class _Rewrite:
    """The adds of one rewritten entry, as their `AddSink`."""

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.is_recovery = True
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def synced(self, last_entry_id: int) -> None:  # noqa: ARG002
        resolve(self.done)

    def failed(self, error: AckGateError) -> None:
        fail(self.done, error)

    def fenced(self) -> None:
        """Never called: the writer here is the one that fences."""
