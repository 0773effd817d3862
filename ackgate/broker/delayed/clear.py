"""Dropping the indexes of all subscriptions of a topic at once, a shared one included.

Edge. One after the other would not do where the index is shared: what one subscription still holds
stays in it.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ackgate.broker.topic import Topic


async def clear_delayed(topic: Topic) -> None:
    """See `CursorMoves.clear_delayed`. Raises the same."""
    subscriptions = [each for each in topic.subscriptions.values() if each.is_durable]
    async with AsyncExitStack() as pauses:
        for subscription in subscriptions:
            await pauses.enter_async_context(subscription.paused())
        for subscription in subscriptions:
            subscription.moves.drop_delayed()
    for subscription in subscriptions:
        await subscription.tracking.until_cleared()
    await topic.shared_delays.until_cleared()
