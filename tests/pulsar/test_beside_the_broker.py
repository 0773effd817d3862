"""A real Pulsar 4.0.7, read from its ZooKeeper and bookie: every number beside the broker's own.

The broker writes each ack before it answers it, so what it has in memory is what it has stored, up to
the caps. Tests of one file run in order: the last ones restart the broker.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import pulsar as client_library
import pytest
from pyroaring import BitMap

from ackgate.__main__ import main
from ackgate.cursor import Position
from ackgate.pulsar import (
    AckForm,
    CursorView,
    LiveCursor,
    PersistCaps,
    PulsarCluster,
    PulsarTopic,
    kept_by,
    live_keys,
    live_topic,
    report_topic,
    topic_ledgers,
)
from ackgate.pulsar.admin import acked_of
from tests.pulsar.conftest import RANGES_MAX
from tests.support.real_pulsar import RealPulsar

KEPT = RANGES_MAX + 1
"""Pulsar before 5.0 writes one range more than its cap."""

SHARED = client_library.ConsumerType.Shared
BATCH = 10


def subscribed(client: client_library.Client, topic: str, name: str = "worker", **more: Any) -> Any:
    options = {"consumer_type": SHARED, "receiver_queue_size": 1000, **more}
    return client.subscribe(topic, name, **options)


def position_of(message: Any) -> Position:
    found = message.message_id()
    return Position(found.ledger_id(), found.entry_id())


def received(consumer: Any, count: int) -> list[Any]:
    return [consumer.receive(20_000) for _ in range(count)]


def send_all(client: client_library.Client, topic: str, count: int, **options: Any) -> None:
    producer = client.create_producer(topic, **{"batching_enabled": False, **options})
    for number in range(count):
        producer.send_async(b"message %d" % number, lambda *_: None)
    producer.flush()
    producer.close()


def internal_stats(pulsar: RealPulsar, name: str) -> dict[str, Any]:
    return internal_stats_of(pulsar, f"persistent/public/default/{name}")


def internal_stats_of(pulsar: RealPulsar, path: str) -> dict[str, Any]:
    return pulsar.admin(f"{path}/internalStats")


def stats(pulsar: RealPulsar, name: str) -> dict[str, Any]:
    return pulsar.admin(f"persistent/public/default/{name}/stats")


async def settled(
    cluster: PulsarCluster, topic: str, is_so: Callable[[CursorView], bool]
) -> CursorView:
    """The topic's only cursor, as soon as the client's acks have come through; it groups them."""
    for _ in range(400):
        [cursor] = await cluster.cursors(PulsarTopic.parse(topic))
        if is_so(cursor):
            return cursor
        await asyncio.sleep(0.05)
    raise AssertionError(cursor)


def positions(acked: Mapping[int, BitMap]) -> set[Position]:
    return {Position(i, entry) for i, bitmap in acked.items() for entry in bitmap}


async def test_acks_out_of_order_over_several_ledgers(
    real_pulsar: RealPulsar, cluster: PulsarCluster
) -> None:
    client = real_pulsar.client()
    consumer = subscribed(client, "orders")
    send_all(client, "orders", 170)
    messages = sorted(received(consumer, 170), key=position_of)
    acked = [m for n, m in enumerate(messages) if n < 20 or (n % 10 in {3, 4, 7} and n > 50)]
    for message in acked:
        consumer.acknowledge(message)
    above = {position_of(message) for message in acked[20:]}
    passed = position_of(messages[19])
    # Pulsar may write the ranges of now with the mark-delete of before, and both with its next write.
    cursor = await settled(
        cluster,
        "orders",
        lambda c: positions(c.acks.acked) == above and c.acks.mark_delete == passed,
    )
    consumer.close()
    client.close()

    assert cursor.source == "ledger"

    broker = internal_stats(real_pulsar, "orders")
    own = broker["cursors"]["worker"]
    assert str(cursor.acks.mark_delete) == own["markDeletePosition"]
    assert cursor.acks.acked == acked_of(own["individuallyDeletedMessages"])
    assert cursor.acks.range_count == own["totalNonContiguousDeletedMessagesRange"] == 24
    assert cursor.cursor_ledger_id == own["cursorLedger"]
    assert cursor.written_entries == own["cursorLedgerLastEntry"] + 1
    backlog = stats(real_pulsar, "orders")["subscriptions"]["worker"]["msgBacklog"]
    assert cursor.statistics.backlog_entries == backlog == 170 - len(acked)
    # 24 ranges, 24 holes: none of the ranges goes on in the next ledger.
    assert cursor.statistics.hole_count == 24
    assert cursor.misfits.is_clean

    view = await cluster.topic(PulsarTopic.parse("orders"))
    assert view.entries == broker["numberOfEntries"] == 170
    assert view.bytes == broker["totalSize"]
    ledgers = {each["ledgerId"]: each for each in broker["ledgers"]}
    assert [ledger.ledger_id for ledger in view.node.ledgers] == list(ledgers)
    for ledger in view.node.ledgers[:-1]:
        own = ledgers[ledger.ledger_id]
        assert (ledger.entries, ledger.bytes) == (own["entries"], own["size"]) == (50, own["size"])
    assert view.entry_counts[view.node.ledgers[-1].ledger_id] == 20


async def test_batches_that_are_acked_in_part(
    real_pulsar: RealPulsar, cluster: PulsarCluster
) -> None:
    client = real_pulsar.client()
    consumer = subscribed(client, "batches", batch_index_ack_enabled=True)
    send_all(
        client,
        "batches",
        8 * BATCH,
        batching_enabled=True,
        batching_max_messages=BATCH,
        batching_max_publish_delay_ms=60_000,
    )
    messages = received(consumer, 8 * BATCH)
    batches: dict[Position, list[Any]] = {}
    for message in messages:
        batches.setdefault(position_of(message), []).append(message)
    assert [len(batch) for batch in batches.values()] == [BATCH] * 8
    unacked: dict[Position, set[int]] = {}
    for number, (at, batch) in enumerate(sorted(batches.items())):
        chosen = set(range(BATCH)) if number in {0, 5} else {number, 9} if number % 3 else set()
        for message in batch:
            if message.message_id().batch_index() in chosen:
                consumer.acknowledge(message)
        if chosen and len(chosen) < BATCH:
            unacked[at] = set(range(BATCH)) - chosen

    def indexes(cursor: CursorView) -> dict[Position, set[int]]:
        masks = cursor.acks.unacked_indexes.items()
        return {at: {i for i in range(mask.bit_length()) if mask >> i & 1} for at, mask in masks}

    def is_so(cursor: CursorView) -> bool:
        return indexes(cursor) == unacked and cursor.acks.acked_count == 1

    cursor = await settled(cluster, "batches", is_so)
    consumer.close()
    client.close()
    assert cursor.statistics.partly_acked_count == len(unacked) == 4
    assert cursor.acks.acked_count == 1
    own = internal_stats(real_pulsar, "batches")["cursors"]["worker"]
    assert str(cursor.acks.mark_delete) == own["markDeletePosition"]


async def test_cumulative_acks_a_partitioned_topic_and_odd_names(
    real_pulsar: RealPulsar, cluster: PulsarCluster
) -> None:
    real_pulsar.admin("persistent/public/default/parted%20%C3%BC/partitions", method="PUT", body=2)
    client = real_pulsar.client()
    name = "persistent://public/default/parted ü"
    consumer = client.subscribe(
        f"{name}-partition-1", "a b/~*", consumer_type=client_library.ConsumerType.Exclusive
    )
    producer = client.create_producer(f"{name}-partition-1", batching_enabled=False)
    for number in range(30):
        producer.send(b"%d" % number)
    messages = received(consumer, 30)
    consumer.acknowledge_cumulative(messages[11])
    name_1 = f"{name}-partition-1"
    at = position_of(messages[11])
    cursor = await settled(cluster, name_1, lambda c: c.acks.mark_delete == at)
    consumer.close()
    client.close()

    parts = await cluster.partitions("parted ü")
    assert PulsarTopic.parse(name_1) in parts
    assert cursor.subscription == "a b/~*"
    assert (cursor.acks.range_count, cursor.statistics.backlog_entries) == (0, 18)
    listed = {str(topic) async for topic in cluster.topics("public/default")}
    assert {name_1, "persistent://public/default/orders"} <= listed


async def test_pieces_of_large_messages(real_pulsar: RealPulsar, cluster: PulsarCluster) -> None:
    client = real_pulsar.client()
    consumer = subscribed(client, "pieces")
    producer = client.create_producer("pieces", chunking_enabled=True, batching_enabled=False)
    for _ in range(3):
        producer.send(b"x" * 6_000_000)  # two entries
    messages = received(consumer, 3)
    consumer.acknowledge(messages[1])
    cursor = await settled(cluster, "pieces", lambda c: c.acks.acked_count == 2)
    consumer.close()
    client.close()
    own = internal_stats(real_pulsar, "pieces")
    assert cursor.acks.acked == acked_of(own["cursors"]["worker"]["individuallyDeletedMessages"])
    assert [(first, last) for _, first, last in cursor.acks.ranges()] == [(2, 3)]
    view = await cluster.topic(PulsarTopic.parse("pieces"))
    assert (view.entries, view.bytes) == (own["numberOfEntries"], own["totalSize"])
    assert view.entries == 6


async def test_buckets_of_delayed_messages(real_pulsar: RealPulsar, cluster: PulsarCluster) -> None:
    client = real_pulsar.client()
    consumer = subscribed(client, "later")
    producer = client.create_producer("later", batching_enabled=False)
    due: dict[Position, int] = {}
    for number in range(120):
        at_ms = 2_000_000_000_000 + 777 * (number * 7919 % 120)
        sent = producer.send(b"later", deliver_at=at_ms)
        due[Position(sent.ledger_id(), sent.entry_id())] = at_ms
    # Sent means stored; that the broker has read them shows when it has counted them.
    own = stats(real_pulsar, "later")["subscriptions"]["worker"]
    while own["msgDelayed"] < 120:
        own = stats(real_pulsar, "later")["subscriptions"]["worker"]
    consumer.close()
    client.close()

    ledgers = sorted({at.ledger_id for at in due})
    for _ in range(200):
        [cursor] = await cluster.cursors(PulsarTopic.parse("later"))
        if len(cursor.buckets) == 2:  # they are registered a moment after they are stored
            break
    assert [bucket.first_ledger_id for bucket in cursor.buckets] == ledgers[:2]
    rows: dict[Position, int] = {}
    for place in cursor.buckets:
        bucket = await cluster.bucket(place)
        assert bucket.entries == 50
        async for _, columns in cluster.delayed_rows(place):
            for due_ms, ledger_id, entry_id in zip(*columns, strict=True):
                rows[Position(int(ledger_id), int(entry_id))] = int(due_ms)
        low, high = 2_000_000_000_000, 2_000_000_000_000 + 777 * 120
        assert all(low <= s.min_due_ms <= s.max_due_ms <= high for s in bucket.segments)
    assert rows == {at: due_ms for at, due_ms in due.items() if at.ledger_id in ledgers[:2]}
    assert cursor.properties == {}

    kinds = [row.kind for row in await topic_ledgers(cluster, PulsarTopic.parse("later"))]
    assert kinds == ["messages", "messages", "messages", "delayed", "delayed"]


async def test_policies_of_topics_namespaces_and_brokers(
    real_pulsar: RealPulsar, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside what the admin interface says to be applied; before and after the events are compacted."""
    gate = "dispatcherPauseOnAckStatePersistent"
    names = [f"persistent://public/ruled/{name}" for name in ("own", "plain", "gone")]
    own, plain, gone = (f"persistent/public/ruled/{name}" for name in ("own", "plain", "gone"))
    real_pulsar.admin("namespaces/public/ruled", method="PUT", body={})
    client = real_pulsar.client()
    for name in names:
        client.create_producer(name).send(b"there")
    client.close()

    def post(path: str, body: object = None) -> None:
        real_pulsar.admin(path, method="POST", body=body)

    def retained(minutes: int, megabytes: int) -> dict[str, int]:
        return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}

    def applied(path: str) -> dict[str, Any]:
        def ask(what: str) -> Any:
            return real_pulsar.admin(f"{path}/{what}?applied=true")

        retention = ask("retention")
        return {
            "retention": (retention["retentionTimeInMinutes"], retention["retentionSizeInMB"]),
            "ttl": ask("messageTTL"),
            "delayed": ask("delayedDelivery")["active"],
            # Of the topic 4.0.7 answers without the namespace, whose value is in force nevertheless.
            "gate": ask(gate) or bool(real_pulsar.admin(f"namespaces/public/ruled/{gate}")),
            "writes": ask("persistence")["managedLedgerMaxMarkDeleteRate"],
        }

    async def found(name: str) -> tuple[dict[str, Any], set[str]]:
        async with await PulsarCluster.connect(real_pulsar.metadata) as cluster:
            keys, version = live_keys(real_pulsar.admin_url)
            broker = (await cluster.broker_keys()).updated(keys, "broker", version)
            assert broker.caps == PersistCaps(RANGES_MAX, origin="broker")
            p = await cluster.policies(PulsarTopic.parse(name), broker)
        values = (
            p.retention,
            p.ttl_seconds,
            p.delayed_delivery,
            p.gate,
            p.cursor_writes_per_second,
        )
        names = ("retention", "ttl", "delayed", "gate", "writes")
        return {n: v.value for n, v in zip(names, values, strict=True)}, {v.origin for v in values}

    async def compare() -> None:
        for path, name in zip((own, plain, gone), names, strict=True):
            for _ in range(200):  # brokers follow the events
                if applied(path) == (await found(name))[0]:
                    break
                await asyncio.sleep(0.05)
            assert applied(path) == (await found(name))[0], name

    await compare()
    assert await found(names[0]) == (
        {"retention": (0, 0), "ttl": 0, "delayed": True, "gate": False, "writes": 0},
        {"broker"},
    )
    post("namespaces/public/ruled/retention", retained(60, 5))
    post("namespaces/public/ruled/messageTTL", 3600)
    post(f"namespaces/public/ruled/{gate}")
    post("namespaces/public/ruled/delayedDelivery", {"tickTime": 500, "active": False})
    quorums = {f"bookkeeper{of}": 1 for of in ("Ensemble", "WriteQuorum", "AckQuorum")}
    post("namespaces/public/ruled/persistence", {**quorums, "managedLedgerMaxMarkDeleteRate": 3})
    post(f"{own}/retention", retained(-1, -1))
    post(f"{own}/messageTTL?messageTTL=7200")
    post(f"{own}/delayedDelivery", {"tickTime": 500, "active": True})
    post(f"{gone}/retention", retained(7, 7))
    await compare()
    values, origins = await found(names[0])
    assert values == {
        "retention": (-1, -1),
        "ttl": 7200,
        "delayed": True,
        "gate": True,
        "writes": 3.0,
    }
    assert origins == {"topic", "namespace"}
    assert (await found(names[2]))[0]["retention"] == (7, 7)

    events = "persistent/public/ruled/__change_events"
    real_pulsar.admin(f"{gone}?force=true", method="DELETE")  # its policies go with it
    real_pulsar.admin(f"{events}/compaction", method="PUT")
    while real_pulsar.admin(f"{events}/compaction")["status"] != "SUCCESS":
        await asyncio.sleep(0.05)
    real_pulsar.admin(f"{events}/unload", method="PUT")
    post(f"{plain}/retention", retained(9, 9))  # this one only behind the compacted ones
    for name, retention in zip(names, [(-1, -1), (9, 9), (60, 5)], strict=True):
        assert (await found(name))[0]["retention"] == retention
    async with await PulsarCluster.connect(real_pulsar.metadata) as cluster:
        topic = PulsarTopic.parse("public/ruled/__change_events")
        compacted = await cluster.compacted_ledger_id(topic)
        assert compacted == internal_stats_of(real_pulsar, events)["compactedLedger"]["ledgerId"]
        assert (await cluster.policies(topic)).retention == ((0, 0), "system topic")
        [view] = [v async for v in cluster.ledgers() if v.metadata.ledger_id == compacted]
        assert view.owner.topic == topic
        views = [v async for v in cluster.ledgers(orphans_after_ms=0)]
        assert not [v for v in views if v.is_orphan and v.owner.topic == topic]
    metadata = ("--metadata", real_pulsar.metadata)
    code = await asyncio.to_thread(main, ["pulsar", "stats", names[0], *metadata])
    out = capsys.readouterr().out
    assert code == 0
    assert "retention for ever [topic], TTL 2 h [topic], delayed delivery on [topic]" in out
    code = await asyncio.to_thread(main, ["pulsar", "ledgers", names[1], *metadata])
    assert "retention 9 min, at most 9 MB [topic]" in capsys.readouterr().out


