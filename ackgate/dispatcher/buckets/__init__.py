"""The delayed tracker that keeps most of its entries in storage, in buckets (PIP-195). Pure."""

from ackgate.dispatcher.buckets.plans import (
    ChangeRegistry,
    CreateSnapshot,
    DeleteSnapshot,
    Done,
    Failed,
    LoadMetadata,
    LoadSegments,
    MetadataLoaded,
    Outcome,
    Plan,
    SegmentsLoaded,
    Unreadable,
)
from ackgate.dispatcher.buckets.segments import (
    Draft,
    in_order,
    metadata_of,
)
from ackgate.dispatcher.buckets.settings import (
    BucketSettings,
    bucket_settings,
)
from ackgate.dispatcher.buckets.statistics import (
    LATENCY_BOUNDS_MS,
    BucketStatistics,
    OperationStatistics,
    OperationType,
)
from ackgate.dispatcher.buckets.tracker import (
    AGE_SEAL_SHARE,
    BucketTracker,
)

__all__ = [
    "AGE_SEAL_SHARE",
    "LATENCY_BOUNDS_MS",
    "BucketSettings",
    "BucketStatistics",
    "BucketTracker",
    "ChangeRegistry",
    "CreateSnapshot",
    "DeleteSnapshot",
    "Done",
    "Draft",
    "Failed",
    "LoadMetadata",
    "LoadSegments",
    "MetadataLoaded",
    "OperationStatistics",
    "OperationType",
    "Outcome",
    "Plan",
    "SegmentsLoaded",
    "Unreadable",
    "bucket_settings",
    "in_order",
    "metadata_of",
]
