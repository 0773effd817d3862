"""When the pending nacks of a cursor are written along with its acks, and what of them is durable.

Pure: times are arguments, in seconds of one monotonic clock.

They go out as one image, whole, in place of the one before: in every snapshot, and in a delta when
there are new ones and the pace allows it. The pace is a share of the cap: an image as large as the
cap once a second, one of a hundredth of it a hundred times. So nacks cost no more than that, and a
small image is durable as soon as an ack is.

    image    0.6 KB        0.6 KB            64 KB                         64 KB
    -----------|--10 ms------|------...--------|-----------1 s--------------|------>
    deltas  d d N d d d d d d N d d d        d d N d d d d d d d d d d d d d N
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from ackgate.cursor.pending_nacks import NackImage

FULL_IMAGE_SECONDS: Final = 1.0
"""How long no other image follows one as large as the cap."""


class NackSource(Protocol):
    """Who holds the nacks back, and keeps them live."""

    @property
    def version(self) -> int:
        """Grows with every change that is worth a new image. What is acked, or due, is none."""

    def image(self, bytes_max: int) -> NackImage:
        """What there is now: frozen, as much as fits into so many bytes, earliest first."""


class NackWrites:
    """One cursor's pending nacks as persistence sees them."""

    __slots__ = ("_durable_version", "_next_at", "_source", "bytes_max", "dropped", "persisted")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.persisted = 0
        """Entries in the newest durable image."""
        self.dropped = 0
        """Entries that were left out of it."""
        self._source: NackSource | None = None
        self._durable_version = 0
        self._next_at = 0.0

    def attach(self, source: NackSource, persisted: int) -> None:
        """From now on this is who has them; what it holds now is what was recovered: so many."""
        self._source = source
        self.persisted = persisted
        self._durable_version = source.version

    @property
    def is_dirty(self) -> bool:
        """Whether there is anything new to be written."""
        source = self._source
        return source is not None and source.version > self._durable_version and self.bytes_max > 0

    @property
    def due_at(self) -> float:
        """When to write what is new, if there is anything."""
        return self._next_at

    def hurry(self) -> None:
        """Forget the pace for the next write."""
        self._next_at = 0.0

    def if_due(self, now: float) -> NackImage | None:
        """For a delta: what there is, if anything of it is new and its time has come."""
        return self.image() if now >= self._next_at and self.is_dirty else None

    def image(self) -> NackImage | None:
        """For a snapshot: what there is. None: nobody has any."""
        return None if self._source is None else self._source.image(self.bytes_max)

    def wrote(self, image: NackImage, now: float) -> None:
        """An image is durable."""
        self._durable_version = image.version
        self.persisted = image.nacks.entry_count
        self.dropped = image.entries_in_memory - self.persisted
        share = image.nacks.stored_bytes / self.bytes_max if self.bytes_max else 1.0
        self._next_at = now + share * FULL_IMAGE_SECONDS
