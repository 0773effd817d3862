"""Closing and deleting: twice, at the same time, while something is being opened, when a store fails."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path

import pytest

import ackgate
from ackgate.errors import ClosedHandleError, StorageError
from ackgate.persistence import NodeValue
from tests.unit.embedded.test_topic import Disk, failing, numbered, received


async def test_second_close_returns_when_all_is_durable() -> None:
    disk = Disk()
    async with disk.opened() as storage:
        topic = await storage.topic("orders")
        sub = await topic.subscribe("billing")
        consumer = sub.attach("alice")
        await topic.publish(numbered(2))
        message = await anext(consumer)
        waiting = asyncio.ensure_future(consumer.ack(message))
        await asyncio.sleep(0)
        first = asyncio.ensure_future(sub.close())
        await asyncio.sleep(0)
        await sub.close()
        assert sub.persisted_mark_delete == message.position
        again = await topic.subscribe("billing")
        assert again.backlog == 1
        await first
        assert (await waiting).is_complete


async def test_second_close_of_a_topic_returns_when_it_may_be_opened_again(tmp_path: Path) -> None:
    async with ackgate.open_embedded(tmp_path) as storage:
        topic = await storage.topic("orders")
        await topic.subscribe("billing")
        await topic.publish(numbered(3))
        first = asyncio.ensure_future(topic.close())
        await asyncio.sleep(0)
        await topic.close()
        again = await storage.topic("orders")
        assert again is not topic
        assert again.message_count == 3
        await first


async def test_topic_that_is_closed_while_a_subscription_is_opened_on_it() -> None:
    disk = Disk()
    async with disk.opened() as storage:
        topic = await storage.topic("orders")
        go_on = held_up(disk)
        opening = asyncio.ensure_future(topic.subscribe("billing"))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(topic.close())
        await asyncio.sleep(0)
        go_on.set()
        await closing
        with pytest.raises(ClosedHandleError, match="closed"):
            await opening
        again = await storage.topic("orders")
        assert (await again.subscribe("billing")).backlog == 0


async def test_storage_that_is_left_while_a_topic_is_opened() -> None:
    disk = Disk()
    async with disk.opened() as storage:
        go_on = held_up(disk)
        opening = asyncio.ensure_future(storage.topic("orders"))
        await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(ClosedHandleError, match="closed"):
        await opening


def held_up(disk: Disk) -> asyncio.Event:
    """Nodes are read only after this event."""
    go_on, get = asyncio.Event(), disk.metadata.get

    async def get_later(path: str) -> NodeValue | None:
        await go_on.wait()
        return await get(path)

    disk.metadata.get = get_later  # type: ignore[method-assign]
    return go_on


async def test_delete_that_fails_may_be_repeated_after_opening_again() -> None:
    disk = Disk()
    async with disk.opened() as storage:
        topic = await storage.topic("orders")
        sub = await topic.subscribe("billing")
        consumer = sub.attach("alice")
        await topic.publish(numbered(3))
        await consumer.ack(*await received(consumer, 1))
        working, disk.metadata.delete = disk.metadata.delete, failing  # type: ignore[method-assign,assignment]
        with pytest.raises(StorageError):
            await sub.delete()
        with pytest.raises(ClosedHandleError):
            await sub.delete()
        disk.metadata.delete = working  # type: ignore[method-assign]
        assert topic.subscriptions == ("billing",)
        again = await topic.subscribe("billing")
        assert again.backlog == 2
        await again.delete()
        assert topic.subscriptions == ()


async def test_storage_forgets_what_was_closed() -> None:
    async with Disk().opened() as storage:
        topic = await storage.topic("orders")
        await topic.subscribe("billing")
        seen = weakref.ref(topic)
        await topic.close()
        del topic
        for _ in range(3):  # turns that were asked for before
            await asyncio.sleep(0)
        gc.collect()
        assert seen() is None
