"""Every answer of the story is Pulsar's, but for what is listed here with its reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.broker.admin.conftest import InProcessBroker
from tests.broker.admin.scenario import ANSWERS, digest, tell

NOT_MEASURED = {
    "chunkedMessageRate",
    "msgChunkPublished",
    "oldestBacklogMessageAgeSeconds",
    "lastLedgerSwitchTimestamp",
}
"""Keys of Pulsar that we leave out."""

OURS = {
    "ackState",
    "delayed",
    "delayedIndexIsShared",
    "delayedMessagesCancelled",
    "delayedMessagesRefused",
    "isBlockedOnAckStatePersistent",
}
"""Keys that Pulsar does not have."""

ONLY_SOME_KEYS = {"GET /admin/v2/namespaces/story/ns"}
"""Pulsar lists some thirty policies; we those that we have."""

OTHER_STATUS = {
    # A number that is none: Pulsar finds no path for it and shows a page; we say what is wrong.
    "POST /admin/v2/persistent/story/ns/one/subscription/shared/skip/x": 400,
    "POST /admin/v2/persistent/story/ns/one/subscription/shared/resetcursor/x": 400,
    "POST /admin/v2/persistent/story/ns/one/subscription/shared/expireMessages/x": 400,
    "POST /admin/v2/persistent/story/ns/one/messageTTL?messageTTL=x": 400,
}


def differences(pulsars: Any, ours: Any, place: str) -> Iterator[str]:
    """Where the shape of an answer is not Pulsar's."""
    if isinstance(pulsars, dict) and isinstance(ours, dict):
        for key in sorted(pulsars.keys() - ours.keys() - NOT_MEASURED):
            yield f"{place}.{key} is missing"
        for key in sorted(ours.keys() - pulsars.keys() - OURS):
            yield f"{place}.{key} is not Pulsar's"
        for key in pulsars.keys() & ours.keys():
            yield from differences(pulsars[key], ours[key], f"{place}.{key}")
    elif isinstance(pulsars, list) and isinstance(ours, list):
        if pulsars and ours:
            yield from differences(pulsars[0], ours[0], f"{place}[]")
        elif pulsars:
            yield f"{place} is empty"
    elif pulsars != ours:
        yield f"{place} is {ours}, not {pulsars}"


@pytest.mark.slow
def test_same_answers_as_pulsar(broker: InProcessBroker) -> None:
    recorded = [json.loads(line) for line in ANSWERS.read_text().splitlines()]
    told = [
        {"ask": str(step), **digest(answer)}
        for step, answer in tell(broker.url, broker.server.service_url)
    ]
    assert [answer["ask"] for answer in told] == [answer["ask"] for answer in recorded]

    faults: list[str] = []
    for pulsars, ours in zip(recorded, told, strict=True):
        question = pulsars["ask"]
        status = OTHER_STATUS.get(question, pulsars["status"])
        if ours["status"] != status:
            faults.append(f"{question}: {ours}, Pulsar {pulsars}")
        elif "shape" in pulsars and question not in ONLY_SOME_KEYS:
            faults += differences(pulsars["shape"], ours.get("shape"), question)
        elif isinstance(pulsars.get("value"), list):
            if sorted(pulsars["value"]) != sorted(ours["value"]):
                faults.append(f"{question}: {ours['value']}, Pulsar {pulsars['value']}")
        elif "value" in pulsars and pulsars["value"] != ours.get("value"):
            faults.append(f"{question}: {ours.get('value')}, Pulsar {pulsars['value']}")
    assert not faults, "\n".join(faults)
