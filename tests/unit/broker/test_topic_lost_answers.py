"""A whole topic with a subscription while any one call to the metadata store goes wrong, in turn.

Open, subscribe, ack, unload, open, unsubscribe, delete: each step is taken again when it fails, as
clients and administrators do. What had a receipt stays acked, and deleted is deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from ackgate.broker.topic.registry import TopicRegistry
from ackgate.broker.topic.subscription import SubscriptionDriver
from ackgate.broker.topic.topic import Topic
from ackgate.broker.wire.errors import TopicNotFoundError
from ackgate.broker.wire.names import TopicName
from ackgate.broker.wire.requests import InitialPosition
from ackgate.errors import AckGateError, SessionLostError
from ackgate.persistence import MemoryMetadataStore
from ackgate.persistence.metadata.memory import MemoryTree
from ackgate.testing import MemoryLedgerClient, MemoryLedgers
from tests.support.bare_broker import bare_broker
from tests.support.faults import Fault, FaultPlan, Rule
from tests.support.faulty_metadata import FaultyMetadataStore
from tests.support.virtual_time import run_in_virtual_time

T = TypeVar("T")

NAME = TopicName.parse("persistent://public/default/t")
TRIES_MAX = 6


class Life:
    """One broker after the other."""

    def __init__(self, plan: FaultPlan) -> None:
        self.plan = plan
        self.tree = MemoryTree()
        self.ledgers = MemoryLedgers()
        self.registry: TopicRegistry

    def start(self) -> None:
        metadata = FaultyMetadataStore(MemoryMetadataStore(self.tree), self.plan)
        self.registry = bare_broker(MemoryLedgerClient(self.ledgers), metadata)

    async def live(self) -> None:
        self.start()
        await self.ack(1)
        await self.again(lambda: self.registry.unload(NAME))
        await self.ack(2)
        await self.registry.close()  # a broker that stops does not try again
        self.start()
        subscription = await self.again(self.subscription)
        assert subscription.cursor.properties["step"] == 2, "a receipt was untrue"
        await self.again(self.unsubscribe)
        subscription = await self.again(self.subscription)
        assert dict(subscription.cursor.properties) == {}, "an old subscription is back"
        await self.ack(3)
        await self.again(self.delete)
        await asyncio.sleep(60)
        assert await self.nodes("/managed-ledgers") == []
        await self.registry.close()

    async def again(self, step: Callable[[], Awaitable[T]]) -> T:
        for _ in range(TRIES_MAX):
            try:
                return await step()
            except SessionLostError:
                for topic in self.registry:
                    self.registry.forget(topic)
                self.start()  # what a broker does by itself, with a new session
            except AckGateError:
                await asyncio.sleep(1)
        raise AssertionError(f"failed {TRIES_MAX} times")

    async def topic(self) -> Topic:
        return await self.registry.topic(NAME, create=True)

    async def subscription(self) -> SubscriptionDriver:
        return await (await self.topic()).subscription("s", InitialPosition.EARLIEST)

    async def ack(self, step: int) -> None:
        """A change of the cursor stands for acks, until its receipt has come."""

        async def once() -> None:
            subscription = await self.subscription()
            subscription.cursor.set_properties({"step": step})
            durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def done(error: BaseException | None) -> None:
                durable.set_result(None) if error is None else durable.set_exception(error)

            assert subscription.store is not None
            subscription.store.notify()
            subscription.store.when_durable(subscription.cursor.version, done)
            await durable

        await self.again(once)

    async def unsubscribe(self) -> None:
        await (await self.subscription()).delete()

    async def delete(self) -> None:
        try:
            await self.registry.delete(NAME, force=True)
        except TopicNotFoundError:
            return  # an earlier try did it

    async def nodes(self, below: str) -> list[str]:
        """Paths of the nodes that hold something."""
        store = MemoryMetadataStore(self.tree)
        found = []
        for name in await store.children(below):
            path = f"{below}/{name}"
            node = await store.get(path)
            if node is not None and node.value:
                found.append(path)
            found += await self.nodes(path)
        return found


def live(plan: FaultPlan) -> FaultPlan:
    try:
        run_in_virtual_time(Life(plan).live())
    except BaseException:
        print(plan.story())
        raise
    return plan


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "seconds"),
    [
        (Fault.FAIL, 0.0),
        (Fault.FAIL, 20.0),
        (Fault.DROP_ANSWER, 0.0),
        (Fault.LANDS_LATE, 0.0),
        (Fault.LANDS_LATE, 5.0),
        (Fault.SUSPEND, 45.0),
        (Fault.LOSE_SESSION, 0.0),
    ],
    ids=str,
)
def test_each_call_in_turn(fault: Fault, seconds: float) -> None:
    calls = live(FaultPlan()).calls
    assert calls > 20
    for nth in range(1, calls + 1):
        live(FaultPlan([Rule(fault, nth=nth, seconds=seconds)]))
