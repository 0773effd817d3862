"""One connection: from the first byte to the last.

Edge: owns a transport. What comes in goes through `Intake` to its handler;
what goes out is gathered in `Outbox`. The session knows when the connection lives and ends, runs
the requests that take time, and is what topics send through (`SessionPort`).

    STARTED --CONNECT--> CONNECTED --fatal error, silence, either side closes--> CLOSED
       `----- anything else, wrong credentials,                                    ^
              or not through after handshakeTimeoutSeconds ------------------------'

Bounds, per connection: a frame (`FrameDecoder`), entries not yet durable and requests under way
(reading stops above, so TCP holds the client back), unsent output (deliveries pause, then reading
stops), silence (pinged, then closed), the time until CONNECT.

A broken frame or a broken rule of the protocol ends this connection and no other: the client gets
the reason, the log has it with the peer, and never a payload. Producers and consumers of a
connection that ends are detached from their topics.

Unsent output is gathered during a tick of the loop and written at once (`Outbox`)::

    send, send_many --> pieces --(end of tick)--> one write --> transport's buffer --> socket
                          `------ unsent_bytes ------------------------'

While `unsent_bytes` is at or above the high-water mark, `is_writable` is False: deliveries pause.
Replies do not pause, so a client that sends requests without reading would grow the
buffer: from `UNREAD_REPLY_BYTES_MAX` on, `is_overfull` makes the session stop reading from it.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, cast

from ackgate.broker.security import NotAuthorizedError, decisions
from ackgate.broker.wire import replies
from ackgate.broker.wire.consumers import Consumers
from ackgate.broker.wire.errors import BrokerError, ProtocolError, server_error
from ackgate.broker.wire.intake import Intake
from ackgate.broker.wire.producers import Producers
from ackgate.broker.wire.publish_buffer import COMMAND_BYTES_EXTRA
from ackgate.broker.wire.rights import ClientRights
from ackgate.errors import CallerError, CorruptRecordError, OwnershipError, StorageError
from ackgate.network import NOWHERE, and_left_out, peer_certificate

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from ackgate.broker.security import ClientIdentity
    from ackgate.broker.wire.ports import FailureReply, SessionContext
    from ackgate.broker.wire.proto import pulsar_pb2 as pb
    from ackgate.broker.wire.replies import MessageOut
    from ackgate.config.broker import BrokerSettings
    from ackgate.network import PeerCertificate, Urls

UNREAD_REPLY_BYTES_MAX: Final = 8 * 1024 * 1024
"""More than the largest frame that a broker sends, so that a large entry alone never reaches it."""

JOIN_PIECE_BYTES_MAX: Final = 16 * 1024
"""Pieces are joined into one buffer unless they are larger than this on average: copying small ones
is cheaper than handing each to the kernel, copying large ones is not."""

log = logging.getLogger(__name__)

PROTOCOL_VERSION: Final = 21
"""v21: what a broker must know of it is that SUBSCRIBE may carry an AUTO_CONSUME schema. What came
before and asks something of a broker (GetOrCreateSchema 15, ack receipts 17, ...) is all there, but for
transactions (19), which are refused one by one."""

PROTOCOL_VERSION_MIN: Final = 6
"""Entries carry checksums from v6 on; older clients (before 2017) could not read them."""

REQUESTS_IN_FLIGHT_MAX: Final = 200
"""Requests of one connection that are answered at a time. Beyond it reading stops, so requests of a
client that opens ten thousand topics wait in its socket, and answers do not fill our memory."""

CLOSE_GRACE_SECONDS: Final = 5.0
"""How long a peer may take to read the last replies before the connection is cut."""


class Outbox:
    """Collects the output of one connection, and writes it once per tick."""

    __slots__ = (
        "_call_soon",
        "_has_refused",
        "_is_flush_due",
        "_is_paused",
        "_on_drained",
        "_pieces",
        "_pieces_bytes",
        "_transport",
        "high_water_bytes",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        call_soon: Callable[[Callable[[], None]], object],
        high_water_bytes: int,
        on_drained: Callable[[], None],
    ) -> None:
        self.high_water_bytes = high_water_bytes
        self._transport = transport
        self._call_soon = call_soon
        self._on_drained = on_drained
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._is_flush_due = False
        self._is_paused = False
        self._has_refused = False
        transport.set_write_buffer_limits(high=high_water_bytes, low=high_water_bytes // 4)

    @property
    def is_writable(self) -> bool:
        """Whether to deliver more. After a False, `on_drained` is called later."""
        if self._is_paused or self._pieces_bytes >= self.high_water_bytes:
            self._has_refused = True
            return False
        return True

    @property
    def is_overfull(self) -> bool:
        """Whether the peer has so much output to read that no more of its requests may be read."""
        if self.unsent_bytes >= UNREAD_REPLY_BYTES_MAX + self.high_water_bytes:
            self._has_refused = True
            return True
        return False

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return self._pieces_bytes + self._transport.get_write_buffer_size()

    def send(self, frame: bytes) -> None:
        """Send one frame, at the end of this tick."""
        self._pieces.append(frame)
        self._pieces_bytes += len(frame)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._call_soon(self.flush)

    def send_many(self, pieces: Sequence[bytes]) -> None:
        """Send frames that are given in pieces, at the end of this tick."""
        self._pieces += pieces
        self._pieces_bytes += sum(map(len, pieces))
        if not self._is_flush_due:
            self._is_flush_due = True
            self._call_soon(self.flush)

    def flush(self) -> None:
        """Pass everything to the transport."""
        self._is_flush_due = False
        pieces = self._pieces
        if not pieces:
            return
        self._pieces = []
        pieces_bytes, self._pieces_bytes = self._pieces_bytes, 0
        if self._transport.is_closing():
            return
        if pieces_bytes > len(pieces) * JOIN_PIECE_BYTES_MAX:
            self._transport.writelines(pieces)
        else:
            self._transport.write(b"".join(pieces))
        self._report_if_drained()

    def discard(self) -> None:
        """Drop what was not sent, because the connection is gone."""
        self._pieces = []
        self._pieces_bytes = 0

    def pause(self) -> None:
        """Stop deliveries: the transport's buffer is above the high-water mark."""
        self._is_paused = True
        self._has_refused = True

    def resume(self) -> None:
        """Deliver again: the transport's buffer is below the low mark."""
        self._is_paused = False
        self._report_if_drained()

    def _report_if_drained(self) -> None:
        if self._has_refused and not self._is_paused:
            self._has_refused = False
            self._on_drained()


