"""Makes the tracker of delayed entries that a subscription needs, and runs it with its storage.

Edge: where a tracker meets storage. ::

    settings: in memory ------------------------------> time buckets; snapshots left over are deleted
    settings: buckets --- registry can be read -------> buckets; recovery goes on in the background
                    `--- it cannot -------------------> time buckets, and the reason in log and stats

A bucket tracker whose storage fails stays what it is: what cannot be stored stays in memory, and
its statistics say so. The registry is the cursor's node, which was read when the cursor was opened.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol
from zlib import crc32

from ackgate.broker.cluster import BrokerServices
from ackgate.broker.delayed.tracker_status import DelayStatus, TrackerStep
from ackgate.broker.wire import PersistenceFailedError
from ackgate.config.delayed import BUCKET_FACTORY
from ackgate.cursor import BucketRecord
from ackgate.dispatcher.buckets import BucketTracker, bucket_settings
from ackgate.dispatcher.delayed import TimeBucketTracker
from ackgate.embedded.bucket_storage import BucketStorage, delete_snapshots
from ackgate.errors import AckGateError, CorruptRecordError
from ackgate.persistence.buckets.registry import BUCKET_PREFIX, registered_buckets, snapshot_ids
from ackgate.persistence.buckets.snapshots import BucketSnapshots

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyroaring import BitMap

    from ackgate.config.delayed import DelayedSettings
    from ackgate.cursor import Position
    from ackgate.dispatcher.buckets import BucketStatistics
    from ackgate.dispatcher.delayed import DelayedTracker, DelaySettings
    from ackgate.dispatcher.timing import Timer
    from ackgate.embedded.bucket_storage import StorageLanes
    from ackgate.persistence.cursors.store import CursorStore

log = logging.getLogger(__name__)

CLEAR_SECONDS_MAX: Final = 30.0
"""How long clearing waits for the last snapshot to be deleted."""

SEAL_MS_MAX: Final = 5_000
"""How long closing may take to build the snapshots that it stores."""


class Deadlines(Protocol):
    """Calls back at a deadline: in a broker, `Waits`."""

    def wake_in(self, delay_ms: int, wake: Callable[[], None]) -> Timer:
        """Call `wake` after `delay_ms`, not sooner."""

    def cancel(self, timer: Timer) -> None:
        """Drop a call that was not made yet."""


class TrackerServices(BrokerServices, Protocol):
    """What trackers need of their broker."""

    @property
    def delayed_lanes(self) -> StorageLanes:
        """Limits the storage work of all trackers together."""

    @property
    def waits(self) -> Deadlines:
        """Calls a tracker back when it has work to do."""


class AckedEntries(Protocol):
    """The acked entries, which a recovered index leaves out."""

    @property
    def mark_delete(self) -> Position:
        """Every entry up to here is acked."""

    def acked_entries(self, ledger_id: int) -> BitMap | None:
        """Further acked entries of a ledger."""


class TrackerHome:
    """One cursor's tracker, with its storage if it has one.

    Call `pump` after each call of the tracker, and `close`, `abandon` or `delete` at the end.
    """

    def __init__(
        self,
        services: TrackerServices,
        path: str,
        cursor: AckedEntries,
        store: CursorStore | None,
        *,
        on_change: Callable[[], None],
        on_lost: Callable[[Mapping[int, BitMap]], None],
    ) -> None:
        """`on_change`: called when more may be due.

        `on_lost`: gets entries to read and add again.
        """
        self.status = DelayStatus()
        self._services = services
        self._path = path
        self._cursor = cursor
        self._store = store
        self._on_change = on_change
        self._on_lost = on_lost
        self._tracker: BucketTracker | None = None
        self._storage: BucketStorage | None = None
        self._cleaning: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._timer_ms: int | None = None
        self._answered: asyncio.Event | None = None
        """Made by a caller that waits for the tracker's next storage outcome."""
        self._is_over = False

    # ------------------------------------------------------------------------- life

    @property
    def remembers(self) -> bool:
        """Whether an earlier owner registered snapshots. Then make the tracker at once."""
        store = self._store
        return store is not None and any(
            key.startswith(BUCKET_PREFIX) for key in store.internal_properties
        )

    def make(self, delays: DelaySettings) -> DelayedTracker:
        """Make the tracker that the settings ask for, or the next best."""
        settings = self._services.settings.delayed
        if settings.delayed_delivery_tracker_factory_class_name != BUCKET_FACTORY:
            self._report(TrackerStep.TIME_BUCKETS)
            self.clean()
            return TimeBucketTracker(delays)
        if self._store is None:
            self._degrade(f"{self._path} is not durable")
            return TimeBucketTracker(delays)
        try:
            records = registered_buckets(self._store.internal_properties)
        except CorruptRecordError as error:
            self._degrade(f"its registry cannot be read: {error}")
            return TimeBucketTracker(delays)
        return self._make_buckets(
            self._store, delays, settings, [BucketRecord(*bucket) for bucket in records]
        )

    def _make_buckets(
        self,
        store: CursorStore,
        delays: DelaySettings,
        settings: DelayedSettings,
        records: list[BucketRecord],
    ) -> BucketTracker:
        services, cursor = self._services, self._cursor
        tracker = BucketTracker(delays, bucket_settings(settings), seed=crc32(self._path.encode()))
        self._tracker = tracker
        self._storage = BucketStorage(
            tracker,
            self._snapshots(),
            store,
            services.delayed_lanes,
            clock_ms=services.clock_ms,
            on_answer=self._on_answer,
        )
        self._report(TrackerStep.BUCKETS)
        if records:
            tracker.recover(records, services.clock_ms(), cursor.acked_entries)
            tracker.forget_through(cursor.mark_delete)
        self.pump()
        return tracker

    def clean(self) -> None:
        """Start deleting snapshots that an earlier setting left, if no tracker uses them."""
        if self.remembers and (self._cleaning is None or self._cleaning.done()):
            self._cleaning = asyncio.get_running_loop().create_task(self._clean())

    def pump(self) -> None:
        """Do the tracker's own work that is due, and start the storage work it asks for. Cheap."""
        tracker, storage = self._tracker, self._storage
        if tracker is None or storage is None:
            return
        now_ms = self._services.clock_ms()
        deadline_ms = tracker.next_deadline_ms
        if deadline_ms is not None and deadline_ms <= now_ms:
            tracker.pop_due(now_ms, 0)
        storage.pump()
        lost = tracker.take_lost()
        if lost:
            self._on_lost(lost)
        self._look_again()

    async def until_cleared(self) -> None:
        """Wait until a tracker that was cleared has nothing stored any more.

        Also deletes buckets that an earlier setting left. Raises `PersistenceFailedError` if not
        all could be deleted in time; they are deleted later.
        """
        self.pump()
        try:
            async with asyncio.timeout(CLEAR_SECONDS_MAX):
                while self._tracker is not None and self._tracker.statistics().snapshots_to_delete:
                    answered = self._answered = self._answered or asyncio.Event()
                    answered.clear()
                    await answered.wait()
        except TimeoutError:
            raise PersistenceFailedError(
                f"{self._path}: the index is cleared; its snapshots are not all deleted yet"
            ) from None
        if self._storage is None and self.remembers:
            self.clean()
            if self._cleaning is not None:
                await asyncio.wait([self._cleaning])
            if self.remembers:
                raise PersistenceFailedError(f"{self._path}: snapshots are still registered")

    def _on_answer(self) -> None:
        """Handle an outcome that the storage gave the tracker."""
        if self._answered is not None:
            self._answered.set()
        self.pump()
        self._on_change()

    def _look_again(self) -> None:
        """Set a timer for the tracker's next work: dispatch rounds come only with consumers."""
        work_ms = None if self._tracker is None or self._is_over else self._tracker.next_work_ms
        if work_ms == self._timer_ms:
            return
        self._stop_timer()
        self._timer_ms = work_ms
        if work_ms is not None:
            wait_ms = work_ms - self._services.clock_ms()
            self._timer = self._services.waits.wake_in(wait_ms, self._work)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._services.waits.cancel(self._timer)
            self._timer = None

    def _work(self) -> None:
        self._timer = self._timer_ms = None
        self.pump()

    async def close(self, *, is_kept: bool = True) -> None:
        """Store what is in memory, if `is_kept`, and finish storage work, within some seconds."""
        if self._tracker is not None and is_kept and not self._is_over:
            await self._store_what_is_in_memory(self._tracker)
        self._end()
        if self._cleaning is not None:
            await asyncio.wait([self._cleaning])
        if self._storage is not None:
            await self._storage.close()

    async def _store_what_is_in_memory(self, tracker: BucketTracker) -> None:
        """Have the tracker build snapshots of what is in memory.

        Closing the storage finishes them.
        """
        clock_ms = self._services.clock_ms
        until_ms = clock_ms() + SEAL_MS_MAX
        tracker.seal(clock_ms())
        self.pump()
        while clock_ms() < until_ms:
            work_ms = tracker.next_work_ms
            if work_ms is None or work_ms > clock_ms() + 1:  # the next piece is ready at once
                break
            await asyncio.sleep(0.001)
            self.pump()

    def abandon(self) -> None:
        """Stop writing at once: the cursor may have another owner."""
        self._end()
        if self._cleaning is not None:
            self._cleaning.cancel()
        if self._storage is not None:
            self._storage.abandon()

    async def delete(self) -> None:
        """Delete all snapshots, read or not: the cursor's node is gone. Call it after `close`."""
        if self._storage is not None:
            await self._storage.delete_all()
        elif self._store is not None:
            ids = snapshot_ids(self._store.internal_properties)
            await delete_snapshots(self._snapshots(), ids)

    def _end(self) -> None:
        self._is_over = True
        self._stop_timer()

    # ------------------------------------------------------------------- the rest

    def statistics(self) -> BucketStatistics | None:
        """Statistics of a bucket tracker; None without one."""
        return None if self._tracker is None else self._tracker.statistics()

    def _snapshots(self) -> BucketSnapshots:
        services = self._services
        return BucketSnapshots(services.ledger_client, self._path, services.settings.persistence)

    async def _clean(self) -> None:
        """Remove the snapshots of an earlier setting from the registry, and delete them."""
        store = self._store
        assert store is not None
        ids = snapshot_ids(store.internal_properties)
        try:
            await store.change_internal_properties(_without_buckets)
        except AckGateError as error:
            log.warning("%s: snapshots of delayed messages are left over: %s", self._path, error)
            return
        log.info("%s: %d snapshots of delayed messages are deleted", self._path, len(ids))
        await delete_snapshots(self._snapshots(), ids)

    def _report(self, step: TrackerStep) -> None:
        self.status = DelayStatus(step, step, "", self._services.clock_ms())

    def _degrade(self, why: str) -> None:
        log.warning("%s: delayed messages are tracked in memory only: %s", self._path, why)
        self.status = DelayStatus(
            TrackerStep.TIME_BUCKETS, TrackerStep.BUCKETS, why, self._services.clock_ms()
        )


def _without_buckets(properties: Mapping[str, str]) -> dict[str, str]:
    return {k: value for k, value in properties.items() if not k.startswith(BUCKET_PREFIX)}
