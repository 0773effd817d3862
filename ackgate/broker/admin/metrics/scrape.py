"""``/metrics``: the broker in Prometheus' text form, under Pulsar's names where Pulsar has them.

Edge. Each request walks all topics; figures that cost more than a look are not here. The reference page
`docs/metrics.md` shows the same tables.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ackgate.broker.admin.http.call import Reply
from ackgate.broker.admin.http.router import Route
from ackgate.broker.admin.metrics.of_broker import (
    AUTHENTICATION,
    BOOKIE,
    BROKER,
    CLIENT_TLS,
    CLUSTER,
    LATENCIES,
    STORAGE,
    TLS,
    Figures,
    add_broker,
)
from ackgate.broker.admin.metrics.of_topics import (
    ACK_STATE,
    BUCKETS,
    CURSOR,
    JOURNAL,
    SUBSCRIPTION,
    TOPIC,
    add_topic,
)
from ackgate.broker.admin.metrics.tables import Exposition, Metric
from ackgate.broker.stats import topic_stats

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.broker.admin.http.call import Call

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

TABLES: Final = (
    BROKER,
    LATENCIES,
    TLS,
    CLIENT_TLS,
    AUTHENTICATION,
    STORAGE,
    CLUSTER,
    BOOKIE,
    TOPIC,
    SUBSCRIPTION,
    ACK_STATE,
    CURSOR,
    BUCKETS,
    JOURNAL,
)

METRICS: Final[Mapping[str, Metric]] = {
    metric.name: metric for table in reversed(TABLES) for metric in table.metrics
}
"""By name. Of two with one name (at topics and at subscriptions) the first table's describes it."""


async def get_metrics(call: Call) -> Reply:
    """Every metric, in Prometheus' text format: [metrics.md](metrics.md).

    Other requests get their turn after every topic and every metric.
    """
    broker = call.broker
    exposition = Exposition({"cluster": broker.services.settings.broker.cluster_name}, METRICS)
    figures = Figures(broker)
    for topic in broker.registry:
        stats = topic_stats(topic, broker.sampler, owner="")
        figures.count(stats)
        add_topic(exposition, topic, stats)
        await asyncio.sleep(0)
    add_broker(exposition, figures)
    text = bytearray()
    for piece in exposition.pieces():
        text += piece
        await asyncio.sleep(0)
    return Reply(200, bytes(text), CONTENT_TYPE)


ROUTES: Final = (Route("GET", "/metrics", get_metrics),)
