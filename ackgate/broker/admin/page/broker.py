"""The page's view of the broker: bookies, audits, brokers, bundles, connections, settings (ours).

Edge. For superusers only, since it names directories of bookies.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.admin.http.call import json_reply
from ackgate.broker.admin.http.router import Route
from ackgate.persistence.ledgers.client import BookieLedgerClient

if TYPE_CHECKING:
    from ackgate.broker.admin.http.call import Call, Reply

CONNECTIONS_MAX: Final = 200
"""Connections in one answer; those with most producers and consumers come first."""

BUNDLES_MAX: Final = 1_000


async def get_storage(call: Call) -> Reply:
    """Bookies with their free space, the last audit, a BookKeeper cluster's latencies (ours)."""
    services, cluster = call.broker.services, call.broker.cluster_storage
    client, audit, space = services.ledger_client, services.audit, services.disk_space
    answer: dict[str, Any] = {
        "bookies": [],
        "absentBookies": {},
        "refusal": None if space.refusal is None else str(space.refusal),
        "disks": [
            {"directory": str(directory), "freeBytes": free_bytes, "isLow": is_low}
            for directory, free_bytes, is_low in space.disks
        ],
        "audit": {
            "isWanted": audit.is_wanted,
            "runs": audit.runs,
            "lastRunMs": audit.last_run_ms,
            "last": asdict(audit.last),
            "all": asdict(audit.all),
        },
        "publishBufferBytes": services.publish_buffer.held_bytes,
        "waitingConnections": services.publish_buffer.waiting_count,
        "cluster": None,
    }
    if isinstance(client, BookieLedgerClient):
        answer["bookies"] = [
            {
                "id": known.bookie_id,
                "directory": str(known.directory),
                "isReadOnly": known.is_read_only,
                "lastError": known.last_error,
                "commits": known.commit_count,
                "commitMsMean": known.commit_ms_mean,
                "commitMsMax": known.commit_ms_max,
                "ledgers": known.ledger_count,
                "damages": len(known.damages),
            }
            for known in (bookie.statistics() for bookie in client.bookies)
        ]
        answer["absentBookies"] = {str(path): why for path, why in client.absent_bookies.items()}
    if cluster is not None:
        answer["cluster"] = {
            "writable": cluster.bookies_writable,
            "known": cluster.bookies_known,
            "bookies": [
                {
                    "id": each.bookie_id,
                    "adds": each.adds,
                    "addMsMean": each.add_latency.sum_ms / each.adds if each.adds else None,
                    "outstanding": each.outstanding_adds,
                    "connectionsFailed": each.connections_failed,
                }
                for each in cluster.client.statistics().bookies
            ],
        }
    return json_reply(answer)


async def get_broker(call: Call) -> Reply:
    """Brokers and bundles of the cluster; connections and settings of this broker (ours)."""
    broker = call.broker
    view = broker.ownership.view
    connections = sorted(
        broker.connections, key=lambda each: len(each.producers) + len(each.consumers), reverse=True
    )
    return json_reply(
        {
            "brokerId": broker.broker_id,
            "startedMs": int(broker.started_at * 1000),
            "brokers": [
                {
                    "id": record.broker_id,
                    "webUrl": record.web_url,
                    "serviceUrl": record.service_url,
                    "startedMs": record.started_ms,
                    "bundles": sum(
                        owner.broker_id == record.broker_id for owner in view.owners.values()
                    ),
                }
                for record in view.brokers.values()
            ],
            "bundles": [
                {"bundle": str(bundle), "owner": owner.broker_id}
                for bundle, owner in islice(view.owners.items(), BUNDLES_MAX)
            ],
            "connections": len(connections),
            "busiest": [
                {
                    "peer": each.peer,
                    "client": each.client_version,
                    "role": None if each.identity is None else str(each.identity),
                    "producers": len(each.producers),
                    "consumers": len(each.consumers),
                }
                for each in connections[:CONNECTIONS_MAX]
            ],
            "settings": broker.services.settings.texts(),
            "changed": broker.dynamic.values,
            "withoutEffect": dict(broker.settings_without_effect),
        }
    )


ROUTES: Final = (
    Route("GET", "/ackgate/storage", get_storage),
    Route("GET", "/ackgate/broker", get_broker),
)
