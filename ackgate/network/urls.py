"""The addresses of one server. Pure, but for the machine's own name."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final, NamedTuple, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping


class Urls(NamedTuple):
    """The addresses of a server, in clear and by TLS.

    Empty: it has none of that kind, or it is not known.
    """

    plain: str = ""
    tls: str = ""

    @property
    def any(self) -> str:
        """The address in clear, else the one by TLS."""
        return self.plain or self.tls

    def like(self, *, is_tls: bool) -> str:
        """The address by TLS, or else in clear; the other one if that is missing."""
        return (self.tls or self.plain) if is_tls else self.any


NOWHERE: Final = Urls()


class AdvertisedListener(NamedTuple):
    """The addresses of a broker in one network, under the listener's name."""

    name: str
    service: Urls = NOWHERE
    web: Urls = NOWHERE

    @classmethod
    def of(cls, name: str, urls: Mapping[str, str]) -> Self:
        """A listener with these addresses: `urls` maps a scheme (``pulsar+ssl``) to an address."""
        return cls(
            name,
            Urls(urls.get("pulsar", ""), urls.get("pulsar+ssl", "")),
            Urls(urls.get("http", ""), urls.get("https", "")),
        )

    @property
    def host(self) -> str:
        """Host of the broker service's address; empty if there is none."""
        return urlsplit(self.service.any).hostname or ""

    @property
    def web_host(self) -> str:
        """Host of the admin interface's address; empty if there is none."""
        return urlsplit(self.web.any).hostname or ""


def advertised_host(advertised_address: str, bind_address: str) -> str:
    """The host name to tell others: as configured, else the bind address or the machine's name."""
    if advertised_address:
        return advertised_address
    if bind_address in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
        return socket.gethostname()
    return bind_address


def url_of(scheme: str, host: str, port: int) -> str:
    """``scheme://host:port``, with an IPv6 address in brackets."""
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def is_http_address(url: str) -> bool:
    """Whether it has a scheme of HTTP, a host, and no impossible port."""
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of the host or the port
        return False
