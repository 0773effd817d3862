"""A replay of the delivery journal leads to the cursors that the broker has, with their versions.

Random work on one topic: acks of every kind, moves of the cursor, trims, crashes. The steps of a run
come from its seed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from ackgate.broker.wire.requests import SubscriptionType
from ackgate.cursor import Position
from ackgate.errors import AckGateError
from ackgate.persistence.deliveries.columns import EventKind
from tests.support.virtual_time import run_in_virtual_time
from tests.unit.broker.journal.journal_world import Client, JournalWorld, settle

STEPS = 60
BATCH = 6
WHOLE = (1 << BATCH) - 1


class Work:
    """What is done to one world."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = JournalWorld(
            managedLedgerMaxEntriesPerLedger="30",
            managedLedgerMinLedgerRolloverTimeMinutes="0",
            managedLedgerMaxUnackedRangesToPersist="20",
            defaultRetentionTimeInMinutes="0",
        )
        self.clients: dict[str, Client] = {}

    async def begin(self) -> None:
        await self.world.start()
        for name in ("s", "t"):
            await self._subscribe(name)
        self.clients["reader"] = await self.world.consumer(
            kind=SubscriptionType.EXCLUSIVE, subscription="reader", is_durable=False
        )

    async def _subscribe(self, name: str) -> None:
        self.clients[name] = await self.world.consumer(subscription=name, name=name)

    async def step(self) -> None:
        steps = (
            *[self.publish] * 4,
            *[self.ack_few] * 6,
            *[self.ack_many] * 2,
            *[self.ack_parts] * 4,
            *[self.ack_through] * 2,
            self.give_back,
            self.leave,
            self.move,
            self.trim,
            self.crash,
        )
        await self.random.choice(steps)()
        await settle()

    def _client(self) -> tuple[str, Client]:
        name = self.random.choice(("s", "s", "t", "reader"))
        return name, self.clients[name]

    def _some(self, count: int) -> list[Position]:
        there = [p for p in self.world.published if self.world.topic.ledger.ledgers.exists(p)]
        return self.random.choices(there, k=count) if there else []

    async def publish(self) -> None:
        batch = self.random.choice((1, BATCH))
        await self.world.publish(self.random.randint(1, 40), batch_size=batch)

    async def ack_few(self) -> None:
        self._client()[1].ack(*((p, None) for p in self._some(self.random.randint(1, 5))))

    async def ack_many(self) -> None:
        self._client()[1].ack(*((p, None) for p in self._some(self.random.randint(60, 100))))

    async def ack_parts(self) -> None:
        acks: list[tuple[Position, int | None]] = []
        for position in self._some(self.random.randint(1, 4)):
            for _ in range(self.random.randint(1, 4)):
                mask = self.random.choice((0, 1, WHOLE, self.random.getrandbits(BATCH)))
                acks.append((position, mask))
        acks += [(p, None) for p in self._some(self.random.randint(0, 2))]
        self.random.shuffle(acks)
        if acks:
            self._client()[1].ack(*acks)

    async def ack_through(self) -> None:
        for position in self._some(1):
            mask = self.random.choice((None, 0, 1, self.random.getrandbits(BATCH)))
            self._client()[1].ack_through(position, mask)

    async def give_back(self) -> None:
        _, client = self._client()
        asked = self.random.choice((None, self._some(3)))
        client.port.redeliver(asked, None)

    async def leave(self) -> None:
        name = self.random.choice(("s", "t"))
        await self.clients[name].port.close()
        await self._subscribe(name)

    async def move(self) -> None:
        subscription = self.world.subscription(self.random.choice(("s", "t")))
        at = self._some(1)
        moves: list[Callable[[], Awaitable[object]]] = [
            lambda: subscription.skip(self.random.randint(0, 10)),
            subscription.clear_backlog,
        ]
        if at:
            mask = self.random.choice((None, 0b101))
            moves += [
                lambda: subscription.seek(at[0], mask),
                lambda: subscription.expire_through(at[0]),
            ]
        await self.random.choice(moves)()
        if not subscription.consumers:
            await self._subscribe(subscription.name)

    async def trim(self) -> None:
        await self.world.topic.flush_cursors()
        await self.world.topic.keep_ledgers()
        await self.world.topic.until_trimmed()

    async def crash(self) -> None:
        await asyncio.sleep(self.random.choice((0.0, 0.1, 3.0)))
        await self.begin()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_the_journal_leads_to_the_same_cursors(seed: int) -> None:
    async def run() -> None:
        work = Work(seed)
        await work.begin()
        for _ in range(STEPS):
            await work.step()
        replay = await work.world.check_replay()
        assert replay.versions_compared
        assert work.world.statistics.events_dropped == 0

    run_in_virtual_time(run())


def test_what_is_missing_is_told_and_not_taken_for_a_contradiction() -> None:
    async def run() -> None:
        work = Work(1)
        work.world.keys["deliveryJournalMaxPendingEvents"] = "40"
        await work.begin()
        for _ in range(STEPS):
            await work.step()
        events = await work.world.events()
        dropped = sum(e.version or 0 for e in events if e.kind is EventKind.DROPPED)
        assert dropped > 0
        with pytest.raises((AssertionError, AckGateError)):
            await work.world.check_replay()

    run_in_virtual_time(run())
