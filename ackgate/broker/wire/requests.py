"""Converts protobuf commands to checked values: the one place where a client's request is checked.

Pure. Names, enums and ids are checked here. What cannot be used raises the `BrokerError` that the
client gets as an answer. Required fields are known to be there (`Intake` has checked).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import Message

from ackgate.broker.security import CLUSTER_WIDE, CONSUME, Scope
from ackgate.broker.wire.errors import MetadataFailedError
from ackgate.broker.wire.names import (
    NamespaceName,
    TopicName,
    check_consumer_name,
    check_producer_name,
    check_subscription_name,
)
from ackgate.broker.wire.ports import (
    AccessMode,
    InitialPosition,
    KeySharedRequest,
    ProducerRequest,
    Schema,
    SchemaType,
    SubscribeRequest,
    SubscriptionType,
    mask_of_words,
)
from ackgate.cursor import EARLIEST, LATEST, LEDGER_ID_MAX, Position
from ackgate.dispatcher import KeySharedMode
from ackgate.errors import ConsumerAssignError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from google.protobuf.descriptor import Descriptor

    from ackgate.broker.security import Need, Resource
    from ackgate.broker.wire.proto import pulsar_pb2 as pb

METADATA_BYTES_MAX: Final = 1024
"""Names and values of a consumer's metadata: Pulsar's `maxConsumerMetadataSize`."""

HASH_SLOTS: Final = 65_536
"""Key_Shared hash ranges are slices of this space."""

_SCHEMALESS: Final = frozenset({SchemaType.NONE, SchemaType.AUTO_CONSUME})
"""Schema types that a client sends when it has no schema of its own."""


def broken_text(message: Message) -> str | None:
    """Path of a text field that is not UTF-8, at any depth; None if all text is valid.

    protobuf does not reject such text in proto2: it returns it as bytes.
    """
    if not _may_hold_text(message.DESCRIPTOR):
        return None  # one call instead of one for each of a thousand message ids
    for field, value in message.ListFields():
        if isinstance(value, bytes):
            if field.type == field.TYPE_STRING:
                return str(field.name)
        elif isinstance(value, Message):
            if broken := broken_text(value):
                return f"{field.name}.{broken}"
        elif field.type == field.TYPE_MESSAGE and _may_hold_text(field.message_type):
            for each in value:
                if broken := broken_text(each):
                    return f"{field.name}.{broken}"
        elif (
            field.type == field.TYPE_STRING
            and not isinstance(value, str)
            and any(isinstance(each, bytes) for each in value)
        ):
            return str(field.name)
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


def asked_for(need: Need, command: Any) -> Iterator[tuple[Need, Resource]]:  # noqa: ANN401
    """Yields what a command needs, and on which resource.

    Raises `InvalidTopicNameError`, `NotAllowedError`.
    """
    match need.scope:
        case Scope.TOPIC:
            name = topic_name(command.topic)
            yield need, name.resource(getattr(command, "subscription", ""))
            if initial := getattr(command, "initial_subscription_name", ""):
                yield CONSUME, name.resource(initial)
        case Scope.NAMESPACE:
            yield need, NamespaceName.parse(command.namespace).resource
        case _:
            yield need, CLUSTER_WIDE


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
    """Convert a client's schema; None if it has none."""
    schema_type = SchemaType(message.type)
    if schema_type in _SCHEMALESS:
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
    ledger_id = _signed(message_id.ledgerId)
    entry_id = _signed(message_id.entryId)
    if ledger_id < 0:
        return EARLIEST
    if ledger_id == LEDGER_ID_MAX:
        return LATEST
    return Position(ledger_id, max(-1, entry_id))


def unacked_mask(message_id: pb.MessageIdData) -> int | None:
    """The `ack_set` of a message id as one integer; None if it has none."""
    return mask_of_words(message_id.ack_set) if message_id.ack_set else None


def _signed(number: int) -> int:
    """Convert an unsigned id of the wire to Java's signed long."""
    return number - 2**64 if number >= 2**63 else number
