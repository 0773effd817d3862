"""Asks a broker for the statistics of a topic's subscriptions.

Edge: HTTP with the standard library. From Python::

    from ackgate.commands.stats.query import query_stats

    for subscription in query_stats("orders", url="http://127.0.0.1:8080").subscriptions:
        gate = subscription.ack_state.gate
        print(subscription.subscription, gate.is_open, subscription.ack_state.ranges_live)

`ackgate.commands.stats.stored.stored_stats` gives the same of a data directory.
"""

from __future__ import annotations

import http
import time
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from ackgate.broker.stats import AckStateAnswer, from_json
from ackgate.broker.wire import TopicName
from ackgate.commands.stats.answer import StatsAnswer, SubscriptionAnswer
from ackgate.commands.terminal.admin_client import (
    DEFAULT_URL,
    TIMEOUT_SECONDS,
    AdminClient,
    AdminRefusedError,
    parts_of,
    path_of,
)
from ackgate.errors import CorruptRecordError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.broker.stats import OverviewAnswer, OverviewQuery
    from ackgate.commands.terminal.admin_client import AdminAccess


def query_stats(
    topic: str,
    *,
    subscription: str | None = None,
    url: str = DEFAULT_URL,
    cells: int = 64,
    has_consumers: bool = True,
    timeout_seconds: float = TIMEOUT_SECONDS,
    access: AdminAccess | None = None,
) -> StatsAnswer:
    """Ask the broker whose admin interface is at `url`; all subscriptions, or one by its name.

    `cells`: into how many slices a ledger's picture is cut. Without `has_consumers` they are not listed,
    for subscriptions with very many. `access`: certificates and credentials.
    Raises `CallerError` (no such topic or subscription, a bad name), `StorageError` (no answer),
    `CorruptRecordError` (a strange one).
    """
    broker = AdminClient(url, timeout_seconds, access)
    topic_name = TopicName.parse(topic).require_persistent()
    asked = {"cells": cells, "excludeConsumers": str(not has_consumers).lower()}
    answers: list[SubscriptionAnswer] = []
    for part in parts_of(broker, topic_name):
        if subscription is not None:
            answers.append(_subscription(broker, part, subscription, asked))
            continue
        names = broker.get(path_of(part), "subscriptions")
        if not isinstance(names, list):
            raise CorruptRecordError("the broker's answer has no subscriptions")
        for name in names:
            try:
                answers.append(_subscription(broker, part, str(name), asked))
            except AdminRefusedError as error:
                if error.status != http.HTTPStatus.NOT_FOUND:  # else it was deleted meanwhile
                    raise
    return StatsAnswer(
        topic=str(topic_name),
        source=url,
        is_live=True,
        taken_ms=time.time_ns() // 1_000_000,
        subscriptions=tuple(answers),
        knows_consumers=has_consumers,
    )


def query_overview(
    query: OverviewQuery,
    *,
    url: str = DEFAULT_URL,
    timeout_seconds: float = TIMEOUT_SECONDS,
    access: AdminAccess | None = None,
) -> OverviewAnswer:
    """Ask the broker whose admin interface is at `url` for all its subscriptions. Raises as `query_stats`."""
    from ackgate.broker.stats import OverviewAnswer  # noqa: PLC0415 - `query_stats` needs none

    path = f"overview?{urlencode(query.parameters)}"
    text = AdminClient(url, timeout_seconds, access).own_text(path)
    return from_json(OverviewAnswer, text)


def _subscription(
    broker: AdminClient, topic: TopicName, subscription: str, asked: Mapping[str, object]
) -> SubscriptionAnswer:
    tail = f"ackState?{urlencode(asked)}"
    text = broker.text(path_of(topic), "subscription", quote(subscription, safe=""), tail)
    answer = from_json(AckStateAnswer, text)
    return SubscriptionAnswer(
        topic=str(topic),
        subscription=subscription,
        ack_state=answer.stats.ack_state,
        picture=answer.picture,
        stats=answer.stats,
        written_ms=None,
        holes=answer.holes,
    )
