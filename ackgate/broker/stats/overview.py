"""All subscriptions of a broker at a glance: what is wrong with each, and the worst first.

Edge only in that it looks at live objects. A row costs a few looks, so that 20,000 of them can be taken
while the broker serves; sentences, histories and holders are made for the rows of one page only::

    topics --> rows (at most one snapshot in `SNAPSHOT_MS_MIN`) --> matching, sorted --> one page --> why
"""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from weakref import ref

from ackgate.broker.stats.ack_state import seconds_until_used_up
from ackgate.broker.stats.glance import OverviewRow, Severity, judged, why
from ackgate.broker.stats.holes import oldest_holes
from ackgate.broker.stats.take import TYPE_NAMES
from ackgate.described import statistic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ackgate.broker.stats.sampler import StatsSampler
    from ackgate.broker.topic import SubscriptionDriver, Topic
    from ackgate.dispatcher import PauseReason

PAGE_ROWS_MAX: Final = 200
"""Rows of one page."""

SNAPSHOT_MS_MIN: Final = 1_000
"""Shortest time for which a snapshot is used again, however many pages are open."""

SNAPSHOT_SHARE: Final = 20
"""A snapshot is used for so many times the time that it took. So they cost a twentieth of a
core."""

SNAPSHOT_MS_MAX: Final = 10_000

WAIT_MS_MAX: Final = 100
"""Where taking a snapshot takes longer, nobody waits for the next one: the last is shown meanwhile."""

SNAPSHOT_KEPT_SECONDS: Final = 60.0
"""After this time without a new snapshot the last one is dropped."""

ROWS_AT_ONCE: Final = 100
"""Rows taken, or compared, before other tasks get their turn."""

_NO_REASONS: Final[Mapping[PauseReason, int]] = {}

_RANKS: Final = {severity: rank for rank, severity in enumerate(Severity)}


def overview_row(
    subscription: SubscriptionDriver, sampler: StatsSampler, now_ms: int
) -> OverviewRow:
    """Make the row of one subscription. O(consumers)."""
    core, cursor, store = subscription.core, subscription.cursor, subscription.store
    gate, counts = core.gate, core.counts
    dispatching = core.dispatching if subscription.consumers else None
    seen = () if dispatching is None else dispatching.consumers
    tracker, held_nacks = core.tracker, core.held_nacks
    delayed = 0 if tracker is None else tracker.entry_count
    nacks = 0 if held_nacks is None else held_nacks.entry_count
    backlog = cursor.backlog_entries
    unacked = 0 if dispatching is None else dispatching.unacked_messages
    undelivered = backlog - delayed - nacks
    if dispatching is not None and dispatching.active_consumer is not None:
        # Exclusive and Failover do not record what they sent: it is what was read.
        undelivered = cursor.statistics().unread_entries
        unacked = backlog - undelivered
    elif dispatching is not None:
        undelivered -= dispatching.in_flight_entries
    outcome = None if store is None else store.outcome
    settings = gate.settings
    due_ms = None
    if delayed or nacks:
        due = [each.next_deadline_ms for each in (tracker, held_nacks) if each is not None]
        due_ms = min((at for at in due if at is not None), default=None)
    row = OverviewRow(
        topic=str(subscription.topic.name),
        subscription=subscription.name,
        severity=Severity.FINE,
        type=TYPE_NAMES[subscription.type],
        is_gate_enabled=settings.enabled,
        gate_reasons=_NO_REASONS if gate.is_open else dict(gate.reasons),
        shut_since_ms=gate.shut_since_ms,
        shuts_in_seconds=None,
        ranges=cursor.range_count,
        ranges_max=settings.ranges_max,
        backlog=backlog,
        undelivered=max(0, undelivered),
        unacked_messages=unacked,
        comes_again=0
        if outcome is None
        else outcome.entries_dropped + outcome.batch_indexes_dropped,
        is_on_fallback=store is not None and store.is_on_fallback,
        failing_since_ms=None if store is None else store.failing_since_ms,
        last_failure=None if store is None else store.last_failure,
        read_failure=subscription.runtime.why_unread or None,
        delayed=delayed,
        nacks=nacks,
        next_due_ms=due_ms,
        consumers=len(seen),
        consumers_with_room=sum(
            known.permits > 0
            and known.is_writable
            and known.is_active
            and not known.is_blocked_on_unacked_messages
            for known in seen
        ),
        is_blocked_on_unacked=bool(dispatching and dispatching.is_blocked_on_unacked_messages),
        last_sent_ms=counts.last_sent_ms,
        last_acked_ms=counts.last_acked_ms,
    )
    if row.ranges and settings.enabled and gate.is_open:
        headrooms = [(at, left.to_shut) for at, left in sampler.headrooms_kept(subscription)]
        row.shuts_in_seconds = seconds_until_used_up(headrooms)
    return judged(row, now_ms)


