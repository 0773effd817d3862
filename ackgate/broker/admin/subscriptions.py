"""Subscriptions: listing, creating, deleting, properties, moving cursors; all of a namespace or bundle. Edge.

The bundles of a namespace are asked side by side, each at the broker that serves it, and so are the topics
of a bundle there, loaded or not. Where some refuse, what the others did stays done. A topic without a
subscription of the name is left alone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from ackgate.broker.admin.bundles import bundle_named, located
from ackgate.broker.admin.http.call import (
    AUTHORITATIVE,
    DONE,
    integer_in,
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
from ackgate.broker.admin.http.refusals import RefusedError
from ackgate.broker.admin.http.router import Route
from ackgate.broker.wire import NotOwnedError, TopicName
from ackgate.cursor import EARLIEST, ENTRY_ID_MAX, LATEST, LEDGER_ID_MAX, Position

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from ackgate.broker.admin.http.call import Call, Reply
    from ackgate.broker.cluster import Bundle
    from ackgate.broker.topic import SubscriptionDriver


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
    if partitions := await call.partitions(create=True):
        replies = await on_each_tried(call, partitions, create_subscription)
        _check_some_succeeded(replies, besides=409)
        return DONE
    topic = await call.topic(create=True)
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


# ---- moving its cursor: skip, clear, reset to a time or a position, expire
#
# Each answers when the new state is durable. Consumers of a subscription that is reset are disconnected
# first; they reconnect by themselves.

BATCH_MESSAGES_MAX: Final = 1_000_000
"""Largest index of a message in its batch that is accepted."""


class CursorTarget(NamedTuple):
    """A new position for a cursor: Pulsar's ``ResetCursorData``."""

    position: Position
    is_excluded: bool
    """Whether the cursor moves behind the entry, and not to it."""
    batch_index: int
    """Index in the entry's batch; -1: the whole entry."""

    @classmethod
    def read(cls, value: Any) -> CursorTarget:  # noqa: ANN401 - JSON
        """Read it from a request's body. Raises `RefusedError` if that is not a position."""
        if not isinstance(value, dict):
            raise RefusedError(400, 'expected {"ledgerId": ..., "entryId": ...}')
        ledger_id, entry_id = (_member(value, key) for key in ("ledgerId", "entryId"))
        return cls(
            position=_position(ledger_id, entry_id),
            is_excluded=value.get("excluded", value.get("isExcluded", False)) is True,
            batch_index=_member({"batchIndex": -1, **value}, "batchIndex"),
        )


def _position(ledger_id: int, entry_id: int) -> Position:
    """A position from the Java client, where (-1, -1) is `EARLIEST`, (2^63-1, 2^63-1) `LATEST`."""
    if ledger_id < 0:
        return EARLIEST
    if ledger_id >= LEDGER_ID_MAX or entry_id > ENTRY_ID_MAX:
        return LATEST if ledger_id >= LEDGER_ID_MAX else Position(ledger_id, ENTRY_ID_MAX)
    return Position(ledger_id, max(entry_id, -1))


def _member(value: Mapping[str, Any], key: str) -> int:
    return integer_in(value.get(key), key)


async def skip_messages(call: Call) -> Reply:
    """Ack the next `entries` unacked entries."""
    entries = call.integer("entries")
    await call.refuse_partitioned("Skip messages on a partitioned topic is not allowed")
    await (await call.subscription()).skip(entries)
    return DONE


async def skip_all(call: Call) -> Reply:
    """Ack everything that the topic holds."""
    if await on_partitions(call, skip_all):
        return DONE
    await (await call.subscription()).clear_backlog()
    return DONE


async def reset_to_time(call: Call) -> Reply:
    """Read next from the first message published at this time (ms since 1970) or later."""
    publish_time_ms = call.integer("timestamp")
    if await on_partitions(call, reset_to_time):
        return DONE
    await (await call.subscription()).seek_to_time(publish_time_ms)
    return DONE


async def reset_to_position(call: Call) -> Reply:
    """Read next from the position in the body, or after it."""
    target = CursorTarget.read(call.json())
    await call.refuse_partitioned("Reset-cursor at position is not allowed for partitioned-topic")
    await _reset(await call.subscription(), target)
    return DONE


async def expire_messages(call: Call) -> Reply:
    """Ack what was published more than `seconds` ago."""
    seconds = call.integer("seconds")
    if await on_partitions(call, expire_messages):
        return DONE
    await _expire(await call.subscription(), seconds)
    return DONE


async def expire_to_position(call: Call) -> Reply:
    """Ack everything up to a position."""
    target = CursorTarget.read(call.json())
    await call.refuse_partitioned(
        "Expire message at position is not supported for partitioned-topic"
    )
    subscription = await call.subscription()
    position = target.position
    if target.is_excluded and position not in {EARLIEST, LATEST}:
        position = subscription.topic.ledger.ledgers.previous(position)
    await subscription.expire_through(position)
    return DONE


async def expire_all_subscriptions(call: Call) -> Reply:
    """The same for every subscription of a topic; a failure of one does not stop the others."""
    seconds = call.integer("seconds")
    if await on_partitions(call, expire_all_subscriptions):
        return DONE
    refusal: RefusedError | None = None
    for subscription in list((await call.topic()).subscriptions.values()):
        try:
            await _expire(subscription, seconds)
        except RefusedError as error:
            refusal = refusal or error
    if refusal is not None:
        raise refusal
    return DONE


async def _expire(subscription: SubscriptionDriver, seconds: int) -> None:
    if not subscription.cursor.backlog_entries:
        # Pulsar's words, twice a blank included.
        raise RefusedError(
            409,
            f"Expire message by timestamp not issued on topic {subscription.topic.name} for "
            f"subscription {subscription.name} due to ongoing message expiration not finished or "
            "subscription almost catch  up. If it's performed on a partitioned topic operation "
            "might succeeded on other partitions, please check stats of individual partition.",
        )
    await subscription.expire_older_than(seconds)


async def _reset(subscription: SubscriptionDriver, target: CursorTarget) -> None:
    position, index = target.position, target.batch_index
    ledger = subscription.topic.ledger
    if position in {EARLIEST, LATEST} or not ledger.ledgers.exists(position):
        await subscription.seek(position)
        return
    if index < 0:
        following = ledger.ledgers.next_valid(position)
        await subscription.seek(following if target.is_excluded else position)
        return
    index = min(index, BATCH_MESSAGES_MAX) + target.is_excluded
    if index == 0:
        await subscription.seek(position)
        return
    messages = (await ledger.reads.read_one(position)).metadata.num_messages_in_batch
    if index >= messages:
        await subscription.seek(ledger.ledgers.next_valid(position))
    else:
        await subscription.seek(position, (1 << messages) - (1 << index))


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

CURSOR_ROUTES: Final = (
    Route("POST", f"{_SUBSCRIPTION}/skip/{{entries}}", skip_messages),
    Route("POST", f"{_SUBSCRIPTION}/skip_all", skip_all),
    Route("POST", f"{_SUBSCRIPTION}/resetcursor", reset_to_position),
    Route("POST", f"{_SUBSCRIPTION}/resetcursor/{{timestamp}}", reset_to_time),
    Route("POST", f"{_SUBSCRIPTION}/expireMessages", expire_to_position),
    Route("POST", f"{_SUBSCRIPTION}/expireMessages/{{seconds}}", expire_messages),
    Route(
        "POST", f"{_TOPIC}/all_subscription/expireMessages/{{seconds}}", expire_all_subscriptions
    ),
)
