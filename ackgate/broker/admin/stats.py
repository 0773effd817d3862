"""What topics and subscriptions are doing, in exactly Pulsar's JSON.

Edge. Our frozen values hold what this broker measures. Around them is the rest of Pulsar's form, so
that Pulsar's tools find every key they look for: constants for what this broker does not have
(offloading, replication, compaction, transactions, filters, throttling), and the keys that Pulsar
has twice. Three figures are missing because they are not measured here: ``chunkedMessageRate``,
``msgChunkPublished``, ``oldestBacklogMessageAgeSeconds``.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.admin.http.call import json_reply
from ackgate.broker.admin.http.peers import on_each, on_each_tried
from ackgate.broker.admin.http.refusals import RefusedError, reason_of
from ackgate.broker.admin.http.router import Route
from ackgate.broker.stats import (
    CELLS_MAX,
    AckStateAnswer,
    ack_picture,
    earliest_publish_times,
    internal_stats,
    oldest_holes,
    subscription_stats,
    to_json,
    topic_stats,
)
from ackgate.cursor import stored_form
from ackgate.described import iso_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ackgate.broker.admin.http.call import Call, Reply
    from ackgate.broker.admin.http.router import Handler
    from ackgate.broker.stats import TopicStats
    from ackgate.broker.topic import Topic

PARTITIONS_MAX: Final = 64
"""Partitions whose ledgers are shown at once; each costs a request to its broker."""

_NOT_HAD_BY_TOPICS: Final[Mapping[str, Any]] = {
    "systemTopicBytesInCounter": 0,
    "bytesOutInternalCounter": 0,
    "backlogQuotaLimitSize": -1,
    "backlogQuotaLimitTime": -1,
    "publishRateLimitedTimes": 0,
    "offloadedStorageSize": 0,
    "lastOffloadLedgerId": 0,
    "lastOffloadSuccessTimeStamp": 0,
    "lastOffloadFailureTimeStamp": 0,
    "ongoingTxnCount": 0,
    "abortedTxnCount": 0,
    "committedTxnCount": 0,
    "replication": {},
    "compaction": {
        "lastCompactionRemovedEventCount": 0,
        "lastCompactionSucceedTimestamp": 0,
        "lastCompactionFailedTimestamp": 0,
        "lastCompactionDurationTimeInMills": 0,
    },
}

_NOT_HAD_BY_SUBSCRIPTIONS: Final[Mapping[str, Any]] = {
    "isReplicated": False,
    "replicated": False,
    "consumersAfterMarkDeletePosition": {},
    "drainingHashesCount": 0,
    "drainingHashesClearedTotal": 0,
    "drainingHashesUnackedMessages": 0,
    "filterProcessedMsgCount": 0,
    "filterAcceptedMsgCount": 0,
    "filterRejectedMsgCount": 0,
    "filterRescheduledMsgCount": 0,
    "dispatchThrottledMsgEventsBySubscriptionLimit": 0,
    "dispatchThrottledBytesEventsBySubscriptionLimit": 0,
    "dispatchThrottledMsgEventsByTopicLimit": 0,
    "dispatchThrottledBytesEventsByTopicLimit": 0,
    "dispatchThrottledMsgEventsByBrokerLimit": 0,
    "dispatchThrottledBytesEventsByBrokerLimit": 0,
}

_NOT_HAD_BY_CONSUMERS: Final[Mapping[str, Any]] = {
    "drainingHashesCount": 0,
    "drainingHashesClearedTotal": 0,
    "drainingHashesUnackedMessages": 0,
}

CELLS_DEFAULT: Final = 64

EXCLUDE_PUBLISHERS: Final = "excludePublishers"
EXCLUDE_CONSUMERS: Final = "excludeConsumers"
"""Keys in the query, Pulsar's."""

BITMAP_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bitmaps of one answer, before base64: half a percent of what Pulsar's text form would need."""

_TOPIC: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"

_OF_ONE_CURSOR = {"ackState", "delayed", "ownerBroker", "deduplicationStatus"}
"""Keys that have no sum over partitions."""


