"""The Java client reads what we write, we read what it writes, and either recovers and fences the other."""

import asyncio
import sys

import pytest
import uvloop

from ackgate.bookkeeper import BookKeeperClient
from ackgate.errors import LedgerFencedError, MetadataConflictError
from ackgate.persistence import DigestType, LedgerOptions, LedgerState
from tests.support.bookkeeper.oracle import Entry

pytestmark = pytest.mark.slow

QUORUMS = [(3, 3, 2), (3, 2, 2), (1, 1, 1)]
JAVA_NAMES = {
    DigestType.CRC32C: "CRC32C",
    DigestType.CRC32: "CRC32",
    DigestType.MAC: "MAC",
    DigestType.DUMMY: "DUMMY",
}
FORMS = [(digest, quorums) for digest in (DigestType.CRC32C,) for quorums in QUORUMS] + [
    (digest, (3, 2, 2)) for digest in DigestType if digest is not DigestType.CRC32C
]
COUNT = 200


def payloads_of(count):
    return [b"entry %d" % i for i in range(count)]


def as_java_reads(payloads):
    return [Entry.of(i, payload) for i, payload in enumerate(payloads)]


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "left open"])
@pytest.mark.parametrize(("digest", "quorums"), FORMS)
async def test_java_reads_what_we_wrote(
    real_bookkeeper, connect, java_client, digest, quorums, closes
):
    client = await connect(real_bookkeeper)
    options = LedgerOptions(*quorums, digest_type=digest, password=b"secret")
    writer = await client.create(options)
    payloads = [b"x" * (i % 90) + b"%d" % i for i in range(COUNT)]
    for at in range(0, COUNT, 20):
        await writer.append(payloads[at : at + 20]).durable
    if closes:
        await writer.close()
    found = java_client.read(writer.ledger_id, JAVA_NAMES[digest], "secret")
    assert found == as_java_reads(payloads)
    if not closes:
        with pytest.raises(LedgerFencedError):
            await writer.add_entry(b"late")
        metadata = await client.metadata(writer.ledger_id)
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, COUNT - 1)


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "left open"])
@pytest.mark.parametrize(("digest", "quorums"), FORMS)
async def test_we_read_what_java_wrote(
    real_bookkeeper, connect, java_client, digest, quorums, closes
):
    ledger_id = java_client.write(JAVA_NAMES[digest], "secret", quorums, COUNT, closes=closes)
    client = await connect(real_bookkeeper)
    if not closes:
        beside = await client.open_without_recovery(ledger_id, password=b"secret")
        assert beside.last_add_confirmed == COUNT - 2, "what the next add would have announced"
        assert await beside.last_entry_found() == COUNT - 1
    reader = await client.open(ledger_id, password=b"secret")
    assert reader.last_add_confirmed == COUNT - 1
    payloads = payloads_of(COUNT)
    assert [e.payload for e in await reader.read(0, COUNT - 1)] == payloads
    assert reader.length_bytes == sum(map(len, payloads))
    assert java_client.read(ledger_id, JAVA_NAMES[digest], "secret") == as_java_reads(payloads)


async def test_the_example_does_what_it_says(real_bookkeeper):
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "examples/bookkeeper_ledger.py",
        real_bookkeeper.uri,
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await program.communicate()
    assert program.returncode == 0
    lines = said.decode().splitlines()
    assert lines[0].endswith("1000 entries are confirmed")
    assert lines[1] == "its successor reads 1000 entries, 8890 bytes"
    assert lines[2].startswith("its writer: ledger")


def test_it_runs_on_uvloop_too(real_bookkeeper):
    async def main():
        client = await BookKeeperClient.connect(real_bookkeeper.uri)
        writer = await client.create(LedgerOptions(3, 2, 2))
        await writer.append([b"%d" % i for i in range(500)]).durable
        entries = await (await client.open(writer.ledger_id)).read(0, 499)
        await client.close()
        return [entry.payload for entry in entries]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == [b"%d" % i for i in range(500)]


async def test_an_id_of_which_bookies_have_entries_is_not_used_again(real_bookkeeper, connect):
    """As when ZooKeeper was put back to before the ledger, and its counter with it."""
    client = await connect(real_bookkeeper)
    options = LedgerOptions(3, 3, 2)
    writer = await client.create(options)
    await writer.add_entry(b"old")
    await writer.close()
    await client.delete(writer.ledger_id)
    with pytest.raises(MetadataConflictError, match="has entries of it"):
        await client.create(options, ledger_id=writer.ledger_id)
    empty = await client.create(options)
    await empty.close()
    await client.delete(empty.ledger_id)
    again = await client.create(options, ledger_id=empty.ledger_id)
    assert await again.add_entry(b"new") == 0
