"""A topic one of whose cursors belongs to somebody else now."""

from __future__ import annotations

import pytest

from ackgate.broker.names import TopicName
from ackgate.broker.registry import TopicRegistry
from ackgate.broker.wire_types import InitialPosition
from ackgate.errors import OwnershipError
from ackgate.persistence.metadata.memory import MemoryMetadataStore, MemoryTree
from ackgate.testing.bare_broker import bare_broker
from ackgate.testing.memory_ledgers import MemoryLedgerClient, MemoryLedgers

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
    subscription.on_acked()
    with pytest.raises(OwnershipError):
        await subscription.store.flush()
    assert topic.is_closing
    assert old.loaded(NAME) is None
    assert new.loaded(NAME) is successor
    await new.close()
    await old.close()
