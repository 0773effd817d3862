"""Compares a replay under the recorded settings with the recording: there should be no difference.

Pure. `walk` compares the version after each call, and mark-deletes after resets, as it makes the
tape. This module compares every write, field by field, and each time that the gate shut or opened.

Two sizes cannot be compared. The journal has the number of entries held by policy
``redeliveryBackoff`` in a record, but not which entries; so sizes of such records are skipped. So
are the sizes of nodes whose cursor has properties.
"""

from __future__ import annotations

from collections import deque
from dataclasses import fields
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.persistence.records.outcome import PersistOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ackgate.pipeline.jobs.what_if.gating import ReplayedEdge
    from ackgate.pipeline.jobs.what_if.moments import ReplayedWrite
    from ackgate.pipeline.jobs.what_if.tape import GateChange, Recorded, Tape

ROWS_MAX: Final = 1_000
"""Most differences listed one by one; `Differences.count` counts all."""

_FIELDS: Final = tuple(
    each.name
    for each in fields(PersistOutcome)
    if each.name not in {"nacks_in_memory", "nacks_persisted", "properties_bytes"}
)
_BY_DEADLINE: Final = frozenset({"persist-failing"})


class Difference(NamedTuple):
    """One value that the replay did not reproduce."""

    sequence: int
    """Sequence number of the event with the recorded value; -1: nothing was recorded."""
    field: str
    recorded: str
    replayed: str


class Differences:
    """Collects the differences between recording and replay of one subscription."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, Difference]] = []
        """Pairs of owner epoch and difference, at most `ROWS_MAX`."""
        self.count = 0
        self.writes_compared = 0
        self.sizes_not_compared = 0
        self.gate_changes_compared = 0
        self._edges: deque[tuple[Tape, ReplayedEdge]] = deque()
        self._changes: deque[tuple[Tape, GateChange]] = deque()

    def add(self, owner_epoch: int, found: Iterable[Difference]) -> None:
        for difference in found:
            self.count += 1
            if len(self.rows) < ROWS_MAX:
                self.rows.append((owner_epoch, difference))

    def compare(
        self, tape: Tape, writes: Sequence[ReplayedWrite], edges: Iterable[ReplayedEdge]
    ) -> None:
        """Compare the writes and gate changes of a tape with the recorded ones."""
        for write in writes:
            if write.recorded is not None:
                self.writes_compared += 1
                self.add(tape.owner_epoch, self._of_write(write, write.recorded))
        self._edges.extend((tape, edge) for edge in edges)
        self._changes.extend((tape, change) for change in tape.gate_changes)
        while self._edges and self._changes:
            self.gate_changes_compared += 1
            self.add(tape.owner_epoch, _of_gate(*self._edges.popleft(), *self._changes.popleft()))

    def end_life(self) -> None:
        """Add a difference for each gate change that only the recording or only the replay has."""
        for tape, change in self._changes:
            found = Difference(change.sequence, "gate", _shown(change), "no change")
            self.add(tape.owner_epoch, [found])
        for tape, edge in self._edges:
            self.add(tape.owner_epoch, [Difference(-1, "gate", "no change", _shown(edge))])
        self._changes.clear()
        self._edges.clear()

    def _of_write(self, write: ReplayedWrite, recorded: Recorded) -> Iterator[Difference]:
        then, now = recorded.outcome, write.outcome
        has_nacks = then.nacks_in_memory is not None
        left_out: set[str] = set()
        if has_nacks or then.properties_bytes:
            self.sizes_not_compared += 1
            left_out = {"bytes_written", "node_bytes"}
        for name in _FIELDS:
            if name not in left_out and getattr(then, name) != getattr(now, name):
                yield Difference(
                    recorded.sequence, name, str(getattr(then, name)), str(getattr(now, name))
                )
        if then.properties_bytes and not has_nacks:
            of_ledger = (then.bytes_written - then.node_bytes, now.bytes_written - now.node_bytes)
            if of_ledger[0] != of_ledger[1]:
                yield Difference(recorded.sequence, "ledger_bytes", *map(str, of_ledger))


def _of_gate(
    of_edge: Tape, edge: ReplayedEdge, of_change: Tape, change: GateChange
) -> Iterator[Difference]:
    is_same = edge.is_shut == change.is_shut and (
        not edge.is_shut or edge.reasons == change.reasons
    )
    # Within one tape both must come after the same call, unless a deadline changed the gate.
    is_prompt = of_edge is not of_change or edge.calls == change.calls
    if not is_same or not (is_prompt or change.reasons & _BY_DEADLINE):
        yield Difference(change.sequence, "gate", _shown(change), _shown(edge))


def _shown(change: GateChange | ReplayedEdge) -> str:
    what = f"shut for {','.join(sorted(change.reasons))}" if change.is_shut else "opened"
    return f"{what} after call {change.calls} at {change.time_us}"
