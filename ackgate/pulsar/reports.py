"""A topic's subscriptions, reported: as persisted, what a restart would deliver again, and the broker's side.

Edge, over `PulsarCluster`. What cannot be read of one subscription does not hide the others.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from ackgate.cursor import Position
from ackgate.errors import AckGateError, NoSuchLedgerError, StorageError
from ackgate.pulsar.restarts import PersistCaps, gate_outlook, kept_by, missing_on_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyroaring import BitMap

    from ackgate.persistence.ports import LedgerMetadata
    from ackgate.pulsar.admin import LiveCursor, LiveTopic
    from ackgate.pulsar.cluster import PulsarCluster
    from ackgate.pulsar.nodes import PulsarTopic
    from ackgate.pulsar.policies import PulsarPolicies
    from ackgate.pulsar.restarts import GateOutlook
    from ackgate.pulsar.views import BucketView, CursorView, TopicLook, TopicView

_LOOKS_MAX: Final = 5
"""How often a topic is looked at while its ledgers are deleted."""


@dataclass(frozen=True, slots=True)
class SubscriptionReport:
    """A subscription as persisted, what a restart would deliver again, and its broker's side."""

    cursor: CursorView
    outlook: GateOutlook
    """The gate's outlook: of the live state, where the broker was asked."""
    is_at_cap: bool
    """As much is persisted as the caps allow: further acks may be in memory only."""
    buckets: tuple[BucketView, ...]
    """Buckets of delayed messages."""
    live: LiveCursor | None = None
    """None: the broker was not asked, or does not have the cursor."""
    after_crash: Mapping[int, BitMap] | None = None
    """Entries acked in the broker's memory that a crash now would deliver again, by message ledger.
    Acks within batches are not among them: the admin interface does not show these. None: not asked."""
    after_close: Mapping[int, BitMap] | None = None
    """Those that come again after an orderly shutdown: they are beyond the cap."""
    troubles: tuple[str, ...] = ()
    """What could not be read."""

    @property
    def crash_entries(self) -> int | None:
        return None if self.after_crash is None else sum(map(len, self.after_crash.values()))

    @property
    def close_entries(self) -> int | None:
        return None if self.after_close is None else sum(map(len, self.after_close.values()))

    @property
    def batches_again(self) -> int:
        """Partly acked batches in the node: brokers up to 4.2 write them there and never read them."""
        return len(self.cursor.acks.unacked_indexes) if self.cursor.source == "node" else 0


@dataclass(frozen=True, slots=True)
class TopicReport:
    """A topic, or a partition, with a report on each of its subscriptions."""

    view: TopicView
    subscriptions: tuple[SubscriptionReport, ...]
    failures: Mapping[str, AckGateError]
    """Subscriptions that cannot be read, and why."""
    taken_ms: int
    caps: PersistCaps
    policies: PulsarPolicies | None = None
    """None: not read."""

    def beside(self, live: LiveTopic) -> TopicReport:
        """Add what the topic's broker has in memory. Returns a new report."""
        counts = dict(sorted({**self.view.entry_counts, **live.entry_counts}.items()))
        return replace(
            self,
            subscriptions=tuple(
                self._beside(each, live.cursors[each.cursor.subscription], counts)
                if each.cursor.subscription in live.cursors
                else each
                for each in self.subscriptions
            ),
        )

    def _beside(
        self, report: SubscriptionReport, live: LiveCursor, counts: Mapping[int, int]
    ) -> SubscriptionReport:
        return replace(
            report,
            live=live,
            outlook=_outlook(report.cursor, live.range_count, self.caps, self.taken_ms),
            after_crash=missing_on_disk(report.cursor.acks, live, counts),
            after_close=kept_by(live.acked, self.caps).dropped,
        )


async def report_topic(
    cluster: PulsarCluster,
    topic: PulsarTopic,
    *,
    subscriptions: Sequence[str] | None = None,
    caps: PersistCaps | None = None,
    policies: PulsarPolicies | None = None,
) -> TopicReport:
    """All subscriptions of the topic, or these.

    `caps`: the broker's; default: those of 4.0. `policies`: to be reported, too. Raises
    `CallerError`, `CorruptRecordError`, `StorageError` where nothing of the topic can be read.
    """
    caps = caps or PersistCaps()
    view, cursors, failures = await cluster.look(topic, subscriptions)
    now_ms = time.time_ns() // 1_000_000
    reports = [await _report(cluster, cursor, caps, now_ms) for cursor in cursors]
    return TopicReport(view, tuple(reports), failures, now_ms, caps, policies)


async def _report(
    cluster: PulsarCluster, cursor: CursorView, caps: PersistCaps, now_ms: int
) -> SubscriptionReport:
    acks = cursor.acks
    buckets, troubles = [], []
    for place in cursor.buckets:
        try:
            buckets.append(await cluster.bucket(place))
        except AckGateError as error:
            troubles.append(f"bucket {place.snapshot_ledger_id}: {error}")
    kept = acks.acked_count if acks.is_words else acks.ranges_stored
    return SubscriptionReport(
        cursor,
        _outlook(cursor, acks.range_count, caps, now_ms),
        is_at_cap=kept >= caps.ranges_max > 0
        or len(acks.unacked_indexes) >= caps.batch_indexes_max > 0,
        buckets=tuple(buckets),
        troubles=tuple(troubles),
    )


