"""Producers and consumers that speak the protocol themselves, so that every receipt is seen.

Edge: each has one connection per life of the broker, or per owner of the topic. How a subscription
acks is its `Style`; what it does next is chosen by its own generator. A round trip on the connection
paces the work, and proves that the acks before it were applied.

What waits for its answer when the connection is given up (`UnderWay`) goes on waiting: an owner that
was paused may still answer, and is held to what it says.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import random
import time
from typing import TYPE_CHECKING

from ackgate.broker.wire.requests import SubscriptionType
from tests.chaos.batches import pack, unpack
from tests.chaos.facts import MessageKey, OrderFacts, ViolationError
from tests.support.wire_client import EARLIEST, RefusedError, WireClient

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from ackgate.cursor import Position
    from tests.chaos.facts import SubscriptionFacts, TopicFacts
    from tests.support.wire_client import WireConsumer, WireProducer

PERMITS = 1_000_000
ACKS_UNDER_WAY_MAX = 20
REFUSED_PAUSE_SECONDS = 0.05
MESSAGES_PER_CYCLE_MAX = 1_500
MESSAGES_PER_BATCH = 8
BACKLOG_MAX = 2_000
"""Unacked messages of one subscription; above it little more is published, so that cycles stay
short."""


class Style(enum.Enum):
    """How a subscription is consumed and acked."""

    SHARED = "shared"
    KEY_SHARED = "key_shared"
    EXCLUSIVE = "exclusive"
    FAILOVER = "failover"
    BATCH_INDEX = "batch_index"

    @property
    def subscription_type(self) -> SubscriptionType:
        """The protocol's type."""
        return _TYPES[self]

    @property
    def is_ordered(self) -> bool:
        """Whether all messages come in the order of publishing, and not only those of one key."""
        return self in {Style.EXCLUSIVE, Style.FAILOVER}

    @property
    def is_cumulative(self) -> bool:
        """Whether it acks cumulatively, most of the time."""
        return self in {Style.EXCLUSIVE, Style.FAILOVER}


_TYPES = {
    Style.SHARED: SubscriptionType.SHARED,
    Style.KEY_SHARED: SubscriptionType.KEY_SHARED,
    Style.EXCLUSIVE: SubscriptionType.EXCLUSIVE,
    Style.FAILOVER: SubscriptionType.FAILOVER,
    Style.BATCH_INDEX: SubscriptionType.SHARED,
}


class UnderWay:
    """Requests of one connection that wait for their answers."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self.refused = 0
        self._refusals: list[BaseException] = []
        self._violations: list[BaseException] = []

    def start(self, request: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Ask."""
        task = asyncio.create_task(request)
        self.tasks.add(task)
        task.add_done_callback(self._on_answered)
        return task

    async def settle(self, *, may_be_refused: bool) -> None:
        """Every answer has come, or never will. Raises `ViolationError` for one that is wrong."""
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if self._violations:
            raise self._violations[0]
        if self._refusals and not may_be_refused:
            raise ViolationError(f"refused: {self._refusals}")

    def _on_answered(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, RefusedError):
            self.refused += 1
            self._refusals.append(error)
        elif isinstance(error, ViolationError):
            self._violations.append(error)


