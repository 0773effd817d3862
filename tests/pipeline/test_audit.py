"""The audit on stories: one topic for each cause and each verdict, all of them in one frame."""

import pytest

from ackgate.pipeline.jobs.audit.report import audit
from ackgate.pipeline.tables import DELIVERY_JOURNAL, spark_schema
from tests.pipeline.events import Story


def told(topic):
    """Two entries for the subscription `s`, which is there before them."""
    return Story(topic).add("opened").subscribe("s", 1, -1).publish(1, 0).publish(1, 1)


def sent(topic):
    return told(topic).dispatch("s", 1, 0).dispatch("s", 1, 1)


def done(story):
    """The second entry is sent no more than once, and acked."""
    return story.ack("s", 1, 1)


def again(story, **columns):
    return done(story.dispatch("s", 1, 0, redelivery_count=1, reason="redelivery", **columns))


CAUSES = {
    "reset": again(sent("reset").reset("s", 1, -1)),
    "made anew": again(sent("made anew").add("unsubscribed", "s").subscribe("s", 1, -1)),
    "restart": again(sent("restart").restart().recovered("s")),
    "ack_not_persisted": again(sent("ack_not_persisted").persisted("s").ack("s", 1, 0).restart()),
    "never persisted": again(sent("never persisted").ack("s", 1, 0).restart()),
    "outcome_dropped": again(
        sent("outcome_dropped").ack("s", 1, 0).persisted("s", {"entries_dropped": 1}).restart()
    ),
    "batch dropped": again(
        sent("batch dropped")
        .ack("s", 1, 0)
        .persisted("s", {"batch_indexes_in_memory": 2, "batch_indexes_persisted": 1})
        .restart()
    ),
    "ack_lost": again(sent("ack_lost").ack("s", 1, 0).persisted("s").restart()),
    "cumulative ack lost": again(
        sent("cumulative ack lost").ack("s", 1, 1, is_cumulative=True).persisted("s").restart()
    ),
    "partial ack": again(sent("partial ack").ack("s", 1, 0, unacked_indexes=b"\2").restart()),
    "consumer_closed": again(
        sent("consumer_closed").nack("s", 1, 0, reason="consumer_closed").consumer_removed("s")
    ),
    "nack_or_timeout": again(sent("nack_or_timeout").nack("s", 1, 0)),
    "unexplained": again(sent("unexplained")),
    "seek ahead of it": again(sent("seek ahead of it").reset("s", 1, 0)),
    "nack of another": again(sent("nack of another").nack("s", 1, 1)),
}
EXPECTED_CAUSES = {
    "made anew": "reset",
    "never persisted": "ack_not_persisted",
    "batch dropped": "outcome_dropped",
    "cumulative ack lost": "ack_lost",
    "partial ack": "restart",
    "seek ahead of it": "unexplained",
    "nack of another": "unexplained",
}

FATES = {
    # The fate of entry 1:0; 1:1 is told in the comment where it matters.
    "acked": (done(sent("acked").ack("s", 1, 0)), "acked"),
    "acked by a later ledger": (
        sent("acked by a later ledger")
        .publish(2, 0)
        .dispatch("s", 2, 0)
        .ack("s", 2, 0, is_cumulative=True),
        "acked",
    ),
    "sent": (done(sent("sent")), "sent"),
    "partly acked": (sent("partly acked").ack("s", 1, 0, unacked_indexes=b"\1"), "sent"),
    "partial cumulative": (
        sent("partial cumulative").ack("s", 1, 0, is_cumulative=True, unacked_indexes=b"\1"),
        "sent",
    ),
    "backlog": (told("backlog"), "backlog"),
    "backlog after restart": (
        told("backlog after restart").dispatch("s", 1, 1).ack("s", 1, 1).restart().recovered("s"),
        "backlog",
    ),
    "gated": (told("gated").gate("s", is_shut=True), "gated"),
    "gate opened": (
        told("gate opened").gate("s", is_shut=True).gate("s", is_shut=False),
        "backlog",
    ),
    "held": (told("held").dispatch("s", 1, 1), "held"),
    "delayed": (
        Story("delayed")
        .subscribe("s", 1, -1)
        .publish(1, 0, deliver_at_ms=5_000_000)
        .publish(1, 1)
        .dispatch("s", 1, 1)
        .ack("s", 1, 1),
        "delayed",
    ),
    "delayed for too long": (
        Story("delayed for too long", step_us=20_000_000)
        .subscribe("s", 1, -1)
        .publish(1, 0, deliver_at_ms=2_000)
        .publish(1, 1)
        .dispatch("s", 1, 1)
        .ack("s", 1, 1),
        "lost_skipped",
    ),
    "cleared": (told("cleared").reset("s", 1, 1, "clear"), "set_aside"),
    "cancelled": (
        done(told("cancelled").dispatch("s", 1, 1).ack("s", 1, 0, consumer=None)),
        "set_aside",
    ),
    "unsubscribed": (told("unsubscribed").add("unsubscribed", "s"), "set_aside"),
    "lost, acked": (told("lost, acked").ack("s", 1, 0), "lost_acked"),
    "lost, acked over": (
        done(told("lost, acked over").dispatch("s", 1, 1)).ack("s", 1, 1, is_cumulative=True),
        "lost_acked",
    ),
    "lost, skipped": (done(told("lost, skipped").dispatch("s", 1, 1)), "lost_skipped"),
    "lost, in order": (
        Story("lost, in order")
        .subscribe("s", 1, -1, "Exclusive")
        .publish(1, 0)
        .publish(1, 1)
        .dispatch("s", 1, 1),
        "lost_skipped",
    ),
    "events are missing": (
        done(told("events are missing").dropped(3).dispatch("s", 1, 1)),
        "unknown",
    ),
    "subscribed behind it": (
        Story("subscribed behind it").publish(1, 0).subscribe("s", 1, 0).publish(1, 1),
        None,
    ),
    "subscribed before it": (
        Story("subscribed before it").publish(1, 0).subscribe("s", 1, -1).publish(1, 1),
        "backlog",
    ),
    "found at recovery": (
        Story("found at recovery").publish(1, 0).recovered("s").publish(1, 1),
        None,
    ),
}


