"""The broker itself: is it well, and what of its configuration changes while it runs. Edge."""

from __future__ import annotations

from importlib import metadata as packages
from typing import TYPE_CHECKING, Final

from ackgate.broker.admin.call import Reply, json_reply
from ackgate.broker.admin.refusals import RefusedError
from ackgate.broker.admin.router import Route
from ackgate.config.settings import DYNAMIC_KEYS
from ackgate.persistence.ports import SessionState

if TYPE_CHECKING:
    from ackgate.broker.admin.call import Call

_OK: Final = Reply(200, b"ok", "text/plain")
_CHANGED: Final = Reply(200)


async def health(call: Call) -> Reply:
    """Whether metadata can be read and the broker takes connections."""
    metadata = call.broker.parts.metadata
    if metadata.session_state is not SessionState.CONNECTED:
        raise RefusedError(503, f"metadata store: session is {metadata.session_state.value}")
    await metadata.children("/")
    return _OK


async def version(_: Call) -> Reply:
    """Of this package."""
    try:
        text = packages.version("ackgate")
    except packages.PackageNotFoundError:  # run from a source tree
        text = "0"
    return Reply(200, text.encode(), "text/plain")


async def list_brokers(call: Call) -> Reply:
    """All that live."""
    return json_reply(sorted(call.broker.ownership.view.brokers))


async def leader(call: Call) -> Reply:
    """The one that has been there for the longest time. It has no other privilege."""
    broker = call.broker.ownership.view.leader
    if broker is None:
        raise RefusedError(404, "Couldn't find leader broker")
    return json_reply({"serviceUrl": broker.web_url, "brokerId": broker.broker_id})


async def owned_namespaces(call: Call) -> Reply:
    """The bundles of a broker."""
    view, broker_id = call.broker.ownership.view, call.parameters["broker"]
    if broker_id not in view.brokers:
        raise RefusedError(404, f"Broker {broker_id} not found")
    status = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
    owned = sorted(str(b) for b, owner in view.owners.items() if owner.broker_id == broker_id)
    return json_reply(dict.fromkeys(owned, status))


async def list_clusters(call: Call) -> Reply:
    """There is one."""
    return json_reply([call.broker.parts.settings.broker.cluster_name])


async def get_cluster(call: Call) -> Reply:
    """Its addresses."""
    if call.parameters["cluster"] != call.broker.parts.settings.broker.cluster_name:
        raise RefusedError(404, "Cluster does not exist")
    return json_reply(
        {"serviceUrl": call.broker.web_url, "brokerServiceUrl": call.broker.service_url}
    )


async def dynamic_keys(call: Call) -> Reply:
    """What can be changed while the broker runs."""
    return json_reply(call.broker.dynamic.keys)


async def dynamic_values(call: Call) -> Reply:
    """What was changed."""
    return json_reply(call.broker.dynamic.values)


async def runtime_configuration(call: Call) -> Reply:
    """Every setting in force, as a ``broker.conf`` would say it; no secrets."""
    return json_reply(call.broker.parts.settings.texts())


async def set_dynamic(call: Call) -> Reply:
    """Change a key, durably; holds from now on."""
    key = call.parameters["key"]
    if key not in DYNAMIC_KEYS:
        raise RefusedError(412, "Can't update non-dynamic configuration")
    await call.broker.dynamic.change(key, call.parameters["value"])
    return _CHANGED


async def clear_dynamic(call: Call) -> Reply:
    """Take a change back."""
    key = call.parameters["key"]
    if key not in DYNAMIC_KEYS:
        raise RefusedError(412, "Can't delete non-dynamic configuration")
    await call.broker.dynamic.change(key, None)
    return _CHANGED


def broker_id(call: Call) -> str:
    """``host:port`` of the admin interface, by which Pulsar calls a broker."""
    return call.broker.broker_id


_BROKERS: Final = "/admin/v2/brokers"
_CONFIGURATION: Final = f"{_BROKERS}/configuration"

ROUTES: Final = (
    Route("GET", f"{_BROKERS}/health", health),
    Route("GET", f"{_BROKERS}/ready", health),
    Route("GET", f"{_BROKERS}/version", version),
    Route("GET", f"{_BROKERS}/leaderBroker", leader),
    Route("GET", _CONFIGURATION, dynamic_keys),
    Route("GET", f"{_CONFIGURATION}/values", dynamic_values),
    Route("GET", f"{_CONFIGURATION}/runtime", runtime_configuration),
    Route("POST", f"{_CONFIGURATION}/{{key}}/{{value}}", set_dynamic),
    Route("DELETE", f"{_CONFIGURATION}/{{key}}", clear_dynamic),
    Route("GET", _BROKERS, list_brokers),
    Route("GET", f"{_BROKERS}/{{cluster}}", list_brokers),
    Route("GET", f"{_BROKERS}/{{cluster}}/{{broker}}/ownedNamespaces", owned_namespaces),
    Route("GET", "/admin/v2/clusters", list_clusters),
    Route("GET", "/admin/v2/clusters/{cluster}", get_cluster),
)
