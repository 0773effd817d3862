"""The delayed tracker that keeps most of its entries in storage, in buckets (PIP-195). Pure.

A name is imported from its home at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.faces import lazy_face

if TYPE_CHECKING:
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

__getattr__ = lazy_face(
    __name__,
    {
        "ackgate.dispatcher.buckets.plans": (
            "ChangeRegistry",
            "CreateSnapshot",
            "DeleteSnapshot",
            "Done",
            "Failed",
            "LoadMetadata",
            "LoadSegments",
            "MetadataLoaded",
            "Outcome",
            "Plan",
            "SegmentsLoaded",
            "Unreadable",
        ),
        "ackgate.dispatcher.buckets.segments": ("Draft", "in_order", "metadata_of"),
        "ackgate.dispatcher.buckets.settings": ("BucketSettings", "bucket_settings"),
        "ackgate.dispatcher.buckets.statistics": (
            "LATENCY_BOUNDS_MS",
            "BucketStatistics",
            "OperationStatistics",
            "OperationType",
        ),
        "ackgate.dispatcher.buckets.tracker": ("AGE_SEAL_SHARE", "BucketTracker"),
    },
)
