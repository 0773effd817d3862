"""What must be true, whatever has happened: every message, every ack, and who promised what.

Pure. For one subscription, a message that is known is in exactly one of three sets:

    open      nobody has acked it (since the last reset): must never be skipped
    unsure    an ack was sent, or a reset is under way: may come again, may not
    done      its ack is durable, as far as promised: must never come again

    open --ack sent--> unsure --receipt--> done        a cursor recovered: what it holds is done,
      ^                  |                  |          what it does not hold is open: exactly
      '---- a reset, a recovery, a limit ---'

A receipt counts with the epoch of the owner that gave it: an owner of that epoch or a later one may
not deliver the message again; one that was overtaken and does not know yet may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ackgate.cursor import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SHOWN_MAX = 6


class ViolationError(AssertionError):
    """A promise was broken."""


class Key(NamedTuple):
    """One message: its entry, and its place in it."""

    ledger_id: int
    entry_id: int
    place: int

    @property
    def position(self) -> Position:
        """Its entry."""
        return Position(self.ledger_id, self.entry_id)


def violated(condition: object, message: str) -> None:
    """Raise `ViolationError` if it is."""
    if condition:
        raise ViolationError(message)


def shown(keys: Iterable[Key]) -> str:
    """The first few, in order."""
    ordered = sorted(keys)
    text = ", ".join(f"{k.ledger_id}:{k.entry_id}#{k.place}" for k in ordered[:SHOWN_MAX])
    more = len(ordered) - SHOWN_MAX
    return f"{text} and {more} more" if more > 0 else text


class SubscriptionFacts:
    """The acks of one subscription."""

    def __init__(self, topic: TopicFacts, name: str) -> None:
        self.topic = topic
        self.name = name
        self.open: set[Key] = set()
        self.unsure: set[Key] = set()
        self.done: dict[Key, int] = {}
        """With the owner epoch under which it was promised."""
        self.start = Position(-1, -1)
        """Messages up to here came before the subscription."""
        self.acked_through = Position(-1, -1)
        """The furthest cumulative ack that was sent."""
        self.reset_to = Position(-1, -1)
        """The furthest place that somebody wanted to read from; what nobody knew of before that may or
        may not come."""
        self.is_vague = False
        """It is perhaps being deleted: nothing is known until it is seen again."""
        self.exists = False
        self.resets = 0
        """Begun and ended; an ack from before another number promises nothing."""
        self.resetting = 0
        self.epoch = 0
        """Of the newest owner that has recovered it."""
        self.born: dict[Key, int] = {}
        """The youngest consumer that has sent an ack for a message."""

    # ---------------------------------------------------------------- messages and acks

    def message(self, key: Key) -> None:
        """The message exists."""
        if key.position <= self.start or key in self.open or key in self.unsure or key in self.done:
            return
        is_skipped = key.position <= self.acked_through or key.position < self.reset_to
        if self.resetting or self.is_vague or is_skipped:
            self.unsure.add(key)
        else:
            self.open.add(key)

    def ack_sent(self, keys: Iterable[Key], consumer: int) -> None:
        """A client has sent an ack."""
        for key in keys:
            if key in self.open:
                self.open.discard(key)
                self.unsure.add(key)
            if key in self.unsure:
                self.born[key] = max(self.born.get(key, 0), consumer)

    def cumulative_sent(self, last: Key, mask_keys: Iterable[Key], consumer: int) -> list[Key]:
        """A client has sent a cumulative ack of everything before an entry, and of some in it."""
        position = last.position
        self.acked_through = max(self.acked_through, self.topic.before(position))
        acked = [k for k in (*self.open, *self.unsure) if k.position < position]
        acked += list(mask_keys)
        self.ack_sent(acked, consumer)
        return acked

    def receipt(self, keys: Iterable[Key], epoch: int, is_kept: Callable[[Key], bool]) -> None:
        """An owner has promised that these are durable. `is_kept`: within the limits."""
        if self.is_vague or not self.exists:
            return
        for key in keys:
            if key in self.open:
                violated(
                    epoch < self.epoch,
                    f"{self.name}: a receipt of epoch {epoch} for {shown([key])}, which epoch"
                    f" {self.epoch} has recovered without",
                )
            elif key in self.unsure and is_kept(key):
                self.unsure.discard(key)
                self.done[key] = epoch

    def may_be_dropped(self, is_kept: Callable[[Key], bool]) -> None:
        """The cursor has more than is persisted: the rest may come again."""
        for key in [key for key in self.done if not is_kept(key)]:
            del self.done[key]
            self.unsure.add(key)

    # ---------------------------------------------------------------- deliveries

    def delivered(self, key: Key, epoch: int) -> None:
        """An owner delivers it."""
        self.message(key)
        promised = self.done.get(key)
        if promised is not None and promised <= epoch and not self.is_vague and self.exists:
            raise ViolationError(
                f"{self.name}: {shown([key])} was acked for good under epoch {promised} and is"
                f" delivered again under epoch {epoch}"
            )

    # ---------------------------------------------------------------- recovery

    def recovered(
        self, epoch: int, is_acked: Callable[[Key], bool], is_there: Callable[[Key], bool]
    ) -> None:
        """A new owner has opened the cursor: hold it against what is known, and learn from it."""
        if epoch <= self.epoch:
            return
        self.epoch = epoch
        if self.exists and not self.is_vague:
            lost = [key for key in self.done if not is_acked(key)]
            violated(
                lost,
                f"{self.name}: {len(lost)} durable acks are gone: {shown(lost)}, epoch {epoch}",
            )
            invented = [key for key in self.open if is_acked(key)]
            violated(
                invented,
                f"{self.name}: {len(invented)} messages that nobody has acked count as acked:"
                f" {shown(invented)}, epoch {epoch}",
            )
            gone = [key for key in self.open if not is_there(key)]
            violated(gone, f"{self.name}: {len(gone)} unacked messages are gone: {shown(gone)}")
        known = {*self.open, *self.unsure, *self.done}
        self.done = {key: epoch for key in known if is_acked(key)}
        rest = known - self.done.keys()
        # What was trimmed when nobody had a claim to it will not come, and need not.
        self.unsure = {key for key in rest if not is_there(key)}
        self.open = rest - self.unsure
        self.born.clear()
        self.acked_through = Position(-1, -1)
        self.resets += 1
        self.resetting = 0
        self.is_vague = False
        self.exists = True

    def created(self, mark_delete: Position, epoch: int, is_there: Callable[[Key], bool]) -> None:
        """A subscription of this name was made anew. `is_there`: not trimmed, nor about to be."""
        violated(
            self.exists and not self.is_vague,
            f"{self.name} was made anew under epoch {epoch}, although it existed",
        )
        self.exists = True
        self.is_vague = False
        self.epoch = epoch
        self.start = mark_delete
        self.open = set()
        self.unsure = set()
        self.done = {}
        self.born.clear()
        self.acked_through = Position(-1, -1)
        self.resets += 1
        self.resetting = 0
        for key in self.topic.known():
            if is_there(key):
                self.message(key)
            else:
                self.unsure.add(key)

    # ---------------------------------------------------------------- resets and deletions

    def reset_sent(self, target: Position) -> int:
        """A client asks to read from `target` next. Returns a token for `reset_ended`."""
        self.resets += 1
        self.resetting += 1
        self.reset_to = max(self.reset_to, target)
        for key in [key for key in self.done if key.position >= target]:
            del self.done[key]
            self.unsure.add(key)
        self.unsure |= self.open
        self.open.clear()
        return self.resets

    def reset_ended(
        self,
        target: Position,
        token: int,
        consumers_before: int,
        epoch: int,
        is_there: Callable[[Key], bool],
    ) -> None:
        """The reset is durable. Without this, it may yet come, until the next recovery."""
        if self.resets != token or self.is_vague:
            return
        self.resets += 1
        self.resetting -= 1
        for key in list(self.unsure):
            if key.position < target:
                self.unsure.discard(key)
                self.done[key] = epoch
            elif self.born.get(key, 0) <= consumers_before and is_there(key):
                self.unsure.discard(key)
                self.open.add(key)

    def delete_sent(self) -> None:
        """A client asks to remove the subscription."""
        self.is_vague = True

    def deleted(self) -> None:
        """It is gone."""
        if self.is_vague:
            self.exists = False
            self.open.clear()
            self.unsure.clear()
            self.done.clear()


class TopicFacts:
    """The messages of one topic."""

    def __init__(self, name: str, *, deduplication: bool) -> None:
        self.name = name
        self.deduplication = deduplication
        self.entries: dict[Position, bytes] = {}
        self.counts: dict[Position, int] = {}
        self.places: dict[tuple[str, int], list[Position]] = {}
        """Where each sequence id of a producer lies."""
        self.sent: dict[tuple[str, int], bytes] = {}
        self.confirmed: set[tuple[str, int]] = set()
        self.confirmed_through = Position(-1, -1)
        """The furthest receipt that was given."""
        self.subscriptions: dict[str, SubscriptionFacts] = {}

    def known(self) -> list[Key]:
        """All messages that are known."""
        return [
            Key(*position, index)
            for position, count in self.counts.items()
            for index in range(count)
        ]

    def keys_of(self, position: Position) -> list[Key]:
        """The messages of an entry."""
        return [Key(*position, index) for index in range(self.counts.get(position, 0))]

    def before(self, position: Position) -> Position:
        """The place right before an entry, good for comparisons only."""
        return Position(position.ledger_id, position.entry_id - 1)

    def entry(
        self, position: Position, entry: bytes, producer: str, sequence_id: int, count: int
    ) -> None:
        """An entry is stored at this position."""
        known = self.entries.get(position)
        if known is not None:
            violated(known != entry, f"{self.name}: {position} held other bytes before")
            return
        violated(
            self.sent.get((producer, sequence_id)) != entry,
            f"{self.name}: {position} holds what nobody has sent as {producer}/{sequence_id}",
        )
        self.entries[position] = entry
        self.counts[position] = count
        places = self.places.setdefault((producer, sequence_id), [])
        places.append(position)
        violated(
            self.deduplication and len(places) > 1,
            f"{self.name}: {producer}/{sequence_id} is stored twice, at {places}",
        )
        for subscription in self.subscriptions.values():
            for index in range(count):
                subscription.message(Key(*position, index))

    def check_order(self, *, all_seen: bool) -> None:
        """With de-duplication, a producer's messages lie in the order of their sequence ids.

        `all_seen`: there was always a subscription, so every message has been seen by now.
        """
        if not self.deduplication:
            return
        last: dict[str, Position] = {}
        for (producer, sequence_id), places in sorted(self.places.items()):
            violated(
                places[0] < last.get(producer, Position(-1, -1)),
                f"{self.name}: {producer}/{sequence_id} lies before what was sent before it",
            )
            last[producer] = places[0]
        if not all_seen:
            return
        missing = sorted(key for key in self.confirmed if key not in self.places)
        violated(missing, f"{self.name}: confirmed and nowhere: {missing[:SHOWN_MAX]}")
