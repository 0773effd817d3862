"""One topic's (or partition's) nacks in a consumer, and which messages of a redelivered batch are new.

Pure. A broker delivers whole entries. When one message of a batch is wanted again, the others come
with it, and a consumer that acks, nacks and forgets message by message would see them twice::

    batch             0    1    2    3        0 acked, 1 nacked for 1 s, 2 for 1 min, 3 at work
    after 1 s         0    1    2    3        come from the broker
    passed on              1                  0 is acked again, 2 waits on, 3 is at work already

So for each batch of which anything is unsettled it is known which messages the application has (had)
in its hands. A message is kept back for that reason **once** for each time that we asked for the
entry: what comes for another reason (a connection lost, an ack timeout) is passed on, as ever.

A message whose nack waits is never passed on: it is asked for again when its time has come.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.cursor import Position
from ackgate.dispatcher.nacks import WHOLE, NackTracker

if TYPE_CHECKING:
    from ackgate.dispatcher.nacks import NackSettings

NO_BATCH: Final = -1
"""As an index: the message is an entry by itself."""

ASKING_MS: Final = 100
"""For so long after an entry was passed to the real client its redelivery is not requested yet, and other
messages of the entry that fall due come with it. Passing it again would restart that time."""

ANSWER_MS: Final = 160
"""So long after, it has come, unless the broker is far away. In between nothing is known."""


class Arrival(enum.Enum):
    """What to do with a message that came."""

    DELIVER = "deliver"
    """It is the application's."""

    KEEP_BACK = "keep back"
    """It waits for its time, or the application has it."""

    ACK_AGAIN = "ack again"
    """The application acked it; the client has forgotten that."""


class _Batch:
    """The messages of an entry, as masks."""

    __slots__ = ("acked", "asked_at_ms", "copies", "in_hand", "once", "wanted")

    def __init__(self) -> None:
        self.asked_at_ms = -ANSWER_MS
        self.in_hand = 0
        """Passed on, not settled."""
        self.acked = 0
        self.wanted = 0
        """Asked for."""
        self.once = 0
        """To be kept back when they come the next time."""
        self.copies: dict[int, object] = {}
        """Index -> message id of the copy that was kept back last. Without batch index acks the real
        client acks an entry once all messages of *one* delivery are acked: the latest one's."""


class Redelivery(NamedTuple):
    """An entry to ask the broker for."""

    position: Position
    original: object
    """The message id it was nacked with, where one cannot be made of the position; else None."""


