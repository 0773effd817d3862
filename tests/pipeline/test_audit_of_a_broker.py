"""The audit of what a real broker with real clients has written, against what its clients know."""

import json
from collections import Counter

import pytest


@pytest.fixture(scope="module")
def audited(job_here):
    """Results of the command, on the directory that was left at the end."""
    return job_here("audit")


def test_nothing_is_lost_and_nothing_broken(audited, recorded_run):
    summary = json.loads((audited.output / "summary.json").read_text())
    figures = summary["figures"]
    assert audited.code == 0
    assert (figures["lost"], figures["findings"], figures["out_of_order"]) == (0, 0, 0)
    assert (figures["ack_lost"], figures["unexplained"], figures["broken"]) == (0, 0, 0)
    assert figures["subscriptions"] == sum(
        len(topic.subscriptions) for topic in recorded_run.topics.values()
    )
    assert "vegaEmbed" in (audited.output / "report.html").read_text()


def test_every_message_that_clients_know_of_was_to_reach_each_subscription(audited, recorded_run):
    rows = {(row["topic"], row["subscription"]): row for row in audited.rows("subscriptions")}
    for topic in recorded_run.topics.values():
        entries = {(at.ledger_id, at.entry_id) for at in topic.known}
        for subscription in topic.subscriptions.values():
            row = rows[topic.full_name, subscription.name]
            assert row["expected"] == len(entries)
            seen = {(at.ledger_id, at.entry_id) for at in subscription.deliveries}
            assert row["acked"] + row["sent"] + row["unknown"] == len(seen)


def test_duplicates_have_the_causes_that_clients_gave(audited, recorded_run):
    """What was nacked came again for that; what nobody had acked, for the restart."""
    billing = recorded_run.topics["orders"].subscriptions["billing"]
    asked = {at[:2] for at in billing.nacked}
    causes = Counter()
    for row in audited.rows("duplicates"):
        subscription = row["topic"].rpartition("/")[2], row["subscription"]
        causes[subscription, row["cause"]] += 1
        if (subscription, row["cause"]) == (("orders", "billing"), "nack_or_timeout"):
            assert (row["ledger_id"], row["entry_id"]) in asked
    assert causes[("orders", "billing"), "nack_or_timeout"]
    assert causes[("ordered", "main"), "restart"]  # every 25th is acked, and all before it
    assert not any(causes[("orders", "all"), cause] for cause in ("nack_or_timeout", "reset"))
