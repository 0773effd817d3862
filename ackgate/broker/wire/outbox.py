"""What a connection has yet to send: gathered during a tick of the loop, written at once, bounded.

Edge: owns the writing side of one transport.

    send, send_many --> pieces --(end of tick)--> one write --> transport's buffer --> socket
                          `------ unsent_bytes ------------------------'

While `unsent_bytes` is at or above the high-water mark, `is_writable` is False: deliveries pause.
Answers to requests are not held back by that, so a client that asks without reading would grow the
buffer: from `UNREAD_REPLY_BYTES_MAX` on, `is_overfull` makes the session stop reading from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

UNREAD_REPLY_BYTES_MAX: Final = 8 * 1024 * 1024
"""Above the largest frame that a broker sends, so that a large entry alone never reaches it."""

JOIN_PIECE_BYTES_MAX: Final = 16 * 1024
"""Pieces are joined into one buffer unless they are larger than this on average: copying small ones
is cheaper than handing each to the kernel, copying large ones is not."""


class Outbox:
    """The output of one connection."""

    __slots__ = (
        "_call_soon",
        "_has_refused",
        "_is_flush_due",
        "_is_paused",
        "_on_drained",
        "_pieces",
        "_pieces_bytes",
        "_transport",
        "high_water_bytes",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        call_soon: Callable[[Callable[[], None]], object],
        high_water_bytes: int,
        on_drained: Callable[[], None],
    ) -> None:
        self.high_water_bytes = high_water_bytes
        self._transport = transport
        self._call_soon = call_soon
        self._on_drained = on_drained
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._is_flush_due = False
        self._is_paused = False
        self._has_refused = False
        transport.set_write_buffer_limits(high=high_water_bytes, low=high_water_bytes // 4)

    @property
    def is_writable(self) -> bool:
        """Whether more deliveries are welcome. After a False, `on_drained` will be called."""
        if self._is_paused or self._pieces_bytes >= self.high_water_bytes:
            self._has_refused = True
            return False
        return True

    @property
    def is_overfull(self) -> bool:
        """Whether so much waits to be read by the peer that it must not ask for more."""
        if self.unsent_bytes >= UNREAD_REPLY_BYTES_MAX + self.high_water_bytes:
            self._has_refused = True
            return True
        return False

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return self._pieces_bytes + self._transport.get_write_buffer_size()

    def send(self, frame: bytes) -> None:
        """Send one frame, at the end of this tick."""
        self._pieces.append(frame)
        self._pieces_bytes += len(frame)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._call_soon(self.flush)

    def send_many(self, pieces: Sequence[bytes]) -> None:
        """Send frames that come in pieces."""
        self._pieces += pieces
        self._pieces_bytes += sum(map(len, pieces))
        if not self._is_flush_due:
            self._is_flush_due = True
            self._call_soon(self.flush)

    def flush(self) -> None:
        """Hand everything to the transport."""
        self._is_flush_due = False
        pieces = self._pieces
        if not pieces:
            return
        self._pieces = []
        pieces_bytes, self._pieces_bytes = self._pieces_bytes, 0
        if self._transport.is_closing():
            return
        if pieces_bytes > len(pieces) * JOIN_PIECE_BYTES_MAX:
            self._transport.writelines(pieces)
        else:
            self._transport.write(b"".join(pieces))
        self._tell_if_drained()

    def discard(self) -> None:
        """Forget what was not sent: the connection is gone."""
        self._pieces = []
        self._pieces_bytes = 0

    def pause(self) -> None:
        """The transport's buffer is above the mark."""
        self._is_paused = True
        self._has_refused = True

    def resume(self) -> None:
        """The transport's buffer is below the low mark again."""
        self._is_paused = False
        self._tell_if_drained()

    def _tell_if_drained(self) -> None:
        if self._has_refused and not self._is_paused:
            self._has_refused = False
            self._on_drained()
