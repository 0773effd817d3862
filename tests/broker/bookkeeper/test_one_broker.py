"""One broker whose ledgers lie on three real bookies: the real client, kill -9, and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import re
import subprocess
import sys
import urllib.request
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

from ackgate.bookkeeper import BookKeeperClient, LedgerOptions
from ackgate.errors import CallerError, NoSuchLedgerError
from ackgate.testing import BrokerFailedError
from tests.broker.bookkeeper.conftest import new_root
from tests.broker.target import Target, eventually, numbered, payloads, receive, send_all

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.bookkeeper import RealBookKeeper

pytestmark = pytest.mark.slow

TOPIC = "persistent://public/default/orders"
SHARED = pulsar.ConsumerType.Shared


def custom_metadata(cluster: RealBookKeeper) -> dict[int, dict[str, bytes]]:
    """Of every ledger of the cluster, as an operator's tool reads it."""

    async def read() -> dict[int, dict[str, bytes]]:
        client = await BookKeeperClient.connect(cluster.uri, is_read_only=True)
        try:
            found = {}
            for ledger_id in await client.ledger_ids():
                with contextlib.suppress(NoSuchLedgerError):  # deleted since
                    found[ledger_id] = dict((await client.metadata(ledger_id)).custom_metadata)
            return found
        finally:
            await client.close()

    return asyncio.run(read())


def newest_of_ackgate(cluster: RealBookKeeper) -> int:
    """The newest ledger that a broker of ackgate has made: other tests leave theirs in the cluster."""
    found = custom_metadata(cluster).items()
    return max(ledger_id for ledger_id, custom in found if "ackgate/cluster" in custom)


def components(cluster: RealBookKeeper) -> set[bytes | None]:
    return {custom.get("component") for custom in custom_metadata(cluster).values()}


def test_nothing_is_lost_and_nothing_acked_comes_again_after_kill_9(
    real_bookkeeper, make_broker, make_client, tmp_path
):
    """Acks out of order, delayed messages in buckets, and the delivery journal are there, too.

    What storage holds of it the tools read, while no broker runs and before anything is recovered.
    """
    broker = make_broker(
        real_bookkeeper,
        deliveryJournalEnabled=True,
        deliveryJournalLingerMs=10,
        delayedDeliveryTrackerFactoryClassName=(
            "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"
        ),
        delayedDeliveryMinIndexCountPerBucket=10,
        delayedDeliveryMaxIndexCountPerBucket=20,
    ).start()
    target = Target(broker.service_url, broker.admin_url, is_ackgate=True)
    client = make_client(broker.service_url)
    consumer = client.subscribe(TOPIC, "s", consumer_type=SHARED)
    producer = client.create_producer(TOPIC)
    send_all(producer, numbered(200))
    for number in range(50):
        producer.send(b"later %d" % number, deliver_after=timedelta(hours=1))
    messages = receive(consumer, 200)
    for message in messages[::2]:
        consumer.acknowledge(message)
    eventually(lambda: persisted_ranges(target) == 99)
    kept = {b"cursor", b"delayed-bucket", b"delivery-journal"}
    eventually(lambda: kept <= components(real_bookkeeper), seconds=60)
    broker.kill()
    conf = tmp_path / "broker.conf"
    keys = ("metadataStoreUrl", "bookkeeperMetadataServiceUri")
    conf.write_text("".join(f"{key}={broker.settings[key]}\n" for key in keys))
    check_stats_of_storage(conf)
    check_tables_of_storage(conf)
    broker.start()
    again = receive(consumer, 100)
    assert sorted(payloads(again)) == sorted(numbered(200)[1::2])
    for message in again:
        consumer.acknowledge(message)
    eventually(lambda: target.backlog(TOPIC, "s") == 50)
    with urllib.request.urlopen(f"{broker.admin_url}/metrics", timeout=10) as answer:
        metrics = answer.read().decode()
    assert 'ackgate_bookkeeper_bookies_writable{cluster="standalone"} 3\n' in metrics
    adds = re.findall(r"^ackgate_bookkeeper_adds_total\{.*bookie=.*\} (\d+)", metrics, re.MULTILINE)
    assert len(adds) == 3
    assert all(int(count) > 0 for count in adds)
    assert broker.stop() == 0


