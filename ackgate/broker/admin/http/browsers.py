"""Protects the admin interface from foreign web pages.

Pure. Without authentication everyone who reaches the port may do everything. A browser that reaches it sends
requests for any page that it shows, with a certificate if it has one; these rules reject them:

- *Host*: it must be an address of this broker. A page of ``attacker.example`` whose name resolves to this
  broker (DNS rebinding) looks to the browser like our own page, but its requests name
  ``attacker.example``. An IP address cannot be rebound, so every one is accepted.
- *Origin* and *Sec-Fetch-Site*: a request from a page of another origin is rejected, unless that
  origin is allowed.
- *Content-Type*: a body is JSON. Types that a page may send without a preflight (``text/plain``, forms)
  are rejected, as in Pulsar; this stops browsers that send no origin.

Pulsar's clients and command line tools send no Origin, and use the configured address. Answers to an
allowed page have the headers of CORS, so that its browser shows it the answers.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from ackgate.broker.admin.http.call import Reply
from ackgate.broker.admin.http.refusals import RefusedError
from ackgate.broker.wire import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

METHODS: Final = "DELETE, GET, POST, PUT"
"""The methods that the admin interface knows."""

PREFLIGHT_SECONDS: Final = 600
"""How long a browser may cache the answer to a preflight."""

_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/@\[\]]+)(?::[0-9]{1,5})?")
_JSON: Final = re.compile(r"application/([a-z0-9.+-]+\+)?json")
_OWN_SITES: Final = frozenset({"", "same-origin", "none"})
"""Values of Sec-Fetch-Site that mean: no browser or an old one, our own page, the user himself."""


class RequestHeaders(NamedTuple):
    """The headers that say where a request comes from and what its body is; empty: absent."""

    host: str
    origin: str = ""
    fetch_site: str = ""
    content_type: str = ""


class BrowserGuard:
    """Decides whether a request may be answered. Its hosts and settings do not change."""

    def __init__(
        self,
        own_hosts: Iterable[str],
        allowed_hosts: Iterable[str] = (),
        allowed_origins: Iterable[str] = (),
    ) -> None:
        hosts = {_bare(host) for host in (*own_hosts, *allowed_hosts)} - {""}
        self._takes_any_host = "*" in hosts
        self._hosts = frozenset(hosts)
        self._suffixes = tuple(host[1:] for host in hosts if host.startswith("*."))
        self._origins = frozenset(origin.lower().rstrip("/") for origin in allowed_origins)

    def check(self, headers: RequestHeaders, *, is_page: bool = False) -> None:
        """Return if the request may be answered. Raises `RefusedError`.

        `is_page`: it is for our own page, which holds no data, so that a link from any site leads there.
        """
        self._check_host(headers.host)
        if headers.origin and not self._is_allowed(headers.origin):
            if not _is_own_page(headers):
                raise RefusedError(
                    403,
                    f"pages of {quoted(headers.origin)} may not use this interface; "
                    "webServiceAllowedOrigins names those that may",
                )
        elif not headers.origin and not is_page and headers.fetch_site.lower() not in _OWN_SITES:
            raise RefusedError(
                403,
                f"a page of another site asks ({quoted(headers.fetch_site)}), and a browser does not "
                "say which; webServiceAllowedOrigins names those that may",
            )

    def check_body(self, headers: RequestHeaders) -> None:
        """Return if a body of this kind is read. Raises `RefusedError`."""
        kind = headers.content_type.partition(";")[0].strip().lower()
        if not _JSON.fullmatch(kind):
            raise RefusedError(
                415,
                f"the body is {quoted(kind) if kind else 'without a Content-Type'}, and must be "
                "JSON: add the header Content-Type: application/json",
            )

    def answer_headers(self, origin: str) -> Mapping[str, str]:
        """CORS headers for answers to a page of this origin."""
        if not self._origins:
            return {}
        vary = {"Vary": "Origin"}
        return {**vary, "Access-Control-Allow-Origin": origin} if self._is_allowed(origin) else vary

    def preflight(self, headers: RequestHeaders) -> Reply:
        """Answer the preflight of a browser.

        Raises `RefusedError` if the page may not send requests.
        """
        if not self._is_allowed(headers.origin):
            raise RefusedError(403, f"pages of {quoted(headers.origin)} may not use this interface")
        return Reply(
            204,
            headers={
                "Access-Control-Allow-Methods": METHODS,
                "Access-Control-Allow-Headers": "Authorization, Content-Type",
                "Access-Control-Max-Age": str(PREFLIGHT_SECONDS),
            },
        )

    def _is_allowed(self, origin: str) -> bool:
        return origin.lower() in self._origins

    def _check_host(self, host: str) -> None:
        found = _HOST.fullmatch(host.lower())
        if found is None:
            raise RefusedError(400, "the Host header names no host")
        name = _bare(found[1])
        if (
            self._takes_any_host
            or name in self._hosts
            or name == "localhost"
            or name.endswith((".localhost", *self._suffixes))
            or _is_address(name)
        ):
            return
        raise RefusedError(
            403,
            f"this broker is not known as {quoted(name)}; webServiceAllowedHosts gives it more names",
        )


def _bare(host: str) -> str:
    return host.strip().lower().removesuffix(".").removeprefix("[").removesuffix("]")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_own_page(headers: RequestHeaders) -> bool:
    """Whether the request comes from our page, whose host name was checked before."""
    try:
        origin = urlsplit(headers.origin.lower())
    except ValueError:
        return False
    return origin.scheme in {"http", "https"} and origin.netloc == headers.host.lower()
