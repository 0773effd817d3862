"""Log lines: one line an event, whatever a client calls itself."""

from __future__ import annotations

import json
import logging
import sys

from ackgate.broker.run import JsonFormatter, KeyValueFormatter, SpanLogFilter
from ackgate.network.damper import (
    KINDS_MAX,
    LINES_AT_ONCE_MAX,
    SECONDS_PER_LINE,
    LogDamper,
)


def record(message: str, *args: object, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("ackgate.x", logging.WARNING, "f", 1, message, args, None)
    made.created, made.msecs = 0.25, 250.0
    made.__dict__.update(more)
    return made


def test_a_line_is_pairs_of_key_and_value() -> None:
    line = KeyValueFormatter().format(record("peer %s left", "a:1"))
    assert line == (
        'time=1970-01-01T00:00:00.250Z level=WARNING logger=ackgate.x message="peer a:1 left"'
    )


def test_a_worker_says_which_one_it_is() -> None:
    line = KeyValueFormatter(2).format(record("here"))
    assert line.split()[1:4] == ["level=WARNING", "worker=2", "logger=ackgate.x"]
    assert json.loads(JsonFormatter(2).format(record("here")))["worker"] == 2


def test_a_line_break_in_a_name_stays_inside_the_line() -> None:
    line = KeyValueFormatter().format(record("consumer %s", 'evil"\nlevel=FATAL'))
    assert "\n" not in line
    assert json.loads(line.split("message=", 1)[1]) == 'consumer evil"\nlevel=FATAL'


def test_a_stack_trace_follows_its_line() -> None:
    try:
        raise ValueError("broken")  # noqa: TRY301
    except ValueError:
        lines = KeyValueFormatter().format(record("oops", exc_info=sys.exc_info())).splitlines()
    assert lines[0].endswith('message="oops"')
    assert lines[-1] == "ValueError: broken"


def test_lines_that_never_end_are_damped_and_counted() -> None:
    damper = LogDamper()
    a_tenth = [damper.admit("a", tick / 10) for tick in range(int(SECONDS_PER_LINE) * 10 * 10)]
    written = [left_out for left_out in a_tenth if left_out is not None]
    assert written[:LINES_AT_ONCE_MAX] == [0] * LINES_AT_ONCE_MAX
    assert len(written) <= LINES_AT_ONCE_MAX + 10
    later = damper.admit("a", 10_000.0)
    assert later is not None
    assert len(written) + sum(written) + later == len(a_tenth)


def test_lines_now_and_then_are_all_written() -> None:
    damper = LogDamper()
    for number in range(1_000):
        assert damper.admit("a", number * SECONDS_PER_LINE) == 0


def test_kinds_do_not_disturb_each_other_and_are_bounded() -> None:
    damper = LogDamper()
    for _ in range(2 * LINES_AT_ONCE_MAX):
        damper.admit("a", 0.0)
    assert damper.admit("b", 0.0) == 0
    assert damper.admit("a", 0.0) is None
    for number in range(KINDS_MAX):
        damper.admit(number, 0.0)
    assert damper.admit("a", 0.0) == 0  # forgotten


def test_a_line_of_json_holds_everything() -> None:
    error = ValueError("a\nb")
    trace = (ValueError, error, None)
    record = logging.LogRecord("n", logging.ERROR, "", 1, "of %s\n", ("ü",), trace)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    told = json.loads(line)
    assert (told["level"], told["logger"], told["message"]) == ("ERROR", "n", "of ü\n")
    assert told["exception"].endswith("ValueError: a\nb")
    assert told["time"] in KeyValueFormatter().format(record)


def test_a_collector_that_does_not_answer_is_a_line_a_minute() -> None:
    few = SpanLogFilter()
    written = []
    for second in range(0, 180, 5):
        error = ConnectionError("refused %s")
        record = logging.LogRecord(
            "opentelemetry.sdk.x", logging.ERROR, "f", 7, "%s lost", ("spans",), (None, error, None)
        )
        record.created = float(second)
        if few.filter(record):
            written.append(KeyValueFormatter().format(record).split("message=", 1)[1])
    lost = "spans lost: ConnectionError('refused %s')"
    assert written == [
        json.dumps(lost),
        *[json.dumps(f"{lost} (and 11 such lines left out)")] * 2,
    ]


def test_only_lines_of_opentelemetry_are_left_out() -> None:
    few = SpanLogFilter()
    assert all(few.filter(record("the same")) for _ in range(100))