class Publisher:
    """Publishes to one topic, batches among single messages where the topic has them."""

    def __init__(self, topic: TopicFacts, rng: random.Random, *, batches: bool) -> None:
        self.topic = topic
        self._rng = rng
        self._has_batches = batches
        self._producer: WireProducer
        self.client: WireClient
        self.under_way = UnderWay()

    async def attach(self, port: int) -> None:
        """Connect to the broker that serves the topic now."""
        self.client = await WireClient.connect("127.0.0.1", port)
        self.under_way = UnderWay()
        self._producer = await self.client.producer(self.topic.name)

    async def publish(self, count: int) -> Position:
        """One entry of `count` messages, confirmed."""
        payloads = [self.topic.new_payload() for _ in range(count)]
        if count == 1:
            position = await self._producer.send(
                payloads[0], partition_key=f"k{self._rng.randrange(50)}"
            )
        else:
            position = await self._producer.send(pack(payloads), num_messages_in_batch=count)
        for index, payload in enumerate(payloads):
            self.topic.exists(MessageKey(*position, index), payload)
        return position

    async def work(
        self,
        messages_max: int = MESSAGES_PER_CYCLE_MAX,
        *,
        pause_seconds_max: float = 0.0,
        may_be_refused: bool = False,
    ) -> None:
        """Publish in bursts, each confirmed before the next, with pauses between them."""
        published = 0
        while published < messages_max:
            is_behind = any(len(each.open) > BACKLOG_MAX for each in self.topic.subscriptions)
            burst = [
                self._rng.randrange(1, MESSAGES_PER_BATCH + 1) if self._has_batches else 1
                for _ in range(1 if is_behind else self._rng.choice((1, 5, 30)))
            ]
            sends = [self.under_way.start(self._publish(count)) for count in burst]
            await asyncio.wait(sends)
            for send in sends:
                error = send.exception()
                if error is not None and not (may_be_refused and isinstance(error, RefusedError)):
                    raise error
            if any(send.exception() for send in sends):
                await asyncio.sleep(REFUSED_PAUSE_SECONDS)
            elif pause_seconds_max:
                await asyncio.sleep(self._rng.uniform(0, pause_seconds_max))
            published += sum(burst)

    async def _publish(self, count: int) -> None:
        await self.publish(count)

    async def finish(self) -> None:
        """Close the producer when everything is answered."""
        await asyncio.gather(*self.under_way.tasks, return_exceptions=True)
        await self.leave()

    async def leave(self) -> None:
        """Close the producer, whatever is not answered yet."""
        await self._producer.close()


