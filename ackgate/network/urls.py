"""The addresses of one server. Pure, but for the machine's own name."""

from __future__ import annotations

import socket
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


def advertised_host(advertised_address: str, bind_address: str) -> str:
    """By which name others reach a server: what the settings say, else the machine's own."""
    if advertised_address:
        return advertised_address
    if bind_address in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
        return socket.gethostname()
    return bind_address


def url_of(scheme: str, host: str, port: int) -> str:
    """``scheme://host:port``."""
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
