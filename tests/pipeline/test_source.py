"""The tables of a real broker's data directory: while it runs, and after kill -9."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pulsar
import pytest

from ackgate.cursor import run_bounds
from ackgate.persistence import StoredCursorView, cursor_path, read_cursor, topic_path
from ackgate.persistence.offline_storage import opened_storage, storage_places
from ackgate.pipeline import register
from ackgate.testing import BrokerProcess
from tests.unit.pipeline.loopback_files import served

MESSAGES = 60
TOPIC = "persistent://public/default/orders"


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """One that has a topic with holes and delayed messages, and runs."""
    settings = {
        "acknowledgmentAtBatchIndexLevelEnabled": "true",
    }
    with BrokerProcess(tmp_path_factory.mktemp("data"), settings=settings) as running:
        client = pulsar.Client(running.service_url)
        consumer = client.subscribe("orders", "billing", pulsar.ConsumerType.Shared)
        producer = client.create_producer("orders", batching_enabled=False)
        for number in range(MESSAGES):
            producer.send(str(number).encode(), partition_key=f"k{number % 3}")
        received = [consumer.receive(10_000) for _ in range(MESSAGES)]
        for message in received:
            if int(message.data()) % 3 or int(message.data()) < 10:
                consumer.acknowledge(message)
        consumer.close()  # what is acked is on its way to storage by then
        client.close()
        yield running


@pytest.fixture(scope="module")
def tables(spark):
    register(spark)

    def read(broker: BrokerProcess, table: str, **options: str):
        reader = spark.read.format("ackgate").option("path", str(broker.data_directory))
        return reader.option("table", table).options(**options).load()

    return read


def stored_cursor(data_directory: Path) -> StoredCursorView:
    """As the command `ackgate ledgers` and a recovery see it."""

    async def read() -> StoredCursorView:
        async with opened_storage(storage_places(data_directory=data_directory)) as storage:
            path = cursor_path(topic_path("public", "default", "orders"), "billing")
            return await read_cursor(path, ledger_client=storage.client, metadata=storage.metadata)

    return asyncio.run(read())


def expected_state(view: StoredCursorView) -> list[tuple]:
    ledger_id, entry_id = view.snapshot.mark_delete
    ranges = [
        ("range", acked_ledger, start, stop)
        for acked_ledger, bitmap in view.snapshot.acked.items()
        for start, stop in zip(*(each.tolist() for each in run_bounds(bitmap)), strict=True)
    ]
    return sorted([("mark_delete", ledger_id, 0, entry_id + 1), *ranges])


def found_state(frame) -> list[tuple]:
    return sorted(
        (row.kind, row.ledger_id, row.first_entry_id, row.end_entry_id) for row in frame.collect()
    )


def check_cursor_tables(broker, tables):
    view = stored_cursor(broker.data_directory)
    assert found_state(tables(broker, "ack_state", topic="orders")) == expected_state(view)
    records = tables(broker, "cursor_records").collect()
    assert {(row.topic, row.subscription) for row in records} == {(TOPIC, "billing")}
    assert max(row.version for row in records) == view.snapshot.version


def test_cursor_tables_of_a_live_broker_and_of_one_that_was_killed(broker, tables):
    check_cursor_tables(broker, tables)
    live = tables(broker, "messages").count()
    assert MESSAGES - 1 <= live <= MESSAGES  # no later entry confirms the last one
    broker.kill()
    messages = tables(broker, "messages", columns="entry_id,key,payload,batch_size").collect()
    assert sorted(row.entry_id for row in messages) == list(range(MESSAGES))
    assert {(row.key, bytes(row.payload)) for row in messages} == {
        (f"k{number % 3}", str(number).encode()) for number in range(MESSAGES)
    }
    in_parts = tables(broker, "messages", columns="entry_id", splitBytes="1000")
    assert sorted(row.entry_id for row in in_parts.collect()) == list(range(MESSAGES))
    check_cursor_tables(broker, tables)


def test_ledgers_with_the_files_that_hold_them(broker, tables):
    rows = tables(broker, "ledgers").collect()
    assert {(row.role, row.topic, row.subscription) for row in rows} == {
        ("messages", TOPIC, None),
        ("cursor", TOPIC, "billing"),
    }
    (messages,) = [row for row in rows if row.role == "messages"]
    assert messages.state == "OPEN"
    assert (messages.fragment, messages.first_entry_id, messages.end_entry_id) == (0, 0, None)
    for row in rows:
        assert len(row.ensemble) == row.write_quorum == 1
        for file in row.files:
            path = Path(file.file)
            assert path.is_relative_to(broker.data_directory)
            assert (file.bookie, file.bytes) == (row.ensemble[0], path.stat().st_size)


def test_workers_read_over_http_what_the_driver_found_there(broker, tables, spark):
    pytest.importorskip("aiohttp")
    broker.kill()
    with served(broker.data_directory.parent) as root:
        reader = spark.read.format("ackgate").option("topic", "orders").option("table", "messages")
        rows = reader.load(f"{root}/{broker.data_directory.name}").collect()
    # The last one is confirmed by none behind it, and whether a broker lives nobody can tell from here.
    assert sorted(row.entry_id for row in rows) == list(range(MESSAGES - 1))


def test_damage_fails_or_is_skipped_and_told(broker, tables, tmp_path):
    directory = tmp_path / "copy"
    broker.kill()
    shutil.copytree(broker.data_directory, directory)
    broker_copy = BrokerProcess(directory)
    broker_copy.start().stop()  # moves what is in journals only into the ledgers' files
    damaged = max(directory.glob("bookies/*/ledgers/**/*.avro"), key=lambda p: p.stat().st_size)
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 0xFF
    damaged.write_bytes(content)
    with pytest.raises(Exception, match=damaged.name):
        tables(broker_copy, "messages").collect()
    left = tables(broker_copy, "messages", onCorrupt="skip").count()
    (row,) = tables(broker_copy, "corrupt").collect()
    assert row.file.endswith(damaged.name)
    assert row.entries_lost == MESSAGES - left > 0


def test_a_users_schema_is_a_choice_of_columns(broker, tables, spark):
    frame = (
        spark.read.format("ackgate")
        .option("path", str(broker.data_directory))
        .option("TABLE", "cursor_records")
        .schema("version bigint, acked array<struct<ledger_id:bigint,entry_ids:binary>>")
        .load()
    )
    assert frame.columns == ["version", "acked"]
    assert all(row.version > 0 for row in frame.collect())


def test_an_unknown_topic_is_told_with_its_neighbours(broker, tables):
    with pytest.raises(Exception, match=r"did you mean.*orders"):
        tables(broker, "ack_state", topic="oders").collect()


def test_the_page_shows_what_runs(broker, spark, tmp_path, capsys):
    page = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page.partition("## The tables")[2], re.DOTALL)
    broker.kill()
    (tmp_path / "data").symlink_to(broker.data_directory)
    code = "\n".join(blocks[:2])
    for name in ("data", "gaps", "checkpoint", "copied"):
        # Spark's processes are where it was started.
        code = code.replace(f'"{name}"', f'"{tmp_path / name}"')

    exec(code, {})

    assert re.search(r"k1\|", capsys.readouterr().out)
    copied = spark.read.parquet(str(tmp_path / "copied"))
    assert copied.columns == ["ledger_id", "entry_id", "key"]
    assert copied.count() == MESSAGES - 1
    assert not (tmp_path / "gaps").exists()
