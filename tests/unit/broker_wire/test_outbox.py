"""Output is gathered, written at once, and bounded."""

from __future__ import annotations

from typing import Any, cast

from ackgate.broker.wire.session import JOIN_PIECE_BYTES_MAX, UNREAD_REPLY_BYTES_MAX, Outbox


class FakeTransport:
    """Takes everything, or keeps it in a buffer and says that it is full."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.buffered = 0
        self.high = self.low = 0
        self.is_stuck = False
        self.outbox: Outbox
        self.closing = False

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        self.high, self.low = high, low

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        if self.is_stuck:
            self.buffered += len(data)
            if self.buffered > self.high:
                self.outbox.pause()

    def writelines(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self.write(piece)

    def drain(self) -> None:
        self.buffered = 0
        self.outbox.resume()


class Box:
    def __init__(self, high_water_bytes: int = 100) -> None:
        self.transport = FakeTransport()
        self.due: list[Any] = []
        self.drained = 0
        self.outbox = Outbox(
            cast("Any", self.transport), self.due.append, high_water_bytes, self.on_drained
        )
        self.transport.outbox = self.outbox

    def on_drained(self) -> None:
        self.drained += 1

    def tick(self) -> None:
        due, self.due = self.due, []
        for call in due:
            call()


def test_what_is_sent_in_one_tick_is_written_at_once() -> None:
    box = Box()
    box.outbox.send(b"a")
    box.outbox.send_many([b"b", b"c"])
    box.outbox.send(b"d")
    assert box.transport.writes == []
    assert len(box.due) == 1
    box.tick()
    assert box.transport.writes == [b"abcd"]
    box.tick()
    assert box.transport.writes == [b"abcd"]


def test_large_pieces_are_not_copied_together() -> None:
    box = Box(10 * JOIN_PIECE_BYTES_MAX)
    large = bytes(3 * JOIN_PIECE_BYTES_MAX)
    box.outbox.send_many([b"head", large])
    box.tick()
    assert box.transport.writes[1] is large


def test_deliveries_pause_within_a_tick_and_go_on_after_the_write() -> None:
    box = Box(100)
    assert box.outbox.is_writable
    box.outbox.send(bytes(100))
    assert not box.outbox.is_writable
    assert box.drained == 0
    box.tick()
    assert box.outbox.is_writable
    assert box.drained == 1


def test_nobody_is_told_who_was_not_refused() -> None:
    box = Box(100)
    box.outbox.send(bytes(99))
    assert box.outbox.is_writable
    box.tick()
    assert box.drained == 0


def test_a_stuck_peer_pauses_deliveries_until_it_reads() -> None:
    box = Box(100)
    box.transport.is_stuck = True
    box.outbox.send(bytes(101))
    box.tick()
    assert not box.outbox.is_writable
    assert box.drained == 0
    box.transport.drain()
    assert box.outbox.is_writable
    assert box.drained == 1


def test_replies_that_nobody_reads_make_it_overfull_and_reading_them_ends_that() -> None:
    box = Box(100)
    box.transport.is_stuck = True
    for _ in range(9):
        box.outbox.send(bytes(UNREAD_REPLY_BYTES_MAX // 8))
        box.tick()
    assert box.outbox.is_overfull
    box.transport.drain()
    assert not box.outbox.is_overfull
    assert box.drained == 1


def test_overfull_within_one_tick_is_told_too() -> None:
    box = Box(100)
    box.outbox.send(bytes(UNREAD_REPLY_BYTES_MAX + 100))
    assert box.outbox.is_overfull
    box.tick()
    assert box.drained == 1


def test_nothing_is_written_to_a_connection_that_is_closing() -> None:
    box = Box()
    box.outbox.send(b"a")
    box.transport.closing = True
    box.tick()
    assert box.transport.writes == []
    box.outbox.send(b"b")
    box.outbox.discard()
    box.tick()
    assert box.transport.writes == []
