"""Today's broker opens what earlier releases wrote: messages, acknowledgements, delays and schemas.

`earlier_releases/` has a data directory of each of some earlier commits, packed, with what that broker
had confirmed. `python -m tests.support.earlier_release COMMIT` made them. Make another one when a stored
format changes.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.testing import BrokerProcess
from tests.broker.bad_input.raw import RawConnection, Type
from tests.broker.target import Target, eventually

RELEASES = sorted((Path(__file__).parent / "earlier_releases").glob("*.json"))
SCHEMA_TYPES = {"JSON": pb.Schema.Json}

pytestmark = pytest.mark.slow


class Opened:
    """A copy of a release's data, served by today's broker."""

    def __init__(self, told: dict[str, Any], broker: BrokerProcess) -> None:
        self.topics: dict[str, Any] = told["topics"]
        self.target = Target(broker.service_url, broker.admin_url, is_ackgate=True)
        self.broker = broker
        self._client = pulsar.Client(
            broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )

    def close(self) -> None:
        self._client.close()

    def messages(self, topic: str) -> list[str]:
        reader = self._client.create_reader(topic, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(60_000).data().decode())
        reader.close()
        return found

    def delayed(self, topic: str, subscription: str) -> int:
        """Messages that wait for their time."""
        return int(self.target.subscription_stats(topic, subscription)["msgDelayed"])

    def delivered(self, topic: str, subscription: str) -> list[str]:
        """Everything that a subscription gets until the topic ends. Nothing is acknowledged."""
        consumer = self._client.subscribe(
            topic, subscription, consumer_type=pulsar.ConsumerType.Shared
        )
        last = f"the last for {subscription}"
        producer = self._client.create_producer(topic)
        producer.send(last.encode())
        found: list[str] = []
        expected = len(self.topics[topic]["unacked"][subscription])
        # A Shared subscription is read in order: an acked message would arrive before the last one.
        while last not in found or len(found) < expected:
            found.append(consumer.receive(60_000).data().decode())
        consumer.close()
        producer.close()
        return [text for text in found if not text.startswith("the last for ")]


@pytest.fixture(params=RELEASES, ids=lambda path: path.stem)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    told = json.loads(request.param.read_text())
    with tarfile.open(request.param.with_suffix(".tar.xz")) as tar:
        tar.extractall(tmp_path / "data", filter="data")
    with BrokerProcess(tmp_path / "data", settings=told["settings"]) as broker:
        made = Opened(told, broker)
        yield made
        made.close()
        assert broker.stop() == 0


def test_what_was_confirmed_is_there(opened: Opened) -> None:
    for topic, kept in opened.topics.items():
        found = opened.messages(topic)
        if "schema" in kept:
            assert list(map(json.loads, found)) == list(map(json.loads, kept["messages"]))
            with RawConnection(opened.broker.service_url) as connection:
                reply = connection.ask(Type.GET_SCHEMA, "getSchema", topic=topic)
            assert reply.getSchemaResponse.schema.type == SCHEMA_TYPES[kept["schema"]]
            continue
        assert found == kept["messages"]
        for subscription, count in kept.get("delayed", {}).items():
            eventually(lambda t=topic, s=subscription, n=count: opened.delayed(t, s) == n)
        for subscription, unacked in kept["unacked"].items():
            delivered = opened.delivered(topic, subscription)
            assert sorted(delivered) == sorted(unacked), (topic, subscription)


def test_there_are_releases_of_all_ages() -> None:
    assert len(RELEASES) >= 5
    assert all(path.with_suffix(".tar.xz").exists() for path in RELEASES)
