"""Builds the frames that the broker sends, one function for each, from what topics answer.

Pure. protobuf builds rare replies. The three that are sent hundreds of thousands of times a second
(MESSAGE, SEND_RECEIPT, ACK_RESPONSE) are built in bulk from a template: within one call all but an
id or two is the same, so that a frame is a fixed prefix and a varint. A property test compares them
with protobuf. MESSAGE, for a run of entries of one ledger whose ids have one varint width::

    | total | command size 08 09 4a len 08 consumer 12 len 08 ledger 10 | entry id | suffix | entry
      each    `---------------- prefix, once a run -------------------'   each       once     each
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.cursor import EARLIEST
from ackgate.described import iso_time
from ackgate.network import NOWHERE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ackgate.broker.wire.requests import ConsumerRates, Schema, SubscriptionType
    from ackgate.cursor import Position
    from ackgate.network import Urls


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
    """The answer to CONSUMER_STATS."""

    consumer_name: str
    subscription_type: SubscriptionType
    permits: int
    unacked_messages: int
    is_blocked_on_unacked: bool
    connected_since: float
    """Seconds since 1970."""
    backlog_messages: int
    rates: ConsumerRates


# ---- Protobuf varints, fast: seven bits a byte, least significant first, high bit = "more follows"
#
# Two tables of two-byte pieces (14 bits each) turn the usual loop into one or two look-ups:
# 37 ns for a number below 16,384, 85 ns below 268,435,456, against 220 ns for the loop.

TABLE_SIZE: Final = 1 << 14

LAST: Final = [
    bytes((n,)) if n < 0x80 else bytes((n & 0x7F | 0x80, n >> 7)) for n in range(TABLE_SIZE)
]
"""The whole encoding of n < 16,384, or the last piece of a longer one."""

MORE: Final = [bytes((n & 0x7F | 0x80, n >> 7 | 0x80)) for n in range(TABLE_SIZE)]
"""The low 14 bits of a number of which more follow."""

UINT64_MASK: Final = 2**64 - 1


def varint(number: int) -> bytes:
    """Encode a number from 0 on. Pass a negative int32 or int64 as `number & UINT64_MASK`."""
    if number < TABLE_SIZE:
        return LAST[number]
    if number < TABLE_SIZE * TABLE_SIZE:
        return MORE[number & 0x3FFF] + LAST[number >> 14]
    return MORE[number & 0x3FFF] + varint(number >> 14)


_SIZE: Final = Struct(">I").pack
_SIZES: Final = Struct(">II").pack
_TABLE_SIZE_SQUARED: Final = TABLE_SIZE * TABLE_SIZE

NO_REQUEST_ID: Final = UINT64_MASK
"""Request id of an ERROR that answers no request: Pulsar's -1."""

Type = pb.BaseCommand.Type


def encode(command: pb.BaseCommand, payload: bytes = b"") -> bytes:
    body = command.SerializeToString()
    return _SIZES(4 + len(body) + len(payload), len(body)) + body + payload


# ---- hot: templates


def messages(
    consumer_id: int, partition: int, batch: Iterable[MessageOut], epoch: int | None
) -> list[bytes]:
    """Build MESSAGE frames, as pieces to be joined. 0.2 us an entry."""
    pieces: list[bytes] = []
    consumer = b"\x08" + varint(consumer_id)
    partition_field = b"" if partition < 0 else b"\x18" + varint(partition)
    epoch_field = b"" if epoch is None else b"\x28" + varint(epoch)
    ledger_now = redelivery_now = width_now = -1
    prefix = suffix = b""
    frame_bytes = 0
    for ledger_id, entry_id, redelivery_count, unacked_mask, entry in batch:
        # `varint`, spelled out: the call would cost a quarter of the whole.
        if entry_id < TABLE_SIZE:
            number = LAST[entry_id]
        elif entry_id < _TABLE_SIZE_SQUARED:
            number = MORE[entry_id & 0x3FFF] + LAST[entry_id >> 14]
        else:
            number = varint(entry_id)
        if (
            ledger_id != ledger_now
            or len(number) != width_now
            or redelivery_count != redelivery_now
            or unacked_mask is not None
        ):
            ledger_now, redelivery_now, width_now = ledger_id, redelivery_count, len(number)
            ledger = b"\x08" + varint(ledger_id) + b"\x10"
            after = b"\x18" + varint(redelivery_count) if redelivery_count else b""
            if unacked_mask is not None:
                after += _unacked_field(unacked_mask)
                ledger_now = -1  # the next entry has another mask, or none
            suffix = partition_field + after + epoch_field
            message_id_bytes = len(ledger) + width_now + len(partition_field)
            head = consumer + b"\x12" + varint(message_id_bytes) + ledger
            head = b"\x08\x09\x4a" + varint(len(head) + width_now + len(suffix)) + head
            command_bytes = len(head) + width_now + len(suffix)
            prefix = _SIZE(command_bytes) + head
            frame_bytes = 4 + command_bytes
        if suffix:
            pieces += (_SIZE(frame_bytes + len(entry)), prefix, number, suffix, entry)
        else:
            pieces += (_SIZE(frame_bytes + len(entry)), prefix, number, entry)
    return pieces


