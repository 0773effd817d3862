"""Single messages of a topic: peeked by number, read by position, found by time. Edge.

The body is the payload as a consumer gets it: decompressed, a batch as a whole. It stays as stored if
it is encrypted, or a piece of a chunked message. What else is known of the entry stands in headers.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from ackgate.broker.admin.http.call import Reply, entry_of
from ackgate.broker.admin.http.refusals import RefusedError
from ackgate.broker.admin.http.router import Route
from ackgate.broker.admin.topics import message_id
from ackgate.cursor import Position
from ackgate.errors import CorruptRecordError
from ackgate.persistence.messages.frame import metadata_span
from ackgate.persistence.messages.unpack import plain_payload
from ackgate.persistence.proto.message_pb2 import CompressionType

if TYPE_CHECKING:
    from ackgate.broker.admin.http.call import Call
    from ackgate.broker.topic import Topic
    from ackgate.broker.wire import Entry
    from ackgate.persistence.proto.message_pb2 import MessageMetadata

_ANY_INTEGER: Final = -(2**63)


async def peek_message(call: Call) -> Reply:
    """The n-th unacked entry of a subscription, from 1, sent or not; changes nothing.

    A subscription that does not exist has every entry before it, as in Pulsar, which creates it for
    that.
    """
    number = call.integer("messagePosition", least=1)
    await call.refuse_partitioned("Peek messages on a partitioned topic is not allowed")
    topic = await call.topic()
    subscription = topic.subscriptions.get(call.subscription_name)
    position = (
        _nth(topic, number) if subscription is None else subscription.cursor.nth_unacked(number)
    )
    if position is None:
        raise RefusedError(404, "Message not found")
    return await _message(topic, position)


async def get_message(call: Call) -> Reply:
    """One entry."""
    await call.refuse_partitioned("GetMessageById is not allowed on partitioned-topic")
    position = Position(
        call.integer("ledgerId", least=_ANY_INTEGER), call.integer("entryId", least=_ANY_INTEGER)
    )
    return await _message(await call.topic(), position)


async def examine_message(call: Call) -> Reply:
    """An entry by number: `?messagePosition=` from 1 on, from the end or `?initialPosition=earliest`."""
    number = max(1, call.integer_asked("messagePosition", 1, least=_ANY_INTEGER))
    await call.refuse_partitioned(
        "Examine messages on a partitioned topic is not allowed, please try examine message on "
        "specific topic partition",
    )
    topic = await call.topic()
    total = topic.ledger.ledgers.total_entries
    if not total:
        raise RefusedError(412, "Could not examine messages due to the total message is zero")
    is_forward = call.query.get("initialPosition") == "earliest"
    position = _nth(topic, min(number, total) if is_forward else total + 1 - number)
    if position is None:
        raise RefusedError(412, f"messagePosition is larger than {total}, the entries of the topic")
    return await _message(topic, position)


async def find_message(call: Call) -> Reply:
    """The position of the first entry published at this time (ms since 1970) or later, else the end."""
    publish_time_ms = call.integer("timestamp", least=_ANY_INTEGER)
    await call.refuse_partitioned(
        "Get message ID by timestamp on a partitioned topic is not allowed, please try do it on "
        "specific topic partition",
    )
    topic = await call.topic()
    return message_id(topic, await topic.ledger.reads.first_published_at(publish_time_ms))


def _nth(topic: Topic, number: int) -> Position | None:
    """The n-th existing entry of a topic, from 1; None if it has no such entry."""
    ledgers = topic.ledger.ledgers
    if not 1 <= number <= ledgers.total_entries:
        return None
    return ledgers.position_after(ledgers.first_position, number)


async def _message(topic: Topic, position: Position) -> Reply:
    entry = await entry_of(topic, position)
    try:
        payload = plain_payload(entry.payload, entry.metadata, position)
    except CorruptRecordError as error:  # that is how its producer sent it
        raise RefusedError(412, str(error)) from None
    return Reply(200, payload, headers=_headers(entry))


def _headers(entry: Entry) -> dict[str, str | tuple[str, ...]]:
    """What Pulsar's brokers say of an entry."""
    metadata = entry.metadata
    start, stop = metadata_span(entry.payload)
    headers: dict[str, str | tuple[str, ...]] = {
        "Message-ID": str(entry.position),
        "PROPERTY": json.dumps(
            {pair.key: pair.value for pair in metadata.properties}, separators=(",", ":")
        ),
        "publish-time": _time(metadata.publish_time),
    }
    if metadata.HasField("event_time"):
        headers["event-time"] = _time(metadata.event_time)
    if metadata.HasField("deliver_at_time"):
        headers["deliver-at-time"] = _time(metadata.deliver_at_time)
    if metadata.HasField("num_messages_in_batch"):
        headers["num-batch-message"] = str(metadata.num_messages_in_batch)
        headers["batch-size"] = str(len(entry.payload) - (stop - start))
    if metadata.HasField("null_value"):
        headers["null-value"] = _text(metadata.null_value)
    if metadata.HasField("num_chunks_from_msg"):
        headers["PROPERTY-TOTAL-CHUNKS"] = str(metadata.num_chunks_from_msg)
        headers["PROPERTY-CHUNK-ID"] = str(metadata.chunk_id)
    headers["Is-Encrypted"] = _text(bool(metadata.encryption_keys))
    headers |= {
        name: _text(getattr(metadata, field))
        for field, name in _PRESENT_AS_TEXT.items()
        if metadata.HasField(field)
    }
    headers |= _more(metadata)
    headers["txn-uncommitted"] = "false"
    return {f"X-Pulsar-{name}": value for name, value in headers.items()}


