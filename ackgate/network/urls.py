"""The addresses of one server. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple


class Urls(NamedTuple):
    """Where a server is reached, in clear and by TLS. Empty: not in that way, or not known."""

    plain: str = ""
    tls: str = ""

    @property
    def any(self) -> str:
        """One of them, in clear if there is that."""
        return self.plain or self.tls

    def like(self, *, is_tls: bool) -> str:
        """The address for whoever came by TLS, or in clear; the other one where that is missing."""
        return (self.tls or self.plain) if is_tls else self.any


NOWHERE: Final = Urls()
