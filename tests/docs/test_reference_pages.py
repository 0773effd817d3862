"""`docs/admin.md` says what the routes say, and `docs/metrics.md` what the tables of metrics say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ackgate.broker.admin.document import admin_page, metrics_page
from ackgate.broker.admin.metrics import TABLES

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("name", "made"), [("admin.md", admin_page), ("metrics.md", metrics_page)])
def test_the_page_is_fresh(name: str, made: Callable[[], str], *, rewrite: bool) -> None:
    page = DOCS / name
    if rewrite:
        page.write_text(made())
    assert page.read_text() == made(), "run pytest --rewrite and read the difference"


def test_every_metric_says_what_it_means() -> None:
    metrics = [metric for table in TABLES for metric in table.metrics]
    assert len(metrics) > 100
    assert [metric.name for metric in metrics if not metric.meaning] == []


def test_a_name_has_one_kind_and_one_unit() -> None:
    known: dict[str, tuple[str, str]] = {}
    for table in TABLES:
        for metric in table.metrics:
            this = metric.type, metric.unit
            assert known.setdefault(metric.name, this) == this


UNITS = {
    "_timestamp_seconds": "seconds since 1970",
    "process_start_time_seconds": "seconds since 1970",
    "_seconds": "seconds",
    "_seconds_total": "seconds",
    "_bytes": "bytes",
    "_bytes_total": "bytes",
}


def test_names_and_units_agree() -> None:
    for table in TABLES:
        for metric in table.metrics:
            of_name = next((UNITS[end] for end in UNITS if metric.name.endswith(end)), "")
            assert metric.unit == of_name or metric.name.startswith("pulsar_"), metric.name
            assert of_name in ("", metric.unit), metric.name
