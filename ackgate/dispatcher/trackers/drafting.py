"""A snapshot in the making: sorted columns are cut, and described piece by piece. Pure.

To describe a bucket's segments takes a microsecond an entry, and more where each entry of a segment
is of another ledger: half a second for a large one. Nobody waits that long in one piece. ::

    columns   | segment 0 | segment 1 | ... | segment 4711 |      cut at once
    metadata  [ a piece      ][ a piece      ][ to come ...       a call of `go_on` each

"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from ackgate.dispatcher.trackers.bucket_plans import CreateSnapshot
from ackgate.dispatcher.trackers.mutable_bucket import span_of
from ackgate.dispatcher.trackers.segments import cut, groups_of, metadata_of, picked

if TYPE_CHECKING:
    from ackgate.cursor.position import Position
    from ackgate.dispatcher.trackers.bucket_plans import SegmentMetadata, SnapshotSegment
    from ackgate.dispatcher.trackers.bucket_settings import BucketSettings
    from ackgate.dispatcher.trackers.segments import SegmentGroups


class Draft:
    """What a `CreateSnapshot` will say."""

    __slots__ = ("_bounds", "_metadata", "_settings", "columns", "first", "groups", "last")

    columns: Final[SnapshotSegment]
    first: Final[Position]
    last: Final[Position]

    groups: Final[SegmentGroups]
    """How it will be loaded."""

    def __init__(self, columns: SnapshotSegment, settings: BucketSettings) -> None:
        """The columns are in order, and have a row at least."""
        self.columns = columns
        self.first, self.last = span_of(columns)
        self._settings = settings
        self._bounds = cut(
            columns,
            span_ms=settings.segment_span_ms,
            entries_max=settings.segment_entries_max,
        )
        self._metadata: list[SegmentMetadata] = []
        self.groups = groups_of(
            columns.keys_ms[self._bounds[:-1]].tolist(),
            (stop - start for start, stop in pairwise(self._bounds)),
            entries_min=settings.load_entries_min,
        )

    def go_on(self) -> bool:
        """Describe one more piece. Returns whether that was the last one."""
        bounds, first = self._bounds, len(self._metadata)
        stop = first + 1
        while (
            stop < len(bounds) - 1 and bounds[stop] - bounds[first] < self._settings.draft_entries
        ):
            stop += 1
        rows = picked(self.columns, slice(bounds[first], bounds[stop]))
        piece = [bound - bounds[first] for bound in bounds[first : stop + 1]]
        self._metadata += metadata_of(rows, piece)
        return stop == len(bounds) - 1

    def plan(self, number: int) -> CreateSnapshot:
        """What is to be written, when all is described. The segments are views."""
        assert len(self._metadata) == len(self._bounds) - 1
        segments = tuple(
            picked(self.columns, slice(start, stop)) for start, stop in pairwise(self._bounds)
        )
        return CreateSnapshot(number, self.first, self.last, segments, tuple(self._metadata))
