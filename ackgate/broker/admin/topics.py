"""Topics and partitioned topics: listing, creating, unloading, terminating, deleting. Edge."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.admin.http.call import DONE, integer_in, json_reply, properties_in
from ackgate.broker.admin.http.peers import on_each_tried, on_partitions, raise_refusal
from ackgate.broker.admin.http.refusals import RefusedError, topic_exists, topic_not_found
from ackgate.broker.admin.http.router import Route
from ackgate.broker.cluster import BundleState
from ackgate.broker.topic import OWN_PREFIX, TopicConflictError
from ackgate.broker.wire import LimitReachedError, NotOwnedError, TopicNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackgate.broker.admin.http.call import Call, Reply
    from ackgate.broker.topic import Topic
    from ackgate.broker.wire import TopicName
    from ackgate.cursor import Position

PROPERTIES_CHARACTERS_MAX: Final = 16 * 1024
"""Keys and values of one topic's properties. The node of a topic is written with each new ledger, and most
of it is for the list of these."""

_PARTITION_LIKE: Final = re.compile(r"(.*)-partition-[0-9]+")


async def list_topics(call: Call) -> Reply:
    """Every topic and partition of a namespace, loaded or not."""
    await call.require_namespace()
    return json_reply(await call.broker.registry.topic_names(call.namespace_name))


async def list_topics_by_mode(call: Call) -> Reply:
    """Every topic and partition of a namespace; `?mode=NON_PERSISTENT` has none."""
    if call.query.get("mode", "").upper() == "NON_PERSISTENT":
        return await list_non_persistent(call)
    return await list_topics(call)


async def list_non_persistent(call: Call) -> Reply:
    """Always empty: non-persistent topics are not served, but Pulsar's tools ask for them."""
    await call.require_namespace()
    return json_reply([])


async def create_topic(call: Call) -> Reply:
    """Create a topic that is not partitioned; the body may be its properties."""
    name, properties = call.topic_name, _properties_of(call.json())
    registry = call.broker.registry
    if await _is_missing_partition(call, name):
        if await registry.exists(name):
            raise topic_exists()
        await call.require_here(name)
        await registry.topic(name, create=False)  # recreates a partition that was lost
        return DONE
    await call.require_here(name)
    try:
        await registry.create(name, properties)
    except TopicConflictError:
        raise topic_exists() from None
    return DONE


async def unload_topic(call: Call) -> Reply:
    """Close a topic, or all of its partitions; the next use loads it again."""
    if await on_partitions(call, unload_topic):
        return DONE
    name, ownership = call.topic_name, call.broker.ownership
    bundle = (await ownership.bundles(name.namespace_name)).of(name)
    if ownership.state(bundle) is BundleState.ELSEWHERE:
        raise NotOwnedError(name, ownership.view.owners[bundle].web, is_owner=True)
    await call.broker.registry.unload(name)
    return DONE


async def terminate_topic(call: Call) -> Reply:
    """Terminate a topic: it takes no more messages, for good. Returns the last position."""
    await call.refuse_partitioned("Termination of a partitioned topic is not allowed")
    topic = await call.topic()
    return message_id(topic, await topic.terminate())


async def last_message_id(call: Call) -> Reply:
    """The position of the last entry."""
    topic = await call.topic()
    return message_id(topic, topic.ledger.ledgers.last_confirmed)


async def delete_topic(call: Call) -> Reply:
    """Delete a topic that is not partitioned, with its subscriptions."""
    name, is_forced = call.topic_name, call.is_asked("force")
    if await call.partitions():
        raise RefusedError(
            409,
            f"{name} is a partitioned topic, instead of calling delete topic, please call "
            "delete-partitioned-topic.",
        )
    topic = await call.topic()
    if not is_forced:
        check_unused(topic)
    await call.broker.registry.delete(name, force=is_forced)
    return DONE


def check_unused(topic: Topic) -> None:
    """Raise `RefusedError` if clients are connected."""
    connected = len(topic.producers)
    connected += sum(len(s.consumers) for s in topic.subscriptions.values())
    if connected:
        raise RefusedError(412, f"Topic has {connected} connected producers/consumers")


async def _is_missing_partition(call: Call, name: TopicName) -> bool:
    """Whether it is a partition of a partitioned topic.

    Raises `RefusedError` for a name that only looks like a partition's.
    """
    like = _PARTITION_LIKE.fullmatch(name.local_name)
    if like is None:
        return False
    if name.is_partition:
        partitions = await call.broker.registry.stored_partition_count(name.partitioned)
        if name.partition_index < partitions:
            return True
    raise RefusedError(
        412,
        f'Can\'t create topic {name.local_name} with "-partition-" followed by numeric value '
        f"if there isn't a partitioned topic {like[1]} created.",
    )


