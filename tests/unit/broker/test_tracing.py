"""Spans of publishes, deliveries and acks: whose children they are, what they say, and when they end."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from ackgate.broker.topic import Tracing, tracing
from ackgate.broker.wire import ProducerRequest, SentEntry, SubscriptionType
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.errors import StorageError
from ackgate.persistence.messages.frame import seal_entry
from ackgate.persistence.records.envelope import Compression, compressed
from tests.support.virtual_time import run_in_virtual_time
from tests.unit.broker.delayed.delivery_world import NAME, Client, DelayedWorld, settle

TRACE = 0x0AF7651916CD43DD8448EB211C80319C
TOPIC = "persistent://public/default/t"


def traceparent(span: int) -> pb.KeyValue:
    return pb.KeyValue(key="traceparent", value=f"00-{TRACE:032x}-{span:016x}-01")


class TracedWorld(DelayedWorld):
    """A broker whose spans are gathered."""

    async def start(self) -> None:
        await super().start()
        self.spans = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self.topic.services.tracing = Tracing(provider)

    async def send(self, metadata: pb.MessageMetadata, payload: bytes = b"=x") -> None:
        metadata.producer_name, metadata.sequence_id, metadata.publish_time = "p", 1, 1
        producer = await self.topic.add_producer(self, ProducerRequest(NAME, 1, "p"))
        self.names.append(f"m{len(self.names)}")
        entry = seal_entry(metadata.SerializeToString(), payload)
        count = max(1, metadata.num_messages_in_batch)
        producer.publish(SentEntry(1, 1, count, entry, metadata))
        await settle()
        await producer.close()

    @property
    def ended(self) -> list[ReadableSpan]:
        """Those that ended since this was asked."""
        spans = list(self.spans.get_finished_spans())
        self.spans.clear()
        return spans


def in_world(story: Any) -> None:
    async def main() -> None:
        world = TracedWorld()
        await world.start()
        await story(world)

    run_in_virtual_time(main())


def ack(client: Client, name: str, *, request_id: int | None, **more: Any) -> None:
    command = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, **more)
    if request_id is not None:
        command.request_id = request_id
    ledger_id, entry_id = client.world.positions[name]
    command.message_id.add(ledgerId=ledger_id, entryId=entry_id)
    client.port.acks([command])


def test_a_traced_message_has_three_spans_below_its_producers() -> None:
    async def story(world: TracedWorld) -> None:
        client = await world.consumer()
        await world.send(pb.MessageMetadata(properties=[traceparent(7)]))
        publish, dispatch = world.ended
        ack(client, "m0", request_id=3)
        assert world.ended == []  # not before it is durable
        await world.subscription().flush()
        await settle()
        [acked] = world.ended
        ledger_id, entry_id = world.positions["m0"]
        for span, name, kind in (
            (publish, "publish", SpanKind.SERVER),
            (dispatch, "dispatch", SpanKind.PRODUCER),
            (acked, "ack", SpanKind.SERVER),
        ):
            assert span.name == f"{name} {TOPIC}"
            assert span.kind is kind
            assert span.parent is not None
            assert (span.parent.trace_id, span.parent.span_id) == (TRACE, 7)
            assert span.attributes is not None
            assert span.attributes["messaging.system"] == "pulsar"
            assert span.attributes["messaging.operation.name"] == name
            assert span.attributes["messaging.destination.name"] == TOPIC
            assert span.attributes["messaging.message.id"] == f"{ledger_id}:{entry_id}:-1"
        assert publish.attributes["messaging.client.id"] == "p"
        assert publish.attributes["messaging.operation.type"] == "send"
        assert dispatch.attributes["messaging.destination.subscription.name"] == "s"
        assert acked.attributes["messaging.operation.type"] == "settle"

    in_world(story)


def test_a_message_without_a_context_has_none() -> None:
    async def story(world: TracedWorld) -> None:
        client = await world.consumer()
        await world.send(pb.MessageMetadata())
        await world.send(pb.MessageMetadata(properties=[pb.KeyValue(key="traceparent", value="x")]))
        await world.send(pb.MessageMetadata(), b"=traceparent")
        client.ack("m0", "m1", "m2")
        assert world.ended == []

    in_world(story)


def batch(*spans: int) -> bytes:
    """Messages with these contexts."""
    payload = b""
    for span in spans:
        single = pb.SingleMessageMetadata(payload_size=2, properties=[traceparent(span)])
        head = single.SerializeToString()
        payload += len(head).to_bytes(4, "big") + head + b"=x"
    return payload


def test_a_batch_of_several_contexts_has_links() -> None:
    async def story(world: TracedWorld) -> None:
        client = await world.consumer()
        await world.send(pb.MessageMetadata(num_messages_in_batch=3), batch(7, 8, 8))
        client.ack("m0")
        publish, dispatch, acked = world.ended
        for span in (publish, dispatch, acked):
            assert span.parent is None
            assert [link.context.span_id for link in span.links] == [7, 8]
        assert publish.attributes["messaging.batch.message_count"] == 3

    in_world(story)


def test_batches_are_looked_into_if_they_are_compressed_and_not_if_they_are_encrypted() -> None:
    plain = batch(7, 7)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    metadata.num_messages_in_batch = 2
    metadata.compression, metadata.uncompressed_size = pb.ZLIB, len(plain)
    payload = compressed(plain, Compression.ZLIB)
    traced = Tracing(TracerProvider())
    entry = seal_entry(metadata.SerializeToString(), payload)
    [context] = traced.contexts(entry, metadata)
    assert (context.trace_id, context.span_id) == (TRACE, 7)
    metadata.encryption_algo = "AES"
    entry = seal_entry(metadata.SerializeToString(), payload)
    assert not traced.contexts(entry, metadata)


def test_a_cumulative_ack_is_one_of_all_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "DELIVERED_MAX", 2)

    async def story(world: TracedWorld) -> None:
        client = await world.consumer(type=SubscriptionType.EXCLUSIVE)
        for span in (5, 6, 7, 8):
            await world.send(pb.MessageMetadata(properties=[traceparent(span)]))
        assert len(world.ended) == 8
        command = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Cumulative)
        ledger_id, entry_id = world.positions["m2"]
        command.message_id.add(ledgerId=ledger_id, entryId=entry_id)
        client.port.acks([command])
        [acked] = world.ended  # 5 and 6 were forgotten for newer ones
        assert acked.parent is not None
        assert acked.parent.span_id == 7

    in_world(story)


def test_a_message_that_is_not_stored_ends_its_span_with_the_error() -> None:
    async def story(world: TracedWorld) -> None:
        world.topic.ledger._refusal = lambda _: StorageError("no room")
        await world.send(pb.MessageMetadata(properties=[traceparent(7)]))
        [publish] = world.ended
        assert publish.status.status_code is StatusCode.ERROR
        assert publish.attributes["error.type"] == "StorageError"

    in_world(story)


class CollectorThatHangs(InMemorySpanExporter):
    """Takes no span until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.answers.wait()
        return super().export(spans)


def test_the_last_spans_are_sent_and_a_collector_that_hangs_does_not_hold_the_process_up() -> None:
    for hangs in (False, True):
        collector = CollectorThatHangs()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(collector))
        provider.get_tracer("test").start_span("last").end()
        if not hangs:
            collector.answers.set()
        seconds = 0.01 if hangs else 60.0
        assert tracing.send_last_spans(provider, seconds_max=seconds) is not hangs
        assert len(collector.get_finished_spans()) == (not hangs)
        collector.answers.set()
