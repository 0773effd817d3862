"""A real broker on a real file system that is full: killed on it, started on it, consumed free.

Where no small file system can be mounted these tests are skipped; `tests/unit/broker/test_disk_space.py`
and `tests/unit/ledgers/test_disk_faults.py` show the same with disks that only say that they are full.
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from ackgate.broker.wire.errors import ServerError
from tests.chaos.small_file_system import BrokerThere, NotMountableError, SmallFileSystem
from tests.support.wire_client import EARLIEST, RefusedError, WireClient

pytestmark = pytest.mark.slow

MEBIBYTE = 1024 * 1024
TOPIC = "persistent://public/default/t"
SECONDS_MAX = 60.0
SETTINGS = {
    "diskReserveBytes": 4 * MEBIBYTE,
    "managedLedgerMaxEntriesPerLedger": 100,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "retentionCheckIntervalInSeconds": 1,
}


@pytest.fixture
def files(tmp_path: Path) -> Iterator[SmallFileSystem]:
    mounted = tmp_path / "small"
    mounted.mkdir()
    try:
        files = SmallFileSystem.open(mounted, 48 * MEBIBYTE)
    except NotMountableError as error:
        pytest.skip(f"no small file system can be mounted here: {error}")
    with files:
        yield files


def metric(broker: BrokerThere, name: str) -> float:
    with urllib.request.urlopen(f"{broker.admin_url}/metrics") as answer:
        text = answer.read().decode()
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


async def publish_until_refused(broker: BrokerThere) -> tuple[int, RefusedError]:
    async with await WireClient.connect("127.0.0.1", broker.port) as client:
        producer = await client.producer(TOPIC)
        sent = 0
        while True:
            try:
                await producer.send(b"%08d" % sent + bytes(20_000))
            except RefusedError as error:
                return sent, error
            sent += 1


async def until_a_send_is_taken(broker: BrokerThere) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            async with await WireClient.connect("127.0.0.1", broker.port) as client:
                try:
                    await (await client.producer(TOPIC)).send(b"again")
                except RefusedError:
                    await asyncio.sleep(0.2)
                else:
                    return


async def consume(broker: BrokerThere, count: int) -> list[int]:
    """Read and ack that many, and wait for the receipts."""
    async with await WireClient.connect("127.0.0.1", broker.port) as client:
        consumer = await client.subscribe(TOPIC, "s", initial_position=EARLIEST)
        numbers: list[int] = []
        async with asyncio.timeout(SECONDS_MAX):
            while len(numbers) < count:
                asked = min(50, count - len(numbers))
                consumer.flow(asked)
                messages = await consumer.receive_many(asked)
                numbers += [int(message.payload[:8]) for message in messages]
                await consumer.ack(*messages)
        return numbers


async def test_a_broker_killed_on_a_full_disk_is_started_and_consumed_free(
    files: SmallFileSystem,
) -> None:
    with BrokerThere(files, settings=SETTINGS) as broker:
        await consume(broker, 0)
        sent, refusal = await publish_until_refused(broker)
        assert refusal.code == ServerError.PERSISTENCE
        assert metric(broker, "ackgate_disk_refuses_messages") == 1
        broker.kill()
        files.fill()
        assert files.free_bytes == 0
        broker.start()
        with pytest.raises(RefusedError, match="the disk is full: no messages are taken") as caught:
            async with await WireClient.connect("127.0.0.1", broker.port) as client:
                await client.producer(TOPIC)
        assert caught.value.code == ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION
        assert await consume(broker, sent) == list(range(sent))
        await until_a_send_is_taken(broker)
        assert metric(broker, "ackgate_disk_refuses_messages") == 0
        assert broker.stop() == 0


async def test_what_was_acked_on_a_full_disk_stays_acked(files: SmallFileSystem) -> None:
    with BrokerThere(files, settings=SETTINGS) as broker:
        await consume(broker, 0)
        sent, _ = await publish_until_refused(broker)
        broker.kill()
        files.fill()
        broker.start()
        assert await consume(broker, 150) == list(range(150))
        broker.kill()
        files.fill()
        # The last quarter of the reserve is for this.
        broker.start()
        files.empty()
        assert await consume(broker, sent - 150) == list(range(150, sent))
