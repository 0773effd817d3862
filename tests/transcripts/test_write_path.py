"""Stories of a cursor's write path: what is asked for at a time, and what follows from success and failure.

=========================  ===========================================================================
new linger=5 rate=0 ...    begin; settings by short names, see `Stage.do_new`
ack 1 3-5                  entries of ledger 1 are acked; ``reset 0`` moves the cursor back
ask                        what to do now (``at=SECONDS`` sets the time)
wrote / failed WHY         what came of the step under way
created / named            of a `BeginLedger`: the ledger exists; the node was pointed at it
uncertain / settled        a write of the node was not answered; it has been found out what the node says
hurry, hurry roll          somebody wants it now
close                      the cursor is closed: then ``ask`` gives the last steps
=========================  ===========================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ackgate.cursor import ManagedCursor, MessageLedgers, Position
from ackgate.errors import AckGateError, LedgerWriteError
from ackgate.persistence import PersistenceSettings
from ackgate.persistence.cursors.node import CursorNode, encode_cursor_node
from ackgate.persistence.cursors.write_path import (
    AppendRecord,
    BeginLedger,
    PutState,
    RoundReport,
    SettleNode,
    WaitUntil,
    WritePath,
)
from ackgate.persistence.records.envelope import Packing
from tests.transcripts.runner import replay

HERE = Path(__file__).parent / "write_path"

NAMES = {
    "linger": "ack_persist_linger_ms",
    "rate": "managed_ledger_default_mark_delete_rate_limit",
    "ranges": "managed_ledger_max_unacked_ranges_to_persist",
    "node-ranges": "managed_ledger_max_unacked_ranges_to_persist_in_metadata_store",
    "entries": "managed_ledger_cursor_max_entries_per_ledger",
    "age": "managed_ledger_cursor_rollover_time_in_seconds",
    "deltas": "cursor_deltas_per_snapshot_max",
    "fallback-rate": "fallback_rate_limit",
}


class Node:
    """A node as the path looks at it; the transcript says what becomes of writes."""

    path = "/n"
    owner_epoch = 1
    bytes_max = 1_000_000
    cursor_properties: Mapping[str, str] = {}

    def __init__(self) -> None:
        self.cursor_ledger_id: int | None = None
        self.is_certain = self.is_connected = True

    def encode(
        self, *, cursor_ledger_id: int | None, state: bytes | None, packing: Packing
    ) -> bytes:
        return encode_cursor_node(CursorNode(1, cursor_ledger_id, state, {}), packing)


class Stage:
    """One write path and the time; runs a transcript's commands."""

    def __init__(self) -> None:
        self.now = 0.0
        self.do_new([], {})

    def run(self, command: str) -> str:
        name, *rest = command.split()
        given = dict(word.split("=") for word in rest if "=" in word)
        words = [word for word in rest if "=" not in word]
        self.now = float(given.pop("at", self.now))
        self.told: list[str] = []
        getattr(self, "do_" + name.replace("-", "_"))(words, given)
        return "\n".join(self.told) or "(nothing)"

    def do_new(self, words: list[str], given: dict[str, str]) -> None:
        ledgers = MessageLedgers()
        ledgers.open_ledger(1)
        ledgers.add_entries(1, 1_000)
        self.cursor = ManagedCursor(ledgers, Position(1, -1))
        self.node = Node()
        settings: dict[str, Any] = {NAMES[key]: float(value) for key, value in given.items()}
        self.path = WritePath(
            self.cursor,
            self.node,
            PersistenceSettings(**{"ack_persist_linger_ms": 5, **settings}),
            durable_version=0,
            mark_delete=self.cursor.mark_delete,
        )
        self.step: Any = None
        self.next_ledger_id = 100
        self.is_closing = False

    def do_ack(self, words: list[str], given: dict[str, str]) -> None:
        for word in words:
            first, _, last = word.partition("-")
            for entry_id in range(int(first), int(last or first) + 1):
                self.cursor.ack(Position(1, entry_id))
        self.path.changed(self.now)

    def do_reset(self, words: list[str], given: dict[str, str]) -> None:
        self.cursor.reset(Position(1, int(words[0])))
        self.path.changed(self.now)

    def do_hurry(self, words: list[str], given: dict[str, str]) -> None:
        self.path.hurry(roll="roll" in words)

    def do_ask(self, words: list[str], given: dict[str, str]) -> None:
        now_ms = round(self.now * 1000)
        if self.is_closing:
            self.step = self.path.next_last_step(self.now, now_ms)
        else:
            self.step = self.path.next_step(self.now, now_ms)
        match self.step:
            case None:
                self.told.append("nothing to write")
            case WaitUntil(at=at):
                self.told.append(f"wait until {at:.3f}")
            case RoundReport():
                self.told_of(self.step)
            case SettleNode():
                self.told.append("settle what the node says")
            case AppendRecord(ledger_id=ledger_id, formed=formed):
                self.told.append(f"append {self.form(formed)} to ledger {ledger_id}")
            case BeginLedger(first=first, replaces=replaces):
                text = "" if replaces is None else f" in place of {replaces}"
                self.told.append(f"begin a ledger{text} with {self.form(first.formed)}")
            case PutState(formed=formed):
                self.told.append(f"put {self.form(formed)} into the node")

    def form(self, formed: Any) -> str:
        plan = formed.plan
        kind = type(plan.record).__name__.removesuffix("Record").lower()
        dropped = "" if plan.is_complete else f", {plan.counts.entries_dropped} entries dropped"
        return f"{kind} {plan.version} ({plan.counts.ranges_persisted} ranges{dropped})"

    def do_created(self, words: list[str], given: dict[str, str]) -> None:
        self.path.ledger_created(self.step, self.next_ledger_id)
        self.told.append(f"ledger {self.next_ledger_id}")
        self.next_ledger_id += 1

    def do_named(self, words: list[str], given: dict[str, str]) -> None:
        """The put that points at the new ledger has landed, whether its answer came or not."""
        self.node.cursor_ledger_id = self.next_ledger_id - 1

    def do_wrote(self, words: list[str], given: dict[str, str]) -> None:
        if isinstance(self.step, BeginLedger):
            if self.path._candidate is None:
                self.do_created([], {})
            self.node.cursor_ledger_id = self.next_ledger_id - 1
        elif isinstance(self.step, PutState):
            self.node.cursor_ledger_id = None
        report = self.path.wrote(self.now, round(self.now * 1000), ledger_bytes=10)
        self.told_of(report)

    def do_failed(self, words: list[str], given: dict[str, str]) -> None:
        error: AckGateError = LedgerWriteError(" ".join(words) or "it failed")
        self.path.failed(error, self.now)

    def do_uncertain(self, words: list[str], given: dict[str, str]) -> None:
        self.node.is_certain = False

    def do_settled(self, words: list[str], given: dict[str, str]) -> None:
        self.node.is_certain = True
        self.path.settled()

    def do_offline(self, words: list[str], given: dict[str, str]) -> None:
        self.node.is_connected = False

    def do_stalled(self, words: list[str], given: dict[str, str]) -> None:
        report = self.path.stalled()
        assert report is not None
        self.told_of(report)

    def do_close(self, words: list[str], given: dict[str, str]) -> None:
        self.is_closing = True
        self.told.append("something to write" if self.path.begin_last() else "nothing to write")

    def told_of(self, report: RoundReport) -> None:
        for failure in report.failures:
            self.told.append(f"failed: {failure}")
        if report.outcome is not None:
            outcome = report.outcome
            self.told.append(f"durable: version {outcome.version}, in the {outcome.where.value}")
        else:
            self.told.append(f"round {report.round} failed")
        if self.path.failing_since_ms is not None:
            self.told.append(f"failing since {self.path.failing_since_ms} ms")
        if self.path.is_on_fallback:
            self.told.append("on fallback")
        if self.path.garbage:
            self.told.append(f"to delete: {', '.join(map(str, self.path.garbage))}")


@pytest.mark.parametrize("path", sorted(HERE.glob("*.txt")), ids=lambda path: path.stem)
def test_write_path(path: Path, rewrite: bool) -> None:
    replay(path, Stage().run, rewrite=rewrite)
