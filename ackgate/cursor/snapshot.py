"""What a cursor hands to persistence: frozen values, never live structures.

Pure. A `CursorSnapshot` is complete. A `CursorGrowth` is what was acked since a given version; it
exists only while the state has done nothing but grow since then (a reset, clear or rewind leaves
none, and the next record must be a snapshot).

Fold: ``snapshot + growth`` = union of the bitmaps, the growth's mark-delete, its batch indexes laid
over the snapshot's, then everything at or below the mark-delete dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyroaring import BitMap

    from ackgate.cursor.position import Position


@dataclass(frozen=True, slots=True)
class CursorSnapshot:
    """The whole ack state of one cursor at one version."""

    version: int
    """Number of mutations so far; grows with each change of any part."""

    mark_delete: Position
    """Every position at or before it is acked."""

    acked: Mapping[int, BitMap]
    """Message ledger id -> entry ids acked above the mark-delete. Own copies; no empty bitmap."""

    range_count: int
    """Maximal runs in `acked`, counted per ledger."""

    unacked_indexes: Mapping[Position, int] = field(default_factory=dict)
    """Partly acked entries: bit i set = message i of the batch is not yet acked. Never 0."""

    properties: Mapping[str, int] = field(default_factory=dict)
    """Pulsar's mark-delete ("long") properties."""


@dataclass(frozen=True, slots=True)
class CursorGrowth:
    """What was acked between two versions."""

    base_version: int
    """The version that this builds on."""

    version: int
    """The version reached."""

    mark_delete: Position
    """The mark-delete at `version`."""

    acked: Mapping[int, BitMap]
    """Message ledger id -> entry ids newly acked and above `mark_delete`. No empty bitmap."""

    range_count: int
    """Ranges of the whole state at `version` (not of this growth)."""

    unacked_indexes: Mapping[Position, int] = field(default_factory=dict)
    """Partly acked entries whose set changed, with their whole set as it is now. An entry that
    became fully acked is in `acked` (or below the mark-delete) instead."""

    properties: Mapping[str, int] | None = None
    """The properties if they changed, else None."""
