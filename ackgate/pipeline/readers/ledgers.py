"""Rows of the table `ledgers`: what the metadata says of each fragment, and which files hold it.

Edge: lists the bookies' directories, each once for all ledgers of a task; opens no file.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ackgate.persistence.ledger_owner import owner_of
from ackgate.persistence.nodes.paths import HIDDEN_CURSORS
from ackgate.persistence.ports import LedgerState
from ackgate.pipeline.schema.tables import LEDGERS, arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ackgate.persistence.ports import LedgerMetadata
    from ackgate.pipeline.schema.tables import Column
    from ackgate.pipeline.storage.bookie_files import FoundFile
    from ackgate.pipeline.storage.reading import OpenPlaces

BATCH_ROWS: Final = 4096

_ROLES: Final = {"message": "messages"}
"""Where the table's word is not the owner's."""


def ledger_rows(
    bookies: OpenPlaces, ledgers: Iterable[LedgerMetadata], columns: Sequence[Column]
) -> Iterator[pa.RecordBatch]:
    """A row for each fragment, ledgers in this order. Raises `StorageError`."""
    schema = arrow_schema(columns)
    # To list directories takes longer than all else here.
    is_listing = LEDGERS.column("files") in columns
    rows = (
        row
        for about in ledgers
        for row in fragment_rows(about, bookies.files_of(about.ledger_id) if is_listing else [])
    )
    while group := list(islice(rows, BATCH_ROWS)):
        yield rows_batch(group, schema)


def rows_batch(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """The schema's columns of these rows."""
    arrays = [pa.array([row[field.name] for row in rows], type=field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def fragment_rows(about: LedgerMetadata, files: Sequence[FoundFile]) -> Iterator[dict[str, Any]]:
    """The rows of one ledger of ours. A file counts for the fragment that its first entry lies in."""
    owner = owner_of(about)
    return owned_fragment_rows(
        about,
        files,
        role=_ROLES.get(owner.kind, owner.kind),
        topic=owner.topic or None,
        subscription=subscription_of(owner.cursor),
    )


def owned_fragment_rows(
    about: LedgerMetadata,
    files: Sequence[FoundFile] = (),
    *,
    role: str,
    topic: str | None,
    subscription: str | None,
) -> Iterator[dict[str, Any]]:
    """The rows of one ledger whose owner is known."""
    is_closed = about.state is LedgerState.CLOSED
    of_ledger = {
        "ledger_id": about.ledger_id,
        "role": role,
        "topic": topic,
        "subscription": subscription,
        "state": about.state.value,
        "created_ms": about.created_ms,
        "last_entry_id": about.last_entry_id if is_closed else None,
        "length_bytes": about.length_bytes if is_closed else None,
        "digest_type": about.digest_type.value,
        "write_quorum": about.write_quorum,
        "ack_quorum": about.ack_quorum,
    }
    firsts = [fragment.first_entry_id for fragment in about.fragments]
    ends = [*firsts[1:], max(about.last_entry_id + 1, firsts[-1]) if is_closed else None]
    for number, (fragment, end) in enumerate(zip(about.fragments, ends, strict=True)):
        behind = [*firsts, None][number + 1]
        yield {
            **of_ledger,
            "fragment": number,
            "first_entry_id": fragment.first_entry_id,
            "end_entry_id": end,
            "ensemble": list(fragment.ensemble),
            "files": [
                {"bookie": file.bookie_id, "file": file.path, "bytes": file.size}
                for file in files
                if fragment.first_entry_id <= file.first_entry_id
                and (behind is None or file.first_entry_id < behind)
            ],
        }


def subscription_of(cursor: str) -> str | None:
    """The subscription that a cursor is, if it is one."""
    return None if not cursor or cursor in HIDDEN_CURSORS else cursor
