"""Specifications of charts in Vega-Lite, with their data: one frame for all jobs.

Pure. A chart has named data sets and layers over them::

    lines = layer("counts", line(), x=time("at_ms"), y=number("ranges"), color=series(NAMES))
    spec = chart("Ranges", {"counts": rows}, [lines])

Rows are flat dicts of numbers and text; times are milliseconds since 1970 and are shown in UTC. Field names
and titles are the jobs' own. Names from outside stand in rows and in the domains of `series` only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Spec: TypeAlias = dict[str, Any]
"""A specification, or a piece of one, as JSON has it."""

BLUE: Final = "#3f83e8"
ORANGE: Final = "#d9821b"
GREEN: Final = "#2c9c68"
RED: Final = "#dc4a44"
GREY: Final = "#8894a1"
PALETTE: Final = (BLUE, ORANGE, GREEN, RED, GREY)
"""Legible on light and on dark."""

HEIGHT: Final = 230
_SCHEMA: Final = "https://vega.github.io/schema/vega-lite/v6.json"
"""The name of the language. Nothing is fetched from there."""

_ZOOM: Final[Spec] = {
    "name": "zoom",
    "select": {
        "type": "interval",
        "encodings": ["x"],
        "zoom": "wheel![event.ctrlKey || event.metaKey]",
    },
    "bind": "scales",
}
"""Drag to move, control and the wheel to zoom, a double click to go back."""


def chart(
    title: str,
    data: Mapping[str, Sequence[Mapping[str, Any]]],
    layers: Sequence[Spec],
    *,
    subtitle: str | None = None,
    height: int = HEIGHT,
    has_zoom: bool = True,
    has_two_scales: bool = False,
) -> Spec:
    """A chart as wide as its place. `has_zoom` needs a first layer with x on a number or a time.

    `has_two_scales`: the last layer has a y axis of its own, on the right.
    """
    first, *others = layers
    if has_zoom:
        first = {"params": [_ZOOM], **first}
    spec: Spec = {
        "$schema": _SCHEMA,
        "title": {"text": title, **({"subtitle": subtitle} if subtitle else {})},
        "width": "container",
        "height": height,
        "datasets": {name: list(rows) for name, rows in data.items()},
        "layer": [first, *others],
    }
    if has_two_scales:
        spec["resolve"] = {"scale": {"y": "independent"}}
    return spec


def layer(data: str, mark: Spec, **encodings: Any) -> Spec:  # noqa: ANN401 - JSON
    """Marks over a data set, by its name. `encodings`: by channel."""
    return {"data": {"name": data}, "mark": mark, "encoding": encodings}


# --------------------------------------------------------------------------- marks


def line(color: str | None = None, *, dash: Sequence[int] = (), has_points: bool = True) -> Spec:
    """Straight pieces from row to row. Points are what a mouse can meet."""
    mark: Spec = {"type": "line", "clip": True, "strokeWidth": 1.6}
    if color:
        mark["color"] = color
    if dash:
        mark["strokeDash"] = list(dash)
    if has_points:
        mark["point"] = {"size": 14, **({"color": color} if color else {})}
    return mark


def box(color: str | None = None, *, opacity: float = 1.0) -> Spec:
    """Rectangles: from x to x2, from y to y2."""
    mark: Spec = {"type": "rect", "clip": True, "opacity": opacity}
    return mark | ({"color": color} if color else {})


def bar(color: str | None = None) -> Spec:
    """Bars from 0, or stacked."""
    mark: Spec = {"type": "bar", "clip": True}
    return mark | ({"color": color} if color else {})


def area(color: str, *, opacity: float = 0.2) -> Spec:
    """What lies between y and y2."""
    return {"type": "area", "clip": True, "color": color, "opacity": opacity}


def rule(color: str, *, dash: Sequence[int] = (1, 3)) -> Spec:
    """A line across the whole chart."""
    return {"type": "rule", "color": color, "strokeDash": list(dash)}


# ------------------------------------------------------------------------ encodings


def time(
    field: str, title: str | None = "time (UTC)", *, span_ms: tuple[int, int] | None = None
) -> Spec:
    """A time in milliseconds since 1970. `span_ms`: where the axis begins and ends."""
    domain = {} if span_ms is None else {"domain": list(span_ms)}
    return {
        "field": field,
        "type": "temporal",
        "scale": {"type": "utc", "nice": False, **domain},
        "axis": {"labelExpr": "utcFormat(datum.value, {'hours': '%H:%M', 'seconds': '%H:%M:%S'})"},
        "title": title,
    }


def number(
    field: str,
    title: str | None = None,
    *,
    top: float | None = None,
    scale: Spec | None = None,
    axis: Spec | None = None,
) -> Spec:
    """A number. `top`: where the axis ends, whatever else there is."""
    encoding: Spec = {"field": field, "type": "quantitative", "title": title}
    scales = {**({} if top is None else {"domain": [0, top], "nice": True}), **(scale or {})}
    if scales:
        encoding["scale"] = scales
    if axis is not None:
        encoding["axis"] = axis
    return encoding


def name(field: str, title: str | None = None, *, order: Sequence[str] | None = None) -> Spec:
    """A name or a label: one place each, in this order or as they come."""
    sort = None if order is None else list(order)
    return {"field": field, "type": "nominal", "title": title, "sort": sort}


def series(names: Sequence[str], colors: Sequence[str] = PALETTE, field: str = "series") -> Spec:
    """Colours by name, with a legend; `colors` repeat when there are more names."""
    return {
        "field": field,
        "type": "nominal",
        "title": None,
        "scale": {
            "domain": list(names),
            "range": [colors[at % len(colors)] for at in range(len(names))],
        },
    }


def until(field: str) -> Spec:
    """The other end of a mark: x2 or y2."""
    return {"field": field}


def tooltip(**titles: str) -> list[Spec]:
    """What a mark shows when the mouse is over it: field to title. ``*_ms`` fields are times."""
    return [
        {"field": field, "title": title, "type": "temporal", "format": _MOMENT, "timeUnit": _UTC}
        if field.endswith("_ms")
        else {"field": field, "title": title}
        for field, title in titles.items()
    ]


_MOMENT: Final = "%Y-%m-%d %H:%M:%S.%L"
_UTC: Final = "utcyearmonthdatehoursminutessecondsmilliseconds"
