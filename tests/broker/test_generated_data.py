"""`ackgate pipeline generate`: a real broker serves what was made without one."""

import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import AsyncExitStack

import pulsar
import pytest

from ackgate.__main__ import main
from ackgate.persistence import BookieLedgerClient, SqliteMetadataStore, open_bookies
from ackgate.testing import BrokerProcess

pytestmark = pytest.mark.slow


def generate(data, *words):
    return main(["pipeline", "generate", "--data-dir", str(data), "--seed", "7", *words])


def received(consumer, count_min):
    """At least so many, and what else comes within a second."""
    got = [consumer.receive(60_000) for _ in range(count_min)]
    while True:
        try:
            got.append(consumer.receive(1_000))
        except pulsar.Timeout:
            return got


async def stored(data):
    """All entries of all ledgers, and the nodes of topics and cursors."""
    async with AsyncExitStack() as stack:
        metadata = await SqliteMetadataStore.open(data / "metadata.sqlite", read_only=True)
        stack.push_async_callback(metadata.close)
        bookies = await open_bookies([data / "bookies" / "0"], is_read_only=True)
        client = BookieLedgerClient(bookies, metadata)
        stack.push_async_callback(client.close)
        entries = {}
        for ledger_id in await client.ledger_ids():
            reader = await client.open_without_recovery(ledger_id)
            last = await reader.last_entry_found()
            entries[ledger_id] = await reader.read_unconfirmed(0, last) if last >= 0 else []
        root = "/managed-ledgers/public/default/persistent"
        paths = [f"{root}/{topic}" for topic in await metadata.children(root)]
        paths += [f"{topic}/subscription-0" for topic in paths]
        return entries, {path: (await metadata.get(path)).value for path in paths}


def test_a_broker_serves_exactly_what_is_not_acked(tmp_path, capsys):
    data = tmp_path / "data"

    code = generate(
        data, "--messages", "400", "--acked-share", "0.5", "--holes", "5", "--ledger-entries", "90",
        "--keys", "20", "--json",
    )  # fmt: skip

    assert code == 0
    assert json.loads(capsys.readouterr().out)["figures"]["message_ledgers"] == 5
    with BrokerProcess(data) as broker:
        client = pulsar.Client(broker.service_url)
        consumer = client.subscribe("generated-0", "subscription-0", pulsar.ConsumerType.Shared)
        sequence = [
            (m.message_id().ledger_id(), m.message_id().entry_id()) for m in received(consumer, 201)
        ]
        consumer.close()
        reader = client.create_reader("generated-0", pulsar.MessageId.earliest)
        everything = []
        while reader.has_message_available():
            everything.append(reader.read_next(60_000))
        producer = client.create_producer("generated-0")
        producer.send(b"one more")
        assert reader.read_next(60_000).data() == b"one more"
        client.close()
    positions = [(m.message_id().ledger_id(), m.message_id().entry_id()) for m in everything]
    assert len(set(positions)) == 400
    holes = sorted(set(sequence) & set(positions[:200]))
    assert 1 <= len(holes) <= 5
    assert sorted(sequence) == holes + positions[200:]
    assert {len(m.data()) for m in everything} == {100}
    assert {m.partition_key()[:4] for m in everything} == {"key-"}


def test_clients_read_generated_batches(tmp_path):
    assert (
        generate(tmp_path / "data", "--messages", "100", "--batch-size", "7", "--topics", "2") == 0
    )

    with BrokerProcess(tmp_path / "data") as broker:
        client = pulsar.Client(broker.service_url)
        for topic in ("generated-0", "generated-1"):
            consumer = client.subscribe(topic, "subscription-0")
            messages = received(consumer, 50)
            assert len(messages) == 50
            assert {len(m.data()) for m in messages} == {100}
            assert all(m.partition_key().startswith("key-") for m in messages)
        client.close()


def test_delayed_messages_wait(tmp_path):
    now_ms = time.time_ns() // 1_000_000
    assert generate(tmp_path / "data", "--messages", "200", "--delayed-share", "0.5",
                    "--start-ms", str(now_ms + 3_600_000)) == 0  # fmt: skip

    with BrokerProcess(tmp_path / "data") as broker:
        client = pulsar.Client(broker.service_url)
        consumer = client.subscribe("generated-0", "subscription-0", pulsar.ConsumerType.Shared)
        at_once = len(received(consumer, 61))
        client.close()
    assert 60 < at_once < 140


def test_the_same_seed_makes_the_same_data(tmp_path):
    words = ("--messages", "3000", "--topics", "3", "--skew", "0.5", "--acked-share", "0.4")
    assert generate(tmp_path / "one", *words) == 0
    assert generate(tmp_path / "two", *words) == 0

    one, two = (asyncio.run(stored(tmp_path / name)) for name in ("one", "two"))

    assert one == two
    assert sum(map(len, one[0].values())) == 3_000 + 3 * 24, "messages, and the cursors' records"


def test_a_directory_that_exists_is_left_alone(tmp_path, capsys):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine").touch()

    assert generate(tmp_path / "data", "--messages", "10") == 2

    assert "exists" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["data", "mine"]


def test_killed_half_way_it_leaves_nothing_and_runs_again(tmp_path):
    data = tmp_path / "data"
    words = ["--data-dir", str(data), "--seed", "1", "--topics", "100", "--messages", "1000000"]
    with subprocess.Popen(
        [sys.executable, "-m", "ackgate", "pipeline", "generate", *words],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        assert running.stderr is not None
        assert "10,000 of 1,000,000 messages" in running.stderr.readline()
        running.kill()
    assert not data.exists()
    left = os.listdir(tmp_path)
    assert len(left) == 1
    assert "staging" in left[0]

    assert generate(data, "--messages", "10") == 0

    assert os.listdir(tmp_path) == ["data"]
