"""The dispatch gate: pauses normal reads before they make ack state that cannot be stored.

Pure. Its methods take counts, persist outcomes and the time, and return whether the gate has just
opened or closed; it owns no clock, lock or cursor. It is open exactly when no reason holds.

::

    reason            holds while
    ----------------  --------------------------------------------------------------------------
    RANGES_LIVE       the cursor has more ack ranges than the limit            } until at or below
    RANGES_PERSISTED  it had when last persisted, or entries were dropped then } the resume mark
    BATCH_INDEXES     more partly acked entries than their limit, or some were dropped
    SIZE_GUARD        the metadata store's size guard cut the last write
    PERSIST_FAILING   nothing could be persisted for ``persist_failure_pause_ms``
    BUDGET            strict: no entry may be sent without the ranges being able to pass the limit

                 the first reason arises
        OPEN -----------------------------> SHUT     Each edge is reported once, by the call
             <-----------------------------          that crossed it.
                 the last reason ends

Pulsar's mode has RANGES_LIVE only, with the resume mark at the limit itself. The gate never pauses
replays; the dispatcher sees to that.

While the setting is off no reason holds, but the counts are kept: they apply as soon as it is on.
"""

from __future__ import annotations

import enum
import sys
from collections import deque
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.config import defaults
from ackgate.described import statistic
from ackgate.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.config.settings import Settings
    from ackgate.cursor import WrittenCounts

_UNBOUNDED: Final = sys.maxsize

PAUSES_MAX: Final = 32
"""Past pauses that a gate remembers; a gate that never shut keeps nothing."""


class PauseReason(enum.Enum):
    """Why normal reads are held back."""

    RANGES_LIVE = "ranges-live"
    RANGES_PERSISTED = "ranges-persisted"
    BATCH_INDEXES = "batch-indexes"
    SIZE_GUARD = "size-guard"
    PERSIST_FAILING = "persist-failing"
    BUDGET = "budget"