def keyed(topic, kind):
    """Three entries, of which the second has a key of its own; the last overtakes the first."""
    story = Story(topic).subscribe("s", 1, -1, kind)
    story.publish(1, 0, key="a").publish(1, 1, key="b").publish(2, 0, key="a")
    return story.dispatch("s", 2, 0).dispatch("s", 1, 1).dispatch("s", 1, 0)


ORDERS = {
    "key overtaken": (keyed("key overtaken", "Key_Shared"), {(1, 0)}),
    "failover overtaken": (keyed("failover overtaken", "Failover"), {(1, 0)}),
    "shared": (keyed("shared", "Shared"), set()),
    "in order": (
        Story("in order")
        .subscribe("s", 1, -1, "Exclusive")
        .publish(1, 0)
        .publish(2, 0)
        .dispatch("s", 1, 0)
        .dispatch("s", 2, 0)
        .nack("s", 1, 0)
        .dispatch("s", 1, 0),
        set(),
    ),
    "sought back": (
        Story("sought back")
        .subscribe("s", 1, 0, "Exclusive")
        .publish(1, 0)
        .publish(1, 1)
        .dispatch("s", 1, 1)
        .reset("s", 1, -1)
        .dispatch("s", 1, 0),
        set(),
    ),
}
ACKS = (
    sent("acks")
    .ack("s", 1, 0)
    .persisted("s")
    .ack("s", 1, 1)
    .restart()
    .dispatch("s", 1, 1)
    .ack("s", 1, 1)
)


@pytest.fixture(scope="module")
def audited(spark):
    stories = [
        *CAUSES.values(),
        *(story for story, _ in (*FATES.values(), *ORDERS.values())),
        ACKS,
    ]
    rows = [row for story in stories for row in story.rows]
    result = audit(spark.createDataFrame(rows, spark_schema(DELIVERY_JOURNAL.columns)))
    return {
        "deliveries": result.deliveries.collect(),
        "fates": result.fates.collect(),
        "acks": result.acks.collect(),
        "subscriptions": {row.topic: row for row in result.by_subscription().collect()},
    }


def test_each_duplicate_has_its_cause(audited):
    found = {
        row.topic: row.cause
        for row in audited["deliveries"]
        if row.topic in CAUSES and row.nth == 2 and row.entry_id == 0
    }
    assert found == {topic: EXPECTED_CAUSES.get(topic, topic) for topic in CAUSES}
    assert all(row.cause is None for row in audited["deliveries"] if row.nth == 1)


def test_each_entry_has_its_fate(audited):
    found = {
        row.topic: row.fate
        for row in audited["fates"]
        if row.topic in FATES and (row.ledger_id, row.entry_id) == (1, 0)
    }
    expected = {topic: fate for topic, (_, fate) in FATES.items() if fate is not None}
    assert found == expected


@pytest.mark.parametrize(
    ("topic", "verdict"),
    [
        ("acked", "fine"),
        ("backlog", "fine"),
        ("nack_or_timeout", "fine"),
        ("outcome_dropped", "fine"),
        ("ack_lost", "broken"),
        ("unexplained", "broken"),
        ("lost, acked", "broken"),
        ("lost, skipped", "broken"),
        ("events are missing", "incomplete"),
        ("key overtaken", "broken"),
        ("sought back", "fine"),
    ],
)
def test_a_subscription_has_a_verdict(audited, topic, verdict):
    assert audited["subscriptions"][topic].verdict == verdict


def test_counts_of_a_subscription(audited):
    row = audited["subscriptions"]["nack_or_timeout"]
    assert (row.expected, row.deliveries, row.duplicates, row.nack_or_timeout) == (2, 3, 1, 1)
    assert (row.acked, row.sent, row.lost) == (1, 1, 0)


def test_entries_that_were_overtaken(audited):
    found = {topic: set() for topic in ORDERS}
    for row in audited["fates"]:
        if row.topic in ORDERS and row.is_out_of_order:
            found[row.topic].add((row.ledger_id, row.entry_id))
    assert found == {topic: overtaken for topic, (_, overtaken) in ORDERS.items()}


def test_when_acks_became_durable(audited):
    rows = sorted((row for row in audited["acks"] if row.topic == "acks"), key=lambda row: row.at)
    assert [row.durability for row in rows] == ["persisted", "never_persisted", "pending"]
    assert rows[0].durable_at.time_us - rows[0].at.time_us == 1_000
    assert rows[1].durable_at is rows[2].durable_at is None
    subscription = audited["subscriptions"]["acks"]
    assert subscription.to_durable_us_max == 1_000
    assert (subscription.acks_persisted, subscription.acks_never_persisted) == (1, 1)
