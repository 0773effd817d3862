"""What the clients of a recorded run publish, acknowledge and know of it.

Edge: threads that speak to a broker through the real pulsar-client. What a consumer does with a message
follows from the message's number and its subscription's rule alone, so that it decides alike whenever
the message comes; what is acked at the end is then the same, however often the broker is killed.
"""

from __future__ import annotations

import enum
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import pulsar

RECEIVE_MS = 50
NACK_DELAY_MS = 100
HOUR_MS = 3_600_000


class MessageAt(NamedTuple):
    """Where the client says that a message is."""

    ledger_id: int
    entry_id: int
    batch_index: int = 0

    @classmethod
    def of(cls, message_id: pulsar.MessageId) -> MessageAt:
        return cls(message_id.ledger_id(), message_id.entry_id(), max(0, message_id.batch_index()))


@dataclass(frozen=True, slots=True)
class Sent:
    """A message as its producer made it."""

    number: int
    key: str | None = None
    deliver_at_ms: int | None = None
    event_time_ms: int | None = None
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def payload(self) -> bytes:
        return str(self.number).encode()


class Reaction(enum.Enum):
    """What a consumer does with a message."""

    ACK = enum.auto()
    """With others of a window, in any order."""
    NACK_ONCE = enum.auto()
    """The first time that it comes; then as ACK."""
    LEAVE = enum.auto()
    """Keep it, and never ack it."""
    HOLD = enum.auto()
    """Ack it when the gate is shut, or at the end."""
    ACK_UP_TO = enum.auto()
    """Cumulatively."""
    PASS = enum.auto()
    """A later cumulative ack will cover it, or none."""


@dataclass(slots=True)
class SubscriptionRecord:
    """What the consumers of a subscription know."""

    name: str
    kind: pulsar.ConsumerType
    rule: Callable[[Sent], Reaction]
    consumers: int = 1
    receiver_queue: int = 100
    acked: set[MessageAt] = field(default_factory=set)
    """Individually."""
    acked_through: MessageAt | None = None
    """Cumulatively."""
    nacked: set[MessageAt] = field(default_factory=set)
    deliveries: dict[MessageAt, list[str]] = field(default_factory=dict)
    """The consumers that it was given to, in order."""
    gates_shut: int = 0
    """How often a consumer has seen the gate shut, and has acked what it held."""

    def is_acked(self, at: MessageAt) -> bool:
        """Whether a client has acked it, which the broker applied at the clean end if not before."""
        return at in self.acked or (self.acked_through is not None and at <= self.acked_through)


@dataclass(slots=True)
class TopicRecord:
    """What the clients of a topic know."""

    name: str
    subscriptions: dict[str, SubscriptionRecord]
    batch_messages: int = 1
    published: dict[MessageAt, Sent] = field(default_factory=dict)
    """Confirmed to the producer."""
    seen: dict[MessageAt, Sent] = field(default_factory=dict)
    """Given to consumers: copies, too, that were stored when the broker was killed and sent again."""
    sent: dict[int, Sent] = field(default_factory=dict)
    """By number, confirmed or not yet."""

    @property
    def full_name(self) -> str:
        return f"persistent://public/default/{self.name}"

    @property
    def known(self) -> dict[MessageAt, Sent]:
        """Every message that some client can name."""
        return self.published | self.seen

    @property
    def entries(self) -> dict[tuple[int, int], list[MessageAt]]:
        """Known messages by their entry."""
        entries: dict[tuple[int, int], list[MessageAt]] = {}
        for at in sorted(self.known):
            entries.setdefault(at[:2], []).append(at)
        return entries


