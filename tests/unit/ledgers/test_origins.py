"""What each ledger was when a bookie began it: logs of several writers, crashes, damage, earlier formats."""

from __future__ import annotations

import contextlib
import errno
import json
import random
from pathlib import Path

import pytest
from google_crc32c import value as crc32c

from ackgate.errors import CorruptRecordError
from ackgate.persistence.bookies import origins as module
from ackgate.persistence.bookies.origins import LedgerOrigin, Origins
from tests.support.faulty_disk import FaultyDisk, ShortWrite, disk_error


def origin(ledger_id: int, text: str = "") -> LedgerOrigin:
    return LedgerOrigin(ledger_id, b'{"of":"%d %s"}' % (ledger_id, text.encode()))


def begin(origins: Origins, new: list[LedgerOrigin]) -> set[int]:
    """Durably."""
    taken = origins.begin(new)
    origins.sync()
    return taken


class Directory:
    """A directory of origins, and the writers that have it open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damages: list[str] = []
        self.disks: dict[str, FaultyDisk] = {}
        self._joined = 0

    def join(self) -> Origins:
        """One more writer."""
        name = f"{self._joined:016x}"
        self._joined += 1
        disk = FaultyDisk()
        made = Origins(disk, self.path, self.damages.append)
        made.join(name, [each for each, used in self.disks.items() if not used.is_gone])
        self.disks[name] = disk
        return made

    def power_loss(self, rng: random.Random) -> None:
        """Every process ends; of one that is alone what was not synced may go."""
        alive = [disk for disk in self.disks.values() if not disk.is_gone]
        if len(alive) == 1:
            alive[0].power_loss(rng)
        self.kill()

    def kill(self) -> None:
        for disk in self.disks.values():
            if not disk.is_gone:
                disk.crash()

    def logs(self) -> list[Path]:
        return sorted(self.path.glob("begun-*"))


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "origins")


def known(origins: Origins) -> dict[int, LedgerOrigin]:
    found = origins.all_of(origins.ids())
    assert {each.ledger_id for each in found} == origins.readable_ids()
    return {each.ledger_id: each for each in found}


def test_an_id_is_begun_once(directory: Directory) -> None:
    made = directory.join()
    assert begin(made, [origin(7)]) == set()
    assert begin(made, [origin(7)]) == set()  # the same one, asked for again
    assert begin(made, [origin(8), origin(7, "other")]) == {7}
    assert made.of(7) == origin(7)
    assert made.of(8) == origin(8)
    made.keep(origin(7, "changed"))
    assert made.of(7) == origin(7, "changed")
    assert begin(made, [origin(7)]) == {7}
    made.forget([7, 7, 100])
    assert made.of(7) is None
    assert made.ids() == {8}


@pytest.mark.parametrize("is_killed", [True, False])
def test_an_id_is_begun_once_over_restarts(directory: Directory, is_killed: bool) -> None:
    first = directory.join()
    begin(first, [origin(1 << 40)])
    if not is_killed:
        first.close()
    directory.kill()
    second = directory.join()
    assert begin(second, [origin(1 << 40, "other"), origin(2)]) == {1 << 40}
    directory.kill()
    assert known(directory.join()) == {1 << 40: origin(1 << 40), 2: origin(2)}
    assert len(directory.logs()) == 1


@pytest.mark.parametrize(("moment", "winner"), [("append", "other"), ("sync", "one")])
def test_of_two_that_begin_one_id_at_the_same_time_one_is_refused(
    directory: Directory, moment: str, winner: str
) -> None:
    one, other = directory.join(), directory.join()
    begin(one, [origin(1)])
    begin(other, [origin(2)])
    disk = directory.disks[f"{0:016x}"]

    def between(what: str, path: Path) -> None:
        del path
        if what == moment:
            disk.before = None
            assert begin(other, [origin(3, "other")]) == ({3} if winner == "one" else set())

    disk.before = between
    assert begin(one, [origin(3, "one"), origin(4)]) == ({3} if winner == "other" else set())
    assert known(one) == known(other)
    assert known(one) == {i: origin(i) for i in (1, 2, 4)} | {3: origin(3, winner)}
    assert begin(one, [origin(2, "one")]) == {2}
    assert known(one)[2] == origin(2)  # what another has begun stays


@pytest.mark.parametrize("seed", range(10))
def test_what_was_not_synced_may_go_with_the_power_and_nothing_else(
    directory: Directory, seed: int
) -> None:
    made = directory.join()
    begin(made, [origin(1), origin(2)])
    assert made.begin([origin(3), origin(4)]) == set()
    made.forget([3])
    directory.power_loss(random.Random(seed))
    left = known(directory.join())
    assert {1, 2} <= left.keys() <= {1, 2, 3, 4}
    assert all(each == origin(i) for i, each in left.items())


@pytest.mark.parametrize("failing", ["sync", "append"])
def test_what_could_not_be_synced_is_begun_again(directory: Directory, failing: str) -> None:
    made = directory.join()
    begin(made, [origin(1)])
    disk = directory.disks[f"{0:016x}"]

    def fails(what: str, path: Path) -> None:
        if what == failing:
            raise disk_error(errno.EIO, path)

    assert made.begin([origin(2), origin(3)]) == set()
    disk.before = fails
    made.forget([3])
    with pytest.raises(OSError, match="Input/output"):
        made.sync()
    disk.before = None
    assert made.ids() == {1}
    made.sync()  # nothing is left to be synced
    assert begin(made, [origin(2), origin(3)]) == set()
    directory.power_loss(random.Random(1))
    assert known(directory.join()) == {i: origin(i) for i in (1, 2, 3)}


@pytest.mark.parametrize("seed", range(15))
def test_many_writers_against_one_dictionary(
    directory: Directory, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun, kept, forgotten, by processes that end in every way: as one dictionary."""
    monkeypatch.setattr(module, "_COMPACT_BYTES_MIN", 500)
    monkeypatch.setattr(module, "_MERGED_AT_ONCE", 3)
    rng = random.Random(seed)
    model: dict[int, LedgerOrigin] = {}
    deleted: set[int] = set()
    writers: list[Origins] = [directory.join()]
    next_id = 0
    for _ in range(80):
        writer = rng.choice(writers)
        action = rng.random()
        if action < 0.5:
            batch = [origin(next_id + i, str(rng.random())) for i in range(rng.randrange(1, 6))]
            next_id += len(batch)
            again = [origin(i, "again") for i in rng.sample(sorted(model), min(2, len(model)))]
            assert begin(writer, batch + again) == {each.ledger_id for each in again}
            model.update((each.ledger_id, each) for each in batch)
        elif action < 0.6 and model:
            changed = origin(rng.choice(sorted(model)), "changed")
            writer.keep(changed)
            model[changed.ledger_id] = changed
        elif action < 0.85 and model:
            gone = rng.sample(sorted(model), rng.randrange(1, len(model) + 1))
            writer.look()
            writer.forget(gone)
            deleted.update(gone)
            for ledger_id in gone:
                del model[ledger_id]
        elif action < 0.93 and len(writers) < 3:
            writers.append(directory.join())
        else:
            directory.power_loss(rng) if rng.random() < 0.5 else directory.kill()
            writers = [directory.join()]
            writers[0].forget(deleted)  # as the bookie's list of deleted ledgers has it
        assert known(rng.choice(writers)) == model
    lines = [line for line in directory.damages if "lines are damaged" not in line]
    assert lines == []