def _unacked_field(mask: int) -> bytes:
    """`ack_set`: 64-bit words, lowest first, set bits = still to be delivered."""
    field = b""
    while mask:
        field += b"\x20" + varint(mask & UINT64_MASK)
        mask >>= 64
    return field


def receipts(producer_id: int, confirmed: Iterable[tuple[int, int, int, int]]) -> list[bytes]:
    """Build SEND_RECEIPT frames from (sequence id, highest one, ledger id, entry id) each."""
    pieces: list[bytes] = []
    producer = b"\x08" + varint(producer_id) + b"\x10"
    ledger_now = -1
    ledger = b""
    for sequence_id, highest_sequence_id, ledger_id, entry_id in confirmed:
        if ledger_id != ledger_now:
            ledger_now = ledger_id
            ledger = b"\x08" + varint(ledger_id) + b"\x10"
        message_id = ledger + varint(entry_id)
        # Both sequence ids are uint64 on the wire; an unset one comes as -1 from some clients.
        body = (
            producer
            + varint(sequence_id & UINT64_MASK)
            + b"\x1a"
            + LAST[len(message_id)]
            + message_id
            + b"\x20"
            + varint(highest_sequence_id & UINT64_MASK)
        )
        command_bytes = 4 + len(body)
        pieces += (_SIZES(4 + command_bytes, command_bytes), b"\x08\x07\x3a", LAST[len(body)], body)
    return pieces


def ack_responses(consumer_id: int, request_ids: Iterable[int]) -> list[bytes]:
    """Build ACK_RESPONSE frames for acks that succeeded."""
    pieces: list[bytes] = []
    consumer = b"\x08" + varint(consumer_id) + b"\x30"
    for request_id in request_ids:
        body = consumer + varint(request_id)
        command_bytes = 5 + len(body)
        pieces += (
            _SIZES(4 + command_bytes, command_bytes),
            b"\x08\x26\xb2\x02",
            LAST[len(body)],
            body,
        )
    return pieces


# ---- connection


def connected(server_version: str, protocol_version: int, message_bytes_max: int) -> bytes:
    """CONNECTED, with the features that clients may rely on."""
    command = pb.BaseCommand(type=Type.CONNECTED)
    command.connected.server_version = server_version
    command.connected.protocol_version = protocol_version
    command.connected.max_message_size = message_bytes_max
    flags = command.connected.feature_flags
    flags.supports_get_partitioned_metadata_without_auto_creation = True
    # Without this the clients poll for the topics of a regular expression, which is served.
    flags.supports_topic_watchers = False
    return encode(command)


PING: Final = encode(pb.BaseCommand(type=Type.PING, ping=pb.CommandPing()))
PONG: Final = encode(pb.BaseCommand(type=Type.PONG, pong=pb.CommandPong()))


def success(request_id: int) -> bytes:
    command = pb.BaseCommand(type=Type.SUCCESS)
    command.success.request_id = request_id
    return encode(command)


def error(request_id: int, code: int, message: str) -> bytes:
    command = pb.BaseCommand(type=Type.ERROR)
    _fail(command.error, request_id, code, message)
    return encode(command)


def auth_challenge(server_version: str, method: str, protocol_version: int) -> bytes:
    """AUTH_CHALLENGE: the client's credentials have expired, and it must send newer ones."""
    command = pb.BaseCommand(type=Type.AUTH_CHALLENGE)
    body = command.authChallenge
    body.server_version, body.protocol_version = server_version, protocol_version
    body.challenge.auth_method_name, body.challenge.auth_data = method, _REFRESH
    return encode(command)


_REFRESH: Final = b"PulsarAuthRefresh"
"""Tells clients that this is no step of a mutual authentication."""


# ---- finding topics


def partitions(request_id: int, count: int) -> bytes:
    """PARTITIONED_METADATA_RESPONSE; 0: the topic is not partitioned."""
    command = pb.BaseCommand(type=Type.PARTITIONED_METADATA_RESPONSE)
    reply = command.partitionMetadataResponse
    reply.request_id = request_id
    reply.response = pb.CommandPartitionedTopicMetadataResponse.Success
    reply.partitions = count
    return encode(command)


def partitions_failed(request_id: int, code: int, message: str) -> bytes:
    command = pb.BaseCommand(type=Type.PARTITIONED_METADATA_RESPONSE)
    reply = command.partitionMetadataResponse
    _fail(reply, request_id, code, message)
    reply.response = pb.CommandPartitionedTopicMetadataResponse.Failed
    return encode(command)


