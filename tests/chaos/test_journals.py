"""What the journals of a run say, held against its facts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from tests.chaos.facts import MessageKey, SubscriptionFacts, TopicFacts
from tests.chaos.journals import BROKEN_COUNTS, KeptRun, Witness


def contradictions(fates, *, before=None, verdict="fine", events_dropped=0, **counts):
    """Of one subscription; its clients know 3:0 and 3:1."""
    topic = TopicFacts("t", [SubscriptionFacts("s")])
    topic.contents = {MessageKey(3, entry_id, 0): b"1" for entry_id in (0, 1)}
    columns = dict.fromkeys(BROKEN_COUNTS, 0) | counts
    sums = FakeRow(verdict=verdict, events_dropped=events_dropped, **columns)
    told = Witness({("0/t", "s"): sums}, {("0/t", "s"): fates}, {("0/t", "s"): before or {}})
    return told.contradictions([KeptRun("run", Path(), [topic])])


class FakeRow(SimpleNamespace):
    def __getitem__(self, name):
        return getattr(self, name)


def test_they_agree():
    assert contradictions({(3, 0): "acked", (3, 1): "unknown"}) == []


def test_a_message_that_is_not_in_the_journal():
    [what] = contradictions({(3, 1): "acked"})
    assert what == "run: t, s: 1 messages are not in the journal: 3:0#0"
    assert contradictions({(3, 1): "acked"}, events_dropped=1) == []


def test_a_message_that_was_there_before_the_journal():
    assert contradictions({(3, 1): "acked"}, before={3: 1}) == []
    assert len(contradictions({}, before={3: 1})) == 1


def test_a_message_that_was_left():
    [what] = contradictions({(3, 0): "acked", (3, 1): "sent"})
    assert what == "run: t, s: 1 messages are not acked but sent: 3:1#0"


def test_a_broken_promise():
    fates = {(3, 0): "acked", (3, 1): "acked"}
    [what] = contradictions(fates, verdict="broken", ack_lost=2)
    assert what == "run: t, s: broken: {'ack_lost': 2}"


def test_a_subscription_that_no_journal_knows():
    topic = TopicFacts("t", [SubscriptionFacts("s")])
    told = Witness({}, {}, {})
    assert told.contradictions([KeptRun("run", Path(), [topic])]) == [
        "run: t, s: not in the journal"
    ]
