"""What a removed file's room costs others: freed step by step, unless somebody still has the file."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from ackgate.persistence.system import disk as disks
from ackgate.persistence.system.disk import OsDisk

STEPS = 5
CONTENT = b"entry" * (STEPS * disks._FREED_BYTES // 5 + 1)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="leases are Linux's")


class Freed:
    """The sizes to which files were cut before they were closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self._is_over = threading.Event()
        cut = os.ftruncate

        def cut_and_noted(descriptor: int, size: int) -> None:
            cut(descriptor, size)
            self.sizes.append(size)
            if size <= disks._FREED_BYTES:
                self._is_over.set()

        monkeypatch.setattr(os, "ftruncate", cut_and_noted)
        monkeypatch.setattr(disks, "_FREEING_PAUSE_SECONDS", 0)

    def wait(self) -> None:
        assert self._is_over.wait(60)


@pytest.fixture
def freed(monkeypatch: pytest.MonkeyPatch) -> Freed:
    return Freed(monkeypatch)


def large_file(path: Path) -> Path:
    path.write_bytes(CONTENT)
    return path


def test_a_large_file_is_gone_at_once_and_freed_in_steps(tmp_path: Path, freed: Freed) -> None:
    OsDisk().remove(large_file(tmp_path / "a"))
    assert list(tmp_path.iterdir()) == []
    freed.wait()
    assert len(freed.sizes) == STEPS
    assert freed.sizes == [len(CONTENT) - n * disks._FREED_BYTES for n in range(1, STEPS + 1)]


def test_a_reader_goes_on_reading(tmp_path: Path, freed: Freed) -> None:
    disk = OsDisk()
    path = large_file(tmp_path / "read")
    reader = disk.open_read(path)
    disk.remove(path)
    disk.remove(large_file(tmp_path / "other"))
    freed.wait()
    assert len(freed.sizes) == STEPS, "the other's alone"
    assert reader.read(0, len(CONTENT)) == CONTENT


def test_a_backup_made_of_links_keeps_its_files(tmp_path: Path, freed: Freed) -> None:
    disk = OsDisk()
    path = large_file(tmp_path / "linked")
    (tmp_path / "backup").hardlink_to(path)
    disk.remove(path)
    disk.remove(large_file(tmp_path / "other"))
    freed.wait()
    assert len(freed.sizes) == STEPS, "the other's alone"
    assert (tmp_path / "backup").read_bytes() == CONTENT


def test_what_cannot_be_opened_is_removed_all_the_same(
    tmp_path: Path, freed: Freed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_many_files(*_: object) -> int:
        raise OSError(24, "Too many open files")

    path = large_file(tmp_path / "a")
    monkeypatch.setattr(os, "open", too_many_files)
    OsDisk().remove(path)
    assert list(tmp_path.iterdir()) == []
    assert freed.sizes == []


def test_a_small_file_and_none(tmp_path: Path, freed: Freed) -> None:
    disk = OsDisk()
    (tmp_path / "small").write_bytes(b"1")
    disk.remove(tmp_path / "small")
    assert list(tmp_path.iterdir()) == []
    assert freed.sizes == []
    with pytest.raises(FileNotFoundError):
        disk.remove(tmp_path / "small")
