"""Properties of topics over HTTP, as Pulsar 4.0.7 answers; they last."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from ackgate.broker.wire.proto import pulsar_pb2 as pb
from tests.broker.admin.conftest import InProcessBroker
from tests.support.wire_client import WireClient

TOPICS = "persistent/public/default"


def make(broker: InProcessBroker, name: str, partitions: int, properties: Any) -> str:
    """A topic with these properties; returns the path of them."""
    if partitions:
        body = {"partitions": partitions, "properties": properties}
        assert broker.ask("PUT", f"{TOPICS}/{name}/partitions", body).status == 204
    else:
        assert broker.ask("PUT", f"{TOPICS}/{name}", properties).status == 204
    return f"{TOPICS}/{name}/properties"


@pytest.mark.parametrize("partitions", [0, 3])
def test_properties_are_given_added_to_and_removed(
    broker: InProcessBroker, partitions: int
) -> None:
    path = make(broker, f"made-with-{partitions}", partitions, {"a": "1", "b": "2"})
    assert broker.get(path) == {"a": "1", "b": "2"}
    assert broker.ask("PUT", path, {"b": "3", "c/ä": "4"}).status == 204
    assert broker.get(path) == {"a": "1", "b": "3", "c/ä": "4"}
    for key in ("a", "zz", "c%2F%C3%A4"):
        assert broker.ask("DELETE", f"{path}?key={key}").status == 204
    assert broker.ask("DELETE", path).status == 204
    for nothing in (None, {}):
        assert broker.ask("PUT", path, nothing).status == 204
    assert broker.get(path) == {"b": "3"}


@pytest.mark.parametrize("partitions", [0, 3])
def test_a_topic_without_properties(broker: InProcessBroker, partitions: int) -> None:
    path = make(broker, f"made-without-{partitions}", partitions, {})
    assert broker.get(path) == {}
    shown = broker.get(path.replace("properties", "partitions"))
    assert shown == {"partitions": partitions, "deleted": False}


def test_those_of_a_partitioned_topic_are_its_own(broker: InProcessBroker) -> None:
    path = make(broker, "parted", 2, {"k": "v"})
    count, of_one = f"{TOPICS}/parted/partitions", f"{TOPICS}/parted-partition-0/properties"
    assert broker.get(count) == {"partitions": 2, "deleted": False, "properties": {"k": "v"}}
    assert broker.get(of_one) == {}
    assert broker.ask("PUT", of_one, {"q": "r"}).status == 204
    assert broker.get(of_one) == {"q": "r"}
    assert broker.ask("POST", count, 3).status == 204
    assert broker.get(count) == {"partitions": 3, "deleted": False, "properties": {"k": "v"}}
    assert broker.get(path) == {"k": "v"}


@pytest.mark.parametrize("partitions", [0, 2])
def test_what_cannot_be_a_topics_properties(broker: InProcessBroker, partitions: int) -> None:
    path = make(broker, f"odd-{partitions}", partitions, {"a": "b"})
    for odd, status in (
        ([1], 400),
        ({"a": 1}, 400),
        ({"y": None}, 400),
        ({str(n): "" for n in range(100)}, 400),
        ({"large": "x" * 17_000}, 412),
        ({"#ackgate.x": "7"}, 412),
    ):
        answer = broker.ask("PUT", path, odd)
        assert (answer.status, "reason" in answer.value) == (status, True), odd
    assert broker.get(path) == {"a": "b"}
    for odd in ([1], {"#ackgate.x": "7"}):
        assert broker.ask("PUT", f"{TOPICS}/never-made", odd).status in {400, 412}
    assert broker.ask("GET", f"{TOPICS}/never-made/stats").status == 404


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_a_topic_that_does_not_exist(broker: InProcessBroker, method: str) -> None:
    body = {"a": "b"} if method == "PUT" else None
    answer = broker.ask(method, f"{TOPICS}/nope/properties?key=a", body)
    assert answer.status == 404
    assert answer.value["reason"] == "Topic persistent://public/default/nope not found"


@pytest.mark.parametrize("partitions", [0, 2])
def test_none_of_many_at_once_is_lost(broker: InProcessBroker, partitions: int) -> None:
    path = make(broker, f"at-once-{partitions}", partitions, {})
    askers = [
        threading.Thread(target=broker.ask, args=("PUT", path, {f"k{n}": "v"})) for n in range(8)
    ]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert broker.get(path) == {f"k{n}": "v" for n in range(8)}


async def topic_epoch(broker: InProcessBroker, topic: str) -> int:
    """What an exclusive producer gets, and the broker keeps in the topic's node."""
    async with await WireClient.connect("127.0.0.1", broker.server.protocol_port) as client:
        mode = pb.ProducerAccessMode.Exclusive
        producer = await client.producer(topic, producer_access_mode=mode)
        return producer.success.topic_epoch


def test_they_survive_a_restart_beside_what_the_broker_keeps_there(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path) as broker:
        path = make(broker, "kept", 0, {"a": "1"})
        of_parted = make(broker, "parted", 2, {"p": "q"})
        epoch = broker.run(topic_epoch(broker, "kept"))
        assert broker.ask("PUT", path, {"b": "2"}).status == 204
        assert broker.ask("PUT", f"{TOPICS}/kept/unload").status == 204
        assert broker.get(path) == {"a": "1", "b": "2"}
    with InProcessBroker(tmp_path) as broker:
        assert broker.get(path) == {"a": "1", "b": "2"}
        assert broker.get(of_parted) == {"p": "q"}
        assert broker.run(topic_epoch(broker, "kept")) == epoch + 1
        assert broker.get(path) == {"a": "1", "b": "2"}