def lookup(request_id: int, urls: Urls) -> bytes:
    """LOOKUP_RESPONSE: connect to the broker at `urls`, which owns the topic."""
    command = pb.BaseCommand(type=Type.LOOKUP_RESPONSE)
    reply = command.lookupTopicResponse
    reply.request_id = request_id
    reply.response = pb.CommandLookupTopicResponse.Connect
    _set_urls(reply, urls)
    reply.authoritative = True
    return encode(command)


def lookup_redirect(request_id: int, urls: Urls, *, is_authoritative: bool) -> bytes:
    """LOOKUP_RESPONSE: send the same request to the broker at `urls`."""
    command = pb.BaseCommand(type=Type.LOOKUP_RESPONSE)
    reply = command.lookupTopicResponse
    reply.request_id = request_id
    reply.response = pb.CommandLookupTopicResponse.Redirect
    _set_urls(reply, urls)
    reply.authoritative = is_authoritative
    return encode(command)


def _set_urls(reply: pb.CommandLookupTopicResponse, urls: Urls) -> None:
    if urls.plain:
        reply.brokerServiceUrl = urls.plain
    if urls.tls:
        reply.brokerServiceUrlTls = urls.tls


def lookup_failed(request_id: int, code: int, message: str) -> bytes:
    command = pb.BaseCommand(type=Type.LOOKUP_RESPONSE)
    reply = command.lookupTopicResponse
    _fail(reply, request_id, code, message)
    reply.response = pb.CommandLookupTopicResponse.Failed
    return encode(command)


