"""``ackgate ledgers``: list, show, read, verify."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ackgate.commands.cli import main
from ackgate.persistence.ledgers.client import BookieLedgerClient
from ackgate.testing import BrokerProcess
from tests.broker.storage_tools.conftest import (
    MESSAGES,
    SETTINGS,
    TOPIC,
    Tool,
    fragment_files,
    ledger_of,
    stored_ranges,
    talk,
)
from tests.broker.target import eventually


def fingerprints(directory: Path) -> dict[Path, str]:
    return {
        path: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.endswith(("-shm", "-wal"))
    }


def test_list_tells_what_each_ledger_is_for(tool: Tool, crashed: Path) -> None:
    before = fingerprints(crashed)
    told = tool("ledgers", "list", "--data-dir", crashed)
    assert (told.code, told.err) == (0, "")
    lines = told.out.splitlines()
    assert lines[0].split() == [
        "ledger",
        "state",
        "kind",
        "entries",
        "size",
        "E/W/A",
        "created",
        "of",
    ]
    assert any(f"message  {MESSAGES:>7}" in line and TOPIC in line for line in lines)
    assert any(" cursor " in line and line.endswith(f"{TOPIC} cursor billing") for line in lines)
    assert len({line.index(" 3/2/2 ") for line in lines[1:]}) == 1, "aligned"
    assert fingerprints(crashed) == before


def test_list_can_be_narrowed_down(tool: Tool, crashed: Path) -> None:
    rows = tool("ledgers", "list", "--data-dir", crashed, "--json").json
    assert {row["topic"] for row in rows} == {TOPIC}
    assert {row["kind"] for row in rows} == {"message", "cursor"}
    assert all(row["ensembleSize"] == 3 and len(row["fragments"]) == 1 for row in rows)
    assert (
        tool("ledgers", "list", "--data-dir", crashed, "--topic", "orders", "--json").json == rows
    )
    unnamed = tool("ledgers", "list", "--data-dir", crashed, "--topic", "")
    assert unnamed.code == 2
    assert "invalid topic name ''" in unnamed.err
    none = tool("ledgers", "list", "--data-dir", crashed, "--topic", "other")
    assert none.out == "no ledgers\n"
    states = {
        row["state"]
        for row in tool("ledgers", "list", "--data-dir", crashed, "--state", "open", "--json").json
    }
    assert states == {"OPEN"}


def test_show_tells_the_copies_and_a_cursors_records(tool: Tool, crashed: Path) -> None:
    ledger_id = ledger_of(tool, crashed, "cursor")
    told = tool("ledgers", "show", ledger_id, "--data-dir", crashed)
    assert told.code == 0
    assert f"cursor ledger of {TOPIC} cursor billing" in told.out
    assert "ensemble 3, write quorum 2, ack quorum 2" in told.out
    assert "snapshot" in told.out
    answer = tool("ledgers", "show", ledger_id, "--data-dir", crashed, "--json").json
    records = answer["records"]
    assert [record["entryId"] for record in records] == list(range(answer["entries"]))
    versions = [record["version"] for record in records]
    assert versions == sorted(versions)
    assert records[-1]["ranges"] > 0
    copies = answer["copies"][0]["copies"]
    assert sum(copy["good"] for copy in copies) == 2 * answer["entries"]


def test_read_tells_messages_and_their_content_only_if_asked(tool: Tool, data: Path) -> None:
    ledger_id = ledger_of(tool, data, "message")
    told = tool("ledgers", "read", ledger_id, "3..5", "--data-dir", data)
    lines = told.out.splitlines()
    assert [line.split()[0] for line in lines] == [f"{ledger_id}:{n}" for n in (3, 4, 5)]
    assert "producer=shop" in lines[0]
    assert "key=k0" in lines[0]
    assert "n='3'" in lines[0]
    assert "content" not in told.out
    assert (
        "b'content 3'" in tool("ledgers", "read", ledger_id, 3, "--payload", "--data-dir", data).out
    )
    objects = [
        json.loads(line)
        for line in tool(
            "ledgers", "read", ledger_id, "--json", "--payload", "--data-dir", data
        ).out.splitlines()
    ]
    assert [base64.b64decode(o["payload"]) for o in objects] == [
        b"content %d" % n for n in range(MESSAGES)
    ]
    assert objects[7]["properties"] == {"n": "7"}
    assert objects[7]["sequenceId"] == 7
    shown = tool("ledgers", "read", ledger_id, 0, "--hex", "--data-dir", data).out
    assert shown.splitlines()[1].startswith("  00000000  0e 01 ")


def test_read_raw_gives_the_bytes_as_stored(data: Path, tool: Tool) -> None:
    ledger_id = ledger_of(tool, data, "message")
    command = [sys.executable, "-m", "ackgate", "ledgers", "read", str(ledger_id), "1", "--raw"]
    done = subprocess.run(
        [*command, "--data-dir", str(data)], capture_output=True, check=True, timeout=60
    )
    assert done.stdout.startswith(b"\x0e\x01")
    assert done.stdout.endswith(b"content 1")


@pytest.mark.parametrize(
    ("command", "code"), [("ledgers list", 0), (f"stats {TOPIC}", 0), ("bookies check", 1)]
)
def test_the_reader_of_a_pipe_may_go_away(data: Path, command: str, code: int) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    arguments = [sys.executable, "-m", "ackgate", *command.split(), "--data-dir", str(data)]
    done = subprocess.run(arguments, stdout=writes, stderr=subprocess.PIPE, check=False)
    os.close(writes)
    assert (done.returncode, done.stderr) == (code, b"")


def test_bookies_that_are_not_there_are_named(tool: Tool, data: Path, tmp_path: Path) -> None:
    told = tool("ledgers", "list", "--data-dir", data, "--bookies", tmp_path / "none")
    assert told.code == 1
    assert f"{tmp_path / 'none'}: there is no such directory" in told.err
    assert TOPIC in told.out


def test_a_bookie_that_is_gone_is_no_good_news_for_what_was_still_written(
    tool: Tool, crashed: Path
) -> None:
    shutil.rmtree(crashed / "bookies" / "1")
    for action in ("check", "repair"):
        told = tool("bookies", action, "--data-dir", crashed)
        assert told.code == 1
        assert "; not here: 1-" in told.out


@pytest.mark.parametrize("entries", ["x", "5..3", "1..x"])
def test_a_range_that_is_none_is_a_wrong_command_line(tool: Tool, data: Path, entries: str) -> None:
    ledger_id = ledger_of(tool, data, "message")
    told = tool("ledgers", "read", ledger_id, entries, "--data-dir", data)
    assert told.code == 2
    assert entries in told.err


def test_what_is_not_there_is_said(tool: Tool, data: Path, tmp_path: Path) -> None:
    ledger_id = ledger_of(tool, data, "message")
    for entries in ("999", "0..999", "999.."):
        told = tool("ledgers", "read", ledger_id, entries, "--data-dir", data)
        assert (told.code, told.out) == (1, "")
        assert "entry 999 is beyond the last one" in told.err
    assert "ledger 4711 does not exist" in tool("ledgers", "show", 4711, "--data-dir", data).err
    nowhere = tool("ledgers", "list", "--data-dir", tmp_path / "nowhere")
    assert nowhere.code == 2
    assert "no broker has kept anything" in nowhere.err
    assert not (tmp_path / "nowhere").exists()
    assert tool("ledgers", "list", "--data-dir", data, "--metadata-url", "etcd:x").code == 2
    gone = tool("ledgers", "verify", "--data-dir", data, "--bookies", tmp_path / "none")
    assert gone.code == 1
    assert "there is no such directory" in gone.out


def test_places_come_from_the_brokers_configuration(tool: Tool, data: Path, tmp_path: Path) -> None:
    moved = [shutil.move(data / "bookies" / str(i), tmp_path / f"disk{i}") for i in range(3)]
    (data / "metadata.sqlite").rename(tmp_path / "elsewhere.sqlite")
    config = tmp_path / "broker.conf"
    config.write_text(
        f"bookieDirectories={','.join(map(str, moved))}\n"
        f"metadataStoreUrl=sqlite:{tmp_path / 'elsewhere.sqlite'}\n"
    )
    told = tool("ledgers", "verify", "--config", config)
    assert (told.code, "all copies are good" in told.out) == (0, True)
    named = tool(
        *("ledgers", "verify", "--metadata-url", f"sqlite:{tmp_path / 'elsewhere.sqlite'}"),
        *("--bookies", ",".join(map(str, moved))),
    )
    assert named.out == told.out


def test_a_ledger_that_is_deleted_amid_a_list_is_left_out(
    tool: Tool, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a broker that trims: it is no failure, and the list is complete without it."""
    listed = BookieLedgerClient.ledger_ids

    async def with_others(client: BookieLedgerClient) -> list[int]:
        return [*await listed(client), 4711]

    whole = tool("ledgers", "list", "--data-dir", data)
    monkeypatch.setattr(BookieLedgerClient, "ledger_ids", with_others)
    assert tool("ledgers", "list", "--data-dir", data) == whole
    assert whole.code == 0


