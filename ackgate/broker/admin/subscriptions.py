"""Subscriptions: listing, creating, deleting, their properties. Edge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.broker.admin.call import DONE, CursorTarget, json_reply, subscription_of
from ackgate.broker.admin.refusals import RefusedError, subscription_not_found, topic_not_found
from ackgate.broker.admin.router import Route
from ackgate.broker.errors import TopicNotFoundError
from ackgate.cursor.position import LATEST

if TYPE_CHECKING:
    from ackgate.broker.admin.call import Call, Reply
    from ackgate.broker.topic import Topic

PROPERTIES_MAX: Final = 100
"""Properties of one subscription; they lie in its metadata node."""


async def list_subscriptions(call: Call) -> Reply:
    """Names of the subscriptions of a topic, or of any of its partitions."""
    names = {name: None for topic in await call.parts() for name in topic.subscriptions}
    return json_reply(list(names))


async def create_subscription(call: Call) -> Reply:
    """A durable subscription at a position; without one behind the last message.

    A topic that does not exist is made where topics may be made by being asked for.
    """
    name = call.subscription_name
    body = call.json()
    position = LATEST if body is None else CursorTarget.read(body).position
    properties = _properties(body.get("properties")) if isinstance(body, dict) else {}
    made = 0
    for topic in await _parts_or_new(call):
        if name not in topic.subscriptions:
            await topic.subscription(name, position, properties=properties, by_client=False)
            made += 1
    if not made:
        raise RefusedError(409, "Subscription already exists for topic")
    return DONE


async def delete_subscription(call: Call) -> Reply:
    """Delete a subscription; with ``force=true`` one that has consumers too."""
    name = call.subscription_name
    topics = await call.parts()
    found = [topic.subscriptions[name] for topic in topics if name in topic.subscriptions]
    if not found:
        if len(topics) > 1:
            raise RefusedError(404, "Subscription not found")
        raise subscription_not_found(name, topics[0].name)
    if not call.is_asked("force") and any(subscription.consumers for subscription in found):
        raise RefusedError(412, "Subscription has active connected consumers")
    for subscription in found:
        await subscription.delete()
    return DONE


async def get_properties(call: Call) -> Reply:
    """What users attached to a subscription."""
    parts = await call.parts()
    store = subscription_of(parts[0], call.subscription_name).store
    return json_reply(dict(store.cursor_properties) if store is not None else {})


async def set_properties(call: Call) -> Reply:
    """Replace what users attached to a subscription, durably."""
    properties = _properties(call.json())
    for topic in await call.parts():
        store = subscription_of(topic, call.subscription_name).store
        if store is None:
            raise RefusedError(412, "the subscription of a reader keeps no properties")
        await store.set_cursor_properties(properties)
    return DONE


async def _parts_or_new(call: Call) -> list[Topic]:
    """The topic in the path or its partitions, made if need be and allowed."""
    name, registry = call.topic_name, call.broker.registry
    try:
        count = await registry.partition_count(name, create=True)
        names = [name.partition(index) for index in range(count)] or [name]
        return [await registry.topic(part, create=True) for part in names]
    except TopicNotFoundError:
        raise topic_not_found(name) from None


def _properties(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if (
        not isinstance(value, dict)
        or len(value) > PROPERTIES_MAX
        or not all(isinstance(text, str) for text in value.values())
    ):
        raise RefusedError(400, f"properties must be at most {PROPERTIES_MAX} texts by name")
    return value


_TOPIC: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_SUBSCRIPTION: Final = f"{_TOPIC}/subscription/{{subscription}}"

ROUTES: Final = (
    Route("GET", f"{_TOPIC}/subscriptions", list_subscriptions),
    Route("PUT", _SUBSCRIPTION, create_subscription),
    Route("DELETE", _SUBSCRIPTION, delete_subscription),
    Route("GET", f"{_SUBSCRIPTION}/properties", get_properties),
    Route("PUT", f"{_SUBSCRIPTION}/properties", set_properties),
)
