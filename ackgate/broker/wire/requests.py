"""What clients ask for: checked values, and their conversion from protobuf commands.

Pure. Names, enums and ids are checked here and nowhere else. What cannot be used raises the `BrokerError`
that the client gets as an answer. Required fields are known to be there (`Intake` has checked).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.broker.wire.errors import MetadataFailedError
from ackgate.broker.wire.names import (
    TopicName,
    check_consumer_name,
    check_producer_name,
    check_subscription_name,
)
from ackgate.cursor import EARLIEST, LATEST, LEDGER_ID_MAX, Position
from ackgate.dispatcher import KeySharedMode
from ackgate.errors import ConsumerAssignError, PositionError
from ackgate.persistence.messages.frame import signed64

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ackgate.broker.wire.proto import pulsar_pb2 as pb

METADATA_BYTES_MAX: Final = 1024
"""Names and values of a consumer's metadata: Pulsar's `maxConsumerMetadataSize`."""

HASH_SLOTS: Final = 65_536
"""Key_Shared hash ranges are slices of this space."""

ACK_SET_WORDS_MAX: Final = 1024
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
    created_ms: int = 0
    """When it was stored, in ms since 1970; 0: not known."""


@dataclass(frozen=True, slots=True)
class KeySharedRequest:
    """What a Key_Shared consumer asks for."""

    mode: KeySharedMode = KeySharedMode.AUTO_SPLIT
    hash_ranges: tuple[tuple[int, int], ...] = ()
    """STICKY only: half-open [start, stop) slices of the hash space (65,536 slots)."""
    allows_out_of_order: bool = False


class SentEntry(NamedTuple):
    """SEND: one entry of a producer, a message or a batch."""

    sequence_id: int
    highest_sequence_id: int
    """That of a batch's last message; `sequence_id` if the client names none."""
    message_count: int
    """At least 1."""
    entry: bytes
    """From the magic number on; the checksum is verified."""
    metadata: pb.MessageMetadata
    """The entry's, parsed. Not to be kept until the receipt: it is large."""
    deliver_at_ms: int = 0
    """When it is to be delivered, ms since 1970; 0 or less: at once."""


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


class ConsumerRates(NamedTuple):
    """What a consumer did over the last minute, per second."""

    messages_out: float = 0.0
    bytes_out: float = 0.0
    messages_redelivered: float = 0.0
    messages_acked: float = 0.0
    entries_expired: float = 0.0
    """Of its whole subscription."""


# ---- from commands


class IndividualAcks:
    """The individual acks of some ACK commands, together."""

    __slots__ = ("partial", "request_ids", "whole")

    def __init__(self) -> None:
        self.whole: list[Position] = []
        """Entries that are acked as a whole."""
        self.partial: list[tuple[Position, int]] = []
        """Batches, each with the mask of the messages that stay unacked."""
        self.request_ids: list[int] = []

    def add(self, command: pb.CommandAck) -> None:
        """Add the acks of a command. Raises `PositionError`, and adds nothing then."""
        whole, partial = len(self.whole), len(self.partial)
        try:
            for message_id in command.message_id:
                at = Position(message_id.ledgerId, message_id.entryId)
                if words := message_id.ack_set:
                    self.partial.append((at, mask_of_words(words)))
                else:
                    self.whole.append(at)
        except PositionError:
            del self.whole[whole:], self.partial[partial:]
            raise
        if command.HasField("request_id"):
            self.request_ids.append(command.request_id)


def topic_name(text: str) -> TopicName:
    """Parse a topic that this broker can serve.

    Raises `InvalidTopicNameError`, `NotAllowedError`.
    """
    return TopicName.parse(text).require_persistent()


def producer_request(command: pb.CommandProducer) -> ProducerRequest:
    name = command.producer_name
    initial_subscription = command.initial_subscription_name
    return ProducerRequest(
        topic=topic_name(command.topic),
        producer_id=command.producer_id,
        name=check_producer_name(name) if name else None,
        epoch=command.epoch,
        is_name_from_user=command.user_provided_producer_name,
        access_mode=AccessMode(command.producer_access_mode),
        topic_epoch=command.topic_epoch if command.HasField("topic_epoch") else None,
        is_encrypted=command.encrypted,
        schema=schema(command.schema) if command.HasField("schema") else None,
        properties=properties(command.metadata),
        initial_subscription=(
            check_subscription_name(initial_subscription) if initial_subscription else None
        ),
    )


