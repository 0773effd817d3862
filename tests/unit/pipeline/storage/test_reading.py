"""Reading ranges of entries from bookies' files, whole and damaged."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from ackgate.errors import ConfigurationError, CorruptRecordError, DigestMismatchError
from ackgate.persistence import DigestType, Fragment, LedgerMetadata, LedgerOptions, LedgerState
from ackgate.persistence.bookies.avro_container import read_header, scan
from ackgate.persistence.bookies.entry_codec import decode_entries
from ackgate.persistence.system.disk import OsDisk
from ackgate.pipeline.schema.addresses import bookies_below
from ackgate.pipeline.schema.tables import CORRUPT, arrow_schema
from ackgate.pipeline.source.planning import split_ranges
from ackgate.pipeline.source.tasks import damage_rows
from ackgate.pipeline.storage.block_search import offset_before
from ackgate.pipeline.storage.bookie_files import OpenBookies
from ackgate.pipeline.storage.damage import Damage
from ackgate.pipeline.storage.places import find_bookies
from ackgate.pipeline.storage.ranges import plan_ranges
from ackgate.pipeline.storage.reading import read_range
from tests.unit.pipeline.storage.conftest import Ledgers, Written

PAYLOADS = [b"payload %d" % i * (1 + i % 5) for i in range(300)]
ONE = LedgerOptions()
ALL_THREE = LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=2)
STRIPED = LedgerOptions(ensemble_size=3, write_quorum=2, ack_quorum=2)


def read(written: Written, **options: object) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for part in written.ranges:
        for batch in read_range(written.places, part, **options):  # type: ignore[arg-type]
            ids = batch.entry_ids.tolist()
            assert ids == sorted(set(ids)), "ascending, each once"
            assert not found.keys() & set(ids)
            found.update(zip(ids, batch.payloads, strict=True))
    assert list(found) == sorted(found)
    return found


def flip(file: Path, offset: int) -> None:
    data = bytearray(file.read_bytes())
    data[offset] ^= 0x10
    file.write_bytes(data)


WHOLE = dict(enumerate(PAYLOADS))


@pytest.mark.parametrize(
    ("options", "bookies"), [(ONE, 1), (ALL_THREE, 3), (STRIPED, 3)], ids=["one", "all", "striped"]
)
async def test_every_entry_is_read_once(
    ledgers: Ledgers, options: LedgerOptions, bookies: int
) -> None:
    written = await ledgers.write(PAYLOADS, options, bookies=bookies)
    assert read(written) == WHOLE


@pytest.mark.parametrize(("first", "last"), [(0, 0), (17, 131), (299, 299), (150, 299)])
async def test_a_part_of_a_ledger(ledgers: Ledgers, first: int, last: int) -> None:
    written = await ledgers.write(PAYLOADS, STRIPED, bookies=3)
    written.ranges = plan_ranges(written.ranges[0].metadata, last, first_entry_id=first)
    assert read(written) == {i: PAYLOADS[i] for i in range(first, last + 1)}


@pytest.mark.parametrize("gone", [0, 1, 2])
async def test_a_bookie_may_be_gone(ledgers: Ledgers, gone: int) -> None:
    written = await ledgers.write(PAYLOADS, STRIPED, bookies=3)
    shutil.rmtree(written.directories[gone])
    assert read(written) == WHOLE


async def test_with_two_bookies_gone_what_only_they_had_is_lost(ledgers: Ledgers) -> None:
    written = await ledgers.write(PAYLOADS, STRIPED, bookies=3)
    for gone in (0, 1):
        shutil.rmtree(written.directories[gone])
    damages: list[Damage] = []
    found = read(written, on_corrupt="skip", damages=damages)
    (left,) = (d for d in written.ranges[0].fragment.ensemble if d in written.places.directories)
    place = written.ranges[0].fragment.ensemble.index(left)
    held = {i for i in range(300) if (place - i) % 3 < 2}
    assert found == {i: PAYLOADS[i] for i in held}
    assert sum(damage.entries_lost for damage in damages) == 300 - len(held)
    with pytest.raises(CorruptRecordError, match="no such bookie here"):
        read(written)


@pytest.mark.parametrize("bookie", [0, 1, 2])
@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.6, 0.999])
async def test_a_damaged_copy_is_replaced_by_another(
    ledgers: Ledgers, bookie: int, fraction: float
) -> None:
    written = await ledgers.write(PAYLOADS, STRIPED, bookies=3)
    file = written.file(bookie)
    flip(file, int(file.stat().st_size * fraction))
    assert read(written) == WHOLE


async def test_what_is_damaged_in_all_copies_is_an_error_that_names_bookie_file_and_bytes(
    ledgers: Ledgers,
) -> None:
    written = await ledgers.write(PAYLOADS, ALL_THREE, bookies=3)
    for bookie in range(3):
        file = written.file(bookie)
        flip(file, file.read_bytes().index(PAYLOADS[123]))
    with pytest.raises(CorruptRecordError) as caught:
        read(written)
    message = str(caught.value)
    assert "entry 123" in message
    for bookie in range(3):
        assert str(written.file(bookie)) in message
    assert all(bookie in message for bookie in written.ranges[0].fragment.ensemble)


async def test_skipping_loses_only_what_is_damaged_in_all_copies_and_counts_it(
    ledgers: Ledgers,
) -> None:
    written = await ledgers.write(PAYLOADS, ALL_THREE, bookies=3)
    offsets = {}
    for bookie in range(3):
        file = written.file(bookie)
        offsets[str(file)] = file.read_bytes().index(PAYLOADS[123])
        flip(file, offsets[str(file)])
    damages: list[Damage] = []
    found = read(written, on_corrupt="skip", damages=damages)
    assert found == {i: payload for i, payload in WHOLE.items() if i != 123}
    assert {damage.file for damage in damages} == offsets.keys()
    assert all(d.offset <= offsets[d.file] < d.end_offset for d in damages)
    assert sum(damage.entries_lost for damage in damages) == 1


async def test_damage_that_costs_nothing_is_told_too(ledgers: Ledgers) -> None:
    written = await ledgers.write(PAYLOADS, ALL_THREE, bookies=3)
    for bookie in range(3):
        file = written.file(bookie)
        flip(file, file.read_bytes().index(PAYLOADS[10 * bookie]))
    damages: list[Damage] = []
    assert read(written, damages=damages) == WHOLE
    (damage,) = damages
    assert damage.entries_lost == 0


@pytest.mark.parametrize("left", [0.0, 0.1, 0.5, 0.9])
async def test_a_truncated_file_loses_its_end(ledgers: Ledgers, left: float) -> None:
    written = await ledgers.write(PAYLOADS, ONE)
    file = written.file(0)
    size = int(file.stat().st_size * left)
    with file.open("r+b") as stream:
        stream.truncate(size)
    with pytest.raises(CorruptRecordError, match=r"0000\.avro|none of its files|-0{19}-"):
        read(written)
    damages: list[Damage] = []
    found = read(written, on_corrupt="skip", damages=damages)
    assert list(found) == list(range(len(found)))
    assert len(found) < 300
    assert sum(damage.entries_lost for damage in damages) == 300 - len(found)


async def test_a_file_of_something_else_is_damage(ledgers: Ledgers) -> None:
    written = await ledgers.write(PAYLOADS, ALL_THREE, bookies=3)
    for bookie in (0, 2):
        written.file(bookie).write_bytes(b"PAR1 something else")
    assert read(written) == WHOLE


@pytest.mark.parametrize("options", [ONE, STRIPED], ids=["one", "striped"])
async def test_entries_that_are_only_in_journals_yet(
    ledgers: Ledgers, options: LedgerOptions
) -> None:
    written = await ledgers.write(
        PAYLOADS, options, bookies=options.ensemble_size, is_in_journal=True
    )
    assert all(not list((d / "ledgers").iterdir()) for d in written.directories)
    assert read(written) == WHOLE


async def test_macs_need_the_password(ledgers: Ledgers) -> None:
    options = LedgerOptions(digest_type=DigestType.MAC, password=b"secret word")
    written = await ledgers.write(PAYLOADS, options)
    assert read(written) == WHOLE
    assert "secret" not in repr(written.places)
    written.password = b"another"
    with pytest.raises(DigestMismatchError):
        read(written)


async def test_places_and_ranges_travel(ledgers: Ledgers) -> None:
    written = await ledgers.write(PAYLOADS, STRIPED, bookies=3)
    places, parts = pickle.loads(pickle.dumps((written.places, written.ranges)))
    batches = [batch for part in parts for batch in read_range(places, part)]
    assert np.concatenate([b.entry_ids for b in batches]).tolist() == list(range(300))


def test_one_range_for_each_fragment_up_to_the_border() -> None:
    metadata = LedgerMetadata(
        ledger_id=7,
        state=LedgerState.OPEN,
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        digest_type=DigestType.CRC32C,
        fragments=(Fragment(0, ("a",)), Fragment(10, ("b",)), Fragment(30, ("c",))),
        last_entry_id=-1,
        length_bytes=0,
        created_ms=0,
    )

    def spans(last: int, first: int = 0) -> list[tuple[int, int, str]]:
        ranges = plan_ranges(metadata, last, first_entry_id=first)
        return [(r.first_entry_id, r.last_entry_id, r.fragment.ensemble[0]) for r in ranges]

    assert spans(35) == [(0, 9, "a"), (10, 29, "b"), (30, 35, "c")]
    assert spans(20, first=5) == [(5, 9, "a"), (10, 20, "b")]
    assert spans(29) == [(0, 9, "a"), (10, 29, "b")]
    assert spans(40, first=31) == [(31, 40, "c")]
    assert spans(-1) == []


async def test_bookies_are_found_by_what_they_say_of_themselves(
    ledgers: Ledgers, tmp_path: Path
) -> None:
    written = await ledgers.write(PAYLOADS, STRIPED, bookies=3)
    bookies = tmp_path / "data" / "bookies"
    bookies.mkdir(parents=True)
    for i, directory in enumerate(written.directories):
        directory.rename(bookies / f"moved-{2 - i}")
    places = find_bookies(bookies_below(str(tmp_path / "data")))
    found = [b for part in written.ranges for b in read_range(places, part)]
    assert sum(len(batch.payloads) for batch in found) == 300
    shutil.copytree(bookies / "moved-0", bookies / "copied")
    with pytest.raises(ConfigurationError, match="is a copy"):
        find_bookies(bookies_below(str(tmp_path / "data")))
    with pytest.raises(ConfigurationError, match="no bookie's directory"):
        find_bookies([str(tmp_path)])


async def test_the_table_corrupt_names_each_place(ledgers: Ledgers) -> None:
    written = await ledgers.write(PAYLOADS, ALL_THREE, bookies=3)
    (part,) = written.ranges
    damages: list[Damage] = []
    assert list(read_range(written.places, part, on_corrupt="report", damages=damages))
    assert damages == []
    for bookie in range(3):
        file = written.file(bookie)
        flip(file, file.read_bytes().index(PAYLOADS[123]))
    assert list(read_range(written.places, part, on_corrupt="report", damages=damages))
    batch = damage_rows(damages, CORRUPT.columns)
    assert batch.schema == arrow_schema(CORRUPT.columns)
    rows = batch.to_pylist()
    assert {row["file"] for row in rows} == {str(written.file(i)) for i in range(3)}
    assert {row["bookie"] for row in rows} == set(part.fragment.ensemble)
    assert sum(row["entries_lost"] for row in rows) == 1
    assert all(row["why"].endswith("match their digests") for row in rows)


@pytest.mark.parametrize("split_bytes", [1000, 5000, 10**9])
@pytest.mark.parametrize(("options", "bookies"), [(ONE, 1), (STRIPED, 3)], ids=["one", "striped"])
async def test_large_ranges_are_split_where_blocks_begin(
    ledgers: Ledgers, options: LedgerOptions, bookies: int, split_bytes: int
) -> None:
    written = await ledgers.write(PAYLOADS, options, bookies=bookies)
    size = written.file(0).stat().st_size
    with OpenBookies(written.places) as opened:
        parts = list(split_ranges(opened, written.ranges, split_bytes=split_bytes))
        assert len(parts) == 1 if split_bytes > size else len(parts) > size // split_bytes // 2
        ids = [i for part in parts for i in range(part.first_entry_id, part.last_entry_id + 1)]
        assert ids == list(range(300))
        for part in parts:
            read_ids = [i for b in read_range(opened, part) for i in b.entry_ids.tolist()]
            assert read_ids == list(range(part.first_entry_id, part.last_entry_id + 1))


async def test_a_part_begins_at_a_block_near_its_first_entry(ledgers: Ledgers) -> None:
    written = await ledgers.write(PAYLOADS, ONE)
    file = OsDisk().open_read(written.file(0))
    header = read_header(file)
    assert header is not None
    firsts = {}
    for block in scan(file, header, header.size):
        entries, _ = decode_entries(
            file.read(block.data_offset, block.data_size), block.entry_count
        )
        firsts[block.offset] = entries[0].entry_id
    assert len(firsts) > 20
    for entry_id in range(300):
        offset = offset_before(file, header, entry_id, near_bytes=600)
        assert firsts[offset] <= entry_id
        assert entry_id - firsts[offset] < 60, "near, not at the front"
    file.close()
