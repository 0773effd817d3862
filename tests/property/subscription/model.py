"""What `semantics.md` promises of one subscription, in dicts and sets; nothing here is quick.

The model does not decide what is delivered next: it knows what may be delivered, and what must have been
once nothing is left to do. `Forbidden` names what a machine did that it may not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from ackgate.cursor import Position
from ackgate.dispatcher import Exclusive, Failover, KeyShared, SubscriptionKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ackgate.subscription import Delivery, EntryRead

NACK_EARLY_MS = 255
"""A nack comes back so much early at most."""


def whole(entry: EntryRead) -> int:
    """The mask of a batch of which nothing is acked."""
    return (1 << entry.message_count) - 1


@dataclass
class Model:
    """The topic, the acks, who has what, and what waits for when."""

    is_durable: bool
    tick_ms: int
    is_exact: bool
    backoff: tuple[int, int] | None
    kind: SubscriptionKind | None = None
    entries: dict[Position, EntryRead] = field(default_factory=dict)
    unacked: dict[Position, int] = field(default_factory=dict)
    """Unacked messages of each entry, as a mask."""
    permits: dict[str, int] = field(default_factory=dict)
    out: dict[str, set[Position]] = field(default_factory=dict)
    """Shared, Key_Shared: what each consumer was sent, and neither acked nor gave back."""
    counts: dict[Position, int] = field(default_factory=dict)
    sent: set[Position] = field(default_factory=set)
    """Exclusive, Failover: what was sent since reading began again."""
    nacked: dict[Position, tuple[int, int]] = field(default_factory=dict)
    """Entries that wait after a nack: not before, and due at the latest."""
    holds: dict[Position, int] = field(default_factory=dict)
    """Entries that the host wants held until then."""
    given_back: set[Position] = field(default_factory=set)
    """Sent before, and to be sent again at once: no gate stops these."""
    wandered: set[Position] = field(default_factory=set)
    """Waited once for a time of their own, and so lost their place among their key."""
    nack_changes: int = 0
    epochs: dict[str, int] = field(default_factory=dict)
    """Exclusive, Failover: what each consumer's newest call for redelivery named."""

    # -- what there is

    @property
    def keeps_times(self) -> bool:
        """Whether delays and nacks' delays are obeyed."""
        return self.is_durable and self.kind is not None and self.kind.holds

    @property
    def is_single_active(self) -> bool:
        return isinstance(self.kind, Exclusive | Failover)

    @property
    def is_ordered_by_key(self) -> bool:
        return isinstance(self.kind, KeyShared) and not self.kind.allow_out_of_order

    def holder(self, position: Position) -> str | None:
        return next((who for who, has in self.out.items() if position in has), None)

    def mark_delete(self) -> Position | None:
        """The last acked entry below all unacked ones; None: there is none."""
        below = [at for at in self.entries if all(at < other for other in self.unacked)]
        return max(below, default=None)

    def ranges(self) -> list[list[Position]]:
        """Runs of acked entries above the first unacked one, cut at the ends of ledgers."""
        first = min(self.unacked, default=None)
        acked = sorted(at for at in self.entries if at not in self.unacked and first and at > first)
        runs: list[list[Position]] = []
        for at in acked:
            if runs and runs[-1][-1] == (at.ledger_id, at.entry_id - 1):
                runs[-1].append(at)
            else:
                runs.append([at])
        return runs

    # -- acks

    def acked(self, positions: Iterable[Position]) -> None:
        for at in list(positions):
            self.unacked.pop(at, None)
            self.counts.pop(at, None)
            self.nacked.pop(at, None)
            self.holds.pop(at, None)
            self.given_back.discard(at)
            self.wandered.discard(at)
            for has in self.out.values():
                has.discard(at)

    def acked_partly(self, position: Position, mask: int) -> None:
        if position in self.unacked:
            self.unacked[position] &= mask
            if not self.unacked[position]:
                self.acked([position])

    def acked_through(self, position: Position) -> None:
        self.acked([at for at in self.unacked if at <= position])

    # -- consumers

    def attached(self, consumer: str, permits: int, kind: SubscriptionKind) -> None:
        if not self.out:
            self.kind = kind
            self.read_again()
        self.out[consumer] = set()
        self.permits[consumer] = permits
        self.epochs[consumer] = 0

    def read_again(self) -> None:
        """Nobody has anything, and no redelivery was ever counted."""
        for has in self.out.values():
            has.clear()
        self.counts.clear()
        self.given_back.clear()
        self.sent.clear()

    def detached(self, consumer: str) -> None:
        self.given_back |= self.out.pop(consumer)
        del self.permits[consumer]
        if not self.out:
            self.read_again()

    def given(
        self,
        consumer: str,
        positions: Sequence[Position] | None,
        delay_ms: int | None,
        now_ms: int,
        *,
        is_active: bool,
    ) -> None:
        """A consumer gave back what it has of these."""
        if self.is_single_active:
            if is_active:
                self.sent.clear()
            return
        has = self.out[consumer]
        back = has & set(has if positions is None else positions)
        has -= back
        waits = self.keeps_times and (delay_ms is not None or self.backoff is not None)
        for at in back:
            before = self.counts.get(at, 0)
            self.counts[at] = before + 1
            if not waits:
                self.given_back.add(at)
                continue
            delay = delay_ms
            if delay is None:
                assert self.backoff is not None
                delay = min(self.backoff[0] * 2**before, self.backoff[1])
            self.nacked[at] = now_ms + delay - NACK_EARLY_MS, now_ms + delay
            self.wandered.add(at)
            self.nack_changes += 1

    # -- deliveries

    def delivered(self, delivery: Delivery[str, EntryRead], now_ms: int) -> None:
        """Assert that the delivery is allowed, and follow it."""
        who = delivery.consumer
        assert who in self.out, f"{who} is not attached"
        assert delivery.entries, "an empty delivery"
        counts, masks = delivery.redelivery_counts, delivery.unacked_masks
        messages = 0
        for place, entry in enumerate(delivery.entries):
            at = entry.position
            assert at in self.unacked, f"{at} is acked"
            mask = whole(entry) if masks is None or masks[place] is None else masks[place]
            assert mask == self.unacked[at], f"{at}: other messages are unacked"
            count = 0 if counts is None else counts[place]
            if self.is_single_active:
                assert count == 0
                assert delivery.epoch == self.epochs[who], f"{at} is of an older epoch"
                self._in_order(at)
            else:
                assert self.permits[who] - messages > 0, f"{who} has no permit for {at}"
                assert self.holder(at) is None, f"{at} is with {self.holder(at)}, and sent to {who}"
                assert count == self.counts.get(at, 0), f"{at}: redelivered {self.counts.get(at)}"
                if self.is_ordered_by_key:
                    self._in_order_of_key(who, entry)
                self.out[who].add(at)
            if self.keeps_times:  # the other kinds send what is held, too, and it stays held
                self._not_early(entry, now_ms)
                self.holds.pop(at, None)
                self.nacked.pop(at, None)
            self.sent.add(at)
            self.given_back.discard(at)
            messages += self.unacked[at].bit_count()
        assert delivery.message_count == messages
        self.permits[who] -= messages

    def _in_order(self, at: Position) -> None:
        assert at not in self.sent, f"{at} is sent twice"
        passed = [other for other in self.unacked if other < at and other not in self.sent]
        assert not passed, f"{at} is sent before {passed}"

    def _in_order_of_key(self, who: str, entry: EntryRead) -> None:
        at = entry.position
        same = [each for each in self.unacked if self.entries[each].key == entry.key]
        others = {holder for each in same if (holder := self.holder(each)) not in (None, who)}
        assert not others, f"{at} goes to {who}, its key is with {others}"
        if self._has_time(at):
            return
        waiting = [
            each
            for each in same
            if each < at and not self._has_time(each) and self.holder(each) is None
        ]
        assert not waiting, f"{at} overtakes {waiting} of its key"

    def _has_time(self, at: Position) -> bool:
        """Whether it waits, or waited, for a time of its own: its key need not wait for it."""
        return at in self.wandered or at in self.holds or self.entries[at].deliver_at_ms > 0

    def _not_early(self, entry: EntryRead, now_ms: int) -> None:
        at = entry.position
        early_ms = 0 if self.is_exact else self.tick_ms
        if at in self.nacked:
            assert now_ms >= self.nacked[at][0], f"{at} was nacked until {self.nacked[at]}"
        if at in self.holds:
            assert now_ms >= self.holds[at] - early_ms, f"{at} is held until {self.holds[at]}"
        assert now_ms >= entry.deliver_at_ms - early_ms, f"{at} is due at {entry.deliver_at_ms}"
        if at in self.holds:
            self.wandered.add(at)

    # -- what must have been delivered

    def is_waiting(self, position: Position, now_ms: int) -> bool:
        """Whether an undelivered entry has a time of its own to wait for."""
        if not self.keeps_times:
            return False
        times = [self.entries[position].deliver_at_ms + self.tick_ms]
        if position in self.nacked:
            times.append(self.nacked[position][1])
        if position in self.holds:
            times.append(self.holds[position] + self.tick_ms)
        return max(times) > now_ms

    def forgotten(self, now_ms: int, *, replays_only: bool) -> list[Position]:
        """What somebody with room for it should have by now."""
        busy = {self.entries[at].key for has in self.out.values() for at in has}
        found = []
        for at in sorted(self.unacked):
            if self.is_single_active:
                is_missing = at not in self.sent
            else:
                is_missing = self.holder(at) is None
                if self.is_ordered_by_key and self.entries[at].key in busy:
                    is_missing = False
            if not is_missing or self.is_waiting(at, now_ms):
                continue
            if not replays_only or at in self.given_back:
                found.append(at)
        return found

    def check(self) -> None:
        """Assert that the model itself is in order."""
        assert self.unacked.keys() <= self.entries.keys()
        for has in self.out.values():
            assert has <= self.unacked.keys()
        for one, other in pairwise(self.out.values()):
            assert not one & other
