"""Reading a topic's closed ledgers, whatever became of their closing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ackgate.broker.wire.entry import ENTRY_FORM, Entry
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.cursor import MessageLedgers, Span
from ackgate.errors import AckGateError, DigestMismatchError
from ackgate.persistence import (
    BookieLedgerClient,
    LedgerEntry,
    LedgerOptions,
    LedgerState,
    MemoryMetadataStore,
    open_bookies,
)
from ackgate.persistence.messages.cache import EntryCache
from ackgate.persistence.messages.frame import seal_entry
from ackgate.persistence.messages.reads import MessageReads
from ackgate.persistence.metadata.memory import MemoryTree


async def test_a_ledger_whose_recovery_was_begun_and_left_is_read_to_its_end(
    tmp_path: Path,
) -> None:
    tree = MemoryTree()
    client = BookieLedgerClient(await open_bookies([tmp_path]), MemoryMetadataStore(tree))
    writer = await client.create(LedgerOptions())
    for number in range(3):
        await writer.add_entry(b"\x00\x00\x00\x00%d" % number)
    metadata = MemoryMetadataStore(tree)
    other = BookieLedgerClient(await open_bookies([tmp_path]), metadata)

    class _KilledError(AckGateError):
        """In the midst of its recovery."""

    def killed(*_: object) -> None:
        raise _KilledError

    for bookie in other.bookies:
        bookie.fence = killed  # type: ignore[assignment]
    with pytest.raises(_KilledError):
        await other.open(writer.ledger_id)
    await writer.close()
    assert (await client.metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY

    facts = MessageLedgers()
    facts.open_ledger(writer.ledger_id)
    facts.close_ledger(writer.ledger_id, 3)
    reads = MessageReads(client, b"", EntryCache(0), facts, form=ENTRY_FORM)
    found = await reads.read([Span(writer.ledger_id, 0, 3)])
    assert [entry.payload[-1:] for entry in found] == [b"0", b"1", b"2"]
    await client.close()
    await other.close()


async def test_what_lies_before_a_damaged_entry_is_read_and_each_bad_copy_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tree = MemoryTree()
    client = BookieLedgerClient(await open_bookies([tmp_path]), MemoryMetadataStore(tree))
    writer = await client.create(LedgerOptions())
    for number in range(300):
        await writer.add_entry(b"\x00\x00\x00\x00content %d." % number)
    await writer.close()
    await client.close()
    (file,) = tmp_path.glob("ledgers/*.avro")
    damaged = file.read_bytes().replace(b"content 200.", b"cOntent 200.")
    file.write_bytes(damaged)

    client = BookieLedgerClient(await open_bookies([tmp_path]), MemoryMetadataStore(tree))
    facts = MessageLedgers()
    facts.open_ledger(writer.ledger_id)
    facts.close_ledger(writer.ledger_id, 300)
    reads = MessageReads(client, b"", EntryCache(0), facts, form=ENTRY_FORM)
    before = await reads.read([Span(writer.ledger_id, 0, 200)])
    assert [entry.payload[-12:] for entry in before[199:]] == [b"content 199."]
    for _ in range(3):
        with pytest.raises(DigestMismatchError, match=f"entry {writer.ledger_id}:200: no copy"):
            await reads.read([Span(writer.ledger_id, 190, 210)])
    after = await reads.read([Span(writer.ledger_id, 201, 300)])
    assert len(after) == 99
    assert caplog.text.count(f"bad copy of entry {writer.ledger_id}:200 ") == 1
    await client.close()


@pytest.mark.parametrize(("claimed", "believed"), [(10, 10), (11, 1), (10**9, 1), (-1, 1), (0, 1)])
def test_a_stored_entry_counts_as_the_messages_that_it_can_hold(
    claimed: int, believed: int
) -> None:
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=claimed
    )
    stored = LedgerEntry(0, seal_entry(metadata.SerializeToString(), bytes(60)))
    assert Entry.stored(1, stored).message_count == believed
