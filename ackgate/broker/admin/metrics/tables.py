"""Metrics in tables, and their samples in Prometheus' text format 0.0.4.

Pure. A table is about one kind of thing (broker, topic, cursor ...): a row has a metric's name, its
HELP line, and where the value comes from. Rows of statistics are made of the descriptions at their
fields (`ackgate.described`). All samples of a metric stand together below its HELP and TYPE lines,
in whatever order they were added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ackgate.described import descriptions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})

Sample: TypeAlias = tuple[Mapping[str, str], float]
"""Labels besides the table's, and the value."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """The value of a histogram, or of a summary without quantiles."""

    count: int
    sum: float
    buckets: Sequence[tuple[str, int]] = ()
    """Upper bounds, and how many were at or below each, without the infinite one. Empty for a
    summary."""


class Metric(NamedTuple):
    """A metric: its name, its meaning, and where its value comes from."""

    name: str
    meaning: str
    """One sentence, without the full stop."""
    read: Callable[[Any], float | list[Sample] | Distribution | None]
    """Returns the value, several with labels of their own, or None if there is none."""
    kind: str = ""
    """The value of `type`, if the name does not decide it: ``_total`` means counter, all else
    gauge."""

    unit: str = ""
    """``bytes``, ``seconds``, ``per second`` ... Empty: a count of what the meaning names, or a
    switch."""

    @property
    def text(self) -> str:
        """The HELP line: the meaning with its unit."""
        return f"{self.meaning}, {self.unit}" if self.unit else self.meaning

    @property
    def type(self) -> str:
        """``counter``, ``gauge``, ``histogram`` or ``summary``."""
        return self.kind or ("counter" if self.name.endswith("_total") else "gauge")


class Exposition:
    """The samples of one answer to a scrape."""

    def __init__(
        self, labels: Mapping[str, str], metrics: Mapping[str, Metric] = MappingProxyType({})
    ) -> None:
        """`labels`: added to every sample. `metrics`: the descriptions, by name."""
        self._metrics = metrics
        self._labels = dict(labels)
        self._lines: dict[str, list[str]] = {}

    def labelled(self, **labels: str) -> Labelled:
        """Returns an object that adds samples with these labels."""
        return Labelled(self._lines, {**self._labels, **labels})

    def extend(self, name: str, samples: Iterable[str]) -> None:
        """Add samples of a metric that another process has written: see `samples_of`."""
        self._lines.setdefault(name, []).extend(samples)

    def pieces(self) -> Iterator[bytes]:
        """The text of the answer, a piece for each metric."""
        for name, samples in self._lines.items():
            metric = self._metrics.get(name) or Metric(name, "", lambda _: None)
            head = [f"# TYPE {name} {metric.type}"]
            if metric.meaning:
                head.insert(0, f"# HELP {name} {metric.text.translate(_HELP_ESCAPES)}")
            yield "\n".join((*head, *samples, "")).encode(errors="replace")


def samples_of(text: str) -> Iterator[tuple[str, list[str]]]:
    """Split a text that an `Exposition` made. Yields each metric's name and lines of samples."""
    for part in f"\n{text}".split("\n# TYPE ")[1:]:
        head, *lines = part.split("\n")
        yield head.partition(" ")[0], [line for line in lines if line and not line.startswith("#")]


class Labelled:
    """Adds samples to an `Exposition`, all with the same labels."""

    __slots__ = ("_labels", "_lines", "_suffix")

    def __init__(self, lines: dict[str, list[str]], labels: Mapping[str, str]) -> None:
        self._lines = lines
        self._labels = labels
        pairs = ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in labels.items())
        self._suffix = f"{{{pairs}}} "

    def labelled(self, **labels: str) -> Labelled:
        """Returns an object that adds samples with these labels, too."""
        return Labelled(self._lines, {**self._labels, **labels})

    def add(self, metric: str, value: float) -> None:
        self._add(metric, metric, value)

    def add_distribution(self, metric: Metric, value: Distribution) -> None:
        """Add all samples of a histogram or a summary."""
        name = metric.name
        if metric.type == "histogram":
            for bound, count in (*value.buckets, ("+Inf", value.count)):
                self.labelled(le=bound)._add(name, f"{name}_bucket", count)
        self._add(name, f"{name}_sum", value.sum)
        self._add(name, f"{name}_count", value.count)

    def _add(self, metric: str, sample: str, value: float) -> None:
        number = int(value) if isinstance(value, bool) else value
        self._lines.setdefault(metric, []).append(f"{sample}{self._suffix}{number}")


class MetricTable(NamedTuple):
    """The metrics of one kind of thing."""

    title: str
    labels: str
    """Names of the samples' labels, for the reference page."""
    metrics: Sequence[Metric]

    def add(self, labelled: Labelled, source: object) -> None:
        """Add the samples of one thing."""
        for metric in self.metrics:
            value = metric.read(source)
            if value is None:
                continue
            if isinstance(value, Distribution):
                labelled.add_distribution(metric, value)
            elif isinstance(value, list):
                for labels, number in value:
                    labelled.labelled(**labels).add(metric.name, number)
            else:
                labelled.add(metric.name, value)


def described(
    kind: type, lead: Callable[[Any], object | None] | None = None, *, but: Collection[str] = ()
) -> Iterator[Metric]:
    """A row for each field of `kind` whose description names a metric, except for `but`.

    `lead`: gets from what a table is about to the described value, or to None if there is none.
    """
    for name, about in descriptions(kind).items():
        if about.metric and name not in but:
            yield Metric(about.metric, about.meaning, reader(name, lead), unit=about.unit)


def reader(name: str, lead: Callable[[Any], object | None] | None) -> Callable[[Any], Any]:
    """A function that reads an attribute of the source, or of what `lead` returns for it."""
    read = attrgetter(name)
    if lead is None:
        return read

    def value(source: object) -> Any:  # noqa: ANN401 - an attribute
        described = lead(source)
        return None if described is None else read(described)

    return value


def rows_of(path: str, *rows: tuple[str, str, str] | tuple[str, str, str, str]) -> Iterator[Metric]:
    """Rows about one object. `path` leads to it; each row has attribute, name, meaning and unit."""
    prefix = f"{path}." if path else ""
    for attribute, name, meaning, *unit in rows:
        yield Metric(
            name, meaning, attrgetter(f"{prefix}{attribute}"), unit=unit[0] if unit else ""
        )
