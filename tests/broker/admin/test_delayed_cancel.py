"""Cancelling delayed messages over HTTP, and what the real client then gets."""

from __future__ import annotations

import datetime as dt
import time

import pulsar
import pytest

from ackgate.broker.delayed.cancel import POSITIONS_MAX
from ackgate.commands.stats.stored import stored_stats
from tests.broker.admin.conftest import InProcessBroker
from tests.broker.target import eventually, receive

SHARED, KEY_SHARED = pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared
EARLIEST = pulsar.InitialPosition.Earliest


class Delayed:
    """A topic with messages that wait, and its subscriptions."""

    def __init__(self, broker: InProcessBroker, client: pulsar.Client, name: str) -> None:
        self.name = name
        self.path = f"persistent/public/default/{name}"
        self._broker = broker
        self._client = client
        self._producer = client.create_producer(
            name, batching_enabled=False, block_if_queue_full=True
        )

    def subscribe(
        self, subscription: str, kind: pulsar.ConsumerType = SHARED, consumer: str = "c"
    ) -> pulsar.Consumer:
        return self._client.subscribe(
            self.name,
            subscription,
            consumer_type=kind,
            consumer_name=consumer,
            initial_position=EARLIEST,
        )

    def publish(self, text: str, seconds: float = 0) -> str:
        """Its position."""
        after = dt.timedelta(seconds=seconds) if seconds else None
        sent = self._producer.send(text.encode(), deliver_after=after, partition_key=text)
        return f"{sent.ledger_id()}:{sent.entry_id()}"

    def publish_many(self, count: int, seconds: float) -> list[str]:
        """Their positions."""
        ids: list[pulsar.MessageId] = []
        for number in range(count):
            self._producer.send_async(
                b"%d" % number,
                lambda _, message_id: ids.append(message_id),
                deliver_after=dt.timedelta(seconds=seconds),
            )
        self._producer.flush()
        eventually(lambda: len(ids) == count)
        return [f"{sent.ledger_id()}:{sent.entry_id()}" for sent in ids]

    def close(self) -> None:
        """Whoever is still connected would make a deleted topic anew."""
        self._client.close()

    def cancel(self, position: str) -> tuple[int, dict]:
        answer = self._broker.ask("DELETE", f"{self.path}/delayed/{position.replace(':', '/')}")
        return answer.status, answer.value

    def cancel_many(self, *positions: str) -> dict:
        answer = self._broker.ask("POST", f"{self.path}/delayed/cancel", {"positions": positions})
        assert answer.status == 200, answer
        return dict(answer.value)

    @property
    def listed(self) -> dict:
        return dict(self._broker.get(f"{self.path}/delayed"))


def texts(consumer: pulsar.Consumer, count: int) -> list[str]:
    return sorted(message.data().decode() for message in receive(consumer, count))


@pytest.fixture
def delayed(
    broker: InProcessBroker, pulsar_client: pulsar.Client, request: pytest.FixtureRequest
) -> Delayed:
    return Delayed(broker, pulsar_client, request.node.name)


def test_a_cancelled_message_arrives_nowhere(delayed: Delayed) -> None:
    shared, keyed = delayed.subscribe("shared"), delayed.subscribe("keyed", KEY_SHARED)
    positions = [delayed.publish(str(number), 1.5) for number in range(6)]
    status, told = delayed.cancel(positions[1])
    assert status == 200
    assert told["position"] == positions[1]
    assert told["outcome"] == "cancelled"
    assert told["deliverAt"] > time.time() * 1000
    assert told["subscriptions"] == {
        "shared": {"outcome": "cancelled"},
        "keyed": {"outcome": "cancelled"},
    }
    assert delayed.cancel(positions[1]) == (
        200,
        {"position": positions[1], "outcome": "alreadyCancelled"},
    )
    assert delayed.cancel_many(*positions[1:4])["cancelled"] == 2
    eventually(lambda: delayed.listed["subscriptions"]["shared"]["delayedEntries"] == 3)
    assert delayed.listed["cancelled"] == 3
    for consumer in (shared, keyed, delayed.subscribe("later")):
        assert texts(consumer, 3) == ["0", "4", "5"]
        with pytest.raises(pulsar.Timeout):
            consumer.receive(300)


def test_what_cannot_be_cancelled_is_refused_in_words(delayed: Delayed) -> None:
    consumer = delayed.subscribe("s", consumer="worker-1")
    now = delayed.publish("now")
    soon = delayed.publish("soon", 0.3)
    assert texts(consumer, 2) == ["now", "soon"]
    name = f"persistent://public/default/{delayed.name}"
    ledger_id, _, _ = now.partition(":")
    for position, status, reason in (
        (now, 412, f"message {now} of {name} was published without a delivery time"),
        (soon, 409, f"message {soon} of {name} was delivered (s: delivered to worker-1)"),
        (f"{ledger_id}:77", 404, f"there is no message {ledger_id}:77 of {name}"),
        ("99999:0", 404, f"there is no message 99999:0 of {name}"),
        (f"{ledger_id}:{2**32}", 400, f"{ledger_id}:{2**32} is not a position"),
        (f"{ledger_id}:x", 400, "entryId is 'x', which is not an integer"),
        (f"{ledger_id}:-1", 400, "entryId is -1, at least 0 is expected"),
    ):
        answered, told = delayed.cancel(position)
        assert answered == status, told
        assert told["reason"].startswith(reason)
    outcomes = delayed.cancel_many(now, soon, "99999:0")["outcomes"]
    assert [told["outcome"] for told in outcomes] == ["notDelayed", "delivered", "unknownPosition"]
    assert outcomes[1]["subscriptions"] == {"s": {"outcome": "delivered", "consumer": "worker-1"}}
    assert delayed.listed["cancelled"] == 0


