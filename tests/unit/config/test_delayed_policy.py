"""The policy `delayedDelivery`: its JSON, and what holds when several levels say something."""

from __future__ import annotations

import asyncio
import json

import pytest

from ackgate.broker.cluster.policies import (
    REDELIVERY_BACKOFF,
    EffectivePolicies,
    PolicyStore,
    RedeliveryBackoffPolicy,
    namespace_policy_path,
    topic_policy_path,
)
from ackgate.broker.wire.names import TopicName
from ackgate.config.delayed import (
    DELAYED_DELIVERY,
    MAX_DELAY_MS_MAX,
    DelayedDeliveryPolicy,
    DelayedSettings,
)
from ackgate.config.field import INT_MAX
from ackgate.errors import CallerError, CorruptRecordError
from ackgate.persistence import MemoryMetadataStore

TOPIC = TopicName.parse("persistent://public/default/orders-partition-1")
SETTINGS = DelayedSettings(
    delayed_delivery_tick_time_millis=500, delayed_delivery_max_delay_in_millis=9_000
)


def test_json_there_and_back() -> None:
    value = {"tickTime": 1_500, "active": True, "maxDeliveryDelayInMillis": 5}
    policy = DelayedDeliveryPolicy.from_json(json.loads(json.dumps(value)))
    assert policy == DelayedDeliveryPolicy(True, 1_500, 5)
    assert policy.to_json() == value


def test_what_is_left_out_is_said_to_be_nothing_as_in_pulsar() -> None:
    assert DelayedDeliveryPolicy.from_json({}) == DelayedDeliveryPolicy(False, 0, 0)
    assert DelayedDeliveryPolicy.from_json({"active": True, "later": 1}).is_active


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (None, "must be an object, not None"),
        ([1], r"must be an object, not \[1\]"),
        ({"active": "x"}, "active must be true or false, not 'x'"),
        ({"active": 1}, "active must be true or false, not 1"),
        ({"active": None}, "active must be true or false, not None"),
        ({"tickTime": -1}, f"tickTime must be 0 to {INT_MAX} ms, not -1"),
        ({"tickTime": INT_MAX + 1}, "tickTime must be 0 to"),
        ({"tickTime": 10**5000}, "tickTime must be 0 to .* a number of 16610 bits"),
        ({"tickTime": 1.5}, "tickTime must be a whole number, not 1.5"),
        ({"tickTime": True}, "tickTime must be a whole number, not True"),
        ({"tickTime": "y" * 1000}, "tickTime must be a whole number, not 'y{79}"),
        ({"tickTime": float("nan")}, "tickTime must be a whole number, not nan"),
        ({"maxDeliveryDelayInMillis": -5}, "maxDeliveryDelayInMillis must be 0 to .* not -5"),
        ({"maxDeliveryDelayInMillis": MAX_DELAY_MS_MAX + 1}, "maxDeliveryDelayInMillis must be"),
    ],
)
def test_what_cannot_be_is_named(value: object, complaint: str) -> None:
    with pytest.raises(CallerError, match=complaint):
        DelayedDeliveryPolicy.from_json(value)


def _known(*, topic: object = None, namespace: object = None) -> EffectivePolicies:
    async def stored() -> EffectivePolicies:
        store = PolicyStore(MemoryMetadataStore())
        for path, value in (
            (topic_policy_path(TOPIC), topic),
            (namespace_policy_path(TOPIC.namespace_name), namespace),
        ):
            await store.change(path, {DELAYED_DELIVERY: value})
        policies = EffectivePolicies(store, TOPIC)
        await policies.load()
        return policies

    return asyncio.run(stored())


@pytest.mark.parametrize(
    ("topic", "namespace", "holds"),
    [
        (None, None, (True, 500, 9_000)),
        (None, {"active": False, "tickTime": 7}, (False, 7, 0)),
        ({"active": True, "tickTime": 3}, {"active": False, "tickTime": 7}, (True, 3, 0)),
        ({"active": False}, {"active": True, "tickTime": 7}, (False, 7, 0)),
        ({"active": True, "maxDeliveryDelayInMillis": 4}, None, (True, 500, 4)),
    ],
)
def test_the_most_specific_level_holds(
    topic: object, namespace: object, holds: tuple[bool, int, int]
) -> None:
    effective = _known(topic=topic, namespace=namespace).delayed_delivery(SETTINGS)
    assert effective == DelayedDeliveryPolicy(*holds)


async def test_redelivery_backoff_is_the_topics_or_the_namespaces_or_none() -> None:
    store = PolicyStore(MemoryMetadataStore())
    policies = EffectivePolicies(store, TOPIC)
    await policies.load()
    assert policies.redelivery_backoff() is None
    of_namespace, of_topic = RedeliveryBackoffPolicy(5, 10), RedeliveryBackoffPolicy(6, 10)
    namespace_path = namespace_policy_path(TOPIC.namespace_name)
    await store.change(namespace_path, {REDELIVERY_BACKOFF: of_namespace.to_json()})
    assert policies.redelivery_backoff() == of_namespace
    await store.change(topic_policy_path(TOPIC), {REDELIVERY_BACKOFF: of_topic.to_json()})
    assert policies.redelivery_backoff() == of_topic


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (DELAYED_DELIVERY, {"tickTime": -1}),
        (REDELIVERY_BACKOFF, {"jitter": 2}),
        (DELAYED_DELIVERY, 1),
    ],
)
async def test_what_cannot_be_is_neither_stored_nor_read(key: str, value: object) -> None:
    metadata = MemoryMetadataStore()
    store, path = PolicyStore(metadata), topic_policy_path(TOPIC)
    await store.change(path, {"retentionSizeInMB": 1, "retentionTimeInMinutes": 1})
    before = await metadata.get(path)
    with pytest.raises(CallerError, match=key):
        await store.change(path, {"retentionSizeInMB": 2, key: value})
    assert await metadata.get(path) == before

    await metadata.put(path, json.dumps({key: value}).encode(), expected_version=None)
    with pytest.raises(CorruptRecordError, match=f"{path}.*{key}"):
        await PolicyStore(metadata).load(path)
