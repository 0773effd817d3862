"""An index rebuilt from a real broker's messages is the one that the broker would build, and serves.

One broker publishes; its directory is copied. On one copy a broker reads every message again, on the
other the job runs, and a broker starts on what it has left.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pulsar
import pytest

from ackgate.commands.terminal.admin_client import AdminClient
from ackgate.cursor import Position
from ackgate.errors import CallerError, ConfigurationError, DataDirectoryBusyError
from ackgate.persistence.system.data_directory import DataDirectory
from ackgate.pipeline import register
from ackgate.pipeline.catalogue.catalogue import open_catalogue
from ackgate.pipeline.jobs.job import DataAddress, JobRun, JobSummary
from ackgate.pipeline.jobs.rebuild_delayed_index import JOB
from ackgate.pipeline.schema.options import parse_options
from ackgate.pipeline.source.planning import plan_read
from ackgate.pipeline.source.tasks import read_task
from ackgate.testing import BrokerProcess
from tests.pipeline.small_plans import usual_plans

pytestmark = pytest.mark.slow

SHARED = pulsar.ConsumerType.Shared
EARLIEST = pulsar.InitialPosition.Earliest
IN_MEMORY = "org.apache.pulsar.broker.delayed.InMemoryDelayedDeliveryTrackerFactory"
BUCKETS = "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"
SETTINGS = {
    "delayedDeliveryTrackerFactoryClassName": BUCKETS,
    "delayedDeliveryTickTimeMillis": 500,
    "delayedDeliveryMinIndexCountPerBucket": 100,
    "delayedDeliveryMaxIndexCountPerBucket": 150,
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": 40,
    "managedLedgerMaxEntriesPerLedger": 130,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "defaultRetentionTimeInMinutes": -1,
    "defaultRetentionSizeInMB": -1,
}
TICK_OF_HOURS = 2 * 3_600_000
"""With it whatever is due within the next hour or so is given out at once."""

TOPIC = "persistent://public/default/delayed"
MESSAGES = 1_200
NAMES = ("billing", "audit")


class Published(NamedTuple):
    """What was sent, and what of it is done with."""

    data: Path
    payloads: dict[Position, bytes]
    undelayed: set[Position]
    acked: set[Position]
    """By billing."""
    cancelled: set[Position]

    def wanted(self, subscription: str) -> set[Position]:
        """Delayed entries that a subscription waits for."""
        done = self.cancelled | (self.acked if subscription == "billing" else set())
        return set(self.payloads) - self.undelayed - done


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    data = tmp_path_factory.mktemp("rebuild") / "published"
    settings = SETTINGS | {"delayedDeliveryTrackerFactoryClassName": IN_MEMORY}
    payloads: dict[Position, bytes] = {}
    with BrokerProcess(data, settings=settings) as broker:
        client = client_of(broker)
        consumers = [subscribed(client, name) for name in NAMES]
        producer = client.create_producer(
            TOPIC, batching_enabled=False, max_pending_messages=2 * MESSAGES
        )
        soonest_ms = time.time_ns() // 1_000_000 + 1_500_000
        ids = {}
        for number in range(MESSAGES):
            later = {} if number % 50 == 7 else {"deliver_at": soonest_ms + number * 7919 % 900_000}
            producer.send_async(b"%d" % number, noting(ids, number), **later)
        producer.flush()
        for number, message_id in ids.items():
            payloads[position_of(message_id)] = b"%d" % number
        in_order = [position_of(ids[number]) for number in range(MESSAGES)]
        acked = set(in_order[:137]) | set(in_order[300:900:3])
        for number in range(MESSAGES):
            if in_order[number] in acked:
                consumers[0].acknowledge(ids[number])
        told = AdminClient(broker.admin_url).ask(
            "POST",
            TOPIC.replace("://", "/") + "/delayed",
            "cancel",
            body={"positions": [str(p) for p in in_order[901:1000:9]]},
        )
        assert told["cancelled"] == 11
        client.close()
        assert broker.stop() == 0, broker.log
    undelayed = {in_order[number] for number in range(7, MESSAGES, 50)}
    return Published(data, payloads, undelayed, acked, set(in_order[901:1000:9]))


@pytest.fixture(scope="module")
def registered(spark: Any) -> Any:
    register(spark)
    return spark


def test_it_is_the_brokers_own_index_and_a_broker_goes_on_with_it(registered, published, tmp_path):
    its, ours = copies(published, tmp_path)
    with BrokerProcess(its, settings=SETTINGS) as broker:
        client = client_of(broker)
        _kept = [subscribed(client, name) for name in NAMES]
        wait_until(lambda: all(len(published.wanted(n)) == held(broker, n) for n in NAMES))
        wait_until(lambda: all(buckets(broker, name)["bucketsStoring"] == 0 for name in NAMES))
        client.close()
        assert broker.stop() == 0, broker.log

    summary = rebuild(registered, ours, tmp_path / "out")

    left = 0
    for name in NAMES:
        assert stored_buckets(ours, name) == stored_buckets(its, name)
        left += left_out(positions_in(stored_buckets(ours, name)), published.wanted(name))
    assert summary.figures["entries_read"] == MESSAGES
    assert summary.figures["left_to_the_broker"] == left
    assert summary.figures["buckets_replaced"] == 0
    assert (
        registered.read.parquet(str(tmp_path / "out" / "buckets")).count()
        == (summary.figures["buckets"])
    )
    assert len(snapshot_ledgers(ours)) == summary.figures["buckets"]
    served(ours, published, SETTINGS)


def test_an_index_that_all_subscriptions_share(registered, published, tmp_path):
    shared = SETTINGS | {"delayedDeliverySharedIndexEnabled": True}
    _, ours = copies(published, tmp_path)

    rebuild(registered, ours, tmp_path / "out", settings=shared)

    left_out(positions_in(stored_buckets(ours, None)), published.wanted("audit"))
    served(ours, published, shared)


def served(data: Path, published: Published, settings: dict[str, Any]) -> None:
    """A broker loads the index and need not read it all again; then all of it arrives, once."""
    with BrokerProcess(data, settings=settings) as broker:
        for name in NAMES:  # no consumer yet, so nothing is read: all of this is the index
            wait_until(lambda name=name: held(broker, name) == len(published.wanted(name)))
        client = client_of(broker)
        consumers = {name: subscribed(client, name) for name in NAMES}
        for name in NAMES:
            undelayed = published.undelayed - done_by(published, name)
            assert set(take(consumers[name], len(undelayed))) == {
                published.payloads[p] for p in undelayed
            }
            assert delayed(broker)[name]["entriesOffered"] == 0, "read again, though in the index"
        client.close()
        assert broker.stop() == 0, broker.log
        broker.settings["delayedDeliveryTickTimeMillis"] = TICK_OF_HOURS
        broker.start()
        client = client_of(broker)
        for name in NAMES:
            wanted = published.wanted(name) | (published.undelayed - done_by(published, name))
            consumer = subscribed(client, name)
            arrived = take(consumer, len(wanted))
            assert sorted(arrived) == sorted(published.payloads[p] for p in wanted)
            with pytest.raises(pulsar.Timeout):
                consumer.receive(200)
        client.close()


def done_by(published: Published, name: str) -> set[Position]:
    return published.acked if name == "billing" else set()


def test_beside_it_writes_rows_and_leaves_the_storage_alone(registered, published, tmp_path):
    lock = DataDirectory.acquire(published.data)
    try:
        with usual_plans(registered):
            summary = rebuild(registered, published.data, tmp_path / "out", beside=True)
    finally:
        lock.release()

    rows = registered.read.parquet(str(tmp_path / "out" / "delayed_index")).collect()
    assert snapshot_ledgers(published.data) == []
    for name in NAMES:
        found = [Position(r.ledger_id, r.entry_id) for r in rows if r.subscription == name]
        left_out(found, published.wanted(name))
    assert summary.figures["indexed"] == len(rows)


def test_what_is_refused(registered, published, tmp_path):
    lock = DataDirectory.acquire(published.data)
    try:
        with pytest.raises(DataDirectoryBusyError):
            rebuild(registered, published.data, tmp_path / "a")
    finally:
        lock.release()
    with pytest.raises(ConfigurationError, match="keeps delayed messages in memory"):
        rebuild(registered, published.data, tmp_path / "b", settings={})
    with pytest.raises(CallerError, match=r"no topic .*delayd.* did you mean .*/delayed\?"):
        rebuild(registered, published.data, tmp_path / "c", topic="delayd")
    with pytest.raises(CallerError, match=r"no subscription 'biling'.*did you mean billing"):
        rebuild(registered, published.data, tmp_path / "d", subscription="biling")
    off = SETTINGS | {"delayedDeliveryEnabled": False}
    with pytest.raises(CallerError, match="switched off"):
        rebuild(registered, published.data, tmp_path / "e", settings=off, topic="delayed")
    with pytest.raises(ConfigurationError, match="share one index"):
        shared = SETTINGS | {"delayedDeliverySharedIndexEnabled": True}
        rebuild(registered, published.data, tmp_path / "f", settings=shared, subscription="audit")
    assert snapshot_ledgers(published.data) == []


# -- the job -----------------------------------------------------------------------------------------


def rebuild(
    spark: Any,
    data: Path,
    output: Path,
    *,
    settings: dict[str, Any] = SETTINGS,
    beside: bool = False,
    **options: str,
) -> JobSummary:
    output.mkdir()
    config = output.with_suffix(".conf")
    config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return JOB.run(
        JobRun(
            spark=spark,
            data=DataAddress({"path": str(data), "config": str(config), **options}),
            output=output,
            arguments=argparse.Namespace(beside=beside, now_ms=None, on_corrupt="fail"),
            result_format="parquet",
            progress=print,
        )
    )


def copies(published: Published, directory: Path) -> tuple[Path, Path]:
    paths = directory / "its", directory / "ours"
    for path in paths:
        shutil.copytree(published.data, path)
    return paths


def stored_buckets(data: Path, subscription: str | None) -> dict[str, list[tuple[int, ...]]]:
    """By the positions that it spans: a bucket's (segment, ledger, entry, key), sorted."""
    options = {"path": str(data), "table": "delayed_index"}
    plan = plan_read(parse_options(options))
    rows = defaultdict(list)
    for group in plan.groups:
        for task in group:
            if task.subscription == subscription:
                for batch in read_task(plan.bookies, task, parse_options(options)):
                    for row in batch.to_pylist():
                        place = (row["segment"], row["ledger_id"], row["entry_id"], row["key_ms"])
                        rows[row["snapshot_id"]].append(place)
    with open_catalogue(parse_options(options)) as catalogue:
        cursors = catalogue.all_cursors(catalogue.topics(), subscription or "pulsar.delayed-index")
        named = {b.snapshot_id: f"{b.first} {b.last}" for c in cursors for b in c.buckets}
    return {span: sorted(rows[snapshot_id]) for snapshot_id, span in named.items()}


