"""A server that leaves a request without an answer, as real ones do while a session expires."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

import pytest

from ackgate.errors import OutcomeUnknownError
from ackgate.persistence import SessionState
from ackgate.persistence.metadata.session_options import SessionOptions
from ackgate.testing import ZooKeeperProcess
from tests.zookeeper.conftest import Connect, States

pytestmark = pytest.mark.slow

DELETE = 2


class Forgetful:
    """Hands everything on but the first request of one type."""

    def __init__(self, target_port: int, forgotten: int) -> None:
        self.connections = 0
        self.has_forgotten = False
        self._target_port = target_port
        self._forgotten = forgotten

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        down, up = await asyncio.open_connection("127.0.0.1", self._target_port)
        answers = asyncio.create_task(self._answers(down, writer))
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(4)
                body = await reader.readexactly(struct.unpack("!i", head)[0])
                kind = struct.unpack("!i", body[4:8])[0]
                if kind == self._forgotten and not self.has_forgotten:
                    self.has_forgotten = True
                else:
                    up.write(head + body)
        up.transport.abort()
        await answers

    @staticmethod
    async def _answers(down: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await down.read(65_536):
                writer.write(chunk)
        writer.transport.abort()


@pytest.fixture
async def forgetful(server: ZooKeeperProcess) -> AsyncIterator[tuple[Forgetful, str]]:
    forgetful = Forgetful(server.port, DELETE)
    listening = await asyncio.start_server(forgetful.serve, "127.0.0.1", 0)
    yield forgetful, f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    listening.close()


async def test_an_answer_that_is_left_out_breaks_the_connection_and_not_the_session(
    forgetful: tuple[Forgetful, str], connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    wire, servers = forgetful
    store = await connect(servers, SessionOptions(session_timeout_ms=20_000))
    states = States(store)
    await store.create("/mine", b"", ephemeral=True)
    await store.create("/a", b"")
    deleting = asyncio.ensure_future(store.delete("/a"))
    reading = asyncio.ensure_future(store.get("/mine"))
    with pytest.raises(OutcomeUnknownError):
        await deleting
    assert await reading is not None  # asked again
    assert await store.get("/a") is not None
    assert wire.has_forgotten
    assert wire.connections == 2
    assert SessionState.LOST not in states.told
    assert not [record for record in caplog.records if record.exc_info]
