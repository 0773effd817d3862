"""Delayed delivery: its settings (trackers, buckets, the shared index), and the policy `delayedDelivery`.

Pure. The policy is Pulsar's ``DelayedDeliveryPolicies``, at a namespace or a topic: whether messages with a
delivery time wait, how exactly, how long::

    {"active": true, "tickTime": 1000, "maxDeliveryDelayInMillis": 0}

As in Pulsar a policy says all three: what its JSON leaves out is false, 0 and 0, and the topic's
wins over the namespace's, and that over the broker's settings. One field is softer here: a
``tickTime`` of 0 is no tick, so that of the level above holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, Self

from ackgate.config import defaults
from ackgate.config.field import INT_MAX, SettingsGroup, setting
from ackgate.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Iterable

IN_MEMORY_FACTORY = "org.apache.pulsar.broker.delayed.InMemoryDelayedDeliveryTrackerFactory"
BUCKET_FACTORY = "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"


class DelayedSettings(SettingsGroup):
    """Which entries wait for their time, where that is remembered, and how exact it is."""

    delayed_delivery_enabled: bool = setting(
        True,
        "Whether a message with a delivery time waits for it, on Shared and Key_Shared "
        "subscriptions. Namespaces and topics may have their own value.",
        pulsar=True,
    )
    delayed_delivery_tracker_factory_class_name: Literal[
        "org.apache.pulsar.broker.delayed.InMemoryDelayedDeliveryTrackerFactory",
        "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory",
    ] = setting(
        IN_MEMORY_FACTORY,
        "Which tracker a subscription gets: the first keeps time buckets in memory, the second "
        "keeps sealed buckets in ledgers (PIP-195) and memory small.",
        pulsar=IN_MEMORY_FACTORY,
    )
    delayed_delivery_tick_time_millis: int = setting(
        defaults.DELAY_TICK_MS,
        "How exact delivery times are. Times are kept as multiples of the largest power of two "
        "that is not above it.",
        unit="ms",
        pulsar=1_000,
        ge=1,
        le=INT_MAX,
    )
    is_delayed_delivery_deliver_at_time_strict: bool = setting(
        False,
        "Never deliver before its time, and up to a tick late. When off, up to a tick early if "
        "other messages come or are acked.",
        pulsar=False,
    )
    delayed_delivery_fixed_delay_detection_lookahead: int = setting(
        defaults.FIXED_DELAY_LOOKAHEAD,
        "With so many entries waiting whose times only ever grew, a subscription reads no further "
        "until one of them is due. 0: it always reads on.",
        unit="entries",
        pulsar=50_000,
        ge=0,
        le=INT_MAX,
    )
    delayed_delivery_max_delay_in_millis: int = setting(
        0,
        "A message that is to wait longer than this from its publishing on is refused. 0: no "
        "limit. Namespaces and topics may have their own value.",
        unit="ms",
        pulsar=0,
        ge=0,
        le=2**63 - 1,
    )
    delayed_delivery_min_index_count_per_bucket: int = setting(
        defaults.BUCKET_ENTRIES_MIN,
        "A bucket in memory with so many entries is sealed at the next change of ledger.",
        unit="entries",
        pulsar=50_000,
        ge=1,
        le=INT_MAX,
    )
    delayed_delivery_max_index_count_per_bucket: int = setting(
        defaults.BUCKET_ENTRIES_MAX,
        "A bucket in memory with so many entries is sealed within a ledger, too.",
        unit="entries",
        ge=1,
        le=INT_MAX,
    )
    delayed_delivery_max_bucket_age_seconds: int = setting(
        defaults.BUCKET_AGE_SECONDS_MAX,
        "A bucket in memory is sealed when its oldest entry has been in it for so long and it has "
        "a tenth of the entries asked for at least. 0: age seals none.",
        unit="s",
        ge=0,
        le=INT_MAX,
    )
    delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds: int = setting(
        defaults.SEGMENT_SPAN_SECONDS,
        "A segment of a snapshot spans no more than this.",
        unit="s",
        pulsar=300,
        ge=1,
        le=INT_MAX,
    )
    delayed_delivery_max_indexes_per_bucket_snapshot_segment: int = setting(
        defaults.SEGMENT_ENTRIES_MAX,
        "A segment of a snapshot has no more entries than this. -1: no limit.",
        unit="entries",
        pulsar=5_000,
        ge=-1,
        le=INT_MAX,
    )
    delayed_delivery_max_num_buckets: int = setting(
        defaults.BUCKETS_MAX,
        "With more sealed buckets than this, neighbours are merged. -1: never.",
        unit="buckets",
        pulsar=-1,
        ge=-1,
        le=INT_MAX,
    )
    delayed_delivery_shared_index_enabled: bool = setting(
        False,
        "Keep one index of delayed messages for each topic, and not one for each subscription.",
    )


DELAYED_DELIVERY: Final = "delayedDelivery"

MAX_DELAY_MS_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class DelayedDeliveryPolicy:
    """The policy of one level (topic, namespace or broker), or of all together (`effective`)."""

    is_active: bool = False
    """Whether messages with a delivery time wait for it."""

    tick_ms: int = 0
    """How exact delivery times are, in ms. 0 in one level: as the level above."""

    max_delay_ms: int = 0
    """Messages whose delay from publishing would be longer are rejected. 0: no limit."""

    def __post_init__(self) -> None:
        """Raises `CallerError` naming the field that has a wrong type or value."""
        if self.is_active.__class__ is not bool:
            raise CallerError(
                f"{DELAYED_DELIVERY}: active must be true or false, not {_shown(self.is_active)}"
            )
        _check_number("tickTime", self.tick_ms, INT_MAX)
        _check_number("maxDeliveryDelayInMillis", self.max_delay_ms, MAX_DELAY_MS_MAX)

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read the policy from its JSON. Ignores unknown fields, as Pulsar does.

        Raises `CallerError` naming what is wrong with it.
        """
        if not isinstance(value, dict):
            raise CallerError(f"{DELAYED_DELIVERY} must be an object, not {_shown(value)}")
        return cls(
            value.get("active", False),
            value.get("tickTime", 0),
            value.get("maxDeliveryDelayInMillis", 0),
        )

    def to_json(self) -> dict[str, bool | int]:
        """The policy as JSON with all fields, in Pulsar's order."""
        return {
            "tickTime": self.tick_ms,
            "active": self.is_active,
            "maxDeliveryDelayInMillis": self.max_delay_ms,
        }

    @classmethod
    def effective(cls, levels: Iterable[Self | None], settings: DelayedSettings) -> Self:
        """The policy in effect. `levels`: most specific first, None where a level has no policy.

        The first level that has a policy wins, the broker's settings being the last. A tick of 0 is
        taken from the next level that has one.
        """
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
        raise CallerError(
            f"{DELAYED_DELIVERY}: {field} must be a whole number, not {_shown(value)}"
        )
    if not 0 <= value <= most:
        raise CallerError(
            f"{DELAYED_DELIVERY}: {field} must be 0 to {most} ms, not {_shown(value)}"
        )


def _shown(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 256:  # a huge number takes long to print
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."
