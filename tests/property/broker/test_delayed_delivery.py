"""Delayed messages through a subscription in random stories, against a table of what was told.

Consumers come, go, ack, give back and seek; reads are slow or fail; the broker is killed and started
again. Whatever happens: nothing is given before its time, to two at once, or after its ack; and in
the end everything has come.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

import pytest

from ackgate.broker.wire.requests import SubscriptionType
from ackgate.errors import OwnershipError
from tests.support.bare_broker import loop_clock_ms
from tests.support.faults import Fault, Rule
from tests.support.virtual_time import run_in_virtual_time
from tests.unit.broker.delayed.delivery_world import Client, DelayedWorld, settle

SEEDS: Final = (0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3)))
STEPS: Final = 100

BUCKETS: Final = {
    "delayedDeliveryTrackerFactoryClassName": (
        "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"
    ),
    "delayedDeliveryMinIndexCountPerBucket": "5",
    "delayedDeliveryMaxIndexCountPerBucket": "10",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "3",
    "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds": "1",
    "delayedDeliveryMaxNumBuckets": "3",
}

GATED: Final = {
    "dispatcherPauseOnAckStatePersistentEnabled": "true",
    "managedLedgerMaxUnackedRangesToPersist": "3",
    "delayedDeliveryFixedDelayDetectionLookahead": "3",
}

SHARED: Final = {**BUCKETS, "delayedDeliverySharedIndexEnabled": "true"}

STRICT: Final = {**GATED, "dispatcherPauseOnAckStateStrictEnabled": "true"}


BACKOFF: Final = {"minDelayMs": 1600, "maxDelayMs": 5000, "multiplier": 2}
"""What is given back then comes a sixteenth of the least delay early at most."""


class Story:
    """A random story and what is known of it."""

    def __init__(
        self, seed: int, type_: SubscriptionType, keys: dict[str, str], *, has_backoff: bool
    ) -> None:
        self.random = Random(seed)
        self.type = type_
        self.has_backoff = has_backoff
        self.world = DelayedWorld(
            managedLedgerMaxEntriesPerLedger="20",
            managedLedgerMinLedgerRolloverTimeMinutes="0",
            **keys,
        )
        self.world.cache_bytes = 1 << 20 if seed % 2 else 0
        self.clients: list[Client] = []
        self.deliver_at: dict[str, int] = {}
        self.due: dict[str, int] = {}
        """Its delivery time, or the end of its backoff."""
        self.acked: set[str] = set()
        self.with_client: dict[str, Client] = {}
        self.count = 0

    # -- what is heard

    def heard(self) -> None:
        """Take note of what the clients were given."""
        for client in self.clients:
            for ms, name in client.got:
                assert ms >= self.due[name], f"{name} came at {ms}, {self.due[name]} was its time"
                assert name not in self.acked, f"{name} came after its ack"
                other = self.with_client.get(name)
                assert other is None, f"{name} was given twice"
                self.with_client[name] = client
            client.got.clear()
        self.world.check()

    def of(self, client: Client) -> list[str]:
        return [name for name, other in self.with_client.items() if other is client]

    # -- what happens

    async def publish(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            self.count += 1
            name = f"m{self.count}"
            delay_ms = self.random.choice([0, 0, 50, 300, 300, 2_000, 10_000])
            self.due[name] = self.deliver_at[name] = loop_clock_ms() + delay_ms
            await self.world.publish(name, delay_ms=delay_ms, key=f"k{self.random.randint(0, 3)}")

    async def join(self) -> None:
        if len(self.clients) < 3:
            permits = self.random.choice([0, 1, 5, 100])
            name = f"c{self.count}-{len(self.clients)}"
            self.clients.append(await self.world.consumer(permits, type=self.type, name=name))

    async def leave(self) -> None:
        if self.clients:
            client = self.clients.pop(self.random.randrange(len(self.clients)))
            await client.port.close()
            self.forget(client)

    def forget(self, client: Client) -> None:
        for name in self.of(client):
            del self.with_client[name]

    async def flow(self) -> None:
        for client in self.clients:
            client.flow(self.random.choice([1, 3, 20]))

    async def ack(self) -> None:
        for client in self.clients:
            names = [name for name in self.of(client) if self.random.random() < 0.5]
            if names:
                self.acked.update(names)
                for name in names:
                    del self.with_client[name]
                client.ack(*names)

    async def give_back(self) -> None:
        for client in self.clients:
            names = [name for name in self.of(client) if self.random.random() < 0.3]
            for name in names:
                del self.with_client[name]
            if names:
                client.port.redeliver([self.world.positions[name] for name in names], None)
                if self.has_backoff:
                    back_ms = loop_clock_ms() + 1500
                    self.due |= dict.fromkeys(names, back_ms)

    async def wait(self) -> None:
        await asyncio.sleep(self.random.choice([0.01, 0.1, 1.0, 4.0]))

    async def seek(self) -> None:
        subscription = self.world.topic.subscriptions.get("s")
        if subscription is None or self.random.random() < 0.5:
            return
        self.clients.clear()
        self.with_client.clear()
        kept = self.world.topic.ledger.ledgers
        target = kept.next_valid(kept.first_position)
        await subscription.seek(target)
        first = subscription.cursor.read_position
        self.unacked({name for name in self.acked if self.world.positions[name] >= first})

    def unacked(self, again: set[str]) -> None:
        """The acks of these are gone. No backoff outlives an ack."""
        self.acked -= again
        self.due |= {name: self.deliver_at[name] for name in again}

    async def skip(self) -> None:
        subscription = self.world.topic.subscriptions.get("s")
        if subscription is None or self.random.random() < 0.5:
            return
        await subscription.skip(self.random.randint(0, 3))
        for name, position in self.world.positions.items():
            if subscription.cursor.is_acked(position):
                self.acked.add(name)
                self.with_client.pop(name, None)

    async def ack_elsewhere(self) -> None:
        subscription = self.world.topic.subscriptions.get("s")
        unacked = sorted(self.world.positions.keys() - self.acked)
        if subscription is not None and unacked:
            names = self.random.sample(unacked, min(2, len(unacked)))
            self.acked.update(names)
            for name in names:
                self.with_client.pop(name, None)
            subscription.ack_elsewhere([self.world.positions[name] for name in names])

    async def reads(self) -> None:
        slow = Rule(Fault.DELAY, "ledger.read", times=None, seconds=0.05)
        bad = Rule(Fault.FAIL, "ledger.read", times=2)
        self.world.plan.rules = self.random.choice([[], [slow], [bad]])

    async def kill(self) -> None:
        if self.random.random() < 0.5:
            return
        await self.world.topic.flush_cursors()
        await settle()
        self.heard()
        self.world.plan.rules = []
        self.world.topic.abandon(OwnershipError("killed"))
        self.clients.clear()
        self.with_client.clear()
        await self.world.start()
        subscription = self.world.topic.subscriptions.get("s")
        if subscription is not None and self.world.keys.keys() >= GATED.keys():
            # Acks beyond the limit are in memory only: that is what the gate is about.
            is_acked = subscription.cursor.is_acked
            self.unacked({n for n in self.acked if not is_acked(self.world.positions[n])})

    # -- all of it

    async def run(self) -> None:
        await self.world.start()
        if self.has_backoff:
            await self.world.topic.services.policies.change(
                "/admin/topic-policies/public/default/t", {"redeliveryBackoff": BACKOFF}
            )
        steps = [
            *[self.publish] * 4, *[self.join] * 3, self.leave, *[self.flow] * 3, *[self.ack] * 3,
            self.give_back, *[self.wait] * 3, self.seek, self.skip, self.ack_elsewhere, self.reads, self.kill,
        ]  # fmt: skip
        for _ in range(STEPS):
            step = self.random.choice(steps)
            await step()
            await settle()
            self.heard()
        await self.end()

    async def end(self) -> None:
        self.world.plan.rules = []
        if not self.clients:
            self.clients.append(await self.world.consumer(0, type=self.type, name="last"))
        for client in self.clients:
            client.flow(100_000)
        for _ in range(300):
            await asyncio.sleep(0.1)
            await settle()
            self.heard()
            for client in self.clients:
                names = self.of(client)
                if names:
                    self.acked.update(names)
                    self.forget(client)
                    client.ack(*names)
        missing = sorted(self.due.keys() - self.acked)
        assert not missing, f"{missing} never came"
        subscription = self.world.subscription()
        assert subscription.cursor.backlog_entries == 0
        assert subscription.core._held.entry_count == 0


@pytest.mark.parametrize(
    "keys",
    [{}, GATED, STRICT, BUCKETS, SHARED],
    ids=["plain", "gated", "strict", "buckets", "shared index"],
)
@pytest.mark.parametrize("type_", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_story(seed: int, type_: SubscriptionType, keys: dict[str, str]) -> None:
    run_in_virtual_time(Story(seed, type_, keys, has_backoff=seed % 4 > 1).run())
