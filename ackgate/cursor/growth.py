"""What was acked since the last record was taken: the raw material of a `CursorGrowth`.

Pure. While the state only grows, a record needs to hold no more than what is new. As soon as it
does anything else (reset, clear, a ledger lost), growth is *spoilt*: nothing is tracked until the
next snapshot begins it anew. A log that is off stays off.

    snapshot taken       reset           snapshot taken
          |                |                   |
    ------+== tracking ====+---- spoilt -------+== tracking ==
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyroaring import BitMap

from ackgate.cursor.snapshot import CursorGrowth

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.cursor.position import Position


class GrowthLog:
    """Entries, batches and properties touched since `base_version`."""

    __slots__ = (
        "_acked",
        "_base_version",
        "_batches",
        "_has_new_properties",
        "is_on",
        "is_tracking",
    )

    is_tracking: bool
    """Whether changes need to be told at all. Asked on the hot path, so it is a plain attribute."""

    def __init__(self, *, is_on: bool) -> None:
        self.is_on = is_on
        self.is_tracking = False
        self._forget(0)

    def add(self, ledger_id: int, entry_id: int) -> None:
        """One entry was acked."""
        bitmap = self._acked.get(ledger_id)
        if bitmap is None:
            self._acked[ledger_id] = BitMap((entry_id,))
        else:
            bitmap.add(entry_id)

    def add_bitmap(self, ledger_id: int, acked: BitMap) -> None:
        """Many entries of one ledger were acked. `acked` is not taken over."""
        bitmap = self._acked.get(ledger_id)
        if bitmap is None:
            self._acked[ledger_id] = acked.copy()
        else:
            bitmap |= acked

    def add_batch(self, position: Position) -> None:
        """An entry's unacked indexes changed."""
        self._batches.add(position)

    def set_properties(self) -> None:
        """The properties changed."""
        self._has_new_properties = True

    def spoil(self) -> None:
        """The state did something else than grow."""
        self.is_tracking = False
        self._forget(0)

    def begin(self, version: int) -> None:
        """A snapshot was taken: track from here on, if the log is on."""
        self.is_tracking = self.is_on
        self._forget(version)

    def take(
        self,
        *,
        version: int,
        mark_delete: Position,
        range_count: int,
        unacked: Mapping[Position, int],
        properties: Mapping[str, int],
    ) -> CursorGrowth | None:
        """The growth up to the given state, and track on from there. None when spoilt or off."""
        if not self.is_tracking:
            return None
        ledger_id, entry_id = mark_delete
        acked = {}
        for grown_id in sorted(self._acked):
            bitmap = self._acked[grown_id]
            if grown_id == ledger_id:
                bitmap.remove_range(0, entry_id + 1)
            if grown_id >= ledger_id and bitmap:
                acked[grown_id] = bitmap
        growth = CursorGrowth(
            base_version=self._base_version,
            version=version,
            mark_delete=mark_delete,
            acked=acked,
            range_count=range_count,
            unacked_indexes={
                position: unacked[position] for position in sorted(self._batches & unacked.keys())
            },
            properties=dict(properties) if self._has_new_properties else None,
        )
        self._forget(version)
        return growth

    def _forget(self, base_version: int) -> None:
        self._base_version = base_version
        self._acked: dict[int, BitMap] = {}
        self._batches: set[Position] = set()
        self._has_new_properties = False
