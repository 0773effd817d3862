"""The journals of the chaos runs of this session, audited: one more witness of what has happened."""

import asyncio
from collections import Counter
from dataclasses import replace

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


def test_the_journals_tell_what_the_clients_know(told, kept_runs):
    assert told.contradictions(kept_runs) == []
    fates = Counter(fate for entries in told.fates.values() for fate in entries.values())
    assert fates["acked"] > 0.9 * fates.total()  # what it cannot know is little


def test_a_message_that_no_journal_has_would_be_noticed(told, kept_runs):
    topics = [Stranger(topic) for topic in kept_runs[0].topics]
    wrong = told.contradictions([replace(kept_runs[0], topics=topics)])
    assert len(wrong) == sum(len(topic.subscriptions) for topic in topics)
    assert all("1 messages are not in the journal: 1000000:0" in what for what in wrong)
