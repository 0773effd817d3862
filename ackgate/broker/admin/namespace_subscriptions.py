"""Subscriptions of all topics of a namespace or a bundle: their backlog cleared, one of them deleted.

Edge. The bundles of a namespace are asked side by side, each at the broker that serves it, and so are
the topics of a bundle there, loaded or not. Where some refuse, what the others did stays done. A topic
without a subscription of the name is left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from ackgate.broker.admin.bundles import bundle_named, located
from ackgate.broker.admin.http.call import AUTHORITATIVE, DONE
from ackgate.broker.admin.http.partition_calls import raise_refusal, side_by_side
from ackgate.broker.admin.http.peers import bundle_path
from ackgate.broker.admin.http.router import Route
from ackgate.broker.admin.subscriptions import check_unused
from ackgate.broker.wire import NotOwnedError, TopicName

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from ackgate.broker.admin.http.call import Call, Reply
    from ackgate.broker.cluster import Bundle
    from ackgate.broker.topic import SubscriptionDriver


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


ROUTES: Final = tuple(route for change in _CHANGES for route in _routes(change))