def test_a_full_disk_keeps_nothing_half_and_holds_up_no_deletion(directory: Directory) -> None:
    made = directory.join()
    begin(made, [origin(1), origin(2)])
    disk = directory.disks[f"{0:016x}"]

    def full(what: str, path: Path) -> None:
        if what == "append":
            raise ShortWrite(30, errno.ENOSPC)
        if what == "create":
            raise disk_error(errno.ENOSPC, path)

    disk.before = full
    with pytest.raises(OSError, match="No space"):
        begin(made, [origin(3)])
    with pytest.raises(OSError, match="No space"):
        begin(made, [origin(3)])
    made.forget([1])
    assert made.ids() == {2}
    disk.before = None
    assert begin(made, [origin(3)]) == set()
    assert made.ids() == {2, 3}
    directory.kill()
    disk.room_bytes = 0
    assert {2, 3} <= directory.join().ids()
    assert len(directory.logs()) == 1


def test_logs_stay_where_they_are_when_there_is_no_room(directory: Directory) -> None:
    first, second = directory.join(), directory.join()
    begin(first, [origin(1)])
    begin(second, [origin(2)])
    directory.kill()
    disk = FaultyDisk()
    disk.room_bytes = 0
    third = Origins(disk, directory.path, directory.damages.append)
    third.join("f" * 16, [])
    assert third.ids() == {1, 2}
    assert len(directory.logs()) == 2
    assert begin(third, [origin(1, "other")]) == {1}
    disk.crash()
    assert directory.join().ids() == {1, 2}
    assert len(directory.logs()) == 1


@pytest.mark.parametrize("seed", range(20))
def test_damage_costs_the_lines_that_it_hits(directory: Directory, seed: int) -> None:
    rng = random.Random(seed)
    made = directory.join()
    for ledger_id in range(10):
        begin(made, [origin(ledger_id)])
    directory.kill()
    (log,) = directory.logs()
    content = bytearray(log.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    log.write_bytes(content)
    again = directory.join()
    assert len(again.ids()) >= 8
    assert all(each == origin(i) for i, each in known(again).items())
    (damage,) = directory.damages
    assert str(log) in damage
    left = again.ids()
    directory.kill()
    assert directory.join().ids() == left
    assert len(directory.damages) == 1  # told once


def test_a_damaged_file_is_not_believed(directory: Directory) -> None:
    made = directory.join()
    made.keep(origin(7))
    (path,) = directory.path.glob("*.json")
    good = path.read_bytes()
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with contextlib.suppress(CorruptRecordError):
            assert made.of(7) == origin(7)
    path.write_bytes(good[:-10])
    assert made.readable_ids() == set()
    assert str(path) in directory.damages[0]


def test_files_of_an_earlier_version_are_read(directory: Directory) -> None:
    """It wrote a file for each ledger, and a log of those that were not synced yet."""
    directory.path.mkdir()

    def line(each: LedgerOrigin) -> bytes:
        crc = crc32c(each.metadata + str(each.ledger_id).encode())
        text = each.metadata.decode()
        said = {"format": 1, "crc32c": crc, "ledger_id": each.ledger_id, "ledger": text}
        return json.dumps(said).encode()

    (directory.path / f"{3:019d}.json").write_bytes(line(origin(3)))
    (directory.path / f"{4:019d}.json").write_bytes(line(origin(4)))
    (directory.path / "begun-0").write_bytes(line(origin(4)) + b"\n" + line(origin(5)) + b"\n")
    looking = Origins(FaultyDisk(), directory.path, directory.damages.append)
    assert known(looking) == {i: origin(i) for i in (3, 4, 5)}
    made = directory.join()
    assert known(made) == {i: origin(i) for i in (3, 4, 5)}
    assert begin(made, [origin(3, "other"), origin(5, "other"), origin(6)]) == {3, 5}
    made.forget([3, 4])
    directory.kill()
    assert known(directory.join()) == {i: origin(i) for i in (5, 6)}
    assert directory.damages == []
    assert not (directory.path / "begun-0").exists()
