"""Settles futures, unless they are settled or cancelled already.

Edge only in that it is about asyncio's futures. Functions and not methods, so that `call_later` and
`call_soon_threadsafe` take them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


@overload
def resolve(future: asyncio.Future[None]) -> None: ...
@overload
def resolve(future: asyncio.Future[T], result: T) -> None: ...
def resolve(future: asyncio.Future[Any], result: object = None) -> None:
    """Set the result, unless the future is done."""
    if not future.done():
        future.set_result(result)


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """Set the error, unless the future is done."""
    if not future.done():
        future.set_exception(error)


def fail_quietly(future: asyncio.Future[Any], error: BaseException) -> None:
    """As `fail`, without asyncio's warning if it is never awaited."""
    if not future.done():
        future.set_exception(error)
        future.exception()
