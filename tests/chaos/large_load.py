"""A flood of large messages in chunks, sent again wherever a killed broker has interrupted it.

Edge: one connection per life of the broker. Each sender has a topic and a producer name of its own,
and keeps far more under way than the broker may hold in memory. Its messages follow from their
numbers alone, so that every copy can be told. What must hold at the end: every confirmed chunk is
there; with de-duplication none is there twice; and the chunks of a message are in order.
"""

from __future__ import annotations

import asyncio
import random
import re
import urllib.request
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.broker.wire.replies import encode
from ackgate.persistence.messages.frame import seal_entry
from tests.chaos.facts import ViolationError
from tests.support.wire_client import EARLIEST, WireClient

if TYPE_CHECKING:
    from tests.support.wire_client import WireProducer

MESSAGE_BYTES_MAX: Final = 128 * 1024
CHUNK_BYTES: Final = MESSAGE_BYTES_MAX - 1_000
SUBSCRIPTION: Final = "kept"
"""Acks nothing, so that nothing is trimmed."""

ENTRIES_PER_CYCLE_MAX: Final = 60
BUFFER_BYTES: Final = 1024 * 1024
READ_AT_A_TIME_BYTES: Final = 256 * 1024
"""What the event loop takes from a socket in one go."""

SETTINGS: Final = {
    "maxMessageSize": MESSAGE_BYTES_MAX,
    "maxMessagePublishBufferSizeInMB": BUFFER_BYTES // (1024 * 1024),
}
"""What a broker needs to be flooded by a few of these."""

_HELD: Final = re.compile(r"^ackgate_publish_buffer_bytes\S* (\S+)$", re.MULTILINE)


class Piece(NamedTuple):
    """An entry of a sender: a chunk, or a message that needs none."""

    sequence_id: int
    chunk_id: int


class LargeSender:
    """Sends, and can say what must be there."""

    def __init__(self, number: int, seed: int) -> None:
        self.topic = f"persistent://public/default/large-{number}"
        self._name = f"large-{number}"
        self._seed = f"{seed}/{number}"
        self._pieces: list[Piece] = []
        """Everything sent so far, in order."""
        self._confirmed = 0
        """So many of them have a receipt."""
        self._copies: dict[Piece, int] = {}
        """How often each may be there."""
        self._sequence_id = 0
        self._next = 0
        self._started_at = 0
        self.client: WireClient
        self._producer: WireProducer
        self._is_deduplicated = False

    def _body(self, sequence_id: int) -> bytes:
        return random.Random(f"{self._seed}/{sequence_id}").randbytes(
            random.Random(f"size {self._seed}/{sequence_id}").choice(
                (10_000, CHUNK_BYTES, 3 * CHUNK_BYTES + 7, 5 * CHUNK_BYTES)
            )
        )

    async def attach(self, port: int, *, is_deduplicated: bool) -> None:
        """Connect to a new life of the broker; what has no receipt is sent again by `work`."""
        self.client = await WireClient.connect("127.0.0.1", port)
        await self.client.subscribe(self.topic, SUBSCRIPTION, initial_position=EARLIEST)
        self._producer = await self.client.producer(self.topic, self._name)
        self._is_deduplicated = is_deduplicated
        self._next = self._started_at = self._confirmed

    async def work(self) -> None:
        """Send, as fast as the socket takes it."""
        for _ in range(ENTRIES_PER_CYCLE_MAX):
            if self._next == len(self._pieces):
                self._begin_message()
            piece = self._pieces[self._next]
            self._next += 1
            if piece not in self._copies:
                self._copies[piece] = 1
            elif not self._is_deduplicated:
                self._copies[piece] += 1
            await self.client.send_bulk(self._frame(piece))
        await self._producer.until_receipts(self._next - self._started_at)

    def settle(self) -> None:
        """The connection is gone: what was answered is confirmed."""
        if self._producer.errors:
            raise ViolationError(f"{self.topic}: {self._producer.errors[0]}")
        self._confirmed = self._started_at + self._producer.receipts

    def _begin_message(self) -> None:
        chunks = -(-len(self._body(self._sequence_id)) // CHUNK_BYTES)
        self._pieces += [Piece(self._sequence_id, chunk_id) for chunk_id in range(chunks)]
        self._sequence_id += 1

    def _frame(self, piece: Piece) -> bytes:
        body = self._body(piece.sequence_id)
        chunks = -(-len(body) // CHUNK_BYTES)
        metadata = pb.MessageMetadata(
            producer_name=self._name, sequence_id=piece.sequence_id, publish_time=1
        )
        command = pb.BaseCommand(type=pb.BaseCommand.Type.SEND)
        command.send.producer_id = self._producer.producer_id
        command.send.sequence_id = piece.sequence_id
        if chunks > 1:
            metadata.uuid = f"{self._name}-{piece.sequence_id}"
            metadata.num_chunks_from_msg = chunks
            metadata.total_chunk_msg_size = len(body)
            metadata.chunk_id = piece.chunk_id
            command.send.is_chunk = True
        return encode(command, seal_entry(metadata.SerializeToString(), _part(body, piece)))

    async def verify(self, port: int) -> None:
        """Read everything. Raises `ViolationError`."""
        found: dict[Piece, int] = {}
        async with await WireClient.connect("127.0.0.1", port) as client:
            consumer = await client.subscribe(self.topic, SUBSCRIPTION)
            marker = await (await client.producer(self.topic, "marker")).send(b"marker")
            consumer.flow(2 * sum(self._copies.values()) + 1)
            while (message := await consumer.receive()).position != marker:
                metadata = message.metadata
                piece = Piece(metadata.sequence_id, max(0, metadata.chunk_id))
                if message.payload != _part(self._body(piece.sequence_id), piece):
                    raise ViolationError(f"{self.topic}: {piece} has other bytes")
                before = piece._replace(chunk_id=piece.chunk_id - 1)
                if piece.chunk_id and not found.get(before):
                    raise ViolationError(f"{self.topic}: {piece} without the one before it")
                found[piece] = found.get(piece, 0) + 1
        for piece in self._pieces[: self._confirmed]:
            if piece not in found:
                raise ViolationError(f"{self.topic}: {piece} was confirmed, and is not there")
        for piece, copies in found.items():
            if copies > self._copies.get(piece, 0):
                raise ViolationError(f"{self.topic}: {piece} is there {copies} times")


def _part(body: bytes, piece: Piece) -> bytes:
    return body[piece.chunk_id * CHUNK_BYTES : (piece.chunk_id + 1) * CHUNK_BYTES]


async def check_memory(admin_url: str, senders: int) -> int:
    """Bytes that the broker holds for producers now. Raises `ViolationError` above the bound."""

    def read() -> str:
        with urllib.request.urlopen(f"{admin_url}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    found = _HELD.search(await asyncio.to_thread(read))
    if found is None:
        raise ViolationError("no metric says what is held for producers")
    held = int(float(found[1]))
    most = BUFFER_BYTES + MESSAGE_BYTES_MAX + (senders + 1) * READ_AT_A_TIME_BYTES
    if held > most:
        raise ViolationError(f"{held} bytes are held for producers; {most} are allowed")
    return held
