"""Topics: listing, creating, unloading, terminating, deleting. Edge."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ackgate.broker.admin.http.call import DONE, json_reply
from ackgate.broker.admin.http.partition_calls import on_each
from ackgate.broker.admin.http.refusals import RefusedError, topic_exists
from ackgate.broker.admin.http.router import Route
from ackgate.broker.cluster import BundleState
from ackgate.broker.topic import TopicConflictError
from ackgate.broker.wire import NotOwnedError

if TYPE_CHECKING:
    from ackgate.broker.admin.http.call import Call, Reply
    from ackgate.broker.topic import Topic
    from ackgate.broker.wire import TopicName
    from ackgate.cursor import Position

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
    """Create a topic that is not partitioned."""
    name = call.topic_name
    registry = call.broker.registry
    if await _is_missing_partition(call, name):
        if await registry.exists(name):
            raise topic_exists()
        await call.require_here(name)
        await registry.topic(name, create=False)  # recreates a partition that was lost
        return DONE
    await call.require_here(name)
    try:
        await registry.create(name)
    except TopicConflictError:
        raise topic_exists() from None
    return DONE


async def unload_topic(call: Call) -> Reply:
    """Close a topic, or all of its partitions; the next use loads it again."""
    if partitions := await call.partitions():
        await on_each(call, partitions, unload_topic)
        return DONE
    name, ownership = call.topic_name, call.broker.ownership
    bundle = (await ownership.bundles(name.namespace_name)).of(name)
    if ownership.state(bundle) is BundleState.ELSEWHERE:
        raise NotOwnedError(name, ownership.view.owners[bundle].web, is_owner=True)
    await call.broker.registry.unload(name)
    return DONE


async def terminate_topic(call: Call) -> Reply:
    """Terminate a topic: it takes no more messages, for good. Returns the last position."""
    if await call.partitions():
        raise RefusedError(405, "Termination of a partitioned topic is not allowed")
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


_NAMESPACE: Final = "/admin/v2/persistent/{tenant}/{namespace}"
_NON_PERSISTENT: Final = "/admin/v2/non-persistent/{tenant}/{namespace}"
_TOPIC: Final = f"{_NAMESPACE}/{{topic}}"

ROUTES: Final = (
    Route("GET", _NAMESPACE, list_topics),
    Route("GET", "/admin/v2/namespaces/{tenant}/{namespace}/topics", list_topics_by_mode),
    Route("GET", _NON_PERSISTENT, list_non_persistent),
    Route("GET", f"{_NON_PERSISTENT}/partitioned", list_non_persistent),
    Route("PUT", _TOPIC, create_topic),
    Route("DELETE", _TOPIC, delete_topic),
    Route("PUT", f"{_TOPIC}/unload", unload_topic),
    Route("POST", f"{_TOPIC}/terminate", terminate_topic),
    Route("GET", f"{_TOPIC}/lastMessageId", last_message_id),
)
