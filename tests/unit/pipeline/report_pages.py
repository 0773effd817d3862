"""Reads a report as a browser would: elements, words, tables and the specifications of its charts."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import pytest

VOID = frozenset({"meta", "br"})


class ReadPage(HTMLParser):
    """Asserts that every element that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.tags: list[str] = []
        self.links: list[str] = []
        self.anchors: list[str] = []
        self.words = ""
        self.alarms: list[str] = []
        self.charts: dict[str, dict[str, Any]] = {}
        """By title; the last of each title."""
        self.rows: list[list[str]] = []
        """Of all tables: the texts of the cells."""
        self.orders: list[list[str | None]] = []
        """Of the same cells: what they are sorted by."""
        self.policy = ""
        self.code: list[str] = []
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.tags.append(tag)
        self.links += [known[name] or "" for name in ("href", "src") if name in known]
        if tag == "section" and known.get("id"):
            self.anchors.append(known["id"] or "")
        if known.get("http-equiv") == "Content-Security-Policy":
            self.policy = known["content"] or ""
        if tag == "tr":
            self.rows.append([])
            self.orders.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")
            self.orders[-1].append(known.get("data-sort"))
        if tag not in VOID:
            self._open.append((tag, known))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        tag, attributes = self._open[-1] if self._open else ("", {})
        within = [name for name, _ in self._open]
        if tag == "script" and attributes.get("type") == "application/json":
            spec = json.loads(data)
            self.charts[spec["title"]["text"]] = spec
        elif tag == "script":
            self.code.append(data)
        elif tag != "style":
            self.words += data
            if within[-2:-1] in (["td"], ["th"]) or tag in {"td", "th"} or "td" in within:
                self.rows[-1][-1] += f"{data} " if tag != "small" else f"({data})"
            if attributes.get("class") == "alarm":
                self.alarms.append(data)

    def data(self, chart: str, name: str) -> list[dict[str, Any]]:
        """A data set of a chart."""
        rows: list[dict[str, Any]] = self.charts[chart]["datasets"][name]
        return rows


def read_page(text: str) -> ReadPage:
    """The page, which must be harmless whatever names are in it, and fetch nothing."""
    page = ReadPage(text)
    assert not set(page.tags) & {"link", "img", "iframe", "image", "object", "embed", "base"}
    assert all(link.startswith("#s") for link in page.links)
    assert page.policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in page.policy
    return page


def compiled(spec: dict[str, Any]) -> dict[str, Any]:
    """What Vega-Lite makes of it. Fails for a specification that it does not understand."""
    vl_convert = pytest.importorskip("vl_convert")
    vega: dict[str, Any] = vl_convert.vegalite_to_vega(spec)
    return vega