class Publishing:
    """A producer of a topic."""

    def __init__(self, client: pulsar.Client, topic: TopicRecord) -> None:
        self._topic = topic
        self._lock = threading.Condition()
        self._faults: list[pulsar.Result] = []
        self._producer = client.create_producer(
            topic.name,
            producer_name=f"producer-of-{topic.name}",
            batching_enabled=topic.batch_messages > 1,
            batching_max_messages=max(2, topic.batch_messages),
            batching_max_publish_delay_ms=60_000,
            send_timeout_millis=0,
        )

    def send(self, message: Sent) -> None:
        """Without waiting."""

        def confirmed(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
            with self._lock:
                if result == pulsar.Result.Ok:
                    self._topic.published[MessageAt.of(message_id)] = message
                else:
                    self._faults.append(result)
                self._lock.notify_all()

        self._topic.sent[message.number] = message
        self._producer.send_async(
            message.payload,
            confirmed,
            properties=message.properties,
            partition_key=message.key,
            event_timestamp=message.event_time_ms,
            deliver_at=message.deliver_at_ms,
        )

    def wait(self, count: int, *, seconds: float = 20.0) -> None:
        """Until so many are confirmed, over the whole run."""
        with self._lock:
            is_so = self._lock.wait_for(
                lambda: self._faults or len(self._topic.published) >= count, seconds
            )
            assert is_so, f"{self._topic.name}: {len(self._topic.published)} of {count} confirmed"
            assert not self._faults

    def flush(self) -> None:
        """Until all are confirmed."""
        self._producer.flush()
        self.wait(len(self._topic.sent))


class Consuming:
    """A consumer of a subscription, on a thread of its own."""

    def __init__(
        self,
        client: pulsar.Client,
        topic: TopicRecord,
        subscription: SubscriptionRecord,
        number: int,
        *,
        window: int,
        seed: str,
        is_gate_shut: Callable[[], bool],
    ) -> None:
        self.name = f"{subscription.name}-{number}"
        self._topic = topic
        self._record = subscription
        self._window = window
        self._random = random.Random(seed)
        self._is_gate_shut = is_gate_shut
        self._to_ack: list[pulsar.Message] = []
        self._held: list[pulsar.Message] = []
        self._drains = threading.Event()
        self._ends = threading.Event()
        self._fault: BaseException | None = None
        self._consumer = client.subscribe(
            topic.name,
            subscription.name,
            consumer_type=subscription.kind,
            consumer_name=self.name,
            initial_position=pulsar.InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=NACK_DELAY_MS,
            receiver_queue_size=subscription.receiver_queue,
            batch_index_ack_enabled=True,
        )
        self._thread = threading.Thread(target=self._guarded, daemon=True)
        self._thread.start()

    @property
    def drains(self) -> bool:
        """Whether it acks what it holds."""
        return self._drains.is_set()

    def drain(self) -> None:
        """Ack what is held, too, from now on."""
        self._drains.set()

    def check(self) -> None:
        """Raise what went wrong."""
        if self._fault is not None:
            raise self._fault

    def close(self) -> None:
        """Stop, with everything acked on its way to the broker."""
        self._ends.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        self.check()
        self._consumer.close()

    def _guarded(self) -> None:
        try:
            while not self._ends.is_set():
                try:
                    message = self._consumer.receive(RECEIVE_MS)
                except pulsar.Timeout:
                    self._when_idle()
                else:
                    self._react(message)
        except BaseException as fault:
            self._fault = fault

    def _react(self, message: pulsar.Message) -> None:
        sent = self._topic.sent[int(message.data())]
        at = MessageAt.of(message.message_id())
        self._topic.seen[at] = sent
        self._record.deliveries.setdefault(at, []).append(self.name)
        match self._record.rule(sent):
            case Reaction.ACK:
                self._to_ack.append(message)
            case Reaction.NACK_ONCE if at not in self._record.nacked:
                self._record.nacked.add(at)
                self._consumer.negative_acknowledge(message)
            case Reaction.NACK_ONCE:
                self._to_ack.append(message)
            case Reaction.HOLD:
                self._held.append(message)
            case Reaction.ACK_UP_TO:
                self._consumer.acknowledge_cumulative(message)
                self._record.acked_through = max(at, self._record.acked_through or at)
            case Reaction.LEAVE | Reaction.PASS:
                pass
        if len(self._to_ack) >= self._window:
            self._ack(self._to_ack)

    def _when_idle(self) -> None:
        self._ack(self._to_ack)
        if self._held and self._drains.is_set():
            self._ack(self._held)
        elif self._held and self._is_gate_shut():
            self._record.gates_shut += 1
            self._ack(self._held)

    def _ack(self, messages: list[pulsar.Message]) -> None:
        """In any order."""
        self._random.shuffle(messages)
        while messages:
            message = messages.pop()
            self._consumer.acknowledge(message)
            self._record.acked.add(MessageAt.of(message.message_id()))