def topics(
    request_id: int, names: Sequence[str], topics_hash: str, *, is_changed: bool, is_filtered: bool
) -> bytes:
    """GET_TOPICS_OF_NAMESPACE_RESPONSE; no names are sent where nothing has changed."""
    command = pb.BaseCommand(type=Type.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    reply = command.getTopicsOfNamespaceResponse
    reply.request_id = request_id
    reply.topics_hash = topics_hash
    reply.changed = is_changed
    reply.filtered = is_filtered
    if is_changed:
        reply.topics.extend(names)
    return encode(command)


# ---- publishing


def producer_success(
    request_id: int,
    name: str,
    last_sequence_id: int,
    schema_version: bytes,
    topic_epoch: int | None,
    *,
    is_ready: bool,
) -> bytes:
    command = pb.BaseCommand(type=Type.PRODUCER_SUCCESS)
    reply = command.producer_success
    reply.request_id = request_id
    reply.producer_name = name
    reply.last_sequence_id = last_sequence_id
    reply.schema_version = schema_version
    reply.producer_ready = is_ready
    if topic_epoch is not None:
        reply.topic_epoch = topic_epoch
    return encode(command)


def send_error(producer_id: int, sequence_id: int, code: int, message: str) -> bytes:
    command = pb.BaseCommand(type=Type.SEND_ERROR)
    reply = command.send_error
    reply.producer_id = producer_id
    reply.sequence_id = sequence_id & UINT64_MASK
    reply.error = _code(code)
    reply.message = message
    return encode(command)


def close_producer(producer_id: int, urls: Urls = NOWHERE) -> bytes:
    """CLOSE_PRODUCER on the broker's initiative. There is no reply.

    Clients that know PIP-307 connect to `urls` without a lookup.
    """
    command = pb.BaseCommand(type=Type.CLOSE_PRODUCER)
    command.close_producer.producer_id = producer_id
    command.close_producer.request_id = NO_REQUEST_ID
    if urls.plain:
        command.close_producer.assignedBrokerServiceUrl = urls.plain
    if urls.tls:
        command.close_producer.assignedBrokerServiceUrlTls = urls.tls
    return encode(command)


# ---- consuming


def close_consumer(consumer_id: int, urls: Urls = NOWHERE) -> bytes:
    """CLOSE_CONSUMER on the broker's initiative."""
    command = pb.BaseCommand(type=Type.CLOSE_CONSUMER)
    command.close_consumer.consumer_id = consumer_id
    command.close_consumer.request_id = NO_REQUEST_ID
    if urls.plain:
        command.close_consumer.assignedBrokerServiceUrl = urls.plain
    if urls.tls:
        command.close_consumer.assignedBrokerServiceUrlTls = urls.tls
    return encode(command)


def active_consumer_change(consumer_id: int, *, is_active: bool) -> bytes:
    command = pb.BaseCommand(type=Type.ACTIVE_CONSUMER_CHANGE)
    command.active_consumer_change.consumer_id = consumer_id
    command.active_consumer_change.is_active = is_active
    return encode(command)


def reached_end_of_topic(consumer_id: int) -> bytes:
    command = pb.BaseCommand(type=Type.REACHED_END_OF_TOPIC)
    command.reachedEndOfTopic.consumer_id = consumer_id
    return encode(command)


def ack_error(consumer_id: int, request_id: int, code: int, message: str) -> bytes:
    """ACK_RESPONSE of an ack that failed."""
    command = pb.BaseCommand(type=Type.ACK_RESPONSE)
    command.ackResponse.consumer_id = consumer_id
    _fail(command.ackResponse, request_id, code, message)
    return encode(command)


def last_message_id(request_id: int, partition: int, last: LastMessageId) -> bytes:
    command = pb.BaseCommand(type=Type.GET_LAST_MESSAGE_ID_RESPONSE)
    reply = command.getLastMessageIdResponse
    reply.request_id = request_id
    # An empty topic is (-1, -1) to a client, whichever ledger is open.
    position = last.position if last.position.entry_id >= 0 else EARLIEST
    _set_position(reply.last_message_id, position)
    reply.last_message_id.partition = partition
    reply.last_message_id.batch_index = last.batch_index
    if last.mark_delete is not None:
        _set_position(reply.consumer_mark_delete_position, last.mark_delete)
    return encode(command)


def consumer_stats(request_id: int, stats: ConsumerStatsReply, address: str) -> bytes:
    command = pb.BaseCommand(type=Type.CONSUMER_STATS_RESPONSE)
    reply = command.consumerStatsResponse
    reply.request_id = request_id
    reply.msgRateOut = stats.rates.messages_out
    reply.msgThroughputOut = stats.rates.bytes_out
    reply.msgRateRedeliver = stats.rates.messages_redelivered
    reply.messageAckRate = stats.rates.messages_acked
    reply.msgRateExpired = stats.rates.entries_expired
    reply.consumerName = stats.consumer_name
    reply.availablePermits = stats.permits & UINT64_MASK
    reply.unackedMessages = stats.unacked_messages
    reply.blockedConsumerOnUnackedMsgs = stats.is_blocked_on_unacked
    reply.address = f"/{address}"  # as Java spells it
    reply.connectedSince = iso_time(stats.connected_since)
    reply.type = stats.subscription_type.spelling
    reply.msgBacklog = stats.backlog_messages
    return encode(command)


def consumer_stats_failed(request_id: int, code: int, message: str) -> bytes:
    command = pb.BaseCommand(type=Type.CONSUMER_STATS_RESPONSE)
    reply = command.consumerStatsResponse
    reply.request_id = request_id
    reply.error_code = _code(code)
    reply.error_message = message
    return encode(command)


# ---- schemas


def schema_found(request_id: int, schema: Schema, version: bytes) -> bytes:
    command = pb.BaseCommand(type=Type.GET_SCHEMA_RESPONSE)
    reply = command.getSchemaResponse
    reply.request_id = request_id
    reply.schema_version = version
    reply.schema.name = schema.name
    reply.schema.type = cast("pb.Schema.Type", int(schema.type))
    reply.schema.schema_data = schema.definition
    for key, value in schema.properties.items():
        reply.schema.properties.add(key=key, value=value)
    return encode(command)


def schema_not_found(request_id: int, code: int, message: str) -> bytes:
    command = pb.BaseCommand(type=Type.GET_SCHEMA_RESPONSE)
    reply = command.getSchemaResponse
    reply.request_id = request_id
    reply.error_code = _code(code)
    reply.error_message = message
    return encode(command)


def schema_created(request_id: int, version: bytes) -> bytes:
    command = pb.BaseCommand(type=Type.GET_OR_CREATE_SCHEMA_RESPONSE)
    command.getOrCreateSchemaResponse.request_id = request_id
    command.getOrCreateSchemaResponse.schema_version = version
    return encode(command)


def schema_refused(request_id: int, code: int, message: str) -> bytes:
    command = pb.BaseCommand(type=Type.GET_OR_CREATE_SCHEMA_RESPONSE)
    reply = command.getOrCreateSchemaResponse
    reply.request_id = request_id
    reply.error_code = _code(code)
    reply.error_message = message
    return encode(command)


# ---- fields that several replies have


class _Failure(Protocol):
    """A reply that has these three fields."""

    request_id: int
    error: pb.ServerError
    message: str


def _fail(reply: _Failure, request_id: int, code: int, message: str) -> None:
    reply.request_id = request_id
    reply.error = _code(code)
    reply.message = message


def _code(code: int) -> pb.ServerError:
    return cast("pb.ServerError", int(code))


def _set_position(message_id: pb.MessageIdData, position: Position) -> None:
    """Set ledger and entry id. -1 ("before everything") is sent as the largest uint64."""
    message_id.ledgerId = position.ledger_id & UINT64_MASK
    message_id.entryId = position.entry_id & UINT64_MASK
