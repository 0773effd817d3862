"""Which range limit applied to a subscription, since when, and when it shut the gate.

Pure. The limit comes from the first of these sources that has one:

    --limit TOPIC=N, NAMESPACE=N, N      one limit for the whole time
    delivery journal                     the topic's limits at the time: a step for each change
    --config FILE                        the limit in that broker.conf
    default                              the limit of a broker without a broker.conf

When a gate was shut is in the delivery journal, or guessed: records show the range count at single
moments, and the gate was shut from the first with more ranges than the limit until the next at or
below it::

    ranges    5    9   12   14   11    8        limit 10
    guessed            |--------------|
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ackgate.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

LIMIT_KEY: Final = "managedLedgerMaxUnackedRangesToPersist"

GUESSES_MAX: Final = 300
"""Most guesses for one subscription; the newest are kept."""

FROM_OPTION: Final = "option"
FROM_JOURNAL: Final = "journal"
FROM_CONFIG: Final = "config"
FROM_DEFAULT: Final = "default"


class LimitStep(NamedTuple):
    """A limit that applies from `from_ms` on."""

    from_ms: int
    limit: int


@dataclass(frozen=True, slots=True)
class RangeLimits:
    """The limit of one subscription over time."""

    steps: tuple[LimitStep, ...]
    """At least one, in order of time. The first also applies before its time: no older is known."""
    source: str
    """`FROM_OPTION`, `FROM_JOURNAL`, `FROM_CONFIG` or `FROM_DEFAULT`."""

    @property
    def newest(self) -> int:
        """The limit of the last step."""
        return self.steps[-1].limit

    def at(self, times_ms: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the limit at each time."""
        begins = np.array([step.from_ms for step in self.steps], np.int64)
        limits = np.array([step.limit for step in self.steps], np.int64)
        return limits[np.maximum(np.searchsorted(begins, times_ms, side="right") - 1, 0)]


@dataclass(frozen=True, slots=True)
class LimitRule:
    """Limits from ``--limit`` and ``--config``, and how they combine with the journal's."""

    configured: int
    """The limit of ``--config``, or the broker's default."""
    is_default: bool = False
    """Whether `configured` is the default, because ``--config`` was not given."""
    asked: int | None = None
    """``--limit N``, for all topics that `asked_of` does not cover; None: not given."""
    asked_of: Mapping[str, int] | None = None
    """``--limit NAME=N``, by full topic name or by namespace (``tenant/namespace``)."""

    def limits(self, topic: str, recorded: Sequence[LimitStep] = ()) -> RangeLimits:
        """Return the limits of a topic's subscriptions. `recorded`: from the journal, in order."""
        asked = self._asked(topic)
        if asked is not None:
            return RangeLimits((LimitStep(0, asked),), FROM_OPTION)
        if recorded:
            return RangeLimits(_changes(recorded), FROM_JOURNAL)
        source = FROM_DEFAULT if self.is_default else FROM_CONFIG
        return RangeLimits((LimitStep(0, self.configured),), source)

    def _asked(self, topic: str) -> int | None:
        of = self.asked_of or {}
        namespace = "/".join(topic.partition("://")[2].split("/")[:2])
        return of.get(topic, of.get(namespace, self.asked))


def limit_rule(words: Iterable[str], configured: int, *, is_default: bool) -> LimitRule:
    """Parse ``--limit`` values: ``RANGES`` or ``NAME=RANGES``. Raises `ConfigurationError`."""
    asked: int | None = None
    asked_of: dict[str, int] = {}
    for word in words:
        name, sign, digits = word.rpartition("=")
        if not (digits.isascii() and digits.isdigit()):
            raise ConfigurationError(
                f"--limit {word}: must be a number of ranges, or NAMESPACE=RANGES or TOPIC=RANGES"
            )
        if not sign:
            asked = int(digits)
        elif name.count("/") == 1 or "://" in name:
            asked_of[name] = int(digits)
        else:
            raise ConfigurationError(
                f"--limit {word}: {name!r} is neither a namespace (tenant/namespace) "
                "nor a topic (persistent://tenant/namespace/topic)"
            )
    return LimitRule(configured, is_default, asked, asked_of)


def _changes(recorded: Sequence[LimitStep]) -> tuple[LimitStep, ...]:
    """Keep the steps that change the limit. A time before that of the last step is raised to it."""
    kept = [recorded[0]]
    for step in recorded[1:]:
        if step.limit != kept[-1].limit:
            kept.append(LimitStep(max(step.from_ms, kept[-1].from_ms), step.limit))
    return tuple(kept)


@dataclass(frozen=True, slots=True)
class GateInterval:
    """A time during which the gate of a subscription was shut."""

    topic: str
    subscription: str
    from_ms: int
    until_ms: int
    is_open_ended: bool
    """The gate was still shut at the owner's last event, or at the last record."""
    reasons: str | None
    """The gate's pause reasons, joined by commas; None: the interval is a guess."""


@dataclass(frozen=True, slots=True)
class OverLimit:
    """The time from a record above the range limit to the next record at or below it."""

    from_ms: int
    until_ms: int
    is_open_ended: bool
    """No record at or below the limit follows; `until_ms` is the time of the last record."""


@dataclass(frozen=True, slots=True)
class GateHistory:
    """The pauses of one subscription's gate."""

    intervals: tuple[GateInterval, ...] = ()
    """In order of time; only the newest if there are too many."""
    count: int = 0
    """Number of all pauses, including those that `intervals` leaves out."""
    total_ms: int = 0
    """Total length of all pauses, in ms."""
    is_guessed: bool = False
    """Whether the pauses are guessed, because the topic has no journal."""


def over_limit(
    times_ms: NDArray[np.int64], ranges: NDArray[np.int64], limits: NDArray[np.int64]
) -> list[OverLimit]:
    """Return the times above the limit, the newest `GUESSES_MAX`. `times_ms` ascends, not empty."""
    is_over = np.concatenate(([False], ranges > limits, [False]))
    edges = np.flatnonzero(is_over[1:] != is_over[:-1]).reshape(-1, 2)[-GUESSES_MAX:]
    last = len(times_ms) - 1
    return [
        OverLimit(int(times_ms[first]), int(times_ms[min(end, last)]), end > last)
        for first, end in edges.tolist()
    ]