async def test_ledgers_and_their_owners(real_pulsar: RealPulsar, cluster: PulsarCluster) -> None:
    views = [view async for view in cluster.ledgers(orphans_after_ms=0)]
    named = {}
    for view in views:
        named.setdefault((view.owner.kind, view.owner.managed_ledger), []).append(view)
    messages = named["messages", "public/default/persistent/orders"]
    assert len(messages) == 4
    [cursor] = named["cursor", "public/default/persistent/orders"]
    assert cursor.owner.cursor == "worker"
    assert len(named["delayed", "public/default/persistent/later"]) == 2
    # Of a schema that several register at once, as at a health check, brokers name only one ledger.
    assert not [
        v for v in views if v.is_orphan and not v.owner.managed_ledger.startswith("pulsar/")
    ]

    rows = await topic_ledgers(cluster, PulsarTopic.parse("orders"))
    of_messages = [row for row in rows if row.kind == "messages"]
    assert [row.entries for row in of_messages] == [50, 50, 50, 20]
    assert all(row.needed_by == ("worker",) for row in of_messages)
    assert not any(row.is_missing for row in rows)


async def test_what_the_cap_leaves_out_is_delivered_again(
    real_pulsar: RealPulsar, cluster: PulsarCluster
) -> None:
    client = real_pulsar.client()
    consumer = subscribed(client, "capped")
    send_all(client, "capped", 140)
    messages = sorted(received(consumer, 140), key=position_of)
    acked = messages[1::2]
    for message in acked:
        consumer.acknowledge(message)
    topic = PulsarTopic.parse("capped")
    at = {position_of(message) for message in acked}
    await settled(cluster, "capped", lambda c: positions(c.acks.acked) == set(sorted(at)[:KEPT]))
    while positions(live_topic(real_pulsar.admin_url, "capped").cursors["worker"].acked) != at:
        await asyncio.sleep(0.05)
    report = await report_topic(cluster, topic, caps=PersistCaps(RANGES_MAX))
    [before] = report.subscriptions
    live = live_topic(real_pulsar.admin_url, "capped")
    [after] = report.beside(live).subscriptions
    consumer.close()
    client.close()

    assert before.cursor.acks.range_count == KEPT
    assert before.is_at_cap
    assert live.cursors["worker"].range_count == len(acked) == 70
    assert (after.crash_entries, after.close_entries) == (70 - KEPT, 70 - KEPT)
    assert after.outlook.is_past
    kept = kept_by(live.cursors["worker"].acked, PersistCaps(RANGES_MAX)).acked
    assert kept == before.cursor.acks.acked


