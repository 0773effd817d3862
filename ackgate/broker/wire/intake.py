"""What a connection says: from chunks of bytes to commands in the right hands.

Edge: owns the reading side of one transport.

    chunk -> FrameDecoder -> frames --+-- SEND -----> producers
                               |      +-- ACK ------> gathered, then consumers (in bulk)
                     held?  waiting   +-- FLOW -----> consumers
                                      `-- others ---> the table of ``dispatch.py``

Reading can be held, for one reason or several; the socket fills then, and TCP holds the client
back. Frames that have arrived already wait here, except for SENDs, ACKs and FLOWs of the same
chunk: they cost little and are bounded by its size.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from ackgate.broker.wire import replies, requests
from ackgate.broker.wire.dispatch import BEFORE_CONNECT, ROUTES
from ackgate.broker.wire.errors import BrokerError, ProtocolError
from ackgate.broker.wire.frames import HANDSHAKE_FRAME_BYTES_MAX, FrameDecoder
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.broker.wire.publish_buffer import Holder
from ackgate.errors import CallerError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ackgate.broker.wire.dispatch import CommandSession
    from ackgate.broker.wire.frames import Frame
    from ackgate.broker.wire.session_context import ReadHold

log = logging.getLogger(__name__)

_SEND: Final = b"\x08\x06"  # type: SEND, as every client writes it: field 1 first
_ACK: Final = b"\x08\x0a"
_FLOW: Final = b"\x08\x0b"

_parse: Final = pb.BaseCommand.FromString


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
        """Frames that had arrived when reading was held."""
        self._buffer = session.context.publish_buffer
        self._holder = Holder(
            lambda: self.hold("memory"), lambda: self.release("memory"), self._end_as_too_slow
        )
        self._is_discarded = False

    def allow_frames(self, frame_bytes_max: int) -> None:
        """From now on frames may be this large."""
        self._decoder.frame_bytes_max = frame_bytes_max

    def discard(self) -> None:
        """Forget what was not handled: the connection is gone."""
        self._waiting = []
        self._decoder = FrameDecoder(HANDSHAKE_FRAME_BYTES_MAX)
        self._is_discarded = True
        self._buffer.forget(self._holder)

    # ---- reading is held

    def hold(self, reason: ReadHold) -> None:
        """Read nothing more until `release`."""
        if not self.holds and not self._transport.is_closing():
            self._transport.pause_reading()
        self.holds.add(reason)

    def release(self, reason: ReadHold) -> None:
        """Read again, unless there is another reason not to."""
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
        """Handle every frame that is complete now."""
        frames = self._decoder.feed(chunk)
        if self._waiting:
            self._waiting += frames
        else:
            self._take(frames)
        self.account(is_frame_complete=bool(frames))

    def account(self, *, is_frame_complete: bool = False) -> None:
        """Say what memory the connection holds now."""
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
        self.discard()  # at once: the peer may not read its last words
        return True

    def _take(self, frames: list[Frame]) -> None:
        """Handle frames, as far as no hold comes in between."""
        session = self._session
        try:
            self._waiting = self._handle(frames)
        except ProtocolError as error:
            session.end(error)
        except DecodeError:
            session.end(ProtocolError("a command is not valid protobuf"))
        except CallerError as error:  # of an ACK, SEND or FLOW: those have nobody to answer
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
                elif head == _SEND:
                    session.producers.publish(_parse(command).send, payload)
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
                    session.consumers.flow(flow)
                else:
                    # Acks take effect before whatever comes after them (a seek, a redelivery).
                    if acks:
                        gathered_acks, acks = acks, {}
                        session.consumers.acks(gathered_acks)
                    self._handle_command(command)
                    # One chunk may hold thousands of requests with large answers.
                    if self.holds:
                        return list(remaining)
        finally:
            if acks:
                session.consumers.acks(acks)
        return []

    def _handle_command(self, serialized: bytes) -> None:
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
        if broken := requests.broken_text(command):
            raise ProtocolError(f"{_name(envelope)} with a {broken} that is not UTF-8")
        try:
            route.handle(session, command)
        except ProtocolError:
            raise
        except (BrokerError, CallerError) as error:
            request_id = getattr(command, "request_id", replies.NO_REQUEST_ID)
            session.refuse(request_id, error, route.fail)


def _name(envelope: pb.BaseCommand) -> str:
    return pb.BaseCommand.Type.Name(envelope.type)
