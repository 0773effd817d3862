"""The interfaces of a connection: to topics, to the rest of the broker, and to the commands it carries.

Types, and one record of what all connections share. `Session` in ``session.py`` is the one implementation
of `Connection`; the topic side (``registry.py``, ``topic.py``, ``producers.py``, ``consumer.py``)
implements the rest.

Rules for both sides:

* One event loop; nothing here is called from another thread.
* A plain method never blocks and never calls back into its caller before it returns, with one
  exception: a topic may send on the session from within any call (sends only append to a list).
* An ``async`` method that fails raises a `BrokerError` that is sent to the client; the session turns any
  other exception into a code (`errors.server_error`) and logs it.
* The session answers every request that has a request id, except acks: the consumer answers those
  (`send_ack_responses`, `send_ack_error`) when they are durable.
* After `close` of a producer or consumer, the session passes nothing more to it, and
  drops what it still sends.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from ackgate.broker.wire.publish_buffer import PublishBuffer
from ackgate.network import NOWHERE, LogDamper

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Coroutine, Sequence, Sized

    from ackgate.broker.security import Authentication, Authorization, ClientIdentity
    from ackgate.broker.wire.names import NamespaceName, TopicName
    from ackgate.broker.wire.proto import pulsar_pb2 as pb
    from ackgate.broker.wire.replies import ConsumerStatsReply, LastMessageId, MessageOut
    from ackgate.broker.wire.requests import (
        ProducerRequest,
        Schema,
        SentEntry,
        StoredSchema,
        SubscribeRequest,
    )
    from ackgate.config.broker import BrokerSettings
    from ackgate.config.settings import Settings
    from ackgate.cursor import Position
    from ackgate.network import PeerCertificate, Urls

# ---- topics


class SessionPort(Protocol):
    """A connected client, as topics see it. All sends to a connection that is gone do nothing."""

    @property
    def peer(self) -> str:
        """``address:port`` of the other end, for statistics and logs."""

    @property
    def client_version(self) -> str:
        """The client's name and version, as in ``Pulsar-CPP-v3.7.1``."""

    @property
    def protocol_version(self) -> int:
        """The smaller one of the client's and the broker's versions."""

    @property
    def received_at(self) -> float:
        """When the chunk that is being handled arrived, by `time.perf_counter`."""

    @property
    def is_open(self) -> bool:
        """Whether anything that is sent can still arrive."""

    @property
    def is_writable(self) -> bool:
        """Whether unsent bytes are below the high-water mark.

        `ConsumerPort.on_writable` is called when that comes true again.
        """

    def send_receipts(
        self, producer_id: int, receipts: Sequence[tuple[int, int, int, int]]
    ) -> None:
        """Confirm entries: (sequence_id, highest_sequence_id, ledger_id, entry_id) each."""

    def send_error(self, producer_id: int, sequence_id: int, error: int, message: str) -> None:
        """Send SEND_ERROR: the entry was not stored."""

    def send_messages(
        self,
        consumer_id: int,
        partition: int,
        messages: Sequence[MessageOut],
        epoch: int | None = None,
    ) -> None:
        """MESSAGE frames, in order. `partition` is -1 for a topic that is not a partition."""

    def send_active_consumer_change(self, consumer_id: int, *, is_active: bool) -> None:
        """Failover: tell this consumer whether it is the active one."""

    def send_reached_end_of_topic(self, consumer_id: int) -> None:
        """Send REACHED_END_OF_TOPIC: the topic is terminated and everything was delivered."""

    def send_ack_responses(self, consumer_id: int, request_ids: Sequence[int]) -> None: ...

    def send_ack_error(
        self, consumer_id: int, request_id: int, error: int, message: str
    ) -> None: ...

    def send_producer_ready(self, producer_id: int) -> None:
        """Let a producer publish that waited for exclusive access (`is_ready` was False)."""

    def close_producer(self, producer_id: int, urls: Urls = NOWHERE) -> None:
        """Send CLOSE_PRODUCER; forget the producer.

        Clients reconnect, to the broker at `urls` if that is known to serve the topic now.
        """

    def close_consumer(self, consumer_id: int, urls: Urls = NOWHERE) -> None:
        """Send CLOSE_CONSUMER; forget the consumer. Clients reconnect."""


