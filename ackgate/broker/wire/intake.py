"""The input of a connection: from chunks of bytes to the handlers of commands.

Edge: owns the reading side of one transport.

    chunk -> FrameDecoder -> frames --+-- SEND -----> producers
                               |      +-- ACK ------> gathered, then consumers (in bulk)
                     held?  waiting   +-- FLOW -----> consumers
                                      `-- others ---> the table `ROUTES`

A frame is a command and, for SEND and MESSAGE only, a payload section after it, the entry. Total
counts everything after itself; numbers are big-endian::

    | total | command size | BaseCommand | entry |
       4          4           protobuf

Reading can be held, for one reason or several; the socket fills then, and TCP holds the client
back. Frames that have arrived already wait here, except for SENDs, ACKs and FLOWs of the same
chunk: they cost little and are bounded by its size.

A row of the table says in which field of the envelope the command lies, who handles it, and the reply
of a refusal (ERROR for most requests; some have a reply of their own). Handlers raise `BrokerError` for
an error reply, and `ProtocolError` to end the connection. A command that is not in the table ends the
connection too: only brokers send it (such as a RECEIPT), or it belongs to a protocol version that this
broker has not promised in CONNECTED.
"""

from __future__ import annotations

import logging
from functools import cache
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from google.protobuf.message import DecodeError, Message

from ackgate.broker.wire import lookups, replies
from ackgate.broker.wire.errors import (
    BrokerError,
    FrameTooLargeError,
    NotAllowedError,
    ProtocolError,
)
from ackgate.broker.wire.ports import Connection
from ackgate.broker.wire.producers import TRANSACTIONS_REFUSED
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.broker.wire.publish_buffer import Holder
from ackgate.errors import CallerError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from google.protobuf.descriptor import Descriptor

    from ackgate.broker.wire.consumers import Consumers
    from ackgate.broker.wire.ports import FailureReply, ReadHold
    from ackgate.broker.wire.producers import Producers
    from ackgate.broker.wire.rights import ClientRights

Type = pb.BaseCommand.Type

Frame: TypeAlias = tuple[bytes, bytes]
"""(serialized BaseCommand, payload section). A plain tuple: one is made for every message that
comes in. The payload section is empty for a simple command."""

HANDSHAKE_FRAME_BYTES_MAX: Final = 64 * 1024
"""Bound until CONNECT has been accepted. Authentication data may be some kilobytes."""

SMALL_CHUNK_BYTES: Final = 4096
"""Smaller pieces of an incomplete frame are joined, larger ones kept as they came."""

_SIZE_BYTES: Final = 4
_TLS_HANDSHAKE: Final = 0x1603
"""First bytes of a client that takes this for a TLS port. As a size they mean 369 million bytes."""
_sizes_at: Final = Struct(">II").unpack_from

BEFORE_CONNECT: Final = frozenset({Type.CONNECT, Type.PING, Type.PONG})
"""All that a client may send before its CONNECT was accepted."""

log = logging.getLogger(__name__)

_SEND: Final = b"\x08\x06"  # type: SEND, as every client writes it: field 1 first
_ACK: Final = b"\x08\x0a"
_FLOW: Final = b"\x08\x0b"

_parse: Final = pb.BaseCommand.FromString


