"""Connections that send frames of any size through a disk of any pace: memory has a bound, all arrive.

Virtual time. A connection delivers a chunk a tick unless it is paused; what is complete goes to the
disk, which makes a part of it durable each tick, in order. Some connections stop in the middle of a
frame, for ever.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from itertools import count

import hypothesis.strategies as st
from hypothesis import given

from ackgate.broker.wire.publish_buffer import Holder, PublishBuffer
from tests.support.virtual_time import run_in_virtual_time

LIMIT = 1_000
FRAME_MAX = LIMIT // 2
CHUNK = 20
TICK_SECONDS = 0.05
TICKS_MAX = 40_000


class Connection:
    """One producer's connection, and the frames that it has to send."""

    def __init__(self, buffer: PublishBuffer, frames: list[int], stalls_after: int | None) -> None:
        self.buffer = buffer
        self.frames = deque(frames)
        self.stalls_after = stalls_after
        """Bytes after which it sends nothing more."""
        self.sent = 0
        self.half = 0
        self.unanswered = 0
        self.waits_for_answers = False
        self.is_paused = False
        self.is_ended = False
        self.pauses = 0
        self.holder = Holder(self.pause, self.resume, self.end)

    def pause(self) -> None:
        assert not self.is_paused
        self.is_paused = True
        self.pauses += 1

    def resume(self) -> None:
        assert self.is_paused
        self.is_paused = False

    def end(self) -> bool:
        self.is_ended = True
        self.buffer.forget(self.holder)
        return True

    @property
    def is_done(self) -> bool:
        return self.is_ended or not self.frames

    def tell(self, *, is_frame_complete: bool = False) -> None:
        if not self.is_ended:
            self.buffer.update(
                self.holder,
                half_received_bytes=self.half,
                missing_bytes=self.frames[0] - self.half if self.half else 0,
                unanswered_bytes=self.unanswered,
                is_frame_complete=is_frame_complete,
            )

    def deliver(self, disk: Disk) -> None:
        """A chunk from the socket."""
        if self.waits_for_answers and self.unanswered:
            return
        room = CHUNK if self.stalls_after is None else min(CHUNK, self.stalls_after - self.sent)
        is_frame_complete = False
        while room and self.frames:
            part = min(room, self.frames[0] - self.half)
            self.half += part
            self.sent += part
            room -= part
            if self.half == self.frames[0]:
                size = self.frames.popleft()
                self.half = 0
                self.unanswered += size
                self.buffer.take(size)
                disk.queue.append((self, size))
                is_frame_complete = True
        self.tell(is_frame_complete=is_frame_complete)


class Disk:
    """Makes so many bytes durable in a tick, in order."""

    def __init__(self, buffer: PublishBuffer, bytes_per_tick: int) -> None:
        self.buffer = buffer
        self.bytes_per_tick = bytes_per_tick
        self.queue: deque[tuple[Connection, int]] = deque()
        self._written = 0

    def write(self) -> None:
        self._written += self.bytes_per_tick
        while self.queue and self.queue[0][1] <= self._written:
            connection, size = self.queue.popleft()
            self._written -= size
            self.buffer.give_back(size)
            connection.unanswered -= size
            connection.tell()
        if not self.queue:
            self._written = 0


async def run(connections: list[Connection], disk: Disk, choice: random.Random) -> None:
    """Until every connection that can has sent everything."""
    buffer = disk.buffer
    bound = LIMIT + FRAME_MAX + CHUNK * len(connections)
    for tick in count():
        assert tick < TICKS_MAX, "somebody waits for ever"
        for connection in choice.sample(connections, len(connections)):
            if not connection.is_paused and not connection.is_done:
                connection.deliver(disk)
        assert buffer.held_bytes <= bound
        assert buffer.half_received_bytes == sum(c.half for c in connections if not c.is_ended)
        assert buffer.in_flight_bytes == sum(size for _, size in disk.queue)
        disk.write()
        await asyncio.sleep(TICK_SECONDS)
        if not disk.queue and all(c.is_done for c in connections if c.stalls_after is None):
            return


@given(st.integers(0, 2**32))
def test_all_that_send_arrive_and_memory_has_its_bound(seed: int) -> None:
    async def main() -> None:
        choice = random.Random(seed)
        buffer = PublishBuffer(LIMIT)
        disk = Disk(buffer, choice.choice([1, 30, 500]))
        sizes = choice.choice([[1, 3], [1, 400], [FRAME_MAX], [5, 60, FRAME_MAX]])
        connections = [
            Connection(buffer, [choice.choice(sizes) for _ in range(choice.randint(1, 6))], None)
            for _ in range(choice.randint(1, 12))
        ]
        await run(connections, disk, choice)
        assert buffer.held_bytes == 0
        assert not any(connection.is_ended for connection in connections)
        assert not any(connection.is_paused for connection in connections)

    run_in_virtual_time(main())


@given(st.integers(0, 2**32))
def test_half_frames_that_are_never_completed_keep_nobody_out(seed: int) -> None:
    async def main() -> None:
        choice = random.Random(seed)
        buffer = PublishBuffer(LIMIT)
        disk = Disk(buffer, choice.choice([30, 500]))
        stalled = [
            Connection(buffer, [FRAME_MAX], choice.randint(1, FRAME_MAX - 1))
            for _ in range(choice.randint(1, 8))
        ]
        honest = [
            Connection(buffer, [choice.choice([1, 100, FRAME_MAX]) for _ in range(3)], None)
            for _ in range(choice.randint(1, 5))
        ]
        await run([*stalled, *honest], disk, choice)
        assert not any(connection.is_ended for connection in honest)

    run_in_virtual_time(main())


def test_the_largest_wait_and_the_small_do_not() -> None:
    async def main() -> None:
        buffer = PublishBuffer(LIMIT)
        disk = Disk(buffer, 30)
        large = [Connection(buffer, [FRAME_MAX] * 4, None) for _ in range(5)]
        small = Connection(buffer, [1] * 2_000, None)
        small.waits_for_answers = True
        await run([*large, small], disk, random.Random(7))
        assert all(connection.pauses for connection in large)
        assert not small.pauses

    run_in_virtual_time(main())


def test_without_a_limit_nobody_waits() -> None:
    async def main() -> None:
        buffer = PublishBuffer(LIMIT)
        connections = [Connection(buffer, [FRAME_MAX] * 4, None) for _ in range(5)]
        disk = Disk(buffer, 0)
        for _ in range(FRAME_MAX // CHUNK):
            for connection in connections:
                if not connection.is_paused:
                    connection.deliver(disk)
        assert buffer.waiting_count
        buffer.configure(None)
        assert not any(connection.is_paused for connection in connections)
        for _ in range(3 * FRAME_MAX // CHUNK):
            for connection in connections:
                connection.deliver(disk)
        assert buffer.held_bytes > 3 * LIMIT

    run_in_virtual_time(main())


def test_entries_count_until_they_are_answered_though_their_connection_is_gone() -> None:
    async def main() -> None:
        buffer = PublishBuffer(LIMIT)
        disk = Disk(buffer, 0)
        gone = Connection(buffer, [400, 400], None)
        while gone.frames:
            gone.deliver(disk)
        gone.end()
        assert buffer.held_bytes == 800
        other = Connection(buffer, [400, 400], None)
        for _ in range(600 // CHUNK):
            other.deliver(disk)
        assert other.is_paused
        buffer.give_back(800)
        assert not other.is_paused

    run_in_virtual_time(main())
