"""The journals of the chaos runs of this session, audited: one more witness of what has happened."""

import asyncio
from dataclasses import replace

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.chaos.facts import MessageKey
from tests.chaos.journals import FINISHED, witness
from tests.chaos.run import ChaosRun

pytestmark = [pytest.mark.chaos, pytest.mark.slow]


@pytest.fixture(scope="module")
def kept_runs(pytestconfig, tmp_path_factory):
    """Those that were tested before, or a short one."""
    finished = pytestconfig.stash.get(FINISHED, [])
    if finished:
        return finished
    run = ChaosRun(tmp_path_factory.mktemp("chaos"), 4, report=print)
    asyncio.run(run.run(2))
    return [run.kept()]


@pytest.fixture(scope="module")
def told(spark, kept_runs):
    return witness(spark, kept_runs)


class Stranger:
    """A topic's facts, with one message more."""

    def __init__(self, topic):
        self.name, self.subscriptions = topic.name, topic.subscriptions
        self.contents = {**topic.contents, MessageKey(10**6, 0, 0): b"1"}


def sent_in_last_lives(run):
    """Of each topic what its last owner sent: topic, subscription, ledger, entry.

    Without the entries whose publication was cut off with an earlier owner's journal: the audit
    knows of no message there.
    """
    columns = ["topic", "subscription", "owner_epoch", "event", "ledger_id", "entry_id"]
    journal = pq.read_table(run.file, columns=columns)
    entry = ["topic", "ledger_id", "entry_id"]
    published = journal.filter(pc.field("event") == "published").select(entry)
    last = journal.group_by("topic").aggregate([("owner_epoch", "max")])
    sent = journal.filter(pc.field("event") == "dispatched").join(last, "topic")
    of_last = sent.filter(pc.field("owner_epoch") == pc.field("owner_epoch_max"))
    known = of_last.join(published, entry, join_type="left semi").to_pylist()
    return [(*(row[n] for n in columns[:2]), row["ledger_id"], row["entry_id"]) for row in known]


def test_the_journals_tell_what_the_clients_know(told, kept_runs):
    assert told.contradictions(kept_runs) == []
    assert any(fate == "acked" for fates in told.fates.values() for fate in fates.values())


def test_a_life_that_ended_in_good_order_leaves_nothing_unknown(told, kept_runs):
    """A run's last brokers ack everything and stop cleanly: their journals are whole."""
    for number, run in enumerate(kept_runs):
        for topic, subscription, *place in sent_in_last_lives(run):
            fates = told.fates[f"{number}/{topic}", subscription]
            assert fates[tuple(place)] == "acked", f"{run.name}: {topic}, {subscription}: {place}"


def test_a_message_that_no_journal_has_would_be_noticed(told, kept_runs):
    topics = [Stranger(topic) for topic in kept_runs[0].topics]
    wrong = told.contradictions([replace(kept_runs[0], topics=topics)])
    assert len(wrong) == sum(len(topic.subscriptions) for topic in topics)
    assert all("1 messages are not in the journal: 1000000:0" in what for what in wrong)