def test_a_thousand_at_once(delayed: Delayed) -> None:
    consumer = delayed.subscribe("s")
    positions = delayed.publish_many(2_000, seconds=3)
    told = delayed.cancel_many(*positions[::2])
    assert told["cancelled"] == 1_000
    assert {each["outcome"] for each in told["outcomes"]} == {"cancelled"}
    assert delayed.listed["cancelled"] == 1_000
    arrived = {int(message.data()) for message in receive(consumer, 1_000)}
    assert arrived == set(range(1, 2_000, 2))
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (None, "expected"),
        ([], "expected"),
        ({"positions": "1:2"}, "expected"),
        ({"positions": [1]}, "1 is not a position"),
        ({"positions": ["1:2", "1"]}, "'1' is not a position"),
        ({"positions": ["1:2", "1:-2"]}, "'1:-2' is not a position"),
        ({"positions": ["1:²"]}, "is not a position"),
        ({"positions": ["1:2:3"]}, "'1:2:3' is not a position"),
        ({"positions": ["1:" + "9" * 20]}, "is not a position"),
        ({"positions": ["1:99999999999"]}, "1:99999999999 is not a position"),
        ({"positions": ["1:2"] * (POSITIONS_MAX + 1)}, f"at most {POSITIONS_MAX} are possible"),
    ],
)
def test_a_body_that_is_no_list_of_positions_changes_nothing(
    broker: InProcessBroker, body: object, complaint: str
) -> None:
    broker.ask("PUT", "persistent/public/default/body")
    answer = broker.ask("POST", "persistent/public/default/body/delayed/cancel", body)
    assert answer.status == 400
    assert complaint in answer.value["reason"]


def test_topics_that_are_not_there_or_partitioned(broker: InProcessBroker) -> None:
    parted = "persistent/public/default/parted-delayed"
    broker.ask("PUT", f"{parted}/partitions", 2)
    for method, tail, body in (
        ("GET", "delayed", None),
        ("DELETE", "delayed/1/1", None),
        ("POST", "delayed/cancel", {"positions": ["1:1"]}),
        ("DELETE", "subscription/s/delayedBucketSnapshots", None),
        ("DELETE", "delayedBucketSnapshots", None),
    ):
        missing = broker.ask(method, f"persistent/public/default/nope/{tail}", body)
        assert missing.status == 404, tail
        assert "nope not found" in missing.value["reason"]
        refused = broker.ask(method, f"{parted}/{tail}", body)
        assert refused.status == 405, tail
        assert "is a partitioned topic" in refused.value["reason"]
    assert broker.get(f"{parted}-partition-1/delayed")["cancelled"] == 0


def test_clearing_an_index_loses_nothing(broker: InProcessBroker, delayed: Delayed) -> None:
    consumer = delayed.subscribe("s")
    for number in range(10):
        delayed.publish(str(number), 2)
    eventually(lambda: delayed.listed["subscriptions"]["s"]["delayedEntries"] == 10)
    missing = broker.ask("DELETE", f"{delayed.path}/subscription/no/delayedBucketSnapshots")
    assert missing.status == 404
    cleared = broker.ask("DELETE", f"{delayed.path}/subscription/s/delayedBucketSnapshots")
    assert cleared.status == 204
    assert texts(consumer, 10) == [str(number) for number in range(10)]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)


def test_users_see_nothing_of_where_it_is_written(
    broker: InProcessBroker, delayed: Delayed
) -> None:
    delayed.subscribe("s")
    assert delayed.cancel(delayed.publish("x", 3_600))[0] == 200
    assert broker.get(f"{delayed.path}/subscriptions") == ["s"]
    assert list(broker.get(f"{delayed.path}/internalStats")["cursors"]) == ["s"]
    stats = broker.get(f"{delayed.path}/stats")
    assert list(stats["subscriptions"]) == ["s"]
    assert stats["delayedMessagesCancelled"] == 1
    hidden = f"{delayed.path}/subscription/pulsar.delayed-cancelled"
    assert broker.ask("DELETE", hidden).status == 404
    assert broker.ask("PUT", hidden).status == 412
    topic = f"persistent://public/default/{delayed.name}"
    stored = stored_stats(topic, data_directory=broker.directory)
    assert [told.subscription for told in stored.subscriptions] == ["s"]
    delayed.close()
    assert broker.ask("DELETE", f"{delayed.path}?force=true").status == 204
    assert broker.ask("GET", f"{delayed.path}/delayed").status == 404
