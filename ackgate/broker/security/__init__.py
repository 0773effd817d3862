"""Who is a client, and what may it do.

Decisions only; connections and the admin interface ask for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.faces import lazy_face

if TYPE_CHECKING:
    from ackgate.broker.security.actions import (
        CONSUME,
        LOOK,
        PRODUCE,
        Need,
        Scope,
        need_of_command,
        need_of_path,
    )
    from ackgate.broker.security.authentication import (
        Authentication,
        Original,
        http_credentials,
        http_headers,
    )
    from ackgate.broker.security.authorization import (
        ADMIN_ROLES,
        CLUSTER_WIDE,
        Authorization,
        Resource,
        decisions,
    )
    from ackgate.broker.security.grants import (
        AUTH_POLICIES,
        SUBSCRIPTION_AUTH_MODE,
        AuthPolicies,
        SubscriptionAuthMode,
        actions_in,
        check_role,
        mode_in,
        roles_in,
    )
    from ackgate.broker.security.identity import (
        NO_METHOD,
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
    "ADMIN_ROLES",
    "AUTH_POLICIES",
    "CLUSTER_WIDE",
    "CONSUME",
    "LOOK",
    "NO_METHOD",
    "PRODUCE",
    "SUBSCRIPTION_AUTH_MODE",
    "AuthPolicies",
    "Authentication",
    "AuthenticationFailedError",
    "Authorization",
    "ClientIdentity",
    "Credentials",
    "Need",
    "NotAuthorizedError",
    "Original",
    "Principal",
    "Resource",
    "Scope",
    "SigningKey",
    "SubscriptionAuthMode",
    "TokenRules",
    "VerifyingKey",
    "actions_in",
    "check_role",
    "checked_claims",
    "decisions",
    "http_credentials",
    "http_headers",
    "mode_in",
    "need_of_command",
    "need_of_path",
    "new_key_pair",
    "new_secret",
    "principal_of",
    "private_key",
    "public_key",
    "read_bytes",
    "roles_in",
    "secret_key",
    "sign",
    "signing_secret",
]

__getattr__ = lazy_face(
    __name__,
    {
        "ackgate.broker.security.actions": (
            "CONSUME",
            "LOOK",
            "PRODUCE",
            "Need",
            "Scope",
            "need_of_command",
            "need_of_path",
        ),
        "ackgate.broker.security.authentication": (
            "Authentication",
            "Original",
            "http_credentials",
            "http_headers",
        ),
        "ackgate.broker.security.identity": (
            "NO_METHOD",
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
        "ackgate.broker.security.authorization": (
            "ADMIN_ROLES",
            "CLUSTER_WIDE",
            "Authorization",
            "Resource",
            "decisions",
        ),
        "ackgate.broker.security.grants": (
            "AUTH_POLICIES",
            "SUBSCRIPTION_AUTH_MODE",
            "AuthPolicies",
            "SubscriptionAuthMode",
            "actions_in",
            "check_role",
            "mode_in",
            "roles_in",
        ),
    },
)
