"""What the page shows of single messages: one of them, and when the delayed ones are due (ours).

Edge: reads entries from the ledgers. Both answers are bounded, whatever the producers sent. A
payload is shown as a value if the topic's schema can decode it, as text if it is text, else as a
hex dump.
"""

from __future__ import annotations

import base64
import io
import json
import struct
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.admin.http.call import entry_of, json_reply, subscription_of
from ackgate.broker.admin.http.router import Route
from ackgate.broker.stats import state_of
from ackgate.broker.wire import SchemaType
from ackgate.cursor import Position
from ackgate.errors import CorruptRecordError
from ackgate.persistence.messages.unpack import unpacked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.broker.admin.http.call import Call, Reply
    from ackgate.broker.topic import Topic
    from ackgate.broker.wire import Entry, StoredSchema
    from ackgate.cursor import MessageLedgers
    from ackgate.dispatcher.delayed import DelayedTracker

MESSAGES_MAX: Final = 100
"""Messages of a batch that are shown."""

PAYLOAD_BYTES_MAX: Final = 16 * 1024
"""Bytes of a payload that are shown, and of an Avro value that is decoded."""

PROPERTIES_MAX: Final = 200
HEX_BYTES_MAX: Final = 1024
SUBSCRIPTIONS_MAX: Final = 200

SAMPLES_MAX: Final = 200
"""Delayed entries that are read to know when they are due."""

SLOTS: Final = 40
"""Slots in the histogram of due times."""

_NUMBERS: Final[Mapping[SchemaType, str]] = {
    SchemaType.INT8: ">b",
    SchemaType.INT16: ">h",
    SchemaType.INT32: ">i",
    SchemaType.INT64: ">q",
    SchemaType.FLOAT: ">f",
    SchemaType.DOUBLE: ">d",
    SchemaType.BOOLEAN: ">?",
}
"""Numbers as Java's client encodes them."""

_SMALL_AVRO: Final = frozenset({"boolean", "int", "long", "float", "double", "bytes", "string"})
"""Primitive types whose values take at least a byte each."""


async def get_message(call: Call) -> Reply:
    """One entry: properties, keys, times and payloads of its messages, and where it is (ours)."""
    topic = await call.topic_here()
    position = Position(call.integer("ledgerId"), call.integer("entryId"))
    entry = await entry_of(topic, position)
    metadata = entry.metadata
    schema = None
    if metadata.schema_version:
        schema = await call.broker.schemas.get(topic.name, metadata.schema_version)
    return json_reply(
        {
            "position": str(position),
            "bytes": len(entry.payload),
            "producer": metadata.producer_name,
            "sequenceId": metadata.sequence_id,
            "publishTimeMs": metadata.publish_time,
            "deliverAtMs": metadata.deliver_at_time or None,
            "compression": metadata.compression,
            "encryptionKeys": [key.key for key in metadata.encryption_keys],
            "chunk": [metadata.chunk_id, metadata.num_chunks_from_msg]
            if metadata.num_chunks_from_msg > 1
            else None,
            "schema": None if schema is None else schema.schema.type.name,
            "messageCount": entry.message_count,
            "messages": _messages(entry, schema),
            "subscriptionCount": len(topic.subscriptions),
            "subscriptions": _states(topic, position),
        }
    )


def _messages(entry: Entry, schema: StoredSchema | None) -> list[dict[str, Any]]:
    try:
        found = list(islice(unpacked(entry.payload, entry.position), MESSAGES_MAX))
    except CorruptRecordError as error:
        return [{"error": str(error)}]
    messages = []
    for message in found:
        about = message.metadata if message.single is None else message.single
        messages.append(
            {
                "batchIndex": message.batch_index,
                "key": about.partition_key or None,
                "orderingKey": base64.b64encode(about.ordering_key).decode() or None,
                "eventTimeMs": about.event_time or None,
                "properties": {
                    pair.key: pair.value for pair in islice(about.properties, PROPERTIES_MAX)
                },
                "payload": None
                if message.payload is None
                else shown_payload(message.payload, schema),
            }
        )
    return messages


def _states(topic: Topic, position: Position) -> dict[str, Any]:
    """The state of the entry in the first `SUBSCRIPTIONS_MAX` subscriptions."""
    states = {}
    for name, subscription in islice(topic.subscriptions.items(), SUBSCRIPTIONS_MAX):
        state, holder = state_of(subscription, position)
        states[name] = {"state": state.value, "holder": holder}
    return states


def shown_payload(payload: bytes, schema: StoredSchema | None) -> dict[str, Any]:
    """A payload for people: its size, and one of ``value`` (by its schema), ``text``, ``hex``."""
    shown: dict[str, Any] = {"bytes": len(payload)}
    value = None if schema is None else _value(payload, schema)
    if value is not None:
        shown["value"] = value
        return shown
    head = payload[:PAYLOAD_BYTES_MAX]
    shown["isCut"] = len(head) < len(payload)
    try:
        # A character may be cut in two.
        text = head.decode() if not shown["isCut"] else head.decode(errors="ignore")
    except UnicodeDecodeError:
        text = None
    if text is not None and all(each.isprintable() or each in "\r\n\t" for each in text):
        shown["text"] = text
    else:
        shown["hex"] = payload[:HEX_BYTES_MAX].hex(" ")
        shown["isCut"] = len(payload) > HEX_BYTES_MAX
    return shown


