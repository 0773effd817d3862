"""Tokens of OpenID Connect issuers: Pulsar's `AuthenticationProviderOpenID`.

Edge: asks an issuer over HTTP for its public keys, and remembers them. Only issuers in
`openIDAllowedTokenIssuers` are asked, so strangers cannot send the broker anywhere, and not more often than
`openIDKeyIdCacheMissRefreshSeconds`, however many unknown keys their tokens name. The key decides which
algorithms it takes, as in ``tokens.py``; secrets among the published keys are ignored.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import aiohttp
import jwt

from ackgate.broker.security.identity import (
    TOKEN_METHOD,
    AuthenticationFailedError,
    Credentials,
    Principal,
)
from ackgate.broker.security.tokens import (
    TokenRules,
    VerifyingKey,
    algorithms_of,
    checked_claims,
    principal_of,
    unchecked_parts,
)
from ackgate.errors import ConfigurationError, StorageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ackgate.config.security import SecuritySettings

    Fetch: TypeAlias = Callable[[str], Awaitable[bytes]]

log = logging.getLogger(__name__)

FAILED_AGAIN_SECONDS: Final = 5.0
"""An issuer that did not answer is not asked again sooner."""

ANSWER_BYTES_MAX: Final = 1024 * 1024
ANSWER_SECONDS_MAX: Final = 5.0
KEYS_MAX: Final = 100
"""Published keys of one issuer that are used."""


class _Known(NamedTuple):
    """The cached keys of an issuer."""

    keys: Mapping[str, VerifyingKey]
    at_seconds: float
    again_seconds: float
    """When the issuer may be asked again for a missing key."""


class KeyTimes(NamedTuple):
    """How long keys are cached, and how soon an issuer is asked again for a missing one."""

    believed_seconds: float = 86_400.0
    missed_seconds: float = 300.0


class OpenIdProvider:
    """Checks tokens of OpenID Connect issuers, as Pulsar's `AuthenticationProviderOpenID`."""

    method: Final = TOKEN_METHOD

    def __init__(
        self,
        issuers: tuple[str, ...],
        rules: TokenRules,
        fetch: Fetch,
        *,
        requires_https: bool,
        times: KeyTimes = KeyTimes(),  # noqa: B008 - frozen
    ) -> None:
        for issuer in issuers:
            if requires_https and not issuer.startswith("https://"):
                raise ConfigurationError(
                    f"openIDAllowedTokenIssuers: {issuer} is not https (openIDRequireIssuersUseHttps)"
                )
        self._rules = rules
        self._fetch = fetch
        self._requires_https = requires_https
        self._times = times
        self._locks = {issuer: asyncio.Lock() for issuer in issuers}
        self._known: dict[str, _Known] = {}

    @classmethod
    def of(cls, settings: SecuritySettings) -> OpenIdProvider:
        """The provider that is configured. Raises `ConfigurationError`."""
        rules = TokenRules(
            role_claim=settings.open_id_role_claim or "sub",
            audience_claim="aud",
            audiences=settings.open_id_allowed_audiences,
            clock_skew_seconds=settings.open_id_accepted_time_leeway_seconds,
        )
        fetch = http_fetch(settings.open_id_token_issuer_trust_certs_file_path)
        return cls(
            settings.open_id_allowed_token_issuers,
            rules,
            fetch,
            requires_https=settings.open_id_require_issuers_use_https,
            times=KeyTimes(
                settings.open_id_cache_expiration_seconds,
                settings.open_id_key_id_cache_miss_refresh_seconds,
            ),
        )

    async def authenticate(self, credentials: Credentials, now_seconds: float) -> Principal:
        """Check a token by its issuer's published key. Raises `AuthenticationFailedError`."""
        header, claimed = unchecked_parts(credentials.data.decode(errors="replace"))
        issuer, key_id = claimed.get("iss"), header.get("kid", "")
        if not isinstance(issuer, str) or issuer not in self._locks or not isinstance(key_id, str):
            raise AuthenticationFailedError("the token is of an issuer that is not allowed here")
        key = await self._key(issuer, key_id, now_seconds)
        claims = checked_claims(credentials.data, key)
        if claims.get("iss") != issuer or "exp" not in claims:
            raise AuthenticationFailedError("the token does not say when it expires")
        return principal_of(claims, self._rules, now_seconds)

    async def _key(self, issuer: str, key_id: str, now_seconds: float) -> VerifyingKey:
        async with self._locks[issuer]:
            known = self._known.get(issuer, _Known({}, 0.0, 0.0))
            is_old = now_seconds >= known.at_seconds + self._times.believed_seconds
            if (is_old or key_id not in known.keys) and now_seconds >= known.again_seconds:
                known = self._known[issuer] = await self._asked(issuer, known, now_seconds)
                is_old = now_seconds >= known.at_seconds + self._times.believed_seconds
        if is_old:
            raise AuthenticationFailedError("the keys of the token's issuer cannot be read")
        if key_id not in known.keys:
            raise AuthenticationFailedError("the token's issuer has not published its key")
        return known.keys[key_id]

    async def _asked(self, issuer: str, known: _Known, now_seconds: float) -> _Known:
        """Ask the issuer for its keys. If it does not answer, returns the ones from before."""
        try:
            described = _object(
                await self._fetch(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
            )
            keys = _keys(_object(await self._fetch(self._place_of_keys(issuer, described))))
        except StorageError as error:
            log.warning("keys of issuer %s: %s", issuer, error)
            return known._replace(again_seconds=now_seconds + FAILED_AGAIN_SECONDS)
        return _Known(keys, now_seconds, now_seconds + min(self._times))

    def _place_of_keys(self, issuer: str, described: Mapping[str, Any]) -> str:
        place = str(described.get("jwks_uri", ""))
        if described.get("issuer") != issuer:
            raise StorageError("it describes another issuer")
        if not place.startswith("https://" if self._requires_https else ("https://", "http://")):
            raise StorageError("its keys are not at an https address")
        return place


def _keys(published: Mapping[str, Any]) -> dict[str, VerifyingKey]:
    """Read a JSON Web Key Set: public keys for signatures, by key id. Skips all others."""
    listed = published.get("keys")
    found = {}
    for each in listed[:KEYS_MAX] if isinstance(listed, list) else ():
        if not isinstance(each, dict) or each.get("kty") not in {"RSA", "EC"} or "d" in each:
            continue
        if each.get("use", "sig") != "sig":
            continue
        try:
            key = jwt.PyJWK.from_dict(each).key
        except (jwt.PyJWTError, ValueError, TypeError):
            continue
        algorithms = algorithms_of(key)
        if "alg" in each:
            algorithms = tuple(name for name in algorithms if name == each["alg"])
        if algorithms:
            found[str(each.get("kid", ""))] = VerifyingKey(key, algorithms)
    return found


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise StorageError("it does not answer with a JSON object")
    return found


def http_fetch(trust_certificates: str) -> Fetch:
    """Make a function that gets a URL. That function raises `StorageError`.

    `trust_certificates`: path of a PEM file; empty: the system's authorities. Raises
    `ConfigurationError` for a file that cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=trust_certificates or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"openIDTokenIssuerTrustCertsFilePath: {trust_certificates}: {error.strerror or error}"
        ) from None

    async def fetch(url: str) -> bytes:
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS_MAX)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(url, ssl=context, allow_redirects=False) as response,
            ):
                text = b""
                async for piece in response.content.iter_any():
                    text += piece
                    if len(text) > ANSWER_BYTES_MAX:
                        raise StorageError(f"it answers more than {ANSWER_BYTES_MAX} bytes")
                if response.status != 200:
                    raise StorageError(f"it answers {response.status}")
                return text
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise StorageError(f"it does not answer: {type(error).__name__}") from error

    return fetch
