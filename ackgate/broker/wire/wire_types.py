"""Values that cross the seam between a session and a topic: requests in, messages and replies out.

Pure. Everything here has been checked: names are valid, ids are ints in the signed 64-bit range,
enums are known members. The session makes them from protobuf; no topic needs to look at protobuf
again, except at `CommandAck`, which is handed over as parsed because acks are the hottest path.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.dispatcher import KeySharedMode
from ackgate.errors import PositionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ackgate.broker.wire.names import TopicName
    from ackgate.cursor import Position


class SubscriptionType(enum.IntEnum):
    """How a subscription's messages are shared out. Wire numbers of `CommandSubscribe.SubType`."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3

    @property
    def spelling(self) -> str:
        """As Pulsar spells it in settings and statistics: Key_Shared."""
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
    """What earlier builds called it in the nodes that they stored."""
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
    """A schema of a topic, and its version."""

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
    """Unique on its connection; receipts are addressed to it."""
    name: str | None
    """None: the topic makes one up."""
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
    """Version that the registry gave to `schema`; empty without one."""
    properties: Mapping[str, str] = field(default_factory=dict)
    initial_subscription: str | None = None
    """Subscription to create together with the topic (dead letter topics)."""


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """SUBSCRIBE: a client wants to consume."""

    topic: TopicName
    subscription: str
    consumer_id: int
    """Unique on its connection; messages are addressed to it."""
    subscription_type: SubscriptionType
    consumer_name: str
    """May be empty: the subscription makes one up."""
    priority: int = 0
    """Lower goes first (Shared, Failover)."""
    is_durable: bool = True
    """False: a reader; its cursor is forgotten with the last consumer."""
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
    """Answer to GET_LAST_MESSAGE_ID."""

    position: Position
    """Last entry of the topic; entry -1 when the topic is empty."""
    batch_index: int
    """Index of the last message in that entry's batch; -1 when it is not a batch."""
    mark_delete: Position | None
    """Mark-delete position of the asking consumer's subscription."""


@dataclass(frozen=True, slots=True)
class ConsumerStatsReply:
    """Answer to CONSUMER_STATS. Rates are per second."""

    consumer_name: str
    subscription_type: SubscriptionType
    permits: int
    unacked_messages: int
    is_blocked_on_unacked: bool
    connected_since: str
    """ISO 8601."""
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

WORDS_MAX: Final = 1024
"""65,536 messages in one batch: far above any client's bound, low enough to be harmless."""

_WORD_MASK: Final = 2**64 - 1


def mask_of_words(words: Sequence[int]) -> int:
    """One integer of signed 64-bit words. Raises `PositionError` above `WORDS_MAX` words."""
    if len(words) > WORDS_MAX:
        raise PositionError(f"an ack set of {len(words)} words is longer than {WORDS_MAX}")
    mask = 0
    for index, word in enumerate(words):
        mask |= (word & _WORD_MASK) << (64 * index)
    return mask


def words_of_mask(mask: int) -> list[int]:
    """Signed 64-bit words of one integer; none for 0."""
    words = []
    while mask:
        word = mask & _WORD_MASK
        words.append(word - 2**64 if word >= 2**63 else word)
        mask >>= 64
    return words
