"""Samples the counters of topics and their clients, to compute rates.

Edge only in that it reads live objects. The objects count, and know no rates. The broker's upkeep
and requests for statistics take samples; these are dropped together with their object.
"""

from __future__ import annotations

import asyncio
from array import array
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from ackgate.broker.stats.ack_state import Headroom, headroom_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackgate.broker.topic import Consumer, Producer, SubscriptionDriver, Topic
    from ackgate.cursor import Position

    Counting: TypeAlias = Topic | Producer | SubscriptionDriver | Consumer

# ---- The last minute of some numbers, in a handful of samples: what rates and forecasts are made of
#
# The numbers are noted now and then; in between they cost nothing. Samples closer
# than `SPACING_MS` are not taken, those older than `WINDOW_MS` go, and while nothing changes the last
# one only moves, so that an idle subscription keeps two::
#
#     numbers   |            x----x                  window start
#               |        x                               v
#               |  x  x                            |--x--.-----x--x--> now
#                                                  gone   kept (between two: a straight line)

SPACING_MS: Final = 1_000
"""Shortest time between two samples: `--watch` may ask as often as it likes."""

WINDOW_MS: Final = 60_000
"""How far back a rate looks; Pulsar averages over its minute of statistics too."""

RATE_SPAN_MS_MIN: Final = 200
"""A rate over less time would be noise, so it is 0."""


class Sample(NamedTuple):
    """Some numbers at one time."""

    at_ms: int
    numbers: tuple[float, ...]


class History:
    """Samples of one object's numbers, oldest first. At most one a second of the last minute."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: list[Sample] = []

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The samples that are kept, oldest first."""
        return tuple(self._samples)

    def note(self, now_ms: int, numbers: tuple[float, ...]) -> None:
        """Record the numbers of now. Cheap. Ignored if the last sample is too recent."""
        samples = self._samples
        if samples and now_ms - samples[-1].at_ms < SPACING_MS:
            return
        sample = Sample(now_ms, numbers)
        if len(samples) > 1 and samples[-1].numbers == samples[-2].numbers == numbers:
            samples[-1] = sample
        else:
            samples.append(sample)
        # The newest sample before the window stays: the line from it enters the window.
        while len(samples) > 1 and samples[1].at_ms <= now_ms - WINDOW_MS:
            del samples[0]

    def rates(self, now_ms: int, numbers: tuple[float, ...]) -> tuple[float, ...]:
        """Growth per second of each number over the window. `numbers`: what they are now."""
        if not self._samples:
            return (0.0,) * len(numbers)
        base = self._at(max(now_ms - WINDOW_MS, self._samples[0].at_ms))
        span_ms = now_ms - base.at_ms
        if span_ms < RATE_SPAN_MS_MIN:
            return (0.0,) * len(numbers)
        return tuple(
            (after - before) * 1000 / span_ms
            for before, after in zip(base.numbers, numbers, strict=True)
        )

    def _at(self, at_ms: int) -> Sample:
        """The numbers at a time, interpolated between the two samples around it."""
        before = self._samples[0]
        for after in self._samples:
            if after.at_ms > at_ms:
                share = (at_ms - before.at_ms) / (after.at_ms - before.at_ms)
                return Sample(
                    at_ms,
                    tuple(
                        low + (high - low) * share
                        for low, high in zip(before.numbers, after.numbers, strict=True)
                    ),
                )
            before = after
        return before


# ---- Up to an hour of one number, for a picture

TREND_POINTS_MAX: Final = 60
"""Points take a kilobyte for each subscription that has ack ranges, or had some."""

TREND_SPACING_MS_MAX: Final = 60_000
"""Widest spacing. Points are dense at first; when there are too many, every second one is
dropped."""


class RangesTrend:
    """One number over the last hour, in a bounded number of points."""

    __slots__ = ("_spacing_ms", "_times", "_values")

    def __init__(self) -> None:
        self._times = array("q")
        self._values = array("q")
        self._spacing_ms = SPACING_MS

    @property
    def points(self) -> tuple[tuple[int, int], ...]:
        """The points as (time in ms, value), oldest first."""
        return tuple(zip(self._times, self._values, strict=True))

    def note(self, now_ms: int, value: int) -> None:
        """Record the number of now. Ignored if the last point is too recent.

        While the number does not change, only the last point moves.
        """
        times, values = self._times, self._values
        if len(values) > 1 and values[-1] == values[-2] == value:
            times[-1] = now_ms
            return
        if times and now_ms - times[-1] < self._spacing_ms:
            return
        times.append(now_ms)
        values.append(value)
        if len(times) > TREND_POINTS_MAX:
            if self._spacing_ms < TREND_SPACING_MS_MAX:
                self._spacing_ms *= 2
                self._times, self._values = times[::2], values[::2]
            else:
                del times[0], values[0]


class Holding(NamedTuple):
    """The entry that a consumer has had for the longest time."""

    position: Position
    since_ms: int
    """It was sent by this time, to within `SAMPLE_SECONDS`."""


SAMPLE_SECONDS: Final = 10.0
"""How often upkeep samples everything."""

