"""Log lines: one line an event, whatever a client calls itself."""

from __future__ import annotations

import json
import logging
import sys

from ackgate.broker.log_format import KeyValueFormatter


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
