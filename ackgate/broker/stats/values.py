"""Statistics of topics, subscriptions, consumers and publishers, and how statistics become JSON.

Pure, frozen. Fields have Pulsar's names in snake case (``msgBacklog`` is `msg_backlog`) and Pulsar's
meaning. Each is described once, here (`ackgate.described`). Rates are over the last
minute. `ack_state` and `delayed` are ours.

pydantic makes the JSON. Its keys are the fields' names in Pulsar's camelCase; a `Position` is
``"ledger:entry"`` as Pulsar prints it, an enum is its value. Reading is strict, because the text comes
from a socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from ackgate.broker.delayed import DelayStatus
from ackgate.cursor import (
    POSITIONS_AS_TEXT,
    CursorStatistics,
    Position,
    RecoveredStateReport,
)
from ackgate.described import PER_SECOND, statistic
from ackgate.dispatcher import GateStatistics
from ackgate.dispatcher.buckets import BucketStatistics
from ackgate.errors import CorruptRecordError
from ackgate.persistence.records.outcome import CursorStoreStats, PersistOutcome, RecoveryReport
from ackgate.subscription import HeldStatistics

if TYPE_CHECKING:
    from ackgate.broker.stats.ack_state import AckState
    from ackgate.broker.stats.holes import AckPicture, Hole

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """One consumer of a subscription."""

    consumer_name: str = statistic("Its name")
    address: str = statistic("The client's address")
    client_version: str = statistic("What the client calls itself")
    connected_since: str = statistic("When it connected", "ISO 8601")
    msg_rate_out: float = statistic("Messages delivered", PER_SECOND, title="out")
    msg_throughput_out: float = statistic("Bytes delivered", PER_SECOND)
    msg_rate_redeliver: float = statistic("Messages delivered again", PER_SECOND, title="again")
    message_ack_rate: float = statistic("Messages acked", PER_SECOND, title="acked")
    msg_out_counter: int = statistic("Messages delivered")
    bytes_out_counter: int = statistic("Delivered", "bytes")
    available_permits: int = statistic("Messages that the client still takes", title="permits")
    unacked_messages: int = statistic("Messages sent to it and not acked yet", title="unacked")
    avg_messages_per_entry: int = statistic("Average messages of an entry")
    blocked_consumer_on_unacked_msgs: bool = statistic(
        "Whether too many unacked messages stop its deliveries"
    )
    last_acked_timestamp: int = statistic("Time of the last ack", "ms since 1970, 0 for never")
    last_consumed_timestamp: int = statistic(
        "Time of the last delivery", "ms since 1970, 0 for never"
    )
    last_consumed_flow_timestamp: int = statistic(
        "Time of the last FLOW", "ms since 1970, 0 for never"
    )
    key_hash_range_arrays: tuple[tuple[int, ...], ...] | None = statistic(
        "Key_Shared: the (first, last) hash of each range that it owns, both included"
    )
    metadata: Mapping[str, str] = statistic("What the client attached")


@dataclass(frozen=True, slots=True)
class PublisherStats:
    """One producer of a topic."""

    access_mode: str = statistic("Shared, Exclusive, WaitForExclusive or ExclusiveWithFencing")
    producer_id: int = statistic("Its id on its connection")
    producer_name: str = statistic("Its name")
    address: str = statistic("The client's address")
    client_version: str = statistic("What the client calls itself")
    connected_since: str = statistic("When it connected", "ISO 8601")
    msg_rate_in: float = statistic("Messages published", PER_SECOND)
    msg_throughput_in: float = statistic("Bytes published", PER_SECOND)
    average_msg_size: float = statistic("Average size of a published entry", "bytes")
    metadata: Mapping[str, str] = statistic("What the client attached")


@dataclass(frozen=True, slots=True)
class NackStatistics:
    """Negatively acked entries of one subscription that wait for their backoff."""

    pending: int = statistic(
        "Entries that wait after a negative ack", "", "ackgate_nacks_held", default=0
    )
    bytes: int = statistic("Memory of these", "bytes", "ackgate_nacks_held_bytes", default=0)
    next_deadline_ms: int | None = statistic(
        "When the next is due; in the past if it waits for consumers, null if none waits",
        "ms since 1970",
        default=None,
    )
    persisted: int = statistic(
        "Of these, the ones in the newest durable image", "", "ackgate_nacks_persisted", default=0
    )
    dropped: int = statistic(
        "Of these, the ones left out of it for their size: after a crash they come at once",
        "",
        "ackgate_nacks_dropped",
        default=0,
    )


@dataclass(frozen=True, slots=True)
class DelayedState:
    """The held entries of one subscription."""

    held: HeldStatistics = field(default_factory=HeldStatistics)
    nacks: NackStatistics = field(default_factory=NackStatistics)
    tracking: DelayStatus = field(default_factory=DelayStatus)
    buckets: BucketStatistics | None = None
    """None if the tracker stores no buckets."""

    @property
    def next_due_ms(self) -> int | None:
        """When the next delayed entry is due, in ms since 1970.

        A time in the past: a consumer is missing.
        """
        if self.buckets is not None:
            return self.buckets.next_due_ms
        return self.held.delayed_deadline_ms

    @property
    def degraded(self) -> tuple[str, ...]:
        """What is worse than configured, in sentences."""
        why = self.tracking.why
        return ((why,) if why else ()) + (() if self.buckets is None else self.buckets.degraded)


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """One subscription of a topic."""

    type: str = statistic(
        "Exclusive, Shared, Failover or Key_Shared; None before the first consumer"
    )
    is_durable: bool = statistic("False for a reader's")
    msg_rate_out: float = statistic(
        "Messages delivered", PER_SECOND, "pulsar_subscription_msg_rate_out", title="out"
    )
    msg_throughput_out: float = statistic(
        "Bytes delivered", PER_SECOND, "pulsar_subscription_msg_throughput_out"
    )
    msg_rate_redeliver: float = statistic(
        "Messages delivered again",
        PER_SECOND,
        "pulsar_subscription_msg_rate_redeliver",
        title="again",
    )
    message_ack_rate: float = statistic(
        "Messages acked", PER_SECOND, "pulsar_subscription_msg_ack_rate", title="acked"
    )
    msg_rate_expired: float = statistic(
        "Messages expired", PER_SECOND, "pulsar_subscription_msg_rate_expired"
    )
    msg_out_counter: int = statistic("Messages delivered")
    bytes_out_counter: int = statistic("Delivered", "bytes")
    msg_backlog: int = statistic(
        "Entries not acked", "", "pulsar_subscription_back_log", title="backlog"
    )
    msg_backlog_no_delayed: int = statistic(
        "Entries not acked that do not wait for their delivery time",
        "",
        "pulsar_subscription_back_log_no_delayed",
    )
    msg_delayed: int = statistic(
        "Entries that wait for their delivery time", "", "pulsar_subscription_delayed"
    )
    delayed_message_index_size_in_bytes: int = statistic(
        "Memory of the index of delayed entries",
        "bytes",
        "pulsar_subscription_delayed_message_index_size_bytes",
    )
    backlog_size: int = statistic("Stored from the mark-delete position on", "bytes")
    earliest_msg_publish_time_in_backlog: int = statistic(
        "Publish time of the first unacked entry, if ?getEarliestTimeInBacklog=true asks for it",
        "ms since 1970, else 0",
    )
    unacked_messages: int = statistic(
        "Messages sent to consumers and not acked yet",
        "",
        "pulsar_subscription_unacked_messages",
        title="unacked",
    )
    msg_in_replay: int = statistic(
        "Entries that wait to be sent again", "", "pulsar_subscription_in_replay", title="to replay"
    )
    blocked_subscription_on_unacked_msgs: bool = statistic(
        "Whether too many unacked messages stop deliveries",
        "",
        "pulsar_subscription_blocked_on_unacked_messages",
    )
    is_blocked_on_ack_state_persistent: bool = statistic(
        "Whether the gate is shut; false while the gate is off"
    )
    active_consumer_name: str | None = statistic(
        "Exclusive and Failover: the consumer that receives"
    )
    key_shared_mode: str | None = statistic("AUTO_SPLIT or STICKY")
    allow_out_of_order_delivery: bool = statistic(
        "Key_Shared: whether keys may move before their acks"
    )
    total_msg_expired: int = statistic(
        "Messages expired", "", "pulsar_subscription_total_msg_expired"
    )
    last_expire_timestamp: int = statistic(
        "Time of the last expiry",
        "ms since 1970, 0 for never",
        "pulsar_subscription_last_expire_timestamp",
    )
    last_consumed_flow_timestamp: int = statistic(
        "Time of the last FLOW",
        "ms since 1970, 0 for never",
        "pulsar_subscription_last_consumed_flow_timestamp",
    )
    last_consumed_timestamp: int = statistic(
        "Time of the last delivery",
        "ms since 1970, 0 for never",
        "pulsar_subscription_last_consumed_timestamp",
    )
    last_acked_timestamp: int = statistic(
        "Time of the last ack",
        "ms since 1970, 0 for never",
        "pulsar_subscription_last_acked_timestamp",
    )
    last_mark_delete_advanced_timestamp: int = statistic(
        "Time of the last advance of the mark-delete position",
        "ms since 1970, 0 for never",
        "pulsar_subscription_last_mark_delete_advanced_timestamp",
    )
    non_contiguous_deleted_messages_ranges: int = statistic(
        "Ack ranges above the mark-delete position"
    )
    non_contiguous_deleted_messages_ranges_serialized_size: int = statistic(
        "Size of these ranges when written", "bytes"
    )
    subscription_properties: Mapping[str, str] = statistic("What users attached")
    consumers: tuple[ConsumerStats, ...] = statistic("Its consumers")
    ack_state: AckState = statistic("Its ack state (ours)")
    delayed: DelayedState = statistic("Its delayed and negatively acked entries (ours)")


@dataclass(frozen=True, slots=True)
class AckStateAnswer:
    """The answer to ``ackState`` (ours): one subscription, and what is acked in each message ledger."""

    topic: str
    subscription: str
    stats: SubscriptionStats
    picture: AckPicture
    holes: tuple[Hole, ...] = ()
    """The oldest holes, with their consumers."""


@dataclass(frozen=True, slots=True)
class TopicStats:
    """One topic, or one partition."""

    msg_rate_in: float = statistic("Messages published", PER_SECOND, "pulsar_rate_in")
    msg_throughput_in: float = statistic("Bytes published", PER_SECOND, "pulsar_throughput_in")
    msg_rate_out: float = statistic("Messages delivered", PER_SECOND, "pulsar_rate_out")
    msg_throughput_out: float = statistic("Bytes delivered", PER_SECOND, "pulsar_throughput_out")
    bytes_in_counter: int = statistic(
        "Published since the topic was loaded", "bytes", "pulsar_in_bytes_total"
    )
    msg_in_counter: int = statistic(
        "Messages published since the topic was loaded", "", "pulsar_in_messages_total"
    )
    bytes_out_counter: int = statistic(
        "Delivered since the topic was loaded", "bytes", "pulsar_out_bytes_total"
    )
    msg_out_counter: int = statistic(
        "Messages delivered since the topic was loaded", "", "pulsar_out_messages_total"
    )
    average_msg_size: float = statistic("Average size of a published entry", "bytes")
    storage_size: int = statistic("Stored messages", "bytes", "pulsar_storage_size")
    backlog_size: int = statistic(
        "Stored messages from the oldest mark-delete position on",
        "bytes",
        "pulsar_storage_backlog_size",
    )
    earliest_msg_publish_time_in_backlogs: int = statistic(
        "Publish time of the first unacked entry of any subscription, if asked for",
        "ms since 1970, else 0",
    )
    waiting_publishers: int = statistic("Producers that wait for exclusive access")
    deduplication_status: str = statistic("Enabled or Disabled")
    non_contiguous_deleted_messages_ranges: int = statistic("Ack ranges of all subscriptions")
    non_contiguous_deleted_messages_ranges_serialized_size: int = statistic(
        "Size of these ranges when written", "bytes"
    )
    delayed_message_index_size_in_bytes: int = statistic(
        "Memory of all indexes of delayed entries",
        "bytes",
        "pulsar_delayed_message_index_size_bytes",
    )
    delayed_index_is_shared: bool = statistic(
        "Whether all subscriptions share one index, whose buckets then stand at each of them (ours)"
    )
    delayed_messages_cancelled: int = statistic(
        "Cancelled messages that are still stored (ours)", "", "ackgate_delayed_cancelled"
    )
    delayed_messages_refused: int = statistic(
        "Publishes with a longer delay than is allowed, since the topic was loaded (ours)",
        "",
        "pulsar_broker_topic_messages_delayed_rejected_total",
    )
    owner_broker: str = statistic("The broker that serves the topic")
    publishers: tuple[PublisherStats, ...] = statistic("Its producers")
    subscriptions: Mapping[str, SubscriptionStats] = statistic("Its subscriptions, by name")


# ---- JSON

key_of: Final = to_camel
"""The key of a field: ``msg_backlog`` is ``msgBacklog``."""

_FORM: Final = ConfigDict(alias_generator=key_of, strict=True, defer_build=True)


def to_json(value: Any, exclude: Any = None) -> Any:  # noqa: ANN401 - any statistics dataclass
    """Plain dicts, lists and scalars. `exclude`: fields to leave out, as pydantic takes them."""
    return _adapter(type(value)).dump_python(
        value, mode="json", by_alias=True, exclude=exclude, context=POSITIONS_AS_TEXT
    )


def from_json(kind: type[T], text: bytes | str) -> T:
    """Read an instance of the dataclass `kind`. Ignores unknown keys.

    Raises `CorruptRecordError` naming the key.
    """
    try:
        read: T | None = _adapter(kind).validate_json(text)
    except ValidationError as error:
        raise CorruptRecordError(f"not a {kind.__name__}: {error}") from error
    if read is None:
        raise CorruptRecordError(f"not a {kind.__name__}: null")
    return read


_ADAPTERS: Final[dict[type[Any], TypeAdapter[Any]]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    """The converter of a type, made at its first use because that takes milliseconds."""
    if kind not in _ADAPTERS:
        form: Any = kind | None  # pydantic takes no configuration for a dataclass by itself
        adapter = _ADAPTERS[kind] = TypeAdapter(form, config=_FORM)
        adapter.rebuild(_types_namespace=_named_types())
    return _ADAPTERS[kind]


def _named_types() -> dict[str, Any]:
    """Types in annotations that their modules import for type checkers only."""
    from ackgate.broker.stats.ack_state import AckState  # noqa: PLC0415 - it is not needed to write
    from ackgate.broker.stats.glance import OverviewRow  # noqa: PLC0415
    from ackgate.broker.stats.holes import AckPicture, Hole  # noqa: PLC0415

    types_named = (
        AckPicture,
        AckState,
        BucketStatistics,
        CursorStatistics,
        CursorStoreStats,
        GateStatistics,
        Hole,
        Mapping,
        OverviewRow,
        PersistOutcome,
        Position,
        RecoveredStateReport,
        RecoveryReport,
        SubscriptionStats,
    )
    return {kind.__name__: kind for kind in types_named}
