"""Where things lie in the metadata store, in Pulsar's layout and, below it, in ours.

Pure.

    /managed-ledgers/<tenant>/<namespace>/persistent/<topic>            a topic
    /managed-ledgers/<tenant>/<namespace>/persistent/<topic>/<cursor>   a cursor
    /ledgers/<ledger id>                                                a ledger
    /ackgate/delivery-journals/<tenant>/<namespace>/<topic>             a topic's delivery journal
    /admin/policies/<tenant>                                            a tenant
    /admin/policies/<tenant>/<namespace>                                a namespace's policies
    /admin/topic-policies/<tenant>/<namespace>/<topic>                  a topic's policies

Names come from clients. Each is percent-encoded whole, slashes and lone dots included, so that a
name is always exactly one node and none steps out of its place.

Some cursors a topic keeps for itself: they are no subscriptions, and users see none of them. What lies
below a topic's node under a name that is not in `HIDDEN_CURSORS` is a subscription.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

from ackgate.errors import CallerError

DEDUP_CURSOR: Final = "pulsar.dedup"
"""Keeps each producer's last sequence id."""

CANCELLED_CURSOR: Final = "pulsar.delayed-cancelled"
"""What it has acked are delayed messages that were cancelled."""

DELAYED_INDEX_CURSOR: Final = "pulsar.delayed-index"
"""Reads for the index of delayed messages that subscriptions share."""

HIDDEN_CURSORS: Final = frozenset({DEDUP_CURSOR, CANCELLED_CURSOR, DELAYED_INDEX_CURSOR})


MANAGED_LEDGERS: Final = "/managed-ledgers"
LEDGERS: Final = "/ledgers"
DELIVERY_JOURNALS: Final = "/ackgate/delivery-journals"
NAMESPACE_POLICIES: Final = "/admin/policies"
TOPIC_POLICIES: Final = "/admin/topic-policies"

EMBEDDED_NAMESPACE: Final = ("embedded", "default")
"""Tenant and namespace of the topics of a host that has neither."""

_DOTS: Final = {".": "%2E", "..": "%2E%2E"}


def node_of_name(name: str) -> str:
    """The node's name for a user's name.

    Raises `CallerError` for an empty name or unencodable text.
    """
    if not name:
        raise CallerError("an empty name cannot be a metadata node")
    try:
        node = quote(name, safe="", errors="strict")
    except UnicodeEncodeError:
        raise CallerError(f"not valid Unicode: {name!r}") from None
    return _DOTS.get(node, node)


def name_of_node(node: str) -> str:
    """The user's name for a node's name; the reverse of `node_of_name`."""
    return unquote(node, errors="replace")


def topic_path(tenant: str, namespace: str, topic: str) -> str:
    """Node of a topic; `namespace` without its tenant, `topic` without either."""
    names = (node_of_name(tenant), node_of_name(namespace), "persistent", node_of_name(topic))
    return "/".join((MANAGED_LEDGERS, *names))


def embedded_topic_path(topic: str) -> str:
    """Node of a topic of a host that embeds cursors: it is empty, for the host keeps the messages."""
    return topic_path(*EMBEDDED_NAMESPACE, topic)


def cursor_path(topic_node_path: str, cursor: str) -> str:
    """Node of a cursor, below its topic's."""
    return f"{topic_node_path}/{node_of_name(cursor)}"


def ledger_path(ledger_id: int) -> str:
    """Node of a ledger's metadata."""
    return f"{LEDGERS}/{ledger_id}"


def delivery_journal_path(tenant: str, namespace: str, topic: str) -> str:
    """Node of a topic's delivery journal; the names as in `topic_path`."""
    names = (node_of_name(tenant), node_of_name(namespace), node_of_name(topic))
    return "/".join((DELIVERY_JOURNALS, *names))


def tenant_path(tenant: str) -> str:
    """Node of a tenant: its admins."""
    return f"{NAMESPACE_POLICIES}/{node_of_name(tenant)}"


def namespace_policies_path(tenant: str, namespace: str) -> str:
    """Node of a namespace's policies; `namespace` without its tenant."""
    return "/".join((NAMESPACE_POLICIES, *map(node_of_name, (tenant, namespace))))


def topic_policies_path(tenant: str, namespace: str, topic: str) -> str:
    """Node of a topic's policies; `topic` without its partition: all partitions share one."""
    return "/".join((TOPIC_POLICIES, *map(node_of_name, (tenant, namespace, topic))))
