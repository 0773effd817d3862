"""Sessions to a real server that goes away, comes back, or is silent for too long."""

from __future__ import annotations

import asyncio
import math

import pytest

from ackgate.errors import OutcomeUnknownError, SessionLostError, StoreSuspendedError
from ackgate.persistence import SessionState, WatchEvent, WatchKind
from ackgate.persistence.metadata.session_options import SessionOptions
from ackgate.testing import ZooKeeperProcess
from ackgate.testing.proxy import ProxyMode, TcpProxy
from tests.zookeeper.conftest import Connect, Heard, States

pytestmark = pytest.mark.slow

CONNECTED, SUSPENDED, LOST = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.LOST


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_silent_server_loses_the_session_by_our_own_clock(
    server: ZooKeeperProcess, connect: Connect
) -> None:
    store = await connect(server.connection_string)
    states = States(store)
    assert now() < store.lease_until <= now() + store.session_timeout_ms / 1000
    await store.create("/mine", b"", ephemeral=True)
    store.watch("/mine", Heard())
    server.pause()
    before = now()
    reading = asyncio.ensure_future(store.get("/mine"))
    await states.until(SUSPENDED)
    assert store.lease_until < now() + 1
    waiting = asyncio.ensure_future(store.put("/x", b"", expected_version=None))
    await states.until(LOST)
    timeout = store.session_timeout_ms / 1000
    assert timeout <= now() - before < 3 * timeout
    for call in (reading, waiting):
        with pytest.raises(SessionLostError):
            await call
    with pytest.raises(SessionLostError):
        await store.get("/mine")
    assert store.lease_until == -math.inf

    server.resume()
    await store.renew()
    assert store.session_state is CONNECTED
    await store.renew()
    await store.create("/again", b"", ephemeral=True)
    assert await store.get("/x") is None
    other = await connect(server.connection_string)
    async with asyncio.timeout(10):
        while await other.get("/mine") is not None:
            await asyncio.sleep(0.05)
    assert states.told == [SUSPENDED, LOST, CONNECTED]
    heard = Heard()
    store.watch("/again", heard)
    assert await store.get("/again") is not None
    await other.put("/again", b"1", expected_version=0)
    assert await heard.next() == WatchEvent(WatchKind.CHANGED, "/again")


async def test_a_session_outlives_its_server(server: ZooKeeperProcess, connect: Connect) -> None:
    options = SessionOptions(session_timeout_ms=20_000, operation_timeout_seconds=20)
    store = await connect(server.connection_string, options)
    states = States(store)
    await store.create("/mine", b"1", ephemeral=True)
    heard = Heard()
    store.watch("/", heard)
    assert await store.children("/") == ["mine"]
    server.kill()
    await states.until(SUSPENDED)
    reading = asyncio.ensure_future(store.get("/mine"))
    writing = asyncio.ensure_future(store.put("/new", b"", expected_version=-1))
    await asyncio.to_thread(server.start)
    node = await reading
    assert node is not None
    assert (node.value, node.is_ephemeral) == (b"1", True)
    assert await writing == 0
    assert await heard.next() == WatchEvent(WatchKind.CREATED, "/new")
    assert states.told == [SUSPENDED, CONNECTED]


async def test_a_call_waits_for_the_connection_only_so_long(
    server: ZooKeeperProcess, connect: Connect
) -> None:
    options = SessionOptions(session_timeout_ms=20_000, operation_timeout_seconds=1)
    store = await connect(server.connection_string, options)
    states = States(store)
    server.kill()
    await states.until(SUSPENDED)
    before = now()
    with pytest.raises(StoreSuspendedError, match=server.connection_string):
        await store.put("/x", b"", expected_version=None)
    assert 0.9 < now() - before < 5
    assert store.session_state is SUSPENDED


async def test_a_call_waits_for_its_answer_only_so_long(
    server: ZooKeeperProcess, connect: Connect
) -> None:
    options = SessionOptions(session_timeout_ms=60_000, operation_timeout_seconds=1)
    store = await connect(server.connection_string, options)
    await store.create("/x", b"")
    server.pause()
    answers = await asyncio.gather(
        store.put("/x", b"", expected_version=0), store.get("/x"), return_exceptions=True
    )
    assert isinstance(answers[0], OutcomeUnknownError)
    assert "did not answer" in str(answers[1])
    server.resume()
    node = await store.get("/x")
    assert node is not None
    assert node.version in {0, 1}


