"""What the statistics say is so: real clients do things, the figures follow."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pulsar
import pytest
from pyroaring import BitMap

from ackgate.broker.stats.holes import FULL
from tests.broker.admin.conftest import InProcessBroker
from tests.broker.target import eventually, receive
from tests.support.wire_client import WireClient

N = "persistent/public/default"
KINDS = pulsar.ConsumerType
SAMPLES = re.compile(r"(?<=_latency)(_seconds)?_(?:bucket|sum|count)$")


def publish(client: pulsar.Client, topic: str, count: int) -> None:
    producer = client.create_producer(topic, batching_enabled=False, producer_name=f"to-{topic}")
    for number in range(count):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
    producer.close()


def of(broker: InProcessBroker, topic: str, subscription: str = "s") -> dict:
    return dict(broker.get(f"{N}/{topic}/stats")["subscriptions"][subscription])


def test_a_client_gets_the_figures_of_its_consumer(broker: InProcessBroker) -> None:
    """CONSUMER_STATS answers what HTTP does: Pulsar's C++ client has it as `getBrokerConsumerStats`."""
    topic = "asked-by-its-client"
    client = broker.run(WireClient.connect("127.0.0.1", broker.server.protocol_port))
    producer = broker.run(client.producer(topic))
    consumer = broker.run(client.subscribe(topic, "s", consumer_name="c"))
    first = broker.run(consumer.stats())
    assert first.msgRateOut == first.msgThroughputOut == first.messageAckRate == 0.0

    async def deliver() -> None:
        for number in range(30):
            await producer.send(b"%d" % number)
        consumer.flow(40)
        messages = await consumer.receive_many(30)
        for message in messages[:10]:
            await consumer.ack(message)
        consumer.redeliver(*messages[20:25])
        await consumer.receive_many(5)

    broker.run(deliver())
    expired = broker.get(f"{N}/{topic}/internalStats")["ledgers"][0]["ledgerId"]
    body = {"ledgerId": expired, "entryId": 12}
    assert broker.ask("POST", f"{N}/{topic}/subscription/s/expireMessages", body).status == 204

    def are_told() -> Any:
        told = broker.run(consumer.stats())
        return told if told.msgRateOut and told.messageAckRate and told.msgRateExpired else None

    told = eventually(are_told)
    seen = of(broker, topic)
    (its,) = seen["consumers"]
    assert told.consumerName == its["consumerName"] == "c"
    assert told.address == its["address"]
    assert told.connectedSince == its["connectedSince"]
    assert (told.availablePermits, told.unackedMessages) == (5, 17)
    assert (its["availablePermits"], its["unackedMessages"]) == (5, 17)
    assert told.msgBacklog == seen["msgBacklog"] == 17
    assert told.blockedConsumerOnUnackedMsgs is False
    assert told.msgRateOut == pytest.approx(its["msgRateOut"], rel=0.5)
    assert told.msgThroughputOut == pytest.approx(its["msgThroughputOut"], rel=0.5)
    assert told.messageAckRate == pytest.approx(its["messageAckRate"], rel=0.5)
    assert told.msgRateExpired == pytest.approx(seen["msgRateExpired"], rel=0.5)
    # Within one answer all rates are of the same span of time.
    assert told.msgRateRedeliver * 35 == pytest.approx(told.msgRateOut * 5)
    assert told.messageAckRate * 35 == pytest.approx(told.msgRateOut * 10)
    broker.run(client.close())