_PRESENT_AS_TEXT: Final = {
    "producer_name": "producer-name",
    "sequence_id": "sequence-id",
    "replicated_from": "replicated-from",
    "partition_key": "partition-key",
    "uncompressed_size": "uncompressed-size",
    "encryption_algo": "encryption-algo",
    "encryption_param": "Base64-encryption-param",
    "schema_version": "Base64-schema-version",
    "partition_key_b64_encoded": "partition-key-b64-encoded",
    "ordering_key": "Base64-ordering-key",
    "marker_type": "marker-type",
    "txnid_least_bits": "txnid-least-bits",
    "txnid_most_bits": "txnid-most-bits",
    "highest_sequence_id": "highest-sequence-id",
    "uuid": "uuid",
    "num_chunks_from_msg": "num-chunks-from-msg",
    "total_chunk_msg_size": "total-chunk-msg-size",
    "chunk_id": "chunk-id",
    "null_partition_key": "null-partition-key",
}
"""Fields of the metadata that are a header if they are present, and the end of its name."""


def _more(metadata: MessageMetadata) -> dict[str, str | tuple[str, ...]]:
    """Headers of fields that have names, or several values."""
    more: dict[str, str | tuple[str, ...]] = {}
    if metadata.replicate_to:
        more["replicated-to"] = tuple(map(_text, metadata.replicate_to))
    if metadata.HasField("compression"):
        more["compression"] = CompressionType.Name(metadata.compression)
    if metadata.encryption_keys:
        more["Base64-encryption-keys"] = tuple(
            _text(key.SerializeToString()) for key in metadata.encryption_keys
        )
    return more


def _text(value: str | bytes | bool | int) -> str:  # noqa: FBT001 - whatever a field holds
    """A value for a header. A character that is not printable becomes a blank."""
    match value:
        case bool():
            return "true" if value else "false"
        case bytes():
            return base64.b64encode(value).decode()
        case str():
            return "".join(each if each.isprintable() else " " for each in value)
        case int():
            return str(value)


def _time(time_ms: int) -> str:
    """A time of a producer's clock as Java writes it: UTC, without zeros at the end of a fraction.

    In ms since 1970 if it is beyond the calendar.
    """
    try:
        seconds = datetime.fromtimestamp(time_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(time_ms)
    fraction = f".{time_ms % 1000:03}".rstrip("0").rstrip(".")
    return f"{seconds:%Y-%m-%dT%H:%M:%S}{fraction}Z"


_TOPIC: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"

ROUTES: Final = (
    Route(
        "GET", f"{_TOPIC}/subscription/{{subscription}}/position/{{messagePosition}}", peek_message
    ),
    Route("GET", f"{_TOPIC}/ledger/{{ledgerId}}/entry/{{entryId}}", get_message),
    Route("GET", f"{_TOPIC}/examinemessage", examine_message),
    Route("GET", f"{_TOPIC}/messageid/{{timestamp}}", find_message),
)