class TopicNacks:
    """Nacks and open batches of one topic."""

    __slots__ = ("_batches", "_latest", "_originals", "_tracker")

    def __init__(self, settings: NackSettings) -> None:
        self._tracker = NackTracker(settings)
        self._batches: dict[Position, _Batch] = {}
        self._latest: Position | None = None
        """The batch that messages came of last: more of it may come."""
        self._originals: dict[Position, object] = {}

    # -- what happens

    def arrived(self, position: Position, index: int, message_id: object = None) -> Arrival:
        """Whether a message that arrived goes to the application, or waits, or is a duplicate."""
        waiting = self._tracker.indexes(position)
        if index == NO_BATCH:
            return Arrival.KEEP_BACK if waiting else Arrival.DELIVER
        if position != self._latest:
            previous, self._latest = self._latest, position
            if previous is not None:
                self._settle(previous)
        bit = 1 << index
        batch = self._batches.setdefault(position, _Batch())
        is_kept_back = batch.once & bit
        batch.once &= ~bit
        if is_kept_back and batch.acked & bit:
            return Arrival.ACK_AGAIN
        if is_kept_back or waiting & bit:
            batch.copies[index] = message_id
            return Arrival.KEEP_BACK
        batch.copies.pop(index, None)
        batch.wanted &= ~bit
        batch.acked &= ~bit
        batch.in_hand |= bit
        return Arrival.DELIVER

    def nack(
        self,
        position: Position,
        index: int,
        now_ms: int,
        *,
        delay_ms: int | None,
        redelivery_count: int,
        chance: float,
        original: object = None,
    ) -> None:
        """Redeliver a message later. Raises as `NackTracker.add`."""
        indexes = WHOLE if index == NO_BATCH else 1 << index
        self._tracker.add(
            position,
            now_ms,
            delay_ms=delay_ms,
            redelivery_count=redelivery_count,
            indexes=indexes,
            chance=chance,
        )
        if original is not None:
            self._originals[position] = original
        self._leaves_hand(position, indexes)

    def acked(self, position: Position, index: int) -> object:
        """The application acked a message: its nack is void.

        Returns the id of a later copy of it that is to be acked, too; None: there is none.
        """
        if index == NO_BATCH:
            self._tracker.discard(position)
            self._originals.pop(position, None)
            self._batches.pop(position, None)
            return None
        bit = 1 << index
        self._tracker.discard_indexes(position, bit)
        batch = self._batches.get(position)
        if batch is None:
            return None
        copy = batch.copies.pop(index, None)
        batch.acked |= bit
        self._leaves_hand(position, bit)
        return copy

    def acked_through(self, position: Position, index: int) -> None:
        """The application acked everything up to this message."""
        before = position
        if index != NO_BATCH:
            for each in range(index + 1):
                self.acked(position, each)
            before = Position(position.ledger_id, position.entry_id - 1)
        self._tracker.forget_through(before)
        for positions in (self._originals, self._batches):
            for gone in [each for each in positions if each <= before]:
                del positions[gone]

    def clear(self) -> None:
        """Forget everything: a seek, or all unacked messages are redelivered."""
        self._tracker.clear()
        self._batches.clear()
        self._originals.clear()
        self._latest = None

    def _leaves_hand(self, position: Position, indexes: int) -> None:
        batch = self._batches.get(position)
        if batch is not None:
            batch.in_hand &= ~indexes
            batch.once |= batch.wanted & indexes
            batch.wanted &= ~indexes
            if position != self._latest:
                self._settle(position)

    def _settle(self, position: Position) -> None:
        """Forget the batch if none of its messages is unsettled."""
        batch = self._batches.get(position)
        if batch is None or batch.in_hand or batch.wanted or self._tracker.indexes(position):
            return
        del self._batches[position]

    # -- what is due

    @property
    def next_deadline_ms(self) -> int | None:
        """When to ask `pop_due` next."""
        return self._tracker.next_deadline_ms

    def pop_due(self, now_ms: int, entries_max: int) -> list[Redelivery]:
        """Entries to ask the broker for now."""
        due = self._tracker.pop_due(now_ms, entries_max)
        if due.indexes or self._batches:
            positions = [at for at in due.positions if self._asks(at, due.indexes.get(at), now_ms)]
        else:
            positions = due.positions
        return [Redelivery(position, self._originals.pop(position, None)) for position in positions]

    def _asks(self, position: Position, indexes: int | None, now_ms: int) -> bool:
        """Whether to ask for the entry, of which these messages are due (None: all), now."""
        batch = self._batches.get(position)
        if batch is None:
            return True
        if indexes is None or indexes < 0:  # whatever comes of it is passed on
            del self._batches[position]
            return True
        age_ms = now_ms - batch.asked_at_ms
        if ASKING_MS <= age_ms < ANSWER_MS:
            self._tracker.add(position, now_ms, delay_ms=ANSWER_MS - age_ms, indexes=indexes)
            return False
        batch.wanted |= indexes
        known = batch.in_hand | batch.acked | self._tracker.indexes(position)
        batch.once = known & ~batch.wanted
        if age_ms < ASKING_MS:
            return False
        batch.asked_at_ms = now_ms
        return True

    # -- figures

    def __len__(self) -> int:
        return len(self._tracker)

    @property
    def batch_count(self) -> int:
        """Batches of which anything is open, and perhaps one more."""
        return len(self._batches)

    @property
    def byte_estimate(self) -> int:
        """Bytes of memory of the nacks, about."""
        return self._tracker.byte_estimate

    def check(self) -> None:
        """Assert every invariant. For tests."""
        self._tracker.check()
        assert all(position in self._tracker for position in self._originals)
        for batch in self._batches.values():
            assert not batch.in_hand & batch.wanted
            assert not batch.once & batch.wanted
