"""How a bucket tracker cuts, stores, merges and loads. Pure.

What a `broker.conf` can say has its default in `ackgate.config.delayed`.

Everything that the tracker does more than once, or keeps more than one of, has its bound here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ackgate.config import defaults

if TYPE_CHECKING:
    from ackgate.config.delayed import DelayedSettings

LOAD_LEAD_TICKS: Final = 10
LOAD_LEAD_MS_MIN: Final = 2_000
"""Segments are fetched so many ticks before they are due, and so long at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSettings:
    """The bounds of one tracker."""

    # -- sealing

    entries_min: int = defaults.BUCKET_ENTRIES_MIN
    """``delayedDeliveryMinIndexCountPerBucket``: with so many, seal at the next change of ledger."""

    entries_max: int = defaults.BUCKET_ENTRIES_MAX
    """With so many, seal within a ledger, too. Bounds the mutable bucket's memory."""

    age_max_ms: int = defaults.BUCKET_AGE_SECONDS_MAX * 1000
    """Seal what has waited in memory for so long, if it is a tenth of `entries_min`. 0: never."""

    segment_span_ms: int = 1000 * defaults.SEGMENT_SPAN_SECONDS
    """A segment spans no more: ``delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds``."""

    segment_entries_max: int = defaults.SEGMENT_ENTRIES_MAX
    """A segment has no more: ``delayedDeliveryMaxIndexesPerBucketSnapshotSegment``. -1: any."""

    creates_max: int = 2
    """Snapshots written at a time; others wait. Bounds the memory of what is being written."""

    draft_entries: int = 20_000
    """So many entries of a snapshot are described at a time: bounds how long one call takes."""

    # -- merging

    buckets_max: int = defaults.BUCKETS_MAX
    """``delayedDeliveryMaxNumBuckets``: with more than so many, neighbours are merged. -1: never."""

    merge_width: int = 4
    """So many neighbours are merged at once, at the most."""

    merge_entries_max: int = 200_000
    """A merge that would hold more is not made: bounds its memory (some 200 bytes an entry). With
    buckets that large, `buckets_max` is exceeded."""

    # -- loading

    load_entries_min: int = 256
    """Segments smaller than this are fetched together with the next ones."""

    load_lead_ms: int = 10_000
    """Segments are fetched so long before their first entry is due."""

    load_rest_percent: int = 20
    """And not before so little is left of those fetched last."""

    loaded_entries_max: int = 500_000
    """With so many in memory, only what is due before all of them is fetched. Bounds the memory
    when consumers are slow."""

    # -- recovering

    metadata_loads_max: int = 4
    """Snapshots whose metadata is read at a time."""

    # -- failing

    attempts_max: int = 4
    """Attempts of a create, a load or a delete in a row (Pulsar: 1 + ``MaxRetryTimes``)."""

    retry_ms: int = 500
    """Before the second attempt; doubled for each further one, with a jitter of up to a quarter."""

    retry_ms_max: int = 60_000
    """After the last attempt, and the longest wait at all."""


def bucket_settings(settings: DelayedSettings) -> BucketSettings:
    """The settings of a bucket tracker, from those of the broker."""
    return BucketSettings(
        entries_min=settings.delayed_delivery_min_index_count_per_bucket,
        entries_max=max(
            settings.delayed_delivery_max_index_count_per_bucket,
            settings.delayed_delivery_min_index_count_per_bucket,
        ),
        age_max_ms=settings.delayed_delivery_max_bucket_age_seconds * 1000,
        segment_span_ms=(
            settings.delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds * 1000
        ),
        segment_entries_max=settings.delayed_delivery_max_indexes_per_bucket_snapshot_segment,
        buckets_max=settings.delayed_delivery_max_num_buckets,
        load_lead_ms=max(
            LOAD_LEAD_TICKS * settings.delayed_delivery_tick_time_millis, LOAD_LEAD_MS_MIN
        ),
    )
