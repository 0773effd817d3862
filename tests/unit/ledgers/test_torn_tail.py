"""Every byte of the last block cut off, every byte of it flipped: journals and fragment files."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from ackgate.persistence import LedgerOptions
from ackgate.persistence.bookies.avro_container import SYNC_BYTES
from ackgate.persistence.bookies.directory import BookieDirectory
from ackgate.persistence.bookies.entry_codec import verify_crc
from ackgate.persistence.bookies.settings import BookieSettings
from ackgate.persistence.system.disk import OsDisk
from tests.unit.ledgers.conftest import World, avro_records

LEDGER = 1
WHOLE = [b"whole %d" % i for i in range(6)]
LAST = [b"last %d" % i for i in range(3)]


async def written(world: World, *, is_checkpointed: bool) -> Path:
    """A crashed bookie whose last file ends with a block of `WHOLE`, and then one of `LAST`."""
    client = await world.start()
    writer = await client.create(LedgerOptions())
    assert writer.ledger_id == LEDGER
    for payloads in (WHOLE, LAST):
        await writer.append(payloads).durable
        if is_checkpointed:
            await client.bookies[0].checkpoint()
    world.crash()
    return world.directories[0]


def started(directory: Path) -> tuple[list[bytes], BookieDirectory]:
    """Good payloads that a bookie finds when it starts there."""
    opened = BookieDirectory(OsDisk(), directory, BookieSettings())
    opened.join()
    found = {e.entry_id: e.payload for e in opened.storage.read(LEDGER, 0, 99) if verify_crc(e)}
    opened.close(is_written=True)
    return [found[entry_id] for entry_id in sorted(found)], opened


def last_block_start(file: Path) -> int:
    data = file.read_bytes()
    marker = data[-SYNC_BYTES:]
    return data.rindex(marker, 0, len(data) - SYNC_BYTES) + SYNC_BYTES


@pytest.fixture(params=["journal", "ledgers"])
async def crashed(request: pytest.FixtureRequest, world: World) -> Path:
    """The file under test, below a bookie's directory."""
    await written(world, is_checkpointed=request.param == "ledgers")
    (file,) = world.files(part=request.param)
    return file


def copies(file: Path, directory: Path) -> tuple[Path, Path]:
    """A fresh copy of the bookie, and the file in it."""
    bookie = file.parents[1] if file.parent.name == "ledgers" else file.parents[2]
    target = directory / "copy"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(bookie, target)
    return target, target / file.relative_to(bookie)


@pytest.mark.slow
async def test_a_tail_cut_anywhere_is_cut_at_the_last_whole_block(
    crashed: Path, tmp_path: Path
) -> None:
    data = crashed.read_bytes()
    for size in range(last_block_start(crashed), len(data)):
        directory, file = copies(crashed, tmp_path)
        file.write_bytes(data[:size])
        found, _ = await asyncio.to_thread(started, directory)
        assert found[: len(WHOLE)] == WHOLE, size
        assert found[len(WHOLE) :] == LAST[: len(found) - len(WHOLE)], size
        if crashed.parent.name != "ledgers":
            # The replay has made plain Avro files of it.
            (fragment,) = (directory / "ledgers").iterdir()
            assert [record["payload"] for record in avro_records(fragment)] == found


async def test_a_tail_of_zeros_is_no_tail(crashed: Path, tmp_path: Path) -> None:
    """What a preallocated file, or a power loss, leaves behind."""
    data = crashed.read_bytes()
    start = last_block_start(crashed)
    for kept in (start, start + 1, start + 20, len(data)):
        directory, file = copies(crashed, tmp_path)
        file.write_bytes(data[:kept] + bytes(5000))
        found, _ = await asyncio.to_thread(started, directory)
        assert found[: len(WHOLE)] == WHOLE
        assert found[len(WHOLE) :] == LAST[: len(found) - len(WHOLE)]
        if kept == len(data):
            assert found == WHOLE + LAST


@pytest.mark.slow
async def test_a_flipped_byte_never_becomes_an_entry(crashed: Path, tmp_path: Path) -> None:
    data = crashed.read_bytes()
    for at in range(last_block_start(crashed), len(data)):
        for bits in (0x01, 0x80, 0xFF):
            directory, file = copies(crashed, tmp_path)
            file.write_bytes(data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :])
            found, opened = await asyncio.to_thread(started, directory)
            assert found[: len(WHOLE)] == WHOLE, (at, bits)
            assert set(found[len(WHOLE) :]) <= set(LAST), (at, bits)
            if crashed.parent.name != "ledgers" and len(found) < len(WHOLE + LAST):
                assert opened.damages, "what was lost is named"


async def test_a_file_cut_within_its_header_is_as_good_as_none(
    crashed: Path, tmp_path: Path
) -> None:
    data = crashed.read_bytes()
    for size in (0, 1, 4, 100, 700):
        directory, file = copies(crashed, tmp_path)
        file.write_bytes(data[:size])
        found, _ = await asyncio.to_thread(started, directory)
        assert found == []


async def test_foreign_bytes_under_our_name_are_named_and_left_alone(
    crashed: Path, tmp_path: Path
) -> None:
    for content in (b"not avro at all", b"Obj\x01" + b"\x06abc" * 30, b"Obj\x01\x00" + bytes(16)):
        directory, file = copies(crashed, tmp_path)
        file.write_bytes(content)
        found, opened = await asyncio.to_thread(started, directory)
        assert found == []
        assert any(file.name in damage for damage in opened.damages)
        if crashed.parent.name == "ledgers":
            assert file.read_bytes() == content
