"""A live broker's side of a topic, by its admin interface: what it has in memory.

Edge: HTTP with the standard library, GET only. Beside it stands what `PulsarCluster` reads, so that memory
and disk can be compared (`missing_on_disk`)::

    live = live_topic("http://127.0.0.1:8080", "persistent://public/default/orders")
    live.cursors["worker"].mark_delete, live.entry_counts
"""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import quote

from pyroaring import BitMap

from ackgate.cursor import Position, run_count
from ackgate.errors import CallerError, CorruptRecordError, PositionError, StorageError
from ackgate.network import is_http_address
from ackgate.pulsar.nodes import PulsarTopic, decoded

if TYPE_CHECKING:
    from collections.abc import Mapping
    from http.client import HTTPMessage

TIMEOUT_SECONDS: Final = 30.0
ANSWER_BYTES_MAX: Final = 512 * 1024 * 1024
"""A cursor's ranges are in the answer, each as a text."""

_RANGE: Final = re.compile(r"\((-?\d+):(-?\d+)\.\.(-?\d+):(-?\d+)\]", re.ASCII)


@dataclass(frozen=True, slots=True)
class LiveCursor:
    """A subscription as its broker has it in memory. Pulsar's names in brackets."""

    mark_delete: Position
    """[markDeletePosition]"""
    read_position: Position
    """[readPosition]"""
    acked: Mapping[int, BitMap]
    """[individuallyDeletedMessages] Message ledger -> entries acked above the mark-delete."""
    backlog_entries: int | None
    """[msgBacklog] None: the broker gives no statistics of it."""
    state: str
    """[state]"""
    cursor_ledger_id: int
    """[cursorLedger] -1: none is open."""
    kind: str | None = None
    """[type] Shared, Key_Shared, ...; None: no consumer has come yet."""
    unacked_messages: int | None = None
    """[unackedMessages] Sent and not acked."""
    delayed_messages: int | None = None
    """[msgDelayed]"""
    consumers: int | None = None
    properties: Mapping[str, int] = field(default_factory=dict)
    """Of the mark-delete."""

    @property
    def range_count(self) -> int:
        """Runs of acked entries, none of them over two ledgers."""
        return sum(map(run_count, self.acked.values()))


@dataclass(frozen=True, slots=True)
class LiveTopic:
    """A topic, or a partition, as its broker has it in memory."""

    topic: str
    entry_counts: Mapping[int, int]
    """Entries of each ledger, ascending, those of the open one with what is written now."""
    last_confirmed: Position
    """[lastConfirmedEntry]"""
    cursors: Mapping[str, LiveCursor]