async def test_no_change_is_left_untold_over_a_suspension(
    server: ZooKeeperProcess, connect: Connect
) -> None:
    options = SessionOptions(session_timeout_ms=20_000, operation_timeout_seconds=20)
    other = await connect(server.connection_string)
    for path in ("/t/kept", "/t/changed", "/t/gone/deep", "/t/anew"):
        await other.create(path, b"")
    with TcpProxy(("127.0.0.1", server.port)) as proxy:
        store = await connect(f"127.0.0.1:{proxy.port}", options)
        states = States(store)
        heard, none = Heard(), Heard()
        store.watch("/t", heard)
        store.watch("/absent", none)
        await store.get("/t")
        proxy.switch(ProxyMode.CUT)
        await states.until(SUSPENDED)
        await other.put("/t/changed", b"1", expected_version=0)
        await other.delete("/t/gone/deep")
        await other.delete("/t/gone")
        await other.delete("/t/anew")
        await other.create("/t/anew", b"")
        await other.create("/t/new/deep", b"")
        await other.create("/absent", b"")
        proxy.switch(ProxyMode.PASS)
        assert {await heard.next() for _ in range(7)} == {
            WatchEvent(WatchKind.CHANGED, "/t/changed"),
            WatchEvent(WatchKind.DELETED, "/t/gone/deep"),
            WatchEvent(WatchKind.DELETED, "/t/gone"),
            WatchEvent(WatchKind.DELETED, "/t/anew"),
            WatchEvent(WatchKind.CREATED, "/t/anew"),
            WatchEvent(WatchKind.CREATED, "/t/new"),
            WatchEvent(WatchKind.CREATED, "/t/new/deep"),
        }
        assert await none.next() == WatchEvent(WatchKind.CREATED, "/absent")
        await other.delete("/t/kept")
        assert await heard.next() == WatchEvent(WatchKind.DELETED, "/t/kept")
        assert heard.queue.empty()


async def test_an_interrupted_write_is_in_doubt_and_an_interrupted_read_asked_again(
    server: ZooKeeperProcess, connect: Connect
) -> None:
    options = SessionOptions(session_timeout_ms=20_000, operation_timeout_seconds=20)
    with TcpProxy(("127.0.0.1", server.port)) as proxy:
        store = await connect(f"127.0.0.1:{proxy.port}", options)
        await store.create("/x", b"")
        proxy.switch(ProxyMode.DROP)
        writing = asyncio.ensure_future(store.put("/x", b"1", expected_version=0))
        reading = asyncio.ensure_future(store.children("/"))
        await asyncio.sleep(0.05)
        proxy.switch(ProxyMode.CUT)
        with pytest.raises(OutcomeUnknownError, match="/x"):
            await writing
        proxy.switch(ProxyMode.PASS)
        assert await reading == ["x"]


async def test_what_is_reported_of_writes_through_restarts_is_true(
    server: ZooKeeperProcess, connect: Connect
) -> None:
    options = SessionOptions(session_timeout_ms=30_000, operation_timeout_seconds=30)
    store = await connect(server.connection_string, options)
    is_over = False

    async def write(worker: int) -> None:
        path, version = f"/w/{worker}", 0
        number = 0
        while not is_over:
            number += 1
            try:
                version = await store.put(path, str(number).encode(), expected_version=version)
            except OutcomeUnknownError:
                node = await store.get(path)
                assert node is not None
                assert (node.version, int(node.value)) in {
                    (version, last[worker]),
                    (version + 1, number),
                }
                version, last[worker] = node.version, int(node.value)
            else:
                last[worker] = number

    last = dict.fromkeys(range(20), 0)
    await asyncio.gather(*(store.create(f"/w/{worker}", b"0") for worker in last))
    writers = [asyncio.ensure_future(write(worker)) for worker in last]
    for _ in range(2):
        await asyncio.sleep(0.2)
        await asyncio.to_thread(server.restart)
    is_over = True
    await asyncio.gather(*writers)
    for worker, number in last.items():
        node = await store.get(f"/w/{worker}")
        assert node is not None
        assert int(node.value) == number
