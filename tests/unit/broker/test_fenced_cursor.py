"""A topic one of whose cursors belongs to somebody else now."""

from __future__ import annotations

import pytest

from ackgate.broker.topic.registry import TopicRegistry
from ackgate.broker.wire.names import TopicName
from ackgate.broker.wire.requests import InitialPosition
from ackgate.errors import OwnershipError
from ackgate.persistence import MemoryMetadataStore
from ackgate.persistence.metadata.memory import MemoryTree
from ackgate.testing import MemoryLedgerClient, MemoryLedgers
from tests.support.bare_broker import bare_broker

NAME = TopicName.parse("persistent://public/default/t")


def broker(tree: MemoryTree, ledgers: MemoryLedgers) -> TopicRegistry:
    return bare_broker(MemoryLedgerClient(ledgers), MemoryMetadataStore(tree))


async def test_it_is_let_go_of_though_nobody_publishes() -> None:
    tree, ledgers = MemoryTree(), MemoryLedgers()
    old, new = broker(tree, ledgers), broker(tree, ledgers)
    topic = await old.topic(NAME, create=True)
    subscription = await topic.subscription("s", InitialPosition.EARLIEST)
    successor = await new.topic(NAME, create=False)
    assert subscription.store is not None
    subscription.cursor.set_properties({"changed": 1})
    subscription.store.notify()
    with pytest.raises(OwnershipError):
        await subscription.store.flush()
    assert topic.is_closing
    assert old.loaded(NAME) is None
    assert new.loaded(NAME) is successor
    await new.close()
    await old.close()


async def test_a_subscription_that_a_later_owner_has_not_listed_is_not_confirmed() -> None:
    tree, ledgers = MemoryTree(), MemoryLedgers()
    old, new = broker(tree, ledgers), broker(tree, ledgers)
    topic = await old.topic(NAME, create=True)
    successor = await new.topic(NAME, create=False)
    with pytest.raises(OwnershipError):
        await topic.subscription("late", InitialPosition.EARLIEST)
    assert old.loaded(NAME) is None
    assert "late" not in successor.subscriptions
    again = await successor.subscription("late", InitialPosition.EARLIEST)
    await again.flush()
    await new.close()
    await old.close()
