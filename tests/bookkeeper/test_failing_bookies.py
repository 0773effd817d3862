"""Bookies that are killed, paused and emptied while a ledger is written or recovered."""

import asyncio

import pytest

from ackgate.errors import ClosedHandleError, LedgerFencedError, StorageError
from ackgate.persistence import LedgerOptions, LedgerState
from ackgate.persistence.bookkeeper.cluster import BookKeeperCluster
from ackgate.persistence.bookkeeper.metadata_format import BookieAddress
from ackgate.persistence.zookeeper.store import ZooKeeperMetadataStore
from ackgate.testing.proxy import ProxyMode, TcpProxy
from tests.support.bookkeeper import RealBookKeeper, missing

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def four_bookies(tmp_path_factory):
    if why := missing():
        pytest.skip(why)
    with RealBookKeeper(tmp_path_factory.mktemp("mortal"), bookies=4) as cluster:
        yield cluster


@pytest.fixture
def mortal_bookkeeper(four_bookies):
    """Four bookies. A test may kill them; they serve again after it."""
    yield four_bookies
    if ended := [bookie for bookie in four_bookies.bookies if not bookie.is_running]:
        four_bookies.restart(*ended)


def by_id(cluster, bookie_id):
    return next(bookie for bookie in cluster.bookies if bookie.bookie_id == bookie_id)


async def add_all(writer, first, count):
    payloads = [b"%d" % i for i in range(first, first + count)]
    await asyncio.gather(*(writer.append([p]).durable for p in payloads))


async def second_fragment(client, ledger_id):
    """The ensemble is changed beside adds that are confirmed meanwhile."""
    async with asyncio.timeout(60):
        while len((metadata := await client.metadata(ledger_id)).fragments) < 2:
            await asyncio.sleep(0.05)
    return metadata.fragments[1]


async def test_another_bookie_takes_the_place_of_one_that_is_killed(mortal_bookkeeper, connect):
    cluster = mortal_bookkeeper
    # The broken connection tells, and not the time-out, which a busy machine might exceed before.
    client = await connect(cluster, timeout_seconds=60.0)
    writer = await client.create(LedgerOptions(3, 3, 2))
    await add_all(writer, 0, 100)
    killed = by_id(cluster, (await client.metadata(writer.ledger_id)).fragments[0].ensemble[1])
    killed.kill()
    await add_all(writer, 100, 100)
    fragment = await second_fragment(client, writer.ledger_id)
    assert 100 <= fragment.first_entry_id <= 200
    assert killed.bookie_id not in fragment.ensemble
    # Its writer is gone without a word; every entry is found, with the killed one still away.
    reader = await (await connect(cluster, timeout_seconds=60.0)).open(writer.ledger_id)
    entries = await reader.read(0, 199)
    assert [e.payload for e in entries] == [b"%d" % i for i in range(200)]
    with pytest.raises(LedgerFencedError):
        await writer.add_entry(b"late")


async def test_a_bookie_that_comes_back_is_connected_to_again(mortal_bookkeeper, connect):
    """No spare: with three of four the ledger goes on, with two it waits until another is back."""
    cluster = mortal_bookkeeper
    client = await connect(cluster, timeout_seconds=120.0)
    writer = await client.create(LedgerOptions(4, 4, 3))
    await add_all(writer, 0, 50)
    cluster.bookies[0].kill()
    await add_all(writer, 50, 50)
    cluster.bookies[1].kill()
    waiting = asyncio.ensure_future(add_all(writer, 100, 50))
    cluster.bookies[0].start()
    await waiting
    reader = await (await connect(cluster)).open(writer.ledger_id)
    assert reader.last_add_confirmed == 149
    assert len(await reader.read(0, 149)) == 150


async def test_a_bookie_that_comes_back_empty_takes_entries_again(mortal_bookkeeper, connect):
    """Its disks were replaced, and its cookie deleted, while a ledger was written."""
    cluster = mortal_bookkeeper
    client = await connect(cluster, timeout_seconds=120.0)
    writer = await client.create(LedgerOptions(4, 4, 3))
    await add_all(writer, 0, 50)
    emptied, killed = cluster.bookies[:2]
    emptied.kill()
    await add_all(writer, 50, 50)
    await asyncio.to_thread(cluster.wait_until_gone, emptied)
    emptied.empty()
    store = await ZooKeeperMetadataStore.open(cluster.zookeeper.connection_string)
    await store.delete(f"/ledgers/cookies/{emptied.bookie_id}")
    await store.close()
    emptied.start()
    await asyncio.to_thread(cluster.wait_until_ready, emptied)
    killed.kill()
    await add_all(writer, 100, 50)  # the ack quorum is three: the emptied one and the others
    reader = await (await connect(cluster)).open(writer.ledger_id)
    entries = await reader.read(0, 149)
    assert [e.payload for e in entries] == [b"%d" % i for i in range(150)]
    another = await (await connect(cluster)).create(LedgerOptions(2, 2, 2))
    await add_all(another, 0, 10)


