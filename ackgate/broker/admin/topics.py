"""Topics: listing, creating, unloading, terminating, deleting. Edge."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ackgate.broker.admin.call import DONE, json_reply
from ackgate.broker.admin.namespaces import check_namespace_exists
from ackgate.broker.admin.partition_calls import on_each
from ackgate.broker.admin.refusals import RefusedError, topic_exists
from ackgate.broker.admin.router import Route
from ackgate.broker.bundle_states import BundleState
from ackgate.broker.errors import NotOwnedError
from ackgate.broker.registry import TopicConflictError

if TYPE_CHECKING:
    from ackgate.broker.admin.call import Call, Reply
    from ackgate.broker.names import TopicName
    from ackgate.broker.topic import Topic
    from ackgate.cursor.position import Position

_PARTITION_LIKE: Final = re.compile(r"(.*)-partition-[0-9]+")


async def list_topics(call: Call) -> Reply:
    """Every topic and partition of a namespace, loaded or not."""
    await check_namespace_exists(call)
    return json_reply(await call.broker.registry.topic_names(call.namespace_name))


async def create_topic(call: Call) -> Reply:
    """A topic that is not partitioned."""
    name = call.topic_name
    registry = call.broker.registry
    if await _is_missing_partition(call, name):
        if await registry.exists(name):
            raise topic_exists()
        await call.require_here(name)
        await registry.topic(name, create=False)  # a partition that was lost comes back
        return DONE
    await call.require_here(name)
    try:
        await registry.create(name)
    except TopicConflictError:
        raise topic_exists() from None
    return DONE


async def unload_topic(call: Call) -> Reply:
    """Close a topic (all its partitions); the next who asks loads it again."""
    if partitions := await call.partitions():
        await on_each(call, partitions, unload_topic)
        return DONE
    name, ownership = call.topic_name, call.broker.ownership
    bundle = (await ownership.bundles(name.namespace_name)).of(name)
    if ownership.state(bundle) is BundleState.ELSEWHERE:
        raise NotOwnedError(name, ownership.view.owners[bundle].web_url, is_owner=True)
    await call.broker.registry.unload(name)
    return DONE


async def terminate_topic(call: Call) -> Reply:
    """Take no more messages, for good."""
    if await call.partitions():
        raise RefusedError(405, "Termination of a partitioned topic is not allowed")
    topic = await call.topic()
    return _message_id(topic, await topic.terminate())


async def last_message_id(call: Call) -> Reply:
    """The last entry."""
    topic = await call.topic()
    return _message_id(topic, topic.ledger.facts.last_confirmed)


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
    """Refuses while clients are connected."""
    connected = len(topic.producers)
    connected += sum(len(s.consumers) for s in topic.subscriptions.values())
    if connected:
        raise RefusedError(412, f"Topic has {connected} connected producers/consumers")


async def _is_missing_partition(call: Call, name: TopicName) -> bool:
    """Whether it names a partition of a partitioned topic. Refuses what only looks like one."""
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


def _message_id(topic: Topic, position: Position) -> Reply:
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
_TOPIC: Final = f"{_NAMESPACE}/{{topic}}"

ROUTES: Final = (
    Route("GET", _NAMESPACE, list_topics),
    Route("GET", "/admin/v2/namespaces/{tenant}/{namespace}/topics", list_topics),
    Route("PUT", _TOPIC, create_topic),
    Route("DELETE", _TOPIC, delete_topic),
    Route("PUT", f"{_TOPIC}/unload", unload_topic),
    Route("POST", f"{_TOPIC}/terminate", terminate_topic),
    Route("GET", f"{_TOPIC}/lastMessageId", last_message_id),
)
