"""The journals of the chaos runs of this session, audited: one more witness of what has happened."""

import asyncio
from dataclasses import replace

import pytest

from tests.chaos.facts import MessageKey
from tests.chaos.journals import FINISHED, audited
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
def findings(spark, kept_runs):
    """Of all runs, and of the first one with a message that nobody has written down."""
    first = replace(kept_runs[0], name="with a stranger")
    with_stranger = [Stranger(topic) for topic in first.topics]
    return audited(spark, [*kept_runs, replace(first, topics=with_stranger)])


class Stranger:
    """A topic's facts, with one message more."""

    def __init__(self, topic):
        self.name, self.subscriptions = topic.name, topic.subscriptions
        self.contents = {**topic.contents, MessageKey(10**6, 0, 0): b"1"}


def test_the_journals_tell_what_the_clients_know(findings):
    assert [what for what in findings if not what.startswith("with a stranger")] == []


def test_a_message_that_no_journal_has_would_be_noticed(findings, kept_runs):
    wrong = [what for what in findings if what.startswith("with a stranger")]
    assert len(wrong) == sum(len(topic.subscriptions) for topic in kept_runs[0].topics)
    assert all("1 messages are not in the journal: 1000000:0" in what for what in wrong)
