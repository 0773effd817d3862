"""One topic of a chaos run, with everybody who publishes to it and consumes it.

A run has two: one of single messages, whose cursor states can be compared position by position, and
one with batches.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Final

from tests.chaos import inspection
from tests.chaos.client_load import ClientLoad
from tests.chaos.facts import SubscriptionFacts, TopicFacts, ViolationError
from tests.chaos.wire_load import Publisher, Style, Subscriber

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.chaos.inspection import CursorState

_ON_BATCHES: Final = frozenset({Style.BATCH_INDEX, Style.FAILOVER})


class Side:
    """See the module."""

    def __init__(self, name: str, styles: Sequence[Style], seed: int, *, batches: bool) -> None:
        facts = {style: SubscriptionFacts(style.value) for style in styles}
        self.client_facts = SubscriptionFacts("pulsar-client")
        self.batches = batches
        self.seed = seed
        self.topic = TopicFacts(name, [*facts.values(), self.client_facts])
        self.publisher = Publisher(self.topic, random.Random(f"{seed}/{name}"), batches=batches)
        self.subscribers = [
            Subscriber(self.topic, each, style, random.Random(f"{seed}/{name}/{style.value}"))
            for style, each in facts.items()
        ]
        self.client: ClientLoad | None = None

    @property
    def wire_facts(self) -> list[SubscriptionFacts]:
        """Of the subscriptions that the wire clients have."""
        return [subscriber.facts for subscriber in self.subscribers]

    async def start_client(self, service_url: str, log_path: Path) -> None:
        """The real client, unless it is there."""
        if self.client is not None:
            return
        loop = asyncio.get_running_loop()
        self.client = await asyncio.to_thread(
            lambda: ClientLoad(
                service_url,
                self.topic,
                self.client_facts,
                f"{self.seed}/{self.topic.name}/client",
                loop,
                log_path=log_path,
                batches=self.batches,
            )
        )

    def verify_states(self, states: dict[str, CursorState]) -> None:
        """Hold what a broker says of its cursors against the facts. Raises `ViolationError`."""
        for facts in self.topic.subscriptions:
            state = states.get(facts.name)
            if state is None:
                raise ViolationError(f"{self.topic.name}: subscription {facts.name} is gone")
            if not self.batches:
                facts.verify_state(state.is_acked, time.monotonic())

    async def look(self, admin_url: str) -> None:
        """Find out which acks of the real client have arrived, and which are durable."""
        if self.batches:
            return
        states = await inspection.cursor_states(admin_url, self.topic.name)
        state, facts = states[self.client_facts.name], self.client_facts
        applied = [key for key in facts.unsure if state.is_acked(key.position)]
        facts.ack_applied(applied, time.monotonic())
        if facts.name in await inspection.written_subscriptions(admin_url, self.topic.name):
            facts.ack_durable(applied)


def both_sides(seed: int, styles: Sequence[Style]) -> list[Side]:
    """The two topics of a run."""
    return [
        Side(
            f"persistent://public/default/{name}",
            [style for style in styles if (style in _ON_BATCHES) is batches],
            seed,
            batches=batches,
        )
        for name, batches in (("single", False), ("batches", True))
    ]


def story(sides: Sequence[Side]) -> str:
    """What has happened so far, for the eye."""
    subscriptions = [facts for side in sides for facts in side.topic.subscriptions]
    return (
        f"so far {sum(len(side.topic.contents) for side in sides)} messages,"
        f" {sum(len(facts.done) for facts in subscriptions)} durable acks,"
        f" {sum(facts.settled_comings_again for facts in subscriptions)} unconfirmed ones lost"
    )
