"""``ackgate delayed``: lists a topic's delayed messages, cancels some, or clears their index.

Edge: asks a broker, prints: lines for people, with ``--json`` one object. A position is
``ledger:entry``, or on a partitioned topic ``ledger:entry:partition``, as clients print message
ids.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from ackgate.broker.wire import TopicName
from ackgate.commands.terminal.admin_client import AdminClient, access_of, parts_of, path_of
from ackgate.commands.terminal.tables import printable
from ackgate.described import count
from ackgate.errors import AckGateError, ConfigurationError, CorruptRecordError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

POSITIONS_AT_ONCE: Final = 1_000
"""Positions in one request. Each request is one durable write."""

DONE_LISTED_MAX: Final = 20
"""Successes that are listed; any more are only counted. Failures are always listed."""

_DONE: Final = frozenset({"cancelled", "alreadyCancelled"})
_WORDS: Final = {
    "cancelled": "cancelled",
    "alreadyCancelled": "already cancelled",
    "notDelayed": "not delayed",
    "due": "due already",
    "delivered": "delivered already",
    "acked": "acked",
    "unknownPosition": "no such message",
}


class MessagePosition(NamedTuple):
    """A position as the user wrote it."""

    text: str
    """``ledger:entry``"""
    partition: int
    """Partition index. -1: the topic is not partitioned, or the user named the partition."""


def run_delayed(arguments: argparse.Namespace) -> int:
    """Run one action. Returns 1 if some message could not be cancelled. Raises `AckGateError`."""
    url, access = access_of(arguments)
    broker = AdminClient(url, access=access)
    name = TopicName.parse(arguments.topic).require_persistent()
    match arguments.action:
        case "list":
            return _list(broker, name, is_json=arguments.json)
        case "cancel":
            positions = _positions(arguments.positions, arguments.file)
            return _cancel(broker, name, positions, is_json=arguments.json)
        case _:
            return _clear(broker, name, arguments.subscription, is_json=arguments.json)


# ---------------------------------------------------------------------------------- cancel


def _cancel(
    broker: AdminClient, name: TopicName, positions: Sequence[MessagePosition], *, is_json: bool
) -> int:
    parts = parts_of(broker, name)
    is_partitioned = parts != [name]
    by_part: dict[TopicName, list[str]] = {}
    for text, partition in positions:
        if is_partitioned and not 0 <= partition < len(parts):
            raise ConfigurationError(
                f"{name} has {len(parts)} partitions: {text} needs one of them, "
                f"{text}:0 to {text}:{len(parts) - 1}"
            )
        part = parts[partition] if is_partitioned else name
        by_part.setdefault(part, []).append(text)
    counts: Counter[str] = Counter()
    outcomes: list[dict[str, Any]] = []
    try:
        for part, texts in by_part.items():
            for some in _in_pieces(texts, POSITIONS_AT_ONCE):
                for answered in _cancelled(broker, part, some):
                    counts[str(answered.get("outcome"))] += 1
                    if (
                        is_json
                        or answered.get("outcome") not in _DONE
                        or counts.total() <= DONE_LISTED_MAX
                    ):
                        outcomes.append({"topic": str(part), **answered})
    except AckGateError:
        if counts:  # earlier requests were durable
            _say_outcomes(counts, outcomes, is_partitioned=is_partitioned, is_json=is_json)
        raise
    _say_outcomes(counts, outcomes, is_partitioned=is_partitioned, is_json=is_json)
    return 0 if counts.keys() <= _DONE else 1


def _say_outcomes(
    counts: Counter[str], outcomes: list[dict[str, Any]], *, is_partitioned: bool, is_json: bool
) -> None:
    if is_json:
        _say(json.dumps({"counts": dict(counts), "outcomes": outcomes}, indent=2))
        return
    for answered in outcomes:
        _say(printable(_outcome_line(answered, is_partitioned=is_partitioned)))
    summary = ", ".join(f"{many:,} {_WORDS.get(key, key)}" for key, many in counts.items())
    _say(f"{count(counts.total(), 'message')}: {summary}" if counts else "nothing to cancel")


def _cancelled(broker: AdminClient, part: TopicName, texts: list[str]) -> list[dict[str, Any]]:
    answered = broker.ask("POST", path_of(part), "delayed/cancel", body={"positions": texts})
    outcomes = answered.get("outcomes") if isinstance(answered, dict) else None
    if not isinstance(outcomes, list) or not all(map(_is_outcome, outcomes)):
        raise CorruptRecordError("the broker's answer has no outcomes")
    return outcomes


def _is_outcome(answered: object) -> bool:
    found = answered.get("subscriptions", {}) if isinstance(answered, dict) else None
    return isinstance(found, dict) and all(isinstance(each, dict) for each in found.values())


def _outcome_line(answered: dict[str, Any], *, is_partitioned: bool) -> str:
    outcome = str(answered.get("outcome"))
    words = [str(answered.get("position")).ljust(14), _WORDS.get(outcome, outcome).ljust(18)]
    if "deliverAt" in answered and outcome == "cancelled":
        words.append(f"was due {_time(answered['deliverAt'])}")
    words += [
        f"{name}: {_WORDS.get(str(found.get('outcome')), '')} to {found['consumer']}"
        for name, found in answered.get("subscriptions", {}).items()
        if "consumer" in found
    ]
    if is_partitioned:
        words.append(str(answered["topic"]))
    return "  ".join(words).rstrip()


def _positions(texts: list[str], file: Path | None) -> list[MessagePosition]:
    """Positions from the command line, then from the file.

    Raises `ConfigurationError` naming the line.
    """
    positions = [_position(text, "") for text in texts]
    if file is not None:
        try:
            if str(file) == "-":
                positions += _of_lines(sys.stdin, "standard input")
            else:
                with file.open(encoding="utf-8") as lines:
                    positions += _of_lines(lines, str(file))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{file} cannot be read: {error}") from None
    if not positions and file is None:
        raise ConfigurationError("which messages? Name positions, or a --file of them")
    return positions


def _of_lines(lines: Iterable[str], name: str) -> Iterator[MessagePosition]:
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if text:
            yield _position(text, f"{name}, line {number}: ")


def _position(text: str, place: str) -> MessagePosition:
    numbers = text.split(":")
    if len(numbers) not in {2, 3} or not all(
        part.isascii() and part.isdigit() and len(part) <= 19 for part in numbers
    ):
        raise ConfigurationError(
            f"{place}{text[:80]!r} is no position: ledger:entry or ledger:entry:partition"
        )
    partition = int(numbers[2]) if len(numbers) == 3 else -1
    return MessagePosition(":".join(numbers[:2]), partition)


def _in_pieces(texts: list[str], size: int) -> Iterator[list[str]]:
    rest = iter(texts)
    while piece := list(islice(rest, size)):
        yield piece


# ------------------------------------------------------------------------------ list, clear


def _list(broker: AdminClient, name: TopicName, *, is_json: bool) -> int:
    answered = [broker.get(path_of(part), "delayed") for part in parts_of(broker, name)]
    if is_json:
        _say(json.dumps(answered, indent=2))
        return 0
    for topic in answered:
        try:
            _say("\n".join(map(printable, _topic_lines(topic))))
        except (KeyError, TypeError, AttributeError) as error:
            raise CorruptRecordError(f"the broker's answer is strange: {error!r}") from error
    return 0


def _topic_lines(answered: dict[str, Any]) -> Iterator[str]:
    yield f"{answered['topic']}  {answered['cancelled']:,} cancelled"
    for name, held in answered["subscriptions"].items():
        yield f"  {name}"
        yield f"    {_held(held)}"
    if not answered["subscriptions"]:
        yield "  no subscriptions"


def _held(held: dict[str, Any]) -> str:
    words = [f"{held['delayedEntries']:,} delayed"]
    if held["tracker"]:
        words.append(f"in {held['tracking']['step']}, {held['delayedBytes']:,} bytes")
    if held["nextDueMs"] is not None:
        words.append(f"next due {_time(held['nextDueMs'])}")
    if held["nacks"]["pending"]:
        words.append(f"{held['nacks']['pending']:,} nacks held")
    words += [f"DEGRADED: {why}" for why in held["degraded"]]
    return ", ".join(words)


def _clear(broker: AdminClient, name: TopicName, subscription: str | None, *, is_json: bool) -> int:
    parts = parts_of(broker, name)
    whose, tail = "every subscription", "delayedBucketSnapshots"
    if subscription is not None:
        whose, tail = subscription, f"subscription/{quote(subscription, safe='')}/{tail}"
    cleared: list[TopicName] = []
    try:
        for part in parts:
            broker.ask("DELETE", path_of(part), tail)
            cleared.append(part)
    finally:  # after an error, too
        if is_json and cleared:
            _say(json.dumps({"cleared": list(map(str, cleared))}))
        for part in [] if is_json else cleared:
            _say(f"{part}: the index of {whose} is cleared and is built again by reading")
    return 0


def _time(ms: object) -> str:
    try:
        seconds = int(str(ms)) / 1000
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
    except (ValueError, OverflowError, OSError):
        return f"at {ms} ms"


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201
