"""Where a stream tells of what it has missed."""

from __future__ import annotations

import json
from pathlib import Path

import fsspec
import pytest

from ackgate.cursor import Position
from ackgate.errors import StorageError
from ackgate.pipeline.source.streams import Gap, write_gap

GAP = Gap("persistent://public/default/orders/1", Position(4, 60), Position(9, 0))


def test_a_file_for_each_gap_and_one_for_the_same(tmp_path: Path) -> None:
    write_gap(str(tmp_path / "new" / "gaps"), GAP)
    write_gap(str(tmp_path / "new" / "gaps"), GAP)
    write_gap(str(tmp_path / "new" / "gaps"), GAP._replace(topic="persistent://public/default/b"))
    write_gap(str(tmp_path / "new" / "gaps"), GAP._replace(behind=Position(4, 61)))
    files = sorted((tmp_path / "new" / "gaps").iterdir())
    rows = [json.loads(file.read_text()) for file in files]
    assert len(rows) == 3
    assert GAP.row() in rows
    assert {row["behind_entry_id"] for row in rows} == {60, 61}


def test_an_address_will_do() -> None:
    write_gap("memory://ackgate-gaps", GAP)
    files = fsspec.filesystem("memory")
    (name,) = files.ls("/ackgate-gaps", detail=False)
    assert json.loads(files.cat_file(name)) == GAP.row()


@pytest.mark.parametrize("where", ["{}/file/below", "nosuch://user:secret@host/gaps"])
def test_what_cannot_be_written_is_named(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written") as caught:
        write_gap(where.format(tmp_path), GAP)
    assert "secret" not in str(caught.value)
