"""A real client's message with a context in its properties: what the broker adds to the trace."""

from __future__ import annotations

import pulsar
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ackgate.broker.topic import Tracing
from tests.broker.admin.conftest import InProcessBroker
from tests.broker.target import eventually, receive


def test_spans_of_a_message_are_children_of_its_producers(
    broker: InProcessBroker, pulsar_client: pulsar.Client
) -> None:
    gathered = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(gathered))
    broker.server.services.tracing = Tracing(provider)
    consumer = pulsar_client.subscribe("traced", "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = pulsar_client.create_producer("traced")
    application = TracerProvider().get_tracer("an application")
    with application.start_as_current_span("send") as sending:
        properties: dict[str, str] = {}
        propagate.inject(properties)
        producer.send(b"x", properties=properties)
    producer.send(b"nobody traces this one")
    for message in receive(consumer, 2):
        consumer.acknowledge(message)
    eventually(lambda: len(gathered.get_finished_spans()) == 3)
    spans = gathered.get_finished_spans()
    assert {span.name.partition(" ")[0] for span in spans} == {"publish", "dispatch", "ack"}
    parent = sending.get_span_context()
    assert isinstance(parent, trace.SpanContext)
    for span in spans:
        assert span.parent is not None
        assert span.parent.span_id == parent.span_id
        assert span.context.trace_id == parent.trace_id
        assert span.start_time <= span.end_time
