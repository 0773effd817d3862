"""Authentication: the providers, the rules for proxies and clients without credentials.

Pure, but for the providers, which may ask others. The drivers are the connections of the binary
protocol and the admin interface: they pass what a client showed and the time, and get a
`ClientIdentity` or an error. `http_headers` is the other side: what this program shows to a broker.

A proxy is a role in `proxyRoles`. It names the client for which it acts, and nobody else may name
one. With `authenticateOriginalAuthData` it brings the client's credentials, and they are checked.
"""

from __future__ import annotations

import base64
import binascii
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from ackgate.broker.security.identity import (
    BASIC_METHOD,
    NO_METHOD,
    TLS_METHOD,
    TOKEN_METHOD,
    AuthenticationFailedError,
    ClientIdentity,
    Credentials,
    NotAuthorizedError,
    Principal,
)
from ackgate.config.security import BASIC_PROVIDER, OPENID_PROVIDER, TLS_PROVIDER, TOKEN_PROVIDER
from ackgate.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ackgate.broker.security.identity import AuthenticationProvider
    from ackgate.config.security import SecuritySettings


class TlsProvider:
    """Pulsar's `AuthenticationProviderTls`: the role is the certificate's common name."""

    method: Final = TLS_METHOD

    async def authenticate(self, credentials: Credentials, now_seconds: float) -> Principal:  # noqa: ARG002
        """Accept a verified client certificate. Raises `AuthenticationFailedError`."""
        if not credentials.certificate_name.strip():
            raise AuthenticationFailedError(
                "the connection has shown no verified certificate with a common name"
            )
        return Principal(credentials.certificate_name, TLS_METHOD)


def _token(settings: SecuritySettings) -> AuthenticationProvider:
    from ackgate.broker.security.tokens import TokenProvider  # noqa: PLC0415 - PyJWT is large

    return TokenProvider.of(settings)


def _basic(settings: SecuritySettings) -> AuthenticationProvider:
    from ackgate.broker.security.passwords import BasicProvider  # noqa: PLC0415 - libpass is large

    return BasicProvider.of(settings)


def _openid(settings: SecuritySettings) -> AuthenticationProvider:
    from ackgate.broker.security.openid import OpenIdProvider  # noqa: PLC0415 - it asks by aiohttp

    return OpenIdProvider.of(settings)


_MAKERS: Final[Mapping[str, Callable[[SecuritySettings], AuthenticationProvider]]] = {
    TOKEN_PROVIDER: _token,
    TLS_PROVIDER: lambda _: TlsProvider(),
    BASIC_PROVIDER: _basic,
    OPENID_PROVIDER: _openid,
}
"""Our providers, by Pulsar's class names."""


class Original(NamedTuple):
    """What a proxy states about its client; empty where it states nothing."""

    role: str = ""
    credentials: Credentials | None = None


NO_ORIGINAL: Final = Original()


OTHER_METHODS: Final = "other"
"""Counts all methods together that are not offered here, because clients may make up names."""


@dataclass(slots=True)
class Outcomes:
    """How often credentials of one method were accepted or rejected."""

    succeeded: int = 0
    failed: int = 0


