"""How long nacked entries wait, and how exactly; what a delay may be. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from ackgate.dispatcher.held import TIME_MS_MAX
from ackgate.errors import CallerError

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import ArrayLike, NDArray

DELAY_MS_FLOOR: Final = 100
"""The configured delay is at least this, as with Pulsar. Backoff and delays of one nack may be less."""

PRECISION_BITS_MAX: Final = 40
"""A bucket of 35 years."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NackSettings:
    """How long nacked messages wait, and how exactly. Defaults are Pulsar's."""

    delay_ms: int = 60_000
    """``negativeAckRedeliveryDelay``: of a nack that names none, if there is no backoff."""

    backoff: MultiplierRedeliveryBackoff | None = None
    """``negativeAckRedeliveryBackoff``: by redelivery count, in place of the delay."""

    precision_bits: int = 8
    """``negativeAckPrecisionBitCnt``: come back up to ``2**bits - 1`` ms early. 0: to the ms."""

    def __post_init__(self) -> None:
        """Raise `CallerError` naming the value that is out of bounds."""
        check_ms("the redelivery delay", self.delay_ms)
        bits = self.precision_bits
        if type(bits) is not int or not 0 <= bits <= PRECISION_BITS_MAX:
            raise CallerError(f"precision bits must be 0 to {PRECISION_BITS_MAX}, not {bits!r}")

    def delay_of(self, redelivery_count: int, chance: float = 0.0) -> int:
        """The delay of a nack that names none."""
        if self.backoff is not None:
            return self.backoff.next(redelivery_count, chance)
        return max(self.delay_ms, DELAY_MS_FLOOR)

    def delays_of(
        self,
        count: int,
        delays_ms: ArrayLike | None,
        redelivery_counts: ArrayLike | None,
        chances: ArrayLike | None,
    ) -> NDArray[np.integer[Any]]:
        """The delays of so many nacks: as given, or by the settings. One, if it is that of all."""
        if delays_ms is None:
            backoff = self.backoff
            if backoff is None or redelivery_counts is None:
                return np.array([self.delay_of(0)])
            counts = np.asarray(redelivery_counts)
            if counts.ndim == 0:
                counts = np.full(count, counts)
            delays: NDArray[np.integer[Any]] = backoff.next_many(counts, chances)
        else:
            delays = np.asarray(delays_ms)
            if delays.dtype.kind not in "iu":
                raise CallerError(f"delays must be integers, got an array of {delays.dtype}")
            if delays.ndim == 0:
                return delays.reshape(1)
        if delays.shape != (count,):
            raise CallerError(f"{delays.size} delays do not pair with {count} entries")
        return delays


def check_ms(what: str, value: int, least: int = 0) -> None:
    """Raise `CallerError` naming the value if it is no whole number of milliseconds in bounds."""
    if type(value) is not int:
        raise CallerError(f"{what} must be whole milliseconds, not {value!r}")
    if not least <= value <= TIME_MS_MAX:
        raise CallerError(f"{what} must be {least} to {TIME_MS_MAX} ms, not {value}")


def deadline_ms(now_ms: int, delay_ms: int) -> int:
    """When a delay that begins now is over. Raises `CallerError` for one that cannot be."""
    if type(delay_ms) is not int or type(now_ms) is not int or delay_ms < 0 or now_ms < 0:
        check_ms("now", now_ms)
        check_ms("a redelivery delay", delay_ms)
    deadline = now_ms + delay_ms
    if deadline > TIME_MS_MAX:
        raise CallerError(f"a redelivery delay of {delay_ms} ms ends after {TIME_MS_MAX} ms")
    return deadline


# ------------------------------------------------------------------------------ backoff


