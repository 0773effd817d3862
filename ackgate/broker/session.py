"""One connection: from the first byte to the last.

Edge: owns a transport. It cuts the stream into frames, hands commands to whoever handles them
(``commands/``), and is what topics send through (`SessionPort`).

    STARTED --CONNECT--> CONNECTED --fatal error, silence, either side closes--> CLOSED
       `----- anything else, or nothing for handshakeTimeoutSeconds --------------^

Bounds, per connection: a frame (`FrameDecoder`), entries not yet durable and requests under way
(reading stops above, so TCP holds the client back), unsent output (deliveries pause, then reading
stops), silence (pinged, then closed), the time until CONNECT.

A broken frame or a broken rule of the protocol ends this connection and no other: the client is
told why, the peer and the reason are logged, payloads never. Producers and consumers of a
connection that ends are detached from their topics.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, cast

from google.protobuf.message import DecodeError

from ackgate.broker import replies, requests
from ackgate.broker.commands.consumers import Consumers
from ackgate.broker.commands.dispatch import BEFORE_CONNECT, ROUTES
from ackgate.broker.commands.producers import Producers
from ackgate.broker.errors import BrokerError, ProtocolError, server_error
from ackgate.broker.frames import COMMAND_BYTES_EXTRA, HANDSHAKE_FRAME_BYTES_MAX, FrameDecoder
from ackgate.broker.liveness import Liveness, Verdict
from ackgate.broker.outbox import Outbox
from ackgate.broker.proto import pulsar_pb2 as pb
from ackgate.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from ackgate.broker.commands.dispatch import FailureReply
    from ackgate.broker.frames import Frame
    from ackgate.broker.ports import ProducerPort, TopicRegistryPort
    from ackgate.broker.schemas import SchemaRegistry
    from ackgate.broker.wire_types import MessageOut
    from ackgate.config.broker import BrokerSettings

log = logging.getLogger(__name__)

PROTOCOL_VERSION: Final = 21
"""v21: what a broker must know of it is that SUBSCRIBE may carry an AUTO_CONSUME schema. What came
before and needs a broker's part (GetOrCreateSchema 15, ack receipts 17, ...) is all there, but for
transactions (19), which are refused one by one."""

PROTOCOL_VERSION_MIN: Final = 6
"""Entries carry checksums from v6 on; older clients (before 2017) could not read them."""

REQUESTS_IN_FLIGHT_MAX: Final = 200
"""Requests of one connection that are being answered at a time. Above it nothing more is read: a
client that opens ten thousand topics waits in its socket, and its answers not in our memory."""

CLOSE_GRACE_SECONDS: Final = 5.0
"""How long a peer may take to read its last words before the connection is cut."""

ReadHold: TypeAlias = Literal["publishes", "requests", "output"]
"""Why nothing is read from a connection at the moment."""

_SEND: Final = b"\x08\x06"  # type: SEND, as every client writes it: field 1 first
_ACK: Final = b"\x08\x0a"
_FLOW: Final = b"\x08\x0b"

_parse: Final = pb.BaseCommand.FromString


class Connections(Protocol):
    """Who keeps count of connections."""

    def opened(self, session: Session) -> bool:
        """A connection was made; False: there are too many, refuse it."""

    def introduced(self, session: Session) -> None:
        """It has said CONNECT."""

    def closed(self, session: Session) -> None:
        """It is gone, and its producers and consumers are detached."""


class HasSettings(Protocol):
    """Where the current settings are; they may be replaced while the broker runs."""

    @property
    def broker(self) -> BrokerSettings:
        """This room's part."""


@dataclass(slots=True)
class SessionContext:
    """What all connections of one broker share."""

    registry: TopicRegistryPort
    schemas: SchemaRegistry
    connections: Connections
    settings: HasSettings
    server_version: str = "ackgate"
    service_url: str = ""
    """What LOOKUP answers; known once the port is."""


