"""An illegal call raises one of our errors and changes nothing, in whatever state the machine is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackgate.cursor import MessageLedgers, Position
from ackgate.dispatcher import Exclusive, GateSettings, KeyShared, Shared
from ackgate.errors import CallerError
from ackgate.subscription import EntryRead, ReadRequest, Ready, Subscription

Machine = Subscription[str, EntryRead]

ILLEGAL: dict[str, Callable[[Machine], object]] = {
    "ack of what does not exist": lambda sub: sub.ack("alice", [Position(7, 99)], now_ms=5),
    "ack of some that exist": lambda sub: sub.ack(
        "alice", [Position(7, 3), Position(7, 99)], receipt="r", now_ms=5
    ),
    "ack in a ledger that does not exist": lambda sub: sub.ack("alice", [Position(8, 0)], now_ms=5),
    "cumulative ack beyond the end": lambda sub: sub.ack_cumulative(
        "alice", Position(7, 99), now_ms=5
    ),
    "ack of an array beyond the end": lambda sub: sub.ack_many(None, 7, [3, 99], now_ms=5),
    "seek beyond the end": lambda sub: sub.seek(Position(7, 99), now_ms=5),
    "hold of what does not exist": lambda sub: sub.hold(
        [Position(7, 99)], until_ms=100_000, now_ms=5
    ),
    "nack by nobody": lambda sub: sub.redeliver("carol", [Position(7, 0)], now_ms=5),
    "nack with a negative delay": lambda sub: sub.redeliver(
        "alice", [Position(7, 0)], delay_ms=-1, now_ms=5
    ),
    "nack without end": lambda sub: sub.redeliver(
        "alice", [Position(7, 0)], delay_ms=2**63 - 5, now_ms=5
    ),
    "permits of nobody": lambda sub: sub.flow("carol", 1, now_ms=5),
    "a consumer twice": lambda sub: sub.attach("alice", now_ms=5),
    "a consumer of another kind": lambda sub: sub.attach("carol", kind=Exclusive(), now_ms=5),
    "an answer that was not asked for": lambda sub: sub.read_done(
        ReadRequest([], None), [], now_ms=5
    ),
}

WRONG_ENTRIES: dict[str, Callable[[ReadRequest], Any]] = {
    "nothing": lambda _: None,
    "no entries": lambda request: request.positions,
    "a time that never comes": lambda request: [
        EntryRead(position, deliver_at_ms=2**63) for position in request.positions
    ],
    "a key as text": lambda request: [
        EntryRead(position, key="text")  # type: ignore[arg-type]
        for position in request.positions
    ],
}


@dataclass
class Host:
    """Reads and writes at once; keeps what it was told to do."""

    sub: Machine = field(init=False)
    told: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        ledgers = MessageLedgers()
        ledgers.open_ledger(7)
        ledgers.add_entries(7, 20)
        self.sub = Subscription(
            ledgers, kind=Shared(), gate=GateSettings(enabled=True, ranges_max=3), keeps_notes=True
        )
        self.sub.attach("alice", permits=5, now_ms=0)

    def turn(self, now_ms: int) -> None:
        while ready := self.sub.ready(now_ms=now_ms):
            self.told.append(shown(ready))
            if ready.read is not None:
                entries = [EntryRead(position) for position in ready.read.positions]
                self.sub.read_done(ready.read, entries, now_ms=now_ms)
        self.told.append(ready.wake_at_ms)

    def step(self, step: tuple[str, int]) -> None:
        what, number = step
        position = Position(7, number)
        match what:
            case "ack":
                self.sub.ack("alice", [position], receipt=number, now_ms=3)
            case "nack":
                self.sub.redeliver("alice", [position], delay_ms=number, now_ms=3)
            case "flow":
                self.sub.flow("alice", number + 1, now_ms=3)
            case "turn":
                self.turn(3)


def shown(ready: Ready[str, EntryRead]) -> tuple[object, ...]:
    return (
        ready.read,
        tuple(ready.deliveries),
        None if ready.write is None else ready.write.version,
        tuple(ready.receipts),
        repr(ready.notes),
        ready.wake_at_ms,
    )


steps = st.lists(
    st.tuples(st.sampled_from(["ack", "nack", "flow", "turn"]), st.integers(0, 19)), max_size=20
)


@pytest.mark.parametrize("name", ILLEGAL)
@given(before=steps, after=steps)
def test_illegal_call_raises_and_changes_nothing(
    name: str, before: list[tuple[str, int]], after: list[tuple[str, int]]
) -> None:
    with_call, without = Host(), Host()
    for host in (with_call, without):
        for step in before:
            host.step(step)
    with pytest.raises(CallerError):
        ILLEGAL[name](with_call.sub)
    with_call.sub.check()
    assert with_call.sub.statistics() == without.sub.statistics()
    for host in (with_call, without):
        for step in after:
            host.step(step)
        host.turn(10_000)
    assert with_call.told == without.told


@pytest.mark.parametrize("name", WRONG_ENTRIES)
def test_answer_that_cannot_be_leaves_its_read_to_be_answered(name: str) -> None:
    ledgers = MessageLedgers()
    ledgers.open_ledger(7)
    ledgers.add_entries(7, 3)
    sub: Machine = Subscription(ledgers, kind=KeyShared())
    sub.attach("alice", permits=5, now_ms=0)
    request = sub.ready(now_ms=0).read
    assert request is not None
    with pytest.raises((CallerError, TypeError, AttributeError)):
        sub.read_done(request, WRONG_ENTRIES[name](request), now_ms=0)
    sub.check()
    assert sub.is_reading
    sub.read_failed(request, now_ms=0)
    came: list[Position] = []
    while len(came) < 3:
        ready = sub.ready(now_ms=1_000)
        assert ready, f"only {came}"
        if ready.read is not None:
            entries = [EntryRead(position) for position in ready.read.positions]
            sub.read_done(ready.read, entries, now_ms=1_000)
        came += [entry.position for each in ready.deliveries for entry in each.entries]
    assert came == [Position(7, number) for number in range(3)]
