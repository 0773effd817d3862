"""Samples gathered by metric and written as Prometheus reads them: text format 0.0.4.

Pure. All samples of a metric stand together under its type, whatever order they came in. A name
that ends in ``_total`` is a counter, any other a gauge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Exposition:
    """The samples of one answer."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        """`labels`: given to every sample."""
        self._common = dict(labels)
        self._lines: dict[str, list[str]] = {}

    def add(self, metric: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """One sample."""
        named = {**self._common, **(labels or {})}
        pairs = ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in named.items())
        number = int(value) if isinstance(value, bool) else value
        self._lines.setdefault(metric, []).append(f"{metric}{{{pairs}}} {number}")

    def text(self) -> str:
        """Everything, a line each."""
        lines: list[str] = []
        for metric, samples in self._lines.items():
            kind = "counter" if metric.endswith("_total") else "gauge"
            lines += (f"# TYPE {metric} {kind}", *samples)
        return "\n".join(lines) + "\n"
