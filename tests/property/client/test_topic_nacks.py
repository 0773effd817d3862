"""Nacks in a consumer, against a broker that knows whole entries and a client that asks late."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ackgate.client.topic_nacks import NO_BATCH, Arrival, TopicNacks
from ackgate.cursor import Position
from ackgate.dispatcher.nacks import NackSettings

BATCH = 3
ASK_MS = (100, 135)
"""So long after being handed over an entry is asked for, by chance."""

TRAVEL_MS = 20
"""So long after being asked for it comes."""


@dataclass
class Message:
    """As the application and the model see it."""

    state: str = "unread"
    due_ms: int = 0
    times_read: int = 0


@dataclass
class World:
    now_ms: int = 1_000_000
    messages: dict[tuple[Position, int], Message] = field(default_factory=dict)
    asking: dict[Position, int] = field(default_factory=dict)
    """Entry -> when the client asks for it. Handed over again, the time starts anew."""
    coming: list[tuple[int, Position]] = field(default_factory=list)
    """When entries that were asked for come."""
    chances: Random = field(default_factory=Random)

    def members(self, position: Position) -> list[int]:
        return [index for at, index in self.messages if at == position]


class ConsumerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.nacks = TopicNacks(NackSettings(precision_bits=0))
        self.world = World()
        self.entries = 0

    @initialize(seed=st.integers(0, 99))
    def start(self, seed: int) -> None:
        self.world.chances.seed(seed)

    @rule(is_batch=st.booleans())
    def a_new_entry_comes(self, is_batch: bool) -> None:
        position = Position(1, self.entries)
        self.entries += 1
        for index in range(BATCH) if is_batch else [NO_BATCH]:
            self.world.messages[position, index] = Message()
        self.deliver(position)

    def deliver(self, position: Position) -> None:
        """The broker gives a whole entry, acked messages and all."""
        for index in self.world.members(position):
            message = self.world.messages[position, index]
            arrival = self.nacks.arrived(position, index)
            if message.state in {"unread", "asked for"}:
                assert arrival is Arrival.DELIVER, message
                message.state = "in hand"
                message.times_read += 1
            elif message.state == "acked":
                assert arrival is Arrival.ACK_AGAIN
            else:
                assert arrival is Arrival.KEEP_BACK, message

    def draw(self, data: st.DataObject, *states: str) -> tuple[Position, int]:
        found = [at for at, message in self.world.messages.items() if message.state in states]
        return data.draw(st.sampled_from(found))

    def has(self, *states: str) -> bool:
        return any(message.state in states for message in self.world.messages.values())

    @precondition(lambda self: self.has("in hand", "waits"))
    @rule(data=st.data(), delay_ms=st.sampled_from([0, 10, 100, 150, 700]))
    def nack(self, data: st.DataObject, delay_ms: int) -> None:
        position, index = self.draw(data, "in hand", "waits")
        message = self.world.messages[position, index]
        now_ms = self.world.now_ms
        self.nacks.nack(position, index, now_ms, delay_ms=delay_ms, redelivery_count=0, chance=0.0)
        message.state, message.due_ms = "waits", now_ms + delay_ms

    @precondition(lambda self: self.has("in hand", "waits"))
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        position, index = self.draw(data, "in hand", "waits")
        self.nacks.acked(position, index)
        self.world.messages[position, index].state = "acked"

    @rule(forward=st.sampled_from([5, 40, 60, 200]))
    def time_passes(self, forward: int) -> None:
        """Step by step, as the thread does it: what is due is handed over, what was asked for comes."""
        world = self.world
        for _ in range(forward // 5):
            world.now_ms += 5
            if world.now_ms % 40 == 0:
                self.hand_over()
            for position, at_ms in list(world.asking.items()):
                if at_ms <= world.now_ms:
                    del world.asking[position]
                    world.coming.append((world.now_ms + TRAVEL_MS, position))
            while world.coming and world.coming[0][0] <= world.now_ms:
                _, position = world.coming.pop(0)
                if not self.is_acked(position):
                    self.deliver(position)

    def is_acked(self, position: Position) -> bool:
        members = self.world.members(position)
        return all(self.world.messages[position, index].state == "acked" for index in members)

    def hand_over(self) -> None:
        now_ms = self.world.now_ms
        for redelivery in self.nacks.pop_due(now_ms, 100):
            self.world.asking[redelivery.position] = now_ms + self.world.chances.choice(ASK_MS)
        waiting = len(self.nacks)
        for (position, index), message in self.world.messages.items():
            if message.state == "waits" and message.due_ms <= now_ms:
                if index == NO_BATCH:
                    message.state = "asked for"
                elif position in self.world.asking:
                    # Or it is put off, until it is known that what was asked for has come.
                    batch = self.nacks._batches[position]
                    if batch.wanted >> index & 1:
                        message.state = "asked for"
        assert waiting == len(self.nacks)

    @invariant()
    def agrees(self) -> None:
        self.nacks.check()
        open_batches = {
            position
            for (position, index), message in self.world.messages.items()
            if index != NO_BATCH and message.state != "acked"
        }
        assert self.nacks.batch_count <= len(open_batches) + 1
        waiting = sum(message.state == "waits" for message in self.world.messages.values())
        assert len(self.nacks) <= waiting

    def teardown(self) -> None:
        """In the end everything that was nacked has come."""
        for _ in range(40):
            self.time_passes(40)
        assert not self.has("waits", "asked for")


ConsumerMachine.TestCase.settings = settings(max_examples=100, deadline=None)
TestTopicNacks = ConsumerMachine.TestCase
