"""Memory between producers' sockets and the disk, over all connections: counted and bounded.

Two kinds of bytes count: what a connection has sent of a frame that is not complete, and entries on
their way into a ledger, from SEND until they are durable or have failed, whether their connection
still lives or not. While half of the bound or more is taken, memory is *short*: connections that
hold more than their equal share of that half are not read, so the largest wait first and small ones
never do. A slow disk holds producers back in this way, down in their own sockets.

    half or more taken, and holds more than a share
           .--------------------------------------> WAITING --.
           |                                          |  ^    | its turn: the rest of its frame fits
        READING <-------------------------------------'  |    v
           ^        holds little, or memory is no        '-- TURN
           |        longer short                   too slow   |
           `--------------------------------------------------'  frame complete

What waits with half a frame would hold its memory forever: only a whole frame goes to the disk. So
those that wait get turns, in order, as long as what is missing of their frames fits; if nothing fits
(all is taken by halves) one after the other. A connection silent in its turn while others wait for
the room, or does not complete a frame in it while everything is taken, is ended: half a frame may have
been sent to keep others out.

Always: bytes held <= bound + one frame + what the system reads at a time from each connection.

Edge: the clock and timers of the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackgate.config.broker import BrokerSettings

log = logging.getLogger(__name__)

COMMAND_BYTES_EXTRA: Final = 10 * 1024
"""A frame may be this much larger than the largest message: Pulsar's room for the command."""

TURN_SECONDS: Final = 10.0
"""How long a connection may take in its turn to send the rest of a frame."""

STALL_SECONDS: Final = 1.0
"""How long a connection may send nothing in its turn while others wait for room."""

OUT_OF_TURN_SECONDS: Final = 1.0
"""The first in line gets a turn after so long, even without room for its frame."""

_LOOK_SECONDS: Final = 0.25
"""How often to check turns while connections wait."""

_RESUME_AT: Final = 0.75
"""Share of the short mark below which memory is no longer short, so that reading does not start and
stop with every entry."""

_REPORT_SECONDS: Final = 60.0
"""How often the log reports that memory is short."""


SHARE_OF_MEMORY: Final = 16
LEAST_MB: Final = 16
MOST_MB: Final = 64
"""Without a setting the limit is this share of the memory, between the two bounds."""

_MEBIBYTE: Final = 1024 * 1024

_CGROUP_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


class _State(enum.Enum):
    READING = "reading"
    WAITING = "waiting"
    TURN = "turn"


class Holder:
    """The bytes that one connection holds.

    The connection makes it, and says how to pause and resume.
    """

    __slots__ = (
        "_end",
        "_pause",
        "_resume",
        "half_received_bytes",
        "heard_at",
        "held_bytes",
        "missing_bytes",
        "promised_bytes",
        "since",
        "state",
    )

    def __init__(
        self, pause: Callable[[], None], resume: Callable[[], None], end: Callable[[], bool]
    ) -> None:
        """`end` ends the connection.

        It returns False instead if the broker itself holds reading.
        """
        self._pause = pause
        self._resume = resume
        self._end = end
        self.state = _State.READING
        self.since = 0.0
        """When the connection began to wait, or its turn began."""
        self.heard_at = 0.0
        """When bytes last arrived in its turn."""
        self.half_received_bytes = 0
        self.missing_bytes = 0
        """Bytes missing of its frame; 0 after whole frames."""
        self.held_bytes = 0
        """Bytes of a partial frame, and of entries without an answer."""
        self.promised_bytes = 0