def message_id(topic: Topic, position: Position) -> Reply:
    """A position in the form of Pulsar's ``MessageIdImpl``."""
    return json_reply(
        {
            "ledgerId": position.ledger_id,
            "entryId": position.entry_id,
            "partitionIndex": topic.partition,
            "batchIndex": -1,
            "batchSize": 0,
        }
    )


# ---- partitioned topics


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
    answer: dict[str, Any] = {"partitions": count, "deleted": False}
    if count and (properties := await call.broker.registry.partitioned_properties(name)):
        answer["properties"] = properties
    return json_reply(answer)


async def create_partitions(call: Call) -> Reply:
    """Create a partitioned topic; the body is their number, or `{"partitions": 4, "properties": {}}`."""
    name, count = call.topic_name, _count(call)
    body = call.json()
    properties = _properties_of(body.get("properties") if isinstance(body, dict) else None)
    if count < 1:
        raise RefusedError(406, "Number of partitions should be more than 0")
    try:
        await call.broker.registry.create_partitioned(name, count, properties)
    except TopicConflictError:
        raise topic_exists() from None
    except LimitReachedError as error:
        raise RefusedError(412, str(error)) from None  # Pulsar's status here; elsewhere it is 409
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


# ---- properties


async def get_properties(call: Call) -> Reply:
    """The properties of a topic."""
    if await call.partitions():
        return json_reply(await call.broker.registry.partitioned_properties(call.topic_name))
    return json_reply((await call.topic()).properties)


async def add_properties(call: Call) -> Reply:
    """Set these properties; others stay."""
    added = _properties_of(call.json())
    await _change_properties(call, lambda present: _properties_of({**present, **added}))
    return DONE


async def remove_property(call: Call) -> Reply:
    """Remove the property `?key=`."""
    key = call.query.get("key")
    await _change_properties(call, lambda present: {k: v for k, v in present.items() if k != key})
    return DONE


async def _change_properties(
    call: Call, change: Callable[[Mapping[str, str]], Mapping[str, str]]
) -> None:
    if await call.partitions():
        await call.broker.registry.change_partitioned_properties(call.topic_name, change)
    else:
        await (await call.topic()).change_properties(change)


def _properties_of(value: object) -> dict[str, str]:
    """Properties of a topic in JSON; none for None. Raises `RefusedError`."""
    properties = properties_in(value)
    if any(key.startswith(OWN_PREFIX) for key in properties):
        raise RefusedError(412, f"property names that begin with {OWN_PREFIX!r} are taken")
    if sum(map(len, (*properties, *properties.values()))) > PROPERTIES_CHARACTERS_MAX:
        raise RefusedError(
            412, f"properties of a topic have at most {PROPERTIES_CHARACTERS_MAX} characters"
        )
    return properties


_NAMESPACE: Final = "/admin/v2/persistent/{tenant}/{namespace}"
_NON_PERSISTENT: Final = "/admin/v2/non-persistent/{tenant}/{namespace}"
_TOPIC: Final = f"{_NAMESPACE}/{{topic}}"
_PARTITIONS: Final = f"{_TOPIC}/partitions"

ROUTES: Final = (
    Route("GET", _NAMESPACE, list_topics),
    Route("GET", "/admin/v2/namespaces/{tenant}/{namespace}/topics", list_topics_by_mode),
    Route("GET", _NON_PERSISTENT, list_non_persistent),
    Route("GET", f"{_NON_PERSISTENT}/partitioned", list_non_persistent),
    Route("PUT", _TOPIC, create_topic),
    Route("DELETE", _TOPIC, delete_topic),
    Route("GET", f"{_TOPIC}/properties", get_properties),
    Route("PUT", f"{_TOPIC}/properties", add_properties),
    Route("DELETE", f"{_TOPIC}/properties", remove_property),
    Route("PUT", f"{_TOPIC}/unload", unload_topic),
    Route("POST", f"{_TOPIC}/terminate", terminate_topic),
    Route("GET", f"{_TOPIC}/lastMessageId", last_message_id),
)

PARTITION_ROUTES: Final = (
    Route("GET", f"{_NAMESPACE}/partitioned", list_partitioned),
    Route("GET", _PARTITIONS, get_partitions),
    Route("PUT", _PARTITIONS, create_partitions),
    Route("POST", _PARTITIONS, update_partitions),
    Route("DELETE", _PARTITIONS, delete_partitions),
)
