"""What a user may say to the data source."""

from __future__ import annotations

import pytest

from ackgate.cursor import Position
from ackgate.errors import CallerError
from ackgate.pipeline.schema.options import IdRange, parse_options


def test_all_that_can_be_said_in_any_case() -> None:
    options = parse_options(
        {
            "PATH": "a, b",
            "Table": "messages",
            "topic": "x,persistent://public/default/y",
            "columns": "payload,entry_id",
            "ledgerids": "3,5-9",
            "ENTRYIDS": "0-4294967295",
            "minPublishTimeMs": "5",
            "onCorrupt": "SKIP",
            "splitBytes": "1000",
            "startingPosition": "7:-1",
            "maxEntriesPerTrigger": "10",
            "onTrimmed": "report",
            "gapsPath": "gaps",
        }
    )
    assert options.paths == ("a", "b")
    assert options.topics == ("x", "persistent://public/default/y")
    assert options.columns is not None
    assert [column.name for column in options.columns] == ["payload", "entry_id"]
    assert options.ledger_ids == (IdRange(3, 3), IdRange(5, 9))
    assert options.entry_ids == (IdRange(0, 2**32 - 1),)
    assert (options.min_publish_time_ms, options.max_publish_time_ms) == (5, None)
    assert options.skips_corrupt
    assert options.split_bytes == 1000
    assert options.starting_position == Position(7, -1)
    assert options.max_entries_per_trigger == 10
    assert options.gaps_path == "gaps"


def test_what_is_not_said() -> None:
    options = parse_options({"path": "data"})
    assert options.table.name == "messages"
    assert options.topics == ()
    assert not options.skips_corrupt
    assert options.starting_position is None
    assert not options.starts_at_end
    assert parse_options({"path": "data", "startingPosition": "Latest"}).starts_at_end


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "option path is missing"),
        ({"path": "d", "topics": "x"}, "no option 'topics'; did you mean topic"),
        ({"path": "d", "ledgerId": "1"}, "did you mean ledgerIds"),
        ({"path": "d", "zzzzzz": "1"}, "it has path, bookies"),
        ({"path": "d", "table": "message"}, "no table 'message'"),
        ({"path": "d", "columns": "entry"}, "no column 'entry'"),
        ({"path": "d", "ledgerIds": "9-3"}, "'9-3' is neither an id nor FIRST-LAST"),
        ({"path": "d", "ledgerIds": " , "}, "names no id"),
        ({"path": "d", "entryIds": "4294967296"}, "entryIds"),
        ({"path": "d", "ledgerIds": "9223372036854775808"}, "neither an id nor"),
        ({"path": "d", "entryIds": "1-"}, "'1-' is neither an id nor FIRST-LAST"),
        ({"path": "d", "entryIds": "-1"}, "'-1' is neither an id nor FIRST-LAST"),
        ({"path": "d", "minPublishTimeMs": "now"}, "minPublishTimeMs: 'now' is not a whole"),
        (
            {"path": "d", "minPublishTimeMs": "6", "maxPublishTimeMs": "5"},
            "maxPublishTimeMs: 5 is before minPublishTimeMs, 6",
        ),
        ({"path": "d", "version": "3"}, "no meaning for table messages, only for ack_state"),
        ({"path": "d", "table": "ack_state", "entryIds": "3"}, "only for messages"),
        ({"path": "d", "table": "ledgers", "onTrimmed": "fail"}, "no meaning for table ledgers"),
        (
            {"path": "d", "table": "ack_state", "version": "-1"},
            "option version: '-1' is not a whole number",
        ),
        ({"path": "d", "table": "ack_state", "version": "1", "atMs": "1"}, "exclude each other"),
        ({"path": "d", "splitBytes": "0"}, "splitBytes: 0 is not within"),
        ({"path": "d", "maxEntriesPerTrigger": "0"}, "not within"),
        ({"path": "d", "onCorrupt": "ignore"}, "'ignore' is not one of fail, skip"),
        ({"path": "d", "onTrimmed": "report"}, "gapsPath is missing"),
        ({"path": "d", "gapsPath": "g"}, "gapsPath has no meaning without onTrimmed=report"),
        ({"path": "d", "startingPosition": "soon"}, "earliest, latest or LEDGER:ENTRY"),
    ],
)
def test_what_is_refused(given: dict[str, str], told: str) -> None:
    with pytest.raises(CallerError) as caught:
        parse_options(given)
    assert told in str(caught.value)


def test_ledgers_lie_in_directories_or_on_a_cluster() -> None:
    uri = "zk+hierarchical://127.0.0.1:2181/ledgers"
    assert parse_options({"metadataUrl": "zk:h:1", "bookkeeper": uri}).bookkeeper == uri
    with pytest.raises(CallerError, match="bookkeeper and bookies exclude each other"):
        parse_options({"metadataUrl": "zk:h:1", "bookkeeper": uri, "bookies": "a"})