def positions_in(stored: dict[str, list[tuple[int, ...]]]) -> list[Position]:
    return [Position(*row[1:3]) for bucket in stored.values() for row in bucket]


def left_out(found: list[Position], wanted: set[Position]) -> int:
    """How many of the last ones are not found, too few for a ledger: all others are, once."""
    missing = sorted(wanted)[len(found) :]
    assert sorted(found) == sorted(wanted - set(missing))
    assert len(missing) < SETTINGS["delayedDeliveryMinIndexCountPerBucket"] / 10
    return len(missing)


def snapshot_ledgers(data: Path) -> list[int]:
    """Ledgers that hold snapshots, named by a cursor or by none."""
    with open_catalogue(parse_options({"path": str(data)})) as catalogue:
        return [
            ledger_id
            for ledger_id in catalogue.ledger_nodes
            if catalogue.ledger(ledger_id).custom_metadata.get("component") == b"delayed-bucket"
        ]


# -- brokers and clients -------------------------------------------------------------------------------


def client_of(broker: BrokerProcess) -> pulsar.Client:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(broker.service_url, logger=logger)


def subscribed(client: pulsar.Client, name: str) -> pulsar.Consumer:
    return client.subscribe(
        TOPIC, name, consumer_type=SHARED, initial_position=EARLIEST, receiver_queue_size=2_000
    )


def noting(ids: dict[int, pulsar.MessageId], number: int) -> Any:
    def confirmed(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
        assert result == pulsar.Result.Ok
        ids[number] = message_id

    return confirmed


def position_of(message_id: pulsar.MessageId) -> Position:
    return Position(message_id.ledger_id(), message_id.entry_id())


def take(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    return [consumer.receive(20_000).data() for _ in range(count)]


def delayed(broker: BrokerProcess) -> Any:
    path = TOPIC.replace("://", "/") + "/delayed"
    return AdminClient(broker.admin_url).get(path)["subscriptions"]


def held(broker: BrokerProcess, name: str) -> int:
    return int(delayed(broker)[name]["delayedEntries"])


def buckets(broker: BrokerProcess, name: str) -> Any:
    return delayed(broker)[name]["buckets"]


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)
