"""Fewer, larger buckets. Pure.

With more sealed buckets than wanted, the neighbours with the fewest entries become one. Until the
very end nothing of theirs changes: they load and deliver as ever, and what they deliver meanwhile
is left out in the end, since only what is *unloaded* then is taken over. ::

    LoadSegments ...   what the sources have in their snapshots, piece by piece, into memory
    CreateSnapshot     all of it that is still tracked, and what they have in memory
    ChangeRegistry     add the new one, remove the sources: one atomic step
    (take over)        the new bucket has what the sources had; their snapshots may go

If anything fails, the sources are what they were, and it is tried again later. A merge that would be
larger than `BucketSettings.merge_entries_max` is not begun; the number of buckets is then more than
asked for.
"""

from __future__ import annotations

import enum
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.cursor import BucketRecord, StoredSnapshot
from ackgate.dispatcher.buckets.loading import segments_in
from ackgate.dispatcher.buckets.plans import LoadSegments, SegmentsLoaded, Unreadable
from ackgate.dispatcher.buckets.sealed_bucket import BucketState, SealedBucket
from ackgate.dispatcher.buckets.segments import Draft, joined, picked, rows_in, without_repeats
from ackgate.dispatcher.buckets.statistics import OperationType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ackgate.cursor import SnapshotSegment
    from ackgate.dispatcher.buckets.holdings import Holdings
    from ackgate.dispatcher.buckets.plans import Outcome, PlanBook
    from ackgate.dispatcher.buckets.registry import SnapshotKeeper
    from ackgate.dispatcher.buckets.segments import SegmentGroups

PIECE_ENTRIES: Final = 20_000
"""A merge reads about so many entries at a time."""

NEVER_MS: Final = 2**63 - 1
"""Higher than every key."""


class Candidate(NamedTuple):
    """A bucket, as the choice of what to merge needs it."""

    entries: int
    next_key_ms: int
    """The first key that it has not loaded."""
    is_free: bool
    """Stored, and not being merged."""


def choose(candidates: Sequence[Candidate], *, width: int, entries_max: int) -> range | None:
    """Which neighbours to merge (candidates are by position): up to `width` with the fewest entries.

    Among equals, those whose next load comes first. If so many cannot be merged, fewer are.
    """
    totals = list(accumulate((candidate.entries for candidate in candidates), initial=0))
    taken = list(accumulate((not candidate.is_free for candidate in candidates), initial=0))
    for k in range(min(width, len(candidates)), 1, -1):
        windows = [
            (totals[start + k] - totals[start], start)
            for start in range(len(candidates) - k + 1)
            if taken[start + k] == taken[start]
        ]
        fewest = min(windows, default=(entries_max + 1, 0))[0]
        if fewest <= entries_max:
            _, start = min(
                (min(candidate.next_key_ms for candidate in candidates[start : start + k]), start)
                for entries, start in windows
                if entries == fewest
            )
            return range(start, start + k)
    return None


class _Stage(enum.Enum):
    """How far a merge is."""

    LOADING = "loading"
    STORING = "storing"
    REGISTERING = "registering"
    OVER = "over"


class _Merge:
    """The sources of one merge, and how far they are loaded."""

    __slots__ = (
        "attempts",
        "began_ms",
        "bytes_stored",
        "groups",
        "next_group",
        "parts",
        "snapshot_id",
        "source_index",
        "sources",
        "span",
        "stage",
    )

    def __init__(self, sources: list[SealedBucket], began_ms: int) -> None:
        self.sources = sources
        self.began_ms = began_ms
        self.stage = _Stage.LOADING
        self.source_index = 0
        self.next_group = sources[0].next_group
        self.parts: list[SnapshotSegment] = []
        self.attempts = 0
        self.groups: SegmentGroups | None = None
        self.snapshot_id: int | None = None
        self.bytes_stored = 0
        self.span = sources[0].first, sources[0].last

    @property
    def is_hindered(self) -> bool:
        """Whether a source was emptied, lost or cleared meanwhile."""
        return any(source.state is not BucketState.STORED for source in self.sources)


