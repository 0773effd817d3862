"""A ledger that nobody closed, and whose file is none of ours, is not taken for an empty one."""

from __future__ import annotations

import fastavro
import pytest

from ackgate.__main__ import main
from ackgate.errors import CorruptRecordError, UnknownFormatError
from tests.unit.pipeline.table_reads import read_table


@pytest.fixture
def data(tmp_path):
    directory = tmp_path / "data"
    words = ["--messages", "40", "--seed", "1", "--acked-share", "0.5", "--holes", "5"]
    assert main(["pipeline", "generate", "--data-dir", str(directory), *words]) == 0
    return directory


@pytest.fixture
def file(data):
    """That of the cursor's ledger, which is open, as a broker that was killed leaves it."""
    [_, newest] = sorted(data.rglob("*.avro"))
    assert len(read_table(data, "cursor_records")) > 2
    return newest


def test_foreign_files(data, file):
    schema = {"type": "record", "name": "Photo", "fields": [{"name": "title", "type": "string"}]}
    with file.open("wb") as stream:
        fastavro.writer(stream, schema, [{"title": "sunset"}])

    with pytest.raises(CorruptRecordError, match=rf"{file.name}: a foreign Avro file"):
        read_table(data, "ack_state")
    assert len(read_table(data, "cursor_records", onCorrupt="skip")) == 1, "the node's"


@pytest.mark.parametrize("mode", ["fail", "skip"])
def test_files_of_a_later_version(data, file, mode):
    now, later = b"\x1cackgate.format\x021", b"\x1cackgate.format\x029"
    content = file.read_bytes()
    assert content.count(now) == 1
    file.write_bytes(content.replace(now, later))

    with pytest.raises(UnknownFormatError, match=rf"{file.name}: entry file of format '9'"):
        read_table(data, "ack_state", onCorrupt=mode)


def test_files_that_end_at_once_are_empty_ledgers(data, file):
    file.write_bytes(file.read_bytes()[:20])

    assert len(read_table(data, "cursor_records")) == 1
