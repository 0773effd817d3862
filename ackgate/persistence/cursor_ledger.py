"""Cursor ledgers: made, appended to, removed, and found again when a crash left one behind.

Edge: the ledger client. What may be appended next is up to the ledger's `RecordChain`.

Each ledger names its cursor in its custom metadata, so that one which no node refers to any more
can be recognised and deleted.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final, Self

from ackgate.errors import AckGateError, NoSuchLedgerError
from ackgate.persistence.cursor_node import decode_cursor_node
from ackgate.persistence.ports import DigestType, LedgerOptions
from ackgate.persistence.record_chain import RecordChain
from ackgate.persistence.unnamed_ledgers import find_unnamed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackgate.config.persistence import PersistenceSettings
    from ackgate.persistence.ports import LedgerClient, LedgerWriter, MetadataStore
    from ackgate.persistence.records import CursorRecord

log = logging.getLogger(__name__)

CURSOR_PATH_KEY: Final = "ackgate/cursor"
"""Custom metadata: the node of the cursor that a ledger belongs to."""


class CursorLedger:
    """One cursor ledger, open for writing."""

    __slots__ = ("_writer", "chain", "ledger_id")

    chain: RecordChain
    """What it holds, as far as it decides what may follow."""

    def __init__(self, writer: LedgerWriter, *, now: float) -> None:
        self._writer = writer
        self.chain = RecordChain(opened_at=now)
        self.ledger_id = writer.ledger_id

    @classmethod
    async def create(
        cls, client: LedgerClient, path: str, settings: PersistenceSettings, *, now: float
    ) -> Self:
        """Make a new, empty ledger for the cursor at `path`. Raises `StorageError`."""
        return cls(await client.create(ledger_options(path, settings)), now=now)

    @property
    def last_entry_id(self) -> int:
        """The last entry appended, -1 before the first."""
        return self.chain.entry_count - 1

    async def append(
        self, record: CursorRecord, encoded: bytes, settings: PersistenceSettings
    ) -> int:
        """Write a record and wait until it is durable. Returns the bytes written.

        After any error the ledger's tail is unknown and nothing more may be appended.
        """
        entries = self.chain.begin(record, encoded, settings)
        await self._writer.append(entries).durable
        self.chain.appended(record, encoded, entry_count=len(entries))
        return sum(map(len, entries))

    async def close(self) -> None:
        """Close the handle; a failure changes nothing, since recovery closes the ledger then."""
        with contextlib.suppress(AckGateError):
            await self._writer.close()


def ledger_options(path: str, settings: PersistenceSettings) -> LedgerOptions:
    """How the ledger of the cursor at `path` is to be stored."""
    return LedgerOptions(
        ensemble_size=settings.managed_ledger_default_ensemble_size,
        write_quorum=settings.managed_ledger_default_write_quorum,
        ack_quorum=settings.managed_ledger_default_ack_quorum,
        digest_type=DigestType(settings.managed_ledger_digest_type),
        password=ledger_password(settings),
        custom_metadata={
            "application": b"ackgate",
            "component": b"cursor",
            CURSOR_PATH_KEY: path.encode(),
        },
    )


def ledger_password(settings: PersistenceSettings) -> bytes:
    """The key of the ledgers' digests."""
    return settings.managed_ledger_password.get_secret_value().encode()


async def delete_ledger(client: LedgerClient, ledger_id: int) -> bool:
    """Delete a ledger that nothing refers to. False when that must be tried again later."""
    try:
        await client.delete(ledger_id)
    except NoSuchLedgerError:
        return True
    except AckGateError as error:
        log.warning("cursor ledger %d could not be deleted yet: %s", ledger_id, error)
        return False
    return True


async def find_orphan_cursor_ledgers(
    client: LedgerClient, metadata: MetadataStore, candidates: Iterable[int]
) -> list[int]:
    """Those of the candidates that are cursor ledgers and that their cursor's node does not name."""
    return await find_unnamed(
        client,
        metadata,
        candidates,
        path_key=CURSOR_PATH_KEY,
        is_named=lambda value, path, ledger_id: (
            decode_cursor_node(value, path=path).cursor_ledger_id == ledger_id
        ),
    )
