"""Details of delivery events: there and back, flat paths into them, and what is refused."""

import json
from dataclasses import fields, replace

import pytest

from ackgate.cursor import Position, RecoveredStateReport
from ackgate.errors import CorruptRecordError
from ackgate.persistence import PersistOutcome, PersistWhere, RecoveryReport, RecoverySource
from ackgate.persistence.deliveries.columns import EventKind
from ackgate.persistence.deliveries.details import (
    REASONS,
    RESETS,
    AckedCall,
    Cleared,
    Configured,
    ConsumerAdded,
    Detail,
    Expired,
    MessageLedger,
    Opened,
    PersistFailed,
    Skipped,
    Sought,
    Subscribed,
    TopicPolicies,
    decode_detail,
    detail_of,
    encode_detail,
)

AT = Position(7, 3)
OUTCOME = PersistOutcome(
    version=12,
    mark_delete=AT,
    where=PersistWhere.METADATA_STORE,
    is_delta=False,
    ranges_in_memory=5,
    ranges_persisted=4,
    entries_dropped=9,
    batch_indexes_in_memory=2,
    batch_indexes_persisted=1,
    size_guard_hit=True,
    bytes_written=77,
    at_ms=1_000,
    duration_ms=0.25,
    nacks_in_memory=3,
    nacks_persisted=2,
    written_ms=999,
    is_ledger_begun=True,
    is_last=True,
)
REPORT = RecoveryReport(
    source=RecoverySource.LEDGER,
    version=4,
    mark_delete=AT,
    ranges=2,
    records_applied=3,
    cursor_ledger_id=8,
    torn_records=("entry 5: torn",),
    lost=None,
    dropped=RecoveredStateReport(mark_delete_was=Position(9, 9), unknown_ledger_ids=(1, 2)),
    duration_ms=3.5,
)
POLICIES = TopicPolicies({"minDelayMs": 1_000, "multiplier": 1.5})
DETAILS: list[tuple[EventKind, str | None, Detail]] = [
    (
        EventKind.OPENED,
        None,
        Opened({"a": "1"}, POLICIES, (MessageLedger(7, 4, False), MessageLedger(8, 0, True))),
    ),
    (EventKind.CONFIGURED, None, Configured({}, TopicPolicies())),
    (EventKind.SUBSCRIBED, None, Subscribed(Position(7, -1), True)),
    (EventKind.RECOVERED, None, REPORT),
    (EventKind.RECOVERED, None, replace(REPORT, dropped=None)),
    (EventKind.ACKED, None, AckedCall(64, at_once=True)),
    (EventKind.ACKED, None, AckedCall(properties={"offset": -5})),
    (EventKind.CONSUMER_ADDED, "Key_Shared", ConsumerAdded(True)),
    (EventKind.RESET, "seek", Sought(AT, Position(7, 4), 2**200 + 1)),
    (EventKind.RESET, "seek", Sought(AT, Position(7, 4), None)),
    (EventKind.RESET, "skip", Skipped(AT, 10)),
    (EventKind.RESET, "clear", Cleared(AT, 10)),
    (EventKind.RESET, "expire", Expired(AT, Position(7, 1))),
    (EventKind.PERSISTED, None, OUTCOME),
    (EventKind.PERSIST_FAILED, "ledger", PersistFailed('bookie "a" is down: ä', 5)),
]


@pytest.mark.parametrize(("kind", "reason", "detail"), DETAILS)
def test_a_detail_comes_back_as_it_was(kind: EventKind, reason: str | None, detail: Detail) -> None:
    back = detail_of(kind, reason, encode_detail(detail))
    assert back == detail
    assert type(back) is type(detail)


def test_a_recovery_that_an_earlier_build_wrote_down_is_read() -> None:
    told = json.loads(encode_detail(REPORT))
    del told["damaged_records"], told["versions_lost"]
    assert detail_of(EventKind.RECOVERED, None, json.dumps(told)) == REPORT


def test_every_reset_has_a_reason_that_leads_back_to_it() -> None:
    assert {RESETS[reason] for reason in REASONS.values()} == {Sought, Skipped, Cleared, Expired}
    assert all(REASONS[RESETS[reason]] == reason for reason in RESETS)


def test_an_outcome_is_flat() -> None:
    told = json.loads(encode_detail(OUTCOME))
    assert told.keys() == {each.name for each in fields(PersistOutcome)}
    assert (told["entries_dropped"], told["where"], told["mark_delete"]) == (
        9,
        "metadata-store",
        [7, 3],
    )


@pytest.mark.parametrize(
    ("detail", "path"),
    [
        (Subscribed(AT, True), "position"),
        (Sought(AT, AT, None), "mark_delete"),
        (Skipped(AT, 1), "mark_delete"),
        (Cleared(AT, 1), "mark_delete"),
        (Expired(AT, AT), "mark_delete"),
    ],
)
def test_the_mark_delete_that_jobs_look_for_is_a_pair_at_the_top(detail: Detail, path: str) -> None:
    assert json.loads(encode_detail(detail))[path] == [7, 3]


def test_an_event_without_more_to_say_has_no_detail() -> None:
    assert detail_of(EventKind.ACKED, None, None) is None
    assert detail_of(EventKind.DISPATCHED, "normal", None) is None


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (None, "the whole"),
        ("", "the whole"),
        ("[]", "the whole"),
        ('{"position": [7, 3]}', "is_durable"),
        ('{"position": [7, 3], "is_durable": 1}', "is_durable"),
        ('{"position": [7, "3"], "is_durable": true}', "position"),
        ('{"position": [7], "is_durable": true}', "position"),
        ('{"position": [7, 3], "is_durable": true, "more": 1}', "more"),
    ],
)
def test_what_is_not_exactly_a_detail_is_refused_by_name(text: str | None, what: str) -> None:
    with pytest.raises(CorruptRecordError, match=what):
        decode_detail(Subscribed, text)


def test_a_key_left_out_is_refused_even_where_it_has_a_default() -> None:
    with pytest.raises(CorruptRecordError, match="should be at_once, entries, properties"):
        decode_detail(AckedCall, '{"entries": 2, "at_once": false}')


def test_a_reset_for_an_unknown_reason_is_refused() -> None:
    with pytest.raises(CorruptRecordError, match="cancel"):
        detail_of(EventKind.RESET, "cancel", "{}")