def test_acks_with_holes(broker: InProcessBroker, pulsar_client: pulsar.Client) -> None:
    topic = "holes"
    consumer = pulsar_client.subscribe(
        topic,
        "s",
        consumer_type=KINDS.Shared,
        consumer_name="c",
        receiver_queue_size=100,
        initial_position=pulsar.InitialPosition.Earliest,
        properties={"zone": "1"},
    )
    publish(pulsar_client, topic, 20)
    messages = receive(consumer, 20)
    acked = {0, 1, 4, 5, 9, 12, 19}
    for number in acked:
        consumer.acknowledge(messages[number])
    eventually(lambda: of(broker, topic)["msgBacklog"] == 13)

    stats = of(broker, topic)
    assert stats["type"] == "Shared"
    assert stats["unackedMessages"] == 13
    assert stats["nonContiguousDeletedMessagesRanges"] == 4
    assert stats["msgOutCounter"] == 20
    assert stats["isBlockedOnAckStatePersistent"] is False
    assert stats["lastAckedTimestamp"] >= stats["lastConsumedFlowTimestamp"] > 0
    assert stats["lastMarkDeleteAdvancedTimestamp"] > 0
    (told,) = stats["consumers"]
    assert told["consumerName"] == "c"
    assert told["unackedMessages"] == 13
    assert told["availablePermits"] == 80
    assert told["metadata"] == {"zone": "1"}
    assert told["clientVersion"].startswith("Pulsar-CPP")
    assert told["connectedSince"].endswith("Z")

    ledger_id = messages[0].message_id().ledger_id()
    internal = broker.get(f"{N}/{topic}/internalStats")
    cursor = internal["cursors"]["s"]
    assert cursor["markDeletePosition"] == f"{ledger_id}:1"
    assert cursor["readPosition"] == f"{ledger_id}:20"
    assert (
        cursor["individuallyDeletedMessages"]
        == "["
        + ",".join(
            f"({ledger_id}:{start}..{ledger_id}:{stop}]"
            for start, stop in ((3, 5), (8, 9), (11, 12), (18, 19))
        )
        + "]"
    )
    assert cursor["totalNonContiguousDeletedMessagesRange"] == 4
    assert cursor["waitingReadOp"] is True
    assert internal["lastConfirmedEntry"] == f"{ledger_id}:19"
    assert internal["currentLedgerEntries"] == internal["numberOfEntries"] == 20

    told = broker.get(f"{N}/{topic}/subscription/s/ackState?cells=20&bitmaps=true")
    assert told["picture"]["ledgers"] == [
        {
            "ledgerId": ledger_id,
            "entries": 20,
            "acked": 7,
            "ranges": 4,
            "cells": [FULL if number in acked else 0 for number in range(20)],
        }
    ]
    bitmap = BitMap.deserialize(base64.b64decode(told["bitmaps"][str(ledger_id)]))
    assert set(bitmap) == acked - {0, 1}
    assert told["bitmapsOmitted"] == 0
    state = told["stats"]["ackState"]
    assert state["rangesLive"] == 4
    assert state["cursor"]["holeCount"] == 4
    eventually(lambda: of(broker, topic)["ackState"]["rangesPersisted"] == 4)
    outcome = of(broker, topic)["ackState"]["store"]["outcome"]
    assert outcome["where"] == "ledger"
    assert outcome["bytesWritten"] > 0
    consumer.close()


