"""The proxy's modes, on a real echo server."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from ackgate.testing.proxy import ProxyMode, TcpProxy


class Echo:
    """Answers every byte with the same byte, and remembers what came."""

    def __init__(self) -> None:
        self.received = b""
        self.came = asyncio.Event()
        self.serving = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving += 1
        try:
            while chunk := await reader.read(65_536):
                self.received += chunk
                self.came.set()
                writer.write(chunk)
                await writer.drain()
        except ConnectionError:
            pass
        writer.transport.abort()
        await asyncio.sleep(0)
        self.serving -= 1


@pytest.fixture
async def echo():
    return Echo()


@pytest.fixture
async def proxy(echo):
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    with TcpProxy(("127.0.0.1", server.sockets[0].getsockname()[1])) as proxy:
        yield proxy
    server.close()
    async with asyncio.timeout(60):
        while echo.serving:
            await asyncio.sleep(0.001)


@pytest.fixture
async def wire(proxy):
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    yield reader, writer
    writer.transport.abort()


async def exchange(wire, data: bytes) -> bytes:
    reader, writer = wire
    writer.write(data)
    async with asyncio.timeout(60):
        return await reader.readexactly(len(data))


async def assert_silent(reader) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await reader.read(1)


async def test_passes_bytes_and_counts_them(proxy, wire):
    data = bytes(range(256)) * 4_000
    reader, writer = wire
    writer.write(data)
    async with asyncio.timeout(60):
        assert await reader.readexactly(len(data)) == data
        while proxy.counts.bytes_to_client < len(data):
            await asyncio.sleep(0)
    assert proxy.counts.bytes_to_target == proxy.counts.bytes_to_client == len(data)
    assert proxy.counts.accepted == proxy.open_connections == 1


async def test_passes_the_end_of_one_direction_and_answers_still_come(wire):
    reader, writer = wire
    writer.write(b"last")
    writer.write_eof()
    async with asyncio.timeout(60):
        assert await reader.read() == b"last"


async def test_delays_both_ways_in_order(proxy, wire):
    proxy.switch(ProxyMode.DELAY, delay_ms=40)
    began = time.monotonic()
    reader, writer = wire
    for each in (b"a", b"b", b"c"):
        writer.write(each)
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        assert await reader.readexactly(3) == b"abc"
    assert 0.08 <= time.monotonic() - began < 2


async def test_holds_and_goes_on_without_a_loss(proxy, wire):
    assert await exchange(wire, b"before") == b"before"
    proxy.switch(ProxyMode.HOLD)
    reader, writer = wire
    writer.write(b"held")
    await assert_silent(reader)
    proxy.switch(ProxyMode.PASS)
    async with asyncio.timeout(60):
        assert await reader.readexactly(4) == b"held"


async def test_drops_bytes_while_the_connection_stays_and_never_continues_a_torn_stream(
    proxy, wire, echo
):
    assert await exchange(wire, b"before") == b"before"
    proxy.switch(ProxyMode.DROP)
    reader, writer = wire
    writer.write(b"vanish")
    await assert_silent(reader)
    assert proxy.counts.bytes_dropped == len(b"vanish")
    proxy.switch(ProxyMode.PASS)
    with pytest.raises(ConnectionError):
        await reader.read(1)
    assert echo.received == b"before"
    assert proxy.counts.reset == 1


async def test_a_connection_that_lost_nothing_survives_a_drop(proxy, wire):
    assert await exchange(wire, b"before") == b"before"
    proxy.switch(ProxyMode.DROP)
    proxy.switch(ProxyMode.PASS)
    assert await exchange(wire, b"after") == b"after"


async def test_drops_answers_only(proxy, wire, echo):
    proxy.switch(ProxyMode.DROP, drops_answers_only=True)
    reader, writer = wire
    writer.write(b"asked")
    await asyncio.wait_for(echo.came.wait(), 60)
    assert echo.received == b"asked"
    await assert_silent(reader)


async def test_cuts_what_there_is_and_what_comes(proxy, wire):
    assert await exchange(wire, b"before") == b"before"
    proxy.switch(ProxyMode.CUT)
    with pytest.raises(ConnectionError):
        await wire[0].read(1)
    with pytest.raises(ConnectionError):
        reader, _ = await asyncio.open_connection("127.0.0.1", proxy.port)
        await reader.readexactly(1)
    assert proxy.counts.refused == 1
    proxy.switch(ProxyMode.PASS)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    assert await exchange((reader, writer), b"again") == b"again"
    writer.transport.abort()


@pytest.mark.slow
async def test_held_bytes_are_bounded(proxy, wire):
    proxy.switch(ProxyMode.HOLD)
    _, writer = wire
    sent = 0
    chunk = bytes(1024 * 1024)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            while True:
                writer.write(chunk)
                await writer.drain()
                sent += len(chunk)
    assert sent < 64 * 1024 * 1024


async def test_a_target_that_is_not_there_ends_the_connection():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with TcpProxy(taken.getsockname()) as proxy:
            with pytest.raises(ConnectionError):
                reader, _ = await asyncio.open_connection("127.0.0.1", proxy.port)
                await asyncio.wait_for(reader.readexactly(1), 60)
            assert proxy.counts.refused == 1


def test_a_taken_port_is_an_error_and_stopping_twice_is_fine():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        proxy = TcpProxy(("127.0.0.1", 1), port=taken.getsockname()[1])
        with pytest.raises(OSError, match="address already in use"):
            proxy.start()
        proxy.stop()
        proxy.stop()
