"""``ackgate stats`` and ``ackgate overview``: how subscriptions stand, from a broker or from its files.

Edge: prints. For people a table and pictures, for programs JSON: one object, or with ``--watch``
one a line. What cannot be read is named in the answer, and the exit code is 1. While watching, a
broker that does not answer is reported and asked again.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ackgate.broker.stats import CELLS_MAX, to_json
from ackgate.broker.wire import check_subscription_name
from ackgate.commands.stats.answer import answer_json
from ackgate.commands.stats.look import Look
from ackgate.commands.stats.view import render, render_overview
from ackgate.errors import ConfigurationError, SessionLostError, StorageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from ackgate.broker.stats import OverviewAnswer, OverviewQuery
    from ackgate.commands.stats.answer import StatsAnswer

AnswerT = TypeVar("AnswerT", "StatsAnswer", "OverviewAnswer")

WATCH_SECONDS_MIN: Final = 0.1
WATCH_SECONDS_MAX: Final = 86_400.0
_REPAINT: Final = "\x1b[H\x1b[J"
"""Cursor home, clear to the end: no flicker, and nothing scrolls away."""


def run_stats(arguments: argparse.Namespace) -> int:
    """Ask once, or again and again until interrupted. Returns the exit code. Raises `AckGateError`."""
    look = Look.of_terminal()
    if arguments.subscription is not None:
        check_subscription_name(arguments.subscription)
    ask = _question(arguments, min(look.cells, CELLS_MAX))
    show: Callable[[StatsAnswer], str] = (
        partial(_as_json, is_watched=arguments.watch is not None)
        if arguments.json
        else partial(render, look=look)
    )
    return _answered(arguments, ask, show)


def run_overview(arguments: argparse.Namespace) -> int:
    """Print all subscriptions, worst first; otherwise as `run_stats`."""
    from ackgate.broker.stats import (  # noqa: PLC0415 - `run_stats` starts faster without these
        PAGE_ROWS_MAX,
        Order,
        OverviewQuery,
        Severity,
    )

    look = Look.of_terminal()
    query = OverviewQuery(
        text=arguments.text,
        severities=frozenset(map(Severity, arguments.state or Severity)),
        order=Order(arguments.order),
        is_reversed=arguments.reversed,
        offset=arguments.offset,
        rows_max=arguments.rows,
    )
    if not 1 <= query.rows_max <= PAGE_ROWS_MAX:
        raise ConfigurationError(f"--rows {query.rows_max}: from 1 to {PAGE_ROWS_MAX}")
    if query.offset < 0:
        raise ConfigurationError(f"--offset {query.offset}: at least 0")
    ask = _overview_question(arguments, query)
    if arguments.json:
        indent = None if arguments.watch is not None else 2
        return _answered(arguments, ask, lambda answer: json.dumps(to_json(answer), indent=indent))
    return _answered(arguments, ask, partial(render_overview, look=look))


def _answered(
    arguments: argparse.Namespace, ask: Callable[[], AnswerT], show: Callable[[AnswerT], str]
) -> int:
    """Print the answer once, or with ``--watch`` until interrupted.

    Returns 1 if something is missing in it.
    """
    if arguments.watch is None:
        answer = ask()
        _say(show(answer))
        return 1 if answer.missing else 0
    if not WATCH_SECONDS_MIN <= arguments.watch <= WATCH_SECONDS_MAX:
        raise ConfigurationError(
            f"--watch {arguments.watch}: from {WATCH_SECONDS_MIN} to {WATCH_SECONDS_MAX:.0f} s"
        )
    repaint = _REPAINT if sys.stdout.isatty() and not arguments.json else ""
    while True:
        try:
            shown = show(ask())
        except (StorageError, SessionLostError) as error:
            print(repaint, end="", flush=True)  # noqa: T201
            print(error, file=sys.stderr, flush=True)  # noqa: T201
        else:
            _say(repaint + shown)
        time.sleep(arguments.watch)


def _question(arguments: argparse.Namespace, cells: int) -> Callable[[], StatsAnswer]:
    wanted = {"subscription": arguments.subscription, "cells": cells}
    if (files := _files(arguments)) is not None:
        from ackgate.commands.stats.stored import stored_stats  # noqa: PLC0415

        return partial(stored_stats, arguments.topic, **files, **wanted)
    from ackgate.commands.stats.query import query_stats  # noqa: PLC0415

    wanted["has_consumers"] = not arguments.exclude_consumers
    return partial(query_stats, arguments.topic, **_broker(arguments), **wanted)


def _overview_question(
    arguments: argparse.Namespace, query: OverviewQuery
) -> Callable[[], OverviewAnswer]:
    if (files := _files(arguments)) is not None:
        from ackgate.commands.stats.stored import stored_overview  # noqa: PLC0415

        return partial(stored_overview, query, **files)
    from ackgate.commands.stats.query import query_overview  # noqa: PLC0415

    return partial(query_overview, query, **_broker(arguments))


def _files(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Keyword arguments for where to read files; None if a broker is to be asked.

    Raises `ConfigurationError` if the command line names both.
    """
    files = {
        "data_directory": arguments.data_dir,
        "config": arguments.config,
        "metadata_url": arguments.metadata_url,
        "bookies": arguments.bookies,
        "bookkeeper": arguments.bookkeeper,
    }
    if all(given is None for given in files.values()):
        return None
    if arguments.url is not None:
        raise ConfigurationError("--url asks a broker: it says itself where its files are")
    return files


def _broker(arguments: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments for which broker to ask."""
    from ackgate.commands.terminal.admin_client import access_of  # noqa: PLC0415

    url, access = access_of(arguments)
    return {"url": url, "access": access}


def _as_json(answer: StatsAnswer, *, is_watched: bool) -> str:
    return json.dumps(answer_json(answer), indent=None if is_watched else 2)


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201
