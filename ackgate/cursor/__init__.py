"""What is acknowledged: the managed cursor, the message ledgers under it, and the values it deals in.

Pure. Sets of positions are at home here, and what a subscription stores beside its acks (pending
nacks, buckets of delayed entries): the rooms above share them.
"""

from ackgate.cursor.bitmaps import (
    bitmap_of,
    members,
    run_bounds,
    run_count,
    stored_form,
)
from ackgate.cursor.held_records import (
    NO_NACKS,
    BucketRecord,
    NackedLedger,
    NackImage,
    PendingNacks,
    SegmentMetadata,
    SnapshotSegment,
    StoredSnapshot,
    earliest_nacks,
    existing_nacks,
    unacked_nacks,
)
from ackgate.cursor.managed_cursor import (
    ARRAY_PATH_POSITIONS_MIN,
    Cleared,
    CursorMove,
    CursorStatistics,
    Expired,
    ManagedCursor,
    Skipped,
    Sought,
)
from ackgate.cursor.message_ledgers import (
    MessageLedgers,
)
from ackgate.cursor.position import (
    EARLIEST,
    ENTRY_ID_MAX,
    LATEST,
    LEDGER_ID_MAX,
    POSITIONS_AS_TEXT,
    Position,
    check_position,
    checked_integers,
    entry_ids_below,
    positions_of,
    run_of_positions,
)
from ackgate.cursor.position_set import (
    PositionSet,
)
from ackgate.cursor.snapshots import (
    CursorGrowth,
    CursorSnapshot,
    RecoveredStateReport,
    WrittenCounts,
)
from ackgate.cursor.unacked_entries import (
    LeftOut,
    Span,
)

__all__ = [
    "ARRAY_PATH_POSITIONS_MIN",
    "EARLIEST",
    "ENTRY_ID_MAX",
    "LATEST",
    "LEDGER_ID_MAX",
    "NO_NACKS",
    "POSITIONS_AS_TEXT",
    "BucketRecord",
    "Cleared",
    "CursorGrowth",
    "CursorMove",
    "CursorSnapshot",
    "CursorStatistics",
    "Expired",
    "LeftOut",
    "ManagedCursor",
    "MessageLedgers",
    "NackImage",
    "NackedLedger",
    "PendingNacks",
    "Position",
    "PositionSet",
    "RecoveredStateReport",
    "SegmentMetadata",
    "Skipped",
    "SnapshotSegment",
    "Sought",
    "Span",
    "StoredSnapshot",
    "WrittenCounts",
    "bitmap_of",
    "check_position",
    "checked_integers",
    "earliest_nacks",
    "entry_ids_below",
    "existing_nacks",
    "members",
    "positions_of",
    "run_bounds",
    "run_count",
    "run_of_positions",
    "stored_form",
    "unacked_nacks",
]
