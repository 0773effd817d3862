"""A broker to test, and a real Pulsar client connected to it.

The tests that speak through the client describe Pulsar, not ackgate: with the address of a real
Pulsar in the environment they run against that instead, which is how a doubt is settled::

    export ACKGATE_TEST_SERVICE_URL=pulsar://127.0.0.1:16650
    export ACKGATE_TEST_ADMIN_URL=http://127.0.0.1:18080
    pytest tests/broker/test_pulsar_client_*.py
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pulsar
import pytest

from ackgate.testing.pytest_plugin import (  # noqa: F401 - fixtures
    ackgate_broker,
    ackgate_settings,
    ackgate_topic,
    fresh_ackgate_topic,
)
from tests.broker.target import Target

_OPERATION_TIMEOUT_SECONDS = 30


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Target:
    """The broker that the tests speak to."""
    service_url = os.environ.get("ACKGATE_TEST_SERVICE_URL")
    if service_url:
        return Target(service_url, os.environ["ACKGATE_TEST_ADMIN_URL"], is_ackgate=False)
    broker = request.getfixturevalue("ackgate_broker")
    return Target(broker.service_url, broker.admin_url, is_ackgate=True)


@pytest.fixture
def fresh_topic(
    fresh_ackgate_topic: Callable[[], str],  # noqa: F811
    target: Target,
) -> Callable[[], str]:
    """Makes names of topics of this test. A foreign broker outlives the run, so ours get a pid."""
    suffix = "" if target.is_ackgate else f"-{os.getpid()}"
    return lambda: fresh_ackgate_topic() + suffix


@pytest.fixture
def topic(fresh_topic: Callable[[], str]) -> str:
    """A topic of this test alone."""
    return fresh_topic()


@pytest.fixture
def make_client(target: Target) -> Iterator[Callable[[], pulsar.Client]]:
    """Connections, closed at the end of the test."""
    clients = []

    def make(service_url: str = target.service_url) -> pulsar.Client:
        client = pulsar.Client(
            service_url,
            operation_timeout_seconds=_OPERATION_TIMEOUT_SECONDS,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(make_client: Callable[[], pulsar.Client]) -> pulsar.Client:
    """One connection."""
    return make_client()
