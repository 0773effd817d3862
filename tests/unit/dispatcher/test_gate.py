"""What the gate's transcripts do not show: settings, statistics, copies."""

from __future__ import annotations

from typing import Any

import pytest

from ackgate.dispatcher import Gate, GateSettings, PauseReason
from ackgate.dispatcher.gate import PAUSES_MAX
from ackgate.errors import ConfigurationError


@pytest.mark.parametrize(
    "settings",
    [
        {"ranges_max": -1},
        {"batch_indexes_max": -1},
        {"persist_failure_pause_ms": -1},
        {"ranges_max": 10, "resume_ranges": 11},
        {"resume_ranges": -1},
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        GateSettings(**settings)


def test_statistics_tell_facts_and_reasons_and_do_not_change_later() -> None:
    gate = Gate(GateSettings(enabled=True, ranges_max=2, resume_ranges=1), 0)
    assert gate.observe(ranges_live=3, batch_indexes_live=1, now_ms=7)
    before = gate.statistics()
    reasons = gate.reasons
    assert gate.observe(ranges_live=0, batch_indexes_live=0, now_ms=9)
    assert not before.is_open
    assert before.reasons == reasons == {PauseReason.RANGES_LIVE: 7}
    assert before.shut_since_ms == 7
    assert (before.ranges_max, before.resume_mark, before.ranges_live) == (2, 1, 3)
    after = gate.statistics()
    assert after.is_open
    assert after.shut_count == 1
    assert after.reasons == {}
    assert gate.settings.ranges_max == 2


def test_a_budget_is_told_only_in_strict_mode() -> None:
    gate = Gate(GateSettings(enabled=True), 0)
    assert not gate.budget(-5, 1)
    assert gate.is_open
    assert gate.statistics().budget_entries is None
    assert gate.configure(GateSettings(enabled=True, is_strict=True), 2)
    assert gate.statistics().budget_entries == -5
    assert gate.budget(None, 3)
    assert gate.is_open


def test_past_pauses_are_remembered_with_all_their_reasons_and_bounded() -> None:
    gate = Gate(GateSettings(enabled=True, ranges_max=2, is_strict=True), 0)
    assert gate.pauses == ()
    gate.observe(ranges_live=3, batch_indexes_live=0, now_ms=10)
    gate.budget(0, 20)
    both = (PauseReason.RANGES_LIVE, PauseReason.BUDGET)
    assert gate.pauses == ((10, None, both),)
    gate.observe(ranges_live=0, batch_indexes_live=0, now_ms=30)
    assert gate.pauses == ((10, None, both),)
    gate.budget(5, 40)
    assert gate.pauses == ((10, 40, both),)
    for start in range(100, 100 + 10 * 2 * PAUSES_MAX, 10):
        gate.observe(ranges_live=3, batch_indexes_live=0, now_ms=start)
        gate.observe(ranges_live=0, batch_indexes_live=0, now_ms=start + 5)
    assert len(gate.pauses) == PAUSES_MAX
    assert gate.pauses[-1] == (start, start + 5, (PauseReason.RANGES_LIVE,))
