"""The HTML page: head, figures, sortable tables, charts.

Pure, but for the code of the libraries, which is read once. What is called markup has been escaped; what
is called text is escaped here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from functools import cache
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ackgate.pipeline.report.charts import Spec


class Cell(NamedTuple):
    """A cell of a table."""

    text: str
    small: str = ""
    """In small letters below it."""
    order: float | str | None = None
    """What the column is sorted by; None: the text."""
    is_alarm: bool = False
    is_quiet: bool = False
    """Words in place of a name."""
    anchor: str | None = None
    """The section that it leads to."""


class Head(NamedTuple):
    """The head of a column."""

    text: str
    small: str = ""


def escaped(text: str) -> str:
    """Text as markup. Control characters, which HTML may not hold, are replaced."""
    return escape("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text))


def page(title: str, source: str, body: Iterable[str]) -> str:
    """The whole file. `source`: where the data is, for people. `body`: markup, in order."""
    text = "".join(body)
    scripts = [_code("sortable.min.js")]
    if _CHART_MARK in text:
        scripts += [_vega(), _draw()]
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:"
    )
    return "".join(
        (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escaped(title)}</title><style>{_code('page.css')}</style></head>\n",
            f"<body><main><h1>{escaped(title)}</h1><p>{escaped(source)}</p>",
            text,
            paragraph(_HINT) if _CHART_MARK in text else "",
            "</main>",
            *(f"<script>{script}</script>\n" for script in scripts),
            "</body></html>\n",
        )
    )


def cards(figures: Iterable[tuple[str, str]]) -> str:
    """The few figures that matter most: number and what it counts, as text."""
    boxes = "".join(f"<div><b>{escaped(n)}</b>{escaped(words)}</div>" for n, words in figures)
    return f'<div class="cards">{boxes}</div>'


def heading(text: str, level: int = 2) -> str:
    """A heading within a section."""
    return f"<h{level}>{escaped(text)}</h{level}>"


def paragraph(*lines: str) -> str:
    """Text, with one line for each argument."""
    return f"<p>{'<br>'.join(map(escaped, lines))}</p>"


def table(heads: Sequence[Head], rows: Iterable[Sequence[Cell]]) -> str:
    """A table that a click on a head sorts."""
    head = "".join(f"<th>{_inner(Cell(*each))}</th>" for each in heads)
    body = "\n".join(f"<tr>{''.join(map(_data_cell, row))}</tr>" for row in rows)
    return (
        '<div class="scroll"><table class="sortable n-last">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def section(*contents: str, anchor: str | None = None) -> str:
    """A box of the page, of markup."""
    named = "" if anchor is None else f' id="{escaped(anchor)}"'
    return f"<section{named}>{''.join(contents)}</section>\n"


def charts(specs: Iterable[Spec]) -> str:
    """Charts side by side, as many as the page is wide for."""
    figures = "".join(
        f'{_CHART_MARK} aria-label="{escaped(spec["title"]["text"])}" '
        f'style="min-height: {spec["height"] + _AROUND_PX}px"><div></div>'
        f'<script type="application/json">{_json(spec)}</script></figure>'
        for spec in specs
    )
    return f'<div class="charts">{figures}</div>' if figures else ""


def beside(*charts: str) -> str:
    """Pieces of markup side by side, as far as the page is wide for them."""
    return (
        f'<div class="charts">{"".join(f"<div>{chart}</div>" for chart in charts if chart)}</div>'
    )


# ---------------------------------------------------------------------------- pieces

_HINT: Final = (
    "Charts: drag to move, Ctrl and the wheel to zoom, double-click to go back. "
    "Tables: click on the head of a column to sort."
)
_AROUND_PX: Final = 80
"""Title, axis and legend of a chart: its place is kept until it is drawn."""

_CHART_MARK: Final = '<figure class="chart"'


def _data_cell(cell: Cell) -> str:
    order = "" if cell.order is None else f' data-sort="{escaped(str(cell.order))}"'
    return f"<td{order}>{_inner(cell)}</td>"


def _inner(cell: Cell) -> str:
    text = escaped(cell.text)
    if cell.anchor is not None:
        text = f'<a href="#{escaped(cell.anchor)}">{text}</a>'
    if cell.is_alarm:
        text = f'<span class="alarm">{text}</span>'
    if cell.is_quiet:
        text = f"<i>{text}</i>"
    return f"{text}<small>{escaped(cell.small)}</small>" if cell.small else text


def _json(value: Any) -> str:  # noqa: ANN401 - JSON
    """JSON that ends no script element and opens none. Numbers that JSON lacks become null."""
    text = json.dumps(_finite(value), separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def _code(name: str) -> str:
    folder = files("ackgate.pipeline.report") / "vendored"
    if not (folder / name).is_file():
        folder = files("ackgate.pipeline.report")
    return _as_element((folder / name).read_text(encoding="utf-8"))


@cache
def _draw() -> str:
    return _code("draw.js")


@cache
def _vega() -> str:
    """Vega, Vega-Lite and Vega-Embed: 0.9 MB. Takes a second or two, once in a process."""
    import vl_convert  # noqa: PLC0415 - of the extra `spark`

    bundle: Any = (
        vl_convert.javascript_bundle
    )  # whose types ask for an argument that it does not need
    return _as_element(bundle())


def _as_element(code: str) -> str:
    """Code that a script element can hold."""
    return code.replace("</script", "<\\/script").strip()
