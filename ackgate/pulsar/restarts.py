"""What a subscription would get again after its broker's restart, and when its gate would shut.

Pure. Three causes, one function each:

- acks that the caps leave out of a write (`kept_by`): Pulsar keeps the lowest ranges. As words of bit
  sets it keeps whole ledgers, and counts acked *entries* against the same number;
- acks that are in the broker's memory only (`missing_on_disk`): a crash loses them;
- acks that were lost with a cursor's ledger, which `PulsarCluster.cursor` reports.

The gate (PIP-299) shuts when a cursor has more ranges than are persisted. Source: Pulsar's
`ManagedCursorImpl`, `OpenLongPairRangeSet`, `PositionRangeSet`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pyroaring import BitMap

from ackgate.cursor import run_bounds, run_count
from ackgate.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.cursor import Position


class Acks(Protocol):
    """The acks of one cursor: as persisted, or as a broker has them in memory."""

    @property
    def mark_delete(self) -> Position: ...

    @property
    def acked(self) -> Mapping[int, BitMap]: ...


class AckForm(enum.Enum):
    """How a broker writes acks to a cursor's ledger."""

    RANGES = "ranges"
    """Default up to 4.0. One range more than the cap is written."""
    WORDS = "words"
    """managedLedgerPersistIndividualAckAsLongArray, default of 4.1 and 4.2."""
    RANGES_5 = "ranges-5"
    """Ranges in 5.0: not more than the cap."""
    WORDS_5 = "words-5"
    """Default of 5.0, which counts a ledger before it decides about it."""


@dataclass(frozen=True, slots=True)
class PersistCaps:
    """The caps of the broker. Names in brackets are broker.conf's."""

    ranges_max: int = 10_000
    """[managedLedgerMaxUnackedRangesToPersist] 10,000 up to 4.2, 200,000 from 5.0."""
    batch_indexes_max: int = 10_000
    """[managedLedgerMaxBatchDeletedIndexToPersist]"""
    form: AckForm = AckForm.RANGES
    origin: str = "default"
    """Where `ranges_max` comes from."""

    def __post_init__(self) -> None:
        for name in ("ranges_max", "batch_indexes_max"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name}={getattr(self, name)}: must not be below 0")


class Kept(NamedTuple):
    """What a write keeps of the acks above the mark-delete."""

    acked: dict[int, BitMap]
    dropped: dict[int, BitMap]
    ranges_dropped: int

    @property
    def entries_dropped(self) -> int:
        return sum(map(len, self.dropped.values()))


def kept_by(acked: Mapping[int, BitMap], caps: PersistCaps) -> Kept:
    """What a broker with these caps writes of these acks. The rest is delivered again."""
    match caps.form:
        case AckForm.RANGES:
            kept = _lowest_ranges(acked, caps.ranges_max + 1)
        case AckForm.RANGES_5:
            kept = _lowest_ranges(acked, caps.ranges_max)
        case AckForm.WORDS:
            kept = _whole_ledgers(acked, caps.ranges_max, counts_itself=False)
        case AckForm.WORDS_5:
            kept = _whole_ledgers(acked, caps.ranges_max, counts_itself=True)
            kept = kept or _lowest_ranges(acked, caps.ranges_max)
    dropped = {i: bitmap - kept.get(i, BitMap()) for i, bitmap in acked.items()}
    return Kept(
        kept,
        {i: bitmap for i, bitmap in dropped.items() if bitmap},
        sum(map(run_count, acked.values())) - sum(map(run_count, kept.values())),
    )


def _lowest_ranges(acked: Mapping[int, BitMap], ranges_max: int) -> dict[int, BitMap]:
    kept = {}
    left = ranges_max
    for ledger_id, bitmap in sorted(acked.items()):
        if left <= 0:
            break
        count = run_count(bitmap)
        if count > left:
            _, stops = run_bounds(bitmap)
            lowest = BitMap()
            lowest.add_range(0, int(stops[left - 1]))
            kept[ledger_id] = bitmap & lowest
        else:
            kept[ledger_id] = bitmap
        left -= count
    return kept


def _whole_ledgers(
    acked: Mapping[int, BitMap], entries_max: int, *, counts_itself: bool
) -> dict[int, BitMap]:
    kept = {}
    before = 0
    for ledger_id, bitmap in sorted(acked.items()):
        counted = before + len(bitmap) if counts_itself else before
        if counted <= entries_max:
            kept[ledger_id] = bitmap
        before += len(bitmap)
    return kept


def missing_on_disk(
    persisted: Acks, live: Acks, entry_counts: Mapping[int, int]
) -> dict[int, BitMap]:
    """Entries that are acked in the broker's memory and not on disk, per message ledger.

    `entry_counts`: entries of the topic's ledgers, ascending. A crash delivers these entries again; an
    orderly shutdown writes them, as far as the caps let it.
    """
    missing = {}
    for ledger_id, entries in entry_counts.items():
        found = _acked_in(live, ledger_id, entries) - _acked_in(persisted, ledger_id, entries)
        if found:
            missing[ledger_id] = found
    return missing


def _acked_in(acks: Acks, ledger_id: int, entries: int) -> BitMap:
    """All acked entries of a ledger, those up to the mark-delete among them."""
    mark_delete = acks.mark_delete
    found = BitMap(acks.acked.get(ledger_id, ()))
    if ledger_id < mark_delete.ledger_id:
        found.add_range(0, entries)
    elif ledger_id == mark_delete.ledger_id:
        found.add_range(0, mark_delete.entry_id + 1)
    return found


class GateOutlook(NamedTuple):
    """How near the gate of a Shared or Key_Shared subscription is to shutting."""

    ranges: int
    ranges_max: int
    shuts_in_seconds: float | None
    """At the rate of growth since `since_ms`; 0.0: it is past the limit. None: it does not grow, or is
    not watched for long enough."""
    since_ms: int | None

    @property
    def is_past(self) -> bool:
        """Whether it has more ranges than are persisted."""
        return self.ranges > self.ranges_max


_WATCHED_MS_MIN = 2_000
_SECONDS_MAX = 86_400.0


def gate_outlook(
    ranges: int, ranges_max: int, *, earlier: tuple[int, int] | None, now_ms: int
) -> GateOutlook:
    """Forecast when the gate shuts. `earlier`: when (in ms), and how many ranges there were."""
    if ranges > ranges_max:
        return GateOutlook(ranges, ranges_max, 0.0, None)
    if earlier is None or now_ms - earlier[0] < _WATCHED_MS_MIN:
        return GateOutlook(ranges, ranges_max, None, None)
    since_ms, ranges_then = earlier
    grown = ranges - ranges_then
    seconds = None
    if grown > 0:
        seconds = (ranges_max + 1 - ranges) * (now_ms - since_ms) / grown / 1000
    if seconds is not None and seconds > _SECONDS_MAX:
        seconds = None
    return GateOutlook(ranges, ranges_max, seconds, since_ms)