def _outlook(cursor: CursorView, ranges: int, caps: PersistCaps, now_ms: int) -> GateOutlook:
    earlier = None
    if cursor.begun_ms is not None and cursor.ranges_then is not None:
        earlier = cursor.begun_ms, cursor.ranges_then
    return gate_outlook(ranges, caps.ranges_max, earlier=earlier, now_ms=now_ms)


# ------------------------------------------------------------------------------------- a topic's ledgers


@dataclass(frozen=True, slots=True)
class TopicLedger:
    """A ledger that a topic or one of its cursors names."""

    ledger_id: int
    kind: Literal["messages", "cursor", "delayed"]
    subscription: str | None
    """Of a cursor, or of a bucket of delayed messages."""
    metadata: LedgerMetadata | None
    """None: BookKeeper does not have it."""
    entries: int | None
    """None: not known."""
    bytes: int | None
    closed_ms: int | None
    is_offloaded: bool = False
    """It lies in tiered storage, as well or only."""
    offload_driver: str | None = None
    """Of tiered storage, as the topic's node names it."""
    needed_by: tuple[str, ...] = ()
    """Of messages: subscriptions that have not acked all of it."""
    retained_until_ms: int | None = None
    """Of messages: when the topic's retention ends, or `FOREVER`. None: it has none, or none any more,
    or the ledger is open."""

    @property
    def is_missing(self) -> bool:
        """It is named, and nowhere: what it held is lost."""
        return self.metadata is None and not self.is_offloaded


async def topic_ledgers(
    cluster: PulsarCluster,
    topic: PulsarTopic,
    policies: PulsarPolicies | None = None,
    *,
    failed: Callable[[str, AckGateError], None] | None = None,
) -> list[TopicLedger]:
    """Ledgers of the topic's messages, of its cursors and of buckets of delayed messages, in this order.

    `policies`: those in force, for `retained_until_ms`. `failed`: takes each subscription that cannot be
    read, and why; its ledgers are not among the rows. Raises `CallerError`, `CorruptRecordError`,
    `StorageError`.
    """
    look = await cluster.look(topic)
    for _ in range(_LOOKS_MAX):
        rows = await _rows(cluster, look, policies)
        missing = {row.ledger_id for row in rows if row.is_missing}
        if not missing:
            break
        # A broker deletes a ledger after it was taken out of the node: it may have been named before.
        look = await cluster.look(topic)
        if missing <= look.ledger_ids:
            break
    if failed is not None:
        for name, error in look.failures.items():
            failed(name, error)
    return rows


async def _rows(
    cluster: PulsarCluster, look: TopicLook, policies: PulsarPolicies | None
) -> list[TopicLedger]:
    view, cursors, failures = look
    rows = []
    bytes_after = view.bytes
    for stored in view.node.ledgers:
        metadata = await _metadata(cluster, stored.ledger_id)
        is_open = stored.entries is None
        after = Position(stored.ledger_id, view.entry_counts[stored.ledger_id] - 1)
        needed = tuple(c.subscription for c in cursors if c.acks.mark_delete < after)
        bytes_after -= stored.bytes or 0
        until = None
        if policies is not None and not is_open:
            until = policies.retention.value.until_ms(stored.closed_ms, bytes_after)
        rows.append(
            TopicLedger(
                stored.ledger_id,
                "messages",
                None,
                metadata,
                view.entry_counts[stored.ledger_id],
                view.open_bytes if is_open else stored.bytes,
                None if is_open else stored.closed_ms,
                stored.is_offloaded,
                stored.offload_driver,
                (*needed, *failures),
                until,
            )
        )
    for cursor in cursors:
        name = cursor.subscription
        if cursor.cursor_ledger_id is not None:
            rows.append(await _named(cluster, cursor.cursor_ledger_id, "cursor", name))
        ids = [place.snapshot_ledger_id for place in cursor.buckets]
        rows += [await _named(cluster, ledger_id, "delayed", name) for ledger_id in ids]
    return rows


async def _named(
    cluster: PulsarCluster, ledger_id: int, kind: Literal["cursor", "delayed"], subscription: str
) -> TopicLedger:
    metadata = await _metadata(cluster, ledger_id)
    entries = size = None
    if metadata is not None:
        with contextlib.suppress(StorageError, NoSuchLedgerError):
            entries, size = await cluster.extent(ledger_id)
    return TopicLedger(ledger_id, kind, subscription, metadata, entries, size, None)


async def _metadata(cluster: PulsarCluster, ledger_id: int) -> LedgerMetadata | None:
    client = await cluster.bookies()
    try:
        return await client.metadata(ledger_id)
    except NoSuchLedgerError:
        return None