# ---- one page of them


class Order(enum.Enum):
    """The order of the rows."""

    WORST = "worst"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"
    RANGES = "ranges"
    BACKLOG = "backlog"
    UNACKED = "unacked"
    AGAIN = "again"
    DELAYED = "delayed"
    SHUTS_IN = "shuts-in"
    CONSUMERS = "consumers"


def _worst(row: OverviewRow) -> tuple[object, ...]:
    return _RANKS[row.severity], -row.fill, -row.ranges, -(row.backlog or 0)


_KEYS: Final[Mapping[Order, Callable[[OverviewRow], tuple[object, ...]]]] = {
    Order.WORST: _worst,
    Order.TOPIC: lambda _: (),
    Order.SUBSCRIPTION: lambda row: (row.subscription,),
    Order.RANGES: lambda row: (-row.fill, -row.ranges),
    Order.BACKLOG: lambda row: (-(row.backlog or 0),),
    Order.UNACKED: lambda row: (-(row.unacked_messages or 0),),
    Order.AGAIN: lambda row: (-row.comes_again,),
    Order.DELAYED: lambda row: (-(row.delayed or 0) - (row.nacks or 0),),
    Order.SHUTS_IN: lambda row: (
        row.shuts_in_seconds is None and not row.gate_reasons,
        row.shuts_in_seconds or 0.0,
    ),
    Order.CONSUMERS: lambda row: (-(row.consumers or 0),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewQuery:
    """Which rows to return, in which order."""

    text: str = ""
    """Text to look for in the names of topic and subscription, ignoring case."""
    severities: frozenset[Severity] = frozenset(Severity)
    order: Order = Order.WORST
    is_reversed: bool = False
    offset: int = 0
    rows_max: int = 50

    @property
    def parameters(self) -> dict[str, object]:
        """The query of the URL that asks a broker for these rows."""
        return {
            "text": self.text,
            "state": ",".join(sorted(severity.value for severity in self.severities)),
            "order": self.order.value,
            "reversed": str(self.is_reversed).lower(),
            "offset": self.offset,
            "rows": self.rows_max,
        }


@dataclass(frozen=True, slots=True)
class OverviewAnswer:
    """One page of the rows that match a query, with totals over all pages."""

    source: str = statistic("The broker's address, or the data directory")
    is_live: bool = statistic("False: as persisted; a running broker may know more")
    taken_ms: int = statistic("When it was taken", "ms since 1970")
    total: int = statistic("Subscriptions of all loaded topics that the client may look at")
    matching: int = statistic("Of these, the ones that match the query")
    severities: Mapping[str, int] = statistic("How many of all are how bad")
    offset: int = statistic("Place of the first row among the matching")
    rows: tuple[OverviewRow, ...] = statistic("The rows of this page")
    missing: tuple[str, ...] = statistic(
        "Brokers, or topics of files, whose subscriptions are not in it, and why", default=()
    )


class RowsFound(NamedTuple):
    """The rows of one page, and how many rows match the query."""

    rows: list[OverviewRow]
    matching: int


def page_of_rows(rows: Sequence[OverviewRow], query: OverviewQuery) -> RowsFound:
    """Filter, sort and cut rows. Pure. `rows`: in the order of topic and subscription."""
    text, severities = query.text.casefold(), query.severities
    found = list(rows)
    if len(severities) < len(Severity):
        found = [row for row in found if row.severity in severities]
    if text:
        found = [
            row
            for row in found
            if text in row.topic.casefold() or text in row.subscription.casefold()
        ]
    if query.order is not Order.TOPIC:
        found.sort(key=_KEYS[query.order])
    if query.is_reversed:
        found.reverse()
    return RowsFound(found[query.offset : query.offset + query.rows_max], len(found))


def counted_severities(rows: Iterable[OverviewRow]) -> dict[str, int]:
    """Number of rows for each severity, the worst first."""
    counted = Counter(row.severity.value for row in rows)
    return {severity.value: counted[severity.value] for severity in Severity}


def merged(
    answers: Sequence[OverviewAnswer | str], query: OverviewQuery, source: str
) -> OverviewAnswer:
    """Merge the first rows of several brokers into one page. Pure.

    An answer that is a text says why a broker did not answer.
    """
    given = [answer for answer in answers if isinstance(answer, OverviewAnswer)]
    rows = sorted((row for answer in given for row in answer.rows), key=_by_name)
    severities: Counter[str] = Counter()
    for answer in given:
        severities.update(answer.severities)
    return OverviewAnswer(
        source=source,
        is_live=True,
        taken_ms=max(answer.taken_ms for answer in given),
        total=sum(answer.total for answer in given),
        matching=sum(answer.matching for answer in given),
        severities={severity.value: severities[severity.value] for severity in Severity},
        offset=query.offset,
        rows=tuple(page_of_rows(rows, query).rows),
        missing=tuple(answer for answer in answers if isinstance(answer, str)),
    )


def _by_name(row: OverviewRow) -> tuple[str, str]:
    return row.topic, row.subscription


Drivers: TypeAlias = "dict[tuple[str, str], ref[SubscriptionDriver]]"


class _Snapshot(NamedTuple):
    rows: list[OverviewRow]
    severities: dict[str, int]
    drivers: Drivers
    taken_ms: int
    took_ms: int

    @property
    def good_until_ms(self) -> int:
        """Until then no other is taken."""
        good_ms = SNAPSHOT_SHARE * self.took_ms
        return self.taken_ms + min(max(good_ms, SNAPSHOT_MS_MIN), SNAPSHOT_MS_MAX)


@dataclass(slots=True)
class Overview:
    """The rows of one broker, taken when somebody asks, and shared by all who do."""

    topics: Iterable[Topic]
    sampler: StatsSampler
    clock_ms: Callable[[], int]
    _snapshot: _Snapshot | None = None
    _taking: asyncio.Task[_Snapshot] | None = None
    _forgetting: asyncio.TimerHandle | None = None
    _sorting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def page(
        self,
        query: OverviewQuery,
        source: str,
        is_visible: Callable[[SubscriptionDriver], bool] | None = None,
    ) -> OverviewAnswer:
        """One page of this broker's rows.

        `source`: this broker's address. `is_visible`: subscriptions to show and count; None: all.
        """
        snapshot = await self._current()
        all_rows, severities = snapshot.rows, snapshot.severities
        if is_visible is not None:
            all_rows = await self._visible(snapshot, is_visible)
            severities = counted_severities(all_rows)
        async with self._sorting:  # one at a time: each takes the loop for some milliseconds
            found = page_of_rows(all_rows, query)
            await asyncio.sleep(0)
        rows = []
        for row in found.rows:
            driver = snapshot.drivers[row.topic, row.subscription]()
            rows.append(row if driver is None else self.explained(row, driver, snapshot.taken_ms))
        return OverviewAnswer(
            source=source,
            is_live=True,
            taken_ms=snapshot.taken_ms,
            total=len(all_rows),
            matching=found.matching,
            severities=severities,
            offset=query.offset,
            rows=tuple(rows),
        )

    async def _visible(
        self, snapshot: _Snapshot, is_visible: Callable[[SubscriptionDriver], bool]
    ) -> list[OverviewRow]:
        """The rows of the snapshot that may be shown; none for a subscription that is gone."""
        found: list[OverviewRow] = []
        for looked_at, row in enumerate(snapshot.rows, start=1):
            driver = snapshot.drivers[row.topic, row.subscription]()
            if driver is not None and is_visible(driver):
                found.append(row)
            if looked_at % ROWS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return found

    def explained(
        self, row: OverviewRow, subscription: SubscriptionDriver, taken_ms: int
    ) -> OverviewRow:
        """The row with its sentences and its history filled in. `taken_ms`: when it was taken."""
        oldest = oldest_holes(subscription, self.sampler, 1) if row.backlog else ()
        return replace(
            row,
            why=why(row, oldest[0] if oldest else None, taken_ms),
            ranges_history=self.sampler.ranges_history(subscription),
        )

    async def _current(self) -> _Snapshot:
        snapshot, now_ms = self._snapshot, self.clock_ms()
        if snapshot is not None and now_ms < snapshot.good_until_ms:
            return snapshot
        if self._taking is None:
            self._taking = asyncio.create_task(self._take())
        if (
            snapshot is not None
            and snapshot.took_ms > WAIT_MS_MAX
            and now_ms < snapshot.good_until_ms + SNAPSHOT_MS_MAX
        ):
            return snapshot
        return await asyncio.shield(self._taking)

    async def _take(self) -> _Snapshot:
        try:
            began_ms = self.clock_ms()
            rows: list[OverviewRow] = []
            drivers: Drivers = {}
            for topic in list(self.topics):
                for driver in list(topic.subscriptions.values()):
                    row = overview_row(driver, self.sampler, began_ms)
                    rows.append(row)
                    drivers[row.topic, row.subscription] = ref(driver)
                    if len(rows) % ROWS_AT_ONCE == 0:
                        await asyncio.sleep(0)
            taken_ms = self.clock_ms()
            rows.sort(key=_by_name)
            await asyncio.sleep(0)
            self._snapshot = _Snapshot(
                rows, counted_severities(rows), drivers, taken_ms, taken_ms - began_ms
            )
            self._forget_later()
            return self._snapshot
        finally:
            self._taking = None

    def _forget_later(self) -> None:
        if self._forgetting is not None:
            self._forgetting.cancel()
        loop = asyncio.get_running_loop()
        self._forgetting = loop.call_later(SNAPSHOT_KEPT_SECONDS, self.forget)

    def forget(self) -> None:
        self._snapshot = self._forgetting = None