@dataclass(frozen=True, slots=True)
class MultiplierRedeliveryBackoff:
    """How long to wait before an entry is delivered again: longer each time.

    `MultiplierRedeliveryBackoff` is Pulsar's, of the same name and with the same results::

        redelivery count    0    1    2    3     4     5     6     7 ...
        delay              10   20   40   80   160   320   600   600 s

    Jitter is our addition, off by default: a random share of each delay is taken off, so that messages
    that failed together do not all return together. The random number, from 0 to 1, is an argument,
    as time is.
    """

    min_delay_ms: int = 10_000
    """The first delay. 0: never any delay."""

    max_delay_ms: int = 600_000
    """The longest delay, however often the entry was redelivered."""

    multiplier: float = 2.0
    """Factor from one delay to the next; above 1."""

    jitter: float = 0.0
    """Share of a delay, 0 to 1, that chance may take off it."""

    _power_max: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        """Raise `CallerError` naming the value that is out of bounds."""
        check_ms("min_delay_ms", self.min_delay_ms)
        check_ms("max_delay_ms", self.max_delay_ms, self.min_delay_ms)
        if not _finite("multiplier", self.multiplier) > 1:
            raise CallerError(f"multiplier must be above 1, not {self.multiplier!r}")
        if not 0 <= _finite("jitter", self.jitter) <= 1:
            raise CallerError(f"jitter must be 0 to 1, not {self.jitter!r}")
        if self.min_delay_ms:
            growth = math.log(self.max_delay_ms / self.min_delay_ms)
            object.__setattr__(self, "_power_max", int(growth / math.log(self.multiplier)) + 1)

    def next(self, redelivery_count: int, chance: float = 0.0) -> int:
        """The delay of an entry that was redelivered so often; a negative count is none."""
        if isinstance(redelivery_count, bool) or not isinstance(redelivery_count, int):
            raise CallerError(
                f"a redelivery count must be a whole number, not {redelivery_count!r}"
            )
        return self._less_jitter(self._grown(redelivery_count), check_chance(chance))

    def _grown(self, redelivery_count: int) -> int:
        if redelivery_count <= 0 or self.min_delay_ms == 0:
            return self.min_delay_ms
        power = min(redelivery_count, self._power_max)
        try:
            grown = self.min_delay_ms * math.pow(self.multiplier, power)
        except OverflowError:
            return self.max_delay_ms
        return self.max_delay_ms if grown >= self.max_delay_ms else int(grown)

    def _less_jitter(self, delay_ms: int, chance: float) -> int:
        taken = self.jitter * chance
        return max(delay_ms - int(delay_ms * taken), 0) if taken else delay_ms

    def next_many(
        self, redelivery_counts: ArrayLike, chances: ArrayLike | None = None
    ) -> NDArray[np.int64]:
        """As `next`, for arrays. ``chances`` of the same length; None: no jitter."""
        counts = np.asarray(redelivery_counts)
        if counts.ndim != 1 or (counts.size and counts.dtype.kind not in "iu"):
            raise CallerError(
                f"redelivery counts must be an array of integers, got {counts.ndim} dimensions "
                f"of {counts.dtype}"
            )
        different, places = np.unique(counts, return_inverse=True)
        delays = np.array([self._grown(count) for count in different.tolist()], dtype=np.int64)
        delays = delays[places]
        if chances is None or not self.jitter:
            return delays
        drawn = np.asarray(chances, dtype=np.float64)
        if drawn.shape != counts.shape:
            raise CallerError(f"{counts.size} counts do not pair with {drawn.size} chances")
        for chance in drawn[~((drawn >= 0) & (drawn <= 1))][:1].tolist():
            check_chance(chance)
        kept = delays * (1 - self.jitter * drawn)
        return np.minimum(np.ceil(kept), np.nextafter(2.0**63, 0)).astype(np.int64)


def check_chance(chance: float) -> float:
    """The number, if it is one from 0 to 1. Else raises `CallerError` naming it."""
    if not 0 <= _finite("chance", chance) <= 1:
        raise CallerError(f"chance must be 0 to 1, not {chance!r}")
    return chance


def _finite(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise CallerError(f"{name} must be a finite number, not {value!r}")
    return value
