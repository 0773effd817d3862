"""What every disk does with names, directories and locks."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ackgate.persistence.system.disk import Disk
from tests.conformance.disk.conftest import Machine


def test_names_are_listed_in_order(disk: Disk, directory: Path) -> None:
    for name in ("b", "a", "c"):
        disk.create(directory / name)
    disk.make_directory(directory / "aa")
    assert disk.list(directory) == ["a", "aa", "b", "c"]
    disk.remove(directory / "b")
    disk.sync_directory(directory)
    assert disk.list(directory) == ["a", "aa", "c"]


def test_directories_are_made_with_their_parents(disk: Disk, directory: Path) -> None:
    disk.make_directory(directory / "x" / "y" / "z")
    disk.make_directory(directory / "x" / "y" / "z")
    disk.make_directory(directory / "x")
    assert disk.list(directory / "x") == ["y"]
    assert disk.list(directory / "x" / "y" / "z") == []
    disk.remove_directory(directory / "x" / "y" / "z")
    assert disk.list(directory / "x" / "y") == []


def test_a_new_file_must_be_new(disk: Disk, directory: Path) -> None:
    disk.create(directory / "a").append(b"x")
    with pytest.raises(FileExistsError):
        disk.create(directory / "a")
    assert disk.open_read(directory / "a").read(0, 9) == b"x"


def test_what_is_not_there(disk: Disk, directory: Path) -> None:
    nothing = directory / "nothing"
    for call in (
        lambda: disk.open_read(nothing),
        lambda: disk.create(nothing / "a"),
        lambda: disk.open_append(nothing / "a"),
        lambda: disk.list(nothing),
        lambda: disk.remove(nothing),
        lambda: disk.remove_directory(nothing),
        lambda: disk.rename(nothing, directory / "b"),
        lambda: disk.sync_directory(nothing),
        lambda: disk.lock(nothing / "lock", wait=False),
    ):
        with pytest.raises(FileNotFoundError, match="nothing"):
            call()


def test_a_file_is_no_directory(disk: Disk, directory: Path) -> None:
    disk.create(directory / "a")
    disk.make_directory(directory / "d")
    for call in (
        lambda: disk.list(directory / "a"),
        lambda: disk.create(directory / "a" / "b"),
        lambda: disk.remove_directory(directory / "a"),
        lambda: disk.sync_directory(directory / "a"),
    ):
        with pytest.raises(NotADirectoryError):
            call()
    with pytest.raises(FileExistsError):
        disk.make_directory(directory / "a")
    with pytest.raises(IsADirectoryError):
        disk.remove(directory / "d")
    with pytest.raises(IsADirectoryError):
        disk.open_append(directory / "d")
    with pytest.raises(FileExistsError):
        disk.create(directory / "d")
    assert disk.list(directory) == ["a", "d"]


def test_only_an_empty_directory_is_removed(disk: Disk, directory: Path) -> None:
    disk.make_directory(directory / "d")
    disk.create(directory / "d" / "a")
    with pytest.raises(OSError) as refused:
        disk.remove_directory(directory / "d")
    assert refused.value.errno in (errno.ENOTEMPTY, errno.EEXIST)
    disk.remove(directory / "d" / "a")
    disk.remove_directory(directory / "d")
    assert disk.list(directory) == []


def test_a_rename_takes_the_place_of_what_was_there(disk: Disk, directory: Path) -> None:
    disk.create(directory / "old").append(b"old")
    reader = disk.open_read(directory / "old")
    disk.create(directory / "new").append(b"new")
    disk.rename(directory / "new", directory / "old")
    assert disk.list(directory) == ["old"]
    assert disk.open_read(directory / "old").read(0, 9) == b"new"
    assert reader.read(0, 9) == b"old"


def test_a_stamp_changes_with_the_names(disk: Disk, directory: Path) -> None:
    seen: list[int | None] = [disk.names_stamp(directory)]
    for step in (
        lambda: disk.create(directory / "a"),
        lambda: disk.make_directory(directory / "d"),
        lambda: disk.rename(directory / "a", directory / "b"),
        lambda: disk.remove(directory / "b"),
        lambda: disk.remove_directory(directory / "d"),
        lambda: disk.lock(directory / "lock", wait=False),
    ):
        step()
        stamp = disk.names_stamp(directory)
        assert stamp is None or stamp not in seen
        seen.append(stamp)
    disk.open_append(directory / "lock").append(b"x")
    assert disk.names_stamp(directory) in (None, seen[-1])


def test_a_lock_has_one_holder(machine: Machine) -> None:
    disk, other, path = machine.disk, machine.connect(), machine.directory / "lock"
    lock = disk.lock(path, wait=True)
    assert lock is not None
    assert other.lock(path, wait=False) is None
    assert disk.lock(path, wait=False) is None, "not even the same process twice"
    assert disk.list(machine.directory) == ["lock"]
    lock.release()
    lock.release()
    taken = other.lock(path, wait=True)
    assert taken is not None
    assert disk.lock(path, wait=False) is None
    taken.release()


def test_a_lock_is_of_the_file_not_of_the_name(machine: Machine) -> None:
    disk, path = machine.disk, machine.directory / "lock"
    first = disk.lock(path, wait=False)
    disk.remove(path)
    second = disk.lock(path, wait=False)
    assert first is not None
    assert second is not None
    first.release()
    assert disk.lock(path, wait=False) is None
    second.release()
