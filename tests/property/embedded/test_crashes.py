"""An embedded topic through crashes and failing stores: nothing acked comes again, nothing else is skipped.

Consumers ack, and send back what they have or what still waits in their queue; the host seeks; a second
subscription acks everything now and then, so that ledgers are deleted. In virtual time, over memory stores
that fail as a plan says. A crash copies what is stored at that moment; the next life begins with the copy,
and what the old one does while it ends is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ackgate
from ackgate.cursor import Position
from ackgate.errors import AckGateError
from ackgate.persistence import MemoryMetadataStore
from ackgate.persistence.metadata.memory import MemoryTree
from ackgate.testing import MemoryLedgerClient, MemoryLedgers
from tests.support.faults import Fault, FaultPlan
from tests.support.faulty_ledgers import FaultyLedgerClient
from tests.support.faulty_metadata import FaultyMetadataStore
from tests.support.virtual_time import run_in_virtual_time

KINDS = (ackgate.Shared(), ackgate.KeyShared(), ackgate.Exclusive(), ackgate.Failover())
RATES = {Fault.FAIL: 0.03, Fault.DROP_ANSWER: 0.02, Fault.DELAY: 0.05}
DRAIN_SECONDS_MAX = 3_600.0


@dataclass
class World:
    """What is stored, and what is known of it outside."""

    random: Random
    kind: Any
    gate: ackgate.GateSettings
    has_faults: bool
    tree: MemoryTree = field(default_factory=MemoryTree)
    ledgers: MemoryLedgers = field(default_factory=MemoryLedgers)
    published: set[Position] = field(default_factory=set)
    acked: set[Position] = field(default_factory=set)
    """Durably, as the host was told."""
    received: set[Position] = field(default_factory=set)
    passed: set[Position] = field(default_factory=set)
    """What need not come: a seek went over it, or back to it and is not durable."""
    moves: int = 0
    came: set[tuple[Position, int]] = field(default_factory=set)
    """What came since the life, or the last seek, began: with its redelivery count."""

    def known(self) -> tuple[set[Position], ...]:
        return set(self.acked), set(self.received), set(self.passed)

    def stored(self) -> tuple[MemoryTree, MemoryLedgers]:
        """A copy of what is on the disk now."""
        tree = MemoryTree()
        nodes = self.tree._nodes
        assert all(node.owner is None for node in nodes.values())
        tree._nodes = copy.deepcopy(nodes)
        return tree, copy.deepcopy(self.ledgers)

    @contextlib.asynccontextmanager
    async def opened(self, *, is_last: bool) -> Any:
        loop = asyncio.get_running_loop()
        rates = RATES if self.has_faults and not is_last else {}
        plan = FaultPlan(seed=self.random.randrange(1 << 30), rates=rates, seconds_max=0.5)
        plan.is_quiet = (
            True  # an opening that fails is begun again by the host, and not the subject
        )
        metadata = FaultyMetadataStore(MemoryMetadataStore(self.tree), plan)
        client = FaultyLedgerClient(MemoryLedgerClient(self.ledgers), plan)
        async with ackgate.open_embedded(
            metadata=metadata,
            ledger_client=client,  # type: ignore[arg-type]
            clock_ms=lambda: int(loop.time() * 1_000) + 1_000_000,
        ) as storage:
            topic = await storage.topic("orders")
            sub = await topic.subscribe("billing", kind=self.kind, gate=self.gate)
            other = await topic.subscribe("audit")
            plan.is_quiet = False
            yield topic, sub, other

    async def live(self, steps: int) -> None:
        """One life that ends with a crash."""
        held: list[ackgate.Message] = []
        tasks: set[asyncio.Task[None]] = set()
        before = self.known()
        self.came.clear()
        with contextlib.suppress(AckGateError):
            async with self.opened(is_last=False) as (topic, sub, other):
                consumers = [sub.attach("alice", permits=7)]
                if not isinstance(self.kind, ackgate.Exclusive):
                    consumers.append(sub.attach("bob", permits=50))
                tasks |= {asyncio.ensure_future(self.receive(each, held)) for each in consumers}
                for _ in range(steps):
                    self.step(topic, (sub, other), consumers, held, tasks)
                    await asyncio.sleep(self.random.choice([0, 0, 0.001, 0.01, 1]))
                    sub._core.check()
                self.tree, self.ledgers = self.stored()
                before = self.known()  # what is told from here on did not happen
                await self.end(tasks)
        self.acked, self.received, self.passed = before

    async def end(self, tasks: set[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if ended is not None and not isinstance(ended, asyncio.CancelledError):
                raise ended

    def step(
        self,
        topic: ackgate.EmbeddedTopic,
        subs: tuple[ackgate.EmbeddedSubscription, ackgate.EmbeddedSubscription],
        consumers: list[ackgate.EmbeddedConsumer],
        held: list[ackgate.Message],
        tasks: set[asyncio.Task[None]],
    ) -> None:
        what = self.random.choice(["publish", "ack", "ack", "ack", "nack", "leave", "move"])
        self.random.shuffle(held)
        some, consumer = held[: self.random.randrange(1, 6)], self.random.choice(consumers)
        if what == "publish":
            tasks.add(asyncio.ensure_future(self.publish(topic)))
        elif what == "ack" and some:
            del held[: len(some)]
            tasks.add(asyncio.ensure_future(self.ack(consumer, some)))
        elif what == "nack" and some:
            del held[: len(some)]
            consumer.nack(*some, delay_ms=self.random.choice([None, 0, 700]))
        elif what == "leave" and self.random.random() < 0.2:
            consumer.redeliver_unacked()
        elif what == "leave" and self.published:
            consumer.nack(self.random.choice(sorted(self.published)))
        elif what == "move" and self.random.random() < 0.5:
            tasks.add(asyncio.ensure_future(self.clear(subs[1])))
        elif what == "move" and self.published and topic._trim is None:
            held.clear()
            tasks.add(asyncio.ensure_future(self.seek(topic, subs[0])))

    async def clear(self, other: ackgate.EmbeddedSubscription) -> None:
        with contextlib.suppress(AckGateError):
            await other.clear_backlog()

    async def seek(self, topic: ackgate.EmbeddedTopic, sub: ackgate.EmbeddedSubscription) -> None:
        target = self.random.choice(sorted(self.published))
        ahead = {at for at in self.published if at >= target}
        self.moves += 1
        self.came.clear()
        move, kept = self.moves, set(filter(topic.message_ledgers.exists, ahead))
        self.acked -= ahead
        self.received -= ahead
        self.passed |= self.published
        with contextlib.suppress(AckGateError):
            await sub.seek(target)
            if move == self.moves:
                self.passed -= kept

    async def publish(self, topic: ackgate.EmbeddedTopic) -> None:
        count = self.random.randrange(1, 12)
        late = self.random.random() < 0.2
        deliver_at_ms = topic.now_ms() + 1_500 if late else 0
        key = f"customer {self.random.randrange(5)}"
        with contextlib.suppress(AckGateError):
            self.published |= set(
                await topic.publish([b"order"] * count, key=key, deliver_at_ms=deliver_at_ms)
            )

    async def ack(
        self, consumer: ackgate.EmbeddedConsumer, messages: list[ackgate.Message]
    ) -> None:
        move = self.moves
        with contextlib.suppress(AckGateError):
            outcome = await consumer.ack(*messages)
            assert outcome.is_complete
            if move == self.moves:
                self.acked |= {message.position for message in messages}

    async def receive(
        self, consumer: ackgate.EmbeddedConsumer, held: list[ackgate.Message]
    ) -> None:
        with contextlib.suppress(AckGateError):
            async for message in consumer:
                self.receives(message)
                held.append(message)

    def receives(self, message: ackgate.Message) -> None:
        position, count = message.position, message.redelivery_count
        assert position not in self.acked, f"{position} came again"
        if not isinstance(self.kind, ackgate.Exclusive | ackgate.Failover):
            assert (position, count) not in self.came, f"{position} came twice"
        self.came.add((position, count))
        self.received.add(position)

    async def drain(self) -> None:
        """The last life: everything is acked as it comes."""
        self.came.clear()
        async with self.opened(is_last=True) as (_, sub, _):
            consumer = sub.attach("carol", permits=10)
            async with asyncio.timeout(DRAIN_SECONDS_MAX):
                while sub.backlog:
                    message = await anext(consumer)
                    self.receives(message)
                    await consumer.ack(message)
            assert sub.gate.is_open
        assert self.published <= self.received | self.acked | self.passed, "skipped"


@pytest.mark.slow
@pytest.mark.parametrize("has_faults", [False, True], ids=["crashes", "crashes and faults"])
@given(
    seed=st.integers(0, 1 << 30),
    kind=st.sampled_from(KINDS),
    is_strict=st.booleans(),
    ranges_max=st.sampled_from([2, 5, 10_000]),
    lives=st.lists(st.integers(1, 40), min_size=1, max_size=4),
)
def test_nothing_acked_comes_again_and_nothing_else_is_skipped(
    seed: int, kind: Any, is_strict: bool, ranges_max: int, lives: list[int], has_faults: bool
) -> None:
    gate = ackgate.GateSettings(enabled=True, is_strict=is_strict, ranges_max=ranges_max)
    world = World(Random(seed), kind, gate, has_faults)
    for steps in lives:
        run_in_virtual_time(world.live(steps))
    run_in_virtual_time(world.drain())
