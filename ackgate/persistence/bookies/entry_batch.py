"""Entries of one ledger on their way to one bookie.

Pure. Encoded once, by the writer; journal, write cache and fragment file all hold the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from ackgate.persistence.bookies.entry_codec import StoredEntry, encode_stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ackgate.errors import AckGateError


class EntryBatch(NamedTuple):
    """Encoded entries of one ledger, by ascending id."""

    ledger_id: int
    fragment_id: int
    """First entry id of the fragment that they belong to."""
    first_entry_id: int
    last_entry_id: int
    """No entry in it is above; with striping the last one may be below."""
    entry_count: int
    encoded: bytes


class AddSink(Protocol):
    """Receives the results of adds to a bookie. Called on the loop."""

    @property
    def ledger_id(self) -> int: ...

    @property
    def is_recovery(self) -> bool:
        """Whether fencing does not apply: the one who fenced the ledger is mending it."""

    def synced(self, last_entry_id: int) -> None:
        """All adds of this sink up to this entry are on stable storage."""

    def failed(self, error: AckGateError) -> None:
        """The last adds were not written; the next may fail as well."""

    def fenced(self) -> None:
        """The ledger was fenced there; nothing more is confirmed."""


def batch_of(entries: Sequence[StoredEntry], fragment_id: int) -> EntryBatch:
    """A batch of entries that were read, byte for byte as they were.

    All of one ledger, ascending.
    """
    return EntryBatch(
        entries[0].ledger_id,
        fragment_id,
        entries[0].entry_id,
        entries[-1].entry_id,
        len(entries),
        b"".join(map(encode_stored, entries)),
    )


def runs(entries: Iterable[StoredEntry]) -> Iterator[list[StoredEntry]]:
    """Cut a mixed sequence into runs of one ledger with ascending entry ids."""
    run: list[StoredEntry] = []
    for entry in entries:
        if run and (entry.ledger_id != run[-1].ledger_id or entry.entry_id <= run[-1].entry_id):
            yield run
            run = []
        run.append(entry)
    if run:
        yield run


def portions(run: Sequence[StoredEntry], bytes_max: int) -> Iterator[Sequence[StoredEntry]]:
    """Cut a run into parts of about so many payload bytes, each at least one entry."""
    start = size = 0
    for index, entry in enumerate(run):
        size += len(entry.payload)
        if size >= bytes_max:
            yield run[start : index + 1]
            start, size = index + 1, 0
    if start < len(run):
        yield run[start:]