def _value(payload: bytes, schema: StoredSchema) -> str | None:
    """Decode a payload by its schema, as JSON. None if that fails or is too long."""
    if len(payload) > PAYLOAD_BYTES_MAX:
        return None
    kind = schema.schema.type
    try:
        if kind in _NUMBERS:
            [number] = struct.unpack(_NUMBERS[kind], payload)
            return json.dumps(number)
        if kind is SchemaType.JSON:
            return json.dumps(json.loads(payload), ensure_ascii=False, indent=2)
        if kind is SchemaType.AVRO:
            return _avro(payload, schema.schema.definition)
    except (ValueError, struct.error, RecursionError):
        return None
    return None


def _avro(payload: bytes, definition: bytes) -> str | None:
    """Decode an Avro value as JSON.

    None for a schema whose values may be far larger than their bytes.
    """
    declared = json.loads(definition)
    if not is_tame(declared):
        return None
    import fastavro  # noqa: PLC0415 - not needed before somebody looks

    try:
        value = fastavro.schemaless_reader(
            io.BytesIO(payload), fastavro.parse_schema(declared), None
        )
    except Exception:  # noqa: BLE001 - whatever stands there instead of a value
        return None
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def is_tame(declared: object, *, is_item: bool = False) -> bool:
    """Whether values of this Avro schema are bounded by the size of their bytes. Pure.

    Items of arrays and maps must take at least a byte. A reference to a named type is rejected,
    because types may contain themselves.
    """
    match declared:
        case str():
            return declared in _SMALL_AVRO or (declared == "null" and not is_item)
        case list():
            return bool(declared) and all(map(is_tame, declared))
        case {"type": "record", "fields": list(fields)}:
            types = [field.get("type") for field in fields if isinstance(field, dict)]
            has_bytes = any(is_tame(each, is_item=True) for each in types)
            return all(map(is_tame, types)) and (has_bytes or not is_item)
        case {"type": "array", "items": items} | {"type": "map", "values": items}:
            return is_tame(items, is_item=True)
        case {"type": "enum"}:
            return True
        case {"type": "fixed", "size": int(size)}:
            return size > 0 or not is_item
        case {"type": inner}:
            return is_tame(inner, is_item=is_item)
        case _:
            return False


# ---- what waits


async def get_due_times(call: Call) -> Reply:
    """When the delayed messages of a subscription are due: a histogram of up to 200 of them (ours)."""
    subscription = subscription_of(await call.topic_here(), call.subscription_name)
    tracker, now_ms = subscription.core.tracker, call.broker.services.clock_ms()
    held = 0 if tracker is None else tracker.entry_count
    due = []
    if tracker is not None and held:
        reads = subscription.topic.ledger.reads
        for position in _sampled(subscription.topic.ledger.ledgers, tracker):
            entry = await reads.read_one(position)
            due.append(entry.deliver_at_ms)
    return json_reply({"takenMs": now_ms, "held": held, "sampled": len(due), **histogram(due)})


def _sampled(ledgers: MessageLedgers, tracker: DelayedTracker) -> list[Position]:
    """Tracked positions; if there are too many, an even sample."""
    step = max(1, -(-tracker.entry_count // SAMPLES_MAX))
    chosen: list[Position] = []
    place = 0
    for ledger_id in list(ledgers.ledger_ids):
        tracked = tracker.tracked(ledger_id)
        if not tracked:
            continue
        count = len(tracked)
        chosen += [Position(ledger_id, tracked[at]) for at in range(-place % step, count, step)]
        place += count
    return chosen[:SAMPLES_MAX]


def histogram(due_ms: list[int]) -> dict[str, Any]:
    """Count the times in slots of equal width, from the first to the last. Pure."""
    if not due_ms:
        return {"firstMs": None, "slotMs": 0, "counts": []}
    first, last = min(due_ms), max(due_ms)
    slot_ms = max(1, -(-(last - first + 1) // SLOTS))
    counted = Counter((at - first) // slot_ms for at in due_ms)
    slots = (last - first) // slot_ms + 1
    return {"firstMs": first, "slotMs": slot_ms, "counts": [counted[slot] for slot in range(slots)]}


ROUTES: Final = (
    Route(
        "GET", "/ackgate/messages/{tenant}/{namespace}/{topic}/{ledgerId}/{entryId}", get_message
    ),
    Route(
        "GET",
        "/ackgate/subscriptions/{tenant}/{namespace}/{topic}/{subscription}/dueTimes",
        get_due_times,
    ),
)
