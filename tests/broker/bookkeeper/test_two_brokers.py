"""Two brokers on four real bookies and no shared file system: fail-over, bookies that go, AutoRecovery."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pulsar
import pytest

from ackgate.bookkeeper import BookKeeperClient, LedgerState
from ackgate.testing.child_guard import CHILDREN
from tests.broker.bookkeeper.conftest import new_root
from tests.broker.target import Target, eventually, numbered, payloads, receive, send_all
from tests.support.bookkeeper.cluster import QUICK_JAVA, java

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackgate.bookkeeper import LedgerMetadata
    from ackgate.testing import BrokerProcess
    from tests.broker.bookkeeper.conftest import MakeBroker
    from tests.support.bookkeeper import RealBookKeeper
    from tests.support.bookkeeper.cluster import Bookie

pytestmark = pytest.mark.slow

TOPIC = "persistent://public/default/moving"
SHARED = pulsar.ConsumerType.Shared
LONG_SECONDS = 60
"""A takeover, a restart of a bookie: on a busy machine."""

PAUSE_SECONDS = 0.01
"""Between two messages: always some under way, and the machine is left to those who recover."""


@pytest.fixture
def two(own_bookkeeper, make_broker: MakeBroker) -> list[BrokerProcess]:
    root = new_root()
    brokers = [
        make_broker(
            own_bookkeeper,
            root=root,
            managedLedgerDefaultAckQuorum=2,
            bookkeeperClientTimeoutInSeconds=3,
        )
        for _ in range(2)
    ]
    for broker in brokers:
        broker.launch()
    for broker in brokers:
        broker.wait_until_ready(LONG_SECONDS)
    return brokers


def owner_of(brokers: list[BrokerProcess]) -> int:
    """The one that has the topic loaded."""
    for number, broker in enumerate(brokers):
        url = f"{broker.admin_url}/lookup/v2/topic/{TOPIC.replace('://', '/')}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            if json.load(answer)["brokerUrl"] == broker.service_url:
                return number
    raise AssertionError("no broker has the topic")


def ledgers_of(broker: BrokerProcess) -> list[int]:
    target = Target(broker.service_url, broker.admin_url, is_ackgate=True)
    stats = target.admin("GET", f"{TOPIC.replace('://', '/')}/internalStats")
    return [ledger["ledgerId"] for ledger in stats["ledgers"]]


@contextmanager
def sending(client: pulsar.Client) -> Iterator[list[bytes]]:
    """Sends one message after the other beside what happens; yields those that were confirmed."""
    producer = client.create_producer(TOPIC, send_timeout_millis=0)
    confirmed: list[bytes] = []
    is_over = threading.Event()

    def send() -> None:
        number = 0
        while not is_over.wait(PAUSE_SECONDS):
            producer.send(payload := b"m%d" % number)
            confirmed.append(payload)
            number += 1

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield confirmed
    finally:
        is_over.set()
        thread.join(LONG_SECONDS)
        assert not thread.is_alive(), "a message was not confirmed"


def goes_on(confirmed: list[bytes]) -> None:
    """Messages are confirmed now."""
    before = len(confirmed)
    eventually(lambda: len(confirmed) > before + 20, seconds=LONG_SECONDS)


def test_the_other_broker_takes_over_and_bookies_come_and_go(two, own_bookkeeper, make_client):
    client = make_client(",".join(broker.service_url for broker in two).replace(",pulsar://", ","))
    consumer = client.subscribe(TOPIC, "s", consumer_type=SHARED)
    send_all(client.create_producer(TOPIC), numbered(100, "first"))
    messages = receive(consumer, 100)
    for message in messages[::2]:
        consumer.acknowledge(message)
    first = owner_of(two)
    target = Target(two[first].service_url, two[first].admin_url, is_ackgate=True)
    eventually(
        lambda: target.subscription_stats(TOPIC, "s")["ackState"]["rangesPersisted"] == 49,
        seconds=LONG_SECONDS,
    )
    with sending(client) as confirmed:
        goes_on(confirmed)
        own_bookkeeper.bookies[0].kill()
        goes_on(confirmed)
        two[first].kill()
        goes_on(confirmed)
        own_bookkeeper.restart(own_bookkeeper.bookies[0])
        own_bookkeeper.bookies[1].pause()
        goes_on(confirmed)
        own_bookkeeper.bookies[1].resume()
        goes_on(confirmed)
        own_bookkeeper.restart(own_bookkeeper.bookies[1])  # its session may end only now
    assert owner_of([two[1 - first]]) == 0
    expected = {*numbered(100, "first")[1::2], *confirmed}
    again = set(payloads(receive(consumer, len(expected))))
    while not expected <= again:  # what was sent twice comes twice
        again |= set(payloads(receive(consumer, 1)))
    assert not again & set(numbered(100, "first")[::2]), "an acked message came again"


def test_autorecovery_of_open_ledgers_is_survived(two, own_bookkeeper, make_client):
    """`recover` on a bookie that holds open ledgers fences and closes them, though their owner lives."""
    client = make_client(two[0].service_url)
    consumer = client.subscribe(TOPIC, "s", consumer_type=SHARED)
    with sending(client) as confirmed:
        goes_on(confirmed)
        broker = two[owner_of(two)]
        before = ledgers_of(broker)
        last = metadata_of(own_bookkeeper, before[-1]).fragments[-1]
        recover(own_bookkeeper, last.ensemble[0])
        goes_on(confirmed)
    assert len(ledgers_of(broker)) > len(before), "no ledger was recovered: the test does not test"
    assert "was fenced" in broker.log
    received = set()
    while not set(confirmed) <= received:
        [message] = receive(consumer, 1)
        received.add(message.data())
        consumer.acknowledge(message)
    assert broker.is_running


def test_autorecovery_that_runs_all_the_time_is_survived(two, own_bookkeeper, make_client):
    """Its daemon copies entries of a ledger that is being written, and closes one that lacks a bookie."""
    client = make_client(two[0].service_url)
    consumer = client.subscribe(TOPIC, "s", consumer_type=SHARED)
    with autorecovery(own_bookkeeper), sending(client) as confirmed:
        goes_on(confirmed)
        broker = two[owner_of(two)]
        ledger_id = ledgers_of(broker)[-1]
        first = kill_one_of(own_bookkeeper, ledger_id)

        def is_copied() -> bool:
            """Its earlier entries are on another bookie, and it is still being written."""
            metadata = metadata_of(own_bookkeeper, ledger_id)
            assert metadata.state is LedgerState.OPEN
            return all(first.bookie_id not in each.ensemble for each in metadata.fragments)

        eventually(is_copied, seconds=2 * LONG_SECONDS)
        goes_on(confirmed)
        # With two of four the last entries stay below their write quorum, and no spare is there.
        second = kill_one_of(own_bookkeeper, ledger_id)
        eventually(
            lambda: metadata_of(own_bookkeeper, ledger_id).state is LedgerState.CLOSED,
            seconds=2 * LONG_SECONDS,
        )
        own_bookkeeper.restart(first, second)
        goes_on(confirmed)
    assert "was fenced" in broker.log
    assert ledgers_of(broker)[-1] > ledger_id
    received = set()
    while not set(confirmed) <= received:
        [message] = receive(consumer, 1)
        received.add(message.data())
        consumer.acknowledge(message)
    assert broker.is_running


def kill_one_of(cluster: RealBookKeeper, ledger_id: int) -> Bookie:
    """Kill a bookie that gets the ledger's next entries."""
    bookie_id = metadata_of(cluster, ledger_id).fragments[-1].ensemble[0]
    [bookie] = [each for each in cluster.bookies if each.bookie_id == bookie_id]
    bookie.kill()
    return bookie