def test_a_list_with_damaged_places_is_a_finding(tool: Tool, crashed: Path) -> None:
    assert tool("bookies", "list", "--data-dir", crashed).code == 0  # a torn tail is no damage
    identity = crashed / "bookies" / "1" / "bookie.json"
    identity.write_bytes(b"nonsense")
    for form in ([], ["--json"]):
        for action in ("list", "check"):
            told = tool("bookies", action, "--data-dir", crashed, *form)
            assert (told.code, f"{identity} is damaged" in told.out) == (1, True)
    assert tool("bookies", "repair", "--data-dir", crashed).code == 0
    assert tool("bookies", "list", "--data-dir", crashed).code == 0


def test_verify_names_ledger_bookie_and_file_of_what_is_damaged(tool: Tool, data: Path) -> None:
    assert tool("ledgers", "verify", "--data-dir", data).code == 0
    ledger_id = ledger_of(tool, data, "message")
    file = next(f for f in fragment_files(data, 1) if f.name.startswith(f"{ledger_id:019d}"))
    content = bytearray(file.read_bytes())
    at = content.index(b"content 1")
    content[at] ^= 1
    file.write_bytes(content)
    told = tool("ledgers", "verify", "--data-dir", data)
    assert told.code == 1
    assert "1 with copies missing or damaged" in told.out
    (finding,) = tool("ledgers", "verify", ledger_id, "--data-dir", data, "--json").json["ledgers"]
    bad = [copy for copy in finding["fragments"][0]["copies"] if copy["damaged"]]
    assert len(bad) == 1
    assert bad[0]["bookie"].startswith("1-")
    # Everything can still be read, from the other copy.
    read = tool("ledgers", "read", ledger_id, "--payload", "--data-dir", data)
    assert read.code == 0
    assert read.out.count("content") == MESSAGES


