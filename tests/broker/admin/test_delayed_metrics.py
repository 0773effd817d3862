"""Delayed delivery in stats and metrics: Pulsar's names, labels and, where they are facts, values.

The story is upstream's ``testBucketDelayedIndexMetrics``; what is expected was read from Pulsar
4.0.7 with the same settings and the same messages.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pulsar
import pytest

from ackgate.commands.cli import main
from tests.broker.admin.conftest import InProcessBroker
from tests.broker.target import eventually, receive
from tests.support.wire_client import RefusedError, WireClient

SHARED = pulsar.ConsumerType.Shared
TOPIC = "persistent://public/default/waits"
PATH = "persistent/public/default/waits"
NAMES = ("sub", "sub2")
DELAYED = 101
NOW = 5

INDEX = "pulsar_delayed_message_index"
OF_TOPIC = ("cluster", "namespace", "topic")
OF_SUBSCRIPTION = ("cluster", "namespace", "subscription", "topic")
PULSARS = {
    f"{INDEX}_bucket_op_count": {(*OF_TOPIC, "state", "type"), (*OF_SUBSCRIPTION, "state", "type")},
    f"{INDEX}_bucket_op_latency_ms_count": {(*OF_TOPIC, "type"), (*OF_SUBSCRIPTION, "type")},
    f"{INDEX}_bucket_op_latency_ms_sum": {(*OF_TOPIC, "type"), (*OF_SUBSCRIPTION, "type")},
    f"{INDEX}_bucket_snapshot_size_bytes": {OF_TOPIC, OF_SUBSCRIPTION},
    f"{INDEX}_bucket_total": {OF_TOPIC, OF_SUBSCRIPTION},
    f"{INDEX}_loaded": {OF_TOPIC, OF_SUBSCRIPTION},
    f"{INDEX}_size_bytes": {OF_TOPIC},
    "pulsar_subscription_back_log_no_delayed": {OF_SUBSCRIPTION},
    "pulsar_subscription_delayed": {OF_SUBSCRIPTION},
    "pulsar_subscription_delayed_message_index_size_bytes": {OF_SUBSCRIPTION},
}
"""Metric -> its sets of labels, as Pulsar 4.0.7 gave them."""


SETTINGS: dict[str, object] = {
    "delayedDeliveryTrackerFactoryClassName": (
        "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"
    ),
    "delayedDeliveryMinIndexCountPerBucket": 50,
    "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds": 1,
    "managedLedgerMaxEntriesPerLedger": 50,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessBroker]:
    """A broker with two subscriptions of a topic whose messages wait, all but a few."""
    with (
        InProcessBroker(tmp_path_factory.mktemp("metrics"), SETTINGS) as broker,
        publishing(broker),
    ):
        yield broker


@contextmanager
def publishing(broker: InProcessBroker) -> Iterator[None]:
    """The story; its clients are there as long as this lasts."""
    client = pulsar.Client(
        broker.server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    try:
        consumers = [client.subscribe(TOPIC, name, consumer_type=SHARED) for name in NAMES]
        producer = client.create_producer(TOPIC, batching_enabled=False)
        for number in range(DELAYED):
            producer.send(b"x", deliver_after=dt.timedelta(seconds=3_600 + number))
        for _ in range(NOW):
            producer.send(b"now")
        for consumer in consumers:
            receive(consumer, NOW)
        eventually(lambda: all(is_stored(broker, name) for name in NAMES))
        yield
    finally:
        client.shutdown()


def is_stored(broker: InProcessBroker, subscription: str) -> bool:
    buckets = broker.get(f"{PATH}/delayed")["subscriptions"][subscription]["buckets"]
    return buckets["operations"]["create"]["succeeded"] == 2 and not buckets["bucketsStoring"]


class Metrics:
    """What a scrape gave: metric -> {labels: value}."""

    def __init__(self, text: str) -> None:
        self.kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
        self.samples: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
        for name, labels, value in re.findall(r"^(\w+)\{(.*)\} (\S+)$", text, re.MULTILINE):
            pairs = frozenset(re.findall(r'(\w+)="([^"]*)"', labels))
            self.samples.setdefault(name, {})[pairs] = float(value)

    def value(self, metric: str, **labels: str) -> float:
        """Of the one sample that has these labels, and of a subscription only if one is named."""
        [value] = [
            value
            for pairs, value in self.samples[metric].items()
            if pairs >= labels.items()
            and ("subscription" in labels) == ("subscription" in dict(pairs))
        ]
        return value


@pytest.fixture
def metrics(broker: InProcessBroker) -> Metrics:
    return Metrics(broker.ask("GET", "/metrics").text)


def test_every_metric_of_pulsars_is_there_with_its_labels(metrics: Metrics) -> None:
    for name, expected in PULSARS.items():
        found = {
            tuple(sorted(label for label, _ in pairs)) for pairs in metrics.samples.get(name, {})
        }
        assert found == {tuple(sorted(labels)) for labels in expected}, name
        assert metrics.kinds[name] == ("counter" if "_op_" in name else "gauge"), name


def test_values_are_those_of_upstreams_test(metrics: Metrics) -> None:
    for name in NAMES:
        assert metrics.value("pulsar_subscription_delayed", subscription=name) == DELAYED
        assert metrics.value("pulsar_subscription_back_log_no_delayed", subscription=name) == NOW
        assert metrics.value(f"{INDEX}_bucket_total", subscription=name) == 3
        assert 0 < metrics.value(f"{INDEX}_loaded", subscription=name) <= DELAYED
        assert metrics.value(f"{INDEX}_bucket_snapshot_size_bytes", subscription=name) > 0
        for state, count in (("succeed", 2), ("failed", 0), ("all", 2)):
            labels = {"subscription": name, "state": state, "type": "create"}
            assert metrics.value(f"{INDEX}_bucket_op_count", **labels) == count
    assert metrics.value(f"{INDEX}_bucket_total", topic=TOPIC) == 6


def test_a_topics_values_are_those_of_its_subscriptions_added_up(metrics: Metrics) -> None:
    size = metrics.value(f"{INDEX}_size_bytes", topic=TOPIC)
    assert size == sum(
        metrics.value("pulsar_subscription_delayed_message_index_size_bytes", subscription=name)
        for name in NAMES
    )
    for metric in ("bucket_total", "loaded", "bucket_snapshot_size_bytes"):
        added = sum(metrics.value(f"{INDEX}_{metric}", subscription=name) for name in NAMES)
        assert metrics.value(f"{INDEX}_{metric}", topic=TOPIC) == added
    latency = f"{INDEX}_bucket_op_latency_ms"
    for metric in (f"{latency}_count", f"{latency}_sum"):
        added = sum(metrics.value(metric, subscription=name, type="create") for name in NAMES)
        assert metrics.value(metric, topic=TOPIC, type="create") == added


def test_latencies_are_counted_by_bounds_and_stay_counted(
    broker: InProcessBroker, metrics: Metrics
) -> None:
    latency = f"{INDEX}_bucket_op_latency_ms"
    bounds = ("50", "100", "500", "1000", "5000", "30000", "60000", "overflow")
    counted = [
        metrics.value(latency, subscription="sub", type="create", quantile=bound)
        for bound in bounds
    ]
    assert sum(counted) == metrics.value(f"{latency}_count", subscription="sub", type="create") == 2
    again = Metrics(broker.ask("GET", "/metrics").text)
    assert again.value(f"{latency}_count", subscription="sub", type="create") == 2


def test_stats_tell_what_is_delayed_in_pulsars_fields(broker: InProcessBroker) -> None:
    stats = broker.get(f"{PATH}/stats")
    told = stats["subscriptions"]["sub"]
    assert told["msgDelayed"] == DELAYED
    assert told["msgBacklog"] == DELAYED + NOW
    assert told["msgBacklogNoDelayed"] == NOW
    assert told["delayedMessageIndexSizeInBytes"] > 0
    assert told["msgInReplay"] == 0
    assert stats["delayedMessageIndexSizeInBytes"] == sum(
        stats["subscriptions"][name]["delayedMessageIndexSizeInBytes"] for name in NAMES
    )


def test_people_are_told_why_nothing_is_delivered(
    broker: InProcessBroker, pulsar_client: pulsar.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    def lines(topic: str, label: str) -> list[str]:
        assert main(["stats", topic, "--url", broker.url]) == 0
        out = capsys.readouterr().out
        return [line for line in out.splitlines() if line.startswith(f"  {label} ")]

    delayed = lines(TOPIC, "delayed")
    assert len(delayed) == len(NAMES)
    assert delayed[0].startswith(f"  delayed     {DELAYED} tracked in buckets, ")
    assert ", next due in 60 min, 3 buckets with " in delayed[0]

    consumer = pulsar_client.subscribe("only-delayed", "s", consumer_type=SHARED)
    producer = pulsar_client.create_producer("only-delayed")
    producer.send(b"x", deliver_after=dt.timedelta(hours=1))
    told = f"{PATH.removesuffix('waits')}only-delayed/stats"
    eventually(lambda: broker.get(told)["subscriptions"]["s"]["msgDelayed"] == 1)
    [waits] = lines("only-delayed", "waits")
    assert waits == "  waits       1 of 1 entries delayed, the next due in 60 min"
    consumer.close()
    [waits] = lines("only-delayed", "waits")
    assert waits.startswith("  waits       no consumer; 1 of 1 entries delayed")


async def test_a_delay_beyond_the_limit_is_counted(broker: InProcessBroker) -> None:
    name = "persistent://public/default/limited"
    broker.ask("PUT", "persistent/public/default/limited")
    policy = {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 1_000}
    broker.ask("POST", "persistent/public/default/limited/delayedDelivery", policy)
    address = urlsplit(broker.server.service_url)
    async with await WireClient.connect("127.0.0.1", address.port or 0) as wire:
        producer = await wire.producer(name)
        with pytest.raises(RefusedError, match="Exceeds max allowed delivery delay of 1000"):
            await producer.send(b"x", deliver_at_time=int(time.time() * 1000) + 60_000)
    rejected = "pulsar_broker_topic_messages_delayed_rejected_total"
    metrics = Metrics(broker.ask("GET", "/metrics").text)
    assert metrics.value(rejected, topic=name) == 1
    assert metrics.value(rejected, topic=TOPIC) == 0
    assert metrics.kinds[rejected] == "counter"


def test_a_shared_index_is_counted_once(tmp_path: Path) -> None:
    settings = {**SETTINGS, "delayedDeliverySharedIndexEnabled": True}
    with InProcessBroker(tmp_path, settings) as broker, publishing(broker):
        metrics = Metrics(broker.ask("GET", "/metrics").text)
        for name in NAMES:
            assert metrics.value("pulsar_subscription_delayed", subscription=name) == DELAYED
            assert metrics.value(f"{INDEX}_bucket_total", subscription=name) == 3
        assert metrics.value(f"{INDEX}_bucket_total", topic=TOPIC) == 3
        assert (
            metrics.value(f"{INDEX}_bucket_op_count", topic=TOPIC, state="succeed", type="create")
            == 2
        )
