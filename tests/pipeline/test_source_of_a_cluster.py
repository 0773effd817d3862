"""The tables of a cluster: metadata in a real ZooKeeper, copies on three bookies, two brokers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pulsar
import pytest

from ackgate.pipeline import register
from ackgate.testing import BrokerCluster

MESSAGES = 90
SETTINGS = {
    "managedLedgerDefaultEnsembleSize": 3,
    "managedLedgerDefaultWriteQuorum": 2,
    "managedLedgerDefaultAckQuorum": 2,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with BrokerCluster(tmp_path_factory.mktemp("cluster"), settings=SETTINGS) as running:
        client = pulsar.Client(running.service_url)
        consumer = client.subscribe("orders", "billing", pulsar.ConsumerType.Shared)
        producer = client.create_producer("orders", batching_enabled=False)
        for number in range(MESSAGES):
            producer.send(str(number).encode())
        for _ in range(MESSAGES):
            message = consumer.receive(10_000)
            if int(message.data()) % 2:
                consumer.acknowledge(message)
        client.close()
        yield running


def test_copies_are_read_once_and_a_damaged_one_is_replaced(cluster, spark, tmp_path):
    register(spark)
    url = f"zk:{cluster.zookeeper.connection_string}"

    def read(table: str, bookies, **options: str):
        options |= {"metadataUrl": url, "bookies": ",".join(map(str, bookies)), "table": table}
        return spark.read.format("ackgate").options(topic="orders", **options).load().collect()

    bookies = cluster.bookie_directories
    # The brokers run: what is confirmed is read, once, though two bookies have it.
    live = read("messages", bookies)
    assert MESSAGES - 1 <= len(live) == len({row.entry_id for row in live})
    acked = {
        entry_id
        for row in read("ack_state", bookies, subscription="billing")
        for entry_id in range(row.first_entry_id, row.end_entry_id)
    }
    assert acked <= set(range(1, MESSAGES, 2))

    for broker in cluster.brokers:
        assert broker.stop() == 0, broker.log
    copies = [shutil.copytree(bookie, tmp_path / bookie.name) for bookie in bookies]
    (about,) = [row for row in read("ledgers", copies) if row.role == "messages"]
    assert (about.state, about.write_quorum, len(about.ensemble)) == ("CLOSED", 2, 3)
    assert {file.bookie for file in about.files} == set(about.ensemble)
    damaged = next(file for file in about.files if file.bookie == about.ensemble[0])
    file = Path(damaged.file)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    rows = read("messages", copies, columns="entry_id,payload")
    assert {row.entry_id: bytes(row.payload) for row in rows} == {
        number: str(number).encode() for number in range(MESSAGES)
    }
    assert len(rows) == MESSAGES
