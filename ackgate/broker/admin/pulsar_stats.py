"""Topic statistics in exactly Pulsar's JSON.

Pure. Our frozen values hold what this broker measures. Here the rest of Pulsar's form is laid
around it, so that its tools find every key they look for: constants of what this broker does not
have (offloading, replication, compaction, transactions, filters, throttling), and the keys that
Pulsar gives twice. Left out are three figures that are simply not measured here:
``chunkedMessageRate``, ``msgChunkPublished``, ``oldestBacklogMessageAgeSeconds``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.stats.json_form import fields_json
from ackgate.broker.stats.take import iso_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.broker.stats.values import ConsumerStats, SubscriptionStats, TopicStats

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


def topic_json(stats: TopicStats) -> dict[str, Any]:
    """A topic in Pulsar's form."""
    return {
        **fields_json(stats, without={"publishers", "subscriptions"}),
        **_NOT_HAD_BY_TOPICS,
        "publishers": [
            {**fields_json(publisher), "supportsPartialProducer": False}
            for publisher in stats.publishers
        ],
        "subscriptions": {
            name: subscription_json(subscription)
            for name, subscription in stats.subscriptions.items()
        },
    }


def subscription_json(stats: SubscriptionStats) -> dict[str, Any]:
    """A subscription in Pulsar's form."""
    return {
        **_known(fields_json(stats, without={"consumers"})),
        **_NOT_HAD_BY_SUBSCRIPTIONS,
        "durable": stats.is_durable,
        "consumers": [_consumer_json(consumer) for consumer in stats.consumers],
    }


def _consumer_json(stats: ConsumerStats) -> dict[str, Any]:
    fields = {
        **_known(fields_json(stats)),
        **_NOT_HAD_BY_CONSUMERS,
        "lastAckedTime": iso_time(stats.last_acked_timestamp / 1000),
        "lastConsumedTime": iso_time(stats.last_consumed_timestamp / 1000),
    }
    if stats.key_hash_range_arrays is not None:
        fields["drainingHashes"] = []
    return fields


def _known(fields: dict[str, Any]) -> dict[str, Any]:
    """Pulsar leaves out what it has no value for."""
    return {key: value for key, value in fields.items() if value is not None}
