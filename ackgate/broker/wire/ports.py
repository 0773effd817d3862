"""The interface between connections and topics: what a session calls, and what it offers to topics.

Pure (types only). `Session` in ``session.py`` is the one implementation of `SessionPort`; the topic
side (``registry.py``, ``topic.py``, ``producer.py``, ``consumer.py``) implements the rest.

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

The values that both sides exchange are here, too: checked requests, messages, answers.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ackgate.dispatcher import KeySharedMode
from ackgate.errors import PositionError
from ackgate.network import NOWHERE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ackgate.broker.wire.names import NamespaceName, TopicName
    from ackgate.broker.wire.proto import pulsar_pb2 as pb
    from ackgate.config.broker import BrokerSettings
    from ackgate.cursor import Position
    from ackgate.network import Urls

WORDS_MAX: Final = 1024
"""65,536 messages in one batch: far above any client's bound, low enough to be harmless."""

_WORD_MASK: Final = 2**64 - 1


class SubscriptionType(enum.IntEnum):
    """How a subscription shares its messages among consumers.

    Wire numbers of `CommandSubscribe.SubType`.
    """

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3

    @property
    def spelling(self) -> str:
        """Pulsar's spelling in settings and statistics, such as Key_Shared."""
        return self.name.title()


class InitialPosition(enum.IntEnum):
    """Where a new subscription begins."""

    LATEST = 0
    EARLIEST = 1


class AccessMode(enum.IntEnum):
    """Who may publish beside this producer. Wire numbers of `ProducerAccessMode`."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class SchemaType(enum.IntEnum):
    """What a schema describes. Wire numbers of `Schema.Type`, names as in Pulsar's admin interface."""

    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    BOOL = 5
    """Earlier builds stored this name in their nodes."""
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    AUTO_CONSUME = 21
    EXTERNAL = 22


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as a client states it."""

    name: str
    type: SchemaType
    definition: bytes
    """The Avro JSON text, key/value pair, or whatever the type calls for; empty for primitives."""
    properties: Mapping[str, str] = field(default_factory=dict)


class StoredSchema(NamedTuple):
    """A schema of a topic, with its version."""

    schema: Schema
    version: bytes


@dataclass(frozen=True, slots=True)
class KeySharedRequest:
    """What a Key_Shared consumer asks for."""

    mode: KeySharedMode = KeySharedMode.AUTO_SPLIT
    hash_ranges: tuple[tuple[int, int], ...] = ()
    """STICKY only: half-open [start, stop) slices of the hash space (65,536 slots)."""
    allows_out_of_order: bool = False


@dataclass(frozen=True, slots=True)
class ProducerRequest:
    """PRODUCER: a client wants to publish to a topic."""

    topic: TopicName
    producer_id: int
    """Unique on its connection; the broker addresses receipts to it."""
    name: str | None
    """None: the topic makes up a name."""
    epoch: int = 0
    """Grows with each reconnect of a client's producer; a newer one replaces the older."""
    is_name_from_user: bool = True
    """Whether the user chose the name; one that was made up may be replaced on reconnect."""
    access_mode: AccessMode = AccessMode.SHARED
    topic_epoch: int | None = None
    """Exclusive producers: the epoch under which this one held the topic before."""
    is_encrypted: bool = False
    schema: Schema | None = None
    schema_version: bytes = b""
    """The version that the registry gave to `schema`; empty without one."""
    properties: Mapping[str, str] = field(default_factory=dict)
    initial_subscription: str | None = None
    """Subscription to create together with the topic (dead letter topics)."""


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """SUBSCRIBE: a client wants to consume."""

    topic: TopicName
    subscription: str
    consumer_id: int
    """Unique on its connection; the broker addresses messages to it."""
    subscription_type: SubscriptionType
    consumer_name: str
    """May be empty: the subscription then makes up a name."""
    priority: int = 0
    """Lower goes first (Shared, Failover)."""
    is_durable: bool = True
    """False: a reader, whose cursor is deleted with its last consumer."""
    start_position: Position | None = None
    """Readers: where to begin. `EARLIEST`, `LATEST` or an entry; reading starts with that entry
    (the client itself skips what it has seen of it)."""
    start_batch_index: int | None = None
    """Readers that start inside a batch: index of the message at which `start_position` points."""
    start_rollback_seconds: int = 0
    """Readers: begin this long ago, by publish time. 0: not asked for."""
    initial_position: InitialPosition = InitialPosition.LATEST
    """A new durable subscription begins here."""
    create_topic: bool = True
    """False: a topic that does not exist is an error even where automatic creation is on."""
    read_compacted: bool = False
    replicates_state: bool = False
    key_shared: KeySharedRequest | None = None
    schema: Schema | None = None
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    epoch: int | None = None
    """Grows when the client rewinds; messages carry it back so that stale ones are dropped."""


class MessageOut(NamedTuple):
    """One entry on its way to a consumer."""

    ledger_id: int
    entry_id: int
    redelivery_count: int
    unacked_mask: int | None
    """Partly acked batch: bit i set = message i is still to be delivered. None: all of them are."""
    entry: bytes
    """From the magic number on, exactly as it was published."""


class LastMessageId(NamedTuple):
    """The answer to GET_LAST_MESSAGE_ID."""

    position: Position
    """Last entry of the topic; entry -1 when the topic is empty."""
    batch_index: int
    """Index of the last message in that entry's batch; -1 when it is not a batch."""
    mark_delete: Position | None
    """Mark-delete position of the asking consumer's subscription."""


@dataclass(frozen=True, slots=True)
class ConsumerStatsReply:
    """The answer to CONSUMER_STATS. Rates are per second."""

    consumer_name: str
    subscription_type: SubscriptionType
    permits: int
    unacked_messages: int
    is_blocked_on_unacked: bool
    connected_since: str
    """Time in ISO 8601."""
    backlog_messages: int
    message_rate_out: float = 0.0
    byte_rate_out: float = 0.0
    redelivery_rate: float = 0.0
    ack_rate: float = 0.0
    expiry_rate: float = 0.0


# ---- The wire's ``ack_set`` as one integer
#
# On the wire: 64-bit words, least significant bit first, a set bit is a message not acked.
#
# Pure. Bit i of the integer stands for message i of the batch, as the cursor keeps it.


def mask_of_words(words: Sequence[int]) -> int:
    """Convert signed 64-bit words to one integer.

    Raises `PositionError` above `WORDS_MAX` words.
    """
    if len(words) > WORDS_MAX:
        raise PositionError(f"an ack set of {len(words)} words is longer than {WORDS_MAX}")
    mask = 0
    for index, word in enumerate(words):
        mask |= (word & _WORD_MASK) << (64 * index)
    return mask


def words_of_mask(mask: int) -> list[int]:
    """Convert one integer to signed 64-bit words; none for 0."""
    words = []
    while mask:
        word = mask & _WORD_MASK
        words.append(word - 2**64 if word >= 2**63 else word)
        mask >>= 64
    return words


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

    def send_producer_ready(self, producer_id: int, producer: ProducerPort) -> None:
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

    def publish(
        self,
        sequence_id: int,
        highest_sequence_id: int,
        num_messages: int,
        entry: bytes,
        metadata: pb.MessageMetadata,
        deliver_at_ms: int = 0,
    ) -> None:
        """Store an entry (from the magic number on, checksum verified).

        ``metadata``: the entry's, since they are parsed already.

        ``deliver_at_ms``: when it is to be delivered, ms since 1970; 0 or less: at once.

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
