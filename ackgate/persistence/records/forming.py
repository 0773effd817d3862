"""The bytes of a cursor's next write: a snapshot or a delta of its present state.

Pure: state and times are arguments. `write_path` chooses the ledger, the node and the time, and handles
failures; the pipeline's ``what-if`` forms the records of recorded traffic with the same code. ::

    ledger open    next_record     a delta where one may follow, else a snapshot
    none, or full  first_record    a snapshot; and into the node what of it fits (`inline_state`)
    no ledger      for_node        a snapshot, cut to what fits into the node
    closing        whole_for_node  the same, if nothing must be left out

**Which record may follow.** A cursor ledger begins with a snapshot, then has deltas and now and then
another snapshot. The last append decides the next::

    snapshot  delta delta ... delta  snapshot  delta ...      so many deltas and bytes at most,
    |<--- at most N deltas, B bytes --->|                     each on top of the record before

After an append that began and did not end the tail is unknown, and no record links up with it. A ledger
holds one descent: after a reset the next record begins another ledger, whose node holds that record too,
or goes into the node alone. So the loss of one record never restores acks from before a reset. Only while
the metadata store cannot be reached does a reset go into the old ledger, as a snapshot with its own
descent.

**When nacks are included.** Negatively acked entries are written as one whole image that replaces the one
before: in every snapshot, and in a delta when there are new nacks and the pace allows it. The pace is a
share of the cap: an image as large as the cap once a second, one of a hundredth of it a hundred times. So
the cost of nacks is bounded, and a small image is durable as soon as an ack is::

    image    0.6 KB        0.6 KB            64 KB                         64 KB
    -----------|--10 ms------|------...--------|-----------1 s--------------|------>
    deltas  d d N d d d d d d N d d d        d d N d d d d d d d d d d d d d N
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ackgate.errors import NodeTooLargeError
from ackgate.persistence.records.chunks import CHUNK_OVERHEAD_BYTES, cut
from ackgate.persistence.records.codec import encode_record
from ackgate.persistence.records.limits import ledger_limits, node_limits, packing
from ackgate.persistence.records.planner import PersistPlan, plan_delta, plan_node, plan_snapshot
from ackgate.persistence.records.values import DeltaRecord

if TYPE_CHECKING:
    from ackgate.config.persistence import PersistenceSettings
    from ackgate.cursor import CursorSnapshot, ManagedCursor, NackImage
    from ackgate.persistence.records.envelope import Packing
    from ackgate.persistence.records.values import CursorRecord, SnapshotRecord

FULL_IMAGE_SECONDS: Final = 1.0
"""How long no other image of nacks follows one as large as the cap."""


class NodeShape(Protocol):
    """The cursor's node, as far as it decides what fits into it."""

    @property
    def owner_epoch(self) -> int: ...

    @property
    def bytes_max(self) -> int:
        """The store's own size guard."""
        ...

    def encode(
        self, *, cursor_ledger_id: int | None, state: bytes | None, packing: Packing
    ) -> bytes:
        """The node's value with this content."""
        ...


class FormedRecord(NamedTuple):
    """A record ready to be written."""

    plan: PersistPlan
    encoded: bytes


class FirstRecord(NamedTuple):
    """The record that begins a ledger, and the state that it was formed of."""

    formed: FormedRecord
    snapshot: CursorSnapshot
    nacks: NackImage | None
    now_ms: int


