"""The plan of the generated data: messages per topic, ledgers, and the acked share.

Pure. The same plan with the same seed always produces the same data.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from ackgate.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

TENANT: Final = "public"
NAMESPACE: Final = "default"

MESSAGES_PER_MS: Final = 10
"""Messages per millisecond of publish time, on each topic."""

LEDGERS_PER_TOPIC_MAX: Final = 5_000
"""Most ledgers of one topic. Its node stays below the store's size limit, with some room left."""

START_MS: Final = 1_767_225_600_000
"""2026-01-01, 00:00 UTC."""


@dataclass(frozen=True, slots=True)
class GeneratePlan:
    """Options of the job. An invalid one raises `ConfigurationError`, which names the option."""

    messages: int
    seed: int
    topics: int = 1
    skew: float = 0.0
    """Share of the messages on the first topic, 0 to 1. 0: all topics get equally many."""
    subscriptions: int = 1
    """Subscriptions of each topic."""
    keys: int = 1_000
    """Number of different keys. 0: messages have no key."""
    properties: int = 0
    """Properties per message, named ``property-0``, ``property-1`` and so on."""
    event_seconds_max: int = 0
    """Longest time from event to publish. 0: messages have no event time."""
    delayed_share: float = 0.0
    delay_seconds_max: int = 86_400
    batch_size: int = 1
    payload_bytes: int = 100
    ledger_entries: int = 50_000
    acked_share: float = 0.0
    """Share of each topic, from its beginning, that is acked except for the holes; 0 to 1."""
    holes: int = 100
    """Most unacked entries inside the acked part, for each subscription."""
    start_ms: int = START_MS
    """Publish time of the first message of each topic, in ms since 1970."""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise ConfigurationError(f"{_option(name)} must be at least {least}")
        for name in ("skew", "delayed_share", "acked_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigurationError(f"{_option(name)} is a share: 0 to 1")
        if self.batch_size > 1 and self.delayed_share:
            raise ConfigurationError(
                "delayed messages are not sent in batches: --delayed-share requires --batch-size 1"
            )
        if self.event_seconds_max * 1000 > self.start_ms:
            raise ConfigurationError("--event-seconds-max reaches back before 1970")
        ledgers = max(len(list(topic.ledgers())) for topic in self.each_topic())
        if ledgers > LEDGERS_PER_TOPIC_MAX:
            raise ConfigurationError(
                f"a topic would have {ledgers:,} ledgers, and its node holds "
                f"{LEDGERS_PER_TOPIC_MAX:,}: take more --topics or --ledger-entries"
            )

    def each_topic(self) -> Iterator[TopicPlan]:
        """Yield the plan of each topic, in the order in which they are written."""
        first = round(self.messages * self.skew) if self.skew and self.topics > 1 else None
        shared, sharing = self.messages - (first or 0), self.topics - (first is not None)
        for number in range(self.topics):
            if number == 0 and first is not None:
                count = first
            else:
                at = number - (first is not None)
                count = shared * (at + 1) // sharing - shared * at // sharing
            yield TopicPlan(number, f"generated-{number}", count, self)

    def subscription_names(self) -> list[str]:
        return [f"subscription-{number}" for number in range(self.subscriptions)]


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The part of the plan that concerns one topic."""

    number: int
    name: str
    messages: int
    plan: GeneratePlan

    @property
    def entries(self) -> int:
        """Number of entries. Each holds one batch; the last batch may be smaller."""
        return -(-self.messages // self.plan.batch_size)

    @property
    def entries_acked(self) -> int:
        """Number of entries in the acked part, holes included."""
        return round(self.entries * self.plan.acked_share)

    def ledgers(self) -> Iterator[tuple[int, int]]:
        """Yield for each ledger its first entry, counted through the topic, and its entry count."""
        for first in range(0, self.entries, self.plan.ledger_entries):
            yield first, min(self.plan.ledger_entries, self.entries - first)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


_LEAST: Final = {
    "messages": 0,
    "seed": 0,
    "topics": 1,
    "subscriptions": 0,
    "keys": 0,
    "properties": 0,
    "event_seconds_max": 0,
    "delay_seconds_max": 1,
    "batch_size": 1,
    "payload_bytes": 0,
    "ledger_entries": 1,
    "holes": 0,
    "start_ms": 0,
}

PLAN_FIELDS: Final = tuple(field.name for field in fields(GeneratePlan))
