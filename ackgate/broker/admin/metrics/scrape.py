"""``/metrics``: the broker in Prometheus' text form, under Pulsar's names where Pulsar has them.

Edge. Each request walks all topics; figures that cost more than a look are not here. The reference
page `docs/metrics.md` shows the same tables.

A worker asks the other workers for their metrics, since a client of the shared address cannot
choose the worker. It leaves out workers that do not answer in time; `ackgate_workers_scraped`
counts those that did.
"""

from __future__ import annotations

import asyncio
import logging
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
from ackgate.broker.admin.metrics.tables import Exposition, Metric, samples_of
from ackgate.broker.stats import topic_stats
from ackgate.errors import AckGateError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.broker.admin.http.call import AdminBroker, Call
    from ackgate.persistence.nodes.owner_nodes import BrokerRecord

log = logging.getLogger(__name__)

OTHERS_SECONDS_MAX: Final = 5.0
"""How long the other workers may take. Prometheus gives up after 10 s by default."""

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
"""Metrics by name. If two tables have one name (topics, subscriptions), the first describes it."""


async def get_metrics(call: Call) -> Reply:
    """Every metric, in Prometheus' text format: [metrics.md](metrics.md).

    Of `ackgate broker --workers` those of all workers, each with a label `worker`; `?here=true`: of the
    worker that answers alone.
    """
    # Yields to other requests after every topic and every metric.
    broker = call.broker
    labels = {"cluster": broker.services.settings.broker.cluster_name}
    if broker.worker is not None:
        labels["worker"] = str(broker.worker)
    exposition = Exposition(labels, METRICS)
    figures = Figures(broker)
    others = None
    if broker.worker is not None and not call.is_asked("here"):
        others = asyncio.ensure_future(_of_others(broker))
    try:
        await _add_own(exposition, figures)
        for text in await others if others is not None else ():
            figures.workers_scraped += 1
            for name, samples in samples_of(text):
                exposition.extend(name, samples)
                await asyncio.sleep(0)
    finally:
        if others is not None:
            others.cancel()
    add_broker(exposition, figures)
    body = bytearray()
    for piece in exposition.pieces():
        body += piece
        await asyncio.sleep(0)
    return Reply(200, bytes(body), CONTENT_TYPE)


async def _add_own(exposition: Exposition, figures: Figures) -> None:
    broker = figures.broker
    for topic in broker.registry:
        stats = topic_stats(topic, broker.sampler, owner="")
        figures.count(stats)
        add_topic(exposition, topic, stats)
        await asyncio.sleep(0)


async def _of_others(broker: AdminBroker) -> list[str]:
    """The answers of the other workers that came in time."""
    records = broker.ownership.view.brokers.values()
    others = [record for record in records if record.broker_id != broker.broker_id]
    answers = await asyncio.gather(*(_of_worker(broker, record) for record in others))
    return [answer for answer in answers if answer is not None]


async def _of_worker(broker: AdminBroker, record: BrokerRecord) -> str | None:
    why: object
    try:
        async with asyncio.timeout(OTHERS_SECONDS_MAX):
            reply = await broker.peers.ask(record.web, "GET", "/metrics?here=true")
        if reply.status == 200:
            return reply.body.decode(errors="replace")
        why = f"status {reply.status}"
    except TimeoutError:
        why = f"no answer in {OTHERS_SECONDS_MAX:g} s"
    except AckGateError as error:
        why = error
    log.warning("metrics are without those of worker %s: %s", record.web.any, why)
    return None


ROUTES: Final = (Route("GET", "/metrics", get_metrics),)
