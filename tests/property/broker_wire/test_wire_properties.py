"""Frames and replies against protobuf, and bytes from a hostile world."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import hypothesis.strategies as st
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given

from ackgate.broker.schemas.avro_compatibility import parse
from ackgate.broker.wire import replies
from ackgate.broker.wire.entry import entry_metadata
from ackgate.broker.wire.errors import (
    ChecksumError,
    IncompatibleSchemaError,
    InvalidTopicNameError,
    ProtocolError,
)
from ackgate.broker.wire.intake import FrameDecoder
from ackgate.broker.wire.names import TopicName
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.broker.wire.replies import MessageOut, varint
from ackgate.persistence.messages.frame import seal_entry

if TYPE_CHECKING:
    from ackgate.broker.wire.intake import Frame

FRAME_BYTES_MAX = 2_000
EDGES = [0, 1, 127, 128, 16_383, 16_384, 2**28 - 1, 2**28, 2**32, 2**63 - 1, 2**64 - 1]

uint64 = st.one_of(st.sampled_from(EDGES), st.integers(0, 2**64 - 1), st.integers(0, 300))
int63 = st.one_of(st.sampled_from(EDGES[:-1]), st.integers(0, 2**63 - 1), st.integers(0, 300))
frames_strategy = st.lists(
    st.tuples(st.binary(min_size=2, max_size=40), st.binary(max_size=200)), max_size=8
)


def stream_of(frames: list[Frame]) -> bytes:
    out = b""
    for command, payload in frames:
        total = 4 + len(command) + len(payload)
        out += total.to_bytes(4, "big") + len(command).to_bytes(4, "big") + command + payload
    return out


def feed_in_pieces(decoder: FrameDecoder, stream: bytes, cuts: list[int]) -> list[Frame]:
    got = []
    start = 0
    for cut in [*sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]:
        if cut > start:
            got += decoder.feed(stream[start:cut])
            start = cut
    return got


def judge(entry: bytes) -> None:
    with contextlib.suppress(ChecksumError, ProtocolError):
        entry_metadata(entry)


# ---- frames


@given(frames=frames_strategy, cuts=st.lists(st.integers(0, 10_000), max_size=10))
def test_frames_come_out_the_same_wherever_the_stream_is_cut(
    frames: list[Frame], cuts: list[int]
) -> None:
    decoder = FrameDecoder(FRAME_BYTES_MAX)
    assert feed_in_pieces(decoder, stream_of(frames), cuts) == frames
    assert decoder.error is None
    assert decoder.buffered_bytes == 0


@given(frames=frames_strategy.filter(bool), position=st.integers(0, 10_000))
def test_a_stream_cut_off_hands_out_the_whole_frames_and_waits(
    frames: list[Frame], position: int
) -> None:
    stream = stream_of(frames)
    position %= len(stream)
    decoder = FrameDecoder(FRAME_BYTES_MAX)
    got = decoder.feed(stream[:position])
    assert got == frames[: len(got)]
    assert decoder.buffered_bytes == position - len(stream_of(got))


@given(
    stream=st.binary(max_size=600),
    cuts=st.lists(st.integers(0, 10_000), max_size=10),
)
@example(stream=b"\xff" * 16, cuts=[])
@example(stream=b"\x00" * 16, cuts=[])
def test_any_bytes_end_in_frames_or_in_an_error_and_never_fill_memory(
    stream: bytes, cuts: list[int]
) -> None:
    whole, cut_up = FrameDecoder(100), FrameDecoder(100)
    frames = whole.feed(stream)
    assert feed_in_pieces(cut_up, stream, cuts) == frames
    assert (whole.error is None) == (cut_up.error is None)
    for decoder in (whole, cut_up):
        assert decoder.buffered_bytes < 100 + 8
    for command, payload in frames:
        assert len(command) >= 2
        assert len(command) + len(payload) + 4 <= 100


@given(
    frames=frames_strategy.filter(bool),
    position=st.integers(0, 10_000),
    bit=st.integers(0, 7),
)
def test_a_mutated_stream_never_crashes_the_decoder(
    frames: list[Frame], position: int, bit: int
) -> None:
    stream = bytearray(stream_of(frames))
    stream[position % len(stream)] ^= 1 << bit
    decoder = FrameDecoder(FRAME_BYTES_MAX)
    for command, payload in decoder.feed(bytes(stream)):
        judge(payload)
        try:
            pb.BaseCommand.FromString(command)
        except DecodeError:
            continue


@given(
    producer_name=st.text(max_size=20),
    sequence_id=uint64,
    payload=st.binary(max_size=200),
)
def test_a_sealed_entry_is_sound_until_a_bit_flips(
    producer_name: str, sequence_id: int, payload: bytes
) -> None:
    metadata = pb.MessageMetadata(
        producer_name=producer_name, sequence_id=sequence_id, publish_time=1
    )
    entry = seal_entry(metadata.SerializeToString(), payload)
    assert entry_metadata(entry).sequence_id == sequence_id
    for index in range(2, len(entry), 7):
        broken = bytearray(entry)
        broken[index] ^= 1
        with pytest.raises(ChecksumError):
            entry_metadata(bytes(broken))


@given(entry=st.binary(max_size=64))
def test_any_entry_is_judged(entry: bytes) -> None:
    judge(entry)


# ---- templates against protobuf


def parsed(pieces: list[bytes]) -> list[tuple[pb.BaseCommand, bytes]]:
    """What a client makes of it; the bytes must be protobuf's own, not only equivalent."""
    decoder = FrameDecoder(2**31)
    found = []
    for command, payload in decoder.feed(b"".join(pieces)):
        message = pb.BaseCommand.FromString(command)
        assert message.IsInitialized()
        assert message.SerializeToString() == command
        found.append((message, payload))
    assert decoder.error is None
    assert decoder.buffered_bytes == 0
    return found


