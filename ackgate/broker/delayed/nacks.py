"""Entries of one subscription that consumers gave back and that wait for their backoff.

Decides, and does no I/O: time and chance come in as arguments. Held back is what a REDELIVER names,
on a Shared or Key_Shared subscription, while a policy `redeliveryBackoff` holds::

    REDELIVER --> dispatcher.hold --> hold(positions, counts) --> tracker     left out of reads
                                                                     | due
                  dispatcher.queue_due <--- pop_due <----------------'        passes the shut gate
                                                    acked: discarded

The n-th time an entry is given back it waits for the policy's n-th delay, at most a sixteenth of the
least delay less, and never more. Counts live as long as the dispatcher's: when the last consumer has
left, or the broker has started anew, they begin again, as with Pulsar; what waits goes on waiting.

A changed policy is for what is given back from then on. What waits keeps its time, also when the
policy is removed: nobody who sets a policy right brings everything back at once.

Persistence takes images (`NackSource`), and gives back the newest at recovery. What falls due or is
acked makes no new one: recovery finds that its time has come, or that it is acked.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from ackgate.broker.delayed.statistics import NackStatistics
from ackgate.cursor.pending_nacks import NackedLedger, NackImage, earliest
from ackgate.dispatcher.trackers.backoff import MultiplierRedeliveryBackoff
from ackgate.dispatcher.trackers.frozen_nacks import FrozenNacks
from ackgate.dispatcher.trackers.nack import NackTracker
from ackgate.dispatcher.trackers.nack_settings import NackSettings
from ackgate.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyroaring import BitMap

    from ackgate.broker.delayed.nack_policy import RedeliveryBackoffPolicy
    from ackgate.cursor.pending_nacks import PendingNacks
    from ackgate.cursor.position import Position

PRECISION_BITS_MAX: Final = 8
"""Buckets of 256 ms, as Pulsar's client has: few buckets, however long the delays are."""

EARLY_SHARE: Final = 16
"""A bucket is no wider than this part of the least delay."""

ARRAYS_FROM: Final = 16
"""With fewer entries a loop is quicker than making arrays of them."""


