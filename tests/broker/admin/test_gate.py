"""The gate over HTTP: switched on and off at every level, and what is told of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pulsar
import pytest

from ackgate.commands.cli import main
from tests.broker.admin.conftest import InProcessBroker
from tests.broker.target import eventually, receive

LIMIT = 10
CONFIGURATION = "brokers/configuration/dispatcherPauseOnAckStatePersistentEnabled"
NAMESPACE = "namespaces/public/default/dispatcherPauseOnAckStatePersistent"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessBroker]:
    settings: dict[str, object] = {"managedLedgerMaxUnackedRangesToPersist": LIMIT}
    with InProcessBroker(tmp_path_factory.mktemp("gate"), settings) as broker:
        yield broker


class HoledTopic:
    """A topic whose one subscription has more ack ranges than the limit."""

    def __init__(self, broker: InProcessBroker, client: pulsar.Client, name: str) -> None:
        self.path = f"persistent/public/default/{name}"
        self._broker = broker
        self.consumer = client.subscribe(
            name,
            "s",
            consumer_type=pulsar.ConsumerType.Shared,
            receiver_queue_size=4 * LIMIT,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        producer = client.create_producer(name, batching_enabled=False)
        for number in range(4 * LIMIT):
            producer.send(b"%d" % number)
        producer.close()
        self.messages = receive(self.consumer, 4 * LIMIT)
        for message in self.messages[1::2]:
            self.consumer.acknowledge(message)
        eventually(lambda: self.stats["nonContiguousDeletedMessagesRanges"] == 2 * LIMIT)
        eventually(lambda: self.stats["ackState"]["rangesPersisted"] == LIMIT)

    @property
    def stats(self) -> dict:
        return dict(self._broker.get(f"{self.path}/stats")["subscriptions"]["s"])

    @property
    def is_shut(self) -> bool:
        return bool(self.stats["isBlockedOnAckStatePersistent"])


@pytest.fixture
def holed(
    broker: InProcessBroker, pulsar_client: pulsar.Client, request: pytest.FixtureRequest
) -> Iterator[HoledTopic]:
    topic = HoledTopic(broker, pulsar_client, str(request.node.name).partition("[")[0])
    yield topic
    topic.consumer.close()


def test_off_the_limit_is_told_and_nothing_blocks(holed: HoledTopic) -> None:
    state = holed.stats["ackState"]
    assert not holed.is_shut
    assert state["gate"]["isEnabled"] is False
    assert state["gate"]["reasons"] == {}
    assert (state["rangesLive"], state["rangesPersisted"], state["rangesMax"]) == (20, 10, 10)
    assert state["entriesDropped"] == 10
    assert state["forecast"] == {"gateShutsInSeconds": None, "limitReachedInSeconds": 0.0}


def test_switched_by_topic_policy(broker: InProcessBroker, holed: HoledTopic) -> None:
    policy = f"{holed.path}/dispatcherPauseOnAckStatePersistent"
    assert broker.ask("POST", policy).status == 204
    assert holed.is_shut
    gate = holed.stats["ackState"]["gate"]
    assert set(gate["reasons"]) == {"ranges-live", "ranges-persisted"}
    assert gate["shutSinceMs"] == min(gate["reasons"].values())
    assert holed.stats["ackState"]["forecast"]["gateShutsInSeconds"] == 0.0
    assert broker.ask("DELETE", policy).status == 204
    assert not holed.is_shut


def test_switched_by_namespace_policy(broker: InProcessBroker, holed: HoledTopic) -> None:
    assert broker.ask("POST", NAMESPACE).status == 204
    try:
        assert holed.is_shut
    finally:
        broker.ask("DELETE", NAMESPACE)
    assert not holed.is_shut


def test_switched_by_dynamic_configuration(broker: InProcessBroker, holed: HoledTopic) -> None:
    assert broker.ask("POST", f"{CONFIGURATION}/true").status == 200
    try:
        assert holed.is_shut
    finally:
        broker.ask("DELETE", CONFIGURATION)
    assert not holed.is_shut


def test_a_stored_false_wins_over_the_levels_above(
    broker: InProcessBroker, holed: HoledTopic
) -> None:
    policy = f"{holed.path}/dispatcherPauseOnAckStatePersistent"
    broker.ask("POST", NAMESPACE)
    try:
        assert broker.ask("POST", policy, False).status == 204
        assert broker.get(f"{policy}?applied=true") is False
        assert not holed.is_shut
        broker.ask("DELETE", policy)
        assert broker.get(policy) is False
        assert broker.get(f"{policy}?applied=true") is True
        assert holed.is_shut
    finally:
        broker.ask("DELETE", NAMESPACE)


@pytest.mark.parametrize("way", ["acks", "skip", "skip_all", "reset"])
def test_it_opens(broker: InProcessBroker, pulsar_client: pulsar.Client, way: str) -> None:
    holed = HoledTopic(broker, pulsar_client, f"opens-by-{way}")
    policy = f"{holed.path}/dispatcherPauseOnAckStatePersistent"
    subscription = f"{holed.path}/subscription/s"
    broker.ask("POST", policy)
    assert holed.is_shut
    match way:
        case "acks":
            for message in holed.messages[::2]:
                holed.consumer.acknowledge(message)
        case "skip":
            assert broker.ask("POST", f"{subscription}/skip/{LIMIT}").status == 204
        case "skip_all":
            assert broker.ask("POST", f"{subscription}/skip_all").status == 204
        case "reset":
            assert broker.ask("POST", f"{subscription}/resetcursor/0").status == 204
    eventually(lambda: not holed.is_shut)
    holed.consumer.close()


def test_the_forecast_follows_the_growth_of_ranges(
    broker: InProcessBroker, pulsar_client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = 1_000_000
    monkeypatch.setattr(broker.server.sampler, "_clock_ms", lambda: now_ms)
    name = "forecast"
    path = f"persistent/public/default/{name}"
    consumer = pulsar_client.subscribe(
        name,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    producer = pulsar_client.create_producer(name, batching_enabled=False)
    for number in range(20):
        producer.send(b"%d" % number)
    messages = receive(consumer, 20)

    def state() -> dict:
        return dict(broker.get(f"{path}/stats")["subscriptions"]["s"]["ackState"])

    def has_ranges(ranges: int) -> bool:
        return bool(state()["rangesLive"] == ranges)

    broker.ask("POST", f"{path}/dispatcherPauseOnAckStatePersistent")
    assert state()["forecast"]["gateShutsInSeconds"] is None
    for number in (1, 3, 5):
        consumer.acknowledge(messages[number])
        eventually(partial(has_ranges, (number + 1) // 2))
        now_ms += 5_000
        state()
    # 3 ranges, one more every 5 s: 8 to go until there are 11.
    seconds = state()["forecast"]["gateShutsInSeconds"]
    assert seconds is not None
    assert 30 < seconds < 60
    assert state()["forecast"]["limitReachedInSeconds"] == seconds
    consumer.close()


def test_before_the_first_consumer_it_is_said_that_the_setting_is_on(
    broker: InProcessBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.ask("PUT", "persistent/public/default/quiet/subscription/s")
    told = ["stats", "quiet", "--url", broker.url]
    assert main(told) == 0
    assert "gate        off  limit 10 ranges" in capsys.readouterr().out
    assert broker.ask("POST", f"{CONFIGURATION}/true").status == 200
    try:
        state = broker.get("persistent/public/default/quiet/stats")["subscriptions"]["s"][
            "ackState"
        ]
        assert (state["isGateSwitchedOn"], state["gate"]["isEnabled"]) == (True, False)
        assert main(told) == 0
        assert "gate        on  limit 10 ranges, as soon as" in capsys.readouterr().out
    finally:
        assert broker.ask("DELETE", CONFIGURATION).status == 200
