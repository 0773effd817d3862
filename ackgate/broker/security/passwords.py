"""Names and passwords from a file of Apache's `htpasswd`: Pulsar's `AuthenticationProviderBasic`.

Edge: checks passwords in threads, since a good hash takes a tenth of a second, `CHECKS_MAX` at a time. A
password that was right is remembered by a keyed hash, so that a request to the admin interface costs the hash
of a password once. libpass knows the schemes: bcrypt, apr1, SHA-1, SHA-2 and DES crypt; a password in plain
text is none of them.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from typing import TYPE_CHECKING, Final

from passlib.context import CryptContext

from ackgate.broker.security.identity import (
    BASIC_METHOD,
    AuthenticationFailedError,
    Credentials,
    Principal,
)
from ackgate.broker.security.tokens import read_bytes
from ackgate.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.config.security import SecuritySettings

CHECKS_MAX: Final = 2
"""Passwords that are checked at a time. Other clients wait, at most `handshakeTimeoutSeconds`."""

REMEMBERED_MAX: Final = 10_000
"""Correct passwords that are cached. When there are more, all are forgotten and checked again."""

PASSWORD_BYTES_MAX: Final = 1024

_SCHEMES: Final = (
    "bcrypt",
    "apr_md5_crypt",
    "ldap_sha1",
    "sha256_crypt",
    "sha512_crypt",
    "des_crypt",
)


class BasicProvider:
    """Checks names and passwords, as Pulsar's `AuthenticationProviderBasic`."""

    method: Final = BASIC_METHOD

    def __init__(self, hashes: Mapping[str, str]) -> None:
        """`hashes`: by user. Raises `ConfigurationError` for a hash of an unknown scheme."""
        self._context = CryptContext(schemes=list(_SCHEMES))
        for user, hashed in hashes.items():
            if self._context.identify(hashed) is None:
                raise ConfigurationError(
                    f"basicAuthConf: the password of {user!a} is no known hash"
                )
        self._hashes = dict(hashes)
        self._checks = asyncio.Semaphore(CHECKS_MAX)
        self._key = secrets.token_bytes(32)
        self._right: set[bytes] = set()

    @classmethod
    def of(cls, settings: SecuritySettings) -> BasicProvider:
        """Read the configured file. Raises `ConfigurationError`."""
        what = "basicAuthConf"
        content = read_bytes(settings.basic_auth_conf.get_secret_value(), what=what)
        return cls(users_in(content, what=what))

    async def authenticate(self, credentials: Credentials, now_seconds: float) -> Principal:  # noqa: ARG002
        """Check a name and a password. Raises `AuthenticationFailedError`."""
        user, colon, password = credentials.data.decode(errors="replace").partition(":")
        if not colon or len(password.encode()) > PASSWORD_BYTES_MAX:
            raise AuthenticationFailedError(
                "the credentials cannot be read: expected USER:PASSWORD"
            )
        mark = hmac.digest(self._key, credentials.data, "sha256")
        if mark not in self._right:
            # An unknown user takes as long as a known one, so that nobody learns who exists.
            hashed = self._hashes.get(user) or next(iter(self._hashes.values()))
            async with self._checks:
                is_right = await asyncio.to_thread(self._is_right, password, hashed)
            if not is_right or user not in self._hashes:
                raise AuthenticationFailedError("unknown user or wrong password")
            if len(self._right) >= REMEMBERED_MAX:
                self._right.clear()
            self._right.add(mark)
        return Principal(user, BASIC_METHOD)

    def _is_right(self, password: str, hashed: str) -> bool:
        try:
            return bool(self._context.verify(password, hashed))
        except (ValueError, TypeError):  # longer than bcrypt allows, or a zero byte
            return False


def users_in(content: bytes, *, what: str) -> dict[str, str]:
    """Hashes by user. Raises `ConfigurationError` naming the line, and never its text."""
    found = {}
    for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, hashed = line.partition(":")
        if not colon or not user or not hashed:
            raise ConfigurationError(f"{what}: line {number} is not USER:HASH")
        found[user] = hashed.strip()
    if not found:
        raise ConfigurationError(f"{what}: there are no users")
    return found
