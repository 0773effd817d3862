"""Subscriptions: listing, creating, deleting, their properties; those of a whole namespace or bundle. Edge.

The bundles of a namespace are asked side by side, each at the broker that serves it, and so are the topics
of a bundle there, loaded or not. Where some refuse, what the others did stays done. A topic without a
subscription of the name is left alone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from ackgate.broker.admin.bundles import bundle_named, located
from ackgate.broker.admin.http.call import (
    AUTHORITATIVE,
    DONE,
    CursorTarget,
    json_reply,
    properties_in,
)
from ackgate.broker.admin.http.peers import (
    bundle_path,
    on_each,
    on_each_tried,
    on_partitions,
    raise_refusal,
    side_by_side,
)
from ackgate.broker.admin.http.refusals import RefusedError, topic_not_found
from ackgate.broker.admin.http.router import Route
from ackgate.broker.wire import NotOwnedError, TopicName, TopicNotFoundError
from ackgate.cursor import LATEST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from ackgate.broker.admin.http.call import Call, Reply
    from ackgate.broker.cluster import Bundle
    from ackgate.broker.topic import SubscriptionDriver, Topic


async def list_subscriptions(call: Call) -> Reply:
    """The names of the subscriptions of a topic, or of any of its partitions."""
    partitions = await call.partitions()
    if not partitions:
        return json_reply(list((await call.topic()).subscriptions))
    replies = await on_each(call, partitions, list_subscriptions)
    return json_reply(list({name: None for reply in replies for name in json.loads(reply.body)}))


async def create_subscription(call: Call) -> Reply:
    """Create a durable subscription at the position in the body; default: after the last message.

    A topic that does not exist is made where topics may be made by being asked for.
    """
    name = call.subscription_name
    body = call.json()
    position = LATEST if body is None else CursorTarget.read(body).position
    properties = properties_in(body.get("properties")) if isinstance(body, dict) else {}
    if partitions := await _partitions_or_new(call):
        replies = await on_each_tried(call, partitions, create_subscription)
        _check_some_succeeded(replies, besides=409)
        return DONE
    topic = await _topic_or_new(call)
    if name in topic.subscriptions:
        raise RefusedError(409, "Subscription already exists for topic")
    await topic.subscription(name, position, properties=properties, by_client=False)
    return DONE


async def delete_subscription(call: Call) -> Reply:
    """Delete a subscription; `?force=true` also one that has consumers."""
    name, is_forced = call.subscription_name, call.is_asked("force")
    if partitions := await call.partitions():
        if not is_forced:  # before any is deleted, as far as this broker can see
            for topic in filter(None, map(call.broker.registry.loaded, partitions)):
                check_unused(topic.subscriptions.get(name))
        replies = await on_each_tried(call, partitions, delete_subscription)
        if len(replies) > 1 and all(reply.status == 404 for reply in replies):
            raise RefusedError(404, "Subscription not found")
        _check_some_succeeded(replies, besides=404)
        return DONE
    subscription = await call.subscription()
    if not is_forced:
        check_unused(subscription)
    await subscription.delete()
    return DONE


async def get_properties(call: Call) -> Reply:
    """The properties that users attached to a subscription."""
    if partitions := await call.partitions():
        return (await on_each(call, partitions[:1], get_properties))[0]
    store = (await call.subscription()).store
    return json_reply(dict(store.cursor_properties) if store is not None else {})


async def set_properties(call: Call) -> Reply:
    """Replace these properties, durably."""
    properties = properties_in(call.json())
    if await on_partitions(call, set_properties):
        return DONE
    store = (await call.subscription()).store
    if store is None:
        raise RefusedError(412, "the subscription of a reader keeps no properties")
    await store.set_cursor_properties(properties)
    return DONE


async def _partitions_or_new(call: Call) -> list[TopicName]:
    """The partitions of the topic in the path. Creates the topic if that is allowed."""
    name = call.topic_name
    try:
        count = await call.broker.registry.partition_count(name, create=True)
    except TopicNotFoundError:
        raise topic_not_found(name) from None
    return [name.partition(index) for index in range(count)]


async def _topic_or_new(call: Call) -> Topic:
    name = call.topic_name
    await call.require_here(name)
    try:
        return await call.broker.registry.topic(name, create=True)
    except TopicNotFoundError:
        raise topic_not_found(name) from None


def _check_some_succeeded(replies: list[Reply], *, besides: int) -> None:
    """Raise a refusal if all replies are refusals, or if one has another status than `besides`."""
    refusals = [reply for reply in replies if reply.status >= 300]
    for reply in refusals:
        if reply.status != besides or len(refusals) == len(replies):
            raise_refusal(reply)


def check_unused(subscription: SubscriptionDriver | None) -> None:
    """Raise `RefusedError` if consumers are connected."""
    if subscription is not None and subscription.consumers:
        raise RefusedError(412, "Subscription has active connected consumers")


# ---- of a whole namespace or bundle


class _Change(NamedTuple):
    """A change of subscriptions, and its path."""

    path: str
    """Behind the path of a namespace or bundle. With ``{subscription}`` only those of that name."""
    meaning: str
    apply: Callable[[SubscriptionDriver], Awaitable[object]]

    @property
    def is_of_one(self) -> bool:
        return "{subscription}" in self.path


async def _unsubscribe(subscription: SubscriptionDriver) -> None:
    check_unused(subscription)
    await subscription.delete()


async def _clear(subscription: SubscriptionDriver) -> None:
    await subscription.clear_backlog()


_CHANGES: Final = (
    _Change("clearBacklog", "Ack everything that its topics hold, for all subscriptions", _clear),
    _Change(
        "clearBacklog/{subscription}",
        "Ack everything that its topics hold, for the subscriptions of this name",
        _clear,
    ),
    _Change(
        "unsubscribe/{subscription}",
        "Delete the subscriptions of this name of its topics; one with consumers stays, and is "
        "refused",
        _unsubscribe,
    ),
)


async def _on_namespace(call: Call, change: _Change) -> Reply:
    await call.require_namespace()
    bundles = await call.broker.ownership.bundles(call.namespace_name)
    names = await _topic_names(call)

    async def ask(bundle: Bundle) -> Reply:
        location = await located(call, bundle)
        if location.is_here:
            return await _on_topics(call, change, [n for n in names if bundles.of(n) == bundle])
        path = f"{bundle_path(bundle)}/{change.path}"
        if change.is_of_one:
            path = path.replace("{subscription}", quote(call.subscription_name, safe=""))
        if not location.is_owner:
            path += f"?{AUTHORITATIVE}=true"
        return await call.broker.peers.ask(location.web, call.method, path)

    return _done(await side_by_side(ask, dict.fromkeys(map(bundles.of, names))))


async def _on_bundle(call: Call, change: _Change) -> Reply:
    await call.require_namespace()
    bundle = await bundle_named(call)
    location = await located(call, bundle, is_authoritative=call.is_asked(AUTHORITATIVE))
    if not location.is_here:
        raise NotOwnedError(bundle, location.web, is_owner=location.is_owner)
    bundles = await call.broker.ownership.bundles(call.namespace_name)
    names = [name for name in await _topic_names(call) if bundles.of(name) == bundle]
    return await _on_topics(call, change, names)


async def _on_topics(call: Call, change: _Change, names: Iterable[TopicName]) -> Reply:
    async def apply(subscription: SubscriptionDriver) -> Reply:
        await change.apply(subscription)
        return DONE

    async def ask(name: TopicName) -> Reply:
        subscriptions = dict((await call.loaded(name)).subscriptions)
        if change.is_of_one:
            wanted = call.subscription_name
            subscriptions = {n: each for n, each in subscriptions.items() if n == wanted}
        return _done(await side_by_side(apply, subscriptions.values()))

    return _done(await side_by_side(ask, names))


async def _topic_names(call: Call) -> list[TopicName]:
    return list(map(TopicName.parse, await call.broker.registry.topic_names(call.namespace_name)))


def _done(replies: Iterable[Reply]) -> Reply:
    """Raises the first refusal, but for a topic or subscription that was deleted meanwhile."""
    for reply in replies:
        if reply.status != 404:
            raise_refusal(reply)
    return DONE


_TOPIC: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_SUBSCRIPTION: Final = f"{_TOPIC}/subscription/{{subscription}}"

_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
_BUNDLE: Final = f"{_NAMESPACE}/{{bundle}}"


def _routes(change: _Change) -> tuple[Route, ...]:
    async def of_namespace(call: Call) -> Reply:
        return await _on_namespace(call, change)

    async def of_bundle(call: Call) -> Reply:
        return await _on_bundle(call, change)

    return (
        Route("POST", f"{_NAMESPACE}/{change.path}", of_namespace, change.meaning),
        Route("POST", f"{_BUNDLE}/{change.path}", of_bundle, change.meaning),
    )


ROUTES: Final = (
    Route("GET", f"{_TOPIC}/subscriptions", list_subscriptions),
    Route("PUT", _SUBSCRIPTION, create_subscription),
    Route("DELETE", _SUBSCRIPTION, delete_subscription),
    Route("GET", f"{_SUBSCRIPTION}/properties", get_properties),
    Route("PUT", f"{_SUBSCRIPTION}/properties", set_properties),
    *(route for change in _CHANGES for route in _routes(change)),
)