TOPICS_AT_ONCE: Final = 10
"""Topics that are sampled before other tasks get their turn."""

_HEADROOM: Final = slice(5, 7)
"""Where the `Headroom` is among the numbers of a subscription."""


class StatsSampler:
    """The last minute of every topic, subscription, consumer and producer of a broker."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._histories: WeakKeyDictionary[Counting, History] = WeakKeyDictionary()
        self._trends: WeakKeyDictionary[SubscriptionDriver, RangesTrend] = WeakKeyDictionary()
        """Only of subscriptions that have ack ranges, or had some."""
        self._holdings: WeakKeyDictionary[Consumer, Holding] = WeakKeyDictionary()

    async def sample(self, topics: Iterable[Topic]) -> None:
        """Record all counters. Yields to the event loop now and then."""
        for number, topic in enumerate(topics):
            if number % TOPICS_AT_ONCE == 0:
                await asyncio.sleep(0)
            now_ms = self._clock_ms()
            self._note(topic, topic_numbers(topic), now_ms)
            for producer in topic.producers:
                self._note(producer, producer_numbers(producer), now_ms)
            for subscription in topic.subscriptions.values():
                self._note(subscription, subscription_numbers(subscription), now_ms)
                self._note_ranges(subscription, now_ms)
                for consumer in subscription.consumers:
                    self._note(consumer, consumer_numbers(consumer), now_ms)
                    self.oldest_unacked(consumer)

    def rates(self, counting: Counting, numbers: tuple[float, ...]) -> tuple[float, ...]:
        """Growth per second of each of the object's numbers over the last minute."""
        now_ms = self._clock_ms()
        rates = self._history(counting).rates(now_ms, numbers)
        self._note(counting, numbers, now_ms)
        return rates

    def headrooms(self, subscription: SubscriptionDriver) -> list[tuple[int, Headroom]]:
        """The subscription's headroom over the last minute, as (time in ms, headroom).

        The last one is of now.
        """
        now = (self._clock_ms(), headroom_of(subscription))
        return [*self.headrooms_kept(subscription), now]

    def headrooms_kept(self, subscription: SubscriptionDriver) -> list[tuple[int, Headroom]]:
        """As `headrooms`, without one of now, so that the ranges need not be counted."""
        history = self._histories.get(subscription)
        samples = () if history is None else history.samples
        return [(s.at_ms, Headroom(*map(int, s.numbers[_HEADROOM]))) for s in samples]

    def ranges_history(self, subscription: SubscriptionDriver) -> tuple[tuple[int, int], ...]:
        """(time in ms, number of ack ranges) over up to an hour; empty if there never were any."""
        self._note_ranges(subscription, self._clock_ms())
        trend = self._trends.get(subscription)
        return () if trend is None else trend.points

    def oldest_unacked(self, consumer: Consumer) -> Holding | None:
        """The entry that the consumer has had for the longest time, or None."""
        first = consumer.subscription.core.first_in_flight(consumer)
        known = self._holdings.get(consumer)
        if first is None:
            if known is not None:
                del self._holdings[consumer]
            return None
        if known is None or known.position != first:
            sent_ms = consumer.subscription.core.counts_of(consumer).last_sent_ms
            known = self._holdings[consumer] = Holding(first, sent_ms or self._clock_ms())
        return known

    def _note_ranges(self, subscription: SubscriptionDriver, now_ms: int) -> None:
        ranges, trend = subscription.cursor.range_count, self._trends.get(subscription)
        if trend is None:
            if not ranges:
                return
            trend = self._trends[subscription] = RangesTrend()
        trend.note(now_ms, ranges)

    def _note(self, counting: Counting, numbers: tuple[float, ...], now_ms: int) -> None:
        self._history(counting).note(now_ms, numbers)

    def _history(self, counting: Counting) -> History:
        history = self._histories.get(counting)
        if history is None:
            history = self._histories[counting] = History()
        return history


def topic_numbers(topic: Topic) -> tuple[float, ...]:
    """The topic's counters: messages in, bytes in."""
    return topic.messages_in, topic.bytes_in


def producer_numbers(producer: Producer) -> tuple[float, ...]:
    """The producer's counters: messages in, bytes in."""
    return producer.messages_in, producer.bytes_in


def consumer_numbers(consumer: Consumer) -> tuple[float, ...]:
    """The consumer's counters: messages out, bytes out, messages acked, messages redelivered."""
    counts = consumer.subscription.core.counts_of(consumer)
    return (
        counts.messages_out,
        consumer.bytes_out,
        counts.messages_acked,
        counts.messages_redelivered,
    )


def subscription_numbers(subscription: SubscriptionDriver) -> tuple[float, ...]:
    """The subscription's counters: messages out, bytes out, acked, redelivered, expired.

    Then come the two numbers of its `Headroom`.
    """
    counts = subscription.core.counts
    return (
        counts.messages_out,
        subscription.bytes_out,
        counts.messages_acked,
        counts.messages_redelivered,
        subscription.core.entries_expired,
        *headroom_of(subscription),
    )
