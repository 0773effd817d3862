"""Older metadata, or none at all: `ackgate ledgers adopt` puts back what they have forgotten."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pulsar
import pytest

import ackgate
from ackgate import Position
from ackgate.broker.cluster import read_partition_count
from ackgate.broker.wire import TopicName
from ackgate.commands.arguments import command_parser
from ackgate.commands.cli import main
from ackgate.commands.ledgers.adopt_command import _show_and_apply
from ackgate.errors import ConfigurationError, MetadataStoreError
from ackgate.persistence.adoption import plan_adoption
from ackgate.persistence.offline_storage import opened_storage, places_of
from ackgate.persistence.ports import MetadataStore
from ackgate.testing.broker_process import BrokerFailedError, BrokerProcess
from ackgate.testing.zookeeper import ZooKeeperProcess

A, B, NEW, PARTITIONED = (
    f"persistent://public/default/{name}" for name in ("a", "b", "new", "p-partition-1")
)
RECEIVE_MS = 60_000


class Life:
    """What is sent to and acked on a broker's topics, and what must be there afterwards."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.sent: dict[str, list[bytes]] = {}
        self.acked: set[bytes] = set()

    def moved_to(self, broker: BrokerProcess) -> Life:
        """The same life, on a copy of its data."""
        life = Life(broker)
        life.sent, life.acked = copy.deepcopy(self.sent), set(self.acked)
        return life

    def client(self) -> pulsar.Client:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        return pulsar.Client(self.broker.service_url, logger=logger)

    def send(self, topic: str, count: int) -> None:
        client = self.client()
        if topic not in self.sent:  # what nobody subscribes to is deleted
            client.subscribe(topic, "keeper")
        producer = client.create_producer(topic)
        sent = self.sent.setdefault(topic, [])
        for _ in range(count):
            sent.append(f"{topic[-5:]} {len(sent)}".encode())
            producer.send(sent[-1])
        client.close()

    def ack_every_second(self, topic: str, subscription: str) -> None:
        """Out of order: so the state goes to a ledger of its own."""
        client = self.client()
        consumer = client.subscribe(
            topic,
            subscription,
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
            batch_index_ack_enabled=True,
        )
        for place in range(len(self.sent[topic])):
            message = consumer.receive(RECEIVE_MS)
            if place % 2:
                consumer.acknowledge(message)
                self.acked.add(message.data())
        client.close()

    def read(self, topic: str) -> list[bytes]:
        """Everything, from the earliest."""
        client = self.client()
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(RECEIVE_MS).data())
        client.close()
        return found

    def receive(self, topic: str, subscription: str, count: int) -> list[bytes]:
        client = self.client()
        consumer = client.subscribe(topic, subscription, consumer_type=pulsar.ConsumerType.Shared)
        found = [consumer.receive(RECEIVE_MS).data() for _ in range(count)]
        with pytest.raises(pulsar.Timeout):
            consumer.receive(300)
        client.close()
        return sorted(found)

    def check(self) -> None:
        for topic, sent in self.sent.items():
            assert self.read(topic) == sent, topic


def adopt(*where: str | Path, applies: bool = False) -> str:
    words = ["ledgers", "adopt", *map(str, where), *(["--apply"] if applies else [])]
    # In a thread: a test may have an event loop, and the command makes its own.
    with redirect_stdout(StringIO()) as output, ThreadPoolExecutor(1) as thread:
        code = thread.submit(main, words).result()
    assert code == 0
    return output.getvalue()


def lived(broker: BrokerProcess, copy_metadata: Callable[[], None]) -> Life:
    """A life with a copy of the metadata in the middle."""
    broker.settings["acknowledgmentAtBatchIndexLevelEnabled"] = "true"
    broker.settings["managedLedgerMaxUnackedRangesToPersistInMetadataStore"] = "10"
    life = Life(broker)
    broker.start()
    life.send(A, 10)
    life.ack_every_second(A, "s")
    broker.stop()
    copy_metadata()
    broker.start()
    life.send(A, 200)
    life.send(NEW, 60)
    life.send(PARTITIONED, 5)
    broker.kill()
    broker.start()
    life.send(B, 10)
    life.ack_every_second(NEW, "s")
    life.ack_every_second(A, "late")
    broker.stop()
    return life