class Merging:
    """At most one merge at a time."""

    __slots__ = ("_book", "_holdings", "_is_resting", "_keeper", "_lose", "_merge", "is_stale")

    is_stale: bool
    """Buckets came or went: look whether there is something to merge."""

    def __init__(
        self,
        holdings: Holdings,
        book: PlanBook,
        keeper: SnapshotKeeper,
        lose: Callable[[SealedBucket], None],
    ) -> None:
        self._holdings = holdings
        self._book = book
        self._keeper = keeper
        self._lose = lose
        self._merge: _Merge | None = None
        self._is_resting = False
        self.is_stale = False

    @property
    def source_count(self) -> int:
        """Buckets that are being merged."""
        return 0 if self._merge is None else len(self._merge.sources)

    def advance(self, now_ms: int) -> SealedBucket | None:
        """Go on. Returns the bucket that has come out of a merge."""
        merge = self._merge
        if merge is None:
            self._begin(now_ms)
        elif merge.stage is _Stage.REGISTERING:
            # No way back from here: the registry has the one or the others, and will have the one.
            assert merge.snapshot_id is not None
            if self._keeper.names(merge.snapshot_id):
                return self._finish(merge, merge.snapshot_id, now_ms)
        elif merge.is_hindered:
            self._end(merge, now_ms, succeeded=False)
        return None

    # -- beginning ------------------------------------------------------------------------------

    def _begin(self, now_ms: int) -> None:
        settings = self._book.settings
        buckets = self._holdings.buckets
        if (
            not self.is_stale
            or self._is_resting
            or settings.buckets_max < 1
            or len(buckets) <= settings.buckets_max
        ):
            return
        self.is_stale = False
        ordered = sorted(
            (bucket for bucket in buckets.values() if bucket.state is not BucketState.UNREAD),
            key=lambda bucket: (bucket.first, bucket.last),
        )
        chosen = choose(
            [_candidate(bucket) for bucket in ordered],
            width=settings.merge_width,
            entries_max=settings.merge_entries_max,
        )
        if chosen is None:
            return
        sources = [ordered[index] for index in chosen]
        for source in sources:
            source.is_merging = True
        self._merge = _Merge(sources, now_ms)
        self._load(self._merge, now_ms)

    # -- loading --------------------------------------------------------------------------------

    def _load(self, merge: _Merge, now_ms: int) -> None:
        """Ask for the next piece, or write if there is none."""
        if merge is not self._merge:
            return
        while merge.source_index < len(merge.sources):
            source = merge.sources[merge.source_index]
            groups = source.groups
            assert groups is not None
            if merge.next_group < len(groups) and source.unloaded.entry_count:
                self._load_piece(merge, source, groups, now_ms)
                return
            merge.source_index += 1
            if merge.source_index < len(merge.sources):
                merge.next_group = merge.sources[merge.source_index].next_group
        self._write(merge, now_ms)

    def _load_piece(
        self, merge: _Merge, source: SealedBucket, groups: SegmentGroups, now_ms: int
    ) -> None:
        stop_group = merge.next_group
        entries = 0
        while stop_group < len(groups) and entries < PIECE_ENTRIES:
            entries += int(groups.entry_counts[stop_group])
            stop_group += 1
        first, stop = int(groups.bounds[merge.next_group]), int(groups.bounds[stop_group])
        snapshot_id = source.snapshot_id
        assert snapshot_id is not None
        self._book.ask(
            lambda number: LoadSegments(number, snapshot_id, first, stop),
            partial(self._on_loaded, merge, source, stop_group, stop - first, entries),
            now_ms,
            OperationType.LOAD,
        )

    def _on_loaded(
        self,
        merge: _Merge,
        source: SealedBucket,
        stop_group: int,
        segments: int,
        entries: int,
        outcome: Outcome,
        now_ms: int,
    ) -> None:
        if merge is not self._merge or merge.is_hindered:
            return
        columns = segments_in(outcome, segments, entries)
        if columns is not None:
            merge.attempts = 0
            merge.next_group = stop_group
            merge.parts.append(picked(columns, rows_in(source.unloaded, columns)))
            self._load(merge, now_ms)
        elif isinstance(outcome, (Unreadable, SegmentsLoaded)):
            self._lose(source)
        else:
            self._failed(merge, now_ms, self._load)

    def _failed(self, merge: _Merge, now_ms: int, retry: Callable[[_Merge, int], None]) -> None:
        merge.attempts += 1
        if merge.attempts >= self._book.settings.attempts_max:
            self._end(merge, now_ms, succeeded=False)
        else:
            self._book.retries.schedule(merge.attempts, now_ms, partial(retry, merge))

    # -- writing --------------------------------------------------------------------------------

    def _write(self, merge: _Merge, now_ms: int) -> None:
        """Everything of the sources that is tracked at this moment, into one snapshot."""
        if merge is not self._merge or merge.is_hindered:
            return
        holdings = self._holdings
        parts = [picked(part, rows_in(holdings.index, part)) for part in merge.parts]
        parts += [holdings.memory_of(source) for source in merge.sources]
        columns = without_repeats(joined([part for part in parts if part.keys_ms.size]))
        merge.parts = []
        if not columns.keys_ms.size:
            self._end(merge, now_ms, succeeded=False)
            return
        draft = Draft(columns, self._book.settings)
        merge.stage = _Stage.STORING
        merge.groups = draft.groups
        merge.span = draft.first, draft.last
        self._go_on(merge, draft, now_ms)

    def _go_on(self, merge: _Merge, draft: Draft, now_ms: int) -> None:
        """Describe a piece more of it; when that is all, ask for it."""
        if merge is not self._merge or merge.is_hindered:
            return
        if draft.go_on():
            self._book.ask(
                draft.plan, partial(self._on_written, merge), now_ms, OperationType.CREATE
            )
        else:
            self._book.retries.soon(now_ms, partial(self._go_on, merge, draft))

    def _on_written(self, merge: _Merge, outcome: Outcome, now_ms: int) -> None:
        is_over = merge is not self._merge or merge.is_hindered
        if isinstance(outcome, StoredSnapshot):
            if is_over:
                self._keeper.give_up(outcome.snapshot_id)
                return
            merge.attempts = 0
            merge.stage = _Stage.REGISTERING
            merge.snapshot_id = outcome.snapshot_id
            merge.bytes_stored = outcome.bytes_stored
            self._keeper.keep(BucketRecord(*merge.span, outcome.snapshot_id))
            for source in merge.sources:
                assert source.snapshot_id is not None
                self._keeper.give_up(source.snapshot_id)
        elif not is_over:
            self._failed(merge, now_ms, self._start_anew)

    def _start_anew(self, merge: _Merge, now_ms: int) -> None:
        """Read again what a failed create would have held."""
        if merge is not self._merge or merge.is_hindered:
            return
        merge.stage = _Stage.LOADING
        merge.source_index = 0
        merge.next_group = merge.sources[0].next_group
        self._load(merge, now_ms)

    # -- ending ---------------------------------------------------------------------------------

    def _finish(self, merge: _Merge, snapshot_id: int, now_ms: int) -> SealedBucket:
        """The new bucket is registered, the sources are not: it has what they had."""
        holdings = self._holdings
        groups = merge.groups
        assert groups is not None
        sources = [source for source in merge.sources if source.state is BucketState.STORED]
        next_key_ms = min(map(_next_key_ms, sources), default=NEVER_MS)
        bucket = holdings.new_bucket(*merge.span, BucketState.UNREAD)
        bucket.snapshot_id = snapshot_id
        bucket.bytes_stored = merge.bytes_stored
        bucket.move_to(BucketState.STORED)
        # A key may be spread over two groups.
        next_group = max(int(groups.first_keys_ms.searchsorted(next_key_ms)) - 1, 0)
        holdings.set_groups(bucket, groups, next_group)
        for source in sources:
            source.merged_into = bucket
            source.is_merging = False
            source.is_loading = False
            source.move_to(BucketState.GONE)
        holdings.take_over(sources, bucket)
        bucket.group_entries = bucket.memory_entries
        self._end(merge, now_ms, succeeded=True)
        return bucket

    def _end(self, merge: _Merge, now_ms: int, *, succeeded: bool) -> None:
        merge.stage = _Stage.OVER
        self._merge = None
        self.is_stale = True
        self._book.counters[OperationType.MERGE].count(
            max(now_ms - merge.began_ms, 0), succeeded=succeeded
        )
        if succeeded:
            return
        for source in merge.sources:
            source.is_merging = False
            if source.state is BucketState.STORED:
                self._holdings.shrunk.add(source)
        self._is_resting = True
        self._book.retries.schedule(self._book.settings.attempts_max, now_ms, self._rested)

    def _rested(self, _now_ms: int) -> None:
        self._is_resting = False
        self.is_stale = True

    def clear(self) -> int | None:
        """Forget all buckets. Returns the snapshot that a merge had written, if it had."""
        merge, self._merge = self._merge, None
        self.is_stale = False
        return None if merge is None else merge.snapshot_id


def _next_key_ms(bucket: SealedBucket) -> int:
    key_ms = bucket.next_load_key_ms
    return NEVER_MS if key_ms is None else key_ms


def _candidate(bucket: SealedBucket) -> Candidate:
    return Candidate(
        len(bucket),
        _next_key_ms(bucket),
        bucket.state is BucketState.STORED and not bucket.is_merging,
    )
