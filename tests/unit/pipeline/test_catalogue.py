"""What a metadata store says is there, read without a broker."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from pathlib import Path

import pytest

from ackgate import EmbeddedStorage, open_embedded, until_durable
from ackgate.cursor import MessageLedgers, Position
from ackgate.errors import (
    AckGateError,
    CallerError,
    ConfigurationError,
    CorruptRecordError,
    NoSuchLedgerError,
)
from ackgate.persistence import LedgerOptions, topic_path
from ackgate.persistence.nodes.topic_node import MessageLedgerRecord, TopicNode, encode_topic_node
from ackgate.pipeline.catalogue.catalogue import (
    Catalogue,
    full_topic_name,
    open_catalogue,
    storage_address,
)
from ackgate.pipeline.schema.options import parse_options

ORDERS = "persistent://public/default/orders"
NAMES = (
    "orders",
    "orders/with slash?",
    "paid-partition-0",
    "paid-partition-10",
    "paid-partition-2",
)


async def _put_topic(storage: EmbeddedStorage, name: str) -> None:
    writer = await storage.ledger_client.create(LedgerOptions())
    node = TopicNode((MessageLedgerRecord(writer.ledger_id, None, 0, 5, None),), owner_epoch=3)
    path = topic_path("public", "default", name)
    await storage.metadata.put(path, encode_topic_node(node), expected_version=-1)


async def _make(root: Path) -> None:
    facts = MessageLedgers()
    facts.open_ledger(7)
    facts.add_entries(7, 100)
    async with open_embedded(root) as storage:
        for name in NAMES:
            await _put_topic(storage, name)
        store = await storage.open_cursor("mine", "billing", facts, create_at=Position(7, -1))
        store.cursor.ack_many(7, range(1, 100, 2))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("catalogue") / "data"
    asyncio.run(_make(root))
    return root


def opened(root: Path | str, **options: str) -> Catalogue:
    return open_catalogue(parse_options({"path": str(root), **options}))


def test_topics_in_full_and_short_and_partitions_in_order(made: Path) -> None:
    with opened(made) as catalogue:
        names = [topic.name for topic in catalogue.topics()]
        assert len(names) == len(NAMES) + 1
        assert "persistent://embedded/default/mine" in names
        assert "persistent://public/default/orders/with slash?" in names
        for name in ("orders", "public/default/orders", ORDERS):
            assert [topic.name for topic in catalogue.topics([name])] == [ORDERS]
        numbers = [
            t.name.rpartition("-")[2] for t in catalogue.topics(["paid", "paid-partition-2"])
        ]
        assert numbers == ["0", "2", "10"]


def test_an_unknown_topic_is_told_with_those_that_come_near(made: Path) -> None:
    with opened(made) as catalogue:
        with pytest.raises(CallerError, match=f"order in .*did you mean.*{ORDERS}"):
            catalogue.topic("order")
        with pytest.raises(CallerError, match="no topic"):
            catalogue.topics(["orders", "zzzz"])


@pytest.mark.parametrize("name", ["", "a/b", "persistent://a/b", "non-persistent://a/b/c", "//c"])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(CallerError, match="a name is TOPIC"):
        full_topic_name(name)


def test_message_ledgers_and_their_metadata(made: Path) -> None:
    with opened(made) as catalogue:
        node = catalogue.message_ledgers(catalogue.topic("orders"))
        assert node.owner_epoch == 3
        (record,) = node.ledgers
        assert catalogue.entry(record.ledger_id).metadata.ledger_id == record.ledger_id
        with pytest.raises(NoSuchLedgerError, match="999"):
            catalogue.ledger(999)
        # A host that embeds cursors keeps its messages elsewhere.
        mine = catalogue.topic("embedded/default/mine")
        assert catalogue.message_ledgers(mine) == TopicNode()


def test_cursors_by_name(made: Path) -> None:
    with opened(made) as catalogue:
        topics = catalogue.topics()
        (cursor,) = catalogue.all_cursors(topics, "billing")
        assert cursor.topic.name == "persistent://embedded/default/mine"
        assert cursor.buckets == []
        with pytest.raises(CallerError, match=r"'biling'.*did you mean billing"):
            catalogue.all_cursors(topics, "biling")
        assert catalogue.cursors(catalogue.topic("orders")) == []


def test_a_cursors_ledgers_are_those_that_say_so(tmp_path: Path) -> None:
    async def beside() -> None:
        facts = MessageLedgers()
        facts.open_ledger(7)
        facts.add_entries(7, 100)
        async with open_embedded(tmp_path / "data") as storage:
            for name in ("one", "two"):
                store = await storage.open_cursor("mine", name, facts, create_at=Position(7, -1))
                store.cursor.ack(Position(7, 41))
                await until_durable(store)
            with opened(tmp_path / "data") as catalogue:
                found = catalogue.cursors(catalogue.topic("embedded/default/mine"))
                assert [cursor.name for cursor in found] == ["one", "two"]
                assert all(cursor.node.cursor_ledger_id is not None for cursor in found)

    asyncio.run(beside())


def test_the_bookies_are_found_and_the_password_stays_inside(made: Path, tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("managedLedgerPassword=hunter2\n")
    address = storage_address(parse_options({"path": str(made), "config": str(config)}))
    assert address.password == b"hunter2"
    assert "hunter2" not in repr(address)
    assert [Path(bookie).name for bookie in address.bookies] == ["0"]
    with pytest.raises(CallerError, match="there is no file"):
        storage_address(parse_options({"path": str(made), "config": "nowhere.conf"}))


def test_a_directory_elsewhere_is_read_with_its_log(tmp_path: Path) -> None:
    """The writer lives, so that what it wrote is in the log only."""
    files = pytest.importorskip("fsspec").filesystem("memory")

    async def copy() -> None:
        async with open_embedded(tmp_path / "data") as storage:
            await _put_topic(storage, "orders")
            assert (tmp_path / "data" / "metadata.sqlite-wal").stat().st_size
            files.put(str(tmp_path / "data"), "/away", recursive=True)

    asyncio.run(copy())
    try:
        with opened("memory://away") as catalogue:
            assert catalogue.topic("orders").name == ORDERS
        address = storage_address(parse_options({"path": "memory://away"}))
        assert address.bookies == ("memory://away/bookies/0",)
        with pytest.raises(ConfigurationError, match="there is no memory://nothing"):
            opened("memory://away", metadataUrl="sqlite:memory://nothing")
    finally:
        files.rm("/away", recursive=True)


def test_it_reads_beside_a_writer(tmp_path: Path) -> None:
    async def beside() -> None:
        async with open_embedded(tmp_path / "data") as storage:
            for name in ("one", "two"):
                await _put_topic(storage, name)
                with opened(tmp_path / "data") as catalogue:
                    assert catalogue.topic(name).name.endswith(name)

    asyncio.run(beside())


def test_what_is_no_data_directory(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thing.txt").write_text("x")
    foreign = tmp_path / "foreign"
    (foreign / "bookies" / "0").mkdir(parents=True)
    sqlite3.connect(foreign / "metadata.sqlite").execute("CREATE TABLE t (x)").connection.close()
    for name, told in {
        "absent": "there is no directory",
        "empty": "is empty",
        "file": "is not a directory",
        "other": "no bookies",
        "foreign": "is not a metadata store of ackgate",
    }.items():
        with pytest.raises(AckGateError, match=told) as caught:
            opened(tmp_path / name)
        assert name in str(caught.value)
    (foreign / "metadata.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(AckGateError, match="foreign"):
        opened(foreign)


def test_a_later_format_is_named(made: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(made, tmp_path / "copy")
    connection = sqlite3.connect(copy / "metadata.sqlite")
    connection.execute("UPDATE node SET value = ? WHERE name = 'orders'", (b'{"format":9}',))
    connection.commit()
    with opened(copy) as catalogue, pytest.raises(CorruptRecordError, match=r"orders: format 9"):
        catalogue.message_ledgers(catalogue.topic("orders"))
    connection.execute("PRAGMA user_version = 3")
    connection.close()
    with pytest.raises(ConfigurationError, match="has format 3"):
        opened(copy)


def test_many_ledgers_are_read_at_once(made: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(made, tmp_path / "copy")
    with opened(copy) as catalogue:
        known = len(catalogue.ledger_nodes)
        value = next(iter(catalogue.ledger_nodes.values()))
    connection = sqlite3.connect(copy / "metadata.sqlite")
    connection.executemany(
        "INSERT INTO node VALUES ('/ledgers', ?, ?, 0, 0, 0, 0)",
        ((str(number), value) for number in range(1_000_000, 1_100_000)),
    )
    connection.commit()
    statements: list[str] = []
    with opened(copy) as catalogue:
        catalogue._nodes._connection.set_trace_callback(statements.append)
        assert len(catalogue.ledger_nodes) == known + 100_000
        assert catalogue.ledger(1_050_000).ledger_id == 1_050_000
    connection.close()
    assert len(statements) == 1
