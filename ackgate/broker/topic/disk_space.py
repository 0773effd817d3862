"""Watches the room for messages on this broker's disks.

Edge: checks every second, in a thread. While a disk that every message needs is nearly full, sends are
rejected; reads, acks, expiry and deletion use the free space and the reserve
(`persistence/system/disk_reserve.py`), so consumers can free the disk. Then sends are accepted again, and
work that a start had to skip without room is done.

The metadata store and the bookies below the data directory share its reserve; a bookie on a file system
of its own has its own. Bookies handle a disk that hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ackgate.errors import AckGateError, DiskFullError
from ackgate.persistence.system.disk_reserve import DiskReserve, OsSpace
from ackgate.persistence.system.io_lane import ThreadLane

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from ackgate.persistence.system.disk_reserve import SpaceFiles
    from ackgate.persistence.system.io_lane import IoLane

log = logging.getLogger(__name__)

DISK_LOOK_SECONDS: Final = 1.0
"""Time between two looks."""

LOOK_SHARE: Final = 8
"""Also look after messages of this share of the reserve: what is written until the look ends, in
journals and files, has to fit into the free space."""


class DiskSpace:
    """Watches all file systems that a broker writes to.

    Call `make_room` before anything is written.
    """

    def __init__(
        self,
        data_directory: Path,
        bookies: Sequence[Path] = (),
        *,
        bookies_needed: int = 0,
        reserve_bytes: int,
        files: SpaceFiles | None = None,
        lane: Callable[[str], IoLane] = ThreadLane,
    ) -> None:
        """`bookies_needed`: so many bookies must have room for a message to be accepted."""
        self._data_directory = data_directory
        self._bookies = tuple(bookies)
        self._bookies_needed = bookies_needed
        self._reserve_bytes = reserve_bytes
        self._files = files or OsSpace()
        self._reserves: dict[int, DiskReserve] = {}
        self._device_of: dict[Path, int] = {}
        self._lane = lane("disk-space")
        self._looking: asyncio.Task[None] | None = None
        self.refusal: DiskFullError | None = None
        """The error for rejected messages; None: there is room."""
        self._unseen_bytes = 0
        self.mend: Callable[[], Iterable[Awaitable[object]]] = tuple
        """Returns work that frees room, or makes use of it. It is started after each look that
        finds little room, and when there is room again."""

    @classmethod
    def unwatched(cls) -> DiskSpace:
        """For a broker that keeps nothing on a disk: there is always room."""
        return cls(Path(), reserve_bytes=0)

    async def make_room(self, *, is_starting: bool) -> None:
        """Free the reserve for a start or a stop if necessary, and set `refusal`."""
        if not is_starting:
            await self._look(
                is_starting=False
            )  # if little is free, the next look reduces the reserve
        await self._look(is_starting=is_starting)

    def refusal_of(self, message_bytes: int) -> DiskFullError | None:
        """Why messages of so many bytes must be rejected.

        None: they will be written, and are counted.
        """
        if self.refusal is None and self._reserve_bytes:
            self._unseen_bytes += message_bytes
            if self._unseen_bytes >= self._reserve_bytes // LOOK_SHARE:
                self._begin_look()
        return self.refusal

    async def look(self) -> None:
        """Look again. Does nothing while the last look is still waiting for a disk."""
        await asyncio.wait([self._begin_look()], timeout=DISK_LOOK_SECONDS)

    def _begin_look(self) -> asyncio.Task[None]:
        if self._looking is None:
            self._unseen_bytes = 0
            self._looking = asyncio.get_running_loop().create_task(self._look_and_mend())
            self._looking.add_done_callback(self._looked)
        return self._looking

    def _looked(self, task: asyncio.Task[None]) -> None:
        self._looking = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("disk space: %r", error)

    async def _look_and_mend(self) -> None:
        was_low = self.refusal is not None
        await self._look(is_starting=False)
        if was_low or self.refusal is not None:
            for work in self.mend():
                with contextlib.suppress(AckGateError):  # whoever failed has logged it
                    await work

    async def _look(self, *, is_starting: bool) -> None:
        if not self._reserve_bytes:
            return
        await self._lane.run(lambda: self._look_at_all(is_starting=is_starting))
        self._decide()

    def _look_at_all(self, *, is_starting: bool) -> None:
        for directory in (self._data_directory, *self._bookies):
            try:
                device = self._files.device(directory)
            except OSError:
                continue  # not made yet, or deleted
            self._device_of[directory] = device
            if device not in self._reserves:
                self._reserves[device] = DiskReserve(directory, self._reserve_bytes, self._files)
        for reserve in self._reserves.values():
            try:
                reserve.look(is_starting=is_starting)
            except OSError as error:
                log.warning("the reserve of %s: %s", reserve.directory, error)

    def _decide(self) -> None:
        low = {device for device, reserve in self._reserves.items() if reserve.is_low}
        root = self._device_of.get(self._data_directory)
        roomy = sum(self._device_of.get(path) not in low for path in self._bookies)
        is_low = root in low or roomy < self._bookies_needed
        if is_low == (self.refusal is not None):
            return
        if is_low:
            narrow = [self._reserves[device] for device in sorted(low)]
            self.refusal = DiskFullError(
                "the disk is full: no messages are taken until there is room again ("
                + "; ".join(
                    f"{each.directory}: {each.free_bytes >> 10} KiB free,"
                    f" {3 * each.wanted_bytes >> 10} wanted"
                    for each in narrow
                )
                + ")"
            )
            log.error("%s", self.refusal)
        else:
            self.refusal = None
            log.warning("there is room on the disk again: sends are accepted")

    @property
    def free_bytes(self) -> int | None:
        """Free bytes of the fullest file system at the last look; None if there was none."""
        return min((reserve.free_bytes for reserve in self._reserves.values()), default=None)

    @property
    def disks(self) -> list[tuple[Path, int, bool]]:
        """File systems at the last look: a directory on each, free bytes, whether they are few."""
        return [(r.directory, r.free_bytes, r.is_low) for r in self._reserves.values()]

    async def close(self) -> None:
        """Stop looking. Does not wait for a disk that does not answer."""
        looking = self._looking
        if looking is not None:
            looking.cancel()
            await asyncio.wait([looking], timeout=DISK_LOOK_SECONDS)
        if self._looking is None:
            self._lane.close()