def refused(broker: BrokerProcess, match: str) -> None:
    with pytest.raises(BrokerFailedError, match=match):
        broker.start()


def check(life: Life) -> None:
    """As if the metadata had never been older; and all of it once more after a crash."""
    life.broker.start()
    for crashes in (True, False):
        life.check()
        for topic in (A, B):
            life.send(topic, 3)
        life.check()
        if crashes:
            life.broker.kill()
            life.broker.start()
    unacked = sorted({*life.sent[NEW]} - life.acked)
    assert life.receive(NEW, "s", len(unacked)) == unacked
    life.broker.stop()


def remove_metadata(data: Path) -> None:
    for path in data.glob("metadata.sqlite*"):
        path.unlink()


@pytest.fixture(scope="module")
def on_one_machine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Life, Path]:
    """With the directory that has the copy of its metadata."""
    data, aside = tmp_path_factory.mktemp("machine") / "data", tmp_path_factory.mktemp("aside")

    def copy_metadata() -> None:
        for path in data.glob("metadata.sqlite*"):
            shutil.copy2(path, aside)

    return lived(BrokerProcess(data), copy_metadata), aside


@pytest.mark.slow
@pytest.mark.parametrize("is_lost", [False, True], ids=["older", "lost"])
def test_one_machine(on_one_machine: tuple[Life, Path], tmp_path: Path, *, is_lost: bool) -> None:
    recorded, aside = on_one_machine
    data = shutil.copytree(recorded.broker.data_directory, tmp_path / "data")
    broker = BrokerProcess(data, settings=recorded.broker.settings)
    life = recorded.moved_to(broker)
    assert "the metadata have forgotten nothing" in adopt("--data-dir", data)
    remove_metadata(data)
    if not is_lost:
        for path in aside.iterdir():
            shutil.copy2(path, data)
        refused(broker, "is older than bookie")
    planned = adopt("--data-dir", data)
    assert "nothing was changed; --apply does it" in planned
    assert f"{NEW} cursor s" in planned
    assert "persistent://public/default/p has 2 partitions" in planned
    refused(broker, "`ackgate ledgers adopt`" if not is_lost else "metadata store is empty")
    assert adopt("--data-dir", data, applies=True).endswith("done\n")
    assert "the metadata have forgotten nothing" in adopt("--data-dir", data)
    check(life)


@pytest.mark.slow
def test_a_cluster(tmp_path: Path) -> None:
    servers = ZooKeeperProcess(tmp_path / "zookeeper", force_sync=False)
    url = f"zk:{servers.connection_string}/ackgate"
    bookies = ",".join(str(tmp_path / f"bookie-{n}") for n in range(3))
    broker = BrokerProcess(
        tmp_path / "data",
        settings={
            "metadataStoreUrl": url,
            "bookieDirectories": bookies,
            "managedLedgerDefaultEnsembleSize": 3,
            "managedLedgerDefaultWriteQuorum": 2,
            "managedLedgerDefaultAckQuorum": 2,
        },
    )
    aside = tmp_path / "aside"
    where = ("--metadata-url", url, "--bookies", bookies)

    def copy_metadata() -> None:
        servers.stop()
        shutil.copytree(servers.directory, aside)
        servers.start()

    with servers:
        life = lived(broker, copy_metadata)
        servers.stop()
        shutil.rmtree(servers.directory)
        shutil.copytree(aside, servers.directory)
        servers.start()
        refused(broker, "is older than bookie")
        assert "nothing was changed" in adopt(*where)
        adopt(*where, applies=True)
        check(life)


