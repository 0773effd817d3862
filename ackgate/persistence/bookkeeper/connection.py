"""A connection to one bookie: many requests under way, replies in any order.

Edge. What was queued in one turn of the loop goes to the socket in one piece; replies to adds, of which
one read of the socket brings hundreds, are unpacked in bulk::

    add   --> queue --(bound of unanswered adds, room in the socket)--> bookie --> AddReplies.added
    read  ------------------------------------------------------------> bookie --> its future

Protocol v2 has no request ids: a reply is matched by operation, ledger and entry. So at most one
`AddReplies` of a ledger is on one connection; whoever recovers a ledger has a connection of its own.

A connection that brings no reply for `timeout_seconds` while some are due has failed, and everything on
it with it. It is not used again: `BookieConnections` opens the next one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from ackgate.errors import StorageError
from ackgate.persistence.bookkeeper.protocol import (
    ADD_HEADER,
    ADD_REPLY,
    ADD_REPLY_SIZE,
    FRAME_BYTES_MAX,
    BookieReply,
    Code,
    Flag,
    Opcode,
    batch_read_frame,
    decode_reply,
    read_frame,
)
from ackgate.persistence.system.futures import fail_quietly, resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.persistence.bookkeeper.metadata_format import BookieAddress

UNANSWERED_ADDS_MAX: Final = 5_000
"""Half of what one thread of a bookie takes (maxPendingAddRequestsPerThread): above it a bookie
refuses, however healthy it is."""

_SIZE_BYTES: Final = 4
_WRITE_BUFFER_BYTES: Final = 4 * 1024 * 1024


class AddReplies(Protocol):
    """Takes the answers to adds of one ledger on one bookie."""

    def added(self, entry_ids: Sequence[int]) -> None:
        """They are synced there."""

    def refused(self, entry_id: int, code: int) -> None:
        """The bookie did not take it."""

    def lost(self, error: StorageError) -> None:
        """The connection is gone. What was not answered may be there or not."""


class AddBlock(NamedTuple):
    """Frames that go to the bookie in one piece."""

    frames: bytes
    entry_count: int


class BookieConnection(asyncio.Protocol):
    """Make it with `open`."""

    def __init__(self, bookie_id: str, timeout_seconds: float) -> None:
        self.bookie_id = bookie_id
        self.error: StorageError | None = None
        """Why it ended."""
        self.has_read_batches = False
        """Whether the bookie has answered a batch read: those before 4.17 do not know them."""
        self._timeout_seconds = timeout_seconds
        self._transport: asyncio.Transport | None = None
        self._is_paused = False
        self._sinks: dict[int, AddReplies] = {}
        self._queue: deque[AddBlock] = deque()
        self._requests: list[bytes] = []
        """Of reads, until this turn of the loop ends."""
        self._unanswered_adds = 0
        self._is_flush_due = False
        self._reads: dict[tuple[int, int], list[asyncio.Future[BookieReply]]] = {}
        self._batch_reads: dict[int, asyncio.Future[BookieReply]] = {}
        self._next_request_id = 1
        self._chunks: list[bytes] = []
        """The beginning of a frame that is not whole yet."""
        self._chunk_bytes = 0
        self._wanted_bytes = 0
        self._watch: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        """By the loop's clock: the last reply, or when one began to be due."""

    @classmethod
    async def open(
        cls, bookie_id: str, address: BookieAddress, *, timeout_seconds: float
    ) -> BookieConnection:
        """Raises `StorageError`."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_seconds):
                _, connection = await loop.create_connection(
                    lambda: cls(bookie_id, timeout_seconds), address.host, address.port
                )
        except (OSError, TimeoutError) as error:
            raise StorageError(
                f"bookie {bookie_id} at {address.host}:{address.port}: "
                f"{str(error) or f'no connection within {timeout_seconds:g} s'}"
            ) from error
        return connection

    @property
    def is_open(self) -> bool:
        return self.error is None

    # ---------------------------------------------------------------------------------------- adds

    def begin(self, ledger_id: int, sink: AddReplies) -> None:
        """From now on replies to adds of this ledger go to `sink`."""
        self._sinks[ledger_id] = sink

    def end(self, ledger_id: int, sink: AddReplies) -> None:
        """The sink gets no more answers."""
        if self._sinks.get(ledger_id) is sink:
            del self._sinks[ledger_id]

    def add(self, block: AddBlock) -> None:
        """Send frames of adds, as soon as the bookie has room for them. Nothing if it is closed."""
        if self.error is None:
            self._queue.append(block)
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        queue, transport = self._queue, self._transport
        if transport is None or self._is_paused or self.error is not None:
            return
        if queue:
            self._expect_replies()
        pieces, self._requests = self._requests, []
        while queue and self._unanswered_adds < UNANSWERED_ADDS_MAX:
            block = queue.popleft()
            self._unanswered_adds += block.entry_count
            pieces.append(block.frames)
        if pieces:
            transport.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    # --------------------------------------------------------------------------------------- reads

    def read(
        self, ledger_id: int, entry_id: int, *, key: bytes = b"", flags: Flag = Flag.NONE
    ) -> asyncio.Future[BookieReply]:
        """Ask for one entry, `LAST_ENTRY` for the last one. Raises `StorageError`, at once or later."""
        future = self._begin_read()
        self._reads.setdefault((ledger_id, entry_id), []).append(future)
        self._requests.append(read_frame(ledger_id, entry_id, key=key, flags=flags))
        self._flush_soon()
        return future

    async def read_batch(self, ledger_id: int, first_entry_id: int, count_max: int) -> BookieReply:
        """Ask for up to so many entries in a row. Raises `StorageError`.

        A bookie older than 4.17 closes the connection instead.
        """
        request_id, self._next_request_id = self._next_request_id, self._next_request_id + 1
        future = self._batch_reads[request_id] = self._begin_read()
        self._requests.append(
            batch_read_frame(ledger_id, first_entry_id, request_id, count_max, FRAME_BYTES_MAX)
        )
        self._flush_soon()
        try:
            return await future
        finally:
            self._batch_reads.pop(request_id, None)

    def _begin_read(self) -> asyncio.Future[BookieReply]:
        if self.error is not None:
            raise StorageError(*self.error.args)
        self._expect_replies()
        return asyncio.get_running_loop().create_future()

    # ------------------------------------------------------------------------------------- replies

    def data_received(self, data: bytes) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        if self._chunks:
            self._chunks.append(data)
            self._chunk_bytes += len(data)
            if self._chunk_bytes < self._wanted_bytes:
                return
            data = b"".join(self._chunks)
            self._chunks.clear()
        try:
            at = self._parse(data)
        except ValueError as error:
            self._fail(StorageError(f"bookie {self.bookie_id}: not BookKeeper's protocol: {error}"))
            return
        if at < len(data):
            self._keep(data[at:])
        if self._queue and not self._is_flush_due:
            self._flush()

    def _keep(self, rest: bytes) -> None:
        size = int.from_bytes(rest[:_SIZE_BYTES], "big", signed=True) if len(rest) >= 4 else 0
        self._chunks = [rest]
        self._chunk_bytes = len(rest)
        self._wanted_bytes = _SIZE_BYTES + size

    def _parse(self, data: bytes) -> int:
        """Handle the whole frames. Returns where they end."""
        at, end = 0, len(data)
        while end - at >= _SIZE_BYTES:
            size = int.from_bytes(data[at : at + _SIZE_BYTES], "big", signed=True)
            if size == ADD_REPLY_SIZE:
                behind = self._parse_adds(data, at)
                if behind > at:
                    at = behind
                    continue
            if not 0 < size <= 2 * FRAME_BYTES_MAX:
                raise ValueError(f"a frame of {size} bytes")
            start = at + _SIZE_BYTES
            if end - start < size:
                break
            self._answered(decode_reply(data[start : start + size]))
            at = start + size
        return at

    def _parse_adds(self, data: bytes, at: int) -> int:
        """Handle replies to adds from here on. Returns where they end."""
        whole = (len(data) - at) // ADD_REPLY.size * ADD_REPLY.size
        sinks, count = self._sinks, 0
        ledger_id, entry_ids = -1, []
        for size, header, code, ledger, entry in ADD_REPLY.iter_unpack(data[at : at + whole]):
            if size != ADD_REPLY_SIZE or header != ADD_HEADER:
                break
            count += 1
            if code == Code.OK and ledger == ledger_id:
                entry_ids.append(entry)
                continue
            if entry_ids and (sink := sinks.get(ledger_id)) is not None:
                sink.added(entry_ids)
            ledger_id, entry_ids = ledger, []
            if code == Code.OK:
                entry_ids.append(entry)
            elif (sink := sinks.get(ledger)) is not None:
                sink.refused(entry, code)
        if entry_ids and (sink := sinks.get(ledger_id)) is not None:
            sink.added(entry_ids)
        self._unanswered_adds -= count
        return at + count * ADD_REPLY.size

    def _answered(self, reply: BookieReply) -> None:
        future: asyncio.Future[BookieReply] | None = None
        match reply.opcode:
            case Opcode.READ:
                waiting = self._reads.get((reply.ledger_id, reply.entry_id))
                if waiting:
                    future = waiting.pop(0)
                    if not waiting:
                        del self._reads[reply.ledger_id, reply.entry_id]
            case Opcode.BATCH_READ:
                self.has_read_batches = True
                future = self._batch_reads.get(reply.request_id)
            case Opcode.ADD:  # a failure may come in a frame of another length
                self._unanswered_adds -= 1
                if (sink := self._sinks.get(reply.ledger_id)) is not None:
                    sink.refused(reply.entry_id, reply.code)
        if future is not None:
            resolve(future, reply)

    # ------------------------------------------------------------------------------------- the end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(StorageError(f"bookie {self.bookie_id}: {exc or 'it closed the connection'}"))

    def close(self) -> None:
        """End it; what is under way fails."""
        self._fail(StorageError(f"bookie {self.bookie_id}: the connection was closed"))

    def _fail(self, error: StorageError) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._end(error)

    def _end(self, error: StorageError) -> None:
        if self.error is not None:
            return
        self.error = error
        if self._watch is not None:
            self._watch.cancel()
        self._queue.clear()
        futures = [future for waiting in self._reads.values() for future in waiting]
        for future in (*futures, *self._batch_reads.values()):
            fail_quietly(future, StorageError(*error.args))
        self._reads.clear()
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            sink.lost(error)

    def _expect_replies(self) -> None:
        """Called before a request: the bookie's time runs from here if it owed no reply."""
        if self._unanswered_adds or self._reads or self._batch_reads:
            return
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        if self._watch is None:
            self._watch = loop.call_later(self._timeout_seconds, self._look)

    def _look(self) -> None:
        self._watch = None
        if not (self._unanswered_adds or self._reads or self._batch_reads):
            return
        loop = asyncio.get_running_loop()
        left = self._heard_at + self._timeout_seconds - loop.time()
        if left > 0:
            self._watch = loop.call_later(left, self._look)
            return
        self._fail(
            StorageError(f"bookie {self.bookie_id}: no answer within {self._timeout_seconds:g} s")
        )
