"""What the tests of security share: a secret, tokens signed with it, and requests that show one."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from typing import Any, Final

from ackgate.broker.security.tokens import sign, signing_secret

SECRET: Final = b"canary-secret-0123456789abcdef-0"
SECRET_TEXT: Final = base64.b64encode(SECRET).decode()
SIGNING: Final = signing_secret(SECRET, what="test")

TOKENS_ON: Final = {
    "authenticationEnabled": True,
    "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
    "tokenSecretKey": f"data:;base64,{SECRET_TEXT}",
}
"""Settings of a broker that takes such tokens."""


def token(role: str, **claims: Any) -> str:
    return sign(SIGNING, {"sub": role, **claims})


def http(
    url: str,
    shown: str | None = None,
    *,
    method: str = "GET",
    body: object = None,
    **headers: str,
) -> tuple[int, Any]:
    """Status and JSON (or text) of an answer. `shown`: a token."""
    if shown is not None:
        headers["Authorization"] = f"Bearer {shown}"
    data = None
    if body is not None:
        data = json.dumps(body).encode()
        headers["Content-Type"] = "application/json"
    request = urllib.request.Request(url, data=data, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            status, text = response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            status, text = error.code, error.read()
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text.decode()
