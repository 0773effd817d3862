"""The producers of one connection: PRODUCER, SEND, CLOSE_PRODUCER and what goes back for them.

Edge: owns the connection's producer ids. An id is in one of these states::

            PRODUCER            topic answers           exclusive access won
    unknown --------> creating ---------------> waiting --------------------> open
                          |                        |                            |
                          `--- CLOSE_PRODUCER, failure, the broker closes it ---'--> unknown

A SEND for an id that is not open breaks the protocol, and the connection is closed, as Pulsar does.
But a client whose producer the broker has closed may not know it yet: until it opens the id again
its entries are dropped silently (it sends them once more then). CLOSE_PRODUCER is answered after
the entries before it were, so that a client that closes in a hurry loses no receipt.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from ackgate.broker.wire import replies, requests
from ackgate.broker.wire.entry import can_hold, entry_metadata
from ackgate.broker.wire.errors import (
    BrokerError,
    ChecksumError,
    ProducerBlockedError,
    ProtocolError,
    ServerError,
    ServiceNotReadyError,
)
from ackgate.broker.wire.requests import SentEntry
from ackgate.errors import DiskFullError
from ackgate.network import NOWHERE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ackgate.broker.wire.names import TopicName
    from ackgate.broker.wire.ports import Connection, ProducerPort
    from ackgate.broker.wire.proto import pulsar_pb2 as pb
    from ackgate.broker.wire.requests import ProducerRequest
    from ackgate.network import Urls

log = logging.getLogger(__name__)

RECENTLY_CLOSED_MAX: Final = 10_000
"""Producer ids remembered as closed by the broker; the oldest are forgotten beyond that."""

PENDING_PUBLISH_BYTES_MAX: Final = 64 * 1024 * 1024
"""If so many bytes of a connection are not durable yet, reading from it stops. For small messages
the limit of their number comes first."""


TRANSACTIONS_REFUSED: Final = "Transactions are not enabled."
"""Error text, in Pulsar's words."""

MESSAGES_REFUSED: Final = "An entry of {} bytes cannot hold the {} messages that it claims"

DELAY_REFUSED: Final = "Exceeds max allowed delivery delay of {} milliseconds"
"""Error text, in Pulsar's words."""


class _Producer:
    """An open producer, and the sizes of its entries without a receipt."""

    __slots__ = ("drained", "port", "request_id", "topic", "unconfirmed")

    def __init__(self, port: ProducerPort, request_id: int, topic: TopicName) -> None:
        self.port = port
        self.topic = topic
        self.request_id = request_id
        """Id of the PRODUCER request, which may be answered twice: waiting, then ready."""
        self.unconfirmed: deque[int] = deque()
        self.drained: asyncio.Event | None = None
        """Set when all entries are answered; made by a call that waits for that."""