class Authentication:
    """Finds out who a client is, by asking the providers."""

    def __init__(
        self,
        providers: Iterable[AuthenticationProvider],
        *,
        anonymous_role: str = "",
        proxy_roles: Iterable[str] = (),
        checks_original: bool = False,
    ) -> None:
        self._providers: dict[str, list[AuthenticationProvider]] = {}
        for provider in providers:
            self._providers.setdefault(provider.method, []).append(provider)
        self._anonymous_role = anonymous_role
        self._proxy_roles = frozenset(proxy_roles)
        self._checks_original = checks_original
        methods = (*self._providers, NO_METHOD, OTHER_METHODS)
        self.outcomes = {method: Outcomes() for method in methods}
        """Counts by the method that clients used."""

    @classmethod
    def of(cls, settings: SecuritySettings) -> Self | None:
        """The authentication that is configured, or None if it is off. Reads keys.

        Raises `ConfigurationError`.
        """
        if not settings.authentication_enabled:
            return None
        return cls(
            [_MAKERS[name](settings) for name in dict.fromkeys(settings.authentication_providers)],
            anonymous_role=settings.anonymous_user_role,
            proxy_roles=settings.proxy_roles,
            checks_original=settings.authenticate_original_auth_data,
        )

    async def identify(
        self, shown: Credentials | None, now_seconds: float, original: Original = NO_ORIGINAL
    ) -> ClientIdentity:
        """Find out who shows these credentials; None: the client shows none.

        Raises `AuthenticationFailedError`.
        """
        with self._counted(shown):
            principal = await self._principal(shown, now_seconds)
            return ClientIdentity(principal, await self._original(principal, original, now_seconds))

    @contextmanager
    def _counted(self, shown: Credentials | None) -> Iterator[None]:
        method = NO_METHOD if shown is None else shown.method
        outcomes = self.outcomes.get(method) or self.outcomes[OTHER_METHODS]
        try:
            yield
        except AuthenticationFailedError:
            outcomes.failed += 1
            raise
        outcomes.succeeded += 1

    async def _principal(self, shown: Credentials | None, now_seconds: float) -> Principal:
        if shown is None or shown.method == NO_METHOD:
            if not self._anonymous_role:
                raise AuthenticationFailedError(f"credentials are needed: {self._offered()}")
            return Principal(self._anonymous_role)
        failure = AuthenticationFailedError(
            f"authentication method {shown.method[:40]!a} is not offered here, but {self._offered()}"
        )
        for provider in self._providers.get(shown.method, ()):
            try:
                return await provider.authenticate(shown, now_seconds)
            except AuthenticationFailedError as error:
                failure = error
        raise failure

    async def _original(
        self, principal: Principal, original: Original, now_seconds: float
    ) -> Principal | None:
        if principal.role not in self._proxy_roles:
            if original.role and original.role != principal.role:
                raise AuthenticationFailedError(
                    f"{principal.role!a} is no proxy (proxyRoles), and names an original principal"
                )
            return None
        found = Principal(original.role)
        if self._checks_original:
            if original.credentials is None:
                raise AuthenticationFailedError(
                    f"proxy {principal.role!a} does not bring its client's credentials"
                )
            found = await self._principal(original.credentials, now_seconds)
        if not found.role.strip():
            raise AuthenticationFailedError(
                f"proxy {principal.role!a} does not name an original principal"
            )
        if found.role in self._proxy_roles:
            raise AuthenticationFailedError("an original principal cannot be a proxy itself")
        return found

    async def refreshed(
        self, identity: ClientIdentity, shown: Credentials, now_seconds: float
    ) -> ClientIdentity:
        """Check newer credentials. Returns the same identity with them.

        If a proxy brings its client's credentials, these are the client's. Raises
        `AuthenticationFailedError`, also if they are another role's.
        """
        with self._counted(shown):
            principal = await self._principal(shown, now_seconds)
            is_original = self._checks_original and identity.original is not None
            before = identity.original if is_original else identity.principal
            if before is None or principal.role != before.role:
                raise AuthenticationFailedError(
                    "the refreshed credentials are those of another role"
                )
        if is_original:
            return identity._replace(original=principal)
        return identity._replace(principal=principal)

    def acting(self, identity: ClientIdentity, original_role: str) -> ClientIdentity:
        """The identity for a request that names an original principal itself.

        Raises `NotAuthorizedError` if the client may not act for that principal.
        """
        role = identity.principal.role
        if role not in self._proxy_roles:
            if original_role != role:
                raise NotAuthorizedError(
                    f"{role!a} is no proxy (proxyRoles), and names an original principal"
                )
            return identity
        if original_role in self._proxy_roles:
            raise NotAuthorizedError("an original principal cannot be a proxy itself")
        if self._checks_original:
            return identity  # the connection has proved for whom it acts
        return identity._replace(original=Principal(original_role))

    def _offered(self) -> str:
        return ", ".join(sorted(self._providers)) or "no method at all"


def http_credentials(
    authorization: str, certificate_name: str, *, named_method: str = ""
) -> Credentials | None:
    """Credentials of an HTTP request, from ``Authorization`` or the client certificate;

    None: it has none.

    `named_method`: Pulsar's header ``X-Pulsar-Auth-Method-Name``. Raises
    `AuthenticationFailedError`.
    """
    if not authorization or named_method == TLS_METHOD:
        return Credentials(TLS_METHOD, b"", certificate_name) if certificate_name else None
    scheme, _, value = authorization.partition(" ")
    match scheme.lower():
        case "bearer":
            return Credentials(
                named_method or TOKEN_METHOD, value.strip().encode(), certificate_name
            )
        case "basic":
            try:
                pair = base64.b64decode(value.strip(), validate=True)
            except (binascii.Error, ValueError):
                raise AuthenticationFailedError("Authorization: Basic is not Base64") from None
            return Credentials(BASIC_METHOD, pair, certificate_name)
        case _:
            raise AuthenticationFailedError("Authorization is neither Bearer nor Basic")


# ---- what a client of a broker shows

_PLUGINS: Final = "org.apache.pulsar.client.impl.auth."


def http_headers(plugin: str, parameters: str, *, what: str) -> Mapping[str, str]:
    """HTTP headers with the credentials that ``authPlugin`` and ``authParams`` configure.

    Reads the file of a token at each call, so that it can be replaced while a process runs. `what`:
    where the parameters come from, for errors, which never show them. Raises `ConfigurationError`.
    """
    name = plugin.removeprefix(_PLUGINS)
    if name in {"", "AuthenticationDisabled"}:
        return {}
    if name in {"AuthenticationToken", "token"}:
        if parameters.startswith("file:"):
            from ackgate.broker.security.tokens import read_bytes  # noqa: PLC0415 - PyJWT is large

            return _bearer(read_bytes(parameters, what=what).decode("latin-1"), what=what)
        return _bearer(parameters.removeprefix("token:"), what=what)
    raise ConfigurationError(f"authentication plugin {plugin[:100]!a} is not known here")


def _bearer(token: str, *, what: str) -> Mapping[str, str]:
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigurationError(f"{what}: this is no token")
    return {"Authorization": f"Bearer {token}"}
