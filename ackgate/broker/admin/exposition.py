"""Samples gathered by metric and written as Prometheus reads them: text format 0.0.4.

Pure. All samples of a metric stand together under its type, whatever order they came in. A name
that ends in ``_total`` is a counter, any other a gauge, unless something else is said of it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Exposition:
    """The samples of one answer."""

    def __init__(
        self, labels: Mapping[str, str], kinds: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """`labels`: given to every sample. `kinds`: what metrics are whose names mislead."""
        self._kinds = kinds
        self._labels = dict(labels)
        self._lines: dict[str, list[str]] = {}

    def labelled(self, **labels: str) -> Labelled:
        """A way to add samples that have these labels."""
        return Labelled(self._lines, {**self._labels, **labels})

    def pieces(self) -> Iterator[bytes]:
        """The text, a piece for each metric."""
        for metric, samples in self._lines.items():
            usual = "counter" if metric.endswith("_total") else "gauge"
            kind = self._kinds.get(metric, usual)
            yield "\n".join((f"# TYPE {metric} {kind}", *samples, "")).encode(errors="replace")


class Labelled:
    """Adds samples to an `Exposition`, all with the same labels."""

    __slots__ = ("_labels", "_lines", "_suffix")

    def __init__(self, lines: dict[str, list[str]], labels: Mapping[str, str]) -> None:
        self._lines = lines
        self._labels = labels
        pairs = ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in labels.items())
        self._suffix = f"{{{pairs}}} "

    def labelled(self, **labels: str) -> Labelled:
        """A way to add samples that have these labels besides."""
        return Labelled(self._lines, {**self._labels, **labels})

    def add(self, metric: str, value: float) -> None:
        """One sample."""
        number = int(value) if isinstance(value, bool) else value
        self._lines.setdefault(metric, []).append(f"{metric}{self._suffix}{number}")