class Pause(NamedTuple):
    """A time during which the gate was shut."""

    since_ms: int
    until_ms: int | None
    """None: it still is."""
    reasons: tuple[PauseReason, ...]
    """All that held at some time of it, in the order in which they arose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings:
    """When reads stop and when they may go on. Each is a setting, with its default."""

    enabled: bool = False
    """``dispatcherPauseOnAckStatePersistentEnabled``."""

    ranges_max: int = defaults.RANGES_MAX
    """``managedLedgerMaxUnackedRangesToPersist``: above it reads pause."""

    batch_indexes_max: int = defaults.BATCH_INDEXES_MAX
    """``managedLedgerMaxBatchDeletedIndexToPersist``, in partly acked entries."""

    resume_ranges: int | None = None
    """``dispatcherPauseOnAckStateResumeRanges`` (own): at or below it reads go on; None: at or
    below ``ranges_max``. The gap keeps a cursor at the limit from flapping."""

    is_strict: bool = False
    """``dispatcherPauseOnAckStateStrictEnabled`` (own): obey the budget too."""

    persist_failure_pause_ms: int = 1000 * defaults.PERSIST_FAILURE_PAUSE_SECONDS
    """``ackStatePersistFailurePauseSeconds`` (own)."""

    def __post_init__(self) -> None:
        for name in ("ranges_max", "batch_indexes_max", "persist_failure_pause_ms"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.resume_ranges is not None and not 0 <= self.resume_ranges <= self.ranges_max:
            raise ConfigurationError(
                f"resume_ranges must lie in 0..{self.ranges_max} (ranges_max), "
                f"got {self.resume_ranges}"
            )

    @property
    def resume_mark(self) -> int:
        """The range count at or below which reads go on."""
        return self.ranges_max if self.resume_ranges is None else self.resume_ranges


@dataclass(frozen=True, slots=True)
class GateStatistics:
    """What the gate knows and concludes, frozen."""

    is_enabled: bool = statistic("Whether the gate can shut")
    is_strict: bool = statistic("Whether it obeys the budget, too")
    is_open: bool = statistic("1 while the gate lets deliveries pass", "", "ackgate_gate_open")
    reasons: Mapping[PauseReason, int] = statistic(
        "Why it is shut, and since when", "ms since 1970"
    )
    shut_since_ms: int | None = statistic("When it shut; null while it is open", "ms since 1970")
    shut_count: int = statistic("How often the gate has shut", "", "ackgate_gate_shut_total")
    ranges_max: int = statistic(
        "The most ranges that are persisted (`managedLedgerMaxUnackedRangesToPersist`)",
        "",
        "ackgate_ack_ranges_max",
    )
    resume_mark: int = statistic("At or below so many ranges reads go on")
    ranges_live: int = statistic("Ack ranges in memory")
    ranges_in_memory_at_persist: int = statistic(
        "Ack ranges in memory at the last durable write; 0 before it"
    )
    ranges_persisted: int = statistic("Ack ranges in the last durable write")
    batch_indexes_max: int = statistic("The most partly acked entries that are persisted")
    batch_indexes_live: int = statistic("Partly acked entries in memory")
    budget_entries: int | None = statistic(
        "Strict mode: entries that may still be delivered", "", "ackgate_gate_budget_entries"
    )
    entries_dropped: int = statistic("Acked entries that the last write left out")
    batch_indexes_dropped: int = statistic("Partly acked entries that it left out")
    is_size_guard_hit: bool = statistic("Whether the metadata node's size limit cut the last write")
    persist_failing_since_ms: int | None = statistic(
        "Since when nothing could be persisted; null: it can", "ms since 1970"
    )


class Gate:
    """Tracks the reasons that hold. Each method that reports a change returns whether the gate moved."""

    __slots__ = (
        "_batch_indexes_dropped",
        "_batch_indexes_live",
        "_budget_entries",
        "_calm_batch_indexes_max",
        "_calm_batch_indexes_min",
        "_calm_ranges_max",
        "_calm_ranges_min",
        "_dropped_below_limit",
        "_entries_dropped",
        "_failing_since_ms",
        "_past_pauses",
        "_ranges_at_persist",
        "_ranges_live",
        "_ranges_persisted",
        "_reasons",
        "_reasons_of_pause",
        "_settings",
        "_shut_count",
        "_shut_since_ms",
        "_size_guard_hit",
    )

    def __init__(self, settings: GateSettings, now_ms: int) -> None:
        self._settings = settings
        self._reasons: dict[PauseReason, int] = {}
        self._shut_since_ms: int | None = None
        self._shut_count = 0
        self._reasons_of_pause: tuple[PauseReason, ...] = ()
        self._past_pauses: deque[Pause] | None = None
        self._ranges_live = 0
        self._batch_indexes_live = 0
        self._ranges_at_persist = 0
        self._ranges_persisted = 0
        self._entries_dropped = 0
        self._batch_indexes_dropped = 0
        self._size_guard_hit = False
        # Entries dropped though the range limit did not ask for it (the fallback's smaller cap):
        # raising the limit does not heal that, only another write does.
        self._dropped_below_limit = False
        self._failing_since_ms: int | None = None
        self._budget_entries: int | None = None
        # Counts within these bounds change no reason: `observe` compares and is done.
        self._calm_ranges_min = self._calm_batch_indexes_min = 0
        self._calm_ranges_max = self._calm_batch_indexes_max = _UNBOUNDED
        self._judge(now_ms)

    @property
    def is_open(self) -> bool:
        """Whether normal reads may go on."""
        return self._shut_since_ms is None

    @property
    def reasons(self) -> Mapping[PauseReason, int]:
        """The reasons that hold, and since when, in ms. A copy."""
        return MappingProxyType(dict(self._reasons))

    @property
    def shut_since_ms(self) -> int | None:
        """When it shut; None while it is open."""
        return self._shut_since_ms

    @property
    def pauses(self) -> tuple[Pause, ...]:
        """The latest pauses, at most `PAUSES_MAX` and the one that lasts; oldest first."""
        past = tuple(self._past_pauses or ())
        if self._shut_since_ms is None:
            return past
        return (*past, Pause(self._shut_since_ms, None, self._reasons_of_pause))

    @property
    def settings(self) -> GateSettings:
        """What the gate judges by."""
        return self._settings

    @property
    def keeps_budget(self) -> bool:
        """Whether it obeys a budget that nothing may exceed: an enabled gate in strict mode."""
        return self._settings.is_strict and self._settings.enabled

    def configure(self, settings: GateSettings, now_ms: int) -> bool:
        """Use these settings at once, for what is known now."""
        self._settings = settings
        return self._judge(now_ms)

    def observe(self, *, ranges_live: int, batch_indexes_live: int, now_ms: int) -> bool:
        """The cursor's counts after an ack, skip, clear or reset. Cheap while nothing changes."""
        self._ranges_live = ranges_live
        self._batch_indexes_live = batch_indexes_live
        if (
            self._calm_ranges_min <= ranges_live <= self._calm_ranges_max
            and self._calm_batch_indexes_min <= batch_indexes_live <= self._calm_batch_indexes_max
        ):
            return False
        return self._judge(now_ms)

    def persisted(self, written: WrittenCounts, now_ms: int) -> bool:
        """Take the outcome of a durable write of the ack state."""
        self._ranges_at_persist = written.ranges_in_memory
        self._ranges_persisted = written.ranges_persisted
        self._entries_dropped = written.entries_dropped
        self._batch_indexes_dropped = written.batch_indexes_dropped
        self._size_guard_hit = written.size_guard_hit
        self._dropped_below_limit = (
            written.entries_dropped > 0
            and not written.size_guard_hit
            and written.ranges_in_memory <= self._settings.ranges_max
        )
        self._failing_since_ms = None
        return self._judge(now_ms)

    def persist_failing(self, since_ms: int | None, now_ms: int) -> bool:
        """Writes have been failing since then; None: they work."""
        if since_ms == self._failing_since_ms:
            return False
        self._failing_since_ms = since_ms
        return self._judge(now_ms)

    def budget(self, entries: int | None, now_ms: int) -> bool:
        """How many entries may be sent without risk for the limit; None: no budget is kept."""
        was = self._budget_entries
        self._budget_entries = entries
        if was == entries or (
            was is not None and entries is not None and (was > 0) == (entries > 0)
        ):
            return False
        return self._judge(now_ms)

    @property
    def next_deadline_ms(self) -> int | None:
        """When `advance` will have something to say; None: never as things stand."""
        if (
            self._failing_since_ms is None
            or not self._settings.enabled
            or PauseReason.PERSIST_FAILING in self._reasons
        ):
            return None
        return self._failing_since_ms + self._settings.persist_failure_pause_ms

    def advance(self, now_ms: int) -> bool:
        deadline_ms = self.next_deadline_ms
        return deadline_ms is not None and now_ms >= deadline_ms and self._judge(now_ms)

    def statistics(self) -> GateStatistics:
        return GateStatistics(
            is_enabled=self._settings.enabled,
            is_strict=self._settings.is_strict,
            is_open=self.is_open,
            reasons=dict(self._reasons),
            shut_since_ms=self._shut_since_ms,
            shut_count=self._shut_count,
            ranges_max=self._settings.ranges_max,
            resume_mark=self._settings.resume_mark,
            ranges_live=self._ranges_live,
            ranges_in_memory_at_persist=self._ranges_at_persist,
            ranges_persisted=self._ranges_persisted,
            batch_indexes_max=self._settings.batch_indexes_max,
            batch_indexes_live=self._batch_indexes_live,
            budget_entries=self._budget_entries if self._settings.is_strict else None,
            entries_dropped=self._entries_dropped,
            batch_indexes_dropped=self._batch_indexes_dropped,
            is_size_guard_hit=self._size_guard_hit,
            persist_failing_since_ms=self._failing_since_ms,
        )

    def check(self) -> None:
        settings = self._settings
        assert self.is_open == (not self._reasons)
        assert settings.enabled or not self._reasons
        assert self._reasons.keys() == self._standing(now_ms=None), (self._reasons, self)
        if self._shut_since_ms is not None:
            assert self._shut_since_ms <= min(self._reasons.values())
        if PauseReason.RANGES_LIVE not in self._reasons and settings.enabled:
            assert self._ranges_live <= settings.ranges_max

    # -- judging --------------------------------------------------------------------------------

    def _judge(self, now_ms: int) -> bool:
        """Bring the reasons up to date with the facts; True on an edge."""
        standing = self._standing(now_ms)
        reasons = self._reasons
        for reason in [reason for reason in reasons if reason not in standing]:
            del reasons[reason]
        for reason in PauseReason:
            if reason in standing:
                reasons.setdefault(reason, now_ms)
        if reasons:
            known = self._reasons_of_pause
            self._reasons_of_pause += tuple(reason for reason in reasons if reason not in known)
        self._set_calm()
        was_open = self._shut_since_ms is None
        if was_open == (not reasons):
            return False
        if self._shut_since_ms is not None:
            self._past_pauses = self._past_pauses or deque(maxlen=PAUSES_MAX)
            self._past_pauses.append(Pause(self._shut_since_ms, now_ms, self._reasons_of_pause))
            self._reasons_of_pause = ()
        self._shut_since_ms = now_ms if reasons else None
        self._shut_count += was_open
        return True

    def _standing(self, now_ms: int | None) -> set[PauseReason]:
        """The reasons that the facts give. Without a time, a failure keeps its verdict."""
        settings = self._settings
        standing: set[PauseReason] = set()
        if not settings.enabled:
            return standing
        if self._is_above(PauseReason.RANGES_LIVE, self._ranges_live):
            standing.add(PauseReason.RANGES_LIVE)
        if self._dropped_below_limit or self._is_above(
            PauseReason.RANGES_PERSISTED, self._ranges_at_persist
        ):
            standing.add(PauseReason.RANGES_PERSISTED)
        if self._batch_indexes_dropped or self._batch_indexes_live > settings.batch_indexes_max:
            standing.add(PauseReason.BATCH_INDEXES)
        if self._size_guard_hit:
            standing.add(PauseReason.SIZE_GUARD)
        if self._failing_since_ms is not None and (
            PauseReason.PERSIST_FAILING in self._reasons
            if now_ms is None
            else now_ms - self._failing_since_ms >= settings.persist_failure_pause_ms
        ):
            standing.add(PauseReason.PERSIST_FAILING)
        if settings.is_strict and self._budget_entries is not None and self._budget_entries <= 0:
            standing.add(PauseReason.BUDGET)
        return standing

    def _is_above(self, reason: PauseReason, ranges: int) -> bool:
        # Between the two marks nothing changes: that gap is the hysteresis.
        if reason in self._reasons:
            return ranges > self._settings.resume_mark
        return ranges > self._settings.ranges_max

    def _set_calm(self) -> None:
        """Up to which counts `observe` need not judge."""
        settings = self._settings
        self._calm_ranges_min = self._calm_batch_indexes_min = 0
        self._calm_ranges_max = self._calm_batch_indexes_max = _UNBOUNDED
        if not settings.enabled:
            return
        if PauseReason.RANGES_LIVE in self._reasons:
            self._calm_ranges_min = settings.resume_mark + 1
        else:
            self._calm_ranges_max = settings.ranges_max
        if self._batch_indexes_live > settings.batch_indexes_max:
            self._calm_batch_indexes_min = settings.batch_indexes_max + 1
        else:
            self._calm_batch_indexes_max = settings.batch_indexes_max


# ------------------------------------------------------------------------------ settings


def gate_settings(settings: Settings, *, is_pausing: bool) -> GateSettings:
    """The gate of a subscription; `is_pausing`: it is switched on for it."""
    persistence, dispatcher = settings.persistence, settings.dispatcher
    return GateSettings(
        enabled=is_pausing,
        ranges_max=persistence.managed_ledger_max_unacked_ranges_to_persist,
        batch_indexes_max=persistence.managed_ledger_max_batch_deleted_index_to_persist,
        resume_ranges=dispatcher.dispatcher_pause_on_ack_state_resume_ranges or None,
        is_strict=dispatcher.dispatcher_pause_on_ack_state_strict_enabled,
        persist_failure_pause_ms=dispatcher.ack_state_persist_failure_pause_seconds * 1000,
    )
