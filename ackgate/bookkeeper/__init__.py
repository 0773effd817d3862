"""A client of real BookKeeper clusters on asyncio, to be used alone: docs/bookkeeper.md.

Edge; needs the extra ``bookkeeper``. It writes, reads, fences, recovers and deletes the ledgers that the
Java client does, and the reverse.
"""

from __future__ import annotations

from ackgate.extras import named_extras
from ackgate.persistence.ports import (
    AppendTicket,
    DigestType,
    Fragment,
    LedgerEntry,
    LedgerMetadata,
    LedgerOptions,
    LedgerReader,
    LedgerState,
    LedgerWriter,
    UnrecoveredReader,
)

with named_extras("bookkeeper"):
    from ackgate.persistence.bookkeeper import BookKeeperClient, BookKeeperSettings

__all__ = [
    "AppendTicket",
    "BookKeeperClient",
    "BookKeeperSettings",
    "DigestType",
    "Fragment",
    "LedgerEntry",
    "LedgerMetadata",
    "LedgerOptions",
    "LedgerReader",
    "LedgerState",
    "LedgerWriter",
    "UnrecoveredReader",
]
