from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from ackgate.broker.stats.ack_state import AckState, GateForecast
from ackgate.broker.stats.holes import AckPicture, LedgerAcks
from ackgate.broker.stats.values import from_json, key_of, to_json
from ackgate.cursor import CursorStatistics, Position
from ackgate.dispatcher import Gate, GateSettings
from ackgate.errors import CorruptRecordError
from ackgate.persistence import RecoveryReport, RecoverySource

CURSOR = CursorStatistics(
    version=7,
    mark_delete=Position(3, 12),
    read_position=Position(3, 20),
    last_confirmed=Position(3, 30),
    backlog_entries=14,
    unread_entries=11,
    acked_count=4,
    range_count=2,
    hole_count=2,
    partly_acked_count=1,
    byte_estimate=64,
    properties={"a": 1},
)

REPORT = RecoveryReport(
    source=RecoverySource.LEDGER,
    version=5,
    mark_delete=Position(3, -1),
    ranges=2,
    records_applied=3,
    cursor_ledger_id=9,
    torn_records=("entry 4: torn",),
    lost=None,
    dropped=None,
    duration_ms=0.5,
)


def ack_state() -> AckState:
    gate = Gate(GateSettings(enabled=True, ranges_max=1), 1000)
    gate.observe(ranges_live=2, batch_indexes_live=1, now_ms=2000)
    return AckState(
        ranges_live=2,
        ranges_persisted=1,
        ranges_max=1,
        entries_dropped=3,
        batch_indexes_dropped=0,
        cursor=CURSOR,
        gate=gate.statistics(),
        store=None,
        recovery=REPORT,
        forecast=GateForecast(0.0, None),
    )


def test_keys_are_pulsars() -> None:
    assert key_of("msg_rate_out") == "msgRateOut"
    assert key_of("is_open") == "isOpen"


def test_an_ack_state_survives_the_way_through_json() -> None:
    state = ack_state()
    assert from_json(AckState, json.dumps(to_json(state))) == state


def test_positions_reasons_and_sources_are_told_as_words() -> None:
    told = to_json(ack_state())
    assert told["cursor"]["markDelete"] == "3:12"
    assert told["cursor"]["lastConfirmed"] == "3:30"
    assert told["recovery"]["markDelete"] == "3:-1"
    assert told["gate"]["reasons"] == {"ranges-live": 2000}
    assert told["recovery"]["source"] == "ledger"
    assert told["forecast"] == {"gateShutsInSeconds": 0.0, "limitReachedInSeconds": None}


def test_nested_tuples_come_back_as_tuples() -> None:
    picture = AckPicture((LedgerAcks(1, 10, 5, 2, (0, 500, 1000)),), 0)
    assert from_json(AckPicture, json.dumps(to_json(picture))) == picture


def test_unknown_keys_are_passed_over() -> None:
    told = {**to_json(ack_state()), "fromTheFuture": [1]}
    assert from_json(AckState, json.dumps(told)) == ack_state()


@dataclass(frozen=True, slots=True)
class _Small:
    count: int
    name: str | None
    share: float


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"count": "1", "name": None, "share": 1.0},
        {"count": True, "name": None, "share": 1.0},
        {"count": 1, "name": 5, "share": 1.0},
        {"count": 1, "name": "x", "share": "much"},
    ],
)
def test_what_is_not_of_the_form_is_refused_by_name(value: object) -> None:
    with pytest.raises(CorruptRecordError, match="_Small"):
        from_json(_Small, json.dumps(value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("cursor", "markDelete"), "nonsense"),
        (("gate", "reasons"), {"bored": 1}),
        (("recovery", "source"), "hearsay"),
        (("recovery", "tornRecords"), "all"),
    ],
)
def test_bad_values_deep_inside_are_refused(path: tuple[str, str], value: object) -> None:
    told = to_json(ack_state())
    told[path[0]][path[1]] = value
    with pytest.raises(CorruptRecordError):
        from_json(AckState, json.dumps(told))
