"""Asks a broker for the statistics of a topic's subscriptions.

Edge: HTTP with the standard library. From Python::

    from ackgate.broker.stats.query import query_stats

    for subscription in query_stats("orders", url="http://127.0.0.1:8080").subscriptions:
        gate = subscription.ack_state.gate
        print(subscription.subscription, gate.is_open, subscription.ack_state.ranges_live)

`ackgate.broker.stats.stored.stored_stats` gives the same of a data directory.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

from ackgate.broker.names import TopicName
from ackgate.broker.stats.answer import StatsAnswer, SubscriptionAnswer
from ackgate.broker.stats.json_form import from_json
from ackgate.broker.stats.ledger_acks import AckPicture
from ackgate.broker.stats.values import SubscriptionStats
from ackgate.errors import CallerError, CorruptRecordError, StorageError

T = TypeVar("T")

DEFAULT_URL: Final = "http://127.0.0.1:8080"
TIMEOUT_SECONDS: Final = 10.0
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024


def query_stats(
    topic: str,
    *,
    subscription: str | None = None,
    url: str = DEFAULT_URL,
    cells: int = 64,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> StatsAnswer:
    """Ask the broker whose admin interface is at `url`; all subscriptions, or one by its name.

    `cells`: into how many slices a ledger's picture is cut. Raises `CallerError` (no such topic or
    subscription, a bad name), `StorageError` (no answer), `CorruptRecordError` (a strange one).
    """
    if urlsplit(url).scheme not in {"http", "https"}:
        raise CallerError(f"not the address of an admin interface: {url!r}")
    broker = _Broker(url.rstrip("/"), timeout_seconds)
    topic_name = TopicName.parse(topic).require_persistent()
    count = _told(broker.get(_path(topic_name), "partitions"), "partitions", int)
    parts = [topic_name.partition(index) for index in range(count)] or [topic_name]
    answers: list[SubscriptionAnswer] = []
    for part in parts:
        wanted = [subscription] if subscription is not None else []
        if subscription is None:
            wanted = [str(name) for name in broker.get(_path(part), "subscriptions")]
        answers += [_subscription(broker, part, name, cells) for name in wanted]
    return StatsAnswer(
        topic=str(topic_name),
        source=url,
        is_live=True,
        taken_ms=time.time_ns() // 1_000_000,
        subscriptions=tuple(answers),
    )


class _Broker:
    """The admin interface of one broker."""

    def __init__(self, url: str, timeout_seconds: float) -> None:
        self._url = url
        self._timeout_seconds = timeout_seconds

    def get(self, *path: str) -> Any:  # noqa: ANN401 - JSON
        """What a GET below ``/admin/v2`` answers."""
        url = "/".join((self._url, "admin/v2", *path))
        request = urllib.request.Request(url)  # noqa: S310 - the scheme was checked
        try:
            with urllib.request.urlopen(  # noqa: S310
                request, timeout=self._timeout_seconds
            ) as response:
                body = response.read(ANSWER_BYTES_MAX + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(error) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise StorageError(f"no answer from {self._url}: {reason}") from error
        if len(body) > ANSWER_BYTES_MAX:
            raise CorruptRecordError(f"{url} answers more than {ANSWER_BYTES_MAX} bytes")
        try:
            return json.loads(body)
        except ValueError as error:
            raise CorruptRecordError(f"{url} does not answer in JSON: {error}") from error


def _refusal(error: urllib.error.HTTPError) -> CallerError | StorageError:
    try:
        reason = str(json.loads(error.read(ANSWER_BYTES_MAX))["reason"])
    except (ValueError, KeyError, TypeError, OSError):
        reason = f"{error.url} answers {error.code} {error.reason}"
    return CallerError(reason) if error.code < 500 else StorageError(reason)


def _subscription(
    broker: _Broker, topic: TopicName, subscription: str, cells: int
) -> SubscriptionAnswer:
    told = broker.get(
        _path(topic), "subscription", quote(subscription, safe=""), f"ackState?cells={cells}"
    )
    stats = from_json(SubscriptionStats, _told(told, "stats", dict))
    return SubscriptionAnswer(
        topic=str(topic),
        subscription=subscription,
        ack_state=stats.ack_state,
        picture=from_json(AckPicture, _told(told, "picture", dict)),
        stats=stats,
        written_ms=None,
    )


def _told(value: Any, key: str, kind: type[T]) -> T:  # noqa: ANN401 - JSON
    """A member of an object."""
    member = value.get(key) if isinstance(value, dict) else None
    if not isinstance(member, kind):
        raise CorruptRecordError(f"the broker's answer has no {key}")
    return member


def _path(name: TopicName) -> str:
    parts = (name.tenant, name.namespace, name.local_name)
    return "/".join(("persistent", *(quote(part, safe="") for part in parts)))
