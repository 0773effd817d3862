"""What is known for certain about messages and acks, whatever the broker has been through.

Pure. The load tells what it has seen (a receipt, a delivery, an ack that was sent, an ack that was
confirmed); after a restart the broker's deliveries and statistics are held against that. Messages
are known by `MessageKey`, because a client that reconnects may publish a payload twice.

For one subscription a message that exists is in exactly one of three sets::

    open    no ack was ever sent:       must be delivered after a restart, must not count as acked
    unsure  an ack was sent, unconfirmed: may be delivered or not; then it is settled
    done    the ack is durable:         must never be delivered again

    open --ack sent--> unsure --receipt, or applied before what has one--> done
                         `--delivered after a restart--> open

"Restart" is any change of hands: the same broker started again, or another one taking over.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ackgate.cursor import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

SHOWN_MAX = 8
"""Keys that a violation names."""


class MessageKey(NamedTuple):
    """One message: its entry, and its place in it (0 unless the entry is a batch)."""

    ledger_id: int
    entry_id: int
    batch_index: int

    @property
    def position(self) -> Position:
        """Its entry."""
        return Position(self.ledger_id, self.entry_id)


class ViolationError(AssertionError):
    """The broker has broken a promise."""


class OrderFacts:
    """What one consumer was given first, key by key: in the order of publishing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._seen: set[Position] = set()
        self._last: dict[str, Position] = {}

    def delivered(self, position: Position, key: str) -> None:
        """Raises `ViolationError` if a later one of the same key came first."""
        if position in self._seen:
            return
        self._seen.add(position)
        last = self._last.setdefault(key, position)
        if position < last:
            raise ViolationError(f"{self.name}: key {key!r}: {position} came after {last}")
        self._last[key] = position