def topic_json(stats: TopicStats) -> dict[str, Any]:
    """A topic in Pulsar's form."""
    topic: dict[str, Any] = to_json(stats) | _NOT_HAD_BY_TOPICS
    for publisher in topic["publishers"]:
        publisher["supportsPartialProducer"] = False
    topic["subscriptions"] = {
        name: _subscription_json(fields) for name, fields in topic["subscriptions"].items()
    }
    return topic


def _subscription_json(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        **_known(fields),
        **_NOT_HAD_BY_SUBSCRIPTIONS,
        "durable": fields["isDurable"],
        "consumers": [_consumer_json(consumer) for consumer in fields["consumers"]],
    }


def _consumer_json(fields: dict[str, Any]) -> dict[str, Any]:
    consumer = {
        **_known(fields),
        **_NOT_HAD_BY_CONSUMERS,
        "lastAckedTime": iso_time(fields["lastAckedTimestamp"] / 1000),
        "lastConsumedTime": iso_time(fields["lastConsumedTimestamp"] / 1000),
    }
    if "keyHashRangeArrays" in consumer:
        consumer["drainingHashes"] = []
    return consumer


def _known(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that have a value: Pulsar leaves out the others."""
    return {key: value for key, value in fields.items() if value is not None}


async def get_stats(call: Call) -> Reply:
    """Statistics of a topic or partition; `?excludePublishers=true`, `?excludeConsumers=true` shorten it."""
    return json_reply(await _stats(call, await call.topic()))


async def get_partitioned_stats(call: Call) -> Reply:
    """As `stats`, of all partitions added up, and of each unless `?perPartition=false`."""
    stats = await _of_partitions(call, get_stats, "/stats")
    answer = add_up(stats.values())
    answer["metadata"] = {"partitions": len(stats), "deleted": False}
    answer["partitions"] = stats if call.is_asked("perPartition", default=True) else {}
    return json_reply(answer)


async def get_internal_stats(call: Call) -> Reply:
    """Ledgers and cursors of one topic or partition."""
    return json_reply(internal_stats(await call.topic()))


async def get_ledgers(call: Call) -> Reply:
    """Ledgers and cursors of a topic, or of its first partitions, whichever brokers serve them (ours)."""
    names = (await call.partitions())[:PARTITIONS_MAX] or [call.topic_name]
    replies = await on_each_tried(call, names, get_internal_stats, "/internalStats")
    shown = []
    for name, reply in zip(names, replies, strict=True):
        location = await call.broker.ownership.locate(name)
        is_answered = reply.status == 200
        shown.append(
            {
                "topic": str(name),
                "broker": location.web.any,
                "why": None if is_answered else reason_of(reply.body),
                "stats": json.loads(reply.body) if is_answered else None,
            }
        )
    return json_reply({"topics": shown})


async def get_partitioned_internal_stats(call: Call) -> Reply:
    """Ledgers and cursors of every partition."""
    stats = await _of_partitions(call, get_internal_stats, "/internalStats")
    return json_reply(
        {"metadata": {"partitions": len(stats), "deleted": False}, "partitions": stats}
    )


async def get_ack_state(call: Call) -> Reply:
    """One subscription: statistics, oldest holes, acked share of each ledger in `?cells=` slices (ours).

    With ``excludeConsumers=true`` without the list of its consumers; their oldest holes are named. With
    ``bitmaps=true`` also the acked entry ids above the mark-delete: a portable Roaring bitmap
    per ledger, in base64, as far as `BITMAP_BYTES_MAX` goes (``bitmapsOmitted`` says how many not).
    """
    cells = call.integer_asked("cells", CELLS_DEFAULT, least=1)
    if cells > CELLS_MAX:
        raise RefusedError(400, f"cells is {cells}, at most {CELLS_MAX} is possible")
    subscription = await call.subscription()
    snapshot = subscription.cursor.snapshot()
    counts = subscription.topic.ledger.ledgers.entry_counts.items()
    answer: dict[str, Any] = to_json(
        AckStateAnswer(
            topic=str(subscription.topic.name),
            subscription=subscription.name,
            stats=subscription_stats(
                *(subscription, call.broker.sampler),
                has_consumers=not call.is_asked(EXCLUDE_CONSUMERS),
            ),
            picture=ack_picture(counts, snapshot.mark_delete, snapshot.acked, cells),
            holes=oldest_holes(subscription, call.broker.sampler),
        )
    )
    if call.is_asked("bitmaps"):
        bitmaps: dict[str, str] = {}
        room = BITMAP_BYTES_MAX
        for ledger_id, bitmap in sorted(snapshot.acked.items()):
            portable = stored_form(bitmap)
            room -= len(portable)
            if room < 0:
                break
            bitmaps[str(ledger_id)] = base64.b64encode(portable).decode()
        answer["bitmaps"] = bitmaps
        answer["bitmapsOmitted"] = len(snapshot.acked) - len(bitmaps)
    return json_reply(answer)


async def _stats(call: Call, topic: Topic) -> dict[str, Any]:
    earliest = None
    if call.is_asked("getEarliestTimeInBacklog"):
        earliest = await earliest_publish_times(topic)
    owner = call.broker.broker_id
    stats = topic_stats(
        *(topic, call.broker.sampler),
        owner=owner,
        earliest=earliest,
        has_publishers=not call.is_asked(EXCLUDE_PUBLISHERS),
        has_consumers=not call.is_asked(EXCLUDE_CONSUMERS),
    )
    return topic_json(stats)


async def _of_partitions(call: Call, handler: Handler, tail: str) -> dict[str, Any]:
    name = call.topic_name
    count = await call.broker.registry.stored_partition_count(name)
    if not count:
        raise RefusedError(404, f"Partitioned Topic {name} not found")
    partitions = [name.partition(index) for index in range(count)]
    replies = await on_each(call, partitions, handler, tail)
    replies_json: dict[str, Any] = {}
    for partition, reply in zip(partitions, replies, strict=True):
        replies_json[str(partition)] = json.loads(reply.body)
        await asyncio.sleep(0)  # yields, since there may be thousands
    return replies_json


ROUTES: Final = (
    Route("GET", f"{_TOPIC}/stats", get_stats),
    Route("GET", f"{_TOPIC}/internalStats", get_internal_stats),
    Route("GET", f"{_TOPIC}/partitioned-stats", get_partitioned_stats),
    Route("GET", "/ackgate/ledgers/{tenant}/{namespace}/{topic}", get_ledgers),
    Route("GET", f"{_TOPIC}/partitioned-internalStats", get_partitioned_internal_stats),
    Route("GET", f"{_TOPIC}/subscription/{{subscription}}/ackState", get_ack_state),
)


# ---- The statistics of a partitioned topic: those of its partitions, added up
#
# As Pulsar adds: counters and rates are summed, subscriptions of one name become one whose
# consumers are those of all partitions; what is true of one partition (paused, blocked) is true of
# it. The ack state of a subscription stays with its partitions: cursors cannot be added.


def add_up(partitions: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Add topic statistics in their JSON form."""
    total: dict[str, Any] = {}
    for stats in partitions:
        _add(total, stats)
    total["publishers"] = _by_name(total.get("publishers", []), "producerName")
    for subscription in total.get("subscriptions", {}).values():
        subscription["consumers"] = _by_name(subscription["consumers"], "consumerName")
    return total


def _add(total: dict[str, Any], stats: Mapping[str, Any]) -> None:
    for key, value in stats.items():
        if key in _OF_ONE_CURSOR:
            continue
        present = total.get(key)
        match value:
            case bool():
                total[key] = bool(present) or value
            case int() | float() if key.startswith(("last", "earliest")):
                total[key] = _edge(key, present, value)
            case int() | float() if key.startswith("backlogQuotaLimit") and -1 in {value, present}:
                total[key] = -1  # "no limit": the sum has none where one of them has none
            case int() | float():
                total[key] = (present or 0) + value
            case list():
                total[key] = [*(present or []), *value]
            case dict():
                _add(total.setdefault(key, {}), value)
            case _:
                total.setdefault(key, value)


def _edge(key: str, present: float | None, value: float) -> float:
    """The latest time, or the earliest; 0 if none is known."""
    known = [time for time in (present, value) if time]
    return (max if key.startswith("last") else min)(known, default=0)


def _by_name(parties: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Merge entries of one name: they are the same client, on several partitions."""
    grouped: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for party in parties:
        _add(grouped[party.get(name, "")], party)
    return list(grouped.values())
