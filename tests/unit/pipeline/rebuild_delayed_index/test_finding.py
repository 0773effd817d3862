"""Which trackers are rebuilt: by the policy that holds for each topic, one each or one for all."""

from __future__ import annotations

import argparse
import json

import pytest

from ackgate.config.delayed import BUCKET_FACTORY, DelayedSettings
from ackgate.cursor import Position
from ackgate.errors import ConfigurationError, CorruptRecordError
from ackgate.persistence.nodes.paths import DELAYED_INDEX_CURSOR
from ackgate.pipeline.catalogue.catalogue import CatalogueTopic
from ackgate.pipeline.jobs.rebuild_delayed_index import JOB
from ackgate.pipeline.jobs.rebuild_delayed_index.finding import (
    DelayedTopic,
    MarkDeletes,
    effective_policy,
    targets_of,
)

OF_TOPIC = "/admin/topic-policies/t/n/orders"
OF_NAMESPACE = "/admin/policies/t/n"


class Nodes:
    """A catalogue, as far as policies go."""

    def __init__(self, **nodes: object) -> None:
        self._nodes = {OF_TOPIC: nodes.get("topic"), OF_NAMESPACE: nodes.get("namespace")}

    def value(self, path: str) -> bytes | None:
        value = self._nodes.get(path)
        return None if value is None else json.dumps({"delayedDelivery": value}).encode()


def policy_of(nodes: Nodes, name: str = "orders"):
    topic = CatalogueTopic(f"persistent://t/n/{name}", f"/managed-ledgers/t/n/persistent/{name}")
    return effective_policy(nodes, topic, DelayedSettings(delayed_delivery_tick_time_millis=1_000))


@pytest.mark.parametrize(
    ("nodes", "is_active", "tick_ms"),
    [
        (Nodes(), True, 1_000),
        (Nodes(namespace={"active": True, "tickTime": 64}), True, 64),
        (Nodes(namespace={"active": True, "tickTime": 64}, topic={"active": False}), False, 64),
        (Nodes(namespace={"active": False}, topic={"active": True, "tickTime": 5}), True, 5),
    ],
)
def test_the_most_specific_policy_holds(nodes, is_active, tick_ms):
    for name in ("orders", "orders-partition-3"):
        policy = policy_of(nodes, name)
        assert (policy.is_active, policy.tick_ms) == (is_active, tick_ms)


def test_a_topic_that_only_looks_like_a_partition_has_its_own_policy():
    assert policy_of(Nodes(topic={"active": False}), "orders-partition-x").is_active


def test_a_policy_that_cannot_be_read_names_its_node():
    with pytest.raises(CorruptRecordError, match=OF_TOPIC):
        policy_of(Nodes(topic={"active": 7}))


def topics() -> list[DelayedTopic]:
    orders, mails = (
        CatalogueTopic(f"persistent://t/n/{name}", f"/managed-ledgers/t/n/persistent/{name}")
        for name in ("orders", "mails")
    )
    return [
        DelayedTopic(orders, 64, ("a", "b"), (3, 4), has_cancelled=True),
        DelayedTopic(mails, 32, (), (5,), has_cancelled=False),
    ]


MARKS = MarkDeletes(
    {
        ("persistent://t/n/orders", "a"): Position(4, 7),
        ("persistent://t/n/orders", "pulsar.delayed-cancelled"): Position(3, 1),
    }
)


def test_each_subscription_has_a_target():
    targets = targets_of(topics(), MARKS, DelayedSettings())

    assert [(t.cursor, dict(t.readers), t.tick_ms) for t in targets.all] == [
        ("a", {"a": Position(4, 7)}, 64),
        ("b", {"b": Position(-1, -1)}, 64),
    ]
    assert {t.cancelled_through for t in targets.all} == {Position(3, 1)}
    assert [t.number for t in targets.of_ledger(4)] == [0, 1]
    assert targets.of_ledger(5) == targets.of_ledger(99) == ()
    assert targets.first_ledger_id == 0


def test_subscriptions_that_share_an_index_are_one_target():
    shared = DelayedSettings(delayed_delivery_shared_index_enabled=True)

    (target,) = targets_of(topics(), MARKS, shared).all

    assert target.cursor == DELAYED_INDEX_CURSOR
    assert target.subscription is None
    assert set(target.readers) == {"a", "b"}
    assert target.path == "/managed-ledgers/t/n/persistent/orders/pulsar.delayed-index"


@pytest.mark.parametrize(
    ("lines", "arguments", "why"),
    [
        ([], {}, "keeps delayed messages in memory"),
        (["delayedDeliverySharedIndexEnabled=true"], {"subscription": "a"}, "share one index"),
        ([], {"now_ms": -1}, "--now-ms -1"),
    ],
)
def test_what_no_data_can_mend_is_refused_before_spark_starts(tmp_path, lines, arguments, why):
    config = tmp_path / "broker.conf"
    factory = f"delayedDeliveryTrackerFactoryClassName={BUCKET_FACTORY}"
    config.write_text("\n".join([*lines, factory if arguments else ""]))
    given = {"config": str(config), "subscription": None, "now_ms": None, **arguments}

    with pytest.raises(ConfigurationError, match=why):
        JOB.check_arguments(argparse.Namespace(**given))