class Subscriber:
    """One subscription: consumes, acks in its style, sends back, and can say what it was given."""

    def __init__(
        self, topic: TopicFacts, facts: SubscriptionFacts, style: Style, rng: random.Random
    ) -> None:
        self.topic = topic
        self.facts = facts
        self.style = style
        self._rng = rng
        self._cycle = 0
        self._consumer: WireConsumer
        self._seen = 0
        self._held: dict[Position, list[MessageKey]] = {}
        """What this consumer has been given and has not acked, by entry."""
        self._order = OrderFacts(facts.name)
        self.under_way = UnderWay()
        self.client: WireClient

    # ---------------------------------------------------------------- a new life of the broker

    async def attach(self, port: int, cycle: int) -> None:
        """Connect as the only consumer, and take whatever there is."""
        self._cycle, self._seen = cycle, 0
        self._held.clear()
        self._order = OrderFacts(f"{self.topic.name}, {self.facts.name}")
        self.under_way = UnderWay()
        self.client = await WireClient.connect("127.0.0.1", port)
        self._consumer = await self.client.subscribe(
            self.topic.name, self.facts.name, self.style.subscription_type, EARLIEST
        )
        self._consumer.flow(PERMITS)

    async def first_delivery(self) -> None:
        """Wait for it."""
        await self.client.until(lambda: bool(self._consumer.received))

    async def verify(
        self, last: Position, *, applied_at: float | None = None, patience_seconds: float = 0.0
    ) -> int:
        """Hold everything up to the entry at `last` against the facts; return how much it was.

        `patience_seconds`: what is not there when `last` comes may come that much later.
        """
        received = self._consumer.received
        await self.client.until(lambda: any(each.position >= last for each in received[-100:]))
        end = MessageKey(*last, 2**31)
        must_come = {key for key in self.facts.open if key <= end}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_seconds):
                await self.client.until(lambda: must_come <= self._delivered(last))
        delivered = self._delivered(last)
        self.facts.verify_deliveries(delivered, end, applied_at=applied_at)
        self._take_new()
        return len(delivered)

    def _delivered(self, last: Position) -> set[MessageKey]:
        return {
            key
            for message in self._consumer.received
            if message.position <= last
            for key, _ in unpack(message)
        }

    # ---------------------------------------------------------------- work

    async def work(self, *, pause_seconds_max: float = 0.0) -> None:
        """Until the connection ends, with pauses between what it does."""
        while True:
            if pause_seconds_max:
                await asyncio.sleep(self._rng.uniform(0, pause_seconds_max))
            self._take_new()
            if not self._held:
                seen = self._seen
                await self.client.until(lambda: len(self._consumer.received) > seen)  # noqa: B023
            elif self._rng.random() < 0.1:
                await self._send_back()
            elif self.style.is_cumulative and self._rng.random() < 0.8:
                await self._ack_cumulatively()
            elif self.style is Style.BATCH_INDEX:
                await self._ack_parts()
            else:
                await self._ack_some()

    async def ack_everything(self) -> None:
        """The end of the run: with receipts, whatever is left."""
        self._take_new()
        positions = list(self._held)
        keys = [key for keys in self._held.values() for key in keys]
        self.facts.ack_sent(keys)
        if positions:
            await self._consumer.ack(*positions)
        self.facts.ack_durable(keys)
        self._held.clear()

    async def finish(self) -> None:
        """Close the consumer when everything is answered."""
        await asyncio.gather(*self.under_way.tasks, return_exceptions=True)
        await self.leave()

    async def leave(self) -> None:
        """Close the consumer, whatever is not answered yet."""
        await self._consumer.close()

    def _take_new(self) -> None:
        received = self._consumer.received
        for message in received[self._seen :]:
            keys = []
            for key, payload in unpack(message):
                self.topic.exists(key, payload)
                self.facts.delivered(key)
                keys.append(key)
            in_order_of = "" if self.style.is_ordered else message.metadata.partition_key
            if self.style.is_ordered or self.style is Style.KEY_SHARED:
                self._order.delivered(message.position, in_order_of)
            self._held[message.position] = keys
        self._seen = len(received)

    def _pick(self) -> list[Position]:
        """Some entries in random order. A few are left alone for some cycles: they make holes."""
        spared = self._cycle // 3 % 5
        willing = [position for position in self._held if position.entry_id % 5 != spared]
        count = min(len(willing), self._rng.choice((1, 3, 10, 50)))
        return self._rng.sample(willing, count)

    async def _ack_some(self) -> None:
        positions = self._pick()
        keys = [key for position in positions for key in self._held.pop(position)]
        if positions:
            await self._ack(positions, keys)
        else:
            await self.round_trip()

    async def _ack_parts(self) -> None:
        for position in self._pick()[:10]:
            keys = self._held.pop(position)
            acked = [key for key in keys if self._rng.random() < 0.6]
            rest = [key for key in keys if key not in acked]
            if rest:
                self._held[position] = rest
            if acked:
                mask = sum(1 << key.batch_index for key in rest)
                await self._ack([position], acked, unacked_mask=mask or None)
        await self.round_trip()

    async def _ack_cumulatively(self) -> None:
        in_order = sorted(self._held)
        last = in_order[self._rng.randrange(max(1, len(in_order) // 2))]
        for position in in_order:
            if position <= last:
                del self._held[position]
        keys = self.facts.through(MessageKey(*last, 2**31))
        await self._ack([last], keys, is_cumulative=True)

    async def _ack(
        self,
        positions: Sequence[Position],
        keys: list[MessageKey],
        *,
        is_cumulative: bool = False,
        unacked_mask: int | None = None,
    ) -> None:
        self.facts.ack_sent(keys)
        if self._rng.random() < 0.3:
            self._consumer.ack_without_receipt(
                *positions, is_cumulative=is_cumulative, unacked_mask=unacked_mask
            )
            await self.round_trip()
            self.facts.ack_applied(keys, time.monotonic())
            return

        consumer, life, sent_at = self._consumer, self.facts.life, time.monotonic()

        async def with_receipt() -> None:
            await consumer.ack(*positions, is_cumulative=is_cumulative, unacked_mask=unacked_mask)
            self.facts.receipt(keys, life, sent_at)

        self.under_way.start(with_receipt())
        if len(self.under_way.tasks) >= ACKS_UNDER_WAY_MAX:
            await asyncio.wait(self.under_way.tasks, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(0)

    async def _send_back(self) -> None:
        if self.style.is_cumulative:
            await self.round_trip()
            return
        positions = self._pick()[:5]
        for position in positions:
            del self._held[position]
        if positions:
            self._consumer.redeliver(*positions)
        await self.round_trip()

    async def round_trip(self) -> None:
        """What was sent before has been applied when this returns."""
        await self._consumer.stats()
