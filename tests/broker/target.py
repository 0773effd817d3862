"""What the client tests share: the broker they speak to, and waiting without sleeping blindly."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import pulsar

from ackgate.testing import BrokerAdmin

RECEIVE_TIMEOUT_MS = 60_000
POLL_SECONDS_MIN = 0.02
POLL_SECONDS_MAX = 0.2
"""What takes long is asked for seldomer: each question costs the broker and us some milliseconds."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Target:
    """A broker's two addresses, and whether it is ours."""

    service_url: str
    admin_url: str
    is_ackgate: bool

    def admin(self, method: str, path: str, body: object = None) -> Any:
        """Call the admin interface below ``/admin/v2``; raises `AdminRefusedError`."""
        return self._admin.ask(method, path, body=body)

    def stats(self, topic: str) -> Any:
        """Pulsar's topic stats."""
        return self._admin.stats(topic)

    def subscription_stats(self, topic: str, subscription: str) -> Any:
        """Stats of one subscription."""
        return self._admin.subscription_stats(topic, subscription)

    def backlog(self, topic: str, subscription: str) -> int:
        """Messages not yet acked."""
        return self._admin.backlog(topic, subscription)

    @property
    def _admin(self) -> BrokerAdmin:
        return BrokerAdmin(self.admin_url)


def eventually(condition: Callable[[], T], *, seconds: float = 60.0) -> T:
    """Poll until the condition is true, and return what it answered; assert at the deadline."""
    deadline = time.monotonic() + seconds
    pause = POLL_SECONDS_MIN
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not so within {seconds} s; the last answer: {answer}"
        time.sleep(pause)
        pause = min(1.5 * pause, POLL_SECONDS_MAX)


def send_all(producer: pulsar.Producer, payloads: Iterable[bytes]) -> list[pulsar.MessageId]:
    """Publish without waiting for each; return the ids, in order, when all are confirmed."""
    ids: dict[int, pulsar.MessageId] = {}
    faults: list[pulsar.Result] = []

    def confirmed(number: int) -> Callable[[pulsar.Result, pulsar.MessageId], None]:
        def note(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
            if result == pulsar.Result.Ok:
                ids[number] = message_id
            else:
                faults.append(result)

        return note

    count = 0
    for count, payload in enumerate(payloads, 1):
        producer.send_async(payload, confirmed(count - 1))
    producer.flush()
    eventually(lambda: len(ids) + len(faults) == count)
    assert not faults
    return [ids[number] for number in range(count)]


def receive(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    """The next messages."""
    return [consumer.receive(RECEIVE_TIMEOUT_MS) for _ in range(count)]


def payloads(messages: Iterable[pulsar.Message]) -> list[bytes]:
    """What is in them."""
    return [message.data() for message in messages]


def numbered(count: int, stem: str = "m") -> list[bytes]:
    """Distinct payloads."""
    return [f"{stem}{number}".encode() for number in range(count)]


def position(message_id: pulsar.MessageId) -> tuple[int, int]:
    """Ledger and entry."""
    return message_id.ledger_id(), message_id.entry_id()
