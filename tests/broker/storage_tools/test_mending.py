"""``ackgate bookies``: check finds, repair mends, and neither does harm."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from ackgate.testing import BrokerProcess
from tests.broker.storage_tools.conftest import (
    MESSAGES,
    SETTINGS,
    Tool,
    fragment_files,
    ledger_of,
    talk,
)


def contents(tool: Tool, data: Path, *where: object) -> int:
    ledger_id = ledger_of(tool, data, "message")
    told = tool("ledgers", "read", ledger_id, "--payload", "--data-dir", data, *where)
    assert told.code == 0, told.err
    return told.out.count("b'content")


def test_a_whole_directory_is_whole(tool: Tool, data: Path) -> None:
    told = tool("bookies", "check", "--data-dir", data)
    assert told.code == 0
    assert told.out.count("  ok") == 3
    assert "all copies are good" in told.out
    answer = tool("bookies", "check", "--data-dir", data, "--json").json
    assert answer["ledgers"] == []
    assert answer["totals"]["under_replicated_ledgers"] == 0
    assert len(answer["bookies"]) == 3


def test_lost_files_are_found_and_come_back(tool: Tool, data: Path) -> None:
    lost = fragment_files(data, 0)
    for file in lost:
        file.unlink()
    told = tool("bookies", "check", "--data-dir", data)
    assert told.code == 1
    assert "with copies missing or damaged" in told.out
    assert told.out.splitlines()[5].split()[:2] == ["ledger", "state"]
    mended = tool("bookies", "repair", "--data-dir", data)
    assert mended.code == 0, mended.out
    assert "copied" in mended.out
    assert tool("bookies", "check", "--data-dir", data).code == 0
    again = tool("bookies", "repair", "--data-dir", data)
    assert (again.code, "copied" in again.out) == (0, False)
    assert contents(tool, data) == MESSAGES


def test_a_lost_directory_is_replaced_only_when_told_so(tool: Tool, data: Path) -> None:
    shutil.rmtree(data / "bookies" / "1")
    (data / "bookies" / "3").mkdir()  # a new, empty disk
    told = tool("bookies", "repair", "--data-dir", data)
    assert told.code == 1
    assert "--replace-lost" in told.out
    assert "not here" in told.out
    mended = tool("bookies", "repair", "--data-dir", data, "--replace-lost")
    assert mended.code == 0, mended.out
    assert "given to other bookies" in mended.out
    shutil.rmtree(data / "bookies" / "0")
    assert contents(tool, data) == MESSAGES


def test_a_mistyped_directory_does_not_become_a_bookie(
    tool: Tool, data: Path, tmp_path: Path
) -> None:
    typo = tmp_path / "typo"
    listed = ",".join(str(data / "bookies" / str(i)) for i in range(3))
    told = tool("bookies", "repair", "--data-dir", data, "--bookies", f"{listed},{typo}")
    assert told.code == 1
    assert "there is no such directory" in told.out
    assert not typo.exists()


def test_one_ledger_can_be_asked_for(tool: Tool, data: Path) -> None:
    ledger_id = ledger_of(tool, data, "message")
    told = tool("bookies", "check", "--data-dir", data, "--ledger", ledger_id)
    assert "1 ledger checked" in told.out
    gone = tool("bookies", "check", "--data-dir", data, "--ledger", 4711)
    assert (gone.code, "4711: does not exist" in gone.out) == (1, True)
    assert "all copies are good" not in gone.out


def test_what_is_lost_is_told_and_the_broker_starts_all_the_same(tool: Tool, data: Path) -> None:
    for bookie in (0, 1, 2):
        for file in fragment_files(data, bookie):
            file.write_bytes(file.read_bytes()[:1000])
    told = tool("bookies", "repair", "--data-dir", data)
    assert told.code == 1
    assert "lost" in told.out
    with BrokerProcess(data, settings=SETTINGS):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_broker_goes_on_with_what_was_mended(tool: Tool, data: Path, seed: int) -> None:
    rng = random.Random(seed)
    for file in fragment_files(data, rng.randrange(3)):
        content = bytearray(file.read_bytes())
        for _ in range(5):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        file.write_bytes(content)
    assert tool("bookies", "repair", "--data-dir", data).code == 0
    shutil.rmtree(data / "bookies" / str(rng.randrange(3)))
    with BrokerProcess(data, settings=SETTINGS) as broker:
        talk(broker)
        broker.stop()
    rows = tool("ledgers", "list", "--data-dir", data, "--json").json
    assert sum(row["entries"] for row in rows if row["kind"] == "message") == 2 * MESSAGES


@pytest.mark.slow
def test_on_a_shared_metadata_store_repair_works_beside_a_running_broker(
    tool: Tool, tmp_path: Path, zookeeper_url: str
) -> None:
    data = tmp_path / "data"
    disks = ",".join(str(tmp_path / f"disk{i}") for i in range(3))
    settings = {**SETTINGS, "metadataStoreUrl": zookeeper_url, "bookieDirectories": disks}
    places = ("--metadata-url", zookeeper_url, "--bookies", disks)
    with BrokerProcess(data, settings=settings) as broker:
        talk(broker)
        broker.stop()
        lost = next(file for i in range(3) for file in (tmp_path / f"disk{i}/ledgers").iterdir())
        lost.unlink()
        broker.start()
        talk(broker)
        assert tool("bookies", "check", *places).code == 1
        mended = tool("bookies", "repair", *places)
        assert mended.code == 0, mended.out
        assert "copied" in mended.out
        checked = tool("bookies", "check", *places)
        assert checked.code == 0, checked.out
        talk(broker)


def test_adoption_is_planned_after_a_kill_and_not_beside_a_broker(
    tool: Tool, crashed: Path
) -> None:
    """The node by which brokers know of each other is still there after a kill."""
    planned = tool("ledgers", "adopt", "--data-dir", crashed)
    assert (planned.code, planned.err) == (0, "")
    assert "the metadata have forgotten nothing" in planned.out
    with BrokerProcess(crashed, settings=SETTINGS):
        refused = tool("ledgers", "adopt", "--data-dir", crashed)
        assert (refused.code, refused.out) == (2, "")
        assert "stop all brokers first" in refused.err
