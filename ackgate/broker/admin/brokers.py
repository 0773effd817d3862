"""The broker itself: whether it is well, its cluster, and settings that change while it runs.

Edge.
"""

from __future__ import annotations

from importlib import metadata as packages
from typing import TYPE_CHECKING, Final

from ackgate.broker.admin.http.call import Reply, json_reply
from ackgate.broker.admin.http.refusals import RefusedError
from ackgate.broker.admin.http.router import Route
from ackgate.config.field import is_secret
from ackgate.config.settings import DYNAMIC_KEYS, FIELDS, HIDDEN
from ackgate.persistence.nodes.paths import LEDGERS
from ackgate.persistence.ports import SessionState

if TYPE_CHECKING:
    from ackgate.broker.admin.http.call import Call

_OK: Final = Reply(200, b"ok", "text/plain")
_CHANGED: Final = Reply(200)


async def health(call: Call) -> Reply:
    """200 if metadata can be read and the broker takes connections."""
    metadata = call.broker.services.metadata
    if metadata.session_state is not SessionState.CONNECTED:
        raise RefusedError(503, f"metadata store: session is {metadata.session_state.value}")
    await metadata.children("/")
    return _OK


async def version(_: Call) -> Reply:
    """The version of this package."""
    try:
        text = packages.version("ackgate")
    except packages.PackageNotFoundError:  # run from a source tree
        text = "0"
    return Reply(200, text.encode(), "text/plain")


async def list_brokers(call: Call) -> Reply:
    return json_reply(sorted(call.broker.ownership.view.brokers))


async def list_brokers_of_cluster(call: Call) -> Reply:
    """All live brokers of this cluster; another name is not found."""
    _check_cluster(call)
    return await list_brokers(call)


async def internal_configuration(call: Call) -> Reply:
    """Where the metadata are, for tools that look into them: Pulsar's ``InternalConfigurationData``."""
    keys = (
        "zookeeperServers",
        "configurationStoreServers",
        "metadataStoreUrl",
        "configurationMetadataStoreUrl",
    )
    return json_reply({**dict.fromkeys(keys, call.broker.metadata_url), "ledgersRootPath": LEDGERS})


async def leader(call: Call) -> Reply:
    """The broker with the longest session; it has no further duty."""
    broker = call.broker.ownership.view.leader
    if broker is None:
        raise RefusedError(404, "Couldn't find leader broker")
    return json_reply({"serviceUrl": broker.web.any, "brokerId": broker.broker_id})


async def owned_namespaces(call: Call) -> Reply:
    """The bundles that a broker owns."""
    view, broker_id = call.broker.ownership.view, call.parameters["broker"]
    if broker_id not in view.brokers:
        raise RefusedError(404, f"Broker {broker_id} not found")
    status = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
    owned = sorted(str(b) for b, owner in view.owners.items() if owner.broker_id == broker_id)
    return json_reply(dict.fromkeys(owned, status))


async def list_clusters(call: Call) -> Reply:
    """The name of this cluster, in a list."""
    return json_reply([call.broker.services.settings.broker.cluster_name])


async def get_cluster(call: Call) -> Reply:
    """The addresses of this cluster."""
    _check_cluster(call)
    return json_reply(
        {
            "serviceUrl": call.broker.web.plain,
            "serviceUrlTls": call.broker.web.tls,
            "brokerServiceUrl": call.broker.service.plain,
            "brokerServiceUrlTls": call.broker.service.tls,
        }
    )


async def dynamic_keys(call: Call) -> Reply:
    """The keys that can be changed while the broker runs."""
    return json_reply(call.broker.dynamic.keys)


async def dynamic_values(call: Call) -> Reply:
    """The keys that were changed, with their values; no secrets."""
    values = call.broker.dynamic.values
    hidden = {key: HIDDEN for key in values if is_secret(FIELDS[key])}
    return json_reply({**values, **hidden})


async def runtime_configuration(call: Call) -> Reply:
    """Every setting in force, as texts of a ``broker.conf``; no secrets."""
    return json_reply(call.broker.services.settings.texts())


async def set_dynamic(call: Call) -> Reply:
    """Change a key, durably; it takes effect at once."""
    key = call.parameters["key"]
    if key not in DYNAMIC_KEYS:
        raise RefusedError(412, "Can't update non-dynamic configuration")
    await call.broker.dynamic.change(key, call.parameters["value"])
    return _CHANGED


async def clear_dynamic(call: Call) -> Reply:
    """Take a change back, durably."""
    key = call.parameters["key"]
    if key not in DYNAMIC_KEYS:
        raise RefusedError(412, "Can't delete non-dynamic configuration")
    await call.broker.dynamic.change(key, None)
    return _CHANGED


def _check_cluster(call: Call) -> None:
    if call.parameters["cluster"] != call.broker.services.settings.broker.cluster_name:
        raise RefusedError(404, "Cluster does not exist")


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
    Route("GET", f"{_BROKERS}/internal-configuration", internal_configuration),
    Route("GET", _BROKERS, list_brokers),
    Route("GET", f"{_BROKERS}/{{cluster}}", list_brokers_of_cluster),
    Route("GET", f"{_BROKERS}/{{cluster}}/{{broker}}/ownedNamespaces", owned_namespaces),
    Route("GET", "/admin/v2/clusters", list_clusters),
    Route("GET", "/admin/v2/clusters/{cluster}", get_cluster),
)
