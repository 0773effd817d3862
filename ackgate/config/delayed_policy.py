"""The policy `delayedDelivery`: whether messages with a delivery time wait, how exactly, how long.

Pure. Pulsar's ``DelayedDeliveryPolicies``, at a namespace or a topic::

    {"active": true, "tickTime": 1000, "maxDeliveryDelayInMillis": 0}

As in Pulsar a policy says all three: what its JSON leaves out is false, 0 and 0, and the topic's
wins over the namespace's, and that over the broker's settings. One field is softer here: a
``tickTime`` of 0 is no tick, so that of the level above holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

from ackgate.config.field import INT_MAX
from ackgate.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackgate.config.delayed import DelayedSettings

NAME: Final = "delayedDelivery"

MAX_DELAY_MS_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class DelayedDeliveryPolicy:
    """Delayed delivery as one level says it, or as it holds (`effective`)."""

    is_active: bool = False
    """Whether messages with a delivery time wait for it."""

    tick_ms: int = 0
    """How exact delivery times are. 0, of one level: as the level above says."""

    max_delay_ms: int = 0
    """What is to wait longer from its publishing on is refused. 0: no limit."""

    def __post_init__(self) -> None:
        """Raises `CallerError` naming the field that cannot be."""
        if self.is_active.__class__ is not bool:
            raise CallerError(f"{NAME}: active must be true or false, not {_told(self.is_active)}")
        _check_number("tickTime", self.tick_ms, INT_MAX)
        _check_number("maxDeliveryDelayInMillis", self.max_delay_ms, MAX_DELAY_MS_MAX)

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Of the policy's JSON; fields that it does not know are passed over, as Pulsar does.

        Raises `CallerError` naming what is wrong with it.
        """
        if not isinstance(value, dict):
            raise CallerError(f"{NAME} must be an object, not {_told(value)}")
        return cls(
            value.get("active", False),
            value.get("tickTime", 0),
            value.get("maxDeliveryDelayInMillis", 0),
        )

    def to_json(self) -> dict[str, bool | int]:
        """The policy's JSON, complete, in Pulsar's order."""
        return {
            "tickTime": self.tick_ms,
            "active": self.is_active,
            "maxDeliveryDelayInMillis": self.max_delay_ms,
        }

    @classmethod
    def effective(cls, levels: Iterable[Self | None], settings: DelayedSettings) -> Self:
        """What holds, of the levels that say something, the most specific first."""
        set_levels = [level for level in levels if level is not None]
        broker = cls(
            settings.delayed_delivery_enabled,
            settings.delayed_delivery_tick_time_millis,
            settings.delayed_delivery_max_delay_in_millis,
        )
        set_levels.append(broker)
        tick_ms = next(level.tick_ms for level in set_levels if level.tick_ms)
        return replace(set_levels[0], tick_ms=tick_ms)


def _check_number(field: str, value: object, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise CallerError(f"{NAME}: {field} must be a whole number, not {_told(value)}")
    if not 0 <= value <= most:
        raise CallerError(f"{NAME}: {field} must be 0 to {most} ms, not {_told(value)}")


def _told(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 256:  # its digits would take their time
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."