class RecordForming:
    """Forms the records of one cursor."""

    __slots__ = ("cursor", "nacks", "node", "settings")

    def __init__(
        self,
        cursor: ManagedCursor,
        nacks: NackWrites,
        node: NodeShape,
        settings: PersistenceSettings,
    ) -> None:
        self.cursor = cursor
        self.nacks = nacks
        self.node = node
        self.settings = settings

    # ------------------------------------------------------------------ for a ledger

    def next_record(self, chain: RecordChain, *, now: float, now_ms: int) -> FormedRecord:
        """A delta where one may follow in this ledger, else a snapshot."""
        if chain.takes_deltas(self.settings):
            growth = self.cursor.take_growth()
            if growth is not None:
                plan = plan_delta(
                    growth,
                    partly_acked_count=self.cursor.partly_acked_count,
                    limits=ledger_limits(self.settings),
                    owner_epoch=self.node.owner_epoch,
                    now_ms=now_ms,
                    nacks=self.nacks.if_due(now),
                    base_snapshot_version=chain.base_snapshot_version,
                )
                if plan is not None:
                    formed = self._form(plan)
                    if chain.takes_delta(growth.base_version, formed.encoded, self.settings):
                        return formed
        return self._whole(now_ms, chain.descends_from(self.cursor.grown_since)).formed

    def first_record(self, now_ms: int) -> FirstRecord:
        """The whole state, cut to the caps, which begins a descent."""
        return self._whole(now_ms, None)

    def _whole(self, now_ms: int, base_snapshot_version: int | None) -> FirstRecord:
        snapshot, nacks = self.cursor.take_snapshot(), self.nacks.image()
        plan = plan_snapshot(
            snapshot,
            limits=ledger_limits(self.settings),
            owner_epoch=self.node.owner_epoch,
            now_ms=now_ms,
            nacks=nacks,
            base_snapshot_version=base_snapshot_version,
        )
        return FirstRecord(self._form(plan), snapshot, nacks, now_ms)

    def inline_state(self, first: FirstRecord, ledger_id: int) -> bytes | None:
        """What of that state goes into a node that points at its ledger; None: nothing fits."""
        limits = node_limits(self.settings)
        snapshot, encoded = first.snapshot, first.formed.encoded
        whole_fits = (
            snapshot.range_count <= limits.ranges_max
            and len(snapshot.unacked_indexes) <= limits.batch_indexes_max
            and self._node_bytes(encoded, ledger_id) <= self._node_bytes_max()
        )
        if whole_fits:
            return encoded
        try:
            return self._for_node(snapshot, first.nacks, ledger_id, first.now_ms).encoded
        except NodeTooLargeError:
            return None

    # -------------------------------------------------------------------- for the node

    def for_node(self, now_ms: int) -> FormedRecord:
        """The state, cut to what fits into a node that names no ledger.

        Raises `NodeTooLargeError` when not even the mark-delete fits.
        """
        return self._for_node(self.cursor.take_snapshot(), self.nacks.image(), None, now_ms)

    def whole_for_node(self, now_ms: int) -> FormedRecord | None:
        """The whole state for a node that names no ledger; None when it is too large for that."""
        limits = node_limits(self.settings)
        if (
            self.cursor.range_count > limits.ranges_max
            or self.cursor.partly_acked_count > limits.batch_indexes_max
        ):
            return None
        nacks = self.nacks.image()
        try:
            formed = self._for_node(self.cursor.take_snapshot(), nacks, None, now_ms)
        except NodeTooLargeError:
            return None
        return formed if formed.plan.is_complete and formed.plan.nacks is nacks else None

    def _for_node(
        self,
        snapshot: CursorSnapshot,
        nacks: NackImage | None,
        ledger_id: int | None,
        now_ms: int,
    ) -> FormedRecord:
        packed = packing(self.settings)
        tried: list[tuple[SnapshotRecord, bytes]] = []

        def encoded_bytes(record: SnapshotRecord) -> int:
            encoded = encode_record(record, packed)
            tried.append((record, encoded))
            return self._node_bytes(encoded, ledger_id)

        plan = plan_node(
            snapshot,
            limits=node_limits(self.settings),
            owner_epoch=self.node.owner_epoch,
            now_ms=now_ms,
            bytes_max=self._node_bytes_max(),
            encoded_bytes=encoded_bytes,
            nacks=nacks,
        )
        encoded = next(encoded for record, encoded in tried if record is plan.record)
        return FormedRecord(plan, encoded)

    def _node_bytes(self, state: bytes, ledger_id: int | None) -> int:
        value = self.node.encode(
            cursor_ledger_id=ledger_id, state=state, packing=packing(self.settings)
        )
        return len(value)

    def _node_bytes_max(self) -> int:
        return min(self.settings.metadata_store_max_node_bytes, self.node.bytes_max)

    def _form(self, plan: PersistPlan) -> FormedRecord:
        return FormedRecord(plan, encode_record(plan.record, packing(self.settings)))


