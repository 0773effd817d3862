"""The page itself: head, cards, tables, sections.

Pure. What is called markup has been escaped; what is called text is escaped here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.pipeline.drawing.markup import escaped
from ackgate.pipeline.drawing.style import STYLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def page(title: str, source: str, body: Iterable[str], *, style: str = "") -> str:
    """`body`: markup, in order. `style`: what a job has beside the common sheet."""
    return "".join(
        (
            (
                '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
                '<meta name="viewport" content="width=device-width, initial-scale=1">'
                f"<title>{escaped(title)}</title><style>{STYLE}{style}</style></head>\n<body><main>"
            ),
            f"<h1>{escaped(title)}</h1><p>{escaped(source)}</p>",
            *body,
            "</main></body></html>\n",
        )
    )


def cards(figures: Iterable[tuple[str, str]]) -> str:
    """The few figures that matter most: number and what it counts, as text."""
    boxes = "".join(f"<div><b>{escaped(n)}</b>{escaped(words)}</div>" for n, words in figures)
    return f'<div class="cards">{boxes}</div>'


def paragraph(text: str) -> str:
    """Words."""
    return f"<p>{escaped(text)}</p>"


def cell(text: str, small: str = "", *, is_alarm: bool = False) -> str:
    """Markup of a cell: text, and some in small letters below it."""
    first = f'<span class="alarm">{escaped(text)}</span>' if is_alarm else escaped(text)
    return f"{first}<small>{escaped(small)}</small>" if small else first


def table(heads: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]]) -> str:
    """`heads`: text, and what stands in small letters below it. `rows`: of cells, as markup."""
    head = "".join(f"<th>{cell(*each)}</th>" for each in heads)
    body = "\n".join(f"<tr>{''.join(f'<td>{each}</td>' for each in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def section(*parts: str, anchor: str | None = None) -> str:
    """A box of the page, of markup; `anchor` is what links to it name."""
    named = "" if anchor is None else f' id="{escaped(anchor)}"'
    return f"<section{named}>{''.join(parts)}</section>\n"


def plots(pictures: Iterable[str]) -> str:
    """Pictures side by side, as many as the page is wide for."""
    return f'<div class="plots">{"".join(pictures)}</div>'
