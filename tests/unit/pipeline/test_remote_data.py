"""Data that lies elsewhere: addresses of fsspec, and those that only say that it is here."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("aiohttp")

from ackgate import open_embedded, until_durable
from ackgate.cursor import MessageLedgers, Position
from ackgate.errors import AckGateError, NoSuchEntryError, StorageError
from ackgate.persistence import LedgerOptions, topic_path
from ackgate.persistence.nodes.topic_node import (
    MessageLedgerRecord,
    TopicNode,
    decode_topic_node,
    encode_topic_node,
)
from ackgate.pipeline.schema.addresses import (
    is_remote,
    joined,
    last_part,
    plain_address,
    shown_address,
)
from tests.unit.pipeline.loopback_files import served
from tests.unit.pipeline.table_reads import message, put_ledger, read_table

CLOSED, OPEN = 300, 20
PATH = topic_path("embedded", "default", "orders")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a broker that runs has it: an open ledger behind a closed one, a cursor's ledger, a log."""
    root, copy = tmp_path_factory.mktemp("live"), tmp_path_factory.mktemp("copy") / "data"

    async def make() -> None:
        async with open_embedded(root) as storage:
            entries = (message(n, payload=b"x" * 500) for n in range(CLOSED))
            closed = await put_ledger(storage, "orders", entries)
        # Closed: what was in its journal is in the ledgers' files now.
        async with open_embedded(root) as storage:
            writer = await storage.ledger_client.create(LedgerOptions())
            for number in range(CLOSED, CLOSED + OPEN):
                await writer.add_entry(message(number))
            stored = await storage.metadata.get(PATH)
            assert stored is not None
            before = decode_topic_node(stored.value, path=PATH).ledgers
            record = MessageLedgerRecord(writer.ledger_id, None, 0, 0, None)
            node = encode_topic_node(TopicNode((*before, record)))
            await storage.metadata.put(PATH, node, expected_version=None)
            facts = MessageLedgers()
            facts.open_ledger(closed)
            facts.add_entries(closed, CLOSED)
            store = await storage.open_cursor(
                "orders", "billing", facts, create_at=Position(closed, -1)
            )
            store.cursor.ack_many(closed, range(10, 50, 3))
            await until_durable(store)
            await asyncio.to_thread(shutil.copytree, root, copy)

    asyncio.run(make())
    return copy


@pytest.fixture(scope="module", params=["ranges", "whole files"])
def address(data: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    with served(data.parent, has_ranges=request.param == "ranges") as root:
        yield f"{root}/data"


def numbers(path: str, **options: str) -> list[int]:
    return [row["sequence_id"] for row in read_table(path, "messages", **options)]


def test_over_http_all_is_there_up_to_the_last_add_confirmed(address: str) -> None:
    # Whether the writer of the open ledger lives cannot be known from here.
    assert numbers(address) == list(range(CLOSED + OPEN - 1))
    states = read_table(address, "ack_state")
    assert (
        sum(r["end_entry_id"] - r["first_entry_id"] for r in states if r["kind"] == "range") == 14
    )
    rows = read_table(address, "ledgers")
    assert {row["role"] for row in rows} >= {"messages", "cursor"}
    files = [file for row in rows for file in row["files"]]
    assert files
    assert all(file["file"].startswith(address) and file["bytes"] > 0 for file in files)


def test_here_the_same_directory_is_read_to_its_end(data: Path) -> None:
    assert numbers(str(data)) == list(range(CLOSED + OPEN))


@pytest.mark.parametrize("prefix", ["file:", "file://", "file://localhost", "local://"])
def test_what_only_says_that_it_is_here_is_here(data: Path, prefix: str) -> None:
    assert numbers(f"{prefix}{data}") == list(range(CLOSED + OPEN))


def test_one_address_by_way_of_another(data: Path) -> None:
    with served(data.parent) as root:
        assert numbers(f"simplecache::{root}/data") == list(range(CLOSED + OPEN - 1))


def test_damage_elsewhere_is_named(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "data")
    damaged = max(tmp_path.glob("data/bookies/*/ledgers/*.avro"), key=lambda p: p.stat().st_size)
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 0xFF
    damaged.write_bytes(content)
    with served(tmp_path) as root:
        with pytest.raises(NoSuchEntryError, match=rf"{root}/data/.*{damaged.name}: bytes \d+"):
            numbers(f"{root}/data")
        left = numbers(f"{root}/data", onCorrupt="skip")
        lost = sum(row["entries_lost"] for row in read_table(f"{root}/data", "corrupt"))
    assert 0 < len(left) == CLOSED + OPEN - 1 - lost


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("nosuch://user:secret@host/data", r"nosuch://host/data/bookies cannot be read: .*nosuch"),
        ("{}/nothing", r"no bookies in http://127.0.0.1:\d+/nothing/bookies"),
    ],
)
def test_what_is_not_there(data: Path, where: str, told: str) -> None:
    with served(data.parent) as root, pytest.raises(AckGateError, match=told) as caught:
        numbers(where.format(root))
    assert "secret" not in str(caught.value)


def test_a_server_that_is_gone_is_told(data: Path) -> None:
    with served(data.parent) as root:
        address = f"{root}/data"
    with pytest.raises(StorageError, match=r"bookies cannot be read: "):
        numbers(address)


@pytest.mark.parametrize(
    ("address", "plain"),
    [
        ("/data", "/data"),
        ("file:/data", "/data"),
        ("file:///data", "/data"),
        ("local:///data", "/data"),
        ("file://localhost/data", "/data"),
        ("file.txt", f"{Path.cwd()}/file.txt"),
        ("s3://bucket/data", "s3://bucket/data"),
        ("dir::file:///data", "dir::file:///data"),
    ],
)
def test_plain_addresses(address: str, plain: str) -> None:
    assert plain_address(address) == plain
    assert is_remote(plain) == (not plain.startswith(("/", "file.")))


@pytest.mark.parametrize(
    ("address", "below"),
    [
        ("/data/", "/data/b"),
        ("s3://bucket", "s3://bucket/b"),
        ("simplecache::s3://bucket/data", "simplecache::s3://bucket/data/b"),
        ("zip://data::http://host/x.zip", "zip://data/b::http://host/x.zip"),
        ("dir::/data", "dir::/data/b"),
    ],
)
def test_names_below_an_address(address: str, below: str) -> None:
    assert joined(address, "b") == below
    assert last_part(below) == "b"


def test_what_people_see_holds_no_secret() -> None:
    assert shown_address("s3://key:secret@bucket/data") == "s3://bucket/data"
    assert shown_address("https://host/data?sig=secret") == "https://host/data"
    assert shown_address("a::https://u:p@host/data?sig=s::b") == "a::https://host/data::b"
