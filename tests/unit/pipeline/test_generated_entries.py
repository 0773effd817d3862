"""Generated entries are what a producer sends: the protobuf library reads them, field by field."""

import google_crc32c
import numpy as np
import pytest
from google.protobuf.internal.encoder import _VarintBytes
from hypothesis import given
from hypothesis import strategies as st

from ackgate.cursor import Position
from ackgate.errors import ConfigurationError
from ackgate.persistence.messages.entry import parse_metadata
from ackgate.persistence.messages.frame import metadata_span
from ackgate.persistence.proto.message_pb2 import SingleMessageMetadata
from ackgate.pipeline.jobs.generate.entries import EntryMaker, varint_columns, varint_widths
from ackgate.pipeline.jobs.generate.plan import MESSAGES_PER_MS, START_MS, GeneratePlan


def entries_of(plan, number=0, step=1_000):
    topic = list(plan.each_topic())[number]
    maker = EntryMaker(topic)
    return [
        entry
        for first in range(0, topic.entries, step)
        for entry in maker.make(first, min(step, topic.entries - first))
    ]


def read(entries):
    return [parse_metadata(entry, Position(1, at)) for at, entry in enumerate(entries)]


def test_single_messages_carry_everything_and_a_right_checksum():
    plan = GeneratePlan(messages=20_000, seed=3, payload_bytes=17, keys=50, delayed_share=0.25)

    entries = entries_of(plan)

    found = read(entries)
    assert [m.sequence_id for m in found] == list(range(20_000))
    assert [m.publish_time for m in found] == [
        START_MS + i // MESSAGES_PER_MS for i in range(20_000)
    ]
    assert {m.producer_name for m in found} == {"generator-0"}
    assert {m.partition_key for m in found} == {f"key-{n:09d}" for n in range(50)}
    delayed = [m for m in found if m.HasField("deliver_at_time")]
    assert 4_700 < len(delayed) < 5_300
    assert all(0 < m.deliver_at_time - m.publish_time <= 86_400_000 for m in delayed)
    for entry in entries:
        assert len(entry) - metadata_span(entry)[1] == 17
        assert google_crc32c.value(entry[6:]) == int.from_bytes(entry[2:6], "big")


@pytest.mark.parametrize("messages", [1, 6, 7, 8, 15_000])
def test_of_batches_only_the_last_is_smaller(messages):
    found = read(entries_of(GeneratePlan(messages=messages, seed=1, batch_size=7)))

    sizes = [m.num_messages_in_batch for m in found]
    assert sum(sizes) == messages
    assert set(sizes[:-1]) <= {7}
    assert [m.sequence_id for m in found] == list(range(0, messages, 7))


def values(properties):
    return {each.key: each.value for each in properties}


def test_properties_and_event_times_are_the_messages_own():
    plan = GeneratePlan(messages=500, seed=3, properties=2, event_seconds_max=60)

    for message in read(entries_of(plan)):
        assert list(values(message.properties)) == ["property-0", "property-1"]
        assert all(len(v) == 6 and v.isdigit() for v in values(message.properties).values())
        assert 0 <= message.publish_time - message.event_time < 60_000


def test_in_a_batch_each_message_has_them():
    plan = GeneratePlan(
        messages=40, seed=3, batch_size=4, properties=1, event_seconds_max=60, payload_bytes=5
    )

    entries = entries_of(plan)

    for entry, metadata in zip(entries, read(entries), strict=True):
        assert not metadata.properties
        assert not metadata.HasField("event_time")
        rest = entry[metadata_span(entry)[1] :]
        for _ in range(4):
            size = int.from_bytes(rest[:4], "big")
            single = SingleMessageMetadata.FromString(rest[4 : 4 + size])
            assert list(values(single.properties)) == ["property-0"]
            assert 0 <= metadata.publish_time - single.event_time < 60_000
            assert single.partition_key == metadata.partition_key
            rest = rest[4 + size + single.payload_size :]
        assert rest == b""


def test_the_seed_decides_what_is_in_them():
    def made(seed):
        return entries_of(GeneratePlan(messages=100, seed=seed, delayed_share=0.5))

    assert made(1) == made(1)
    assert made(1) != made(2)


@given(st.lists(st.integers(0, 2**62 - 1), min_size=1, max_size=20))
def test_varints_are_protobufs(numbers):
    array = np.array(numbers, dtype=np.int64)

    for number, width in zip(numbers, varint_widths(array), strict=True):
        encoded = varint_columns(np.array([number], dtype=np.int64)).tobytes()
        assert encoded == _VarintBytes(number)
        assert len(encoded) == width


@given(
    messages=st.integers(0, 10_000),
    topics=st.integers(1, 7),
    skew=st.floats(0, 1),
    batch_size=st.integers(1, 9),
)
def test_topics_share_all_messages(messages, topics, skew, batch_size):
    plan = GeneratePlan(
        messages=messages,
        seed=0,
        topics=topics,
        skew=skew,
        batch_size=batch_size,
        ledger_entries=100,
    )

    counts = [topic.messages for topic in plan.each_topic()]

    assert sum(counts) == messages
    assert len(counts) == topics
    if skew and topics > 1:
        assert counts[0] == round(messages * skew)
    for topic in plan.each_topic():
        assert sum(count for _, count in topic.ledgers()) == topic.entries


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ({"messages": -1}, "--messages must be at least 0"),
        ({"topics": 0}, "--topics must be at least 1"),
        ({"skew": 1.5}, "--skew is a share"),
        ({"batch_size": 2, "delayed_share": 0.1}, "--delayed-share requires --batch-size 1"),
        ({"event_seconds_max": 10**10}, "--event-seconds-max reaches back before 1970"),
        ({"messages": 10_000, "ledger_entries": 1}, "10,000 ledgers"),
    ],
)
def test_what_cannot_be_made_is_said_before_anything_is(told, named):
    with pytest.raises(ConfigurationError, match=named):
        GeneratePlan(**{"messages": 10, "seed": 1, **told})
