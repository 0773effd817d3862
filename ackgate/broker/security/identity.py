"""The credentials of a client, the identity that they prove, and what a provider must do.

Pure. Credentials never appear in a `repr`, an error or a log line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from ackgate.errors import CallerError

TOKEN_METHOD: Final = "token"  # noqa: S105 - the method's name
TLS_METHOD: Final = "tls"
BASIC_METHOD: Final = "basic"
NO_METHOD: Final = "none"
"""The method's name that clients send when they have no credentials."""

ROLE_CHARACTERS_MAX: Final = 1024


class AuthenticationFailedError(CallerError):
    """The credentials are missing or prove nothing. The text says why, and never what they are."""


class NotAuthorizedError(CallerError):
    """The role may not do what it asked for."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a client."""

    method: str
    """Pulsar's name of the method, such as `TOKEN_METHOD`."""
    data: bytes = field(default=b"", repr=False)
    certificate_name: str = ""
    """Common name of the client certificate that TLS verified; empty: none."""


class Principal(NamedTuple):
    """A client that has proved who it is."""

    role: str
    method: str = ""
    expires_at: float | None = None
    """When its credentials expire, in seconds since 1970; None: never."""


class ClientIdentity(NamedTuple):
    """The client of a connection, or a proxy and the client for which it acts."""

    principal: Principal
    original: Principal | None = None
    """The client for which a proxy acts. Both must be allowed to do what is asked."""

    @property
    def roles(self) -> tuple[str, ...]:
        if self.original is None:
            return (self.principal.role,)
        return (self.principal.role, self.original.role)

    @property
    def expires_at(self) -> float | None:
        """When the first of their credentials expires, in seconds since 1970; None: never."""
        ends = [
            each.expires_at
            for each in (self.principal, self.original)
            if each is not None and each.expires_at is not None
        ]
        return min(ends, default=None)

    def __str__(self) -> str:
        role = ascii(self.principal.role)
        return role if self.original is None else f"{self.original.role!a} by proxy {role}"


class AuthenticationProvider(Protocol):
    """Checks the credentials of one method."""

    @property
    def method(self) -> str: ...

    async def authenticate(self, credentials: Credentials, now_seconds: float) -> Principal:
        """Return whom the credentials prove. Raises `AuthenticationFailedError`."""
