"""A topic is loaded once, however many ask for it at once and however long the question takes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ackgate.broker.topic.registry import TopicConflictError
from ackgate.broker.wire.errors import ServiceNotReadyError
from ackgate.broker.wire.names import TopicName
from tests.broker.cluster.conftest import MemoryCluster

TOPIC = TopicName.parse("asked-for")


class SlowOwners:
    """Everything is served here, which takes each asker longer to learn than the one before."""

    def __init__(self) -> None:
        self.asked = 0
        self.serves = True

    async def require(self, topic: TopicName) -> None:
        self.asked += 1
        for _ in range(self.asked * 40):
            await asyncio.sleep(0)

    def is_served_here(self, topic: TopicName) -> bool:
        return self.serves


def test_many_who_ask_at_once_get_the_same_topic(tmp_path: Path) -> None:
    with MemoryCluster(tmp_path) as cluster:
        broker = cluster.start()
        owners = SlowOwners()
        broker.registry.owners = owners

        async def load() -> None:
            asking = [broker.registry.topic(TOPIC, create=True) for _ in range(20)]
            creating = [broker.registry.create(TOPIC) for _ in range(3)]
            found = await asyncio.gather(*asking, *creating, return_exceptions=True)
            topics, refusals = found[:20], found[20:]
            assert owners.asked > 1
            assert len(set(map(id, topics))) == 1
            assert all(isinstance(refusal, TopicConflictError) for refusal in refusals)
            topic = broker.registry.loaded(TOPIC)
            assert topic is topics[0]
            assert topic is not None
            assert topic.ledger.owner_epoch == 1

        cluster.run(load())


def test_a_topic_whose_bundle_went_while_it_was_loaded_is_let_go_of(tmp_path: Path) -> None:
    with MemoryCluster(tmp_path) as cluster:
        broker = cluster.start()
        owners = SlowOwners()
        broker.registry.owners = owners
        owners.serves = False

        async def load() -> None:
            try:
                await broker.registry.topic(TOPIC, create=True)
            except ServiceNotReadyError as error:
                assert "is being closed" in str(error)  # noqa: PT017 - either is looked at
            else:
                raise AssertionError("a topic of somebody else's was loaded")
            assert broker.registry.loaded(TOPIC) is None

        cluster.run(load())
