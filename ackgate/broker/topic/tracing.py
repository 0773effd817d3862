"""Spans of messages on their way through the broker, by OpenTelemetry's API.

Edge: spans go to the tracer provider of the process. The package is an extra and imported by `Tracing` only,
so a broker without it, or with `openTelemetryTracesEnabled=false`, pays a comparison with None at each of
three places::

    the producer's span, in its process          traceparent in the message's properties
        |-- publish TOPIC     the frame arrived ........... SEND_RECEIPT
        |-- dispatch TOPIC    could be delivered .......... output of the consumer's connection
        `-- ack TOPIC         the frame arrived ........... durable; applied, if no receipt was asked for

Only messages that carry a context have spans, so the producer decides what is traced; bytes of entries stay
as they are, and the consumer's span has the same parent. A batch whose messages have several contexts has
links to them in place of a parent. Names and attributes follow OpenTelemetry's semantic conventions for
messaging. A span names topic, ids and sizes; never keys, properties or payload.

Contexts of delivered entries are kept until their acks, within a bound for each subscription.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

import ackgate
from ackgate.broker.wire import message_properties
from ackgate.errors import CorruptRecordError
from ackgate.extras import named_extras

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opentelemetry.trace import Span, SpanContext, SpanKind, TracerProvider
    from opentelemetry.util.types import AttributeValue

    from ackgate.broker.wire import Entry, TopicName
    from ackgate.broker.wire.proto import pulsar_pb2 as pb
    from ackgate.cursor import Position
    from ackgate.persistence.proto.message_pb2 import MessageMetadata as StoredMetadata

log = logging.getLogger(__name__)

LINKS_MAX: Final = 128
"""Contexts used of one batch; the SDK has the same limit for links."""

DELIVERED_MAX: Final = 10_000
"""Traced entries of a subscription that wait for their acks. Beyond it the oldest are forgotten."""


LAST_SPANS_SECONDS_MAX: Final = 2.0
"""How long the end of the process waits for the collector. The SDK alone would wait for 30 s."""


def send_last_spans(
    provider: TracerProvider | None = None, *, seconds_max: float = LAST_SPANS_SECONDS_MAX
) -> bool:
    """Send the spans that wait, and end the provider; None: that of the process. For its owner only.

    Blocks for `seconds_max` at most; False: what is left then is dropped.
    """
    from opentelemetry import trace  # noqa: PLC0415 - an extra

    shutdown = getattr(provider or trace.get_tracer_provider(), "shutdown", None)
    if shutdown is None:
        return True  # the API alone, which keeps no spans
    sending = threading.Thread(target=shutdown, name="last spans", daemon=True)
    sending.start()
    sending.join(seconds_max)
    if sending.is_alive():
        log.warning("spans are dropped: the collector has not taken them in %g s", seconds_max)
    return not sending.is_alive()


class Tracing:
    """Makes the spans of one broker."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        """`provider` None: the process's own. Raises `MissingExtraError`."""
        with named_extras():
            from opentelemetry import context, propagate, trace  # noqa: PLC0415 - an extra

        self._trace = trace
        self._nowhere = context.Context()
        self._extract = propagate.extract
        self._fields = [name.encode() for name in propagate.get_global_textmap().fields]
        self._tracer = trace.get_tracer("ackgate.broker", ackgate.__version__, provider)

    # ---------------------------------------------------------------- publishing

    def publishing(
        self,
        topic: TopicName,
        entry: bytes,
        metadata: pb.MessageMetadata,
        producer_name: str,
        received_at: float,
    ) -> Span | None:
        """Start the span of an entry on its way to a ledger; None: its messages carry no context.

        `received_at`: as of `perf_counter`.
        """
        contexts = self.contexts(entry, metadata)
        if not contexts:
            return None
        attributes: dict[str, AttributeValue] = {
            "messaging.operation.type": "send",
            "messaging.client.id": producer_name,
            "messaging.message.envelope.size": len(entry),
        }
        if metadata.HasField("num_messages_in_batch"):
            attributes["messaging.batch.message_count"] = metadata.num_messages_in_batch
        kind = self._trace.SpanKind.SERVER
        return self.start("publish", topic, contexts, kind, received_at, attributes)

    def published(self, span: Span, topic: TopicName, position: Position) -> None:
        """End the span: the entry is durable."""
        span.set_attribute("messaging.message.id", _message_id(topic, position))
        span.end()

    def failed(self, span: Span, error: Exception) -> None:
        """End the span with an error."""
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(self._trace.StatusCode.ERROR, str(error))
        span.end()

    # ---------------------------------------------------------------- contexts and spans

    def contexts(
        self, entry: bytes, metadata: pb.MessageMetadata | StoredMetadata
    ) -> Sequence[SpanContext]:
        """The contexts that the entry's messages carry, each once."""
        is_hidden = metadata.compression and metadata.HasField("num_messages_in_batch")
        if not is_hidden and not any(name in entry for name in self._fields):
            return ()
        found: dict[tuple[int, int], SpanContext] = {}
        for properties in islice(message_properties(entry, metadata), LINKS_MAX):
            carried = self._extract(properties, self._nowhere)
            context = self._trace.get_current_span(carried).get_span_context()
            if context.is_valid:
                found[context.trace_id, context.span_id] = context
        return list(found.values())

    def start(
        self,
        operation: str,
        topic: TopicName,
        contexts: Sequence[SpanContext],
        kind: SpanKind,
        began: float,
        attributes: dict[str, AttributeValue],
    ) -> Span:
        """Start a span at `began` (`perf_counter`): child of one context, or linked to several."""
        trace, parent = self._trace, self._nowhere
        if len(contexts) == 1:
            parent = trace.set_span_in_context(trace.NonRecordingSpan(contexts[0]), parent)
            contexts = ()
        attributes["messaging.system"] = "pulsar"
        attributes["messaging.operation.name"] = operation
        name = str(topic)
        if topic.partition_index >= 0:
            name = name.removesuffix(f"-partition-{topic.partition_index}")
            attributes["messaging.destination.partition.id"] = str(topic.partition_index)
        attributes["messaging.destination.name"] = name
        elapsed_ns = int((time.perf_counter() - began) * 1e9)
        return self._tracer.start_span(
            f"{operation} {name}",
            parent,
            kind,
            attributes,
            [trace.Link(context) for context in contexts],
            time.time_ns() - elapsed_ns,
        )

    def of_subscription(self, topic: TopicName, name: str) -> SubscriptionTracing:
        return SubscriptionTracing(self, topic, name)

    @property
    def kinds(self) -> type[SpanKind]:
        return self._trace.SpanKind