class Session(asyncio.Protocol):
    """A connected client. Implements `SessionPort`."""

    def __init__(self, context: SessionContext) -> None:
        self.context = context
        self.peer = "?"
        self.client_version = ""
        self.protocol_version = 0
        self.is_open = False
        self.producers: Producers = Producers(self)
        self.consumers: Consumers = Consumers(self)
        self._is_connected = False
        self._decoder = FrameDecoder(HANDSHAKE_FRAME_BYTES_MAX)
        self._liveness = Liveness()
        self._holds: set[ReadHold] = set()
        self._waiting: list[Frame] = []
        """Frames that had arrived when reading was held."""
        self._requests: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop
        self._transport: asyncio.Transport
        self._outbox: Outbox

    @property
    def settings(self) -> BrokerSettings:
        """The broker's settings as they are now."""
        return self.context.settings.broker

    # ---- life of the connection (called by the loop)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start listening, for a while."""
        self._loop = asyncio.get_running_loop()
        # uvloop's transports are no subclass of asyncio's, but have all its methods.
        self._transport = cast("asyncio.Transport", transport)
        self.peer = _address(transport.get_extra_info("peername"))
        self._outbox = Outbox(
            self._transport,
            self._loop.call_soon,
            self.settings.connection_write_buffer_bytes_max,
            self._on_drained,
        )
        self.is_open = True
        if not self.context.connections.opened(self):
            log.warning("connection of %s refused: too many connections", self.peer)
            self.abort()
            return
        self._timer = self._loop.call_later(
            self.settings.handshake_timeout_seconds, self._on_handshake_timeout
        )

    def data_received(self, chunk: bytes) -> None:
        """Handle every frame that is complete now."""
        self._liveness.heard = True
        frames = self._decoder.feed(chunk)
        if self._waiting:
            self._waiting += frames
        else:
            self._take(frames)

    def eof_received(self) -> bool:
        """The client sends nothing more: nothing can be asked, so nothing is answered."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Detach what the connection held."""
        if self.is_open and self._is_connected:
            log.info("connection of %s closed%s", self.peer, f": {exc}" if exc else "")
        self.is_open = False
        self._waiting = []
        self._outbox.discard()
        self._cancel_timer()
        self._loop.create_task(self._detach())

    async def _detach(self) -> None:
        await self.producers.close_all()
        await self.consumers.close_all()
        # A PRODUCER or SUBSCRIBE that is under way sees that the session is closed, and undoes it.
        if self._requests:
            await asyncio.wait(self._requests)
        self.context.connections.closed(self)

    def pause_writing(self) -> None:
        """The peer reads more slowly than we write."""
        self._outbox.pause()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._outbox.resume()

    def close(self) -> None:
        """End the connection after what was said has been sent."""
        self._outbox.flush()
        self.is_open = False
        self._transport.close()
        self._cancel_timer()
        self._timer = self._loop.call_later(CLOSE_GRACE_SECONDS, self._transport.abort)

    def abort(self) -> None:
        """End the connection at once."""
        self.is_open = False
        self._transport.abort()

    def _end(self, error: ProtocolError) -> None:
        """The connection cannot go on. Say why, here and there."""
        if not self.is_open:
            return
        log.warning("connection of %s ended: %s", self.peer, error)
        self.send(replies.error(replies.NO_REQUEST_ID, error.code, str(error)))
        self.close()

    # ---- frames in

    def _take(self, frames: list[Frame]) -> None:
        """Handle frames, as far as no hold comes in between."""
        try:
            self._waiting = self._handle(frames)
        except ProtocolError as error:
            self._end(error)
        except DecodeError:
            self._end(ProtocolError("a command is not valid protobuf"))
        except CallerError as error:  # of an ACK, SEND or FLOW: those have nobody to answer
            self._end(ProtocolError(str(error)))
        except Exception:
            log.exception("a bug ended the connection of %s", self.peer)
            self._end(ProtocolError("internal error"))
        if self._decoder.error is not None and not self._waiting:
            self._end(self._decoder.error)
        self.producers.hold_if_full()

    def _handle(self, frames: list[Frame]) -> list[Frame]:
        """Handle frames; returns those that have to wait."""
        acks: dict[int, list[pb.CommandAck]] = {}
        remaining = iter(frames)
        try:
            for command, payload in remaining:
                head = command[:2]
                if not self._is_connected:
                    self._handle_command(command)
                elif head == _SEND:
                    self.producers.publish(_parse(command).send, payload)
                elif head == _ACK:
                    ack = _parse(command).ack
                    if not ack.IsInitialized():
                        raise ProtocolError("ACK lacks a required field")
                    # Gathered, so that topics apply and answer them in bulk.
                    gathered = acks.get(ack.consumer_id)
                    if gathered is None:
                        acks[ack.consumer_id] = [ack]
                    else:
                        gathered.append(ack)
                elif head == _FLOW:
                    flow = _parse(command).flow
                    if not flow.IsInitialized():
                        raise ProtocolError("FLOW lacks a required field")
                    self.consumers.flow(flow)
                else:
                    # Acks take effect before whatever comes after them (a seek, a redelivery).
                    if acks:
                        gathered_acks, acks = acks, {}
                        self.consumers.acks(gathered_acks)
                    self._handle_command(command)
                    # One chunk may hold thousands of requests with large answers.
                    if self._holds:
                        return list(remaining)
        finally:
            if acks:
                self.consumers.acks(acks)
        return []

    def _handle_command(self, serialized: bytes) -> None:
        envelope = _parse(serialized)
        if not envelope.HasField("type"):
            raise ProtocolError("unknown type of command")
        route = ROUTES.get(envelope.type)
        if not self._is_connected and envelope.type not in BEFORE_CONNECT:
            raise ProtocolError(f"{_name(envelope)} before CONNECT")
        if route is None:
            raise ProtocolError(f"{_name(envelope)} is not a command that this broker takes")
        if not envelope.HasField(route.field):
            raise ProtocolError(f"{_name(envelope)} without its command")
        if not envelope.IsInitialized():
            raise ProtocolError(f"{_name(envelope)} lacks a required field")
        command = getattr(envelope, route.field)
        if broken := requests.broken_text(command):
            raise ProtocolError(f"{_name(envelope)} with a {broken} that is not UTF-8")
        try:
            route.handle(self, command)
        except ProtocolError:
            raise
        except (BrokerError, CallerError) as error:
            self._refuse(getattr(command, "request_id", replies.NO_REQUEST_ID), error, route.fail)

    def connect(self, command: pb.CommandConnect) -> None:
        """CONNECT."""
        if self._is_connected:
            raise ProtocolError("CONNECT on a connection that is connected")
        if command.protocol_version < PROTOCOL_VERSION_MIN:
            raise ProtocolError(
                f"protocol version {command.protocol_version} is not served,"
                f" {PROTOCOL_VERSION_MIN} is the oldest"
            )
        settings = self.settings
        self.client_version = command.client_version
        self.protocol_version = min(command.protocol_version, PROTOCOL_VERSION)
        self._is_connected = True
        self._decoder.frame_bytes_max = settings.max_message_size + COMMAND_BYTES_EXTRA
        self.context.connections.introduced(self)
        self.send(
            replies.connected(
                self.context.server_version, self.protocol_version, settings.max_message_size
            )
        )
        self._cancel_timer()
        self._schedule_keep_alive()
        log.info("%s connected with %s", self.peer, ascii(command.client_version[:80]))

    # ---- requests

    def run(
        self,
        request_id: int,
        work: Coroutine[Any, Any, bytes | None],
        fail: FailureReply = replies.error,
    ) -> None:
        """Answer a request by what `work` returns, or by its failure, when that is there."""
        task = self._loop.create_task(self._run(request_id, work, fail))
        self._requests.add(task)
        task.add_done_callback(self._on_request_done)
        if len(self._requests) >= REQUESTS_IN_FLIGHT_MAX:
            self.hold_reading("requests")

    async def _run(
        self, request_id: int, work: Coroutine[Any, Any, bytes | None], fail: FailureReply
    ) -> None:
        try:
            reply = await work
        except Exception as error:  # noqa: BLE001 - `_refuse` logs what is not the client's fault
            self._refuse(request_id, error, fail)
        else:
            if reply is not None:
                self.send(reply)

    def _on_request_done(self, task: asyncio.Task[None]) -> None:
        self._requests.discard(task)
        if len(self._requests) * 2 <= REQUESTS_IN_FLIGHT_MAX:
            self.release_reading("requests")

    def _refuse(self, request_id: int, error: Exception, fail: FailureReply) -> None:
        code = server_error(error)
        if isinstance(error, BrokerError | CallerError):
            log.info("request of %s refused: %s", self.peer, error)
            message = str(error)
        else:
            # Whatever it says may name files of ours: the client hears only what kind it is.
            log.error("request of %s failed", self.peer, exc_info=error)
            message = f"{type(error).__name__}: see the log of the broker"
        self.send(fail(request_id, code, message))

    # ---- backpressure and silence

    def hold_reading(self, hold: ReadHold) -> None:
        """Read nothing more until `release_reading`."""
        if not self._holds and not self._transport.is_closing():
            self._transport.pause_reading()
        self._holds.add(hold)

    def release_reading(self, hold: ReadHold) -> None:
        """Read again, unless there is another reason not to."""
        if hold in self._holds:
            self._holds.discard(hold)
            if not self._holds:
                # Not here: whoever calls may be in the middle of handling a frame.
                self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._holds or not self.is_open:
            return
        if self._waiting:
            self._take(self._waiting)
        if not self._holds and not self._transport.is_closing():
            self._transport.resume_reading()

    def _on_drained(self) -> None:
        self.release_reading("output")
        if self.is_open:
            self.consumers.on_writable()

    def _schedule_keep_alive(self) -> None:
        interval_seconds = self.settings.keep_alive_interval_seconds
        if interval_seconds > 0:
            self._timer = self._loop.call_later(interval_seconds, self._on_keep_alive)

    def _on_keep_alive(self) -> None:
        is_deaf = bool(self._holds - {"output"})
        verdict = self._liveness.check(is_deaf=is_deaf)
        if verdict is Verdict.CLOSE:
            log.warning("connection of %s ended: silent, and no answer to a ping", self.peer)
            self.abort()
            return
        if verdict is Verdict.PING:
            self.send(replies.PING)
        self._schedule_keep_alive()

    def _on_handshake_timeout(self) -> None:
        log.warning("connection of %s ended: no CONNECT in time", self.peer)
        self.abort()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---- frames out

    @property
    def is_writable(self) -> bool:
        """Whether deliveries are welcome; whoever reads False is told when they are again."""
        return self.is_open and self._outbox.is_writable

    def send(self, frame: bytes) -> None:
        """Send a frame, with whatever else is sent in this tick."""
        if self.is_open:
            self._outbox.send(frame)
            if self._outbox.is_overfull:
                self.hold_reading("output")

    def send_many(self, pieces: Sequence[bytes]) -> None:
        """Send frames that come in pieces."""
        if self.is_open:
            self._outbox.send_many(pieces)
            if self._outbox.is_overfull:
                self.hold_reading("output")

    # ---- what topics send (SessionPort)

    def send_receipts(
        self, producer_id: int, receipts: Sequence[tuple[int, int, int, int]]
    ) -> None:
        """SEND_RECEIPT: (sequence_id, highest_sequence_id, ledger_id, entry_id) each."""
        self.producers.send_receipts(producer_id, receipts)

    def send_error(self, producer_id: int, sequence_id: int, error: int, message: str) -> None:
        """SEND_ERROR."""
        self.producers.send_error(producer_id, sequence_id, error, message)

    def send_producer_ready(self, producer_id: int, producer: ProducerPort) -> None:  # noqa: ARG002
        """PRODUCER_SUCCESS, for the second time: exclusive access was won."""
        self.producers.ready(producer_id)

    def close_producer(self, producer_id: int) -> None:
        """CLOSE_PRODUCER."""
        self.producers.closed_by_broker(producer_id)

    def send_messages(
        self,
        consumer_id: int,
        partition: int,
        messages: Sequence[MessageOut],
        epoch: int | None = None,
    ) -> None:
        """MESSAGE for each."""
        self.consumers.send_messages(consumer_id, partition, messages, epoch)

    def send_active_consumer_change(self, consumer_id: int, *, is_active: bool) -> None:
        """ACTIVE_CONSUMER_CHANGE."""
        self.send(replies.active_consumer_change(consumer_id, is_active=is_active))

    def send_reached_end_of_topic(self, consumer_id: int) -> None:
        """REACHED_END_OF_TOPIC."""
        self.send(replies.reached_end_of_topic(consumer_id))

    def send_ack_responses(self, consumer_id: int, request_ids: Sequence[int]) -> None:
        """ACK_RESPONSE for each, without an error."""
        self.send_many(replies.ack_responses(consumer_id, request_ids))

    def send_ack_error(self, consumer_id: int, request_id: int, error: int, message: str) -> None:
        """ACK_RESPONSE with an error."""
        self.send(replies.ack_error(consumer_id, request_id, error, message))

    def close_consumer(self, consumer_id: int) -> None:
        """CLOSE_CONSUMER."""
        self.consumers.closed_by_broker(consumer_id)


def _name(envelope: pb.BaseCommand) -> str:
    return pb.BaseCommand.Type.Name(envelope.type)


def _address(peername: object) -> str:
    if isinstance(peername, tuple) and len(peername) >= 2:
        host, port = peername[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(peername or "local")