class FrameDecoder:
    """Cuts a stream into frames. One per connection; pure.

    It rejects a frame as soon as its first bytes announce too much, so it never holds more than
    `frame_bytes_max` plus one chunk. An error is final: the frames before it are still returned, nothing
    after it is. Frames come out the same wherever the stream was cut.
    """

    __slots__ = ("_bytes_needed", "_chunks", "_chunks_bytes", "error", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        """Largest total size. May be raised between two calls of `feed`."""
        self.error: ProtocolError | None = None
        """Why decoding has stopped for good; None: it has not."""
        self._chunks: list[bytes | bytearray] = []
        self._chunks_bytes = 0
        self._bytes_needed = 2 * _SIZE_BYTES

    @property
    def buffered_bytes(self) -> int:
        """Bytes received of an incomplete frame."""
        return self._chunks_bytes

    @property
    def missing_bytes(self) -> int:
        """Bytes that an incomplete frame still lacks, as far as its size is known."""
        return self._bytes_needed - self._chunks_bytes if self._chunks else 0

    def feed(self, chunk: bytes) -> list[Frame]:
        """Returns the frames that this chunk completes, in order. Check `error` afterwards."""
        if self.error is not None:
            return []
        if self._chunks:
            self._keep(chunk)
            # A frame of megabytes comes in many chunks: join them once, not with each.
            if self._chunks_bytes < self._bytes_needed:
                return []
            chunk = b"".join(self._chunks)
            self._chunks.clear()
            self._chunks_bytes = 0
        return self._cut(chunk)

    def _keep(self, chunk: bytes) -> None:
        """Add a chunk to an incomplete frame, without an object for each tiny chunk."""
        self._chunks_bytes += len(chunk)
        if len(chunk) >= SMALL_CHUNK_BYTES:
            self._chunks.append(chunk)
        elif isinstance(last := self._chunks[-1], bytearray):
            last += chunk
        else:
            self._chunks.append(bytearray(chunk))

    def _cut(self, stream: bytes) -> list[Frame]:
        frames: list[Frame] = []
        append = frames.append
        sizes = _sizes_at
        start = 0
        end = len(stream)
        bytes_needed = 2 * _SIZE_BYTES
        bytes_max = self.frame_bytes_max
        while end - start >= 8:
            total_bytes, command_bytes = sizes(stream, start)
            # The shortest command names its type, in two bytes.
            if not 6 <= total_bytes <= bytes_max or not 2 <= command_bytes <= total_bytes - 4:
                self.error = _frame_error(total_bytes, command_bytes, bytes_max)
                return frames
            frame_end = start + _SIZE_BYTES + total_bytes
            if frame_end > end:
                bytes_needed = frame_end - start
                break
            command_end = start + 8 + command_bytes
            append((stream[start + 8 : command_end], stream[command_end:frame_end]))
            start = frame_end
        if start < end:
            rest = stream[start:] if start else stream
            self._chunks.append(rest)
            self._chunks_bytes = len(rest)
            self._bytes_needed = bytes_needed
        return frames


def _frame_error(total_bytes: int, command_bytes: int, bytes_max: int) -> ProtocolError:
    if total_bytes >> 16 == _TLS_HANDSHAKE:
        return ProtocolError(
            "it speaks TLS, and this port is in clear (or a frame is far too large)"
        )
    if total_bytes > bytes_max:
        return FrameTooLargeError(f"frame of {total_bytes} bytes is above the limit of {bytes_max}")
    return ProtocolError(f"malformed frame: total size {total_bytes}, command size {command_bytes}")


class CommandSession(Connection, Protocol):
    """A connection as `Intake` and the table see it: with its producers and consumers."""

    @property
    def producers(self) -> Producers: ...

    @property
    def consumers(self) -> Consumers: ...

    @property
    def rights(self) -> ClientRights: ...

    @property
    def is_connected(self) -> bool:
        """Whether CONNECT was received and accepted."""

    def connect(self, command: pb.CommandConnect) -> None: ...

    def refuse(self, request_id: int, error: Exception, fail: FailureReply) -> None:
        """Send the reply that says why a request failed."""

    def end(self, error: ProtocolError) -> None:
        """End a connection that cannot go on. Sends the client the reason, and logs it."""


class CommandRoute(NamedTuple):
    """One row of the table `ROUTES`."""

    field: str
    handle: Callable[[CommandSession, Any], None]
    """Called with the session and the command in `field`."""
    fail: FailureReply = replies.error


def _refuse_transaction(_: CommandSession, __: object) -> None:
    raise NotAllowedError(TRANSACTIONS_REFUSED)


def _ignore(_: CommandSession, __: object) -> None:
    """Do nothing for a PONG: its arrival is enough."""


ROUTES: Final[Mapping[int, CommandRoute]] = {
    Type.CONNECT: CommandRoute("connect", lambda session, command: session.connect(command)),
    Type.AUTH_RESPONSE: CommandRoute(
        "authResponse", lambda session, command: session.rights.refresh(command)
    ),
    Type.PING: CommandRoute("ping", lambda session, _: session.send(replies.PONG)),
    Type.PONG: CommandRoute("pong", _ignore),
    # finding topics
    Type.PARTITIONED_METADATA: CommandRoute(
        "partitionMetadata", lookups.partitioned_metadata, replies.partitions_failed
    ),
    Type.LOOKUP: CommandRoute("lookupTopic", lookups.lookup, replies.lookup_failed),
    Type.GET_TOPICS_OF_NAMESPACE: CommandRoute("getTopicsOfNamespace", lookups.topics_of_namespace),
    Type.WATCH_TOPIC_LIST: CommandRoute("watchTopicList", lookups.watch_topic_list),
    Type.WATCH_TOPIC_LIST_CLOSE: CommandRoute("watchTopicListClose", lookups.close_topic_watcher),
    # publishing
    Type.PRODUCER: CommandRoute(
        "producer", lambda session, command: session.producers.create(command)
    ),
    Type.CLOSE_PRODUCER: CommandRoute(
        "close_producer", lambda session, command: session.producers.close(command)
    ),
    # consuming
    Type.SUBSCRIBE: CommandRoute(
        "subscribe", lambda session, command: session.consumers.subscribe(command)
    ),
    Type.REDELIVER_UNACKNOWLEDGED_MESSAGES: CommandRoute(
        "redeliverUnacknowledgedMessages",
        lambda session, command: session.consumers.redeliver(command),
    ),
    Type.SEEK: CommandRoute("seek", lambda session, command: session.consumers.seek(command)),
    Type.GET_LAST_MESSAGE_ID: CommandRoute(
        "getLastMessageId", lambda session, command: session.consumers.last_message_id(command)
    ),
    Type.CONSUMER_STATS: CommandRoute(
        "consumerStats",
        lambda session, command: session.consumers.stats(command),
        replies.consumer_stats_failed,
    ),
    Type.UNSUBSCRIBE: CommandRoute(
        "unsubscribe", lambda session, command: session.consumers.unsubscribe(command)
    ),
    Type.CLOSE_CONSUMER: CommandRoute(
        "close_consumer", lambda session, command: session.consumers.close(command)
    ),
    # schemas
    Type.GET_SCHEMA: CommandRoute("getSchema", lookups.get_schema, replies.schema_not_found),
    Type.GET_OR_CREATE_SCHEMA: CommandRoute(
        "getOrCreateSchema", lookups.get_or_create_schema, replies.schema_refused
    ),
    # transactions: Pulsar without a coordinator answers every one with the same ERROR
    Type.TC_CLIENT_CONNECT_REQUEST: CommandRoute("tcClientConnectRequest", _refuse_transaction),
    Type.NEW_TXN: CommandRoute("newTxn", _refuse_transaction),
    Type.ADD_PARTITION_TO_TXN: CommandRoute("addPartitionToTxn", _refuse_transaction),
    Type.ADD_SUBSCRIPTION_TO_TXN: CommandRoute("addSubscriptionToTxn", _refuse_transaction),
    Type.END_TXN: CommandRoute("endTxn", _refuse_transaction),
    Type.END_TXN_ON_PARTITION: CommandRoute("endTxnOnPartition", _refuse_transaction),
    Type.END_TXN_ON_SUBSCRIPTION: CommandRoute("endTxnOnSubscription", _refuse_transaction),
}


class Intake:
    """The input of one connection."""

    def __init__(
        self,
        session: CommandSession,
        transport: asyncio.Transport,
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self.holds: set[ReadHold] = set()
        self._session = session
        self._transport = transport
        self._call_soon = call_soon
        self._decoder = FrameDecoder(HANDSHAKE_FRAME_BYTES_MAX)
        self._waiting: list[Frame] = []
        """Frames that arrived before reading was held."""
        self._buffer = session.context.publish_buffer
        self._holder = Holder(
            lambda: self.hold("memory"), lambda: self.release("memory"), self._end_as_too_slow
        )
        self._is_discarded = False

    def allow_frames(self, frame_bytes_max: int) -> None:
        """Allow frames of up to this size from now on."""
        self._decoder.frame_bytes_max = frame_bytes_max

    def discard(self) -> None:
        """Drop what was not handled, because the connection is gone."""
        self._waiting = []
        self._decoder = FrameDecoder(HANDSHAKE_FRAME_BYTES_MAX)
        self._is_discarded = True
        self._buffer.forget(self._holder)

    # ---- reading is held

    def hold(self, reason: ReadHold) -> None:
        """Stop reading until `release` is called with this reason."""
        if not self.holds and not self._transport.is_closing():
            self._transport.pause_reading()
        self.holds.add(reason)

    def release(self, reason: ReadHold) -> None:
        """Remove a reason to hold. Reads again if there is no other one."""
        if reason in self.holds:
            self.holds.discard(reason)
            if not self.holds:
                # Not here: the caller may be in the middle of handling a frame.
                self._call_soon(self._read_on)

    def _read_on(self) -> None:
        if self.holds or not self._session.is_open:
            return
        if self._waiting:
            self._take(self._waiting)
            self.account()
        if not self.holds and not self._transport.is_closing():
            self._transport.resume_reading()

    # ---- frames

    def feed(self, chunk: bytes) -> None:
        """Handle every frame that this chunk completes."""
        frames = self._decoder.feed(chunk)
        if self._waiting:
            self._waiting += frames
        else:
            self._take(frames)
        self.account(is_frame_complete=bool(frames))

    def account(self, *, is_frame_complete: bool = False) -> None:
        """Report to the publish buffer how many bytes the connection holds now."""
        if self._is_discarded:
            return
        half_received_bytes = self._decoder.buffered_bytes
        if self._waiting:
            half_received_bytes += sum(
                len(command) + len(entry) for command, entry in self._waiting
            )
        self._buffer.update(
            self._holder,
            half_received_bytes=half_received_bytes,
            missing_bytes=self._decoder.missing_bytes,
            unanswered_bytes=self._session.producers.unanswered_bytes,
            is_frame_complete=is_frame_complete,
        )

    def _end_as_too_slow(self) -> bool:
        if self.holds:
            return False
        self._session.end(
            ProtocolError(
                "memory for messages is used up, and the rest of a frame, "
                f"{self._decoder.missing_bytes} bytes, does not come"
            )
        )
        self.discard()  # at once: the peer may never read the error
        return True

    def _take(self, frames: list[Frame]) -> None:
        """Handle frames until a hold stops that, and end the connection on an error."""
        session = self._session
        try:
            self._waiting = self._handle(frames)
        except ProtocolError as error:
            session.end(error)
        except DecodeError:
            session.end(ProtocolError("a command is not valid protobuf"))
        except CallerError as error:  # of an ACK, SEND or FLOW: those have no reply
            session.end(ProtocolError(str(error)))
        except Exception:
            log.exception("a bug ended the connection of %s", session.peer)
            session.end(ProtocolError("internal error"))
        if self._decoder.error is not None and not self._waiting:
            session.end(self._decoder.error)
        session.producers.hold_if_full()

    def _handle(self, frames: list[Frame]) -> list[Frame]:
        """Handle frames; returns those that have to wait."""
        session = self._session
        acks: dict[int, list[pb.CommandAck]] = {}
        remaining = iter(frames)
        try:
            for command, payload in remaining:
                head = command[:2]
                if not session.is_connected:
                    self._handle_command(command)
                    if self.holds:  # CONNECT holds reading
                        return list(remaining)
                elif head == _SEND:
                    session.producers.publish(_parse(command).send, payload)
                elif head == _ACK:
                    ack = _parse(command).ack
                    if not ack.IsInitialized():
                        raise ProtocolError("ACK lacks a required field")
                    # Collected, so that topics apply and answer them in bulk.
                    gathered = acks.get(ack.consumer_id)
                    if gathered is None:
                        acks[ack.consumer_id] = [ack]
                    else:
                        gathered.append(ack)
                elif head == _FLOW:
                    flow = _parse(command).flow
                    if not flow.IsInitialized():
                        raise ProtocolError("FLOW lacks a required field")
                    session.consumers.flow(flow)
                else:
                    # Acks take effect before whatever comes after them (a seek, a redelivery).
                    if acks:
                        gathered_acks, acks = acks, {}
                        session.consumers.acks(gathered_acks)
                    if not self._handle_command(command):
                        return [(command, payload), *remaining]
                    # One chunk may hold thousands of requests with large answers.
                    if self.holds:
                        return list(remaining)
        finally:
            if acks:
                session.consumers.acks(acks)
        return []

    def _handle_command(self, serialized: bytes) -> bool:
        """Handle one command. False: it must wait until the client's permissions were read."""
        session = self._session
        envelope = _parse(serialized)
        if not envelope.HasField("type"):
            raise ProtocolError("unknown type of command")
        route = ROUTES.get(envelope.type)
        if not session.is_connected and envelope.type not in BEFORE_CONNECT:
            raise ProtocolError(f"{_name(envelope)} before CONNECT")
        if route is None:
            raise ProtocolError(f"{_name(envelope)} is not a command that this broker takes")
        if not envelope.HasField(route.field):
            raise ProtocolError(f"{_name(envelope)} without its command")
        if not envelope.IsInitialized():
            raise ProtocolError(f"{_name(envelope)} lacks a required field")
        command = getattr(envelope, route.field)
        if broken := _broken_text(command):
            raise ProtocolError(f"{_name(envelope)} with a {broken} that is not UTF-8")
        try:
            if not session.rights.permits(_name(envelope), command):
                return False
            route.handle(session, command)
        except ProtocolError:
            raise
        except (BrokerError, CallerError) as error:
            request_id = getattr(command, "request_id", replies.NO_REQUEST_ID)
            session.refuse(request_id, error, route.fail)
        return True


def _name(envelope: pb.BaseCommand) -> str:
    return pb.BaseCommand.Type.Name(envelope.type)


def _broken_text(message: Message) -> str | None:
    """Path of a text field that is not UTF-8, at any depth; None if all text is valid.

    protobuf does not reject such text in proto2: it returns it as bytes.
    """
    if not _may_hold_text(message.DESCRIPTOR):
        return None  # one call instead of one for each of a thousand message ids
    for kind, value in message.ListFields():
        if isinstance(value, bytes):
            if kind.type == kind.TYPE_STRING:
                return str(kind.name)
        elif isinstance(value, Message):
            if broken := _broken_text(value):
                return f"{kind.name}.{broken}"
        elif kind.type == kind.TYPE_MESSAGE and _may_hold_text(kind.message_type):
            for each in value:
                if broken := _broken_text(each):
                    return f"{kind.name}.{broken}"
        elif (
            kind.type == kind.TYPE_STRING
            and not isinstance(value, str)
            and any(isinstance(each, bytes) for each in value)
        ):
            return str(kind.name)
    return None


@cache
def _may_hold_text(kind: Descriptor) -> bool:
    """Whether messages of this kind, or messages inside them, have text fields."""
    met: set[str] = set()
    kinds = [kind]
    while kinds:
        each = kinds.pop()
        if each.full_name not in met:
            met.add(each.full_name)
            if any(field.type == field.TYPE_STRING for field in each.fields):
                return True
            kinds += [field.message_type for field in each.fields if field.message_type]
    return False
