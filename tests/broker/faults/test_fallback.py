"""A running broker whose ledgers fail, on a real ZooKeeper: fallback to the node, and the way back.

The broker's own writes are limited to files of no bytes (`EFBIG`), which is a full disk for it and
for nobody else; its metadata is at ZooKeeper, a process of its own, which can be stopped besides.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ackgate.broker.stats import AckStateAnswer, SubscriptionStats, from_json
from ackgate.commands.cli import main
from ackgate.persistence import PersistWhere, RecoverySource
from ackgate.testing import BrokerProcess, ZooKeeperProcess
from ackgate.testing.pytest_plugin import zookeeper, zookeeper_url  # noqa: F401 - fixtures
from tests.support.wire_client import EARLIEST, Message, WireClient, WireConsumer

pytestmark = pytest.mark.slow

TOPIC = "persistent://public/default/fallen-back"
MESSAGES = 60
SECONDS_MAX = 60.0


def settings(url: str, **more: object) -> dict[str, object]:
    return {
        "metadataStoreUrl": url,
        "fallbackRateLimit": 1000,
        "dispatcherPauseOnAckStatePersistentEnabled": True,
        "ackStatePersistFailurePauseSeconds": 1,
        "managedLedgerMaxUnackedRangesToPersistInMetadataStore": 20,
        **more,
    }


@asynccontextmanager
async def consuming(broker: BrokerProcess) -> AsyncIterator[WireConsumer]:
    async with await WireClient.connect("127.0.0.1", broker.port) as client:
        consumer = await client.subscribe(TOPIC, "s", initial_position=EARLIEST)
        consumer.flow(1000)
        yield consumer


async def publish(broker: BrokerProcess) -> None:
    async with await WireClient.connect("127.0.0.1", broker.port) as client:
        producer = await client.producer(TOPIC)
        for number in range(MESSAGES):
            await producer.send(b"%d" % number)


def stats(broker: BrokerProcess) -> SubscriptionStats:
    """From the subscription itself: nothing of it needs the metadata store."""
    path = TOPIC.replace("://", "/") + "/subscription/s/ackState?cells=1"
    with urllib.request.urlopen(f"{broker.admin_url}/admin/v2/{path}", timeout=10) as answer:
        return from_json(AckStateAnswer, answer.read()).stats


def told_to_people(broker: BrokerProcess) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["stats", TOPIC, "--url", broker.admin_url]) == 0
    return out.getvalue()


async def until(broker: BrokerProcess, condition: Callable[[SubscriptionStats], bool]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not condition(await asyncio.to_thread(stats, broker)):
            await asyncio.sleep(0.05)


def is_back(told: SubscriptionStats) -> bool:
    store = told.ack_state.store
    assert store is not None
    return (
        not store.is_on_fallback
        and store.outcome is not None
        and store.outcome.where is PersistWhere.LEDGER
        and store.outcome.is_complete
        and store.dirty_versions == 0
        and told.ack_state.gate is not None
        and told.ack_state.gate.is_open
    )


def odd(messages: list[Message], start: int, stop: int) -> list[Message]:
    return [message for message in messages[start:stop] if int(message.payload) % 2]


def numbers(messages: list[Message]) -> set[int]:
    return {int(message.payload) for message in messages}


@pytest.fixture
def broker(tmp_path: Path, zookeeper_url: str) -> Iterator[BrokerProcess]:  # noqa: F811
    with BrokerProcess(tmp_path / "data", settings=settings(zookeeper_url)) as started:
        yield started


def test_acks_go_to_the_node_while_ledgers_fail_and_return_by_themselves(
    broker: BrokerProcess,
) -> None:
    async def story() -> None:
        await publish(broker)
        async with consuming(broker) as consumer:
            messages = await consumer.receive_many(MESSAGES)
            await consumer.ack(*odd(messages, 0, 10))
            await until(broker, is_back)
            broker.limit_files(0)
            await consumer.ack(*odd(messages, 10, 20))
            told = await asyncio.to_thread(stats, broker)
            store = told.ack_state.store
            assert store is not None
            assert store.outcome is not None
            assert store.is_on_fallback
            assert store.outcome.where is PersistWhere.METADATA_STORE
            assert store.outcome.is_complete
            assert store.failing_since_ms is None
            assert "ledger" in str(store.last_failure)
            text = await asyncio.to_thread(told_to_people, broker)
            assert "on the metadata store: the ledger cannot be written" in text
            # Past the node's own cap the outcome says what is dropped, and the gate hears of it.
            await consumer.ack(*odd(messages, 20, MESSAGES))
            await until(broker, lambda told: told.ack_state.entries_dropped == 10)
            told = await asyncio.to_thread(stats, broker)
            assert (told.ack_state.ranges_live, told.ack_state.ranges_persisted) == (30, 20)
            broker.limit_files(None)
            await until(broker, is_back)

    asyncio.run(story())


def test_a_crash_on_fallback_loses_no_receipt(broker: BrokerProcess) -> None:
    async def before() -> set[int]:
        await publish(broker)
        async with consuming(broker) as consumer:
            messages = await consumer.receive_many(MESSAGES)
            await consumer.ack(*odd(messages, 0, 10))
            broker.limit_files(0)
            await consumer.ack(*odd(messages, 10, 30))
            broker.kill()
        return numbers(odd(messages, 0, 30))

    async def after(acked: set[int]) -> None:
        async with consuming(broker) as consumer:
            again = await consumer.receive_many(MESSAGES - len(acked))
            assert numbers(again) == set(range(MESSAGES)) - acked
            told = await asyncio.to_thread(stats, broker)
            assert told.ack_state.recovery is not None
            assert told.ack_state.recovery.source is RecoverySource.METADATA_STORE
            await consumer.ack(*again)
            await until(broker, is_back)

    acked = asyncio.run(before())
    broker.start()
    asyncio.run(after(acked))


def test_with_both_stores_gone_the_gate_shuts_for_its_own_reason_and_receipts_wait(
    tmp_path: Path,
) -> None:
    async def story(broker: BrokerProcess, zookeeper: ZooKeeperProcess) -> None:  # noqa: F811
        await publish(broker)
        async with consuming(broker) as consumer:
            messages = await consumer.receive_many(MESSAGES)
            await consumer.ack(*odd(messages, 0, 10))
            broker.limit_files(0)
            zookeeper.pause()
            waiting = asyncio.create_task(consumer.ack(*odd(messages, 10, 20)))

            def is_shut(told: SubscriptionStats) -> bool:
                gate = told.ack_state.gate
                return gate is not None and "persist-failing" in str(gate.reasons)

            await until(broker, is_shut)
            told = await asyncio.to_thread(stats, broker)
            assert told.ack_state.store is not None
            assert told.ack_state.store.failing_since_ms is not None
            assert told.ack_state.store.dirty_versions > 0
            assert not waiting.done(), "no receipt without durability"
            zookeeper.resume()
            broker.limit_files(None)
            async with asyncio.timeout(SECONDS_MAX):
                await waiting
            await until(broker, is_back)

    with (
        ZooKeeperProcess(tmp_path / "zookeeper") as server,
        BrokerProcess(
            tmp_path / "data", settings=settings(f"zk:{server.connection_string}/both")
        ) as broker,
    ):
        try:
            asyncio.run(story(broker, server))
        finally:
            server.resume()