async def test_a_client_that_is_closed_ends_its_writers_quietly(real_bookkeeper, connect, caplog):
    client = await connect(real_bookkeeper)
    writers = [await client.create(LedgerOptions(3, 3, 2)) for _ in range(3)]
    for writer in writers:
        await add_all(writer, 0, 5)
    caplog.clear()
    late = writers[0].append([b"in flight"])
    await client.close()
    assert caplog.records == []
    with pytest.raises(ClosedHandleError):
        await late.durable
    for writer in writers:
        with pytest.raises(ClosedHandleError):
            await writer.add_entry(b"too late")


async def test_a_fence_that_a_restart_forgets_lets_nothing_be_confirmed(mortal_bookkeeper, connect):
    """A bookie without an entry of the ledger answers a fence before it is synced, and may forget it."""
    cluster = mortal_bookkeeper
    client = await connect(cluster, timeout_seconds=30.0)
    writer = await client.create(LedgerOptions(4, 4, 3))
    reader = await (await connect(cluster)).open(writer.ledger_id)
    assert reader.last_add_confirmed == -1
    await asyncio.to_thread(cluster.restart, *cluster.bookies)
    with pytest.raises(LedgerFencedError):
        await writer.add_entry(b"nobody shall be told that this is stored")
    assert (await client.metadata(writer.ledger_id)).last_entry_id == -1


async def test_a_paused_bookie_is_replaced_after_the_time_out(mortal_bookkeeper, connect):
    cluster = mortal_bookkeeper
    client = await connect(cluster, timeout_seconds=2.0)
    writer = await client.create(LedgerOptions(3, 3, 3))
    await add_all(writer, 0, 10)
    paused = by_id(cluster, (await client.metadata(writer.ledger_id)).fragments[0].ensemble[0])
    paused.pause()
    try:
        await add_all(writer, 10, 10)
    finally:
        paused.resume()
    metadata = await client.metadata(writer.ledger_id)
    assert paused.bookie_id not in metadata.fragments[-1].ensemble
    await writer.close()
    assert len(await (await client.open(writer.ledger_id)).read(0, 19)) == 20
    paused.kill()  # or ZooKeeper may still find that its session ended


@pytest.fixture
def between(monkeypatch):
    """What is between clients made from now on and one bookie, by its id."""

    def lead(cluster, bookie_id):
        proxy = TcpProxy(("127.0.0.1", by_id(cluster, bookie_id).port)).start()
        proxies.append(proxy)

        async def address(_, wanted):
            assert wanted == bookie_id
            return BookieAddress("127.0.0.1", proxy.port)

        monkeypatch.setattr(BookKeeperCluster, "address", address)
        return proxy

    proxies = []
    yield lead
    for proxy in proxies:
        proxy.stop()


async def test_a_recovery_goes_on_when_its_bookie_begins_to_serve(
    real_bookkeeper, connect, between
):
    """One that has registered and does not serve yet closes every connection."""
    client = await connect(real_bookkeeper)
    writer = await client.create(LedgerOptions(1, 1, 1))
    await add_all(writer, 0, 20)
    [bookie_id] = (await client.metadata(writer.ledger_id)).fragments[0].ensemble
    proxy = between(real_bookkeeper, bookie_id)
    proxy.switch(ProxyMode.CUT)
    opening = asyncio.ensure_future((await connect(real_bookkeeper)).open(writer.ledger_id))
    async with asyncio.timeout(60):
        while not proxy.counts.refused:
            await asyncio.sleep(0.01)
    proxy.switch(ProxyMode.PASS)
    assert len(await (await opening).read(0, 19)) == 20


async def test_a_recovery_gives_up_when_its_time_is_over(real_bookkeeper, connect, between):
    client = await connect(real_bookkeeper)
    writer = await client.create(LedgerOptions(1, 1, 1))
    await add_all(writer, 0, 1)
    [bookie_id] = (await client.metadata(writer.ledger_id)).fragments[0].ensemble
    proxy = between(real_bookkeeper, bookie_id)
    proxy.switch(ProxyMode.CUT)
    with pytest.raises(StorageError, match="too few bookies answer"):
        await (await connect(real_bookkeeper, timeout_seconds=0.3)).open(writer.ledger_id)
    assert proxy.counts.refused > 1


async def test_recovery_waits_rather_than_cuts_off(mortal_bookkeeper, connect):
    """With two of four bookies away nobody can say where the ledger ends."""
    cluster = mortal_bookkeeper
    writer = await (await connect(cluster)).create(LedgerOptions(4, 4, 2))
    await add_all(writer, 0, 30)
    for bookie in cluster.bookies[:2]:
        bookie.kill()
    client = await connect(cluster)
    with pytest.raises(StorageError):
        await client.open(writer.ledger_id)
    assert (await client.metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY
    await asyncio.to_thread(cluster.restart, cluster.bookies[0])
    reader = await (await connect(cluster)).open(writer.ledger_id)
    assert reader.last_add_confirmed == 29
    assert len(await reader.read(0, 29)) == 30