async def test_for_people_and_for_programs(
    real_pulsar: RealPulsar, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(*words: str) -> tuple[int, str, str]:
        # The command has a loop of its own.
        code = await asyncio.to_thread(main, ["pulsar", *words, "--metadata", real_pulsar.metadata])
        return code, *capsys.readouterr()

    code, out, _ = await run("stats", "capped", "--admin", real_pulsar.admin_url)
    assert code == 0
    assert "31 ranges, 31 holes" in out
    assert "39 acked entries after a crash" in out
    assert "39 acked entries after a shutdown, beyond the cap (" in out
    assert "cap 30 ranges [broker]" in out
    assert "off [broker]; 70 of 30 ranges: acks beyond the cap are lost" in out
    assert len(re.findall(r"^  ledger \d+ .* of \d+ acked", out, re.MULTILINE)) == 3
    code, out, _ = await run("stats", "capped", "--json", "--ranges-max=30")
    [topic] = json.loads(out)["topics"]
    [found] = topic["subscriptions"]
    assert (code, found["rangeCount"], found["holeCount"], found["isAtCap"]) == (0, 31, 31, True)
    code, out, _ = await run("stats", "capped", "--json", "--admin", real_pulsar.admin_url)
    [topic] = json.loads(out)["topics"]
    [found] = topic["subscriptions"]
    broker = internal_stats(real_pulsar, "capped")
    own = broker["cursors"]["worker"]
    live = acked_of(own["individuallyDeletedMessages"])
    on_disk = {(i, e) for i, first, last in found["ranges"] for e in range(first, last + 1)}
    again = {(i, e) for i, first, last in found["againAfterCrash"] for e in range(first, last + 1)}
    assert on_disk | again == {(i, e) for i, bitmap in live.items() for e in bitmap}
    assert not on_disk & again
    assert (len(again), found["againAfterClose"]) == (39, found["againAfterCrash"])
    assert topic["caps"] | {"batchIndexesMax": 0} == {
        "rangesMax": RANGES_MAX,
        "batchIndexesMax": 0,
        "ackForm": "ranges",
        "origin": "broker",
    }
    assert topic["policies"]["gate"] == {"value": False, "origin": "broker"}
    assert found["gate"] | {"sinceMs": None} == {
        "ranges": own["totalNonContiguousDeletedMessagesRange"],
        "rangesMax": RANGES_MAX,
        "shutsInSeconds": 0.0,
        "sinceMs": None,
    }
    of_stats = stats(real_pulsar, "capped")["subscriptions"]["worker"]
    assert found["live"] == {
        "markDelete": own["markDeletePosition"],
        "readPosition": own["readPosition"],
        "rangeCount": own["totalNonContiguousDeletedMessagesRange"],
        "ackedEntries": sum(map(len, live.values())),
        "backlogEntries": of_stats["msgBacklog"],
        "state": own["state"],
        "cursorLedgerId": own["cursorLedger"],
        "type": of_stats["type"],
        "unackedMessages": of_stats["unackedMessages"],
        "delayedMessages": of_stats["msgDelayed"],
        "consumers": 0,
    }
    code, out, _ = await run("cursors", "capped", "--json")
    assert json.loads(out)["ranges"] == found["ranges"]
    code, out, _ = await run("ledgers", "capped", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    last = broker["ledgers"][-1]["ledgerId"]
    assert {
        row["ledgerId"]: (row["entries"], row["bytes"], row["isOffloaded"])
        for row in rows
        if row["kind"] == "messages" and row["ledgerId"] != last
    } == {
        each["ledgerId"]: (each["entries"], each["size"], each["offloaded"])
        for each in broker["ledgers"]
        if each["ledgerId"] != last
    }
    [open_one] = [row for row in rows if row["ledgerId"] == last]
    assert open_one["bytes"] == broker["currentLedgerSize"]
    assert open_one["entries"] == broker["currentLedgerEntries"]
    [of_cursor] = [row for row in rows if row["kind"] == "cursor"]
    assert (of_cursor["ledgerId"], of_cursor["subscription"]) == (own["cursorLedger"], "worker")
    assert of_cursor["entries"] == own["cursorLedgerLastEntry"] + 1
    code, out, _ = await run("stats", "later", "--json", "--admin", real_pulsar.admin_url)
    [found] = json.loads(out)["topics"][0]["subscriptions"]
    assert [bucket["entries"] for bucket in found["buckets"]] == [50, 50]
    assert sum(b["bytes"] for b in found["buckets"]) == sum(
        row["bytes"]
        for row in map(json.loads, (await run("ledgers", "later", "--json"))[1].splitlines())
        if row["kind"] == "delayed"
    )
    code, out, _ = await run("stats", "parted ü")
    assert (code, out.count("\n\npersistent://")) == (0, 1)  # two partitions
    code, out, _ = await run("topics", "--json")
    by_name = {each["topic"]: each for each in map(json.loads, out.splitlines())}
    assert by_name["persistent://public/default/orders"]["cursors"] == ["worker"]
    code, out, _ = await run("cursors", "--namespace", "public/default", "--ranges-max=30")
    assert code == 0
    assert re.search(r" 31 ranges .* persistent://public/default/capped worker  at the cap", out)
    code, out, _ = await run("ledgers", "orders")
    assert "cursor worker" in out
    code, out, _ = await run("ledgers", "orders", "--orphans", "--older-than", "0")
    assert (code, out.count("\n"), out.startswith("no orphans of ")) == (0, 1, True)
    code, out, _ = await run("ledgers", "orders", "--orphans", "--older-than", "0", "--json")
    assert (code, out) == (0, "")
    code, _, err = await run("stats", "nothing-of-this-name")
    assert (code, err.count("\n")) == (2, 1)
    assert "there is no topic persistent://public/default/nothing-of-this-name" in err


async def test_after_a_restart_with_other_forms(real_pulsar: RealPulsar) -> None:
    """Nodes are compressed now, and acks are words of bit sets."""
    async with await PulsarCluster.connect(real_pulsar.metadata) as cluster:
        names = ("orders", "batches", "capped", "pieces", "parted ü-partition-1")
        topics = [PulsarTopic.parse(name) for name in names]
        before = {t: (await cluster.cursors(t))[0].acks for t in topics}
        live = live_topic(real_pulsar.admin_url, "capped").cursors["worker"]
        later = PulsarTopic.parse("later")
        buckets = (await cluster.cursors(later))[0].buckets
    real_pulsar.restart(
        managedCursorInfoCompressionType="ZSTD",
        managedCursorInfoCompressionThresholdInBytes=0,
        managedLedgerInfoCompressionType="LZ4",
        managedLedgerInfoCompressionThresholdInBytes=0,
        managedLedgerPersistIndividualAckAsLongArray="true",
    )
    async with await PulsarCluster.connect(real_pulsar.metadata) as cluster:
        for topic, acks in before.items():
            [cursor] = await cluster.cursors(topic)
            assert cursor.source == "node"  # few ranges: an orderly shutdown puts them there
            assert cursor.acks.acked == acks.acked, topic
            assert cursor.acks.mark_delete == acks.mark_delete
            assert cursor.acks.unacked_indexes == acks.unacked_indexes
        assert (await cluster.cursors(later))[0].buckets == buckets

        client = real_pulsar.client()
        consumer = subscribed(client, "capped")
        again = received(consumer, 140 - KEPT)
        with pytest.raises(client_library.Timeout):
            consumer.receive(300)
        lost = positions(live.acked) & {position_of(message) for message in again}
        assert len(lost) == 70 - KEPT  # as reported before the restart
        for message in again[::2]:
            consumer.acknowledge(message)
        at = positions(live.acked) - lost | {position_of(message) for message in again[::2]}

        def now() -> LiveCursor:
            return live_topic(real_pulsar.admin_url, "capped").cursors["worker"]

        while {p for p in at if p > now().mark_delete} != positions(now().acked):
            await asyncio.sleep(0.05)
        kept = kept_by(now().acked, PersistCaps(RANGES_MAX, form=AckForm.WORDS)).acked
        cursor = await settled(cluster, "capped", lambda c: c.acks.acked == kept)
        assert kept != now().acked
        node = await cluster._nodes.get(f"{cursor.topic.path}/worker")
        assert node is not None
        assert node.value[:2] == b"\x47\x78"
        assert cursor.acks.is_words
        consumer.close()
        # A new ledger is named at its first entry: the topic's node is written, and compressed.
        send_all(client, "orders", 1)
        view = await cluster.topic(PulsarTopic.parse("orders"))
        assert view.entries == 171
        node = await cluster._nodes.get(PulsarTopic.parse("orders").path)
        assert node is not None
        assert node.value[:2] == b"\x47\x78"
        client.close()