class ProducerPort(Protocol):
    """One producer on one topic."""

    @property
    def name(self) -> str:
        """The name that was asked for, or the one that the topic made up."""

    @property
    def last_sequence_id(self) -> int:
        """Highest sequence id known for this name; -1 without one, or without de-duplication."""

    @property
    def schema_version(self) -> bytes:
        """The version in the request; empty without a schema."""

    @property
    def topic_epoch(self) -> int | None:
        """Exclusive producers: the epoch under which this one holds the topic."""

    @property
    def is_ready(self) -> bool:
        """False while it waits for exclusive access; `send_producer_ready` ends that."""

    @property
    def max_delay_ms(self) -> int:
        """Longest delay from publishing that an entry may have, in ms. 0: no limit."""

    def delay_refused(self) -> None:
        """Count an entry that was rejected for its delay."""

    def publish(self, sent: SentEntry) -> None:
        """Store an entry.

        Answered by exactly one of `send_receipts` and `send_error` for this sequence id, in the
        order of the calls, unless the producer is closed first.
        """

    async def close(self) -> None:
        """Detach from the topic. Entries handed over before may still become durable."""


class ConsumerPort(Protocol):
    """One consumer of one subscription."""

    def flow(self, permits: int) -> None:
        """The client takes `permits` more messages."""

    def acks(self, commands: Sequence[pb.CommandAck]) -> None:
        """Apply ACK commands, in order: all that one received chunk held for this consumer.

        Each command with a ``request_id`` is answered by `send_ack_responses` or `send_ack_error`.
        """

    def redeliver(self, positions: Sequence[Position] | None, epoch: int | None) -> None:
        """Deliver these again (None: everything this consumer has not acked)."""

    def on_writable(self) -> None:
        """Go on sending: `is_writable` is True again."""

    def stats(self) -> ConsumerStatsReply:
        """The statistics that the broker keeps for the client."""

    async def last_message_id(self) -> LastMessageId:
        """The topic's last message, and this subscription's mark-delete."""

    async def seek(self, position: Position, unacked_mask: int | None) -> None:
        """Move the subscription so that `position` is read next (`EARLIEST`, `LATEST` allowed).

        `unacked_mask`: set to begin inside the batch at `position`.
        """

    async def seek_to_time(self, publish_time_ms: int) -> None:
        """Move the subscription to the first entry published at or after this time."""

    async def unsubscribe(self, *, force: bool) -> None:
        """Delete the subscription; this consumer is detached with it."""

    async def close(self) -> None:
        """Detach; what was not acked is offered to others. Twice is fine."""


class ServedTopic(Protocol):
    """One topic (or one partition)."""

    @property
    def is_idle(self) -> bool:
        """Whether it has no clients and was never written: a consumer may then set the schema."""

    async def add_producer(self, session: SessionPort, request: ProducerRequest) -> ProducerPort:
        """Attach a producer.

        Raises `ProducerBusyError`, `ProducerFencedError`, `TopicTerminatedError`.
        """

    async def subscribe(self, session: SessionPort, request: SubscribeRequest) -> ConsumerPort:
        """Attach a consumer.

        Raises `ConsumerBusyError`, `SubscriptionNotFoundError`, `ConsumerAssignError`, ...
        """


class TopicRegistryPort(Protocol):
    """All topics of this broker."""

    async def topic(self, name: TopicName, *, create: bool) -> ServedTopic:
        """Return a topic, loaded or created first if need be. Raises `TopicNotFoundError`."""

    async def partition_count(self, name: TopicName, *, create: bool) -> int:
        """Partitions of a topic, 0 when it is not partitioned. Raises `TopicNotFoundError`."""

    async def topic_names(self, namespace: NamespaceName) -> Sequence[str]:
        """Full names of the persistent topics of a namespace, loaded or not."""


class SchemasPort(Protocol):
    """Checks what producers and consumers declare against the stored schemas, and stores new versions."""

    async def get(self, topic: TopicName, version: bytes | None = None) -> StoredSchema | None:
        """Read one version, or the latest. None if there is none."""

    async def for_producer(
        self, request: ProducerRequest, settings: BrokerSettings
    ) -> ProducerRequest:
        """The request with its schema's version filled in. Raises `IncompatibleSchemaError`."""

    async def version_for_producer(
        self, topic: TopicName, schema: Schema | None, settings: BrokerSettings
    ) -> bytes:
        """The version of a producer's schema, created if new. Empty for a producer without one."""

    async def check_consumer(
        self, request: SubscribeRequest, topic: ServedTopic, settings: BrokerSettings
    ) -> None:
        """Raise `IncompatibleSchemaError` if a consumer cannot read the topic with its schema."""


# ---- connections

FailureReply: TypeAlias = "Callable[[int, int, str], bytes]"
"""Builds the frame of a failure from (request id, code, message)."""

