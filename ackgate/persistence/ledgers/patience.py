"""Waiting for a disk, but not for ever.

Edge. Work that has begun on a lane cannot be taken back: when its answer comes after all, nobody
hears it. So this is for work that may be done without anybody knowing: looking, and what can be done
twice.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable

T = TypeVar("T")


class NoAnswerError(Exception):
    """The time is over. Told apart from a `TimeoutError` that a file system may raise itself."""


async def within(seconds: float | None, answer: Awaitable[T]) -> T:
    """The answer. Raises `NoAnswerError` when it does not come in time; None: wait for ever."""
    if seconds is None:
        return await answer
    patience = asyncio.timeout(seconds)
    try:
        async with patience:
            return await answer
    except TimeoutError:
        if patience.expired():
            raise NoAnswerError from None
        raise
