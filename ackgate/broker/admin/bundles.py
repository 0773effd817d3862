"""The bundles of a namespace: which there are, and giving them away. Edge."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ackgate.broker.admin.call import DONE, json_reply
from ackgate.broker.admin.namespaces import check_namespace_exists
from ackgate.broker.admin.partition_calls import raise_refusal
from ackgate.broker.admin.peers import bundle_path
from ackgate.broker.admin.refusals import RefusedError
from ackgate.broker.admin.router import Route
from ackgate.broker.bundle_states import BundleState
from ackgate.broker.errors import NotOwnedError
from ackgate.broker.ownership import LOCATE_SECONDS_MAX

if TYPE_CHECKING:
    from ackgate.broker.admin.call import Call, Reply
    from ackgate.broker.bundles import Bundle
    from ackgate.persistence.owner_nodes import BrokerRecord


async def list_bundles(call: Call) -> Reply:
    """Where a namespace is cut."""
    await check_namespace_exists(call)
    return json_reply((await call.broker.ownership.bundles(call.namespace_name)).told())


async def unload_namespace(call: Call) -> Reply:
    """Close every topic of a namespace; whoever asks for one has it loaded again, anywhere."""
    await check_namespace_exists(call)
    bundles = await call.broker.ownership.bundles(call.namespace_name)
    for reply in await asyncio.gather(*(_unload(call, bundle) for bundle in bundles)):
        raise_refusal(reply)
    return DONE


async def unload_bundle(call: Call) -> Reply:
    """Close every topic of a bundle; ``destinationBroker`` shall serve it from then on."""
    bundle = await _bundle(call)
    destination = _destination(call)
    ownership = call.broker.ownership
    await ownership.look(bundle)
    if ownership.state(bundle) is BundleState.ELSEWHERE:
        owner = ownership.view.owners[bundle]
        raise NotOwnedError(bundle, owner.web_url, is_owner=True)
    await ownership.release(bundle, destination)
    return DONE


async def acquire_bundle(call: Call) -> Reply:
    """Take a bundle that nobody owns: asked for by the broker that had it."""
    bundle = await _bundle(call)
    try:
        async with asyncio.timeout(LOCATE_SECONDS_MAX):
            location = await call.broker.ownership.locate_bundle(bundle, is_authoritative=True)
    except TimeoutError:
        raise RefusedError(503, f"bundle {bundle} is changing hands") from None
    if not location.is_here:
        raise RefusedError(409, f"bundle {bundle} is owned by {location.broker_id}")
    return DONE


async def _unload(call: Call, bundle: Bundle) -> Reply:
    ownership = call.broker.ownership
    await ownership.look(bundle)
    if ownership.state(bundle) is BundleState.ELSEWHERE:
        owner = ownership.view.owners[bundle]
        return await call.broker.peers.ask(owner.web_url, "PUT", f"{bundle_path(bundle)}/unload")
    await ownership.release(bundle)
    return DONE


async def _bundle(call: Call) -> Bundle:
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


_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
_BUNDLE: Final = f"{_NAMESPACE}/{{bundle}}"

ROUTES: Final = (
    Route("GET", f"{_NAMESPACE}/bundles", list_bundles),
    Route("PUT", f"{_NAMESPACE}/unload", unload_namespace),
    Route("PUT", f"{_BUNDLE}/unload", unload_bundle),
    Route("PUT", f"{_BUNDLE}/acquire", acquire_bundle),
)
