"""A connection on which anything can be said, right or wrong; blocking, with deadlines."""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from typing import Self
from urllib.parse import urlsplit

from ackgate.broker.wire.intake import FrameDecoder
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.broker.wire.replies import encode
from ackgate.persistence.messages.frame import seal_entry

Type = pb.BaseCommand.Type
DEADLINE_SECONDS = 90.0
FRAME_BYTES_MAX = 6 * 1024 * 1024


class RawConnection:
    """A TCP connection to a broker. With `connect`, CONNECT has been said and answered."""

    def __init__(self, service_url: str, *, connect: bool = True) -> None:
        parts = urlsplit(service_url)
        self._socket = socket.create_connection((parts.hostname, parts.port), DEADLINE_SECONDS)
        self._decoder = FrameDecoder(FRAME_BYTES_MAX)
        self._frames: deque[pb.BaseCommand] = deque()
        self._request_id = 0
        if connect:
            self.send(connect_command())
            assert self.receive().type == Type.CONNECTED

    def send(self, command: pb.BaseCommand, payload: bytes = b"") -> None:
        """Say something well framed."""
        self.send_bytes(encode(command, payload))

    def send_bytes(self, stream: bytes) -> None:
        """Say anything. A broker that has hung up already is fine."""
        with contextlib.suppress(ConnectionError):
            self._socket.sendall(stream)

    def end_of_input(self) -> None:
        """Nothing more will be said."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def receive(self) -> pb.BaseCommand:
        """The next command. Raises `ConnectionError` when there is none, `TimeoutError`."""
        while not self._frames:
            chunk = self._socket.recv(65_536)
            if not chunk:
                raise ConnectionResetError("the broker has closed the connection")
            self._frames.extend(
                pb.BaseCommand.FromString(command) for command, _ in self._decoder.feed(chunk)
            )
        return self._frames.popleft()

    def last_words(self) -> list[pb.BaseCommand]:
        """Everything that comes until the broker closes. Raises `TimeoutError` if it does not."""
        heard = []
        deadline = time.monotonic() + DEADLINE_SECONDS
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < deadline:
                heard.append(self.receive())
            raise TimeoutError("the broker does not close the connection")
        return heard

    def ask(self, kind: int, field: str, **fields: object) -> pb.BaseCommand:
        """Send a request with a new id; return the reply of that id."""
        self._request_id += 1
        request = command(kind, field, request_id=self._request_id, **fields)
        self.send(request)
        while True:
            reply = self.receive()
            for descriptor, value in reply.ListFields():
                if descriptor.name != "type" and getattr(value, "request_id", None) == (
                    self._request_id
                ):
                    return reply

    def is_alive(self) -> bool:
        """Whether a PING is answered."""
        self.send(command(Type.PING, "ping"))
        while True:
            if self.receive().type == Type.PONG:
                return True

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def command(kind: int, field: str, **fields: object) -> pb.BaseCommand:
    """A command with one part, set to `fields` (lists and messages are copied)."""
    envelope = pb.BaseCommand()
    envelope.type = kind  # type: ignore[assignment]
    part = getattr(envelope, field)
    part.SetInParent()
    for name, value in fields.items():
        if isinstance(value, list):
            getattr(part, name).extend(value)
        elif hasattr(value, "CopyFrom"):
            getattr(part, name).CopyFrom(value)
        else:
            setattr(part, name, value)
    return envelope


def connect_command(protocol_version: int = 19) -> pb.BaseCommand:
    """CONNECT."""
    return command(Type.CONNECT, "connect", client_version="raw", protocol_version=protocol_version)


def producer_command(topic: str, producer_id: int = 1, request_id: int = 1) -> pb.BaseCommand:
    """PRODUCER."""
    return command(
        Type.PRODUCER, "producer", topic=topic, producer_id=producer_id, request_id=request_id
    )


def subscribe_command(
    topic: str, subscription: str = "s", consumer_id: int = 1, request_id: int = 2
) -> pb.BaseCommand:
    """SUBSCRIBE, Shared, from the earliest."""
    return command(
        Type.SUBSCRIBE,
        "subscribe",
        topic=topic,
        subscription=subscription,
        subType=pb.CommandSubscribe.Shared,
        consumer_id=consumer_id,
        request_id=request_id,
        initialPosition=pb.CommandSubscribe.Earliest,
    )


def send_command(sequence_id: int, producer_id: int = 1) -> pb.BaseCommand:
    """SEND."""
    return command(Type.SEND, "send", producer_id=producer_id, sequence_id=sequence_id)


def entry(payload: bytes, sequence_id: int = 0) -> bytes:
    """A message as a producer seals it."""
    metadata = pb.MessageMetadata(producer_name="raw", sequence_id=sequence_id, publish_time=1)
    return seal_entry(metadata.SerializeToString(), payload)


def greeting(topic: str) -> list[bytes]:
    """How a client begins that produces and consumes; each frame is answered."""
    return [
        encode(connect_command()),
        encode(producer_command(topic)),
        encode(subscribe_command(topic)),
    ]


def work() -> bytes:
    """What it says then, without waiting for answers."""
    flow = command(Type.FLOW, "flow", consumer_id=1, messagePermits=100)
    ack = command(
        Type.ACK,
        "ack",
        consumer_id=1,
        ack_type=pb.CommandAck.Individual,
        message_id=[pb.MessageIdData(ledgerId=0, entryId=0)],
        request_id=9,
    )
    return b"".join(
        [
            encode(flow),
            *(encode(send_command(n), entry(b"payload %d" % n, n)) for n in range(5)),
            encode(ack),
            encode(
                command(Type.GET_LAST_MESSAGE_ID, "getLastMessageId", consumer_id=1, request_id=3)
            ),
            encode(command(Type.PING, "ping")),
            encode(command(Type.CLOSE_PRODUCER, "close_producer", producer_id=1, request_id=4)),
        ]
    )
