"""Who is it, and what may it do. Deciding only: connections and the admin interface ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.faces import lazy_face

if TYPE_CHECKING:
    from ackgate.broker.security.actions import Need, Scope, need_of_command, need_of_path
    from ackgate.broker.security.authentication import (
        NO_METHOD,
        Authentication,
        Original,
        http_credentials,
    )
    from ackgate.broker.security.client_credentials import http_headers
    from ackgate.broker.security.identity import (
        AuthenticationFailedError,
        ClientIdentity,
        Credentials,
        NotAuthorizedError,
        Principal,
    )
    from ackgate.broker.security.tokens import (
        SigningKey,
        TokenRules,
        VerifyingKey,
        checked_claims,
        new_key_pair,
        new_secret,
        principal_of,
        private_key,
        public_key,
        read_bytes,
        secret_key,
        sign,
        signing_secret,
    )

__all__ = [
    "NO_METHOD",
    "Authentication",
    "AuthenticationFailedError",
    "ClientIdentity",
    "Credentials",
    "Need",
    "NotAuthorizedError",
    "Original",
    "Principal",
    "Scope",
    "SigningKey",
    "TokenRules",
    "VerifyingKey",
    "checked_claims",
    "http_credentials",
    "http_headers",
    "need_of_command",
    "need_of_path",
    "new_key_pair",
    "new_secret",
    "principal_of",
    "private_key",
    "public_key",
    "read_bytes",
    "secret_key",
    "sign",
    "signing_secret",
]

__getattr__ = lazy_face(
    __name__,
    {
        "ackgate.broker.security.actions": ("Need", "Scope", "need_of_command", "need_of_path"),
        "ackgate.broker.security.authentication": (
            "Authentication",
            "NO_METHOD",
            "Original",
            "http_credentials",
        ),
        "ackgate.broker.security.client_credentials": ("http_headers",),
        "ackgate.broker.security.identity": (
            "AuthenticationFailedError",
            "Credentials",
            "ClientIdentity",
            "NotAuthorizedError",
            "Principal",
        ),
        "ackgate.broker.security.tokens": (
            "TokenRules",
            "SigningKey",
            "VerifyingKey",
            "checked_claims",
            "new_key_pair",
            "new_secret",
            "principal_of",
            "private_key",
            "public_key",
            "read_bytes",
            "secret_key",
            "sign",
            "signing_secret",
        ),
    },
)
