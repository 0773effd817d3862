from __future__ import annotations

from typing import Any

from ackgate.broker.admin.stats import add_up


def stats(number: int, **more: Any) -> dict[str, Any]:
    return {
        "msgRateIn": 1.5,
        "msgInCounter": number,
        "backlogQuotaLimitSize": -1,
        "publishers": [{"producerName": "p", "msgRateIn": 1.5, "address": f"/{number}"}],
        "subscriptions": {
            "s": {
                "msgBacklog": number,
                "lastAckedTimestamp": number * 100,
                "isBlockedOnAckStatePersistent": number == 2,
                "type": "Shared",
                "subscriptionProperties": {"k": "v"},
                "ackState": {"rangesLive": 5},
                "consumers": [{"consumerName": "c", "availablePermits": number}],
            }
        },
        **more,
    }


def test_counters_rates_and_subscriptions_are_added() -> None:
    total = add_up([stats(1), stats(2), stats(3)])
    assert total["msgInCounter"] == 6
    assert total["msgRateIn"] == 4.5
    assert total["backlogQuotaLimitSize"] == -1
    subscription = total["subscriptions"]["s"]
    assert subscription["msgBacklog"] == 6
    assert subscription["lastAckedTimestamp"] == 300
    assert subscription["isBlockedOnAckStatePersistent"] is True
    assert subscription["type"] == "Shared"
    assert subscription["subscriptionProperties"] == {"k": "v"}


def test_a_limit_of_some_partitions_is_none_of_all() -> None:
    for limits in ([5, -1], [-1, 5], [-1, -1]):
        parts = [stats(1, backlogQuotaLimitSize=limit) for limit in limits]
        assert add_up(parts)["backlogQuotaLimitSize"] == -1
    parts = [stats(1, backlogQuotaLimitSize=5), stats(1, backlogQuotaLimitSize=7)]
    assert add_up(parts)["backlogQuotaLimitSize"] == 12


def test_negative_permits_are_a_number_like_any() -> None:
    total = add_up([stats(-1), stats(3)])
    assert total["subscriptions"]["s"]["consumers"][0]["availablePermits"] == 2


def test_a_client_on_all_partitions_is_one_client() -> None:
    total = add_up([stats(1), stats(2)])
    assert total["publishers"] == [{"producerName": "p", "msgRateIn": 3.0, "address": "/1"}]
    consumers = total["subscriptions"]["s"]["consumers"]
    assert consumers == [{"consumerName": "c", "availablePermits": 3}]


def test_ack_states_are_not_added() -> None:
    assert "ackState" not in add_up([stats(1)])["subscriptions"]["s"]


def test_the_earliest_time_is_the_earliest_that_is_known() -> None:
    parts = [stats(1, earliestMsgPublishTimeInBacklogs=time) for time in (0, 50, 40)]
    assert add_up(parts)["earliestMsgPublishTimeInBacklogs"] == 40


def test_the_parts_are_left_as_they_are() -> None:
    parts = [stats(1), stats(2)]
    add_up(parts)
    assert parts == [stats(1), stats(2)]