class SubscriptionFacts:
    """Acks of one subscription."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.open: set[MessageKey] = set()
        self.unsure: dict[MessageKey, float] = {}
        """Since when the broker had applied the ack, by `time.monotonic`; infinity: not known."""
        self.done: dict[MessageKey, int] = {}
        """With the life of the broker in which that was established."""
        self.had_receipt: set[MessageKey] = set()
        """Of those that are done: not only by their age."""
        self.life = 0
        self.mark_delete = Position(-1, -1)
        """The furthest that was ever durable."""
        self.settled_comings_again = 0
        """Unconfirmed acks that were lost, as they may be."""
        self._came_again_in: dict[MessageKey, int] = {}
        """The last life in which an ack of it turned out to be lost."""

    def exists(self, key: MessageKey) -> None:
        """The message is there."""
        if key not in self.done and key not in self.unsure:
            self.open.add(key)

    def delivered(self, key: MessageKey, *, lives_ago: int = 0) -> None:
        """The broker has delivered it while it ran. Raises `ViolationError` if it may not.

        `lives_ago`: a client that queues may show what it got before the ack, in an earlier life.
        """
        if self.done.get(key, self.life + 1) <= self.life - lives_ago:
            raise ViolationError(f"{self.name}: {key} was acked for good and has come again")
        self.exists(key)

    def ack_sent(self, keys: Iterable[MessageKey]) -> None:
        """An ack is on its way."""
        for key in keys:
            if key not in self.done:
                self.open.discard(key)
                self.unsure.setdefault(key, math.inf)

    def ack_applied(self, keys: Iterable[MessageKey], at: float) -> None:
        """The broker has certainly applied the ack by `at`."""
        for key in keys:
            if key in self.unsure:
                self.unsure[key] = min(self.unsure[key], at)

    def receipt(self, keys: Iterable[MessageKey], sent_in_life: int, sent_at: float) -> None:
        """The receipt of an ack has come, late perhaps. Raises `ViolationError` if it is a lie.

        It is one when the ack has been found lost since: an owner that was paused has woken up, and
        has confirmed what its successor does not know. A receipt covers all acks that were applied
        before its own was sent.
        """
        keys = list(keys)
        lies = [key for key in keys if self._came_again_in.get(key, -1) > sent_in_life]
        if lies:
            raise ViolationError(
                f"{self.name}: {len(lies)} acks were confirmed after they had been lost:"
                f" {shown(lies)}"
            )
        self.had_receipt.update(keys)
        self.ack_durable(keys)
        self.applied_is_durable(sent_at)

    def ack_durable(self, keys: Iterable[MessageKey]) -> None:
        """The ack is durable, for certain."""
        for key in keys:
            self.open.discard(key)
            self.unsure.pop(key, None)
            self.done.setdefault(key, self.life)

    def through(self, last: MessageKey) -> list[MessageKey]:
        """What a cumulative ack of `last` acks."""
        return [key for key in (*self.open, *self.unsure) if key <= last]

    def applied_is_durable(self, by: float) -> None:
        """Whatever had been applied by that time is durable, for certain."""
        self.ack_durable([key for key, applied in self.unsure.items() if applied <= by])

    def broker_ended(self) -> None:
        """What is told from now on is told in another life."""
        self.life += 1

    def verify_deliveries(
        self, delivered: set[MessageKey], last: MessageKey, *, applied_at: float | None = None
    ) -> None:
        """Hold what a new consumer was given, up to and with `last`, against the facts.

        An ack of which nothing came again has survived the broker's end. `applied_at`: the broker
        had not ended; then it has been applied by that time, and nothing more is known.
        """
        again = delivered & self.done.keys()
        if again:
            raise ViolationError(
                f"{self.name}: {len(again)} acked messages came again: {self._told(again)}"
            )
        missing = {key for key in self.open if key <= last} - delivered
        if missing:
            raise ViolationError(
                f"{self.name}: {len(missing)} unacked messages were skipped: {shown(missing)}"
            )
        for key in [key for key in self.unsure if key <= last]:
            if key in delivered:
                del self.unsure[key]
                self.open.add(key)
                self.settled_comings_again += 1
                self._came_again_in[key] = self.life
            elif applied_at is None:
                self.ack_durable([key])
            else:
                self.ack_applied([key], applied_at)
        for key in delivered:
            self.exists(key)

    def verify_state(self, is_acked: Callable[[Position], bool], now: float) -> None:
        """Hold a cursor's state after a restart against the facts (topics without batches).

        What it holds of the unsure ones may have come since the restart, from a client that has
        reconnected: applied, not more. What it does not hold was lost, as it might be; the client
        may ack it once more.
        """
        lost = {key for key in self.done if not is_acked(key.position)}
        if lost:
            raise ViolationError(
                f"{self.name}: {len(lost)} durable acks are gone: {self._told(lost)}"
            )
        invented = {key for key in self.open if is_acked(key.position)}
        if invented:
            raise ViolationError(
                f"{self.name}: {len(invented)} messages count as acked, and nobody has acked them:"
                f" {shown(invented)}"
            )
        for key in self.unsure:
            self.unsure[key] = now if is_acked(key.position) else math.inf

    def _told(self, keys: set[MessageKey]) -> str:
        return f"{shown(keys)} ({len(keys & self.had_receipt)} had a receipt)"

    def verify_mark_delete(self, mark_delete: Position, *, is_durable: bool = True) -> None:
        """It never goes back behind one that was durable. Raises `ViolationError`."""
        if mark_delete < self.mark_delete:
            raise ViolationError(
                f"{self.name}: mark-delete went back from {self.mark_delete} to {mark_delete}"
            )
        if is_durable:
            self.mark_delete = mark_delete


class TopicFacts:
    """Messages of one topic, and who is subscribed to it."""

    def __init__(self, name: str, subscriptions: Sequence[SubscriptionFacts]) -> None:
        self.name = name
        self.subscriptions = subscriptions
        self.contents: dict[MessageKey, bytes] = {}
        self._payloads = 0

    def new_payload(self) -> bytes:
        """Something that was never sent before."""
        self._payloads += 1
        return b"%d" % self._payloads

    def exists(self, key: MessageKey, payload: bytes) -> None:
        """A receipt or a delivery has told of this message. Raises `ViolationError`."""
        known = self.contents.setdefault(key, payload)
        if known != payload:
            raise ViolationError(f"{self.name}: {key} held {known!r} and now holds {payload!r}")
        if not 0 < int(payload) <= self._payloads:
            raise ViolationError(f"{self.name}: {key} holds {payload!r}, which was never sent")
        for subscription in self.subscriptions:
            subscription.exists(key)


def shown(keys: Iterable[MessageKey]) -> str:
    """The first few, in order."""
    in_order = sorted(keys)
    rest = len(in_order) - SHOWN_MAX
    text = ", ".join(f"{k.ledger_id}:{k.entry_id}#{k.batch_index}" for k in in_order[:SHOWN_MAX])
    return f"{text} and {rest} more" if rest > 0 else text
