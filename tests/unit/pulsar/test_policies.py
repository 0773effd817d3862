"""Policies of topics, namespaces and brokers: which is in force, and how long ledgers stay."""

from __future__ import annotations

from typing import Any

import pytest

from ackgate.errors import ConfigurationError, CorruptRecordError
from ackgate.pulsar import (
    FOREVER,
    AckForm,
    BrokerKeys,
    PersistCaps,
    PulsarPolicies,
    PulsarPolicy,
    PulsarRetention,
    PulsarTopic,
    policies_in_force,
)
from ackgate.pulsar.formats import entry_of_compacted
from ackgate.pulsar.policies import PolicyEvents, is_system_topic

TOPIC = PulsarTopic.parse("acme/shop/orders")
KEY = str(TOPIC)


def event(action: str, topic: str = "orders", **policies: Any) -> dict[str, Any]:
    return {
        "eventType": "TOPIC_POLICY",
        "actionType": action,
        "topicPoliciesEvent": {
            "domain": "persistent",
            "tenant": "acme",
            "namespace": "shop",
            "topic": topic,
            "policies": policies or None,
        },
    }


def in_force(
    own: list[Any], namespace: dict[str, Any], topic: PulsarTopic = TOPIC, **keys: str
) -> PulsarPolicies:
    return policies_in_force(topic, own, namespace, BrokerKeys().updated(keys, "broker.conf"))


def test_the_newest_event_counts_and_partitions_share_it() -> None:
    events = PolicyEvents()
    events.apply(KEY, event("INSERT", messageTTLInSeconds=1))
    events.apply(KEY, event("INSERT", messageTTLInSeconds=2))  # there is one already
    events.apply(KEY, event("UPDATE", topic="other", messageTTLInSeconds=3))
    assert events.of(TOPIC) == [{"messageTTLInSeconds": 1}]
    events.apply(KEY, event("UPDATE", messageTTLInSeconds=4))
    events.apply(KEY, event("NONE", messageTTLInSeconds=5))
    events.apply(KEY, {**event("UPDATE", messageTTLInSeconds=6), "eventType": "SNAPSHOT"})
    assert events.of(TOPIC.partition(3)) == [{"messageTTLInSeconds": 4}]
    events.apply(KEY, event("DELETE"))
    assert events.of(TOPIC) == []
    events.apply(KEY, event("UPDATE", messageTTLInSeconds=7))
    events.apply(KEY, None)
    assert events.of(TOPIC) == []


def test_a_topics_own_policies_come_before_those_of_all_clusters() -> None:
    events = PolicyEvents()
    everywhere = {"isGlobal": True, "messageTTLInSeconds": 1, "delayedDeliveryEnabled": False}
    events.apply(KEY, event("UPDATE", **everywhere))
    events.apply(KEY, event("UPDATE", isGlobal=False, messageTTLInSeconds=2))
    found = in_force(events.of(TOPIC), {"message_ttl_in_seconds": 3})
    assert found.ttl_seconds == (2, "topic")
    assert found.delayed_delivery == (False, "topic")
    events.apply(KEY, None, clusters=1)
    assert in_force(events.of(TOPIC), {}).ttl_seconds == (1, "topic")
    events.apply(KEY, None, clusters=2)
    assert events.of(TOPIC) == []


def test_topic_then_namespace_then_broker_then_default() -> None:
    namespace = {
        "retention_policies": {"retentionTimeInMinutes": 60, "retentionSizeInMB": 5},
        "message_ttl_in_seconds": None,
        "persistence": {"managedLedgerMaxMarkDeleteRate": 3},
        "delayed_delivery_policies": {"tickTime": 1000, "active": False},
    }
    own = {"dispatcherPauseOnAckStatePersistentEnabled": True, "messageTTLInSeconds": None}
    found = in_force([own], namespace, ttlDurationDefaultInSeconds="77")
    assert found == PulsarPolicies(
        PulsarPolicy(PulsarRetention(60, 5), "namespace"),
        PulsarPolicy(77, "broker.conf"),
        delayed_delivery=PulsarPolicy(value=False, origin="namespace"),
        gate=PulsarPolicy(value=True, origin="topic"),
        cursor_writes_per_second=PulsarPolicy(3.0, "namespace"),
    )
    plain = in_force([], {}, defaultRetentionTimeInMinutes="9")
    assert plain.retention == (PulsarRetention(9, 0), "broker.conf")
    assert plain.gate == (False, "default")
    assert plain.cursor_writes_per_second == (1.0, "default")
    # A value of the topic's that switches off what the namespace has on.
    gate = "dispatcherPauseOnAckStatePersistentEnabled"
    assert in_force([{gate: False}], {gate: True}).gate == (False, "topic")


