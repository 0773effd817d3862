"""Remembers how the counters of topics and their clients stood, so that rates can be told.

Edge only in that it looks at live objects. The objects count, and know nothing of rates; samples
are taken by the broker's upkeep and by whoever asks for statistics, and go with their object.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeAlias
from weakref import WeakKeyDictionary

from ackgate.broker.stats.ack_state import Headroom, headroom_of
from ackgate.broker.stats.history import History

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackgate.broker.consumer import Consumer
    from ackgate.broker.producer import Producer
    from ackgate.broker.subscription import Subscription
    from ackgate.broker.topic import Topic

    Counting: TypeAlias = Topic | Producer | Subscription | Consumer

SAMPLE_SECONDS: Final = 10.0
"""How often upkeep samples everything."""

TOPICS_AT_ONCE: Final = 10
"""Topics that are sampled before others get their turn."""

_HEADROOM: Final = slice(5, 7)
"""Where a subscription's numbers hold its `Headroom`."""


class StatsSampler:
    """The last minute of every topic, subscription, consumer and producer of a broker."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._histories: WeakKeyDictionary[Counting, History] = WeakKeyDictionary()

    async def sample(self, topics: Iterable[Topic]) -> None:
        """Note how everything stands. Others get their turn now and then."""
        for number, topic in enumerate(topics):
            if number % TOPICS_AT_ONCE == 0:
                await asyncio.sleep(0)
            now_ms = self._clock_ms()
            self._note(topic, topic_numbers(topic), now_ms)
            for producer in topic.producers:
                self._note(producer, producer_numbers(producer), now_ms)
            for subscription in topic.subscriptions.values():
                self._note(subscription, subscription_numbers(subscription), now_ms)
                for consumer in subscription.consumers.values():
                    self._note(consumer, consumer_numbers(consumer), now_ms)

    def rates(self, counting: Counting, numbers: tuple[float, ...]) -> tuple[float, ...]:
        """Growth per second of each of the object's numbers over the last minute."""
        now_ms = self._clock_ms()
        rates = self._history(counting).rates(now_ms, numbers)
        self._note(counting, numbers, now_ms)
        return rates

    def headrooms(self, subscription: Subscription) -> list[tuple[int, Headroom]]:
        """The subscription's headroom over the last minute, the last one of now."""
        kept = [
            (sample.at_ms, Headroom(*map(int, sample.numbers[_HEADROOM])))
            for sample in self._history(subscription).samples
        ]
        return [*kept, (self._clock_ms(), headroom_of(subscription))]

    def _note(self, counting: Counting, numbers: tuple[float, ...], now_ms: int) -> None:
        self._history(counting).note(now_ms, numbers)

    def _history(self, counting: Counting) -> History:
        history = self._histories.get(counting)
        if history is None:
            history = self._histories[counting] = History()
        return history


def topic_numbers(topic: Topic) -> tuple[float, ...]:
    """Messages in, bytes in."""
    return topic.messages_in, topic.bytes_in


def producer_numbers(producer: Producer) -> tuple[float, ...]:
    """Messages in, bytes in."""
    return producer.messages_in, producer.bytes_in


def consumer_numbers(consumer: Consumer) -> tuple[float, ...]:
    """Messages out, bytes out, messages acked, messages redelivered."""
    return (
        consumer.messages_out,
        consumer.bytes_out,
        consumer.messages_acked,
        consumer.messages_redelivered,
    )


def subscription_numbers(subscription: Subscription) -> tuple[float, ...]:
    """Messages out, bytes out, acked, redelivered, expired; then the `Headroom`."""
    return (
        subscription.messages_out,
        subscription.bytes_out,
        subscription.messages_acked,
        subscription.messages_redelivered,
        subscription.moves.entries_expired,
        *headroom_of(subscription),
    )
