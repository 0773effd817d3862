"""Sends one call to all partitions of a topic, on whichever brokers they are.

Edge. The handler runs here for a partition that this broker serves. The owner of any other gets the
same request over HTTP, for that partition alone. Partitions are asked at the same time and
independently: where some refuse, what the others did stays done.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, urlencode

from ackgate.broker.admin.http.call import AUTHORITATIVE, Reply, json_reply
from ackgate.broker.admin.http.refusals import RefusedError, reason_of, status_of
from ackgate.errors import AckGateError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from ackgate.broker.admin.http.call import Call
    from ackgate.broker.admin.http.router import Handler
    from ackgate.broker.wire import TopicName

ASKED_AT_ONCE_MAX: Final = 32
"""Partitions, or what else is asked side by side, that are asked at the same time."""

T = TypeVar("T")


async def on_each(
    call: Call, partitions: Iterable[TopicName], handler: Handler, tail: str | None = None
) -> list[Reply]:
    """Call `handler` for all partitions. `tail` replaces the path after the topic's name.

    Raises the first refusal once all have answered.
    """
    replies = await on_each_tried(call, partitions, handler, tail)
    for reply in replies:
        raise_refusal(reply)
    return replies


async def on_each_tried(
    call: Call, partitions: Iterable[TopicName], handler: Handler, tail: str | None = None
) -> list[Reply]:
    """As `on_each`, but returns refusals among the replies."""
    return await side_by_side(lambda partition: _on_one(call, partition, handler, tail), partitions)


async def side_by_side(ask: Callable[[T], Awaitable[Reply]], asked: Iterable[T]) -> list[Reply]:
    """Call `ask` for all, a bounded number at the same time. Refusals are among the replies."""
    gate = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

    async def ask_one(one: T) -> Reply:
        async with gate:
            try:
                return await ask(one)
            except AckGateError as error:
                return json_reply({"reason": str(error)}, status_of(error))

    return list(await asyncio.gather(*map(ask_one, asked)))


def raise_refusal(reply: Reply) -> None:
    """Raise `RefusedError` if the reply is a refusal."""
    if reply.status >= 300:
        raise RefusedError(reply.status, reason_of(reply.body))


async def _on_one(call: Call, partition: TopicName, handler: Handler, tail: str | None) -> Reply:
    location = await call.broker.ownership.locate(partition)
    if location.is_here:
        parameters = {**call.parameters, "topic": partition.local_name}
        return await handler(replace(call, parameters=parameters))
    query: dict[str, Any] = dict(call.query)
    if not location.is_owner:
        query[AUTHORITATIVE] = "true"
    names = (partition.tenant, partition.namespace, partition.local_name)
    path = "/admin/v2/persistent/" + "/".join(quote(name, safe="") for name in names)
    path += call.tail if tail is None else tail
    if query:
        path += f"?{urlencode(query)}"
    return await call.broker.peers.ask(location.web, call.method, path, call.body)
