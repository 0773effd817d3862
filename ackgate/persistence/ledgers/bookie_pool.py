"""The bookies that a client has, by id.

Edge. Knows which of them can be written, and tries those again that could not. Ledgers are spread by
turns: each new one begins one bookie further on. A bookie whose last write failed is taken only when
the others do not suffice, and after it was tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.errors import ConfigurationError, NotEnoughBookiesError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ackgate.persistence.bookies.bookie import Bookie


def choose_ensemble(bookie_ids: Sequence[str], size: int, turn: int) -> tuple[str, ...] | None:
    """`size` of these bookies, beginning at the turn's; None when there are not enough."""
    if size > len(bookie_ids):
        return None
    start = turn % len(bookie_ids)
    return tuple(bookie_ids[(start + i) % len(bookie_ids)] for i in range(size))


def choose_spare(bookie_ids: Sequence[str], ensemble: Sequence[str], turn: int) -> str | None:
    """One of these bookies that is not in the ensemble, beginning at the turn's."""
    for i in range(len(bookie_ids)):
        candidate = bookie_ids[(turn + i) % len(bookie_ids)]
        if candidate not in ensemble:
            return candidate
    return None


class BookiePool:
    """The open bookies, by id."""

    def __init__(self, bookies: Iterable[Bookie]) -> None:
        self._bookies: dict[str, Bookie] = {}
        for bookie in bookies:
            self.add(bookie)
        self._turn = 0

    def __iter__(self) -> Iterator[Bookie]:
        return iter(tuple(self._bookies.values()))

    def __len__(self) -> int:
        return len(self._bookies)

    def get(self, bookie_id: str) -> Bookie | None:
        """The bookie, or None when this client does not have it."""
        return self._bookies.get(bookie_id)

    def add(self, bookie: Bookie) -> None:
        """Add a bookie. Raises `ConfigurationError` if it is here already."""
        other = self._bookies.setdefault(bookie.bookie_id, bookie)
        if other is not bookie:
            raise ConfigurationError(
                f"{bookie.directory} and {other.directory} are both bookie {bookie.bookie_id}: "
                "is one a copy of the other?"
            )

    async def ensemble(self, size: int, least: int | None = None) -> tuple[str, ...]:
        """Bookies for a new ledger: `size`, or as many as can be written, but not below `least`.

        Raises `NotEnoughBookiesError`.
        """
        self._turn += 1
        chosen = choose_ensemble(self.writable(), size, self._turn)
        if chosen is None:
            await self.try_failed()
            writable = self.writable()
            if least is not None:
                size = max(least, min(size, len(writable)))
            chosen = choose_ensemble(writable, size, self._turn)
        if chosen is None:
            raise NotEnoughBookiesError(
                f"a ledger of {size} copies needs {size} bookies that can be written; there are "
                f"{len(self.writable())}{self._reasons()}"
            )
        return chosen

    async def spare(self, ensemble: Sequence[str]) -> Bookie | None:
        """A bookie to take a failed one's place; None when there is none."""
        self._turn += 1
        chosen = choose_spare(self.writable(), ensemble, self._turn)
        if chosen is None:
            await self.try_failed(besides=ensemble)
            chosen = choose_spare(self.writable(), ensemble, self._turn)
        return self._bookies[chosen] if chosen is not None else None

    def writable(self) -> list[str]:
        """Ids of those that take entries, as far as known."""
        return [
            bookie.bookie_id
            for bookie in self
            if not bookie.is_read_only and bookie.last_error is None
        ]

    async def try_failed(self, besides: Sequence[str] = ()) -> None:
        """Try those again that could not be written."""
        for bookie in self:
            if bookie.last_error is not None and bookie.bookie_id not in besides:
                try:
                    await bookie.probe()
                except StorageError:
                    continue

    def _reasons(self) -> str:
        errors = [str(bookie.last_error) for bookie in self if bookie.last_error is not None]
        return f" ({'; '.join(errors)})" if errors else ""
