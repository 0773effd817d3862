"""Credentials that a client of a broker shows, configured as ``authPlugin`` and ``authParams``.

Edge: reads the file of a token, anew for each request, so that a token can be replaced while a
process runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLUGINS: Final = "org.apache.pulsar.client.impl.auth."

NO_HEADERS: Final[Mapping[str, str]] = {}


def http_headers(plugin: str, parameters: str, *, what: str) -> Mapping[str, str]:
    """Headers with the credentials. Raises `ConfigurationError`.

    `what`: where the parameters come from, for errors, which never show them.
    """
    name = plugin.removeprefix(_PLUGINS)
    if name in {"", "AuthenticationDisabled"}:
        return NO_HEADERS
    if name in {"AuthenticationToken", "token"}:
        if parameters.startswith("file:"):
            from ackgate.broker.security.tokens import read_bytes  # noqa: PLC0415 - PyJWT is large

            return bearer(read_bytes(parameters, what=what).decode("latin-1"), what=what)
        return bearer(parameters.removeprefix("token:"), what=what)
    raise ConfigurationError(f"authentication plugin {plugin[:100]!a} is not known here")


def bearer(token: str, *, what: str) -> Mapping[str, str]:
    """Headers with a token. Raises `ConfigurationError` for what cannot be one."""
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigurationError(f"{what}: this is no token")
    return {"Authorization": f"Bearer {token}"}
