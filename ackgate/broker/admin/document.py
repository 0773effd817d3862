"""Writes `docs/admin.md` from the routes, and `docs/metrics.md` from the tables of metrics.

``python -m ackgate.broker.admin.document admin > docs/admin.md``, and the same with ``metrics``; a
test checks that both are up to date. Pure but for the last line.
"""

from __future__ import annotations

import sys
from inspect import getdoc
from typing import TYPE_CHECKING, Final

from ackgate.broker.admin.app import SECTIONS
from ackgate.broker.admin.metrics import TABLES
from ackgate.broker.admin.policies import POLICIES
from ackgate.broker.stats import (
    AckState,
    ConsumerStats,
    GateForecast,
    NackStatistics,
    PublisherStats,
    SubscriptionStats,
    TopicStats,
    key_of,
)
from ackgate.cursor import CursorStatistics
from ackgate.described import descriptions
from ackgate.dispatcher import GateStatistics
from ackgate.dispatcher.buckets import BucketStatistics
from ackgate.persistence.records.outcome import CursorStoreStats
from ackgate.subscription import HeldStatistics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ackgate.broker.admin.http.router import Route

_ADMIN_HEAD: Final = """\
# Admin paths

<!-- Generated: `python -m ackgate.broker.admin.document admin`. Edit the routes in ackgate/broker/admin. -->

Look up what the admin port answers. The paths, bodies and status codes are Pulsar's, so `pulsar-admin` and
scripts work unchanged; *(ours)* marks what Pulsar does not have. Ask any broker: it redirects (307) to
the one that serves the topic.

```sh
curl http://127.0.0.1:8080/admin/v2/persistent/public/default/orders/stats
```

An error has a JSON body with a `reason`. 400 and 412: an invalid value; 404: not there; 405: not this
method; 409: already there, or in use; 503: try again. Who may use the
port: [operations.md](operations.md). Metrics:
[metrics.md](metrics.md). Settings: [configuration.md](configuration.md).
"""

_POLICIES: Final = """\
A topic's value wins over its namespace's, which wins over the broker's. GET answers with an empty body where
nothing is set. A namespace's policies also stand in its description, as the member named below.
"""


_METRICS_HEAD: Final = """\
# Metrics and statistics

<!-- Generated: `python -m ackgate.broker.admin.document metrics`. Edit ackgate/broker/admin/metrics/, and
the descriptions at the fields of the statistics. -->

Look up what a figure means. `/metrics` on the admin port has them for Prometheus, each with a HELP line:

```sh
curl http://127.0.0.1:8080/metrics
curl http://127.0.0.1:8080/admin/v2/persistent/public/default/orders/stats
ackgate stats orders
```

Names and meanings are Pulsar's where Pulsar has them; `ackgate_*` are ours. Which to watch:
[operations.md](operations.md#what-to-watch). Rates are over the last minute; counters begin when the topic is
loaded. Without a unit: a number of what the meaning names, or 1 for yes and 0 for no.

Of [several workers](deploying.md#all-cores) one scrape has all, each sample with a label `worker`.
"""

_JSON_HEAD: Final = """\
## Statistics in JSON

The fields of a topic's `stats`, and the metric that has the same figure.
"""


def admin_page() -> str:
    return "\n".join(_admin_lines())


def metrics_page() -> str:
    return "\n".join(_metrics_lines())


def _metrics_lines() -> Iterator[str]:
    yield _METRICS_HEAD
    for table in TABLES:
        yield f"## {table.title}\n"
        yield f"Labels: {table.labels}.\n"
        yield "| metric | type | unit | meaning |"
        yield "| --- | --- | --- | --- |"
        for metric in table.metrics:
            yield f"| `{metric.name}` | {metric.type} | {metric.unit} | {metric.meaning} |"
        yield ""
    yield _JSON_HEAD
    for title, kind in _STATISTICS.items():
        yield f"### {title}\n"
        yield "| field | meaning | metric |"
        yield "| --- | --- | --- |"
        for name, about in descriptions(kind).items():
            metric_name = f"`{about.metric}`" if about.metric else ""
            yield f"| `{key_of(name)}` | {about.text} | {metric_name} |"
        yield ""


_STATISTICS: Final = {
    "A topic or partition": TopicStats,
    "A subscription": SubscriptionStats,
    "A consumer": ConsumerStats,
    "A producer": PublisherStats,
    "`ackState` (ours)": AckState,
    "`ackState.cursor`": CursorStatistics,
    "`ackState.gate`": GateStatistics,
    "`ackState.store`": CursorStoreStats,
    "`ackState.forecast`": GateForecast,
    "`delayed.held` (ours)": HeldStatistics,
    "`delayed.nacks`": NackStatistics,
    "`delayed.buckets`, with a bucket tracker": BucketStatistics,
}


def _admin_lines() -> Iterator[str]:
    yield _ADMIN_HEAD
    for title, routes in SECTIONS.items():
        yield f"## {title}\n"
        if title == "Policies":
            yield _POLICIES
            yield "| policy | what it does | value | member of a namespace's description |"
            yield "| --- | --- | --- | --- |"
            for policy in POLICIES:
                at_topic = f"at a topic `{policy.path_at_topics}`" if policy.path_at_topics else ""
                path = "; ".join(filter(None, (policy.path and f"`{policy.path}`", at_topic)))
                member = policy.member and f"`{policy.member}`"
                yield f"| {path} | {policy.meaning} | {policy.value} | {member} |"
            yield ""
        yield "| method | path | what it does |"
        yield "| --- | --- | --- |"
        if title == "Policies":
            yield from _policy_routes(routes)
        else:
            for route in routes:
                yield f"| {route.method} | `{route.template}` | {_meaning(route)} |"
        yield ""


def _policy_routes(routes: Iterable[Route]) -> Iterator[str]:
    """One row for all routes that differ only in the policy."""
    rows: dict[tuple[str, str], str] = {}
    for route in routes:
        place = route.template.rpartition("/")[0]
        rows.setdefault((route.method, f"{place}/POLICY"), _meaning(route))
    for (method, path), meaning in rows.items():
        yield f"| {method} | `{path}` | {meaning} |"


def _meaning(route: Route) -> str:
    text = route.meaning or (getdoc(route.handler) or "").partition("\n\n")[0]
    return " ".join(text.split()).replace("``", "`").rstrip(".")


if __name__ == "__main__":
    print({"admin": admin_page, "metrics": metrics_page}[sys.argv[1]](), end="")  # noqa: T201
