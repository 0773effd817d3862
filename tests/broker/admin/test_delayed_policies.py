"""The policies `delayedDelivery` and `redeliveryBackoff` over HTTP: levels, and what cannot be."""

from __future__ import annotations

import pytest

from tests.broker.admin.conftest import InProcessBroker

NAMESPACE = "namespaces/tenant/delays"
TOPIC = "persistent/tenant/delays/orders"
DELAYED = {"tickTime": 250, "active": True, "maxDeliveryDelayInMillis": 60_000}
BACKOFF = {"minDelayMs": 100, "maxDelayMs": 5_000, "multiplier": 3, "jitter": 0.5}
LEVELS = [NAMESPACE, TOPIC]


@pytest.fixture(autouse=True)
def _made(broker: InProcessBroker) -> None:
    broker.ask("PUT", "tenants/tenant", {"adminRoles": [], "allowedClusters": ["standalone"]})
    broker.ask("PUT", NAMESPACE)
    broker.ask("PUT", TOPIC)
    for level in LEVELS:
        for policy in ("delayedDelivery", "redeliveryBackoff"):
            assert broker.ask("DELETE", f"{level}/{policy}").status == 204


def test_what_holds_is_the_topics_then_the_namespaces_then_the_brokers(
    broker: InProcessBroker,
) -> None:
    applied = f"{TOPIC}/delayedDelivery?applied=true"
    whole = {"tickTime": 1000, "active": True, "maxDeliveryDelayInMillis": 0}
    assert broker.get(applied) == whole
    assert broker.ask("POST", f"{NAMESPACE}/delayedDelivery", DELAYED).status == 204
    assert broker.get(applied) == DELAYED
    assert broker.ask("POST", f"{TOPIC}/delayedDelivery", {"active": False}).status == 204
    assert broker.get(applied) == {"tickTime": 250, "active": False, "maxDeliveryDelayInMillis": 0}
    assert broker.ask("DELETE", f"{TOPIC}/delayedDelivery").status == 204
    assert broker.get(applied) == DELAYED


def test_redelivery_backoff_is_kept_and_told_whole(broker: InProcessBroker) -> None:
    applied = f"{TOPIC}/redeliveryBackoff?applied=true"
    assert broker.get(applied) is None
    assert broker.ask("POST", f"{NAMESPACE}/redeliveryBackoff", {"minDelayMs": 5}).status == 204
    of_namespace = {"minDelayMs": 5, "maxDelayMs": 600_000, "multiplier": 2.0, "jitter": 0.0}
    assert broker.get(applied) == broker.get(f"{NAMESPACE}/redeliveryBackoff") == of_namespace
    assert broker.get(f"{TOPIC}/redeliveryBackoff") is None
    assert broker.ask("POST", f"{TOPIC}/redeliveryBackoff", BACKOFF).status == 204
    assert broker.get(applied) == BACKOFF
    assert broker.ask("POST", f"{TOPIC}/redeliveryBackoff").status == 204
    assert broker.get(applied) == of_namespace


def test_a_namespace_tells_both(broker: InProcessBroker) -> None:
    broker.ask("POST", f"{NAMESPACE}/delayedDelivery", DELAYED)
    broker.ask("POST", f"{NAMESPACE}/redeliveryBackoff", BACKOFF)
    told = broker.get(NAMESPACE)
    assert told["delayed_delivery_policies"] == DELAYED
    assert told["redelivery_backoff"] == BACKOFF


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("policy", "value", "complaint"),
    [
        (
            "delayedDelivery",
            {**DELAYED, "tickTime": -1},
            "tickTime must be 0 to 2147483647 ms, not -1",
        ),
        ("delayedDelivery", {"tickTime": 1.5}, "tickTime must be a whole number, not 1.5"),
        ("delayedDelivery", {"tickTime": "1000"}, "tickTime must be a whole number, not '1000'"),
        ("delayedDelivery", {"active": "true"}, "active must be true or false, not 'true'"),
        (
            "delayedDelivery",
            {"maxDeliveryDelayInMillis": 2**63},
            "maxDeliveryDelayInMillis must be",
        ),
        ("delayedDelivery", [1], "must be an object, not [1]"),
        ("redeliveryBackoff", {"minDelayMs": -1}, "minDelayMs must be 0 to"),
        ("redeliveryBackoff", {**BACKOFF, "maxDelayMs": 99}, "maxDelayMs must be 100 to"),
        ("redeliveryBackoff", {"multiplier": 1}, "multiplier must be above 1"),
        ("redeliveryBackoff", {"jitter": "x"}, "jitter must be a finite number, not 'x'"),
        ("redeliveryBackoff", {"delay": 1}, "no field delay"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    broker: InProcessBroker, level: str, policy: str, value: object, complaint: str
) -> None:
    path = f"{level}/{policy}"
    before = DELAYED if policy == "delayedDelivery" else BACKOFF
    assert broker.ask("POST", path, before).status == 204
    answer = broker.ask("POST", path, value)
    assert answer.status == 400
    assert answer.value["reason"].startswith(policy)
    assert complaint in answer.value["reason"]
    assert broker.get(path) == before


def test_a_namespace_or_topic_that_is_not_there(broker: InProcessBroker) -> None:
    for policy in ("delayedDelivery", "redeliveryBackoff"):
        for method in ("GET", "POST", "DELETE"):
            assert broker.ask(method, f"namespaces/tenant/nope/{policy}", {}).status == 404
            answer = broker.ask(method, f"persistent/tenant/delays/nope/{policy}", {})
            assert answer.status == 404
            assert answer.value["reason"] == "Topic persistent://tenant/delays/nope not found"