class HeldNacks:
    """Implements `HeldSource` for the broker and `NackSource` for persistence."""

    __slots__ = ("_backoff", "_settings", "_tracker", "version")

    version: int
    """Grows with every change that makes a new image worth storing."""

    def __init__(self, recovered: PendingNacks) -> None:
        """What is recovered is held on, as long as it was to be."""
        self.version = 0
        self._backoff: MultiplierRedeliveryBackoff | None = None
        self._settings = NackSettings(precision_bits=PRECISION_BITS_MAX)
        self._tracker = _restored(recovered, self._settings)

    def configure(self, policy: RedeliveryBackoffPolicy | None) -> None:
        """What holds for what is given back from now on. None: nothing is held back."""
        if policy is None:
            self._backoff = None
            return
        self._backoff = MultiplierRedeliveryBackoff(
            policy.min_delay_ms, policy.max_delay_ms, policy.multiplier, policy.jitter
        )
        self._settings = NackSettings(
            backoff=self._backoff, precision_bits=precision_bits(policy.min_delay_ms)
        )
        self._tracker.configure(self._settings)

    @property
    def is_active(self) -> bool:
        """Whether a policy holds."""
        return self._backoff is not None

    # -- holding back ---------------------------------------------------------------------------

    def hold(
        self,
        positions: Sequence[Position],
        times_before: Sequence[int],
        now_ms: int,
        chance: Callable[[], float],
    ) -> list[Position]:
        """These were given back, so often before. `chance`: asked for only where there is jitter.

        Returns what is not held: there is no policy, or no room for one more ledger.
        """
        backoff = self._backoff
        if backoff is None or not positions:
            return list(positions)
        chances = np.array([chance() for _ in positions]) if backoff.jitter > 0 else None
        self.version += 1
        if len(positions) >= ARRAYS_FROM:
            return self._hold_many(positions, np.array(times_before), now_ms, chances)
        refused = []
        for place, position in enumerate(positions):
            luck = float(chances[place]) if chances is not None else 0.0
            times = times_before[place]
            try:
                self._tracker.add(position, now_ms, redelivery_count=times, chance=luck)
            except CallerError:
                refused.append(position)
        return refused

    def _hold_many(
        self,
        positions: Sequence[Position],
        times_before: np.ndarray,
        now_ms: int,
        chances: np.ndarray | None,
    ) -> list[Position]:
        pairs = np.fromiter(chain.from_iterable(positions), np.int64, 2 * len(positions))
        ledger_ids, entry_ids = pairs[0::2], pairs[1::2]
        refused: list[Position] = []
        for ledger_id in np.unique(ledger_ids).tolist():
            of_ledger = ledger_ids == ledger_id
            try:
                self._tracker.add_many(
                    ledger_id,
                    entry_ids[of_ledger],
                    now_ms,
                    redelivery_counts=times_before[of_ledger],
                    chances=None if chances is None else chances[of_ledger],
                )
            except CallerError:
                refused += [position for position in positions if position[0] == ledger_id]
        return refused

    # -- what is held (`HeldSource`) --------------------------------------------------------------

    def __contains__(self, position: Position) -> bool:
        return position in self._tracker

    def tracked(self, ledger_id: int) -> BitMap | None:
        """Held entry ids of one ledger."""
        return self._tracker.tracked(ledger_id)

    @property
    def entry_count(self) -> int:
        """Held entries. O(1)."""
        return self._tracker.whole_count

    @property
    def byte_estimate(self) -> int:
        """Bytes of memory. O(1)."""
        return self._tracker.byte_estimate

    @property
    def next_deadline_ms(self) -> int | None:
        """When to ask `pop_due` next."""
        return self._tracker.next_deadline_ms

    def pop_due(self, now_ms: int, entries_max: int) -> list[Position]:
        """Take out what is due."""
        return self._tracker.pop_due(now_ms, entries_max).positions

    def discard(self, position: Position) -> bool:
        """It was acked. Was it held?"""
        return self._tracker.discard(position)

    def forget_through(self, mark_delete: Position) -> int:
        """Everything up to this one is acked or trimmed. Returns how many were held."""
        return self._tracker.forget_through(mark_delete)

    def clear(self) -> None:
        """Hold nothing any more, durably."""
        self._tracker.clear()
        self.version += 1

    def check(self) -> None:
        """Assert every invariant. For tests."""
        self._tracker.check()

    # -- for persistence (`NackSource`) and for people ---------------------------------------------

    def image(self, bytes_max: int) -> NackImage:
        """What is held now: frozen, as much as fits into so many bytes, earliest first."""
        parts = (NackedLedger(*part) for part in self._tracker.parts())
        kept = earliest(parts, bytes_max, precision_bits=self._settings.precision_bits)
        return NackImage(self.version, kept, self._tracker.whole_count)

    def statistics(self, *, persisted: int, dropped: int) -> NackStatistics:
        """Everything, frozen. O(1)."""
        return NackStatistics(
            pending=self.entry_count,
            bytes=self.byte_estimate,
            next_deadline_ms=self.next_deadline_ms,
            persisted=persisted,
            dropped=dropped,
        )


def precision_bits(min_delay_ms: int) -> int:
    """How many low bits of a deadline are cleared under a policy with this least delay."""
    widest_ms = max(1, min_delay_ms // EARLY_SHARE)
    return min(PRECISION_BITS_MAX, widest_ms.bit_length() - 1)


def _restored(nacks: PendingNacks, settings: NackSettings) -> NackTracker:
    if not nacks:
        return NackTracker(settings)
    keys_ms, ledger_ids, entry_ids = zip(*nacks, strict=True)
    frozen = FrozenNacks(
        np.array(keys_ms, dtype=np.int64), np.array(ledger_ids, dtype=np.int64), entry_ids
    )
    return NackTracker.restore(frozen, settings)