class LivenessVerdict(enum.Enum):
    """What to do with a connection after a check."""

    NOTHING = "nothing"
    PING = "ping"
    CLOSE = "close"


class Liveness:
    """Whether the peer is alive. Checked once per interval; pure.

    Something came since the last check: NOTHING. Silent: PING. Silent although pinged: CLOSE.

    `has_received` is set for every chunk that arrives. While our backpressure stops reading, the peer is
    neither pinged nor closed. A peer that does not read our output is closed.
    """

    __slots__ = ("has_received", "is_pinged")

    def __init__(self) -> None:
        self.has_received = False
        """Whether anything arrived since the last check."""
        self.is_pinged = False
        """Whether a ping was sent and not answered."""

    def check(self, *, is_deaf: bool) -> LivenessVerdict:
        """The verdict for the interval that ends now. `is_deaf`: we did not read."""
        if self.has_received or is_deaf:
            self.has_received = False
            self.is_pinged = False
            return LivenessVerdict.NOTHING
        if self.is_pinged:
            return LivenessVerdict.CLOSE
        self.is_pinged = True
        return LivenessVerdict.PING


class Session(asyncio.Protocol):
    """A connected client. Implements `SessionPort`."""

    def __init__(self, context: SessionContext, listener: str = "") -> None:
        self.context = context
        self.listener = listener
        self.peer = "?"
        self.client_version = ""
        self.protocol_version = 0
        self.received_at = 0.0
        self.is_open = False
        self.is_connected = False
        """Whether CONNECT was received and accepted."""
        self.intake: Intake
        self.rights = ClientRights(self)
        self.producers: Producers = Producers(self)
        self.consumers: Consumers = Consumers(self)
        self._liveness = Liveness()
        self._requests: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._detaching: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._transport: asyncio.Transport
        self._outbox: Outbox

    @property
    def settings(self) -> BrokerSettings:
        """The broker's settings as they are now."""
        return self.context.services.settings.broker

    @property
    def identity(self) -> ClientIdentity | None:
        """The client's identity once connected; None if authentication is off."""
        return self.rights.identity

    @property
    def certificate(self) -> PeerCertificate | None:
        """The client certificate that TLS verified, or None."""
        return peer_certificate(self._transport)

    # ---- life of the connection (called by the loop)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin reading, and limit the time until CONNECT."""
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
        self.intake = Intake(self, self._transport, self._loop.call_soon)
        self.is_open = True
        if not self.context.connections.opened(self):
            why = "connection of %s refused: too many connections"
            self.note(log, why, self.peer, level=logging.WARNING)
            self.abort()
            return
        self._timer = self._loop.call_later(
            self.settings.handshake_timeout_seconds, self._on_handshake_timeout
        )

    def data_received(self, chunk: bytes) -> None:
        self._liveness.has_received = True
        self.received_at = perf_counter()
        self.intake.feed(chunk)

    def eof_received(self) -> bool:
        """Close the connection: a client that sends nothing more cannot ask for anything."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Detach all producers and consumers of the connection."""
        if self.is_open and self.is_connected:
            self.note(log, "connection of %s closed%s", self.peer, f": {exc}" if exc else "")
        self.is_open = False
        self.intake.discard()
        self._outbox.discard()
        self._cancel_timer()
        self.rights.cancel()
        self._detaching = self._loop.create_task(self._detach())

    async def _detach(self) -> None:
        await self.consumers.close_all()  # first: others wait for what they have not acked
        await self.producers.close_all()
        # A PRODUCER or SUBSCRIBE that is under way sees that the session is closed, and undoes it.
        if self._requests:
            await asyncio.wait(self._requests)
        self.context.connections.closed(self)

    def pause_writing(self) -> None:
        """Pause deliveries: the peer reads more slowly than we write."""
        self._outbox.pause()

    def resume_writing(self) -> None:
        """Resume deliveries: the peer has read what was sent."""
        self._outbox.resume()

    def close(self) -> None:
        """End the connection after its output is sent."""
        self._outbox.flush()
        self.is_open = False
        self._transport.close()
        self._cancel_timer()
        self._timer = self._loop.call_later(CLOSE_GRACE_SECONDS, self._transport.abort)

    def abort(self) -> None:
        """End the connection at once."""
        self.is_open = False
        self._transport.abort()

    def end(self, error: ProtocolError) -> None:
        """End a connection that cannot go on. Sends the client the reason, and logs it."""
        if not self.is_open:
            return
        level = logging.WARNING if self.is_connected else logging.INFO
        self.note(log, "connection of %s ended: %s", self.peer, error, level=level)
        self.send(replies.error(replies.NO_REQUEST_ID, error.code, str(error)))
        self.close()

    # ---- handshake

    def connect(self, command: pb.CommandConnect) -> None:
        if self.is_connected or self.rights.is_asked:
            raise ProtocolError("CONNECT on a connection that is connected")
        if command.protocol_version < PROTOCOL_VERSION_MIN:
            raise ProtocolError(
                f"protocol version {command.protocol_version} is not served,"
                f" {PROTOCOL_VERSION_MIN} is the oldest"
            )
        self.client_version = command.client_version
        self.protocol_version = min(command.protocol_version, PROTOCOL_VERSION)
        self.rights.prove(command, self._introduce)

    def _introduce(self) -> None:
        """Accept commands: the client is known, or does not have to be."""
        settings = self.settings
        self.is_connected = True
        self.intake.allow_frames(settings.max_message_size + COMMAND_BYTES_EXTRA)
        self.context.connections.introduced(self)
        self.send(
            replies.connected(
                self.context.server_version, self.protocol_version, settings.max_message_size
            )
        )
        self._cancel_timer()
        self._schedule_keep_alive()
        who = f" as {self.identity}" if self.identity is not None else ""
        self.note(log, "%s connected with %s%s", self.peer, ascii(self.client_version[:80]), who)

    def recheck(self) -> None:
        """After a change of rights, close producers and consumers that are no longer allowed."""
        if self.is_open:
            self.rights.recheck(self.producers, self.consumers)

    # ---- requests

    def run(
        self,
        request_id: int,
        work: Coroutine[Any, Any, bytes | None],
        fail: FailureReply = replies.error,
    ) -> None:
        """Run `work`, and answer the request with what it returns, or with its failure."""
        task = self._loop.create_task(self._run(request_id, work, fail))
        self._requests.add(task)
        task.add_done_callback(self._on_request_done)
        if len(self._requests) >= REQUESTS_IN_FLIGHT_MAX:
            self.intake.hold("requests")

    async def _run(
        self, request_id: int, work: Coroutine[Any, Any, bytes | None], fail: FailureReply
    ) -> None:
        try:
            reply = await work
        except Exception as error:  # noqa: BLE001 - `refuse` logs what is not the client's fault
            self.refuse(request_id, error, fail)
        else:
            if reply is not None:
                self.send(reply)

    def _on_request_done(self, task: asyncio.Task[None]) -> None:
        self._requests.discard(task)
        if len(self._requests) * 2 <= REQUESTS_IN_FLIGHT_MAX:
            self.intake.release("requests")

    def refuse(self, request_id: int, error: Exception, fail: FailureReply) -> None:
        """Send the reply that says why a request failed."""
        code = server_error(error)
        if isinstance(error, BrokerError | CallerError):
            logger = decisions if isinstance(error, NotAuthorizedError) else log
            self.note(logger, "request of %s refused: %s", self.peer, error)
            # A schema's names may hold half of a surrogate pair, which no reply can.
            message = str(error).encode(errors="backslashreplace").decode()
        else:
            # The text may name our files: the client gets only the kind of error.
            if isinstance(error, OwnershipError | StorageError):
                log.warning("request of %s failed: %s", self.peer, error)
            elif isinstance(error, CorruptRecordError):
                log.error("request of %s failed: %s", self.peer, error)
            else:
                log.error("request of %s failed", self.peer, exc_info=error)
            message = f"{type(error).__name__}: see the log of the broker"
        self.send(fail(request_id, code, message))

    def note(
        self, logger: logging.Logger, message: str, *args: object, level: int = logging.INFO
    ) -> None:
        """Log what this client did. Repeated lines on clients of its host are left out."""
        host = self.peer.rpartition(":")[0]
        left_out = self.context.damper.admit((host, message), self._loop.time())
        if left_out is None:
            logger.debug(message, *args)
        else:
            logger.log(level, f"{message}%s", *args, and_left_out(left_out, of=host))  # noqa: G004

    # ---- backpressure and silence

    def _on_drained(self) -> None:
        self.intake.release("output")
        if self.is_open:
            self.consumers.on_writable()

    def _schedule_keep_alive(self) -> None:
        interval_seconds = self.settings.keep_alive_interval_seconds
        if interval_seconds > 0:
            self._timer = self._loop.call_later(interval_seconds, self._on_keep_alive)

    def _on_keep_alive(self) -> None:
        is_deaf = bool(self.intake.holds - {"output"})
        verdict = self._liveness.check(is_deaf=is_deaf)
        if verdict is LivenessVerdict.CLOSE:
            why = "connection of %s ended: silent, and no answer to a ping"
            self.note(log, why, self.peer, level=logging.WARNING)
            self.abort()
            return
        if verdict is LivenessVerdict.PING:
            self.send(replies.PING)
        self._schedule_keep_alive()

    def _on_handshake_timeout(self) -> None:
        why = "connection of %s ended: no CONNECT in time"
        self.note(log, why, self.peer, level=logging.WARNING)
        self.abort()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---- frames out

    @property
    def is_writable(self) -> bool:
        """Whether to deliver more. After a False, `ConsumerPort.on_writable` is called later."""
        return self.is_open and self._outbox.is_writable

    def send(self, frame: bytes) -> None:
        """Send a frame, together with all others of this tick."""
        if self.is_open:
            self._outbox.send(frame)
            if self._outbox.is_overfull:
                self.intake.hold("output")

    def send_many(self, pieces: Sequence[bytes]) -> None:
        """Send frames that come in pieces."""
        if self.is_open:
            self._outbox.send_many(pieces)
            if self._outbox.is_overfull:
                self.intake.hold("output")

    # ---- what topics send (SessionPort)

    def send_receipts(
        self, producer_id: int, receipts: Sequence[tuple[int, int, int, int]]
    ) -> None:
        """SEND_RECEIPT: (sequence_id, highest_sequence_id, ledger_id, entry_id) each."""
        self.producers.send_receipts(producer_id, receipts)

    def send_error(self, producer_id: int, sequence_id: int, error: int, message: str) -> None:
        self.producers.send_error(producer_id, sequence_id, error, message)

    def send_producer_ready(self, producer_id: int) -> None:
        """PRODUCER_SUCCESS, for the second time: exclusive access was won."""
        self.producers.ready(producer_id)

    def close_producer(self, producer_id: int, urls: Urls = NOWHERE) -> None:
        self.producers.closed_by_broker(producer_id, urls)

    def send_messages(
        self,
        consumer_id: int,
        partition: int,
        messages: Sequence[MessageOut],
        epoch: int | None = None,
    ) -> None:
        self.consumers.send_messages(consumer_id, partition, messages, epoch)

    def send_active_consumer_change(self, consumer_id: int, *, is_active: bool) -> None:
        self.send(replies.active_consumer_change(consumer_id, is_active=is_active))

    def send_reached_end_of_topic(self, consumer_id: int) -> None:
        self.send(replies.reached_end_of_topic(consumer_id))

    def send_ack_responses(self, consumer_id: int, request_ids: Sequence[int]) -> None:
        """ACK_RESPONSE for each, without an error."""
        self.send_many(replies.ack_responses(consumer_id, request_ids))

    def send_ack_error(self, consumer_id: int, request_id: int, error: int, message: str) -> None:
        self.send(replies.ack_error(consumer_id, request_id, error, message))

    def close_consumer(self, consumer_id: int, urls: Urls = NOWHERE) -> None:
        self.consumers.closed_by_broker(consumer_id, urls)


def _address(peername: object) -> str:
    if isinstance(peername, tuple) and len(peername) >= 2:
        host, port = peername[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(peername or "local")