@given(number=uint64)
def test_varints_are_protobufs(number: int) -> None:
    flow = pb.CommandFlow(consumer_id=number, messagePermits=0)
    assert flow.SerializePartialToString() == b"\x08" + varint(number) + b"\x10\x00"


masks = st.one_of(
    st.none(), st.integers(1, 2**64 - 1), st.integers(1, 2**200 - 1), st.just(1 << 64)
)


@given(
    consumer_id=uint64,
    partition=st.integers(-1, 1000),
    epoch=st.one_of(st.none(), uint64),
    batch=st.lists(
        st.builds(
            MessageOut,
            st.one_of(st.just(7), st.just(8), int63),
            int63,
            st.one_of(st.just(0), st.integers(0, 2**32 - 1)),
            masks,
            st.binary(max_size=30),
        ),
        max_size=12,
    ),
)
def test_messages_are_what_protobuf_would_have_written(
    consumer_id: int, partition: int, epoch: int | None, batch: list[MessageOut]
) -> None:
    found = parsed(replies.messages(consumer_id, partition, batch, epoch))
    assert len(found) == len(batch)
    for (command, payload), sent in zip(found, batch, strict=True):
        message = command.message
        assert command.type == pb.BaseCommand.MESSAGE
        assert message.consumer_id == consumer_id
        assert (message.message_id.ledgerId, message.message_id.entryId) == sent[:2]
        assert message.message_id.partition == partition
        assert message.redelivery_count == sent.redelivery_count
        mask = sum((word % 2**64) << (64 * index) for index, word in enumerate(message.ack_set))
        assert mask == (sent.unacked_mask or 0)
        assert message.HasField("consumer_epoch") == (epoch is not None)
        assert message.consumer_epoch == (epoch or 0)
        assert payload == sent.entry


@given(
    producer_id=uint64,
    confirmed=st.lists(st.tuples(uint64, uint64, st.one_of(st.just(7), int63), int63), max_size=10),
)
def test_receipts_are_what_protobuf_would_have_written(
    producer_id: int, confirmed: list[tuple[int, int, int, int]]
) -> None:
    found = parsed(replies.receipts(producer_id, confirmed))
    for (command, _), sent in zip(found, confirmed, strict=True):
        receipt = command.send_receipt
        assert command.type == pb.BaseCommand.SEND_RECEIPT
        assert receipt.producer_id == producer_id
        message_id = receipt.message_id
        assert sent == (
            receipt.sequence_id,
            receipt.highest_sequence_id,
            message_id.ledgerId,
            message_id.entryId,
        )


@given(consumer_id=uint64, request_ids=st.lists(uint64, max_size=10))
def test_ack_responses_are_what_protobuf_would_have_written(
    consumer_id: int, request_ids: list[int]
) -> None:
    found = parsed(replies.ack_responses(consumer_id, request_ids))
    for (command, _), request_id in zip(found, request_ids, strict=True):
        assert command.type == pb.BaseCommand.ACK_RESPONSE
        assert command.ackResponse.consumer_id == consumer_id
        assert command.ackResponse.request_id == request_id
        assert not command.ackResponse.HasField("error")


# ---- names and schemas


@given(text=st.text(max_size=60))
@example(text="a/b/c")
def test_a_topic_name_is_refused_or_stays_itself(text: str) -> None:
    try:
        name = TopicName.parse(text)
    except InvalidTopicNameError as error:
        assert str(error).isprintable()  # noqa: PT017 - any text may be refused or not
        return
    assert TopicName.parse(str(name)) == name
    assert name.local_name not in {"", ".", ".."}
    assert "/" not in name.local_name
    assert name.partition(3).partitioned == name


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["type", "name", "fields", "items", "values", "symbols", "size"]),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=12,
)


@given(value=json_values)
def test_any_json_is_a_schema_or_is_refused(value: object) -> None:
    import json

    try:
        parse(json.dumps(value))
    except IncompatibleSchemaError:
        return