ReadHold: TypeAlias = Literal[
    "publishes", "requests", "output", "memory", "authentication", "permissions"
]
"""Why nothing is read from a connection at the moment."""


class ReadHolds(Protocol):
    """The reading side of a connection, which can be paused."""

    def hold(self, reason: ReadHold) -> None:
        """Stop reading until `release` is called with this reason."""

    def release(self, reason: ReadHold) -> None:
        """Remove a reason to hold. Reads again if there is no other one."""

    def account(self) -> None:
        """Report how many bytes the connection holds now."""


class Connection(SessionPort, Protocol):
    """A connected client, as the commands see it."""

    @property
    def context(self) -> SessionContext:
        """What all connections of the broker share."""

    @property
    def listener(self) -> str:
        """Name of the listener that it connected to; empty if that has none."""

    @property
    def settings(self) -> BrokerSettings:
        """The broker's settings as they are now."""

    @property
    def intake(self) -> ReadHolds: ...

    @property
    def identity(self) -> ClientIdentity | None:
        """The client's identity; None before it is known, and if authentication is off."""

    @property
    def certificate(self) -> PeerCertificate | None:
        """The client certificate that TLS verified, or None."""

    @property
    def producers(self) -> Sized: ...

    @property
    def consumers(self) -> Sized: ...

    def send(self, frame: bytes) -> None:
        """Send a frame, together with all others of this tick."""

    def send_many(self, pieces: Sequence[bytes]) -> None:
        """Send frames that come in pieces."""

    def run(
        self, request_id: int, work: Coroutine[Any, Any, bytes | None], fail: FailureReply = ...
    ) -> None:
        """Run `work`, and answer the request with what it returns, or with its failure."""

    def note(self, logger: logging.Logger, message: str, *args: object, level: int = ...) -> None:
        """Log what this client did. Repeated lines on clients of its host are left out."""

    def recheck(self) -> None:
        """After a change of rights, close producers and consumers that are no longer allowed."""

    def close(self) -> None:
        """End the connection after its output is sent."""

    def abort(self) -> None:
        """End the connection at once."""


class Connections(Protocol):
    """Counts the connections of the broker, and rejects those beyond its limits."""

    def opened(self, session: Connection) -> bool:
        """Count a new connection. False: there are too many, so reject it."""

    def introduced(self, session: Connection) -> None:
        """Count a connection that has completed CONNECT."""

    def closed(self, session: Connection) -> None:
        """Forget a connection that is closed and detached from its topics."""


class Located(Protocol):
    """The broker that serves a topic, or is to serve it."""

    @property
    def service(self) -> Urls:
        """Its addresses for clients of the binary protocol."""

    @property
    def is_here(self) -> bool:
        """Whether it is this broker."""

    @property
    def is_owner(self) -> bool:
        """False: no broker serves the topic yet, and this one has to acquire it."""


class TopicOwners(Protocol):
    """Knows which broker serves a topic."""

    def location_now(self, topic: TopicName) -> Located | None:
        """The broker of a topic if that is known without I/O, or None."""

    async def locate(self, topic: TopicName, *, is_authoritative: bool = False) -> Located:
        """Find the broker of a topic.

        Acquires a free one here if the plan assigns it to this broker.

        `is_authoritative`: another broker says that it does. Raises `ServiceNotReadyError`.
        """

    def reached_by(self, located: Any, listener: str) -> Urls:  # noqa: ANN401 - what it has given
        """Addresses of that broker for clients of a listener. Raises `ServiceNotReadyError`."""


class HasSettings(Protocol):
    """Holds the current settings, which are replaced as a whole when one of them changes."""

    @property
    def settings(self) -> Settings: ...


@dataclass(slots=True)
class SessionContext:
    """What all connections of one broker share."""

    registry: TopicRegistryPort
    schemas: SchemasPort
    connections: Connections
    services: HasSettings
    owners: TopicOwners
    """Answers LOOKUP."""
    server_version: str = "ackgate"
    damper: LogDamper = field(default_factory=LogDamper)
    """Limits log lines on what clients do, by host."""
    publish_buffer: PublishBuffer = field(default_factory=PublishBuffer)
    """Counts the bytes of all connections."""
    authentication: Authentication | None = None
    """Finds out who a client is. None: authentication is off."""
    refresh_seconds: float = 60.0
    """How often connections are checked for credentials that have expired."""
    authorization: Authorization | None = None
    """Decides what a client may do. None: authorization is off."""
    now_seconds: Callable[[], float] = time.time
    """The time, in seconds since 1970."""