def test_nacked_messages_wait_to_be_sent_again(
    broker: InProcessBroker, pulsar_client: pulsar.Client
) -> None:
    topic = "nacked"
    consumer = pulsar_client.subscribe(
        topic,
        "s",
        consumer_type=KINDS.Shared,
        receiver_queue_size=5,
        negative_ack_redelivery_delay_ms=100,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    publish(pulsar_client, topic, 5)
    for message in receive(consumer, 5):
        consumer.negative_acknowledge(message)
    again = receive(consumer, 5)
    assert {message.redelivery_count() for message in again} == {1}
    subscription = broker.call(
        lambda: next(
            topic.subscriptions["s"]
            for topic in broker.server.registry
            if topic.name.local_name == "nacked"
        )
    )
    assert broker.call(lambda: subscription.core.counts.messages_redelivered) == 5
    consumer.close()
    assert broker.call(lambda: subscription.core.counts.messages_redelivered) == 5


def test_every_subscription_type_is_told(
    broker: InProcessBroker, pulsar_client: pulsar.Client
) -> None:
    topic = "types"
    consumers = {
        name: pulsar_client.subscribe(topic, name, consumer_type=kind, consumer_name=name)
        for name, kind in (
            ("Exclusive", KINDS.Exclusive),
            ("Failover", KINDS.Failover),
            ("Shared", KINDS.Shared),
            ("Key_Shared", KINDS.KeyShared),
        )
    }
    subscriptions = broker.get(f"{N}/{topic}/stats")["subscriptions"]
    assert {name: stats["type"] for name, stats in subscriptions.items()} == {
        name: name for name in consumers
    }
    assert subscriptions["Failover"]["activeConsumerName"] == "Failover"
    assert subscriptions["Exclusive"]["activeConsumerName"] == "Exclusive"
    assert "activeConsumerName" not in subscriptions["Shared"]
    assert subscriptions["Key_Shared"]["keySharedMode"] == "AUTO_SPLIT"
    ranges = subscriptions["Key_Shared"]["consumers"][0]["keyHashRangeArrays"]
    assert ranges[0][0] in {0, 1}
    assert ranges[-1][1] == 65_535


def test_rates_are_told_once_some_time_was_watched(
    broker: InProcessBroker, pulsar_client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, now_ms = "rates", 1_000_000
    sampler = broker.server.sampler
    monkeypatch.setattr(sampler, "_clock_ms", lambda: now_ms)
    publish(pulsar_client, topic, 1)
    broker.get(f"{N}/{topic}/stats")
    publish(pulsar_client, topic, 50)
    now_ms += 10_000
    stats = broker.get(f"{N}/{topic}/stats")
    assert stats["msgRateIn"] == 5.0
    assert stats["averageMsgSize"] == stats["msgThroughputIn"] / 5.0
    assert stats["msgInCounter"] == 51


def test_the_earliest_publish_time_is_read_when_it_is_asked_for(
    broker: InProcessBroker, pulsar_client: pulsar.Client
) -> None:
    topic = "earliest"
    broker.ask("PUT", f"{N}/{topic}/subscription/s", {"ledgerId": -1, "entryId": -1})
    publish(pulsar_client, topic, 3)
    stats = broker.get(f"{N}/{topic}/stats?getEarliestTimeInBacklog=true")
    first = stats["subscriptions"]["s"]["earliestMsgPublishTimeInBacklog"]
    assert first == stats["earliestMsgPublishTimeInBacklogs"] > 1_500_000_000_000
    assert of(broker, topic)["earliestMsgPublishTimeInBacklog"] == 0


def test_a_partitioned_topic_is_added_up(
    broker: InProcessBroker, pulsar_client: pulsar.Client
) -> None:
    topic = "parted"
    broker.ask("PUT", f"{N}/{topic}/partitions", 3)
    broker.ask("PUT", f"{N}/{topic}/subscription/s", {"ledgerId": -1, "entryId": -1})
    publish(pulsar_client, topic, 30)
    stats = broker.get(f"{N}/{topic}/partitioned-stats")
    assert stats["msgInCounter"] == 30
    assert stats["subscriptions"]["s"]["msgBacklog"] == 30
    assert sorted(stats["partitions"]) == [
        f"persistent://public/default/{topic}-partition-{index}" for index in range(3)
    ]
    assert sum(part["msgInCounter"] for part in stats["partitions"].values()) == 30


@pytest.mark.parametrize("path", ["stats", "partitioned-stats"])
def test_publishers_and_consumers_are_left_out_when_asked(
    broker: InProcessBroker, pulsar_client: pulsar.Client, path: str
) -> None:
    topic = f"long-{path}"
    if path != "stats":
        broker.ask("PUT", f"{N}/{topic}/partitions", 2)
    consumer = pulsar_client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.KeyShared)
    producer = pulsar_client.create_producer(topic, producer_name="p")
    producer.send(b"text")
    consumer.receive(10_000)
    for asked, publishers, consumers in (
        ("", 1, 1),
        ("?excludePublishers=true", 0, 1),
        ("?excludeConsumers=TRUE", 1, 0),
        ("?excludePublishers=true&excludeConsumers=true", 0, 0),
        ("?excludePublishers=false&excludeConsumers=", 1, 1),
    ):
        stats = broker.get(f"{N}/{topic}/{path}{asked}")
        subscription = stats["subscriptions"]["s"]
        found = (len(stats["publishers"]), len(subscription["consumers"]))
        assert found == (publishers, consumers), asked
        assert stats["msgInCounter"] == subscription["msgOutCounter"] == 1
        assert subscription["unackedMessages"] == 1
        for part in stats.get("partitions", {}).values():
            assert bool(part["publishers"]) == bool(publishers)
    consumer.close()
    producer.close()


def test_names_of_any_script_come_back_as_they_were(
    broker: InProcessBroker, pulsar_client: pulsar.Client
) -> None:
    topic, subscription = "schön+a b", "à/b+c %41"
    consumer = pulsar_client.subscribe(f"persistent://public/default/{topic}", subscription)
    path = f"{N}/sch%C3%B6n%2Ba%20b"
    assert broker.get(f"{path}/subscriptions") == [subscription]
    told = broker.get(f"{path}/subscription/%C3%A0%2Fb%2Bc%20%2541/ackState")
    assert told["subscription"] == subscription
    assert told["topic"] == f"persistent://public/default/{topic}"
    consumer.close()


def test_metrics_are_prometheus_text(broker: InProcessBroker, pulsar_client: pulsar.Client) -> None:
    topic = 'quo"ted'
    consumer = pulsar_client.subscribe(
        f"persistent://public/default/{topic}", "s", consumer_type=KINDS.Shared
    )
    publish(pulsar_client, f"persistent://public/default/{topic}", 3)
    answer = broker.ask("GET", "/metrics")
    assert answer.content_type.startswith("text/plain; version=0.0.4")
    samples: dict[str, float] = {}
    types: set[str] = set()
    explained: set[str] = set()
    for line in answer.text.splitlines():
        if line.startswith("# HELP "):
            explained.add(line.split()[2])
            continue
        if line.startswith("# TYPE "):
            name = line.split()[2]
            assert name not in types
            types.add(name)
            continue
        sample, _, value = line.rpartition(" ")
        assert SAMPLES.sub(r"\1", sample.partition("{")[0]) == name, line
        assert sample not in samples
        samples[sample] = float(value)
    assert explained == types
    labels = (
        'cluster="standalone",namespace="public/default",'
        f'topic="persistent://public/default/{json.dumps(topic)[1:-1]}",subscription="s"'
    )
    assert samples[f"pulsar_subscription_back_log{{{labels}}}"] == 3
    assert samples[f"pulsar_subscription_unacked_messages{{{labels}}}"] == 3
    assert samples[f"ackgate_gate_open{{{labels}}}"] == 1
    assert samples['pulsar_active_connections{cluster="standalone"}'] >= 1
    assert any(name.startswith("pulsar_ml_cursor_persistLedgerSucceed{") for name in samples)
    for kind in ("publish", "dispatch"):
        name = f"ackgate_{kind}_latency_seconds"
        assert samples[f'{name}_count{{cluster="standalone"}}'] >= 3
        last = samples[f'{name}_bucket{{cluster="standalone",le="+Inf"}}']
        assert last == samples[f'{name}_count{{cluster="standalone"}}']
        assert samples[f'{name}_sum{{cluster="standalone"}}'] > 0
    consumer.close()
