"""The fences file: records of several writers, stumps between them."""

from __future__ import annotations

from pathlib import Path

from ackgate.persistence.bookies.register import Fences
from ackgate.persistence.system.disk import OsDisk


def joined(path: Path, *, is_alone: bool = False) -> Fences:
    return Fences.join(OsDisk(), path, is_alone=is_alone)


def test_everybody_hears_of_a_fence_once(tmp_path: Path) -> None:
    path = tmp_path / "fences"
    one, two = joined(path), joined(path)
    one.add([5, 2**62])
    two.add([7])
    assert one.poll() == two.poll() == {5, 7, 2**62}
    assert one.poll() == two.poll() == set()
    assert joined(path).poll() == set(), "what was fenced before one joined is nothing to one"


def test_a_stump_hides_nothing(tmp_path: Path) -> None:
    path = tmp_path / "fences"
    for stump in range(1, 12):
        listening, speaking = joined(path), joined(path)
        with path.open("ab") as file:
            file.write(b"\x07" * stump)
        assert listening.poll() == set()
        speaking.add([stump])
        speaking.add([100 + stump])
        assert listening.poll() == {stump, 100 + stump}


def test_half_a_record_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "fences"
    joined(path).add([9])
    record = path.read_bytes()
    listening = joined(path)
    with path.open("ab", buffering=0) as file:
        file.write(record[:5])
        assert listening.poll() == set()
        file.write(record[5:])
        assert listening.poll() == {9}


def test_a_process_alone_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "fences"
    joined(path).add(range(100))
    alone = joined(path, is_alone=True)
    assert path.stat().st_size == 0
    alone.add([3])
    assert alone.poll() == {3}
