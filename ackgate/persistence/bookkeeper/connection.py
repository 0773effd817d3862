"""A connection to one bookie: many requests under way, replies in any order.

Edge. What was queued in one turn of the loop goes to the socket together, in pieces of some 64 KiB: a
bookie begins with the first piece while the rest of a burst is still being encoded. Replies to adds, of
which one read of the socket brings hundreds, are unpacked in bulk::

    add   --> queue --(bound of unanswered adds, room in the socket)--> bookie --> AddReplies.added
    read  ------------------------------------------------------------> bookie --> its future

Protocol v2 has no request ids: a reply is matched by operation, ledger and entry. So at most one
`AddReplies` of a ledger is on one connection; a recovery has a connection of its own.

A new connection is asked for an entry that no bookie has, before it is used: one that is frozen answers
nothing, one that wants authentication says so, and what is no bookie answers something else.

A connection that brings no reply to an add for `timeout_seconds` while some are due has failed, and
everything on it with it; so has one that brings none to a read. Each has its own clock: a bookie whose
journal hangs still answers reads. A failed connection is not used again: `BookieConnections` opens the
next one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

import numpy as np

from ackgate.errors import BookieRefusedError, StorageError
from ackgate.persistence.bookkeeper.handshake import (
    Handshake,
    Security,
    lost_connection,
    not_a_bookie,
)
from ackgate.persistence.bookkeeper.protocol import (
    ADD_HEADER,
    ADD_REPLY,
    ADD_REPLY_ROW,
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
from ackgate.persistence.bookkeeper.statistics import BookieCounters, SentAdds
from ackgate.persistence.system.futures import fail_quietly, resolve

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ackgate.persistence.bookkeeper.metadata_format import BookieAddress

UNANSWERED_ADDS_MAX: Final = 5_000
"""Half of what one thread of a bookie takes (maxPendingAddRequestsPerThread): above it a bookie
refuses, however healthy it is."""

_NO_LEDGER: Final = 2**63 - 1
_SIZE_BYTES: Final = 4
_MANY_REPLIES: Final = 32
"""So many are taken apart as an array."""

_PIECE_BYTES: Final = 64 * 1024
"""Adds are written as soon as so many bytes wait, and not more at a time. Also the transport's limit: above
it uvloop writes at once instead of at the end of the turn, and what the socket does not take waits here."""


class AddReplies(Protocol):
    """Takes the answers to adds of one ledger on one bookie."""

    def added(self, entry_ids: NDArray[np.int64] | list[int]) -> None:
        """They are synced there; in the order of the answers."""

    def refused(self, entry_id: int, code: int) -> None:
        """The bookie did not take it."""

    def lost(self, error: StorageError) -> None:
        """The connection is gone. What was not answered may be there or not."""


class AddBlock(NamedTuple):
    """Frames that go to the bookie in one piece."""

    frames: bytes
    entry_count: int


class _Asked(NamedTuple):
    """A read that waits for its answer."""

    reply: asyncio.Future[BookieReply]
    at: float


class BookieConnection(asyncio.Protocol):
    """One connection to a bookie: frames out, replies in bulk. Make it with `open`."""

    def __init__(
        self, bookie_id: str, timeout_seconds: float, counters: BookieCounters | None = None
    ) -> None:
        self.bookie_id = bookie_id
        self.error: StorageError | None = None
        """Why it ended."""
        self.has_read_batches = False
        """Whether the bookie has answered a batch read: those before 4.17 do not know them."""
        self._timeout_seconds = timeout_seconds
        self._counters = counters or BookieCounters()
        self._sent = SentAdds(self._counters)
        self._transport: asyncio.Transport | None = None
        self._is_paused = False
        self._sinks: dict[int, AddReplies] = {}
        self._queue: deque[AddBlock] = deque()
        self._queued_bytes = 0
        self._requests: list[bytes] = []
        """Of reads, until this turn of the loop ends."""
        self._is_flush_due = False
        self._reads: dict[tuple[int, int], list[_Asked]] = {}
        self._batch_reads: dict[int, _Asked] = {}
        self._next_request_id = 1
        self._chunks: list[bytes] = []
        """The beginning of a frame that is not whole yet."""
        self._chunk_bytes = 0
        self._wanted_bytes = 0
        self._watch: asyncio.TimerHandle | None = None
        self._has_only_shaken_hands = False
        """TLS is there, and the bookie has not answered anything since."""
        self._received_at = 0.0
        """By the loop's clock, as all times here: when the socket last brought something."""
        self._adds_heard_at = 0.0
        """The last reply to an add, or when one began to be due."""
        self._reads_heard_at = 0.0
        """The same for reads."""

    @classmethod
    async def open(
        cls,
        bookie_id: str,
        address: BookieAddress,
        *,
        timeout_seconds: float,
        security: Security | None = None,
        counters: BookieCounters | None = None,
    ) -> BookieConnection:
        """Connect, and wait for a first answer. Raises `StorageError`, `BookieRefusedError`."""
        connection = cls(bookie_id, timeout_seconds, counters)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_seconds):
                if security is None or security == Security():
                    await loop.create_connection(lambda: connection, address.host, address.port)
                else:
                    handshake = await Handshake.open(bookie_id, address, security)
                    connection._has_only_shaken_hands = security.tls is not None
                    handshake.hand_over(connection)
                reply = await connection.read(_NO_LEDGER, 0, flags=Flag.HIGH_PRIORITY)
        except (OSError, TimeoutError) as error:
            connection.close()
            raise StorageError(
                f"bookie {bookie_id} at {address.host}:{address.port}: "
                f"{str(error) or f'no answer within {timeout_seconds:g} s'}"
            ) from error
        except BaseException:
            connection.close()
            raise
        if reply.code == Code.UNAUTHORIZED:
            connection.close()
            raise BookieRefusedError(f"bookie {bookie_id} wants clients to authenticate")
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
            self._counters.queued(block.entry_count, len(block.frames))
            self._queue.append(block)
            self._queued_bytes += len(block.frames)
            if self._queued_bytes >= _PIECE_BYTES:
                self._flush()
            else:
                self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        now = asyncio.get_running_loop().time()
        while (transport := self._free_transport()) is not None:
            piece = self._next_piece(now)
            if not piece:
                break
            transport.write(piece)

    def _free_transport(self) -> asyncio.Transport | None:
        return None if self._is_paused or self.error is not None else self._transport

    def _next_piece(self, now: float) -> bytes:
        """Requests of reads, and of adds what the bookie has room for, up to the size of a piece."""
        parts, self._requests = self._requests, []
        queue, sent, size = self._queue, self._sent, 0
        if queue and not sent.unanswered:
            self._adds_heard_at = now
            self._watch_replies()
        while queue and size < _PIECE_BYTES and sent.unanswered < UNANSWERED_ADDS_MAX:
            block = queue.popleft()
            size += len(block.frames)
            sent.sent(block.entry_count, len(block.frames), now)
            parts.append(block.frames)
        self._queued_bytes -= size
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # --------------------------------------------------------------------------------------- reads

    def read(
        self, ledger_id: int, entry_id: int, *, key: bytes = b"", flags: Flag = Flag.NONE
    ) -> asyncio.Future[BookieReply]:
        """Ask for one entry, `LAST_ENTRY` for the last one. Raises `StorageError`, at once or later."""
        asked = self._begin_read()
        self._reads.setdefault((ledger_id, entry_id), []).append(asked)
        self._requests.append(read_frame(ledger_id, entry_id, key=key, flags=flags))
        self._flush_soon()
        return asked.reply

    async def read_batch(
        self,
        ledger_id: int,
        first_entry_id: int,
        count_max: int,
        *,
        key: bytes = b"",
        flags: Flag = Flag.NONE,
    ) -> BookieReply:
        """Ask for up to so many entries in a row. Raises `StorageError`.

        A bookie older than 4.17 closes the connection instead.
        """
        request_id, self._next_request_id = self._next_request_id, self._next_request_id + 1
        asked = self._batch_reads[request_id] = self._begin_read()
        frame = batch_read_frame(
            ledger_id,
            first_entry_id,
            request_id,
            count_max,
            FRAME_BYTES_MAX,
            key=key,
            flags=flags,
        )
        self._requests.append(frame)
        self._flush_soon()
        return await asked.reply

    def _begin_read(self) -> _Asked:
        if self.error is not None:
            raise type(self.error)(*self.error.args)
        loop = asyncio.get_running_loop()
        now = loop.time()
        if not (self._reads or self._batch_reads):
            self._reads_heard_at = now
            self._watch_replies()
        self._counters.outstanding_reads += 1
        return _Asked(loop.create_future(), now)

    # ------------------------------------------------------------------------------------- replies

    def data_received(self, data: bytes) -> None:
        self._received_at = asyncio.get_running_loop().time()
        self._has_only_shaken_hands = False
        if self._chunks:
            self._chunks.append(data)
            self._chunk_bytes += len(data)
            if self._chunk_bytes < self._wanted_bytes:
                # Other replies come after this long one, to adds as well.
                self._adds_heard_at = self._reads_heard_at = self._received_at
                return
            data = b"".join(self._chunks)
            self._chunks.clear()
        try:
            at = self._parse(data)
        except ValueError as error:
            self._fail(not_a_bookie(f"bookie {self.bookie_id}", str(error)))
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
        at = self._parse_many_adds(data, at)
        whole = (len(data) - at) // ADD_REPLY.size * ADD_REPLY.size
        count = 0
        ledger_id, entry_ids = -1, list[int]()
        for size, header, code, ledger, entry in ADD_REPLY.iter_unpack(data[at : at + whole]):
            if size != ADD_REPLY_SIZE or header != ADD_HEADER:
                break
            count += 1
            if code == Code.OK and ledger == ledger_id:
                entry_ids.append(entry)
                continue
            if entry_ids:
                self._added(ledger_id, entry_ids)
            ledger_id, entry_ids = ledger, []
            if code == Code.OK:
                entry_ids.append(entry)
            else:
                self._refused(ledger, entry, code)
        if entry_ids:
            self._added(ledger_id, entry_ids)
        self._heard_adds(count)
        return at + count * ADD_REPLY.size

    def _parse_many_adds(self, data: bytes, at: int) -> int:
        """As `_parse_adds`, of many adds that succeeded in a row, all of one ledger."""
        count = (len(data) - at) // ADD_REPLY.size
        if count < _MANY_REPLIES:
            return at
        rows = np.frombuffer(data, ADD_REPLY_ROW, count, at)
        ledger_id = int(rows["ledger"][0])
        is_next = (rows["size"] == ADD_REPLY_SIZE) & (rows["header"] == ADD_HEADER)
        is_next &= (rows["code"] == Code.OK) & (rows["ledger"] == ledger_id)
        if not is_next.all():
            count = int(is_next.argmin())
            if count < _MANY_REPLIES:
                return at
        self._added(ledger_id, rows["entry"][:count].astype(np.int64))
        self._heard_adds(count)
        return at + count * ADD_REPLY.size

    def _heard_adds(self, count: int) -> None:
        if count:
            self._adds_heard_at = self._received_at
            self._sent.answered(count, self._received_at)

    def _added(self, ledger_id: int, entry_ids: NDArray[np.int64] | list[int]) -> None:
        self._counters.adds += len(entry_ids)
        if (sink := self._sinks.get(ledger_id)) is not None:
            sink.added(entry_ids)

    def _refused(self, ledger_id: int, entry_id: int, code: int) -> None:
        self._counters.adds_refused += 1
        if (sink := self._sinks.get(ledger_id)) is not None:
            sink.refused(entry_id, code)

    def _answered(self, reply: BookieReply) -> None:
        asked: _Asked | None = None
        match reply.opcode:
            case Opcode.READ:
                waiting = self._reads.get((reply.ledger_id, reply.entry_id))
                if waiting:
                    asked = waiting.pop(0)
                    if not waiting:
                        del self._reads[reply.ledger_id, reply.entry_id]
            case Opcode.BATCH_READ:
                self.has_read_batches = True
                asked = self._batch_reads.pop(reply.request_id, None)
            case Opcode.ADD:  # a failure may come in a frame of another length
                self._heard_adds(1)
                self._refused(reply.ledger_id, reply.entry_id, reply.code)
        if asked is not None:
            self._reads_heard_at = self._received_at
            self._counters.read(self._received_at - asked.at)
            resolve(asked.reply, reply)

    # ------------------------------------------------------------------------------------- the end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it
        self._transport.set_write_buffer_limits(high=_PIECE_BYTES)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        is_after_tls = self._has_only_shaken_hands
        self._end(lost_connection(f"bookie {self.bookie_id}", exc, is_after_tls=is_after_tls))

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
        for block in self._queue:
            self._counters.dropped(block.entry_count, len(block.frames))
        self._queue.clear()
        self._queued_bytes = 0
        self._sent.drop()
        self._counters.last_error = str(error)
        asked = [each for waiting in self._reads.values() for each in waiting]
        asked += self._batch_reads.values()
        self._counters.outstanding_reads -= len(asked)
        self._counters.reads_failed += len(asked)
        for each in asked:
            fail_quietly(each.reply, type(error)(*error.args))
        self._reads.clear()
        self._batch_reads.clear()
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            sink.lost(error)

    def _watch_replies(self) -> None:
        if self._watch is None:
            loop = asyncio.get_running_loop()
            self._watch = loop.call_later(self._timeout_seconds, self._look)

    def _look(self) -> None:
        self._watch = None
        heard_at: list[float] = []
        if self._sent.unanswered:
            heard_at.append(self._adds_heard_at)
        if self._reads or self._batch_reads:
            heard_at.append(self._reads_heard_at)
        if not heard_at:
            return
        loop = asyncio.get_running_loop()
        left = min(heard_at) + self._timeout_seconds - loop.time()
        if left > 0:
            self._watch = loop.call_later(left, self._look)
            return
        self._fail(
            StorageError(f"bookie {self.bookie_id}: no answer within {self._timeout_seconds:g} s")
        )
