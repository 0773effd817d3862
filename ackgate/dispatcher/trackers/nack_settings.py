"""How long nacked entries wait, and how exactly; what a delay may be. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from ackgate.errors import CallerError

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import ArrayLike, NDArray

    from ackgate.dispatcher.trackers.backoff import MultiplierRedeliveryBackoff

TIME_MS_MAX: Final = 2**63 - 1
"""No deadline is later: a signed 64-bit number, as everywhere in Pulsar."""

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
        """Raises `CallerError` naming the value that cannot be."""
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


def check_ms(what: str, value: int) -> None:
    """Raise `CallerError` naming the value if it is no whole number of milliseconds, or too large."""
    if type(value) is not int:
        raise CallerError(f"{what} must be whole milliseconds, not {value!r}")
    if not 0 <= value <= TIME_MS_MAX:
        raise CallerError(f"{what} must be 0 to {TIME_MS_MAX} ms, not {value}")