class RecordChain:
    """The records of one cursor ledger, counted."""

    __slots__ = (
        "_base_version",
        "_began_with",
        "_delta_bytes",
        "_delta_entries",
        "_deltas",
        "_opened_at",
        "base_snapshot_version",
        "entry_count",
    )

    entry_count: int
    """Entries appended so far."""

    base_snapshot_version: int | None
    """The snapshot that began the descent of the last record; None: the ledger is empty."""

    def __init__(self, *, opened_at: float) -> None:
        """An empty ledger, made at this time (in seconds of any clock)."""
        self._opened_at = opened_at
        self._deltas = 0
        self._delta_entries = 0
        self._delta_bytes = 0
        self._base_version: int | None = None
        self._began_with: int | None = None
        self.base_snapshot_version = None
        self.entry_count = 0

    def takes_deltas(self, settings: PersistenceSettings) -> bool:
        """Whether a delta may follow what is there; cheap, before one is made."""
        return (
            self._base_version is not None
            and self._deltas < settings.cursor_deltas_per_snapshot_max
        )

    def takes_delta(self, base_version: int, encoded: bytes, settings: PersistenceSettings) -> bool:
        """Whether this delta links up with the last record and stays within the bounds."""
        entries = 1 + len(encoded) // (settings.cursor_record_chunk_bytes - CHUNK_OVERHEAD_BYTES)
        return (
            base_version == self._base_version
            and self._delta_bytes + len(encoded) <= settings.cursor_delta_bytes_per_snapshot_max
            # Recovery must meet the snapshot within its scan, whatever the other bounds say.
            and self._delta_entries + entries < settings.cursor_recovery_scan_entries_max
        )

    def is_full(self, settings: PersistenceSettings, *, now: float) -> bool:
        """Whether the next record should begin a new ledger."""
        return self.entry_count >= settings.managed_ledger_cursor_max_entries_per_ledger or (
            self.is_old(settings, now=now)
        )

    def is_old(self, settings: PersistenceSettings, *, now: float) -> bool:
        """Whether the ledger has reached the age at which it is replaced."""
        return now - self._opened_at >= settings.managed_ledger_cursor_rollover_time_in_seconds

    def is_from_before(self, grown_since: int) -> bool:
        """Whether it holds records from before the version since which the state has only grown."""
        return self._began_with is not None and self._began_with < grown_since

    def descends_from(self, grown_since: int) -> int | None:
        """What a snapshot of a state that has only grown since then names as its base here."""
        base = self.base_snapshot_version
        return None if base is None or base < grown_since else base

    def begin(
        self, record: CursorRecord, encoded: bytes, settings: PersistenceSettings
    ) -> list[bytes]:
        """The entries to append for a record. Until `appended` is called, nothing links up."""
        self._base_version = None
        return cut(encoded, record.stamp, settings.cursor_record_chunk_bytes)

    def appended(self, record: CursorRecord, encoded: bytes, *, entry_count: int) -> None:
        """The record is durable, in so many entries."""
        version = record.stamp.version
        if self._began_with is None:
            self._began_with = version
        self.entry_count += entry_count
        if isinstance(record, DeltaRecord):
            self._base_version = version
            self._deltas += 1
            self._delta_entries += entry_count
            self._delta_bytes += len(encoded)
        else:
            # On top of a snapshot that was cut, a delta would make a state that never was.
            self._base_version = version if record.is_complete else None
            self.base_snapshot_version = record.descent.version
            self._deltas = self._delta_entries = self._delta_bytes = 0


class NackSource(Protocol):
    """The owner of the nacks that are held back: keeps them live and gives images of them."""

    @property
    def version(self) -> int:
        """Version, from 0 on; grows with every change that is worth a new image.

        An ack, or an entry that falls due, is no such change.
        """

    def image(self, bytes_max: int) -> NackImage:
        """A frozen image of the nacks now: the earliest ones, as many as fit into so many bytes."""


class NackWrites:
    """One cursor's pending nacks as persistence sees them."""

    __slots__ = ("_next_at", "_source", "bytes_max", "dropped", "durable_version", "persisted")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.persisted = 0
        """Entries in the newest durable image."""
        self.dropped = 0
        """Entries that were left out of it."""
        self._source: NackSource | None = None
        self.durable_version = 0
        """Version of the newest durable image."""
        self._next_at = 0.0

    def attach(self, source: NackSource, persisted: int) -> None:
        """Take images from `source`. Its version 0 is what was recovered: `persisted` entries.

        Nothing happens when it is attached already.
        """
        if source is self._source:
            return
        self._source = source
        self.persisted = persisted
        self.durable_version = 0

    @property
    def is_dirty(self) -> bool:
        """Whether there is anything new to be written."""
        source = self._source
        return source is not None and source.version > self.durable_version and self.bytes_max > 0

    @property
    def due_at(self) -> float:
        """When the next image may be written, if anything is new."""
        return self._next_at

    def hurry(self) -> None:
        """Let the next write have an image without waiting."""
        self._next_at = 0.0

    def if_due(self, now: float) -> NackImage | None:
        """The image for a delta; None: nothing is new, or it is not time yet."""
        return self.image() if now >= self._next_at and self.is_dirty else None

    def image(self) -> NackImage | None:
        """The image for a snapshot; None: nobody holds nacks."""
        return None if self._source is None else self._source.image(self.bytes_max)

    def wrote(self, image: NackImage, now: float) -> None:
        self.durable_version = image.version
        self.persisted = image.nacks.entry_count
        self.dropped = image.entries_in_memory - self.persisted
        share = image.nacks.stored_bytes / self.bytes_max if self.bytes_max else 1.0
        self._next_at = now + share * FULL_IMAGE_SECONDS
