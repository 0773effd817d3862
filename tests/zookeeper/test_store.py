"""What only the ZooKeeper store has: addresses, credentials, sizes, threads, many calls at once."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time

import pytest

from ackgate.errors import (
    CallerError,
    ClosedHandleError,
    ConfigurationError,
    MetadataStoreError,
    NodeTooLargeError,
)
from ackgate.persistence import PersistenceSettings, SessionState, ZooKeeperMetadataStore
from ackgate.persistence.metadata.session_options import SessionOptions
from ackgate.persistence.ports.node_rules import NODE_BYTES_MAX
from ackgate.testing import BrokerProcess, ZooKeeperProcess, free_ports
from tests.zookeeper.conftest import Connect, States

SECRET = "swordfish"
ALICE = SessionOptions(
    session_timeout_ms=10_000,
    operation_timeout_seconds=10,
    digest=f"alice:{SECRET}",
    acl="creator",
)
BOB = SessionOptions(session_timeout_ms=10_000, operation_timeout_seconds=10, digest="bob:b")


async def test_a_dead_address_is_named_in_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    [port] = free_ports(1)
    options = SessionOptions(operation_timeout_seconds=0.5, digest=f"alice:{SECRET}", acl="creator")
    before = time.monotonic()
    with pytest.raises(MetadataStoreError) as failed:
        await ZooKeeperMetadataStore.open(f"127.0.0.1:{port}/x", options=options)
    assert time.monotonic() - before < 5
    assert f"zk:127.0.0.1:{port}/x" in str(failed.value)
    assert "refused" in str(failed.value)
    assert SECRET not in f"{failed.value!r} {options!r} {caplog.text}"


async def test_a_name_that_nobody_knows_is_said_to_be_the_reason() -> None:
    options = SessionOptions(operation_timeout_seconds=0.2)
    with pytest.raises(MetadataStoreError, match=r"no-such-host\.invalid: (?!connected)\w+"):
        await ZooKeeperMetadataStore.open("no-such-host.invalid:2181/x", options=options)


async def test_one_dead_server_of_several_is_passed_over(
    zookeeper: ZooKeeperProcess, connect: Connect
) -> None:
    dead, other_dead = free_ports(2)
    store = await connect(f"127.0.0.1:{dead},{zookeeper.connection_string},127.0.0.1:{other_dead}")
    await store.create("/x", b"")


async def test_reading_only_changes_nothing_and_needs_the_root(
    zookeeper: ZooKeeperProcess, connect: Connect
) -> None:
    with pytest.raises(ConfigurationError, match="no metadata store"):
        await connect(zookeeper.connection_string, read_only=True)
    writer = await connect(zookeeper.connection_string)
    await writer.create("/x", b"1")
    reader = await connect(zookeeper.connection_string, read_only=True)
    assert await reader.children("/") == ["x"]
    with pytest.raises(CallerError, match="reading only"):
        await reader.put("/x", b"2", expected_version=None)


async def test_nodes_of_one_user_are_not_anothers(
    zookeeper: ZooKeeperProcess, connect: Connect
) -> None:
    await connect(zookeeper.connection_string)  # the root is anybody's
    alice = await connect(zookeeper.connection_string, ALICE)
    await alice.put("/deep/mine", b"1", expected_version=-1)
    assert await alice.put("/deep/mine", b"2", expected_version=0) == 1
    for options in (BOB, SessionOptions(operation_timeout_seconds=10)):
        other = await connect(zookeeper.connection_string, options)
        for call in (
            other.get("/deep/mine"),
            other.children("/deep"),
            other.put("/deep/mine", b"", expected_version=1),
            other.delete("/deep/mine"),
        ):
            with pytest.raises(MetadataStoreError, match="not allowed") as refused:
                await call
            assert SECRET not in str(refused.value)
        assert other.session_state is SessionState.CONNECTED
        await other.put("/anybodys", b"", expected_version=None)
    again = await connect(zookeeper.connection_string, ALICE)
    node = await again.get("/deep/mine")
    assert node is not None
    assert node.value == b"2"


async def test_a_root_of_another_user_is_refused_at_once(
    zookeeper: ZooKeeperProcess, connect: Connect
) -> None:
    await connect(zookeeper.connection_string, ALICE)
    with pytest.raises(MetadataStoreError, match="not allowed"):
        await (await connect(zookeeper.connection_string, BOB)).create("/x", b"")


def test_impossible_credentials_are_refused() -> None:
    for wrong in ("alice", ":x"):
        with pytest.raises(ConfigurationError, match="metadataStoreDigest") as refused:
            SessionOptions(digest=wrong)
        assert "alice" not in str(refused.value)
    with pytest.raises(ConfigurationError, match="metadataStoreAcl"):
        SessionOptions(acl="creator")


def test_options_come_from_the_settings() -> None:
    settings = PersistenceSettings(
        metadata_store_session_timeout_millis=5_000,
        metadata_store_operation_timeout_seconds=7,
        metadata_store_digest="alice:x",
        metadata_store_acl="creator",
    )
    assert SessionOptions.of(settings) == SessionOptions(5_000, 7, "alice:x", "creator")
    assert SessionOptions.of(PersistenceSettings()) == SessionOptions()


async def test_an_oversized_value_never_reaches_the_server(
    zookeeper: ZooKeeperProcess, connect: Connect
) -> None:
    store = await connect(zookeeper.connection_string)
    states = States(store)
    await store.create("/mine", b"", ephemeral=True)
    neighbours = [store.put("/a/b", b"", expected_version=None), store.get("/mine")]
    with pytest.raises(NodeTooLargeError):
        await store.put("/large", bytes(NODE_BYTES_MAX + 1), expected_version=None)
    await asyncio.gather(*neighbours)
    deep = "/" + "/".join(["d" * 250] * 30)
    await store.create(deep, bytes(NODE_BYTES_MAX))
    assert await store.put("/" + "l" * 8_000, bytes(NODE_BYTES_MAX), expected_version=None) == 0
    with pytest.raises(CallerError, match="bytes"):
        await store.put("/" + "l" * 20_000, bytes(NODE_BYTES_MAX), expected_version=None)
    assert await store.get("/mine") is not None
    assert states.told == []


async def test_thousands_of_calls_at_once(zookeeper: ZooKeeperProcess, connect: Connect) -> None:
    store = await connect(zookeeper.connection_string, SessionOptions())
    await store.create("/n", b"")
    await asyncio.gather(*(store.create(f"/n/{i}", str(i).encode()) for i in range(5_000)))
    assert len(await store.children("/n")) == 5_000
    nodes = await asyncio.gather(*(store.get(f"/n/{i}") for i in range(5_000)))
    assert [int(node.value) for node in nodes if node is not None] == list(range(5_000))
    versions = await asyncio.gather(
        *(store.put(f"/n/{i % 50}", bytes(10_000), expected_version=None) for i in range(5_000))
    )
    assert sorted(versions) == sorted(list(range(1, 101)) * 50)


async def test_cancelled_calls_disturb_nobody(
    zookeeper: ZooKeeperProcess, connect: Connect
) -> None:
    store = await connect(zookeeper.connection_string)
    await store.create("/n", b"")
    tasks = [
        asyncio.ensure_future(store.put(f"/n/{i}", b"", expected_version=-1)) for i in range(3_000)
    ]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.sleep(0.001)
    for task in tasks[1::4]:
        task.cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(answer) for answer in answers} <= {int, asyncio.CancelledError}
    made = set(await store.children("/n"))
    assert all(str(i) in made for i, answer in enumerate(answers) if answer == 0)
    await store.create("/last", b"")


async def test_closing_ends_the_session_at_once_and_the_threads(
    zookeeper: ZooKeeperProcess, connect: Connect
) -> None:
    threads = set(threading.enumerate())
    store, other = [await connect(zookeeper.connection_string) for _ in range(2)]
    await store.create("/mine", b"", ephemeral=True)
    under_way = [asyncio.ensure_future(store.get("/mine")) for _ in range(100)]
    await asyncio.sleep(0)
    before = time.monotonic()
    await asyncio.gather(store.close(), store.close())
    assert await other.get("/mine") is None
    assert time.monotonic() - before < 1
    for answer in await asyncio.gather(*under_way, return_exceptions=True):
        assert isinstance(answer, (tuple, ClosedHandleError))
    with pytest.raises(ClosedHandleError):
        await store.renew()
    await other.close()
    async with asyncio.timeout(10):
        while set(threading.enumerate()) - threads:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("is_killed", [False, True])
async def test_closing_without_a_server_takes_no_time(
    server: ZooKeeperProcess, connect: Connect, is_killed: bool
) -> None:
    threads = set(threading.enumerate())
    store = await connect(server.connection_string)
    states = States(store)
    if is_killed:
        server.kill()
    else:
        server.pause()
    await states.until(SessionState.SUSPENDED)
    before = time.monotonic()
    await store.close()
    assert time.monotonic() - before < 2
    async with asyncio.timeout(10):
        while set(threading.enumerate()) - threads:
            await asyncio.sleep(0.01)


def test_a_loop_that_is_gone_takes_its_threads_along(zookeeper: ZooKeeperProcess) -> None:
    threads = set(threading.enumerate())
    options = SessionOptions(session_timeout_ms=1_500)

    async def leave_open() -> None:
        store = await ZooKeeperMetadataStore.open(zookeeper.connection_string, options=options)
        store._session._stop_clock()

    asyncio.run(leave_open())
    deadline = time.monotonic() + 10
    while set(threading.enumerate()) - threads:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_process_ends_with_a_store_left_open(zookeeper: ZooKeeperProcess) -> None:
    code = (
        "import asyncio\n"
        "from ackgate.persistence.metadata_url import open_metadata_store\n"
        f"asyncio.run(open_metadata_store('zk:{zookeeper.connection_string}'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=BrokerProcess.environment(),
        capture_output=True,
        timeout=20,
        check=True,
    )
    assert done.stderr == b""
