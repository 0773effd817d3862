"""Reading what is damaged, foreign, of a later version or not there, by way of the data source."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import fastavro
import pytest

pytest.importorskip("pyspark")

from ackgate import open_embedded
from ackgate.errors import (
    AckGateError,
    ConfigurationError,
    CorruptRecordError,
    NoSuchEntryError,
    UnknownFormatError,
)
from ackgate.persistence import LedgerOptions, PersistenceSettings
from ackgate.persistence.bookies.avro_container import FORMAT, FORMAT_KEY, container_header
from tests.unit.pipeline.table_reads import message, put_ledger, read_table

ENTRIES = 400
BOOKIES = 3


def make_data(root: Path) -> None:
    """A topic of one ledger whose entries lie on two of three bookies each."""

    async def make() -> None:
        directories = ",".join(str(root / "bookies" / str(n)) for n in range(BOOKIES))
        settings = PersistenceSettings(bookie_directories=directories)
        async with open_embedded(root, settings=settings) as storage:
            options = LedgerOptions(ensemble_size=3, write_quorum=2, ack_quorum=2)
            entries = (message(n, payload=b"x" * 200) for n in range(ENTRIES))
            await put_ledger(storage, "orders", entries, options)

    asyncio.run(make())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    make_data(root)
    return root


@pytest.fixture
def data(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "data"))


def fragments(root: Path) -> list[Path]:
    found = sorted(root.glob("bookies/*/ledgers/*.avro"))
    assert len(found) == BOOKIES
    return found


def flip(file: Path, share: float) -> None:
    content = bytearray(file.read_bytes())
    content[int(len(content) * share)] ^= 0xFF
    file.write_bytes(content)


def numbers(root: Path, **options: str) -> list[int]:
    return [row["sequence_id"] for row in read_table(root, "messages", **options)]


def test_each_entry_once_though_two_bookies_have_it(data: Path) -> None:
    assert numbers(data) == list(range(ENTRIES))
    assert read_table(data, "corrupt") == []
    shutil.rmtree(data / "bookies" / "1")
    assert numbers(data) == list(range(ENTRIES))


def test_a_wrong_digest_sends_the_reader_to_the_next_copy(data: Path) -> None:
    for file in fragments(data)[:1]:
        flip(file, 0.5)
    assert numbers(data) == list(range(ENTRIES))


def test_what_is_damaged_everywhere_is_named_or_skipped_and_counted(data: Path) -> None:
    for file in fragments(data):
        flip(file, 0.5)
    with pytest.raises(NoSuchEntryError, match=r"no good copy of .*\.avro: bytes \d+ to \d+: "):
        numbers(data)
    left = numbers(data, onCorrupt="skip")
    assert 0 < len(left) < ENTRIES
    rows = read_table(data, "corrupt")
    assert sum(row["entries_lost"] for row in rows) == ENTRIES - len(left)
    assert {row["file"] for row in rows} <= {str(file) for file in fragments(data)}
    for row in rows:
        assert 0 < row["offset"] < row["end_offset"] <= Path(row["file"]).stat().st_size


def later_format(file: Path) -> None:
    """As a later version would write it: the same, under another number."""
    ours, later = FORMAT_KEY.encode() + b"\x02" + FORMAT, FORMAT_KEY.encode() + b"\x02" + b"9"
    content = file.read_bytes()
    assert content.count(ours) == 1
    file.write_bytes(content.replace(ours, later))


def test_files_of_a_later_format_are_an_error_even_when_damage_is_skipped(data: Path) -> None:
    later_format(fragments(data)[0])
    assert numbers(data) == list(range(ENTRIES)), "the other copies will do"
    for file in fragments(data)[1:]:
        later_format(file)
    for mode in ("fail", "skip"):
        with pytest.raises(UnknownFormatError, match=r"\.avro.*entry file of format '9'"):
            numbers(data, onCorrupt=mode)
    rows = read_table(data, "corrupt")
    assert sum(row["entries_lost"] for row in rows) == ENTRIES
    assert all("format '9'; this version reads '1'" in row["why"] for row in rows)


def test_foreign_avro_files(data: Path) -> None:
    schema = {"type": "record", "name": "other", "fields": [{"name": "n", "type": "long"}]}
    # Beside ours, under a name of its own: nobody's business.
    with (data / "bookies" / "0" / "ledgers" / "other.avro").open("wb") as out:
        fastavro.writer(out, schema, [{"n": n} for n in range(9)])
    assert numbers(data) == list(range(ENTRIES))
    (data / "bookies" / "0" / "ledgers" / "other.avro").unlink()
    # Under the names of ours, on all bookies.
    for file in fragments(data):
        with file.open("wb") as out:
            fastavro.writer(out, schema, [{"n": n} for n in range(9)])
    with pytest.raises(CorruptRecordError, match=r"\.avro: .*a foreign Avro file"):
        numbers(data)
    assert numbers(data, onCorrupt="skip") == []
    rows = read_table(data, "corrupt")
    assert {row["file"] for row in rows} == {str(file) for file in fragments(data)}
    assert all("a foreign Avro file" in row["why"] for row in rows)


@pytest.mark.parametrize("is_later", [False, True], ids=["foreign", "later version"])
def test_files_of_a_ledger_that_nobody_closed(tmp_path: Path, is_later: bool) -> None:
    """Nothing but the files says how many entries it has."""

    async def make() -> None:
        async with open_embedded(tmp_path) as storage:
            await put_ledger(storage, "orders", [message(n) for n in range(3)], is_closed=False)

    asyncio.run(make())
    [file] = tmp_path.glob("bookies/*/ledgers/*.avro")
    if is_later:
        later_format(file)
    else:
        file.write_bytes(b"Obj\x01 of somebody else")

    with pytest.raises(CorruptRecordError, match=rf"{file.name}: "):
        numbers(tmp_path)
    [row] = read_table(tmp_path, "corrupt")
    assert (row["file"], row["offset"]) == (str(file), 0)
    assert row["end_offset"] == file.stat().st_size
    assert ("format '9'" in row["why"]) is is_later


def test_messages_that_nobody_can_parse_are_told(tmp_path: Path) -> None:
    """Their copies are good: it is what the producer sent."""

    async def make() -> int:
        async with open_embedded(tmp_path) as storage:
            entries = [message(0), (5).to_bytes(4, "big") + b"\xff" * 5, b"\0", message(3)]
            return await put_ledger(storage, "orders", entries)

    ledger_id = asyncio.run(make())
    with pytest.raises(CorruptRecordError, match=rf"ledger {ledger_id}: entry 1: metadata"):
        numbers(tmp_path)
    assert numbers(tmp_path, onCorrupt="skip") == [0, 3]
    rows = read_table(tmp_path, "corrupt")
    assert [(row["ledger_id"], row["file"], row["entries_lost"]) for row in rows] == [
        (ledger_id, f"ledger {ledger_id}", 1)
    ] * 2
    assert [row["why"].partition(":")[0] for row in rows] == ["entry 1", "entry 2"]


def test_a_ledger_of_which_only_the_header_is_left(data: Path) -> None:
    for file in fragments(data):
        file.write_bytes(container_header(bytes(16)))
    with pytest.raises(NoSuchEntryError, match=rf"{ENTRIES} entries from 0 to {ENTRIES - 1}"):
        numbers(data)


@pytest.mark.parametrize(
    ("break_it", "told"),
    [
        (shutil.rmtree, r"there is no directory .*/data"),
        (lambda root: (shutil.rmtree(root), root.touch()), r"/data is not a directory"),
        (lambda root: (shutil.rmtree(root), root.mkdir()), r"/data is empty"),
        (lambda root: shutil.rmtree(root / "bookies"), r"no bookies in .*/data/bookies"),
        (lambda root: (root / "metadata.sqlite").unlink(), r"there is no .*metadata\.sqlite"),
        (
            lambda root: (root / "metadata.sqlite").write_bytes(b"no database" * 100),
            r"metadata\.sqlite is not a metadata store",
        ),
        (
            lambda root: [path.unlink() for path in root.glob("bookies/*/bookie.json")],
            r"no bookie's directory \(one with a bookie\.json\) among .*bookies/0",
        ),
        (
            lambda root: (root / "bookies/1/bookie.json").write_text('{"format": 9}'),
            r"bookies/1/bookie\.json.*",
        ),
    ],
    ids=["missing", "file", "empty", "no bookies", "no metadata", "foreign", "no id", "odd id"],
)
def test_what_is_no_data_directory(data: Path, break_it: object, told: str) -> None:
    assert callable(break_it)
    break_it(data)
    with pytest.raises(ConfigurationError, match=told):
        numbers(data)


@pytest.mark.parametrize("part", ["", "metadata.sqlite", "bookies", "bookies/0/ledgers"])
def test_what_cannot_be_read_is_named(data: Path, part: str) -> None:
    unreadable = data / part
    unreadable.rename(data.parent / "away")
    unreadable.symlink_to(unreadable)  # root may read anything else
    with pytest.raises(AckGateError, match=r"symbolic links|there is no|no bookies in") as caught:
        numbers(data)
    assert str(unreadable) in str(caught.value)
