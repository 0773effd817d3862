"""Producer de-duplication by sequence id (PIP-6).

Per producer name the topic remembers the highest sequence id that was pushed to the ledger and the
highest that is durable. What was pushed but is not durable yet is neither accepted nor confirmed
again: its outcome is unknown, and the producer must retry.

Pure. `TopicDeduplication` keeps it: the map is saved as the long properties of the cursor
``pulsar.dedup``, whose mark-delete says up to which entry it holds; at load the entries behind it
are replayed.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.broker.entry import Entry


class Verdict(enum.Enum):
    """What to do with a message."""

    NEW = "new"
    DUPLICATE = "duplicate"
    """It is durable already: confirm it without storing it."""
    UNKNOWN = "unknown"
    """It is on its way: its outcome is not known yet."""


class Deduplication:
    """Highest sequence ids of one topic's producers."""

    def __init__(self, durable: Mapping[str, int], producers_max: int) -> None:
        self._producers_max = producers_max
        self._pushed: dict[str, int] = dict(durable)
        self._durable: dict[str, int] = dict(durable)
        """Least recently confirmed first."""

    @property
    def sequence_ids(self) -> Mapping[str, int]:
        """Highest durable sequence id by producer name."""
        return self._durable

    def last_sequence_id(self, producer_name: str) -> int:
        """What PRODUCER_SUCCESS answers: -1 when the producer is not known."""
        return self._durable.get(producer_name, -1)

    def check(self, producer_name: str, sequence_id: int, highest_sequence_id: int) -> Verdict:
        """Judge a message (or a batch, by its highest id) and remember it when it is new."""
        last = max(sequence_id, highest_sequence_id)
        pushed = self._pushed.get(producer_name, -1)
        if last <= pushed:
            is_durable = last <= self._durable.get(producer_name, -1)
            return Verdict.DUPLICATE if is_durable else Verdict.UNKNOWN
        self._pushed[producer_name] = last
        return Verdict.NEW

    def confirmed(self, producer_name: str, sequence_id: int, highest_sequence_id: int) -> None:
        """A message became durable."""
        last = max(sequence_id, highest_sequence_id)
        self._remember(producer_name, last)

    def _remember(self, producer_name: str, last: int) -> None:
        present = self._durable.pop(producer_name, -1)
        self._durable[producer_name] = max(last, present)
        while len(self._durable) > self._producers_max:
            forgotten = next(iter(self._durable))
            del self._durable[forgotten]
            self._pushed.pop(forgotten, None)

    def failed(self, producer_name: str) -> None:
        """An add failed: what was pushed beyond the durable ids may be sent again."""
        self._pushed[producer_name] = self._durable.get(producer_name, -1)

    def replay(self, entry: Entry) -> None:
        """Learn from a stored entry at load."""
        metadata = entry.metadata
        last = max(metadata.sequence_id, metadata.highest_sequence_id)
        self._remember(metadata.producer_name, last)
        self._pushed[metadata.producer_name] = self._durable[metadata.producer_name]
