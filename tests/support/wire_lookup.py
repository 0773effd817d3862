"""Finding a topic's owner among several brokers, as a client library does, but telling how it went.

Edge: opens a connection per question and keeps none. It asks one broker after the other, follows
redirects, and begins again when a broker is not there, does not know, or does not answer in time::

    owner = await find_owner(["127.0.0.1:6650", "127.0.0.1:6651"], topic)
    client = await WireClient.connect(owner.host, owner.port)
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from ackgate.broker.wire.proto import pulsar_pb2 as pb
from tests.support.wire_client import DisconnectedError, RefusedError, WireClient

if TYPE_CHECKING:
    from collections.abc import Sequence

REDIRECTS_MAX: Final = 20
"""As Pulsar's clients."""

ANSWER_SECONDS: Final = 1.0
"""A broker that is silent for longer is passed over."""

PAUSE_SECONDS: Final = 0.05
"""Between two rounds."""


class Owner(NamedTuple):
    """Where a topic is served."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class NoOwnerError(Exception):
    """No broker could say who serves the topic. Holds the last answers."""


async def find_owner(brokers: Sequence[str], topic: str, timeout_seconds: float = 30.0) -> Owner:
    """Ask until one of them knows. Raises `NoOwnerError`."""
    answers: dict[str, str] = {}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_seconds):
            while True:
                for broker in brokers:
                    try:
                        return await ask_for_owner(broker, topic)
                    except NoOwnerError as error:
                        answers[broker] = str(error)
                await asyncio.sleep(PAUSE_SECONDS)
    raise NoOwnerError(f"{topic}: nobody knew the owner for {timeout_seconds} s: {answers}")


async def ask_for_owner(broker: str, topic: str) -> Owner:
    """Ask this broker, and whomever it sends us to. Raises `NoOwnerError`."""
    host, _, port = broker.rpartition(":")
    asked, is_authoritative = Owner(host, int(port)), False
    for _ in range(REDIRECTS_MAX):
        answer = await _ask(asked, topic, is_authoritative=is_authoritative)
        url = urlsplit(answer.brokerServiceUrl)
        asked, is_authoritative = Owner(url.hostname or "", url.port or 0), answer.authoritative
        if answer.response == pb.CommandLookupTopicResponse.Connect:
            return asked
    raise NoOwnerError(f"more than {REDIRECTS_MAX} redirects, the last to {asked}")


async def _ask(
    broker: Owner, topic: str, *, is_authoritative: bool
) -> pb.CommandLookupTopicResponse:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            client = await WireClient.connect(broker.host, broker.port)
            try:
                return await client.lookup_answer(topic, is_authoritative=is_authoritative)
            finally:
                client.abort()
    except (OSError, DisconnectedError, RefusedError) as error:
        raise NoOwnerError(f"{broker}: {type(error).__name__}: {error}") from error