def check_stats_of_storage(conf: Path) -> None:
    """Named by a broker.conf, and by two addresses."""
    metadata_url, uri = conf.read_text().splitlines()
    for places in (
        ("--config", str(conf)),
        (
            *("--metadata-url", metadata_url.partition("=")[2]),
            *("--bookkeeper", uri.partition("=")[2]),
        ),
    ):
        [answer] = json.loads(ackgate("stats", TOPIC, *places, "--json"))["subscriptions"]
        state = answer["ackState"]
        assert (answer["subscription"], state["rangesPersisted"]) == ("s", 99)
        assert state["recovery"]["lost"] is None
    refused = subprocess.run(
        [*ACKGATE, "stats", TOPIC, "--config", str(conf), "--bookies", "a,b"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert "not in directories" in refused.stderr
    assert "lie on the BookKeeper cluster" in refused.stderr


def check_tables_of_storage(conf: Path) -> None:
    """Rows as the data source gives them to Spark, planned and read as there."""
    pytest.importorskip("pyspark")
    from ackgate.pipeline.source.data_source import AckgateDataSource

    def rows(table: str, **options: str) -> list[dict[str, Any]]:
        source = AckgateDataSource({"config": str(conf), "table": table, **options})
        reader = source.reader(source.schema())
        partitions = pickle.loads(pickle.dumps(reader.partitions()))  # as on their way to workers
        return [row for part in partitions for b in reader.read(part) for row in b.to_pylist()]

    found = rows("messages", openLedgers="found", columns="entry_id,payload,deliver_at_ms")
    assert [row["payload"] for row in found[:200]] == numbered(200)
    assert sum(row["deliver_at_ms"] is not None for row in found) == 50
    assert len(rows("messages", openLedgers="found", entryIds="3-9,20")) == 8
    assert len(rows("unpacked_messages", openLedgers="found", splitBytes="1000")) == 250
    acked = rows("ack_state", subscription="s")
    assert sum(row["kind"] == "range" for row in acked) == 99
    assert sum(row["end_entry_id"] - row["first_entry_id"] for row in acked) == 100
    events = rows("delivery_journal", openLedgers="found")
    assert sum(row["event"] == "published" for row in events) == 250
    assert sum(row["event"] == "acked" for row in events) == 100
    delayed = {(row["ledger_id"], row["entry_id"]) for row in rows("delayed_index")}
    assert 40 <= len(delayed) <= 50  # sealed buckets of ten each
    about = rows("ledgers")
    assert {row["role"] for row in about} == {"messages", "cursor", "delayed", "journal"}
    assert {row["topic"] for row in about} == {TOPIC}
    with pytest.raises(CallerError, match="ackgate bookies check"):
        rows("corrupt")

    stream = (source := AckgateDataSource({"config": str(conf)})).streamReader(source.schema())
    parts = stream.partitions(stream.initialOffset(), stream.latestOffset())
    confirmed = sum(batch.num_rows for part in parts for batch in stream.read(part))
    assert 200 <= confirmed < 250  # the last ones were never said to be confirmed


ACKGATE = (sys.executable, "-m", "ackgate")


def ackgate(*arguments: str) -> str:
    """What the command prints. It must succeed."""
    done = subprocess.run([*ACKGATE, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def persisted_ranges(target: Target) -> int:
    return int(target.subscription_stats(TOPIC, "s")["ackState"]["rangesPersisted"])


def test_only_orphans_of_this_metadata_store_are_deleted(real_bookkeeper, make_broker, make_client):
    """Other applications, and other clusters of ackgate, use the same bookies."""

    async def strangers() -> tuple[int, int]:
        client = await BookKeeperClient.connect(real_bookkeeper.uri)
        made = []
        for custom in (
            {"component": b"managed-ledger", "application": b"pulsar"},
            {"application": b"ackgate", "ackgate/cluster": b"other", "ackgate/maker": b"0"},
        ):
            writer = await client.create(LedgerOptions(custom_metadata=custom))
            await writer.close()
            made.append(writer.ledger_id)
        await client.close()
        return made[0], made[1]

    broker = make_broker(real_bookkeeper).start()
    client = make_client(broker.service_url)
    client.create_producer("deserted").send(b"x")
    mine = newest_of_ackgate(real_bookkeeper)
    foreign = set(asyncio.run(strangers()))
    broker.kill()
    # As a crash leaves it: nothing names the topic's ledger any more, and it is empty or given up.
    orphan = asyncio.run(empty_ledger_of(real_bookkeeper, mine))
    broker.start()
    eventually(lambda: orphan not in custom_metadata(real_bookkeeper), seconds=60)
    assert foreign <= set(custom_metadata(real_bookkeeper))
    assert f"ledger {orphan} belongs to nothing and is deleted" in broker.log


async def empty_ledger_of(cluster: RealBookKeeper, like: int) -> int:
    """A ledger with the custom metadata of another one, of a topic that nobody has."""
    client = await BookKeeperClient.connect(cluster.uri)
    custom = dict((await client.metadata(like)).custom_metadata)
    custom["ackgate/topic"] = b"/managed-ledgers/public/default/persistent/nowhere"
    custom["ackgate/maker"] = b"0"
    writer = await client.create(LedgerOptions(custom_metadata=custom))
    await writer.close()
    await client.close()
    return writer.ledger_id


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"bookkeeperMetadataServiceUri": "http://nowhere/ledgers"}, "is not understood"),
        (
            {"bookieDirectories": "a,b,c"},
            "either bookieDirectories or bookkeeperMetadataServiceUri",
        ),
        ({"managedLedgerDefaultEnsembleSize": 5}, "a cluster of 3 bookies, and managedLedger"),
        ({"root": "/elsewhere"}, "there is no BookKeeper cluster at /elsewhere in ZooKeeper"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(real_bookkeeper, make_broker, settings, line):
    root = settings.pop("root", None)
    if root is not None:
        settings["bookkeeperMetadataServiceUri"] = real_bookkeeper.uri.replace("/ledgers", root)
    broker = make_broker(real_bookkeeper, **settings)
    broker.launch()
    with pytest.raises(BrokerFailedError, match="ended with exit code 2"):
        broker.wait_until_ready()
    assert line in broker.log.splitlines()[-1]
    assert "Traceback" not in broker.log


def test_a_metadata_store_keeps_to_its_kind_of_bookies(real_bookkeeper, make_broker, tmp_path):
    on_directories = make_broker(
        real_bookkeeper,
        root=(root := new_root()),
        bookkeeperMetadataServiceUri="",
        managedLedgerDefaultEnsembleSize=1,
        managedLedgerDefaultWriteQuorum=1,
    )
    assert on_directories.start().stop() == 0
    on_cluster = make_broker(real_bookkeeper, root=root)
    with pytest.raises(BrokerFailedError, match="exit code 2"):
        on_cluster.start()
    assert "the ledgers of this metadata store lie in directories" in on_cluster.log

    on_cluster = make_broker(real_bookkeeper, root=(root := new_root()))
    assert on_cluster.start().stop() == 0
    on_directories.settings["metadataStoreUrl"] = on_cluster.settings["metadataStoreUrl"]
    with pytest.raises(BrokerFailedError, match="exit code 2"):
        on_directories.start()
    assert "lie on the BookKeeper cluster" in on_directories.log


@pytest.mark.parametrize("has_bound", [True, False])
def test_metadata_older_than_the_ledgers_are_refused(
    real_bookkeeper, make_broker, make_client, has_bound
):
    """The store was put back to before the last start, which made ledgers.

    Without the bound all ledgers are looked at: an earlier version has made the store.
    """
    broker = make_broker(real_bookkeeper)
    assert broker.start().stop() == 0
    broker.start()
    make_client(broker.service_url).create_producer("kept").send(b"x")
    broker.kill()
    root = str(broker.settings["metadataStoreUrl"]).rpartition("/")[2]

    async def set_back() -> None:
        from ackgate.persistence import open_metadata_store

        store = await open_metadata_store(
            f"zk:{real_bookkeeper.zookeeper.connection_string}/{root}"
        )
        await store.put("/ackgate/runs", b"0", expected_version=None)
        if not has_bound:
            await store.delete("/ackgate/ledgers-counted")
        await store.close()

    asyncio.run(set_back())
    with pytest.raises(BrokerFailedError, match="exit code 2"):
        broker.start()
    assert "the metadata store is older than its ledgers" in broker.log.splitlines()[-1]


def test_a_metadata_store_that_is_lost_gets_its_ledgers_back(
    real_bookkeeper, make_broker, make_client, tmp_path
):
    """All messages, and the acks in cursor ledgers: `ackgate ledgers adopt`."""
    broker = make_broker(real_bookkeeper).start()
    target = Target(broker.service_url, broker.admin_url, is_ackgate=True)
    client = make_client(broker.service_url)
    consumer = client.subscribe(TOPIC, "s", consumer_type=SHARED)
    send_all(client.create_producer(TOPIC), numbered(40))
    for message in receive(consumer, 40)[::2]:
        consumer.acknowledge(message)
    eventually(lambda: persisted_ranges(target) == 19)
    broker.kill()
    made = custom_metadata(real_bookkeeper)[newest_of_ackgate(real_bookkeeper)]
    ours = made["ackgate/cluster"].decode()

    lost = make_broker(real_bookkeeper)
    url = str(lost.settings["metadataStoreUrl"])
    conf = tmp_path / "broker.conf"
    conf.write_text(f"bookkeeperMetadataServiceUri={real_bookkeeper.uri}\nmetadataStoreUrl={url}\n")

    def adopt(*arguments: str) -> str:
        return ackgate("ledgers", "adopt", "--config", str(conf), "--cluster", ours, *arguments)

    assert "nothing was changed; --apply does it" in adopt()
    story = adopt("--apply")
    assert f"the metadata are those of the cluster {ours}" in story
    assert "the metadata have forgotten nothing" in adopt()
    lost.start()
    again = make_client(lost.service_url).subscribe(TOPIC, "s", consumer_type=SHARED)
    assert sorted(payloads(receive(again, 20))) == sorted(numbered(40)[1::2])
    with pytest.raises(pulsar.Timeout):
        again.receive(500)
