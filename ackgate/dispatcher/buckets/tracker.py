"""The delayed tracker that keeps most of its entries in storage: PIP-195's, pure.

::

     add -> mutable bucket --seal--> sealed bucket, in memory --stored, registered--> in its snapshot
                 |                            |                                          |
                 +---------- runs in memory --+------------ segments, ahead of time -----+
                                 |
                              pop_due

It implements `delayed.DelayedTracker`. `take_plans` returns its I/O as values; the
owner carries them out and passes the outcomes to `answer`. **After every call that takes the time,
and after `clear`, take the plans.** Work that only depends on time (a load ahead, a retry, a seal by
age) is done by `pop_due`, also with ``entries_max=0``; `next_deadline_ms` says when. `take_lost` returns
the entries that must be read and offered again.

`holdings` knows which entry is where. The steps are in `storing`, `loading`, `merging`, `recovering`
and `registry`, and share the book of `plans`. A late answer (its bucket was merged, emptied or
cleared) changes nothing; a snapshot that is stored too late is deleted.

A crash loses work, never an entry: entries of an unregistered snapshot, of the mutable bucket and of
loaded segments are not in the recovered index, so the cursor reads them again.

Departures from Pulsar, with its issues: seals inside a ledger, too; the create has an outcome and
sources are deleted only when the merged bucket is registered (#26239); one load slot for each
bucket; recovery does not block (#26103); late completions find nothing (#26401).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ackgate.cursor import (
    ENTRY_ID_MAX,
    LEDGER_ID_MAX,
    Position,
    StoredSnapshot,
    bitmap_of,
)
from ackgate.dispatcher.buckets.holdings import Holdings
from ackgate.dispatcher.buckets.loading import Loading
from ackgate.dispatcher.buckets.merging import Merging
from ackgate.dispatcher.buckets.plans import PlanBook
from ackgate.dispatcher.buckets.recovering import Recovering
from ackgate.dispatcher.buckets.registry import SnapshotKeeper
from ackgate.dispatcher.buckets.sealed_bucket import BucketState, SealedBucket
from ackgate.dispatcher.buckets.segments import members_of
from ackgate.dispatcher.buckets.settings import BucketSettings
from ackgate.dispatcher.buckets.statistics import BucketStatistics
from ackgate.dispatcher.buckets.storing import Storing
from ackgate.dispatcher.delayed import (
    DelayKeys,
    DelaySettings,
    offered_columns,
    refuse_position,
    time_ms,
)
from ackgate.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import ArrayLike, NDArray
    from pyroaring import BitMap

    from ackgate.cursor import BucketRecord
    from ackgate.dispatcher.buckets.plans import Outcome, Plan

AGE_SEAL_SHARE: Final = 10
"""Age seals what has this part of `BucketSettings.entries_min`: not every handful is worth a ledger."""


class BucketTracker:
    """See the module. One owner calls it; it never calls back (but for `recover`'s ``acked``)."""

    __slots__ = (
        "_book",
        "_buckets_lost",
        "_entries_lost",
        "_holdings",
        "_keeper",
        "_keys",
        "_loading",
        "_merging",
        "_now_ms",
        "_recovering",
        "_seal_from",
        "_settings",
        "_storing",
    )

    def __init__(
        self,
        delays: DelaySettings | None = None,
        settings: BucketSettings | None = None,
        *,
        seed: int = 0,
    ) -> None:
        """`seed` decides the jitter of retries: give each tracker another one."""
        delays = delays or DelaySettings()
        self._settings = settings or BucketSettings()
        self._keys = DelayKeys(delays.tick_ms, is_strict=delays.is_strict)
        self._holdings = Holdings()
        self._book = PlanBook(self._settings, seed)
        self._keeper = SnapshotKeeper(self._book)
        self._storing = Storing(self._holdings, self._book, self._keeper, self._keys)
        self._loading = Loading(self._holdings, self._book, self._keys, self._lose)
        self._merging = Merging(self._holdings, self._book, self._keeper, self._lose)
        self._recovering = Recovering(self._holdings, self._book, self._lose)
        self._seal_from = min(self._settings.entries_min, self._settings.entries_max)
        self._now_ms = 0
        self._buckets_lost = 0
        self._entries_lost = 0

    # -- the storage side -----------------------------------------------------------------------

    def recover(
        self,
        records: Iterable[BucketRecord],
        now_ms: int,
        acked: Callable[[int], BitMap | None] | None = None,
    ) -> None:
        """Begin with what the registry names. Once, before anything else; then all other calls.

        `acked` answers with the acked entries of a ledger, as the cursor has them when it is asked
        (none above mark-delete: None); it is asked until the last bucket is read. Call
        `forget_through` with the recovered mark-delete right after this.
        """
        if self._holdings.buckets or self._holdings.index.entry_count:
            raise CallerError("a tracker recovers before it tracks anything")
        records = list(records)
        self._keeper.recover(records)
        self._recovering.begin(records, acked)
        self._advance(now_ms)

    def take_plans(self) -> list[Plan]:
        """What is to be done since the last call, in this order."""
        return self._book.take()

    def answer(self, plan: int, outcome: Outcome, now_ms: int) -> None:
        """Take the outcome of a plan. A second answer to it changes nothing."""
        is_expected = self._book.answer(plan, outcome, now_ms)
        if (
            not is_expected
            and isinstance(outcome, StoredSnapshot)
            and not self._keeper.knows(outcome.snapshot_id)
        ):
            # Nobody will ever name this snapshot.
            self._keeper.give_up(outcome.snapshot_id)
        self._advance(now_ms)

    def take_lost(self) -> dict[int, BitMap]:
        """Entries by ledger that were tracked and are not any more: their snapshot is unreadable.

        Nobody has them now. Read them and offer them again, as if the cursor came by.
        """
        lost = self._holdings.lost.copies()
        self._holdings.lost.clear()
        return lost

    # -- adding ---------------------------------------------------------------------------------

    def add(self, position: Position, deliver_at_ms: int, now_ms: int) -> bool:
        time = time_ms(deliver_at_ms)
        ledger_id, entry_id = position
        if entry_id < 0 or not 0 <= ledger_id <= LEDGER_ID_MAX or entry_id > ENTRY_ID_MAX:
            refuse_position(position)
        if time <= self._keys.refused_through(now_ms):
            if self._recovering.is_on:
                self._recovering.settle((position,))
            if self._holdings.discard(ledger_id, entry_id):
                self._advance(now_ms)
            return False
        if self._holdings.mutable.memory_entries >= self._seal_from:
            self._make_room(ledger_id, now_ms)
        self._holdings.accept(self._keys.key(time), position, now_ms)
        return True

    def add_many(
        self, ledger_id: int, entry_ids: ArrayLike, deliver_at_ms: ArrayLike, now_ms: int
    ) -> NDArray[np.bool_]:
        ids, times = offered_columns(ledger_id, entry_ids, deliver_at_ms)
        is_late = times > self._keys.refused_through(now_ms)
        refused = ids[~is_late]
        if refused.size:
            self._refuse_many(ledger_id, bitmap_of(refused), now_ms)
        new = self._untracked(ledger_id, ids, is_late)
        self._accept_in_pieces(ledger_id, ids[new], self._keys.keys(times[new]), now_ms)
        return is_late

    def _refuse_many(self, ledger_id: int, refused: BitMap, now_ms: int) -> None:
        if self._recovering.is_on:
            self._recovering.settle_many(ledger_id, refused)
        if self._holdings.discard_many(ledger_id, refused):
            self._advance(now_ms)

    def _untracked(
        self, ledger_id: int, ids: NDArray[np.int64], wanted: NDArray[np.bool_]
    ) -> NDArray[np.intp]:
        """Places of the wanted ids that are not tracked, each id once (its first place)."""
        tracked = self._holdings.index.bitmap(ledger_id)
        if tracked is not None:
            wanted = wanted & ~members_of(tracked, ids)
        places = np.flatnonzero(wanted)
        chosen = ids[places]
        if chosen.size > 1 and not bool((chosen[1:] > chosen[:-1]).all()):
            _, firsts = np.unique(chosen, return_index=True)
            places = places[np.sort(firsts)]
        return places

    def _accept_in_pieces(
        self, ledger_id: int, ids: NDArray[np.int64], keys_ms: NDArray[np.int64], now_ms: int
    ) -> None:
        """Track entries in pieces, so that no bucket gets more than it may have."""
        start = 0
        while start < ids.size:
            self._make_room(ledger_id, now_ms)
            stop = start + self._settings.entries_max - len(self._holdings.mutable)
            self._holdings.accept_many(keys_ms[start:stop], ledger_id, ids[start:stop], now_ms)
            start = stop

    def _make_room(self, ledger_id: int, now_ms: int) -> None:
        """Seal the mutable bucket if an entry of this ledger is not to be put in it."""
        mutable = self._holdings.mutable
        entries = mutable.memory_entries
        if entries >= self._settings.entries_max or (
            entries >= self._settings.entries_min and ledger_id > mutable.highest_ledger_id
        ):
            self._seal()
            self._advance(now_ms)

    def seal(self, now_ms: int) -> None:
        """Seal the mutable bucket if it is worth a ledger. The next owner need not reread it."""
        if AGE_SEAL_SHARE * self._holdings.mutable.memory_entries >= self._settings.entries_min:
            self._seal()
            self._advance(now_ms)

    def _seal(self) -> None:
        bucket = self._holdings.seal()
        if bucket is not None:
            self._storing.store(bucket)

    # -- asking ---------------------------------------------------------------------------------

    def __contains__(self, position: Position) -> bool:
        return position in self._holdings.index

    def tracked(self, ledger_id: int) -> BitMap | None:
        return self._holdings.index.bitmap(ledger_id)

    @property
    def entry_count(self) -> int:
        return self._holdings.index.entry_count

    @property
    def byte_estimate(self) -> int:
        """Bytes of memory, without plans that are under way. O(1)."""
        return self._holdings.byte_estimate + self._recovering.byte_estimate

    @property
    def is_recovering(self) -> bool:
        """Whether registered buckets are still to be read."""
        return self._recovering.is_on

    @property
    def next_deadline_ms(self) -> int | None:
        deadlines = [
            self._loading.next_deadline_ms,
            self.next_work_ms,
        ]
        next_key_ms = self._holdings.next_key_ms
        if next_key_ms is not None:
            deadlines.append(self._keys.deadline_ms(next_key_ms))
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    @property
    def next_work_ms(self) -> int | None:
        """When there is work that no entry's time brings: retries, pieces, a seal by age."""
        retry_ms, age_ms = self._book.retries.next_deadline_ms, self._age_deadline_ms
        if retry_ms is None or age_ms is None:
            return age_ms if retry_ms is None else retry_ms
        return min(retry_ms, age_ms)

    @property
    def _age_deadline_ms(self) -> int | None:
        """When the mutable bucket will be sealed for its age."""
        mutable, settings = self._holdings.mutable, self._settings
        if (
            not settings.age_max_ms
            or mutable.oldest_ms is None
            or AGE_SEAL_SHARE * mutable.memory_entries < settings.entries_min
        ):
            return None
        return mutable.oldest_ms + settings.age_max_ms

    def has_due(self, now_ms: int) -> bool:
        """Whether something in memory is due."""
        last_key_ms = self._keys.cutoff(now_ms)
        next_key_ms = self._holdings.next_key_ms
        if next_key_ms is None or next_key_ms > last_key_ms:
            return False
        return self._holdings.has_tracked_through(last_key_ms)

    def pauses_reads(self, now_ms: int) -> bool:  # noqa: ARG002
        """Never, as Pulsar's: reading on costs no memory that lasts."""
        return False

    # -- taking out -----------------------------------------------------------------------------

    def pop_due(self, now_ms: int, entries_max: int) -> list[Position]:
        """See `DelayedTracker.pop_due`. Does the work that is due, too."""
        positions = self._holdings.take_due(self._keys.cutoff(now_ms), entries_max)
        if positions and self._recovering.is_on:
            self._recovering.settle(positions)
        self._advance(now_ms)
        return positions

    def discard(self, position: Position) -> bool:
        ledger_id, entry_id = position
        if self._recovering.is_on and entry_id >= 0:
            self._recovering.settle((position,))
        if not self._holdings.discard(ledger_id, entry_id):
            return False
        self._advance(self._now_ms)
        return True

    def discard_many(self, ledger_id: int, entries: BitMap) -> int:
        """As `discard`, for entries of one ledger. Returns how many were tracked."""
        if self._recovering.is_on:
            self._recovering.settle_many(ledger_id, entries)
        gone = self._holdings.discard_many(ledger_id, entries)
        if gone:
            self._advance(self._now_ms)
        return len(gone)

    def forget_through(self, mark_delete: Position) -> int:
        count = self._holdings.forget_through(mark_delete)
        if self._recovering.is_on:
            for bucket in self._recovering.forget_through(mark_delete):
                self._end(bucket)
        self._advance(self._now_ms)
        return count

    def clear(self) -> None:
        """Forget everything, the buckets in storage too. See `DelayedTracker.clear`."""
        merged = self._merging.clear()
        if merged is not None:
            self._keeper.give_up(merged)
        for bucket in self._holdings.buckets.values():
            bucket.move_to(BucketState.GONE)
            bucket.is_loading = bucket.is_merging = False
            if bucket.snapshot_id is not None:
                self._keeper.give_up(bucket.snapshot_id)
        self._holdings.clear()
        self._storing.clear()
        self._loading.clear()
        self._recovering.clear()
        self._advance(self._now_ms)

    # -- work -----------------------------------------------------------------------------------

    def _advance(self, now_ms: int) -> None:
        """Do what is to be done by now. The keeper last: it sends what the others decided."""
        self._now_ms = max(now_ms, self._now_ms)
        for retry in self._book.retries.due(now_ms):
            retry(now_ms)
        age_deadline_ms = self._age_deadline_ms
        if age_deadline_ms is not None and age_deadline_ms <= now_ms:
            self._seal()
        for bucket in (*self._recovering.advance(now_ms), *self._storing.advance(now_ms)):
            self._loading.offer(bucket)
            self._merging.is_stale = True
        merged = self._merging.advance(now_ms)
        if merged is not None:
            self._loading.offer(merged)
        self._loading.advance(now_ms)
        self._end_empty()
        self._keeper.advance(now_ms)

    def _end_empty(self) -> None:
        """End the buckets whose snapshots hold nothing that is wanted."""
        shrunk = self._holdings.shrunk
        if not shrunk:
            return
        for bucket in sorted(shrunk, key=lambda bucket: bucket.number):
            if (
                bucket.state is BucketState.STORED
                and not bucket.unloaded.entry_count
                and not bucket.is_merging
            ):
                self._end(bucket)
        shrunk.clear()

    def _end(self, bucket: SealedBucket) -> None:
        """End a stored or unread bucket: remove it from the registry, and delete its snapshot."""
        was_unread = bucket.state is BucketState.UNREAD
        bucket.move_to(BucketState.GONE)
        bucket.is_loading = bucket.is_merging = False
        assert bucket.snapshot_id is not None
        self._keeper.give_up(bucket.snapshot_id)
        self._holdings.drop(bucket)
        self._merging.is_stale = True
        if was_unread:
            self._recovering.gone()

    def _lose(self, bucket: SealedBucket) -> None:
        """Give up a bucket whose snapshot cannot be read.

        What only it had is read from the topic.
        """
        self._buckets_lost += 1
        self._entries_lost += self._holdings.lose(bucket)
        self._end(bucket)

    # -- the rest -------------------------------------------------------------------------------

    def configure(self, settings: DelaySettings) -> None:
        """See `DelayedTracker.configure`: a new tick."""
        self._keys.set_tick(settings.tick_ms)

    def statistics(self) -> BucketStatistics:
        """Current counts and states, frozen. O(buckets)."""
        holdings, keeper = self._holdings, self._keeper
        buckets = list(holdings.buckets.values())
        states = [bucket.state for bucket in buckets]
        stored = states.count(BucketState.STORED)
        unread = states.count(BucketState.UNREAD)
        attempts_max = self._settings.attempts_max
        failing = sum(
            bucket.attempts >= attempts_max
            for bucket in buckets
            if bucket.state in {BucketState.WAITING, BucketState.STORING}
        )
        blocked = sum(
            bucket.attempts > 0 for bucket in buckets if bucket.state is BucketState.STORED
        )
        next_keys_ms = [holdings.next_key_ms, *(bucket.next_load_key_ms for bucket in buckets)]
        next_key_ms = min((key for key in next_keys_ms if key is not None), default=None)
        return BucketStatistics(
            entries=self.entry_count,
            byte_estimate=self.byte_estimate,
            buckets=len(buckets) + 1,
            buckets_unread=unread,
            buckets_storing=len(buckets) - stored - unread,
            buckets_failing=failing,
            buckets_blocked=blocked,
            buckets_merging=self._merging.source_count,
            loaded_entries=holdings.memory_entries,
            mutable_entries=len(holdings.mutable),
            snapshot_bytes=sum(bucket.bytes_stored for bucket in buckets),
            snapshots_to_delete=keeper.garbage_count,
            deletes_given_up=keeper.given_up,
            next_due_ms=None if next_key_ms is None else self._keys.deadline_ms(next_key_ms),
            buckets_lost=self._buckets_lost,
            entries_lost=self._entries_lost,
            registry_failures=keeper.failures,
            degraded=_degraded(failing, blocked, keeper.failures, attempts_max),
            operations={
                operation: counter.statistics()
                for operation, counter in self._book.counters.items()
            },
        )

    def check(self) -> None:
        self._holdings.check()
        self._keeper.check()
        self._loading.check()
        self._recovering.check()


def _degraded(failing: int, blocked: int, registry: int, attempts_max: int) -> tuple[str, ...]:
    reasons: Mapping[str, bool] = {
        f"{failing} buckets cannot be stored and stay in memory": failing > 0,
        f"{blocked} buckets wait for segments that cannot be loaded": blocked > 0,
        f"the registry could not be changed {registry} times in a row": registry >= attempts_max,
    }
    return tuple(reason for reason, holds in reasons.items() if holds)
