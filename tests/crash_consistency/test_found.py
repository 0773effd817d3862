"""What the enumeration has found, each as small as it can be."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ackgate.errors import StorageError
from ackgate.persistence import BookieLedgerClient, DigestType, LedgerOptions
from ackgate.persistence.bookies.avro_container import block_head, container_header
from ackgate.persistence.bookies.entry_codec import CrcDigest, EntryEncoder
from ackgate.persistence.bookies.fragment_storage import DecodedBlocks, FragmentFile
from tests.crash_consistency.machine import Machine
from tests.support.simulation.disk import Operation, SimulatedFiles
from tests.support.simulation.inodes import KEPT, LOST, Fate, Unlink, Write

_DIRECTORY = Path("/d")


def lose_everything(files: SimulatedFiles) -> None:
    """A power loss that keeps nothing but what was synced."""
    files.settle({change.sequence: LOST for change in files.pending()})


async def entries(client: BookieLedgerClient, ledger_id: int) -> list[bytes]:
    reader = await client.open(ledger_id, password=b"p")
    return [entry.payload for entry in await reader.read(0, reader.last_add_confirmed)]


async def test_the_directory_itself_outlives_a_power_loss() -> None:
    machine = Machine(1, seed="1")
    client = await machine.open("first")
    writer = await client.create(LedgerOptions(password=b"p"))
    await writer.append([b"kept"]).durable
    lose_everything(machine.files)
    assert await entries(await machine.open("second"), writer.ledger_id) == [b"kept"]
    await client.close()


@pytest.mark.parametrize("kind", ["make_directory", "create", "append", "sync", "rename"])
async def test_a_directory_made_by_a_process_killed_over_it_is_durable_too(kind: str) -> None:
    """The second process finds the names and adds below them; they must not go with the power."""
    machine = Machine(1, seed=kind)

    def kill(operation: Operation) -> None:
        is_identity = "bookie.json" in operation.path or kind == "make_directory"
        if operation.kind == kind and operation.process == "first" and is_identity:
            machine.files.kill("first")

    machine.files.on_operation = kill
    with pytest.raises(StorageError, match="Input/output"):
        await machine.open("first")
    client = await machine.open("second")
    writer = await client.create(LedgerOptions(password=b"p"))
    await writer.append([b"kept"]).durable
    lose_everything(machine.files)
    assert await entries(await machine.open("third"), writer.ledger_id) == [b"kept"]
    await client.close()


async def test_entries_with_a_mac_are_kept_when_an_older_journal_file_comes_back() -> None:
    machine = Machine(1, seed="1")
    client = await machine.open("first")
    writer = await client.create(LedgerOptions(digest_type=DigestType.MAC, password=b"p"))
    await writer.append([b"in the first journal file"]).durable

    def take_back(operation: Operation) -> None:
        machine.files.fail("/data/bookies/0/journal", None)

    machine.files.fail("/data/bookies/0/journal", errno.EIO, {"append"})
    machine.files.on_operation = take_back
    await writer.append([b"in the second"]).durable
    machine.files.on_operation = None
    await client.bookies[0].checkpoint()
    removed = [
        change
        for change in machine.files.pending()
        if isinstance(change, Unlink) and change.name.endswith(".avro")
    ]
    assert [change.name for change in removed] == ["00000001.avro", "00000002.avro"]
    machine.files.settle(
        {change.sequence: KEPT for change in machine.files.pending()} | {removed[0].sequence: LOST}
    )
    assert await entries(await machine.open("second"), writer.ledger_id) == [
        b"in the first journal file",
        b"in the second",
    ]
    await client.close()


def test_nothing_is_appended_behind_a_damaged_stretch() -> None:
    """It would be taken for a part of it: damage ends where the next marker does."""
    encoder, marker = EntryEncoder(7, CrcDigest()), b"m" * 16

    def block(first: int, count: int) -> bytes:
        payloads = [b"entry %d" % (first + i) for i in range(count)]
        records = b"".join(encoder.encode(first, -1, 0, payloads, [len(p) for p in payloads]))
        return block_head(count, len(records)) + records + marker

    disk = SimulatedFiles().disk("p")
    disk.make_directory(_DIRECTORY)
    file = disk.create(_DIRECTORY / "fragment")
    file.append(container_header(marker) + block(0, 1))
    whole = file.size()
    damaged = block(1, 4)
    file.append(bytes(40) + damaged[40:] + block(5, 2))
    cut = FragmentFile(file, 7, DecodedBlocks(4)).cut_before(1)
    assert cut.size == whole
    assert cut.last_entry_id == 0
    assert [entry.entry_id for entry in cut.taken] == [5, 6]
    file.truncate(cut.size)
    file.append(block(1, 6))
    again = FragmentFile(file, 7, DecodedBlocks(4))
    assert [entry.entry_id for entry in again.read(0, 6)] == list(range(7))
    assert again.damages == []


@pytest.mark.parametrize("digest_type", [DigestType.CRC32C, DigestType.MAC])
async def test_an_entry_torn_in_its_middle_was_never_there(digest_type: DigestType) -> None:
    """Only its digest tells, also to a bookie, which does not know the password of a MAC."""
    machine = Machine(1, seed="1")
    client = await machine.open("first")
    writer = await client.create(LedgerOptions(digest_type=digest_type, password=b"p"))
    await writer.append([b"whole"]).durable
    torn: list[SimulatedFiles] = []

    def pull(operation: Operation) -> None:
        if operation.kind == "append" and operation.size > 2000:
            torn.append(machine.files.copy())

    machine.files.on_operation = pull
    await writer.append([b"x" * 2000]).durable
    (files,) = torn
    *others, write = files.pending()
    assert isinstance(write, Write)
    size = len(write.data)
    pieces = ((0, 512), (size - 512, size))
    fates = {change.sequence: KEPT for change in others}
    files.settle(fates | {write.sequence: Fate(is_kept=True, size=size, pieces=pieces)})
    after = Machine(1, files, machine.tree.copy(), seed="2")
    assert await entries(await after.open("second"), writer.ledger_id) == [b"whole"]
    await client.close()
