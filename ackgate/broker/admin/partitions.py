"""Partitioned topics: how many partitions a topic has. Edge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.broker.admin.http.call import DONE, integer_in, json_reply
from ackgate.broker.admin.http.partition_calls import on_each_tried, raise_refusal
from ackgate.broker.admin.http.refusals import RefusedError, topic_exists, topic_not_found
from ackgate.broker.admin.http.router import Route
from ackgate.broker.admin.topics import check_unused, delete_topic
from ackgate.broker.topic import TopicConflictError
from ackgate.broker.wire import TopicNotFoundError

if TYPE_CHECKING:
    from ackgate.broker.admin.http.call import Call, Reply


async def list_partitioned(call: Call) -> Reply:
    """The partitioned topics of a namespace."""
    await call.require_namespace()
    return json_reply(await call.broker.registry.partitioned_topic_names(call.namespace_name))


async def get_partitions(call: Call) -> Reply:
    """The number of partitions; 0 for a topic that is not partitioned."""
    name = call.topic_name
    try:
        count = await call.broker.registry.partition_count(
            name, create=call.is_asked("checkAllowAutoCreation")
        )
    except TopicNotFoundError:
        raise topic_not_found(name) from None
    return json_reply({"partitions": count, "deleted": False})


async def create_partitions(call: Call) -> Reply:
    """Create a partitioned topic; the body is the number of partitions."""
    name, count = call.topic_name, _count(call)
    if count < 1:
        raise RefusedError(406, "Number of partitions should be more than 0")
    try:
        await call.broker.registry.create_partitioned(name, count)
    except TopicConflictError:
        raise topic_exists() from None
    return DONE


async def update_partitions(call: Call) -> Reply:
    """Raise the number of partitions; the same number again is fine."""
    name, count = call.topic_name, _count(call)
    registry = call.broker.registry
    present = await registry.stored_partition_count(name)
    if not present:
        raise RefusedError(409, f"Topic {name} is not the partitioned topic.")
    if count < present:
        raise RefusedError(
            422, f"Desired partitions {count} can't be less than the current partitions {present}."
        )
    if count > present:
        await registry.add_partitions(name, count)
    return DONE


async def delete_partitions(call: Call) -> Reply:
    """Delete a partitioned topic with its partitions."""
    name, is_forced = call.topic_name, call.is_asked("force")
    registry = call.broker.registry
    count = await registry.stored_partition_count(name)
    if not count:
        if await registry.exists(name):
            raise RefusedError(
                409,
                f"{name} is a non-partitioned topic. Instead of calling delete-partitioned-topic "
                "please call delete.",
            )
        raise RefusedError(404, f"Topic {name} not found.")
    partitions = [name.partition(index) for index in range(count)]
    if not is_forced:  # before any is deleted, as far as this broker can see
        for topic in filter(None, map(registry.loaded, partitions)):
            check_unused(topic)
    there = [partition for partition in partitions if await registry.exists(partition)]
    for reply in await on_each_tried(call, there, delete_topic, tail=""):
        if reply.status != 404:
            raise_refusal(reply)
    await registry.delete_partition_count(name)
    return DONE


def _count(call: Call) -> int:
    """The number in the body, which may stand in a partitioned topic's metadata."""
    value = call.json()
    count = value.get("partitions") if isinstance(value, dict) else value
    return integer_in(count, "the number of partitions")


_NAMESPACE: Final = "/admin/v2/persistent/{tenant}/{namespace}"
_PARTITIONS: Final = f"{_NAMESPACE}/{{topic}}/partitions"

ROUTES: Final = (
    Route("GET", f"{_NAMESPACE}/partitioned", list_partitioned),
    Route("GET", _PARTITIONS, get_partitions),
    Route("PUT", _PARTITIONS, create_partitions),
    Route("POST", _PARTITIONS, update_partitions),
    Route("DELETE", _PARTITIONS, delete_partitions),
)