def live_topic(
    admin_url: str,
    topic: str,
    *,
    token: str | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> LiveTopic:
    """Ask the broker whose admin interface is at `admin_url`; it is sent on to the topic's owner.

    Raises `CallerError` (refused, no such topic), `StorageError` (no answer), `CorruptRecordError`.
    """
    name = PulsarTopic.parse(topic)
    parts = (name.tenant, *name.namespace.split("/"), name.local_name)
    version = "v2" if len(parts) == 3 else ""
    path = "/".join(("persistent", *(quote(part, safe="") for part in parts)))
    url = "/".join(filter(None, (admin_url.rstrip("/"), "admin", version, path)))
    internal = _get(f"{url}/internalStats", token, timeout_seconds)
    stats = _get(f"{url}/stats", token, timeout_seconds)
    try:
        return _live_topic(str(name), internal, stats)
    except (KeyError, TypeError, ValueError, AttributeError, PositionError) as error:
        raise CorruptRecordError(f"{url}/internalStats: {error!r}") from error


def live_keys(
    admin_url: str, *, token: str | None = None, timeout_seconds: float = TIMEOUT_SECONDS
) -> tuple[dict[str, str], tuple[int, int] | None]:
    """Keys of the broker's configuration as it runs with them, and its version (None: it says none).

    It answers superusers only. Raises as `live_topic`.
    """
    base = f"{admin_url.rstrip('/')}/admin/v2/brokers"
    keys = _get(f"{base}/configuration/runtime", token, timeout_seconds)
    version = _text(f"{base}/version", token, timeout_seconds).decode(errors="replace")
    found = re.match(r'"?(\d+)\.(\d+)', version, re.ASCII)
    return (
        {key: str(value) for key, value in keys.items()},
        None if found is None else (int(found[1]), int(found[2])),
    )


def _live_topic(topic: str, internal: dict[str, Any], stats: dict[str, Any]) -> LiveTopic:
    counts = {int(each["ledgerId"]): int(each["entries"]) for each in internal["ledgers"]}
    last = Position.parse(internal["lastConfirmedEntry"])
    if last.ledger_id in counts:  # of the open one the list says 0
        counts[last.ledger_id] = max(counts[last.ledger_id], last.entry_id + 1)
    subscriptions = stats.get("subscriptions", {})
    return LiveTopic(
        topic,
        dict(sorted(counts.items())),
        last,
        {
            decoded(name): _live_cursor(cursor, subscriptions.get(decoded(name)))
            for name, cursor in internal["cursors"].items()
        },
    )


def _live_cursor(cursor: dict[str, Any], stats: dict[str, Any] | None) -> LiveCursor:
    stats = stats or {}
    consumers = stats.get("consumers")
    return LiveCursor(
        Position(*map(int, cursor["markDeletePosition"].split(":"))),
        Position(*map(int, cursor["readPosition"].split(":"))),
        acked_of(cursor["individuallyDeletedMessages"]),
        stats.get("msgBacklog"),
        str(cursor["state"]),
        int(cursor["cursorLedger"]),
        stats.get("type"),
        stats.get("unackedMessages"),
        stats.get("msgDelayed"),
        None if consumers is None else len(consumers),
        {str(k): int(v) for k, v in (cursor.get("properties") or {}).items()},
    )


def acked_of(text: str) -> dict[int, BitMap]:
    """Pulsar's text of ranges, ``[(3:-1..3:4],(5:0..5:2]]``. Raises `ValueError`.

    Of a range over two ledgers only the part in the second one: the first one's length is not in it.
    """
    found = _RANGE.findall(text)
    if text != "[" + ",".join(f"({a}:{b}..{c}:{d}]" for a, b, c, d in found) + "]":
        raise ValueError(f"ranges {text[:80]!r}")
    acked: dict[int, BitMap] = {}
    for lower_ledger, lower, upper_ledger, upper in (map(int, each) for each in found):
        start = lower + 1 if lower_ledger == upper_ledger else 0
        if start <= upper:
            acked.setdefault(upper_ledger, BitMap()).add_range(start, upper + 1)
    return acked


def _get(url: str, token: str | None, timeout_seconds: float) -> dict[str, Any]:
    try:
        found = json.loads(_text(url, token, timeout_seconds))
    except ValueError as error:
        raise CorruptRecordError(f"{url} does not answer in JSON: {error}") from None
    if not isinstance(found, dict):
        raise CorruptRecordError(f"{url} does not answer with an object")
    return found


class _NotOutOfTls(urllib.request.HTTPRedirectHandler):
    """Follows no redirect from TLS to clear text, where everybody could read the token."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if req.type == "https" and not newurl.startswith("https:"):
            raise StorageError(f"{req.full_url} leads to {newurl}, which is in clear: not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _text(url: str, token: str | None, timeout_seconds: float) -> bytes:
    if not is_http_address(url):
        raise CallerError(f"not the address of an admin interface: {url!r}")
    headers = {"Accept": "application/json"}
    if token is not None:
        if not (token.isascii() and token.isprintable()):
            raise CallerError("this is no token")  # an error of HTTP would show it
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the scheme was checked
    try:
        opener = urllib.request.build_opener(_NotOutOfTls())
        with opener.open(request, timeout=timeout_seconds) as response:
            text: bytes = response.read(ANSWER_BYTES_MAX + 1)
    except urllib.error.HTTPError as error:
        with error:
            kind = CallerError if error.code < 500 else StorageError
            raise kind(f"{url} answers {error.code} {error.reason}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise StorageError(f"no answer from {url}: {reason}") from error
    except http.client.HTTPException as error:
        raise StorageError(f"{url} does not speak HTTP ({type(error).__name__})") from error
    if len(text) > ANSWER_BYTES_MAX:
        raise CorruptRecordError(f"{url} answers more than {ANSWER_BYTES_MAX} bytes")
    return text
