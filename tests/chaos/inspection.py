"""What the broker says of its cursors, asked over HTTP and read back into values.

Edge: one request at a time, in a thread.
"""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ackgate.cursor import Position
from tests.chaos.facts import ViolationError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

TIMEOUT_SECONDS = 10

NEW = frozenset({"new"})
STORED = frozenset({"ledger", "metadata-store"})
"""Where recovery may find the state of a cursor."""

_REFUSES = re.compile(r"^ackgate_disk_refuses_messages\S* 1", re.MULTILINE)
_RANGE = re.compile(r"[(\[](\d+):(-?\d+)\.\.(\d+):(\d+)\]")


@dataclass(frozen=True, slots=True)
class CursorState:
    """Mark-delete and ranges of one cursor, as ``internalStats`` has them."""

    mark_delete: Position
    acked_above: frozenset[Position]
    """Every single one."""

    @classmethod
    def parse(cls, cursor: Mapping[str, Any]) -> CursorState:
        """Read Pulsar's text."""
        ledger_id, entry_id = cursor["markDeletePosition"].split(":")
        text = cursor["individuallyDeletedMessages"]
        ranges = _RANGE.findall(text)
        if len(ranges) != text.count(".."):
            raise ViolationError(f"ranges that cannot be read: {text}")
        acked = frozenset(
            Position(int(ledger), entry)
            for _, after, ledger, last in ranges
            for entry in range(int(after) + 1, int(last) + 1)
        )
        return cls(Position(int(ledger_id), int(entry_id)), acked)

    def is_acked(self, position: Position) -> bool:
        """Whether this entry is acked."""
        return position <= self.mark_delete or position in self.acked_above


async def refuses_messages(admin_url: str) -> bool:
    """Whether its disk is full."""

    def ask() -> str:
        with urllib.request.urlopen(f"{admin_url}/metrics", timeout=TIMEOUT_SECONDS) as answer:
            text: str = answer.read().decode()
        return text

    return bool(_REFUSES.search(await asyncio.to_thread(ask)))


async def cursor_states(admin_url: str, topic: str) -> dict[str, CursorState]:
    """All cursors of a topic."""
    stats = await _get(admin_url, topic, "internalStats")
    return {name: CursorState.parse(cursor) for name, cursor in stats["cursors"].items()}


async def check_recovery(admin_url: str, topic: str, expected: Collection[str]) -> None:
    """Raise `ViolationError` unless the stats tell what recovery found, and that it was all.

    `expected`: where it may have been found.
    """
    stats = await _get(admin_url, topic, "stats")
    for name, subscription in stats["subscriptions"].items():
        recovery = subscription["ackState"]["recovery"]
        dropped = recovery["dropped"] or {}
        is_whole = recovery["lost"] is None and not any(dropped.values())
        if recovery["source"] not in expected or not is_whole:
            raise ViolationError(f"{topic}, {name}: recovery reports {recovery}")


async def written_subscriptions(admin_url: str, topic: str) -> set[str]:
    """Those of which everything that is in memory is durable, too."""
    stats = await _get(admin_url, topic, "stats")
    return {
        name
        for name, each in stats["subscriptions"].items()
        if each["ackState"]["store"]["dirtyVersions"] == 0
    }


async def backlogs(admin_url: str, topic: str) -> dict[str, int]:
    """Unacked entries of each subscription."""
    stats = await _get(admin_url, topic, "stats")
    return {name: each["msgBacklog"] for name, each in stats["subscriptions"].items()}


async def _get(admin_url: str, topic: str, what: str) -> Any:
    url = f"{admin_url}/admin/v2/{topic.replace('://', '/')}/{what}"

    def fetch() -> Any:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
            return json.load(response)

    return await asyncio.to_thread(fetch)