def test_a_system_topic_has_no_retention_of_its_namespace() -> None:
    namespace = {"retention_policies": {"retentionTimeInMinutes": 60, "retentionSizeInMB": 5}}
    events = PulsarTopic.parse("acme/shop/__change_events-partition-0")
    assert is_system_topic(events)
    assert is_system_topic(PulsarTopic.parse("a/b/orders-worker__transaction_pending_ack"))
    assert not is_system_topic(TOPIC)
    assert in_force([], namespace, events).retention == (PulsarRetention(0, 0), "system topic")
    assert in_force([], namespace).retention.value == (60, 5)


@pytest.mark.parametrize(
    ("minutes", "megabytes", "bytes_after", "until_ms"),
    [
        (0, 0, 0, None),
        (10, 0, 0, None),
        (0, 10, 0, None),
        (10, -1, 10**12, 601_000),
        (-1, -1, 10**12, FOREVER),
        (10, 5, 5 * 2**20 - 1, 601_000),
        (10, 5, 5 * 2**20, None),
        (-1, 5, 5 * 2**20 - 1, FOREVER),
        (-1, 5, 5 * 2**20, None),
    ],
)
def test_how_long_a_ledger_stays(
    minutes: int, megabytes: int, bytes_after: int, until_ms: int | None
) -> None:
    retention = PulsarRetention(minutes, megabytes)
    assert retention.until_ms(1_000, bytes_after) == until_ms
    assert retention.until_ms(None, bytes_after) is None


def test_what_is_changed_at_run_time_comes_before_the_file_and_the_live_broker_before_both() -> (
    None
):
    keys = BrokerKeys().updated(
        {"managedLedgerMaxUnackedRangesToPersist": "5", "somethingElse": "x"}, "broker.conf"
    )
    assert keys.caps == PersistCaps(5, origin="broker.conf")
    keys = keys.updated({"managedLedgerMaxUnackedRangesToPersist": "6"}, "dynamic configuration")
    assert keys.caps == PersistCaps(6, origin="dynamic configuration")
    live = {
        "managedLedgerMaxUnackedRangesToPersist": " 7 ",
        "managedLedgerMaxBatchDeletedIndexToPersist": "8",
        "managedLedgerPersistIndividualAckAsLongArray": "True",
    }
    assert keys.updated(live, "broker", (4, 1)).caps == PersistCaps(7, 8, AckForm.WORDS, "broker")
    assert keys.updated(live, "broker", (5, 0)).ack_form is AckForm.WORDS_5
    assert keys.updated({}, "broker", (5, 2)).ack_form is AckForm.RANGES_5
    assert BrokerKeys().caps == PersistCaps()
    with pytest.raises(ConfigurationError, match=r"broker\.conf: managedLedgerMaxUn.*='many'"):
        _ = (
            BrokerKeys()
            .updated({"managedLedgerMaxUnackedRangesToPersist": "many"}, "broker.conf")
            .caps
        )


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"eventType": "TOPIC_POLICY"},
        {**event("UPDATE"), "topicPoliciesEvent": None},
        {**event("UPDATE"), "topicPoliciesEvent": {"domain": "persistent"}},
    ],
)
def test_a_damaged_event_is_named(damaged: dict[str, Any]) -> None:
    with pytest.raises(CorruptRecordError, match=f"the event of '{KEY}'"):
        PolicyEvents().apply(KEY, damaged)


def test_a_damaged_policy_is_named() -> None:
    with pytest.raises(CorruptRecordError, match=f"{KEY}: the namespace's policy retentionPol"):
        in_force([], {"retention_policies": {"retentionTimeInMinutes": "soon"}})
    with pytest.raises(CorruptRecordError, match="the namespace's policy messageTTL"):
        in_force([], {"message_ttl_in_seconds": [1]})


def test_the_message_in_an_entry_of_a_compacted_topic() -> None:
    entry = (3).to_bytes(4, "big") + b"pos" + (7).to_bytes(4, "big") + b"message"
    assert entry_of_compacted(entry, name="here") == b"message"
    for wrong in (b"", entry[:-1], entry + b"x", b"\xff" * 9):
        with pytest.raises(CorruptRecordError, match="here"):
            entry_of_compacted(wrong, name="here")
