"""What every disk does with the bytes of files."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ackgate.persistence.system.disk import Disk


def test_appends_come_one_after_the_other(disk: Disk, directory: Path) -> None:
    file = disk.create(directory / "a")
    assert file.path == directory / "a"
    assert file.size() == 0
    file.append(b"one")
    file.append(b"")
    file.append(b"two")
    assert file.size() == 6
    assert file.read(0, 100) == b"onetwo"
    assert file.read(2, 2) == b"et"
    assert file.read(6, 5) == b""
    assert file.read(50, 5) == b""
    file.sync()
    file.close()
    file.close()


def test_a_process_that_has_a_file_open_sees_what_others_append(
    disk: Disk, directory: Path
) -> None:
    writer, other = disk.create(directory / "a"), disk.open_append(directory / "a")
    reader = disk.open_read(directory / "a")
    writer.append(b"1")
    other.append(b"2")
    writer.append(b"3")
    assert reader.read(0, 9) == writer.read(0, 9) == b"123"
    assert reader.size() == 3
    reader.sync()


def test_opening_to_append_keeps_what_is_there(disk: Disk, directory: Path) -> None:
    first = disk.open_append(directory / "a")
    first.append(b"old ")
    first.close()
    again = disk.open_append(directory / "a")
    again.append(b"new")
    assert again.read(0, 9) == b"old new"


def test_a_truncated_file_goes_on_where_it_was_cut(disk: Disk, directory: Path) -> None:
    file = disk.create(directory / "a")
    file.append(b"0123456789")
    file.sync()
    file.truncate(4)
    assert file.size() == 4
    file.append(b"xy")
    assert file.read(0, 99) == b"0123xy"
    file.truncate(8)
    assert file.read(0, 99) == b"0123xy\0\0"
    file.truncate(0)
    assert file.read(0, 99) == b""
    assert file.size() == 0


def test_what_is_read_does_not_change_any_more(disk: Disk, directory: Path) -> None:
    file = disk.create(directory / "a")
    data = bytearray(b"bytes")
    file.append(bytes(data))
    read = file.read(0, 5)
    file.truncate(0)
    file.append(b"other")
    assert isinstance(read, bytes)
    assert read == b"bytes"


def test_several_files_are_synced_at_once(disk: Disk, directory: Path) -> None:
    files = [disk.create(directory / str(i)) for i in range(6)]
    for file in files:
        file.append(b"x")
    disk.sync_files(files)
    disk.sync_files(files[:1])
    disk.sync_files([])


def test_a_file_opened_for_reading_takes_nothing(disk: Disk, directory: Path) -> None:
    disk.create(directory / "a").append(b"x")
    file = disk.open_read(directory / "a")
    with pytest.raises(OSError) as refused:
        file.append(b"y")
    assert refused.value.errno == errno.EBADF
    with pytest.raises(OSError) as refused:
        file.truncate(0)
    assert refused.value.errno == errno.EINVAL
    assert file.read(0, 9) == b"x"


@pytest.mark.parametrize("call", ["append", "read", "size", "truncate"])
def test_a_closed_file_does_nothing(disk: Disk, directory: Path, call: str) -> None:
    file = disk.create(directory / "a")
    file.close()
    arguments = {"append": (b"x",), "read": (0, 1), "truncate": (0,)}.get(call, ())
    with pytest.raises(OSError) as refused:
        getattr(file, call)(*arguments)
    assert refused.value.errno == errno.EBADF


def test_a_removed_file_stays_for_those_who_have_it_open(disk: Disk, directory: Path) -> None:
    file = disk.create(directory / "a")
    file.append(b"still ")
    disk.remove(directory / "a")
    file.append(b"there")
    assert file.read(0, 99) == b"still there"
    fresh = disk.create(directory / "a")
    assert fresh.size() == 0