class SubscriptionTracing:
    """The spans of one subscription."""

    def __init__(self, tracing: Tracing, topic: TopicName, name: str) -> None:
        self._tracing = tracing
        self._topic = topic
        self._name = name
        self._delivered: dict[Position, Sequence[SpanContext]] = {}
        self._unanswered: dict[int, list[Span]] = {}
        """Spans of acks by the identity of their receipt, which lives until it is answered."""

    def dispatched(self, consumer_name: str, entries: Iterable[Entry], since: float) -> None:
        """Record spans of entries that a consumer's connection has now."""
        for entry in entries:
            contexts: Sequence[SpanContext] = ()
            with suppress(CorruptRecordError):
                contexts = self._tracing.contexts(entry.payload, entry.metadata)
            if not contexts:
                continue
            kind = self._tracing.kinds.PRODUCER
            self._start("dispatch", consumer_name, entry.position, contexts, kind, since).end()
            self._delivered[entry.position] = contexts
            if len(self._delivered) > DELIVERED_MAX:
                del self._delivered[next(iter(self._delivered))]

    def acked(
        self, consumer_name: str, positions: Iterable[Position], since: float, receipt: object
    ) -> None:
        """Start spans of acked entries.

        They end with `answered`, or at once if `receipt` is None.
        """
        spans = [
            self._start(
                "ack",
                consumer_name,
                position,
                contexts,
                self._tracing.kinds.SERVER,
                since,
                "settle",
            )
            for position in positions
            if (contexts := self._delivered.pop(position, None)) is not None
        ]
        if receipt is not None and spans:
            self._unanswered[id(receipt)] = spans
            return
        for span in spans:
            span.end()

    def acked_through(
        self, consumer_name: str, position: Position, since: float, receipt: object
    ) -> None:
        """As `acked`, for all entries up to this one."""
        acked = [delivered for delivered in self._delivered if delivered <= position]
        self.acked(consumer_name, acked, since, receipt)

    def answered(self, receipt: object, error: Exception | None) -> None:
        """End the spans of acks that became durable, or failed to."""
        for span in self._unanswered.pop(id(receipt), ()):
            if error is None:
                span.end()
            else:
                self._tracing.failed(span, error)

    def _start(
        self,
        operation: str,
        consumer_name: str,
        position: Position,
        contexts: Sequence[SpanContext],
        kind: SpanKind,
        since: float,
        operation_type: str = "",
    ) -> Span:
        attributes: dict[str, AttributeValue] = {
            "messaging.destination.subscription.name": self._name,
            "messaging.client.id": consumer_name,
            "messaging.message.id": _message_id(self._topic, position),
        }
        if operation_type:
            attributes["messaging.operation.type"] = operation_type
        return self._tracing.start(operation, self._topic, contexts, kind, since, attributes)


def _message_id(topic: TopicName, position: Position) -> str:
    """A message id as Pulsar's clients print it."""
    return f"{position.ledger_id}:{position.entry_id}:{topic.partition_index}"