async def test_an_embedding_host(tmp_path: Path) -> None:
    data, aside = tmp_path / "data", tmp_path / "aside"
    aside.mkdir()
    known: list[Position] = []
    for life in range(3):
        async with ackgate.open_embedded(data) as storage:
            topic = await storage.topic("orders")
            billing = await topic.subscribe("billing")
            known += await topic.publish([b"order"] * 20)
            assert topic.message_count == len(known)
            assert billing.backlog == len(known)
        if life == 0:
            for path in data.glob("metadata.sqlite*"):
                shutil.copy2(path, aside)
    remove_metadata(data)
    for path in aside.iterdir():
        shutil.copy2(path, data)
    with pytest.raises(ConfigurationError, match="`ackgate ledgers adopt`"):
        async with ackgate.open_embedded(data):
            pytest.fail("older metadata were believed")
    assert "runs go on after 3, not 1" in adopt("--data-dir", data, applies=True)
    for _ in range(2):
        async with ackgate.open_embedded(data) as storage:
            topic = await storage.topic("orders")
            billing = await topic.subscribe("billing")
            assert "ackgate-adopted" in topic.subscriptions
            known += await topic.publish([b"order"])
            assert [p for p in known if not topic.message_ledgers.exists(p)] == []
            assert billing.backlog == len(known)


@pytest.mark.slow
def test_what_was_not_deleted_but_cannot_be_read_now_stays_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    places = [data / "bookies" / str(number) for number in range(3)]
    settings = {
        "bookieDirectories": ",".join(map(str, places)),
        "managedLedgerMaxEntriesPerLedger": 5,
        "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    }
    life = Life(BrokerProcess(data, settings=settings))
    life.broker.start()
    life.send(A, 60)
    life.broker.stop()
    places[1].rename(tmp_path / "unmounted")
    assert main(["ledgers", "adopt", "--data-dir", str(data), "--apply"]) == 1
    planned = capsys.readouterr().out
    assert "is left as it is: it may lie on bookies that are not here: 1-" in planned
    assert "taken out of its topic" not in planned
    (tmp_path / "unmounted").rename(places[1])
    # The other way to miss them: their files are here and damaged.
    for place in places:
        for file in (place / "ledgers").iterdir():
            shutil.copy2(file, tmp_path / f"{place.name}-{file.name}")
            file.write_bytes(bytes(file.stat().st_size))
    assert main(["ledgers", "adopt", "--data-dir", str(data), "--apply"]) == 1
    planned = capsys.readouterr().out
    assert "is left as it is: nothing of its files can be read" in planned
    assert "taken out of its topic" not in planned
    for place in places:
        for file in (place / "ledgers").iterdir():
            shutil.move(tmp_path / f"{place.name}-{file.name}", file)
    life.broker.start()
    life.check()
    life.broker.stop()


class Dying:
    """A metadata store whose process ends at the given write."""

    def __init__(self, store: MetadataStore, writes: int) -> None:
        self._store = store
        self._left = writes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def put(self, path: str, value: bytes, *, expected_version: int | None) -> int:
        if self._left == 0:
            raise MetadataStoreError("the process is dead")
        self._left -= 1
        return await self._store.put(path, value, expected_version=expected_version)


@pytest.mark.slow
async def test_an_adoption_that_was_interrupted_anywhere_is_done_by_the_next(
    on_one_machine: tuple[Life, Path], tmp_path: Path
) -> None:
    recorded, _ = on_one_machine
    forgotten = shutil.copytree(recorded.broker.data_directory, tmp_path / "forgotten")
    remove_metadata(forgotten)
    words = ["ledgers", "adopt", "--apply", "--data-dir", "."]
    for writes in range(100):
        data = shutil.copytree(forgotten, tmp_path / f"after-{writes}")
        arguments = command_parser().parse_args([*words[:-1], str(data)])
        places = places_of(arguments, may_be_new=True)
        is_done = True
        async with opened_storage(places, is_writing=True) as storage:
            dying: Any = Dying(storage.metadata, writes)
            try:
                await _show_and_apply(
                    storage._replace(metadata=dying), await plan_adoption(storage), arguments
                )
            except MetadataStoreError:
                is_done = False
        adopt("--data-dir", data, applies=True)
        async with opened_storage(places) as storage:
            assert (
                await read_partition_count(
                    storage.metadata, TopicName.parse(PARTITIONED).partitioned
                )
                == 2
            ), writes
            assert (await plan_adoption(storage)).is_empty
        shutil.rmtree(data)
        if is_done:
            break
    else:
        pytest.fail("it never ends")