class Producers:
    """The producers of one connection."""

    def __init__(self, session: Connection) -> None:
        self._session = session
        self._open: dict[int, _Producer] = {}
        self._waiting: dict[int, _Producer] = {}
        self._creating: dict[int, ProducerRequest] = {}
        """An entry that is taken out meanwhile is not wanted any more."""
        self._recently_closed: dict[int, None] = {}
        self._pending_count = 0
        self.unanswered_bytes = 0
        """Bytes of entries that are neither confirmed nor rejected yet."""

    def __len__(self) -> int:
        """Number of producers that exist on the topics' side."""
        return len(self._open) + len(self._waiting)

    # ---- PRODUCER

    def create(self, command: pb.CommandProducer) -> None:
        producer_id, request_id = command.producer_id, command.request_id
        existing = self._find(producer_id)
        if existing is not None:
            # After a timeout a client asks again, and gets the same answer.
            existing.request_id = request_id
            self._session.send(_success(request_id, existing.port))
            return
        if producer_id in self._creating:
            raise ServiceNotReadyError("Producer is already present on the connection")
        request = self._creating[producer_id] = requests.producer_request(command)
        self._recently_closed.pop(producer_id, None)
        self._session.run(request_id, self._create(request, request_id))

    async def _create(self, request: ProducerRequest, request_id: int) -> bytes:
        producer_id = request.producer_id
        session = self._session
        try:
            topic = await session.context.registry.topic(request.topic, create=True)
            checked = await session.context.schemas.for_producer(request, session.settings)
            port = await topic.add_producer(session, checked)
        except DiskFullError as error:
            raise ProducerBlockedError(str(error)) from error
        finally:
            is_wanted = self._creating.get(producer_id) is request
            if is_wanted:
                del self._creating[producer_id]
        if not is_wanted or not session.is_open:
            await port.close()
            raise ServiceNotReadyError("Producer was closed before it was created")
        producer = _Producer(port, request_id, request.topic)
        (self._open if port.is_ready else self._waiting)[producer_id] = producer
        session.note(
            log, "producer %s opened on %s by %s (id %d)",
            port.name, request.topic, session.peer, producer_id,
        )  # fmt: skip
        return _success(request_id, port)

    def ready(self, producer_id: int) -> None:
        """Open a waiting producer that has won exclusive access."""
        producer = self._waiting.pop(producer_id, None)
        if producer is not None:
            self._open[producer_id] = producer
            self._session.send(_success(producer.request_id, producer.port))

    # ---- SEND

    def publish(self, command: pb.CommandSend, entry: bytes) -> None:
        """Handle a SEND. The hottest path into the broker."""
        producer_id = command.producer_id
        producer = self._open.get(producer_id)
        if producer is None:
            self._refuse_stray(producer_id)
            return
        sequence_id = command.sequence_id
        # An absent field reads as 0: only then check for presence.
        if not sequence_id and not command.HasField("sequence_id"):
            raise ProtocolError("SEND without a sequence id")
        try:
            metadata = entry_metadata(entry)
        except ChecksumError as error:
            self._refuse_entry(producer_id, sequence_id, error)
            return
        deliver_at_ms = metadata.deliver_at_time
        # The entry's own count: consumers pay for it with permits, and recovery will read it.
        message_count = max(1, metadata.num_messages_in_batch)
        refusal = None
        if command.HasField("txnid_least_bits"):
            refusal = TRANSACTIONS_REFUSED
        elif deliver_at_ms > 0 and _is_too_late(
            producer.port, deliver_at_ms - metadata.publish_time
        ):
            producer.port.delay_refused()
            refusal = DELAY_REFUSED.format(producer.port.max_delay_ms)
        elif message_count > 1 and not can_hold(entry, metadata):
            refusal = MESSAGES_REFUSED.format(len(entry), message_count)
        if refusal is not None:
            self._session.note(
                log, "entry %d of producer %s from %s refused: %s",
                sequence_id, producer.port.name, self._session.peer, refusal,
            )  # fmt: skip
            self._session.send(
                replies.send_error(producer_id, sequence_id, ServerError.NOT_ALLOWED, refusal)
            )
            return
        entry_bytes = len(entry)
        producer.unconfirmed.append(entry_bytes)
        self._pending_count += 1
        self.unanswered_bytes += entry_bytes
        highest_sequence_id = max(command.highest_sequence_id, sequence_id)
        producer.port.publish(
            SentEntry(
                sequence_id, highest_sequence_id, message_count, entry, metadata, deliver_at_ms
            )
        )

    def hold_if_full(self) -> None:
        """Stop reading if too much is not durable yet. Called once for each chunk."""
        if (
            self._pending_count
            >= self._session.settings.max_pending_publish_requests_per_connection
            or self.unanswered_bytes >= PENDING_PUBLISH_BYTES_MAX
        ):
            self._session.intake.hold("publishes")

    def _release_if_room(self) -> None:
        # At half the bound, so that reading does not start and stop with every receipt.
        if (
            self._pending_count * 2
            <= self._session.settings.max_pending_publish_requests_per_connection
            and self.unanswered_bytes * 2 <= PENDING_PUBLISH_BYTES_MAX
        ):
            self._session.intake.release("publishes")

    def _refuse_stray(self, producer_id: int) -> None:
        if producer_id not in self._recently_closed:
            raise ProtocolError(f"SEND for producer {producer_id}, which is not open")

    def _refuse_entry(self, producer_id: int, sequence_id: int, error: ChecksumError) -> None:
        log.warning(
            "wrong checksum on entry %d of producer %d from %s",
            sequence_id, producer_id, self._session.peer,
        )  # fmt: skip
        self._session.send(replies.send_error(producer_id, sequence_id, error.code, str(error)))

    # ---- what topics send

    def send_receipts(
        self, producer_id: int, receipts: Sequence[tuple[int, int, int, int]]
    ) -> None:
        producer = self._open.get(producer_id)
        if producer is not None:
            self._session.send_many(replies.receipts(producer_id, receipts))
            self._settle(producer, len(receipts))

    def send_error(self, producer_id: int, sequence_id: int, error: int, message: str) -> None:
        producer = self._open.get(producer_id)
        if producer is not None:
            self._session.send(replies.send_error(producer_id, sequence_id, error, message))
            self._settle(producer, 1)

    def _settle(self, producer: _Producer, count: int) -> None:
        unconfirmed = producer.unconfirmed
        count = min(count, len(unconfirmed))
        self._pending_count -= count
        self.unanswered_bytes -= sum([unconfirmed.popleft() for _ in range(count)])
        if producer.drained is not None and not unconfirmed:
            producer.drained.set()
        self._release_if_room()
        self._session.intake.account()

    # ---- closing

    def close(self, command: pb.CommandCloseProducer) -> None:
        """Close a producer. Succeeds whatever the state of its id, as in Pulsar."""
        producer_id, request_id = command.producer_id, command.request_id
        self._creating.pop(producer_id, None)
        producer = self._find(producer_id)
        if producer is None:
            self._session.send(replies.success(request_id))
        else:
            self._session.run(request_id, self._close(producer_id, producer, request_id))

    async def _close(self, producer_id: int, producer: _Producer, request_id: int) -> bytes:
        if producer.unconfirmed:
            producer.drained = producer.drained or asyncio.Event()
            await producer.drained.wait()
        self._forget(producer_id, producer)
        await producer.port.close()
        return replies.success(request_id)

    def closed_by_broker(self, producer_id: int, urls: Urls) -> None:
        """Send CLOSE_PRODUCER, and ignore what the client still sends for it."""
        producer = self._find(producer_id)
        if producer is None:
            return
        self._forget(producer_id, producer)
        self._recently_closed[producer_id] = None
        if len(self._recently_closed) > RECENTLY_CLOSED_MAX:
            del self._recently_closed[next(iter(self._recently_closed))]
        self._session.send(replies.close_producer(producer_id, urls))

    def keep(self, is_allowed: Callable[[TopicName], bool]) -> None:
        """Close the producers of topics that are no longer allowed. Their clients reconnect."""
        for producer_id, request in list(self._creating.items()):
            if not is_allowed(request.topic):
                del self._creating[producer_id]
        for producer_id, producer in [*self._open.items(), *self._waiting.items()]:
            if not is_allowed(producer.topic):
                self.closed_by_broker(producer_id, NOWHERE)
                self._session.run(replies.NO_REQUEST_ID, producer.port.close())

    def _find(self, producer_id: int) -> _Producer | None:
        return self._open.get(producer_id) or self._waiting.get(producer_id)

    def _forget(self, producer_id: int, producer: _Producer) -> None:
        # The id may have been given to a new producer while the old one was being closed.
        for producers in (self._open, self._waiting):
            if producers.get(producer_id) is producer:
                del producers[producer_id]
                self._settle(producer, len(producer.unconfirmed))

    async def close_all(self) -> None:
        """Detach every producer from its topic, because the connection is gone."""
        self._creating.clear()
        producers = [*self._open.items(), *self._waiting.items()]
        for producer_id, producer in producers:
            self._forget(producer_id, producer)
        # All at once: closing one may wait until its heir's epoch is stored.
        await asyncio.gather(*(self._detach(producer.port) for _, producer in producers))

    async def _detach(self, port: ProducerPort) -> None:
        try:
            await port.close()
        except BrokerError as error:
            log.warning("closing producer %s: %s", port.name, error)
        except Exception:
            log.exception("closing producer %s", port.name)


def _is_too_late(producer: ProducerPort, delay_ms: int) -> bool:
    max_delay_ms = producer.max_delay_ms
    return 0 < max_delay_ms < delay_ms


def _success(request_id: int, port: ProducerPort) -> bytes:
    return replies.producer_success(
        request_id,
        port.name,
        port.last_sequence_id,
        port.schema_version,
        port.topic_epoch,
        is_ready=port.is_ready,
    )
