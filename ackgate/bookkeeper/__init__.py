"""A client of real BookKeeper clusters on asyncio, to be used alone: docs/bookkeeper.md.

Edge; needs the extra ``bookkeeper``. It writes, reads, fences, recovers and deletes the ledgers that the
Java client does, and the reverse.
"""

from __future__ import annotations

from ackgate.extras import named_extras
from ackgate.persistence.ledgers.auditor import LedgerAudit
from ackgate.persistence.ledgers.replication import CopyFinding, EntryRanges, FragmentFinding
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
    from ackgate.persistence.bookkeeper import (
        LATENCY_BOUNDS_MS,
        BookieDiskSpace,
        BookieEndpoint,
        BookieLogin,
        BookieService,
        BookieState,
        BookieTls,
        BookieTraffic,
        BookKeeperClient,
        BookKeeperSettings,
        BookKeeperStatistics,
        KnownBookie,
        LatencyCounts,
    )

__all__ = [
    "LATENCY_BOUNDS_MS",
    "AppendTicket",
    "BookKeeperClient",
    "BookKeeperSettings",
    "BookKeeperStatistics",
    "BookieDiskSpace",
    "BookieEndpoint",
    "BookieLogin",
    "BookieService",
    "BookieState",
    "BookieTls",
    "BookieTraffic",
    "CopyFinding",
    "DigestType",
    "EntryRanges",
    "Fragment",
    "FragmentFinding",
    "KnownBookie",
    "LatencyCounts",
    "LedgerAudit",
    "LedgerEntry",
    "LedgerMetadata",
    "LedgerOptions",
    "LedgerReader",
    "LedgerState",
    "LedgerWriter",
    "UnrecoveredReader",
]
