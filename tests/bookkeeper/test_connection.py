"""A connection to a bookie, beside a server of the test that answers as it is told, or not at all."""

import asyncio
import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ackgate.errors import BookieRefusedError, StorageError
from ackgate.persistence.bookkeeper.connection import AddBlock, BookieConnection
from ackgate.persistence.bookkeeper.metadata_format import BookieAddress

ADD, READ = 1, 2
NO_LEDGER, UNAUTHORIZED = 1, 102


def reply(opcode, code, ledger_id, entry_id, body=b""):
    frame = struct.pack(">Iiqq", 2 << 24 | opcode << 16, code, ledger_id, entry_id) + body
    return struct.pack(">i", len(frame)) + frame


class Answers:
    """Implements `AddReplies`."""

    def __init__(self):
        self.added_ids, self.refusals, self.error = [], [], None

    def added(self, entry_ids):
        self.added_ids += entry_ids

    def refused(self, entry_id, code):
        self.refusals.append((entry_id, code))

    def lost(self, error):
        self.error = error


class Silent(asyncio.Protocol):
    """A server that answers a connection's first question, then takes everything and says nothing."""

    def __init__(self):
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        if self.transport is not None:
            ledger_id, entry_id = struct.unpack_from(">qq", data, 8)
            self.transport.write(reply(READ, NO_LEDGER, ledger_id, entry_id))
            self.transport = None

    def connection_lost(self, exc):
        self.ended.set_result(None)


@contextlib.asynccontextmanager
async def connected(timeout_seconds=30.0, kind=Silent):
    """A connection to a bookie of the test."""
    bookie = kind()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: bookie, "127.0.0.1", 0)
    address = BookieAddress(*server.sockets[0].getsockname())
    try:
        connection = await BookieConnection.open(
            "bookie-1", address, timeout_seconds=timeout_seconds
        )
        try:
            yield connection
        finally:
            connection.close()
    finally:
        await bookie.ended
        server.close()


async def test_a_bookie_that_never_answers_fails_though_requests_go_on():
    async with asyncio.timeout(20), connected(timeout_seconds=0.2) as connection:
        with pytest.raises(StorageError, match="no answer within"):
            while True:
                done, _ = await asyncio.wait([connection.read(7, 0)], timeout=0.01)
                for future in done:
                    future.result()
    assert not connection.is_open


async def test_after_its_end_a_connection_takes_nothing():
    async with connected() as connection:
        answers = Answers()
        connection.begin(7, answers)
        connection.close()
        assert isinstance(answers.error, StorageError)
        connection.add(AddBlock(b"frame", 1))
        with pytest.raises(StorageError):
            connection.read(7, 0)


async def test_a_bookie_that_wants_authentication_is_refused_at_once():
    class Strict(Silent):
        def data_received(self, data):
            ledger_id, entry_id = struct.unpack_from(">qq", data, 8)
            self.transport.write(reply(READ, UNAUTHORIZED, ledger_id, entry_id))

    with pytest.raises(BookieRefusedError, match="wants clients to authenticate"):
        async with connected(kind=Strict):
            pass


async def test_a_server_that_is_no_bookie_is_refused_at_once():
    class Web(Silent):
        def data_received(self, data):
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with pytest.raises(BookieRefusedError, match="not BookKeeper's protocol"):
        async with connected(kind=Web):
            pass


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.sampled_from([7, 8]), st.integers(0, 50), st.sampled_from([0, 0, 0, 104])),
        max_size=40,
    ),
    st.data(),
)
async def test_replies_may_come_in_any_pieces(events, data):
    """Among replies to adds stands one to a read; the pieces are cut anywhere."""
    async with connected() as connection:
        answers = {7: Answers(), 8: Answers()}
        for ledger_id, each in answers.items():
            connection.begin(ledger_id, each)
        asked = connection.read(9, 3)
        frames = [reply(ADD, code, ledger, entry) for ledger, entry, code in events]
        frames.insert(
            data.draw(st.integers(0, len(frames))), reply(READ, 0, 9, 3, b"an entry" * 20)
        )
        stream = b"".join(frames)
        cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=6).map(sorted))
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            if start < end:
                connection.data_received(stream[start:end])
        assert (await asked).body == b"an entry" * 20
        for ledger_id, each in answers.items():
            of_ledger = [(entry, code) for ledger, entry, code in events if ledger == ledger_id]
            assert each.added_ids == [entry for entry, code in of_ledger if code == 0]
            assert each.refusals == [(entry, code) for entry, code in of_ledger if code]
