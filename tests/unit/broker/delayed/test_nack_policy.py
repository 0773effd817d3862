"""The policy `redeliveryBackoff`: what its JSON may be, and what is said of what it may not."""

from __future__ import annotations

import json

import pytest

from ackgate.broker.cluster.policies import DELAY_MS_MAX, RedeliveryBackoffPolicy
from ackgate.errors import CallerError


def test_json_there_and_back() -> None:
    policy = RedeliveryBackoffPolicy(1_000, 60_000, 2, 0.1)
    value = {"minDelayMs": 1_000, "maxDelayMs": 60_000, "multiplier": 2, "jitter": 0.1}
    assert policy.to_json() == value
    assert RedeliveryBackoffPolicy.from_json(json.loads(json.dumps(value))) == policy


def test_what_is_left_out_is_pulsars_default() -> None:
    assert RedeliveryBackoffPolicy.from_json({}) == RedeliveryBackoffPolicy(10_000, 600_000, 2.0, 0)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (None, "must be an object"),
        ([], "must be an object"),
        ({"minDelay": 1}, "no field minDelay"),
        ({"minDelayMs": -1}, "minDelayMs must be 0 to"),
        ({"minDelayMs": 1.5}, "minDelayMs must be a whole number"),
        ({"minDelayMs": True}, "minDelayMs must be a whole number"),
        ({"minDelayMs": None}, "minDelayMs must be a whole number"),
        ({"minDelayMs": 5, "maxDelayMs": 4}, "maxDelayMs must be 5 to"),
        ({"maxDelayMs": DELAY_MS_MAX + 1}, "maxDelayMs must be"),
        ({"maxDelayMs": 10**400}, "maxDelayMs must be"),
        ({"multiplier": 1}, "multiplier must be above 1"),
        ({"multiplier": 10**400}, "multiplier must be above 1"),
        ({"multiplier": float("nan")}, "multiplier must be a finite number"),
        ({"multiplier": float("inf")}, "multiplier must be a finite number"),
        ({"multiplier": "2"}, "multiplier must be a finite number"),
        ({"multiplier": False}, "multiplier must be a finite number"),
        ({"jitter": 1.1}, "jitter must be 0 to 1"),
        ({"jitter": -0.1}, "jitter must be 0 to 1"),
        ({"jitter": None}, "jitter must be a finite number"),
    ],
)
def test_what_cannot_be_is_named(value: object, complaint: str) -> None:
    with pytest.raises(CallerError, match=complaint):
        RedeliveryBackoffPolicy.from_json(value)
