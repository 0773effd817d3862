"""The picture of the holes of today: how old each is, and whom its first entry was given to last.

Pure.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from ackgate.pipeline.drawing.axes import XAxis, count_ticks, short_text, span_text
from ackgate.pipeline.drawing.markup import escaped, shortened
from ackgate.pipeline.drawing.plot import Plot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.pipeline.jobs.ack_stats.leavers import OpenHole

COLOURS: Final = 5
"""Of consumers: more than so many share the last one."""

_UNITS: Final = (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000))


def age_plot(holes: Sequence[OpenHole]) -> str:
    """Each hole of today: where it is, how old it is, and by colour whom it was given to last."""
    unit, unit_ms = _unit(max((hole.age_ms for hole in holes), default=0))
    ages = [hole.age_ms / unit_ms for hole in holes]
    ticks = count_ticks(max(ages, default=1))
    names = [name for name, _ in Counter(hole.consumer for hole in holes).most_common()]
    css_of = {name: f"box{min(at, COLOURS - 1)}" for at, name in enumerate(names)}
    places = [(hole.ledger_id, hole.first_entry_id) for hole in holes]
    order = {place: at for at, place in enumerate(sorted(places))}
    step = max(1, -(-len(order) // 6))
    axis = XAxis(
        "holes by position",
        0,
        max(len(order), 1),
        [(at + 0.5, f"{a}:{b}") for (a, b), at in order.items() if at % step == 0],
    )
    plot = Plot("Holes of today: age, and given to", f"age in {unit}", axis, ticks[-1])
    for hole, place, age in zip(holes, places, ages, strict=True):
        at = order[place]
        words = (
            f"{hole.ledger_id}:{hole.first_entry_id}, {hole.entries} unacked, {span_text(hole.age_ms)}: "
            f"{hole.consumer}, key {hole.key}"
        )
        plot.add(f"<g><title>{escaped(words)}</title>")
        plot.rectangle(css_of[hole.consumer], at + 0.1, at + 0.9, 0, age)
        plot.add("</g>")
    shown = names if len(names) <= COLOURS else [*names[: COLOURS - 1], "others"]
    legend = [("box", f"box{at}", shortened(name)) for at, name in enumerate(shown)]
    return plot.drawn([(tick, short_text(tick)) for tick in ticks], legend)


def _unit(longest_ms: int) -> tuple[str, int]:
    """The largest of which there are two."""
    found = ((unit, unit_ms) for unit, unit_ms in _UNITS if longest_ms >= 2 * unit_ms)
    return next(found, ("seconds", 1000))
