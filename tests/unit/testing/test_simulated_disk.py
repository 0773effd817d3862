"""The simulated machine: what kills, power losses and bad sectors may do, and what they may not."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ackgate.persistence.system.disk import DiskFile
from tests.support.simulation.disk import SimulatedDisk, SimulatedFiles
from tests.support.simulation.inodes import KEPT, LOST, Change, Fate
from tests.support.simulation.power_loss import choose_fates

ROOT = Path("/d")


def machine() -> tuple[SimulatedFiles, SimulatedDisk]:
    """A machine with a durable, empty directory."""
    files = SimulatedFiles()
    disk = files.disk("p")
    disk.make_directory(ROOT)
    disk.sync_directory(Path("/"))
    return files, disk


def new_file(disk: SimulatedDisk, name: str, data: bytes = b"") -> DiskFile:
    """A file with durable name and content."""
    file = disk.create(ROOT / name)
    file.append(data)
    file.sync()
    disk.sync_directory(ROOT)
    return file


def outcomes(
    prepare: Callable[[], SimulatedFiles], count: int = 600
) -> set[tuple[tuple[str, bytes], ...]]:
    """What power losses of many seeds leave of the same machine."""
    found: set[tuple[tuple[str, bytes], ...]] = set()
    for seed in range(count):
        files = prepare()
        files.power_loss(random.Random(seed))
        assert files.pending() == []
        found.add(tuple((path[3:], data) for path, data in files.contents().items()))
    return found


def test_a_kill_keeps_all_bytes_and_frees_the_locks() -> None:
    files, disk = machine()
    file = disk.create(ROOT / "a")
    file.append(b"not synced")
    assert disk.lock(ROOT / "lock", wait=False) is not None
    other = files.disk("other")
    assert other.lock(ROOT / "lock", wait=False) is None
    with pytest.raises(OSError, match="deadlock"):
        other.lock(ROOT / "lock", wait=True)
    files.kill("p")
    files.kill("p")
    assert other.lock(ROOT / "lock", wait=False) is not None
    assert other.open_read(ROOT / "a").read(0, 99) == b"not synced"
    assert files.disk("p") is not disk
    assert files.disk("p") is files.disk("p")


def test_the_dead_do_nothing() -> None:
    files, disk = machine()
    file = new_file(disk, "a", b"x")
    files.kill("p")
    calls: list[Callable[[], object]] = [
        lambda: file.append(b"y"),
        file.sync,
        file.size,
        lambda: file.read(0, 1),
        lambda: file.truncate(0),
        lambda: disk.create(ROOT / "b"),
        lambda: disk.open_append(ROOT / "a"),
        lambda: disk.open_read(ROOT / "a"),
        lambda: disk.sync_files([file]),
        lambda: disk.list(ROOT),
        lambda: disk.names_stamp(ROOT),
        lambda: disk.make_directory(ROOT / "d"),
        lambda: disk.remove(ROOT / "a"),
        lambda: disk.remove_directory(ROOT),
        lambda: disk.rename(ROOT / "a", ROOT / "b"),
        lambda: disk.sync_directory(ROOT),
        lambda: disk.lock(ROOT / "lock", wait=True),
    ]
    for call in calls:
        with pytest.raises(OSError) as refused:
            call()
        assert refused.value.errno == errno.EIO
    file.close()
    assert files.contents() == {"/d/a": b"x"}


def test_a_power_loss_leaves_any_part_of_what_was_not_synced() -> None:
    def prepare() -> SimulatedFiles:
        files, disk = machine()
        file = new_file(disk, "a", b"safe")
        file.append(b"1" * 3)
        file.append(b"2" * 3)
        return files

    found = {dict(each)["a"] for each in outcomes(prepare)}
    assert all(data.startswith(b"safe") for data in found)
    for legal in (
        b"safe",
        b"safe111",
        b"safe11",
        b"safe111222",
        b"safe\0\0\0" + b"222",
        b"safe\0\0\0",
        b"safe111\0\0\0",
        b"safe1112",
    ):
        assert legal in found
    assert b"safe222" not in found


@pytest.mark.slow
def test_sectors_of_a_write_are_lost_one_by_one() -> None:
    def prepare() -> SimulatedFiles:
        files, disk = machine()
        new_file(disk, "a", b"#" * 500).append(b"x" * 1536)
        return files

    tails = {dict(each)["a"][500:] for each in outcomes(prepare, 4000)}
    full = {tail for tail in tails if len(tail) == 1536}
    assert full <= {
        (bytes(12) if a else b"x" * 12)
        + (bytes(512) if b else b"x" * 512)
        + (bytes(512) if c else b"x" * 512)
        + (bytes(500) if d else b"x" * 500)
        for a in (0, 1)
        for b in (0, 1)
        for c in (0, 1)
        for d in (0, 1)
    }
    assert bytes(12) + b"x" * 1524 in full, "the last sectors first"


def test_a_sync_keeps_bytes_and_size_and_not_the_name() -> None:
    def prepare() -> SimulatedFiles:
        files, disk = machine()
        file = disk.create(ROOT / "a")
        file.append(b"synced")
        file.sync()
        return files

    assert outcomes(prepare) == {(), (("a", b"synced"),)}


def test_a_synced_directory_keeps_the_name_and_not_the_bytes() -> None:
    def prepare() -> SimulatedFiles:
        files, disk = machine()
        disk.create(ROOT / "a").append(b"x")
        disk.sync_directory(ROOT)
        return files

    assert outcomes(prepare) == {(("a", b""),), (("a", b"\0"),), (("a", b"x"),)}


def test_a_truncation_may_be_undone_until_it_is_synced() -> None:
    def prepare(*, is_synced: bool = False) -> SimulatedFiles:
        files, disk = machine()
        file = new_file(disk, "a", b"0123")
        file.truncate(1)
        file.append(b"xy")
        if is_synced:
            file.sync()
        return files

    found = {dict(each)["a"] for each in outcomes(prepare)}
    assert {b"0123", b"0", b"0xy", b"0xy3", b"0x", b"0x23"} <= found
    assert outcomes(lambda: prepare(is_synced=True)) == {(("a", b"0xy"),)}


def test_names_change_each_by_itself_and_a_rename_at_once() -> None:
    def prepare() -> SimulatedFiles:
        files, disk = machine()
        new_file(disk, "old", b"o")
        new_file(disk, "gone", b"g")
        new_file(disk, "new", b"n")
        disk.rename(ROOT / "new", ROOT / "old")
        disk.remove(ROOT / "gone")
        return files

    gone = ("gone", b"g")
    before = (("new", b"n"), ("old", b"o"))
    after = (("old", b"n"),)
    assert outcomes(prepare) == {(gone, *before), before, (gone, *after), after}


def test_a_lost_directory_takes_all_below_it_along() -> None:
    def prepare(*, is_synced: bool = False) -> SimulatedFiles:
        files, disk = machine()
        disk.make_directory(ROOT / "sub")
        file = disk.create(ROOT / "sub" / "a")
        file.append(b"x")
        file.sync()
        disk.sync_directory(ROOT / "sub")
        if is_synced:
            disk.sync_directory(ROOT)
        return files

    assert outcomes(prepare) == {(), (("sub/a", b"x"),)}
    assert outcomes(lambda: prepare(is_synced=True)) == {(("sub/a", b"x"),)}
    files = prepare()
    files.settle(dict.fromkeys([change.sequence for change in files.pending()], LOST))
    disk = files.disk("p")
    with pytest.raises(FileNotFoundError):
        disk.list(ROOT / "sub")
    disk.make_directory(ROOT / "sub")
    assert disk.list(ROOT / "sub") == []


def test_a_removed_directory_may_come_back() -> None:
    files, disk = machine()
    disk.make_directory(ROOT / "sub")
    disk.sync_directory(ROOT)
    disk.remove_directory(ROOT / "sub")
    files.settle({change.sequence: LOST for change in files.pending()})
    assert files.disk("p").list(ROOT / "sub") == []


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_is_not_made_good_by_the_next_one(code: int) -> None:
    def prepare() -> SimulatedFiles:
        files, disk = machine()
        file = new_file(disk, "a", b"safe")
        file.append(b"lost")
        files.fail("/d", code, {"sync"})
        with pytest.raises(OSError) as refused:
            file.sync()
        assert refused.value.errno == code
        files.fail("/d", None)
        assert file.read(0, 99) == b"safelost"
        file.append(b"more")
        file.sync()
        return files

    found = {dict(each)["a"] for each in outcomes(prepare)}
    assert {b"safelostmore", b"safe\0\0\0\0more"} <= found
    assert all(data.endswith(b"more") for data in found)


def test_what_fails_fails_below_its_path_until_it_is_taken_back() -> None:
    files, disk = machine()
    file = new_file(disk, "a", b"")
    files.fail("/d/a", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        file.append(b"abcd")
    assert file.read(0, 9) == b"ab", "a part is there"
    new_file(disk, "b", b"fine")
    files.fail("/d/a", errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        file.append(b"abcd")
    file.truncate(0)
    file.sync()
    files.fail("/d/a", None)
    file.append(b"again")
    assert file.read(0, 9) == b"again"


def test_a_full_disk_takes_what_there_is_room_for() -> None:
    files, disk = machine()
    files.capacity_bytes = 10
    file = new_file(disk, "a", b"1234567")
    with pytest.raises(OSError) as refused:
        file.append(b"89abc")
    assert refused.value.errno == errno.ENOSPC
    assert file.read(0, 99) == b"123456789a"
    assert files.used_bytes == 10
    file.truncate(2)
    file.append(b"x" * 8)
    disk.remove(ROOT / "a")
    assert files.used_bytes == 0
    new_file(disk, "b", b"y" * 10)
    files.power_loss(random.Random(1))
    assert files.used_bytes == sum(map(len, files.contents().values()))


def test_a_bad_sector_is_one_bit_of_what_is_durable() -> None:
    files, disk = machine()
    assert files.corrupt(random.Random(0)) is None
    new_file(disk, "a", b"abcdef").append(b"volatile")
    new_file(disk, "b", bytes(10_000))
    for seed in range(50):
        before = files.contents()
        where = files.corrupt(random.Random(seed), "/d/a")
        assert where is not None
        path, offset = where
        assert path == "/d/a"
        assert offset < 6
        after = files.contents()
        assert after.pop(path) != before.pop(path)
        assert after == before
    twin = files.copy()
    twin.settle({change.sequence: LOST for change in twin.pending()})
    assert twin.contents()["/d/a"] == files.contents()["/d/a"][:6]


def test_a_copy_has_the_same_future() -> None:
    files, disk = machine()
    file = new_file(disk, "a", b"x")
    file.append(b"y")
    disk.create(ROOT / "b").append(b"z")
    disk.remove(ROOT / "a")
    lock = disk.lock(ROOT / "lock", wait=False)
    assert lock is not None
    twin = files.copy()
    assert twin.digest() == files.digest()
    assert [type(c) for c in twin.pending()] == [type(c) for c in files.pending()]
    assert twin.disk("q").lock(ROOT / "lock", wait=False) is not None
    assert len(twin.pending()) == len(files.pending()), "no new name"
    for seed in range(100):
        one, other = files.copy(), files.copy()
        one.power_loss(random.Random(seed))
        other.power_loss(random.Random(seed))
        assert one.contents() == other.contents()
        assert one.digest() == other.digest()
    assert files.contents() == {"/d/b": b"z", "/d/lock": b""}, "the original has not changed"


def test_the_order_of_changes_is_a_choice_too() -> None:
    files, disk = machine()
    changes: list[Change] = []
    for i in range(4):
        new = disk.create(ROOT / str(i))
        new.append(b"x")
        changes = files.pending()
    assert [change.sequence for change in changes] == sorted(c.sequence for c in changes)
    patterns: set[tuple[Fate, ...]] = set()
    for seed in range(1000):
        fates = choose_fates(changes, random.Random(seed))
        assert fates.keys() == {change.sequence for change in changes}
        patterns.add(tuple(fates[change.sequence] for change in changes))
    prefixes = {(KEPT,) * n + (LOST,) * (8 - n) for n in range(9)}
    assert prefixes <= patterns
    assert len(patterns) > 50


def test_operations_are_told_of() -> None:
    files = SimulatedFiles()
    files.trace = []
    told: list[str] = []
    files.on_operation = lambda operation: told.append(operation.kind)
    disk = files.disk("p")
    disk.make_directory(Path("/x/y"))
    file = disk.create(Path("/x/y/a"))
    file.append(b"123")
    file.sync()
    disk.rename(Path("/x/y/a"), Path("/x/y/b"))
    disk.sync_directory(Path("/x/y"))
    file.truncate(1)
    disk.remove(Path("/x/y/b"))
    files.kill("p")
    assert told == [operation.kind for operation in files.trace]
    assert told == [
        "make_directory",
        "make_directory",
        "create",
        "append",
        "sync",
        "rename",
        "sync_directory",
        "truncate",
        "remove",
        "kill",
    ]
    assert files.trace[3] == ("p", "append", "/x/y/a", 3)
