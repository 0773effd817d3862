"""Ack ranges as Pulsar prints them: ``[(0:97..0:99],(1:-1..1:5]]``.

Pure. Open on the left, closed on the right; used by the admin API only
(`individuallyDeletedMessages`). Everything else in this project is half-open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.cursor.bitmap_runs import lowest_runs, run_bounds

if TYPE_CHECKING:
    from ackgate.cursor.ack_ranges import AckRanges


def ranges_text(ranges: AckRanges, ranges_max: int) -> str:
    """The lowest `ranges_max` ranges; ``...`` stands for the rest."""
    texts: list[str] = []
    for ledger_id, bitmap in ranges.bitmaps():
        wanted = ranges_max - len(texts)
        if wanted <= 0:
            break
        starts, stops = run_bounds(lowest_runs(bitmap, wanted))
        texts.extend(
            f"({ledger_id}:{start - 1}..{ledger_id}:{stop - 1}]"
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        )
    if len(texts) < ranges.range_count:
        texts.append("...")
    return f"[{','.join(texts)}]"
