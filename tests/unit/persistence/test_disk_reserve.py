"""The reserve on a file system: what is decided, and what the real file then takes."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ackgate.persistence.system.disk_reserve import (
    RESERVE_FILE,
    DiskReserve,
    OsSpace,
    Plan,
    Room,
    plan,
)

WANTED = 1000
LAST = WANTED // 4


def test_a_roomy_disk_has_the_whole_reserve() -> None:
    assert plan(2000, 0, WANTED, was_low=False, is_starting=True) == Plan(False, WANTED)
    assert plan(1000, WANTED, WANTED, was_low=False, is_starting=False) == Plan(False, WANTED)


def test_with_less_than_two_reserves_messages_are_refused_and_the_reserve_stays() -> None:
    assert plan(999, WANTED, WANTED, was_low=False, is_starting=False) == Plan(True, WANTED)
    assert plan(0, WANTED, WANTED, was_low=False, is_starting=False) == Plan(True, WANTED)


def test_the_reserve_goes_to_acknowledgements_and_its_last_quarter_to_the_next_start() -> None:
    assert plan(LAST - 1, WANTED, WANTED, was_low=True, is_starting=False) == Plan(True, LAST)
    assert plan(0, LAST, WANTED, was_low=True, is_starting=False) == Plan(True, LAST)
    assert plan(0, WANTED, WANTED, was_low=False, is_starting=True) == Plan(True, LAST)
    assert plan(0, LAST, WANTED, was_low=False, is_starting=True) == Plan(True, 0)
    assert plan(2 * LAST, 0, WANTED, was_low=True, is_starting=False) == Plan(True, LAST)


def test_messages_are_taken_again_with_three_reserves_and_not_before() -> None:
    assert plan(2999, 0, WANTED, was_low=True, is_starting=False).is_low
    assert plan(3000, 0, WANTED, was_low=True, is_starting=False) == Plan(False, WANTED)


@given(
    free=st.integers(0, 5000),
    reserved=st.integers(0, WANTED),
    wanted=st.integers(0, WANTED),
    was_low=st.booleans(),
    is_starting=st.booleans(),
)
def test_what_is_decided_can_be_done(
    *, free: int, reserved: int, wanted: int, was_low: bool, is_starting: bool
) -> None:
    decided = plan(free, reserved, wanted, was_low=was_low, is_starting=is_starting)
    assert 0 <= decided.reserve_bytes <= free + reserved
    if decided.is_low:
        assert decided.reserve_bytes <= max(reserved, wanted // 4)
    else:
        assert decided.reserve_bytes == wanted
        left = free + reserved - wanted
        assert not plan(left, wanted, wanted, was_low=False, is_starting=False).is_low


class SmallDisk(OsSpace):
    """Real files, on a file system whose room a test sets."""

    def __init__(self, free_bytes: int) -> None:
        self.others_bytes = 0
        self.total_bytes = free_bytes
        self.reserve: Path | None = None

    def room(self, directory: Path) -> Room:
        taken = self.others_bytes + self.allocated_bytes(directory / RESERVE_FILE)
        return Room(self.total_bytes, max(0, self.total_bytes - taken))


def test_the_file_takes_its_room_and_gives_it_back(tmp_path: Path) -> None:
    disk = SmallDisk(1 << 20)
    reserve = DiskReserve(tmp_path, 64 << 10, disk)
    file = tmp_path / RESERVE_FILE
    reserve.look(is_starting=True)
    assert (reserve.is_low, disk.allocated_bytes(file)) == (False, 64 << 10)
    assert file.stat().st_mode & 0o777 == 0o600
    disk.others_bytes = (1 << 20) - (64 << 10)
    reserve.look()
    assert (reserve.is_low, disk.allocated_bytes(file)) == (True, 64 << 10)
    reserve.look()
    assert (reserve.is_low, disk.allocated_bytes(file)) == (True, 16 << 10)
    assert reserve.free_bytes == 48 << 10
    disk.others_bytes = (1 << 20) - (16 << 10)
    DiskReserve(tmp_path, 64 << 10, disk).look(is_starting=True)
    assert not file.exists()
    disk.others_bytes = 0
    reserve.look()
    assert (reserve.is_low, disk.allocated_bytes(file)) == (False, 64 << 10)


def test_a_small_file_system_keeps_most_of_itself_for_messages(tmp_path: Path) -> None:
    disk = SmallDisk(80 << 10)
    reserve = DiskReserve(tmp_path, 64 << 10, disk)
    reserve.look(is_starting=True)
    assert (reserve.is_low, reserve.wanted_bytes) == (False, 10 << 10)


def test_a_reserve_with_holes_is_filled(tmp_path: Path) -> None:
    files, file = OsSpace(), tmp_path / RESERVE_FILE
    with file.open("wb") as sparse:
        sparse.truncate(64 << 10)
    assert files.allocated_bytes(file) == 0
    files.allocate(file, 64 << 10)
    assert files.allocated_bytes(file) >= 64 << 10
