"""What is acknowledged: the managed cursor and the values it deals in. Pure."""

from ackgate.cursor.managed_cursor import ManagedCursor
from ackgate.cursor.message_ledgers import MessageLedgers
from ackgate.cursor.position import EARLIEST, LATEST, Position
from ackgate.cursor.recovered import RecoveredStateReport
from ackgate.cursor.snapshot import CursorGrowth, CursorSnapshot
from ackgate.cursor.stats import CursorStats
from ackgate.cursor.unacked_entries import Span

__all__ = [
    "EARLIEST",
    "LATEST",
    "CursorGrowth",
    "CursorSnapshot",
    "CursorStats",
    "ManagedCursor",
    "MessageLedgers",
    "Position",
    "RecoveredStateReport",
    "Span",
]
