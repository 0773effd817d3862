"""The delivery journal of a topic: the hot path makes tuples, a task makes blocks of them."""

from ackgate.broker.journal.journaling import TopicJournaling
from ackgate.broker.journal.topic_journal import (
    UNKNOWN_TIME,
    SubscriptionRecorder,
    TopicJournal,
    key_of_entry,
    time_of_entry,
)
from ackgate.broker.journal.writer import JournalPace, JournalStatistics

__all__ = [
    "UNKNOWN_TIME",
    "JournalPace",
    "JournalStatistics",
    "SubscriptionRecorder",
    "TopicJournal",
    "TopicJournaling",
    "key_of_entry",
    "time_of_entry",
]
