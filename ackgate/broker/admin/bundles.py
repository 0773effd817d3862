"""Bundles: which there are, giving them away, and where a topic is served (lookup over HTTP). Edge."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ackgate.broker.admin.http.call import AUTHORITATIVE, DONE, Reply, json_reply
from ackgate.broker.admin.http.peers import bundle_path, raise_refusal, side_by_side
from ackgate.broker.admin.http.refusals import RefusedError
from ackgate.broker.admin.http.router import Route
from ackgate.broker.cluster import LOCATE_SECONDS_MAX, BundleState
from ackgate.broker.wire import NotOwnedError

if TYPE_CHECKING:
    from ackgate.broker.admin.http.call import Call
    from ackgate.broker.cluster import Bundle, Location
    from ackgate.persistence.nodes.owner_nodes import BrokerRecord


async def list_bundles(call: Call) -> Reply:
    """The bundles of a namespace: their boundaries."""
    await call.require_namespace()
    return json_reply((await call.broker.ownership.bundles(call.namespace_name)).to_json())


async def unload_namespace(call: Call) -> Reply:
    """Close every topic of a namespace; the next lookup of one loads it again, at any broker."""
    await call.require_namespace()
    bundles = await call.broker.ownership.bundles(call.namespace_name)
    for reply in await side_by_side(lambda bundle: _unload(call, bundle), bundles):
        raise_refusal(reply)
    return DONE


async def unload_bundle(call: Call) -> Reply:
    """Close every topic of a bundle; `?destinationBroker=` serves it from then on."""
    bundle = await bundle_named(call)
    destination = _destination(call)
    ownership = call.broker.ownership
    await ownership.look(bundle)
    if ownership.state(bundle) is BundleState.ELSEWHERE:
        owner = ownership.view.owners[bundle]
        raise NotOwnedError(bundle, owner.web, is_owner=True)
    await ownership.release(bundle, destination)
    return DONE


async def acquire_bundle(call: Call) -> Reply:
    """Acquire a bundle that no broker owns; the broker that released it asks for this (ours)."""
    bundle = await bundle_named(call)
    location = await located(call, bundle, is_authoritative=True)
    if not location.is_here:
        raise RefusedError(409, f"bundle {bundle} is owned by {location.broker_id}")
    return DONE


async def _unload(call: Call, bundle: Bundle) -> Reply:
    ownership = call.broker.ownership
    await ownership.look(bundle)
    if ownership.state(bundle) is BundleState.ELSEWHERE:
        owner = ownership.view.owners[bundle]
        return await call.broker.peers.ask(owner.web, "PUT", f"{bundle_path(bundle)}/unload")
    await ownership.release(bundle)
    return DONE


async def located(call: Call, bundle: Bundle, *, is_authoritative: bool = False) -> Location:
    """The broker that serves a bundle, as `Ownership.locate_bundle`.

    Raises `RefusedError` (503) if that is not known in time.
    """
    try:
        async with asyncio.timeout(LOCATE_SECONDS_MAX):
            return await call.broker.ownership.locate_bundle(
                bundle, is_authoritative=is_authoritative
            )
    except TimeoutError:
        raise RefusedError(503, f"bundle {bundle} is changing hands") from None


async def bundle_named(call: Call) -> Bundle:
    """The bundle in the path. Raises `BadBundleError` if the namespace has no such bundle."""
    bundles = await call.broker.ownership.bundles(call.namespace_name)
    return bundles.named(call.parameters["bundle"])


def _destination(call: Call) -> BrokerRecord | None:
    wanted = call.query.get("destinationBroker")
    if not wanted:
        return None
    broker = call.broker.ownership.view.brokers.get(wanted)
    if broker is None:
        raise RefusedError(412, f"destinationBroker {wanted!r} is no broker that lives")
    return broker


# ---- lookups over HTTP


async def look_up(call: Call) -> Reply:
    """The addresses of the broker that serves the topic, which may not exist; those of `?listenerName=`.

    Without it, of the listener in the header `X-Pulsar-ListenerName`, else of that of the port.
    """
    name = call.topic_name
    found = await call.broker.ownership.locate(name, is_authoritative=call.is_asked(AUTHORITATIVE))
    if not found.is_owner:
        raise NotOwnedError(name, found.web, is_owner=False)
    listener = call.query.get("listenerName") or call.listener
    service = call.broker.ownership.reached_by(found, listener)
    web = call.broker.ownership.web_reached_by(found.web, listener)
    return json_reply(
        {
            "brokerUrl": service.plain,
            "brokerUrlTls": service.tls,
            "httpUrl": web.plain,
            "httpUrlTls": web.tls,
            "nativeUrl": service.plain,
            "brokerUrlSsl": service.tls,
        }
    )


async def bundle(call: Call) -> Reply:
    """The bundle that the topic falls into; any broker knows."""
    name = call.topic_name
    bundles = await call.broker.ownership.bundles(name.namespace_name)
    return Reply(200, bundles.of(name).range_name.encode(), "text/plain")


_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
_BUNDLE: Final = f"{_NAMESPACE}/{{bundle}}"
_TOPIC: Final = "/lookup/v2/topic/persistent/{tenant}/{namespace}/{topic}"

ROUTES: Final = (
    Route("GET", f"{_NAMESPACE}/bundles", list_bundles),
    Route("PUT", f"{_NAMESPACE}/unload", unload_namespace),
    Route("PUT", f"{_BUNDLE}/unload", unload_bundle),
    Route("PUT", f"{_BUNDLE}/acquire", acquire_bundle),
    Route("GET", _TOPIC, look_up),
    Route("GET", f"{_TOPIC}/bundle", bundle),
)