@contextmanager
def autorecovery(cluster: RealBookKeeper) -> Iterator[None]:
    """`bin/bookkeeper autorecovery`, which waits no longer than it must."""
    directory = cluster.bookies[1].data.parent
    impatient = {"lostBookieRecoveryDelay": 0, "openLedgerRereplicationGracePeriod": 1_000}
    conf = directory / "autorecovery.conf"
    lines = [f"{key}={value}\n" for key, value in impatient.items()]
    conf.write_text((cluster.bookies[1].data / "bk.conf").read_text() + "".join(lines))
    main = ("org.apache.bookkeeper.replication.AutoRecoveryMain", "--conf", str(conf))
    with (directory / "autorecovery.log").open("ab") as log:
        daemon = subprocess.Popen(
            java(*main, directory=directory, options=QUICK_JAVA), stdout=log, stderr=log
        )
    CHILDREN.add(daemon.pid)
    try:
        yield
        assert daemon.poll() is None, (directory / "autorecovery.log").read_text()[-3000:]
    finally:
        daemon.kill()
        daemon.wait()
        CHILDREN.remove(daemon.pid)


def metadata_of(cluster: RealBookKeeper, ledger_id: int) -> LedgerMetadata:
    async def read() -> LedgerMetadata:
        client = await BookKeeperClient.connect(cluster.uri, is_read_only=True)
        try:
            return await client.metadata(ledger_id)
        finally:
            await client.close()

    return asyncio.run(read())


def recover(cluster: RealBookKeeper, bookie_id: str) -> None:
    """What AutoRecovery does for a lost bookie, at once: `bin/bookkeeper shell recover`."""
    shell = (
        "org.apache.bookkeeper.bookie.BookieShell",
        "-conf",
        str(cluster.bookies[1].data / "bk.conf"),
    )
    directory = cluster.bookies[1].data.parent
    command = java(*shell, "recover", "-f", bookie_id, directory=directory, options=QUICK_JAVA)
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