class PublishBuffer:
    """Counts the bytes of all connections of a broker, and decides which are read."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        """`limit_bytes` None: there is no limit."""
        self.limit_bytes = limit_bytes
        self.half_received_bytes = 0
        self.in_flight_bytes = 0
        """Bytes of entries on their way into a ledger."""
        self._holders = 0
        """Number of connections that hold anything."""
        self._waiting: dict[Holder, None] = {}
        """The waiting connections, in order."""
        self._turns: dict[Holder, None] = {}
        self._promised_bytes = 0
        """Bytes missing of the frames of connections that have a turn."""
        self._timer: asyncio.TimerHandle | None = None
        self._reported_at = -_REPORT_SECONDS

    @property
    def held_bytes(self) -> int:
        return self.half_received_bytes + self.in_flight_bytes

    @property
    def waiting_count(self) -> int:
        """Connections that are not read because memory is short."""
        return len(self._waiting)

    # ---------------------------------------------------------------- entries on their way

    def take(self, entry_bytes: int) -> None:
        """Count an entry on its way into a ledger."""
        self.in_flight_bytes += entry_bytes

    def give_back(self, entry_bytes: int) -> None:
        """Discount entries that are durable, or have failed."""
        self.in_flight_bytes -= entry_bytes
        if self._waiting:
            self._relieve()

    # ---------------------------------------------------------------- connections

    def update(
        self,
        holder: Holder,
        *,
        half_received_bytes: int,
        missing_bytes: int,
        unanswered_bytes: int,
        is_frame_complete: bool = False,
    ) -> None:
        """Record what a connection holds now.

        `is_frame_complete`: the last chunk completed a frame.
        """
        self.half_received_bytes += half_received_bytes - holder.half_received_bytes
        holder.half_received_bytes = half_received_bytes
        holder.missing_bytes = missing_bytes
        before = holder.held_bytes
        held = holder.held_bytes = half_received_bytes + unanswered_bytes
        if (before == 0) is not (held == 0):
            self._holders += 1 if held else -1
        limit = self.limit_bytes
        if limit is None:
            return
        if holder.state is _State.READING:
            if 2 * self.held_bytes >= limit and held > self._share(limit):
                self._let_wait(holder)
                self._give_turns()
        elif holder.state is _State.WAITING:
            if 2 * held <= self._share(limit):
                self._read_on(holder)
        elif is_frame_complete:
            self._end_turn(holder)
            holder.state = _State.READING
            if 2 * self.held_bytes >= limit and held > self._share(limit):
                self._let_wait(holder)
            self._give_turns()
        else:
            self._promise(holder, missing_bytes)
            holder.heard_at = asyncio.get_running_loop().time()

    def forget(self, holder: Holder) -> None:
        """Forget a connection that is gone. Its entries may still be on their way."""
        self.half_received_bytes -= holder.half_received_bytes
        if holder.held_bytes:
            self._holders -= 1
        holder.half_received_bytes = holder.held_bytes = holder.missing_bytes = 0
        self._waiting.pop(holder, None)
        self._end_turn(holder)
        holder.state = _State.READING
        if self._waiting:
            self._relieve()

    def configure(self, limit_bytes: int | None) -> None:
        self.limit_bytes = limit_bytes
        if limit_bytes is None:
            for holder in list(self._turns):
                self._end_turn(holder)
                holder.state = _State.READING
        if self._waiting:
            self._relieve()

    # ---------------------------------------------------------------- who waits, whose turn it is

    def _share(self, limit: int) -> int:
        return limit // (2 * max(1, self._holders))

    def _let_wait(self, holder: Holder) -> None:
        holder.state = _State.WAITING
        holder.since = asyncio.get_running_loop().time()
        self._waiting[holder] = None
        holder._pause()
        if holder.since - self._reported_at >= _REPORT_SECONDS:
            self._reported_at = holder.since
            log.warning(
                "memory for messages on their way to the disk is short: %d of %s bytes are taken; "
                "connections that hold most are not read until it is written",
                self.held_bytes,
                self.limit_bytes,
            )
        self._watch()

    def _read_on(self, holder: Holder) -> None:
        del self._waiting[holder]
        holder.state = _State.READING
        holder._resume()

    def _relieve(self) -> None:
        limit = self.limit_bytes
        if limit is None or 2 * self.held_bytes < _RESUME_AT * limit:
            for holder in list(self._waiting):
                self._read_on(holder)
        else:
            self._give_turns()

    def _give_turns(self) -> None:
        limit = self.limit_bytes
        if limit is None:
            return
        now = asyncio.get_running_loop().time()
        for holder in list(self._waiting):
            missing = holder.missing_bytes
            if not missing:
                continue  # its entries are on their way to the disk
            fits = self.held_bytes + self._promised_bytes + missing <= limit
            if not fits and not self._may_exceed(holder, now, limit):
                break
            del self._waiting[holder]
            self._turns[holder] = None
            holder.state = _State.TURN
            holder.since = holder.heard_at = now
            self._promise(holder, missing)
            holder._resume()

    def _may_exceed(self, holder: Holder, now: float, limit: int) -> bool:
        """Whether to give a turn without room for the frame: to one, if waiting is no use."""
        if self._turns:
            return False
        if self.in_flight_bytes <= holder.missing_bytes:
            return True  # everything held is partial frames
        return now - holder.since >= OUT_OF_TURN_SECONDS and self.held_bytes <= limit

    def _is_room_wanted(self) -> bool:
        """Whether a connection waits to send the rest of a frame."""
        return any(holder.missing_bytes for holder in self._waiting)

    def _promise(self, holder: Holder, missing_bytes: int) -> None:
        self._promised_bytes += missing_bytes - holder.promised_bytes
        holder.promised_bytes = missing_bytes

    def _end_turn(self, holder: Holder) -> None:
        self._turns.pop(holder, None)
        self._promise(holder, 0)

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """While connections wait: end turns that take too long, and start those that are due."""
        timer, self._timer = self._timer, None
        now = asyncio.get_running_loop().time()
        if timer is not None and now - timer.when() > STALL_SECONDS / 2:
            for holder in self._turns:
                holder.heard_at = now  # the event loop itself was held up
        for holder in list(self._turns):
            is_stalled = now - holder.heard_at >= STALL_SECONDS and self._is_room_wanted()
            if is_stalled or now - holder.since >= TURN_SECONDS:
                is_used_up = self.limit_bytes is not None and self.held_bytes >= self.limit_bytes
                if not (is_stalled or is_used_up) or not holder._end():
                    self._end_turn(holder)
                    self._let_wait(holder)
        self._give_turns()
        if self._waiting or self._turns:
            self._watch()


def publish_buffer_bytes(settings: BrokerSettings) -> int | None:
    """The limit in bytes that the settings ask for; None: no limit."""
    megabytes = settings.max_message_publish_buffer_size_in_mb
    if megabytes is None:
        megabytes = min(max(memory_bytes() // SHARE_OF_MEMORY // _MEBIBYTE, LEAST_MB), MOST_MB)
    if megabytes <= 0:
        return None
    return max(megabytes * _MEBIBYTE, 2 * (settings.max_message_size + COMMAND_BYTES_EXTRA))


def memory_bytes() -> int:
    """Memory of the machine, or of this process's container if that is less."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # not there, or "max"
            sizes.append(int(path.read_text()))
    return min(sizes)
