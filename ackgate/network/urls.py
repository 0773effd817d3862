"""The addresses of one server. Pure, but for the machine's own name."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final, NamedTuple, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping


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


class AdvertisedListener(NamedTuple):
    """The addresses of a broker for one network, by the name that clients there ask by."""

    name: str
    service: Urls = NOWHERE
    web: Urls = NOWHERE

    @classmethod
    def of(cls, name: str, urls: Mapping[str, str]) -> Self:
        """`urls`: by scheme."""
        return cls(
            name,
            Urls(urls.get("pulsar", ""), urls.get("pulsar+ssl", "")),
            Urls(urls.get("http", ""), urls.get("https", "")),
        )

    @property
    def host(self) -> str:
        """Of its service."""
        return urlsplit(self.service.any).hostname or ""

    @property
    def web_host(self) -> str:
        """Of its admin interface; empty: it has none."""
        return urlsplit(self.web.any).hostname or ""


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