def test_beside_a_running_broker_everything_is_seen_and_nothing_is_touched(
    tool: Tool, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, settings=SETTINGS) as broker:
        talk(broker)
        eventually(lambda: stored_ranges(data) == MESSAGES // 2)
        rows = tool("ledgers", "list", "--data-dir", data, "--state", "open", "--json").json
        messages = next(row for row in rows if row["kind"] == "message")
        assert messages["entries"] == MESSAGES
        cursor = next(row["ledgerId"] for row in rows if row["kind"] == "cursor")
        assert tool("ledgers", "show", cursor, "--data-dir", data).code == 0
        assert tool("ledgers", "verify", "--data-dir", data).code == 0
        checked = tool("bookies", "check", "--data-dir", data)
        assert checked.code == 0
        assert "left to their owner" in checked.out
        refused = tool("bookies", "repair", "--data-dir", data)
        assert refused.code == 2
        assert "held by another broker" in refused.err
        refused = tool("ledgers", "adopt", "--data-dir", data)
        assert refused.code == 2
        assert "stop all brokers first: 127.0.0.1:" in refused.err
        talk(broker)  # nobody was fenced
        broker.kill()
        # What the crash left in the journals is seen, too.
        rows = tool("ledgers", "list", "--data-dir", data, "--topic", TOPIC, "--json").json
        assert sum(row["entries"] for row in rows if row["kind"] == "message") == 2 * MESSAGES


@pytest.mark.parametrize("rate", ["0", "-5", "nan", "inf"])
def test_a_repair_that_is_limited_to_nothing_is_refused(tool: Tool, data: Path, rate: str) -> None:
    refused = tool("bookies", "repair", "--data-dir", data, "--bytes-per-second", rate)
    assert refused.code == 2
    assert f"--bytes-per-second {rate}: more than 0" in refused.err


@pytest.mark.parametrize("seed", range(12))
def test_damaged_files_give_errors_and_no_tracebacks(tool: Tool, data: Path, seed: int) -> None:
    rng = random.Random(seed)
    files = [f for i in range(3) for f in fragment_files(data, i)]
    files += list((data / "bookies").glob("*/bookie.json"))
    for file in rng.sample(files, rng.randint(1, len(files))):
        content = bytearray(file.read_bytes())
        match rng.randrange(4):
            case 0:
                content = content[: rng.randrange(len(content) + 1)]
            case 1:
                content = bytearray(rng.randbytes(len(content)))
            case _:
                for _ in range(rng.randint(1, 20)):
                    content[rng.randrange(len(content))] = rng.randrange(256)
        file.write_bytes(content)
    rows = tool("ledgers", "list", "--data-dir", data, "--json").json
    for row in rows:
        for shown in ([], ["--json"]):
            told = tool("ledgers", "show", row["ledgerId"], "--data-dir", data, *shown)
            assert told.code in (0, 1)
        for form in ([], ["--json", "--payload"], ["--hex"]):
            read = tool("ledgers", "read", row["ledgerId"], "--data-dir", data, *form)
            assert read.code in (0, 1)
    assert tool("ledgers", "verify", "--data-dir", data).code in (0, 1)
    assert tool("bookies", "check", "--data-dir", data).code in (0, 1)
    assert tool("bookies", "repair", "--data-dir", data).code in (0, 1)
    assert tool("bookies", "repair", "--data-dir", data, "--replace-lost").code in (0, 1)


@pytest.mark.parametrize("damage", ["cut", "foreign", "node"])
def test_damaged_metadata_is_an_error_that_names_it(tool: Tool, data: Path, damage: str) -> None:
    database = data / "metadata.sqlite"
    if damage == "node":
        import sqlite3

        with sqlite3.connect(database) as connection:
            connection.execute("UPDATE node SET value = x'7b' WHERE parent = '/ledgers'")
        connection.close()
    else:
        content = database.read_bytes()
        database.write_bytes(content[:3000] if damage == "cut" else os.urandom(5000))
        for extra in data.glob("metadata.sqlite-*"):
            extra.unlink()
    for command in (("ledgers", "list"), ("ledgers", "verify"), ("bookies", "check")):
        told = tool(*command, "--data-dir", data)
        assert told.code in (1, 2)
        assert "metadata" in told.err + told.out


def test_the_password_is_read_from_the_configuration_and_never_shown(
    tool: Tool, tmp_path: Path
) -> None:
    data, config = tmp_path / "data", tmp_path / "broker.conf"
    secret = {**SETTINGS, "managedLedgerDigestType": "MAC", "managedLedgerPassword": "hush"}
    with BrokerProcess(data, settings=secret) as broker:
        talk(broker)
        broker.stop()
    without = tool("bookies", "check", "--data-dir", data)
    assert "not verified" in without.out
    assert tool("ledgers", "list", "--data-dir", data).code == 0
    ledger = str(ledger_of(tool, data, "message"))
    refused = tool("ledgers", "read", ledger, "--data-dir", data)
    assert (refused.code, "password" in refused.err) == (1, True)
    assert "not verified" in tool("ledgers", "show", ledger, "--data-dir", data).out
    config.write_text("managedLedgerPassword=hush\n")
    told = tool("ledgers", "verify", "--data-dir", data, "--config", config)
    assert (told.code, "not verified" in told.out) == (0, False)
    read = tool("ledgers", "read", ledger, "--payload", "--data-dir", data, "--config", config)
    assert read.out.count("content") == MESSAGES
    assert "hush" not in told.out + read.out + refused.err


def test_help_speaks_of_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["bookies", "--help"], ["ledgers", "--help"], ["ledgers", "read", "--help"]):
        with pytest.raises(SystemExit):
            main(command)
    assert "verify every copy" in capsys.readouterr().out


def test_stats_find_storage_through_the_brokers_configuration(
    tool: Tool, crashed: Path, tmp_path: Path
) -> None:
    moved = [shutil.move(crashed / "bookies" / str(i), tmp_path / f"disk{i}") for i in range(3)]
    config = tmp_path / "broker.conf"
    config.write_text(f"bookieDirectories={','.join(map(str, moved))}\n")
    told = tool("stats", "orders", "--data-dir", crashed, "--config", config, "--json").json
    (billing,) = told["subscriptions"]
    assert billing["ackState"]["rangesPersisted"] == MESSAGES // 2