def subscribe_request(command: pb.CommandSubscribe) -> SubscribeRequest:
    start = command.start_message_id if command.HasField("start_message_id") else None
    has_batch_index = start is not None and start.batch_index >= 0
    return SubscribeRequest(
        topic=topic_name(command.topic),
        subscription=check_subscription_name(command.subscription),
        consumer_id=command.consumer_id,
        subscription_type=SubscriptionType(command.subType),
        consumer_name=check_consumer_name(command.consumer_name),
        priority=command.priority_level,
        is_durable=command.durable,
        start_position=position(start) if start is not None else None,
        start_batch_index=start.batch_index if start is not None and has_batch_index else None,
        start_rollback_seconds=command.start_message_rollback_duration_sec,
        initial_position=InitialPosition(command.initialPosition),
        create_topic=command.force_topic_creation,
        read_compacted=command.read_compacted,
        replicates_state=command.replicate_subscription_state,
        key_shared=(
            key_shared_policy(command.keySharedMeta) if command.HasField("keySharedMeta") else None
        ),
        schema=schema(command.schema) if command.HasField("schema") else None,
        subscription_properties=properties(command.subscription_properties),
        metadata=consumer_metadata(command.metadata),
        epoch=command.consumer_epoch if command.HasField("consumer_epoch") else None,
    )


def key_shared_policy(meta: pb.KeySharedMeta) -> KeySharedRequest:
    """Convert a consumer's Key_Shared policy.

    Raises `ConsumerAssignError` for impossible ranges.
    """
    for hash_range in meta.hashRanges:
        if not 0 <= hash_range.start <= hash_range.end < HASH_SLOTS:
            raise ConsumerAssignError(
                f"hash range {hash_range.start}..{hash_range.end} is not in 0..{HASH_SLOTS - 1}"
            )
    return KeySharedRequest(
        mode=KeySharedMode(meta.keySharedMode),
        # The wire's ranges include their end.
        hash_ranges=tuple((each.start, each.end + 1) for each in meta.hashRanges),
        allows_out_of_order=meta.allowOutOfOrderDelivery,
    )


def schema(message: pb.Schema) -> Schema | None:
    """Convert a client's schema; None if it takes whatever the topic has.

    NONE, which the Go client's bytes are, is a schema as any other: the topic has it from then on.
    """
    schema_type = SchemaType(message.type)
    if schema_type is SchemaType.AUTO_CONSUME:
        return None
    return Schema(
        name=message.name,
        type=schema_type,
        definition=message.schema_data,
        properties=properties(message.properties),
    )


def properties(pairs: Iterable[pb.KeyValue]) -> dict[str, str]:
    """Keys and values; the last one of a repeated key counts."""
    return {pair.key: pair.value for pair in pairs}


def consumer_metadata(pairs: Iterable[pb.KeyValue]) -> dict[str, str]:
    """Convert a consumer's metadata.

    Raises `MetadataFailedError` if it is too large, as Pulsar does.
    """
    found = properties(pairs)
    size_bytes = sum(len(key.encode()) + len(value.encode()) for key, value in found.items())
    if size_bytes > METADATA_BYTES_MAX:
        raise MetadataFailedError(
            f"consumer metadata of {size_bytes} bytes is above the limit of {METADATA_BYTES_MAX}"
        )
    return found


def position(message_id: pb.MessageIdData) -> Position:
    """Convert a position from a client, where (-1, -1) is `EARLIEST` and (max, max) is `LATEST`."""
    ledger_id = signed64(message_id.ledgerId)
    entry_id = signed64(message_id.entryId)
    if ledger_id < 0:
        return EARLIEST
    if ledger_id == LEDGER_ID_MAX:
        return LATEST
    return Position(ledger_id, max(-1, entry_id))


def unacked_mask(message_id: pb.MessageIdData) -> int | None:
    """The `ack_set` of a message id as one integer; None if it has none."""
    return mask_of_words(message_id.ack_set) if message_id.ack_set else None


def mask_of_words(words: Sequence[int]) -> int:
    """Convert an `ack_set` to one integer, in which bit i stands for message i of the batch.

    The words are signed, 64 bits each, the least significant first; a set bit is a message that is
    not acked. Raises `PositionError` above `ACK_SET_WORDS_MAX` words.
    """
    if len(words) > ACK_SET_WORDS_MAX:
        raise PositionError(f"an ack set of {len(words)} words is longer than {ACK_SET_WORDS_MAX}")
    mask = 0
    for index, word in enumerate(words):
        mask |= (word & _WORD_MASK) << (64 * index)
    return mask
