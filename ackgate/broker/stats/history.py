"""The last minute of some numbers, in a handful of samples: what rates and forecasts are made of.

Pure. Whoever has the numbers notes them now and then; in between nothing is paid. Samples closer
than `SPACING_MS` are not taken, those older than `WINDOW_MS` go, and while nothing changes the last
one only moves, so that an idle subscription keeps two::

    numbers   |            x----x                  window start
              |        x                               v
              |  x  x                            |--x--.-----x--x--> now
                                                 gone   kept (between two: a straight line)
"""

from __future__ import annotations

from typing import Final, NamedTuple

SPACING_MS: Final = 1_000
"""At least this long between two samples: `--watch` may ask as often as it likes."""

WINDOW_MS: Final = 60_000
"""How far back a rate looks; Pulsar averages over its minute of statistics too."""

RATE_SPAN_MS_MIN: Final = 200
"""A rate over less time than this would be noise: it is 0."""


class Sample(NamedTuple):
    """Some numbers at one time."""

    at_ms: int
    numbers: tuple[float, ...]


class History:
    """Samples of one object's numbers, oldest first. At most one a second of the last minute."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: list[Sample] = []

    @property
    def samples(self) -> tuple[Sample, ...]:
        """What is kept."""
        return tuple(self._samples)

    def note(self, now_ms: int, numbers: tuple[float, ...]) -> None:
        """The numbers are these now. Cheap; too early is ignored."""
        samples = self._samples
        if samples and now_ms - samples[-1].at_ms < SPACING_MS:
            return
        sample = Sample(now_ms, numbers)
        if len(samples) > 1 and samples[-1].numbers == samples[-2].numbers == numbers:
            samples[-1] = sample
        else:
            samples.append(sample)
        # The newest sample before the window stays: the line from it enters the window.
        while len(samples) > 1 and samples[1].at_ms <= now_ms - WINDOW_MS:
            del samples[0]

    def rates(self, now_ms: int, numbers: tuple[float, ...]) -> tuple[float, ...]:
        """Growth per second of each number over the window, given what they are now."""
        if not self._samples:
            return (0.0,) * len(numbers)
        base = self._at(max(now_ms - WINDOW_MS, self._samples[0].at_ms))
        span_ms = now_ms - base.at_ms
        if span_ms < RATE_SPAN_MS_MIN:
            return (0.0,) * len(numbers)
        return tuple(
            (after - before) * 1000 / span_ms
            for before, after in zip(base.numbers, numbers, strict=True)
        )

    def _at(self, at_ms: int) -> Sample:
        """The numbers at a time within what is kept, on the line between two samples."""
        before = self._samples[0]
        for after in self._samples:
            if after.at_ms > at_ms:
                share = (at_ms - before.at_ms) / (after.at_ms - before.at_ms)
                return Sample(
                    at_ms,
                    tuple(
                        low + (high - low) * share
                        for low, high in zip(before.numbers, after.numbers, strict=True)
                    ),
                )
            before = after
        return before
