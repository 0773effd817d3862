"""A metadata store on a Unix socket: who may connect, what is refused, and what ends a session."""

from __future__ import annotations

import asyncio
import re
import stat
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ackgate.errors import (
    CallerError,
    ConfigurationError,
    CorruptRecordError,
    MetadataStoreError,
    OutcomeUnknownError,
    SessionLostError,
)
from ackgate.persistence import SqliteMetadataStore, WatchEvent, WatchKind, open_metadata_store
from ackgate.persistence.metadata.session_options import SessionOptions
from ackgate.persistence.metadata.socket_frames import (
    FRAME_BYTES_MAX,
    PROTOCOL,
    FrameBuffer,
    SocketAnswer,
    SocketRequest,
)
from ackgate.persistence.metadata.socket_server import MetadataServer
from ackgate.persistence.metadata.socket_store import SocketMetadataStore

SECONDS = 60


class RawClient:
    """Sends whatever it is told to, and reads answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._buffer = FrameBuffer()

    async def answers(self) -> list[SocketAnswer]:
        """What the next bytes bring; empty: the connection has ended."""
        async with asyncio.timeout(SECONDS):
            while data := await self._reader.read(65_536):
                if found := [SocketAnswer.decode(body) for body in self._buffer.feed(data)]:
                    return found
        return []

    async def greet(self, timeout_ms: int) -> None:
        self.writer.write(SocketRequest(1, "HELLO", PROTOCOL, version=timeout_ms).encode())
        assert [answer.error for answer in await self.answers()] == [""]


class Served:
    def __init__(self, server: MetadataServer) -> None:
        self.server = server
        self.sessions: list[SocketMetadataStore] = []

    async def session(self) -> SocketMetadataStore:
        store = await SocketMetadataStore.open(self.server.path)
        self.sessions.append(store)
        return store

    async def raw(self) -> RawClient:
        return RawClient(*await asyncio.open_unix_connection(self.server.path))


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    path = tmp_path / "metadata.socket"
    path.write_text("left by a process that was killed")
    below = await SqliteMetadataStore.open(tmp_path / "metadata.sqlite")
    found = Served(await MetadataServer.serve(below, path))
    yield found
    for store in found.sessions:
        await store.close()
    await found.server.close()
    await below.close()


async def test_only_its_owner_may_connect(served: Served) -> None:
    mode = served.server.path.stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


async def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    store = await SqliteMetadataStore.open(tmp_path / "metadata.sqlite")
    with pytest.raises(ConfigurationError, match=r"nowhere/metadata\.socket: No such file"):
        await MetadataServer.serve(store, tmp_path / "nowhere" / "metadata.socket")
    await store.close()


async def test_nobody_serves(tmp_path: Path) -> None:
    url = f"unix:{tmp_path}/metadata.socket"
    with pytest.raises(MetadataStoreError, match=re.escape(f"no metadata store at {url}")):
        await open_metadata_store(url)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (struct.pack(">I", FRAME_BYTES_MAX + 1), f"a frame of {FRAME_BYTES_MAX + 1} bytes"),
        (struct.pack(">I", 3) + b"\xff\xff\xff", "a frame of 3 bytes is no SocketRequest"),
        (b"GET / HTTP/1.1\r\n\r\n", "at most"),
        (SocketRequest(1, "GET", "/x").encode(), "GET before HELLO"),
        (SocketRequest(1, "HELLO", "zookeeper/3").encode(), "of one release"),
        (SocketRequest(0, "HELLO", PROTOCOL).encode(), "impossible number 0"),
        (SocketRequest(1, "HELLO", PROTOCOL).encode() * 2, "a second HELLO"),
    ],
    ids=("too-large", "garbage", "http", "no-hello", "other-protocol", "number", "twice"),
)
async def test_bad_frames_are_refused_by_name(served: Served, sent: bytes, why: str) -> None:
    client, neighbour = await served.raw(), await served.session()
    client.writer.write(sent)
    told: list[SocketAnswer] = []
    while answers := await client.answers():
        told += answers
    assert (told[-1].number, told[-1].error) == (0, "CallerError")
    assert why in told[-1].text
    client.writer.close()
    assert await neighbour.put("/x", b"", expected_version=None) == 0


async def test_bytes_left_over_are_no_answer() -> None:
    (body,) = FrameBuffer().feed(SocketAnswer(7, names=("a", "b")).encode())
    assert SocketAnswer.decode(body).names == ("a", "b")
    with pytest.raises(CorruptRecordError, match="1 bytes are left over"):
        SocketAnswer.decode(body + b"\0")


async def test_a_bad_path_is_refused_by_the_server_too(served: Served) -> None:
    client = await served.raw()
    await client.greet(60_000)
    client.writer.write(SocketRequest(2, "PUT", "//").encode())
    (answer,) = await client.answers()
    assert isinstance(answer.raised(), CallerError)
    client.writer.close()


async def test_a_silent_session_ends(served: Served) -> None:
    """A process that hangs neither pings nor closes its socket."""
    watcher, client = await served.session(), await served.raw()
    gone: asyncio.Queue[WatchEvent] = asyncio.Queue()
    await client.greet(100)
    client.writer.write(SocketRequest(2, "CREATE", "/owner", is_ephemeral=True).encode())
    assert [answer.error for answer in await client.answers()] == [""]
    watcher.watch("/owner", gone.put_nowait)
    async with asyncio.timeout(SECONDS):
        while (await gone.get()).kind is not WatchKind.DELETED:
            pass
    assert await client.answers() == []
    client.writer.close()


@pytest.mark.slow
async def test_a_session_with_pings_outlives_its_timeout(served: Served) -> None:
    store = await SocketMetadataStore.open(
        served.server.path, options=SessionOptions(session_timeout_ms=100)
    )
    served.sessions.append(store)
    await store.create("/owner", b"", ephemeral=True)
    until = store.lease_until
    async with asyncio.timeout(SECONDS):
        while store.lease_until < until + 1:  # ten time-outs
            await asyncio.sleep(0.05)
    assert await store.get("/owner") is not None


async def test_what_a_lost_session_was_about_to_own_goes_too(served: Served) -> None:
    other, client = await served.session(), await served.raw()
    events: asyncio.Queue[WatchEvent] = asyncio.Queue()
    other.watch("/late", events.put_nowait)
    await other.get("/late")
    await client.greet(60_000)
    client.writer.write(SocketRequest(2, "CREATE", "/late/owner", is_ephemeral=True).encode())
    client.writer.close()
    async with asyncio.timeout(SECONDS):
        while await events.get() != WatchEvent(WatchKind.DELETED, "/late/owner"):
            pass
    assert await other.children("/late") == []


async def test_the_end_of_a_session_leaves_what_others_have_made_since(served: Served) -> None:
    first, second, third = [await served.session() for _ in range(3)]
    for path in ("/owned", "/kept"):
        await first.create(path, b"1", ephemeral=True)
        await second.delete(path)
    await second.create("/owned", b"2", ephemeral=True)
    await second.create("/kept", b"2")
    await first.close()
    for path, is_ephemeral in (("/owned", True), ("/kept", False)):
        node = await third.get(path)
        assert node is not None
        assert (node.value, node.is_ephemeral) == (b"2", is_ephemeral)


async def test_what_is_under_way_when_the_server_goes(served: Served) -> None:
    store = await served.session()
    write = asyncio.ensure_future(store.put("/x", b"", expected_version=None))
    read = asyncio.ensure_future(store.get("/x"))
    await asyncio.sleep(0)
    await served.server.close()
    with pytest.raises(OutcomeUnknownError, match="PUT /x"):
        await write
    with pytest.raises(SessionLostError, match="GET /x"):
        await read
    with pytest.raises(MetadataStoreError, match="no metadata store at"):
        await store.renew()
