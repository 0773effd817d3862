"""Tokens of OpenID Connect issuers: taken with the keys that they publish, and strangers make nobody ask."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from jwt.algorithms import RSAAlgorithm

from ackgate.broker.security import AuthenticationFailedError, Credentials
from ackgate.broker.security.openid import KeyTimes, OpenIdProvider, http_fetch
from ackgate.broker.security.tokens import (
    TokenRules,
    new_key_pair,
    private_key,
    sign,
    signing_secret,
)
from ackgate.errors import ConfigurationError, StorageError
from tests.support.loopback_http import QuietHandler, http_served

ISSUER = "https://issuer.example/realm"
NOW = 1_000_000.0
PAIRS = {name: new_key_pair("RS256") for name in ("first", "second")}
TIMES = KeyTimes()
RULES = TokenRules(audience_claim="aud", audiences=("ackgate",))


def jwk(name: str, **more: Any) -> dict[str, Any]:
    public = serialization.load_der_public_key(PAIRS[name][1])
    return {**json.loads(RSAAlgorithm.to_jwk(public)), "kid": name, "use": "sig", **more}  # type: ignore[arg-type]


class Issuer:
    """What it answers, and what it was asked."""

    def __init__(self, url: str = ISSUER) -> None:
        self.url = url
        self.keys: list[Any] = [jwk("first")]
        self.asked: list[str] = []
        self.fails = False

    async def fetch(self, url: str) -> bytes:
        self.asked.append(url)
        if self.fails:
            raise StorageError("no answer")
        return self.answer(url)

    def answer(self, url: str) -> bytes:
        if url.endswith("/.well-known/openid-configuration"):
            return json.dumps({"issuer": self.url, "jwks_uri": f"{self.url}/keys"}).encode()
        return json.dumps({"keys": self.keys}).encode()

    def provider(self, times: KeyTimes = TIMES) -> OpenIdProvider:
        return OpenIdProvider((self.url,), RULES, self.fetch, requires_https=True, times=times)


def token(name: str = "first", kid: str | None = None, **claims: Any) -> str:
    key = private_key(PAIRS[name][0], "RS256", what="test")
    given = {"iss": ISSUER, "aud": "ackgate", "sub": "app", "exp": NOW + 10**6, **claims}
    present = {claim: value for claim, value in given.items() if value is not None}
    return sign(key, present, {"kid": kid or name})


def role(provider: OpenIdProvider, shown: str, now: float = NOW) -> str:
    return asyncio.run(provider.authenticate(Credentials("token", shown.encode()), now)).role


def test_keys_are_asked_for_once() -> None:
    issuer = Issuer()
    provider = issuer.provider()
    assert role(provider, token()) == role(provider, token()) == "app"
    assert issuer.asked == [f"{ISSUER}/.well-known/openid-configuration", f"{ISSUER}/keys"]


@pytest.mark.parametrize(
    "shown",
    [
        token(iss="https://evil.example"),
        token(iss=f"{ISSUER}/"),
        "abc",
        "a.b.c",
        sign(signing_secret(b"x" * 32, what=""), {"iss": "https://evil.example"}),
    ],
    ids=list(map(str, range(5))),
)
def test_strangers_make_nobody_ask(shown: str) -> None:
    issuer = Issuer()
    with pytest.raises(AuthenticationFailedError):
        role(issuer.provider(), shown)
    assert issuer.asked == []


@pytest.mark.parametrize(
    "shown",
    [
        token("second", kid="first"),
        token(aud="other"),
        token(aud=None),
        token(exp=NOW - 1),
        token(exp=None),
        sign(
            signing_secret(b"x" * 32, what=""),
            {"iss": ISSUER, "aud": "ackgate", "sub": "app", "exp": NOW + 1},
            {"kid": "first"},
        ),
    ],
    ids=list(map(str, range(6))),
)
def test_forged_tokens_of_the_issuer_are_refused(shown: str) -> None:
    with pytest.raises(AuthenticationFailedError):
        role(Issuer().provider(), shown)


@pytest.mark.slow
def test_a_new_key_is_found_and_unknown_ones_ask_rarely() -> None:
    issuer = Issuer()
    provider = issuer.provider()
    role(provider, token())
    issuer.keys.append(jwk("second"))
    for _ in range(5):
        with pytest.raises(AuthenticationFailedError, match="not published"):
            role(provider, token("second"))
    assert len(issuer.asked) == 2
    assert role(provider, token("second"), NOW + TIMES.missed_seconds) == "app"
    assert len(issuer.asked) == 4


def test_an_issuer_that_does_not_answer_is_believed_for_a_day() -> None:
    issuer = Issuer()
    provider = issuer.provider()
    role(provider, token())
    issuer.fails = True
    assert role(provider, token(), NOW + TIMES.believed_seconds - 1) == "app"
    with pytest.raises(AuthenticationFailedError, match="cannot be read"):
        role(provider, token(), NOW + TIMES.believed_seconds)
    issuer.fails = False
    assert role(provider, token(), NOW + TIMES.believed_seconds + 10) == "app"


def test_keys_that_are_believed_for_a_short_time_are_asked_for_in_time() -> None:
    provider = Issuer().provider(KeyTimes(believed_seconds=10, missed_seconds=300))
    assert role(provider, token()) == role(provider, token(), NOW + 10) == "app"


@pytest.mark.parametrize(
    "keys",
    [
        [{"kty": "oct", "k": "eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHg", "kid": "first"}],
        [jwk("first", use="enc")],
        [jwk("first", alg="PS256")],
        ["first", None, {"kid": "first"}],
        [],
    ],
    ids=["secret", "encryption", "algorithm", "garbage", "none"],
)
def test_published_keys_that_sign_nothing_are_ignored(keys: list[Any]) -> None:
    issuer = Issuer()
    issuer.keys = keys
    with pytest.raises(AuthenticationFailedError, match="not published"):
        role(issuer.provider(), token())


def test_issuers_are_asked_by_https() -> None:
    with pytest.raises(ConfigurationError, match="is not https"):
        OpenIdProvider(("http://issuer",), RULES, Issuer().fetch, requires_https=True)


@pytest.fixture
def served() -> Iterator[Issuer]:
    """An issuer over real HTTP."""
    issuer = Issuer()

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            body = issuer.answer(self.path)
            self.send_response(200 if "missing" not in self.path else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with http_served(Handler) as url:
        issuer.url = url
        yield issuer


@pytest.mark.slow
def test_an_issuer_is_asked_over_http(served: Issuer) -> None:
    provider = OpenIdProvider((served.url,), RULES, http_fetch(""), requires_https=False)
    assert role(provider, token(iss=served.url)) == "app"
    with pytest.raises(StorageError, match="404"):
        asyncio.run(http_fetch("")(f"{served.url}/missing"))  # type: ignore[arg-type]
