"""Tokens: keys are read as Pulsar reads them, and no token passes that was not signed for this broker."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from ackgate.broker.security import AuthenticationFailedError, Credentials
from ackgate.broker.security.tokens import (
    SigningKey,
    TokenProvider,
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
from ackgate.config.load import load_settings
from ackgate.errors import ConfigurationError

NOW = 1_000_000.0
SECRET = b"0123456789abcdef0123456789abcdef"
SIGNING = signing_secret(SECRET, what="test")
KEY = secret_key(SECRET, what="test")
RSA_PRIVATE, RSA_PUBLIC = new_key_pair("RS256")
EC_PRIVATE, EC_PUBLIC = new_key_pair("ES256")
RSA_KEY = public_key(RSA_PUBLIC, "RS256", what="test")
EC_KEY = public_key(EC_PUBLIC, "ES256", what="test")
RULES = TokenRules()


def part(value: object) -> str:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def hmac_token(header: Mapping[str, object], claims: object, key: bytes, hash_name: str) -> str:
    """Signed by hand, as an attacker would."""
    signed = f"{part(header)}.{part(claims)}"
    return f"{signed}.{part(hmac.digest(key, signed.encode(), hash_name))}"


def role(token: str, key: VerifyingKey = KEY, rules: TokenRules = RULES, now: float = NOW) -> str:
    return principal_of(checked_claims(token, key), rules, now).role


def test_white_space_around_a_token_is_no_part_of_it() -> None:
    """A file of a token ends with a new line; Pulsar's clients send it as it is."""
    token = sign(SIGNING, {"sub": "reader"})
    assert role(f"{token}\n") == role(f" {token}\r\n") == "reader"
    with pytest.raises(AuthenticationFailedError):
        role(token.replace(".", ".\n"))


# ---- forged


def pem(public: bytes) -> bytes:
    return serialization.load_der_public_key(public).public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


FORGED = {
    "no algorithm": f"{part({'alg': 'none'})}.{part({'sub': 'admin'})}.",
    "None": f"{part({'alg': 'None'})}.{part({'sub': 'admin'})}.",
    "no header": f"{part({})}.{part({'sub': 'admin'})}.",
    "algorithm that is a list": hmac_token({"alg": ["HS256"]}, {"sub": "admin"}, SECRET, "sha256"),
    "another secret": hmac_token({"alg": "HS256"}, {"sub": "admin"}, b"x" * 32, "sha256"),
    "an empty secret": hmac_token({"alg": "HS256"}, {"sub": "admin"}, b"", "sha256"),
    "public key as the secret": hmac_token(
        {"alg": "HS256"}, {"sub": "admin"}, RSA_PUBLIC, "sha256"
    ),
    "public key in PEM as the secret": hmac_token(
        {"alg": "HS256"}, {"sub": "admin"}, pem(RSA_PUBLIC), "sha256"
    ),
    "brings its own key": hmac_token(
        {"alg": "HS256", "jwk": {"kty": "oct", "k": part(b"x" * 32)}},
        {"sub": "admin"},
        b"x" * 32,
        "sha256",
    ),
    "another key pair": sign(
        private_key(new_key_pair("RS256")[0], "RS256", what="test"), {"sub": "admin"}
    ),
    "a critical extension": hmac_token(
        {"alg": "HS256", "crit": ["x"], "x": 1}, {"sub": "admin"}, SECRET, "sha256"
    ),
    "claims that are no object": hmac_token({"alg": "HS256"}, ["admin"], SECRET, "sha256"),
    "claims that are no JSON": hmac_token({"alg": "HS256"}, b"{", SECRET, "sha256"),
    "a header that is nested deeply": f"{part(b'[' * 20_000)}.{part({})}.{part(b'')}",
    "claims that are nested deeply": hmac_token({"alg": "HS256"}, b"[" * 20_000, SECRET, "sha256"),
    "empty": "",
    "one part": "admin",
    "five parts": "a.b.c.d.e",
    "not ASCII": "\u00e4.\u00f6.\u00fc",
    "a null byte": "\0",
}


@pytest.mark.parametrize("key", [KEY, RSA_KEY, EC_KEY], ids=["secret", "rsa", "ec"])
@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_token_is_refused(forged: str, key: VerifyingKey) -> None:
    with pytest.raises(AuthenticationFailedError) as caught:
        checked_claims(FORGED[forged], key)
    assert "admin" not in str(caught.value)


@pytest.mark.parametrize("key", [KEY, RSA_KEY, EC_KEY], ids=["secret", "rsa", "ec"])
@given(st.one_of(st.binary(max_size=200), st.text(alphabet="aA0_-.=", max_size=80)))
def test_garbage_is_refused(key: VerifyingKey, garbage: bytes | str) -> None:
    with pytest.raises(AuthenticationFailedError):
        checked_claims(garbage, key)


def test_a_changed_bit_is_noticed() -> None:
    token = sign(SIGNING, {"sub": "admin"})
    for index in range(0, len(token), 7):
        other = token[:index] + ("A" if token[index] != "A" else "B") + token[index + 1 :]
        if other.rstrip("ABCD") != token.rstrip("ABCD"):  # the last bits of Base64 say nothing
            with pytest.raises(AuthenticationFailedError):
                checked_claims(other, KEY)


def test_a_key_takes_the_algorithms_of_its_kind_and_no_other() -> None:
    for key, private, algorithm in (
        (RSA_KEY, RSA_PRIVATE, "RS512"),
        (EC_KEY, EC_PRIVATE, "ES256"),
    ):
        token = sign(private_key(private, algorithm, what="test"), {"sub": "app"})
        assert role(token, key) == "app"
        for other in (KEY, RSA_KEY, EC_KEY):
            if other is not key:
                with pytest.raises(AuthenticationFailedError, match="algorithm is not allowed"):
                    checked_claims(token, other)
    for algorithm, long in (("HS256", 32), ("HS384", 48), ("HS512", 64)):
        secret = new_secret(algorithm)
        assert len(secret) == long
        signing = signing_secret(secret, what="test")
        assert signing.algorithm == algorithm
        assert role(sign(signing, {"sub": "app"}), secret_key(secret, what="test")) == "app"
    with pytest.raises(AuthenticationFailedError, match="algorithm is not allowed"):
        role(hmac_token({"alg": "HS512"}, {"sub": "app"}, SECRET, "sha512"))


# ---- claims


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"sub": "app", "exp": NOW}, "expired"),
        ({"sub": "app", "exp": NOW - 1}, "expired"),
        ({"sub": "app", "exp": "tomorrow"}, "exp is no time"),
        ({"sub": "app", "exp": True}, "exp is no time"),
        ({"sub": "app", "exp": 1e999}, "exp is no time"),
        ({"sub": "app", "nbf": NOW + 1}, "not valid yet"),
        ({}, "names no role"),
        ({"sub": ""}, "names no role"),
        ({"sub": " "}, "names no role"),
        ({"sub": 7}, "names no role"),
        ({"sub": []}, "names no role"),
        ({"sub": {"role": "admin"}}, "names no role"),
        ({"sub": "x" * 1025}, "names no role"),
    ],
)
def test_claims_that_do_not_hold_now(claims: dict[str, Any], why: str) -> None:
    with pytest.raises(AuthenticationFailedError, match=why):
        principal_of(claims, RULES, NOW)


def test_claims_that_hold() -> None:
    assert principal_of({"sub": "app"}, RULES, NOW) == ("app", "token", None)
    assert (
        principal_of({"sub": "app", "exp": NOW + 1, "nbf": NOW}, RULES, NOW).expires_at == NOW + 1
    )
    lenient = RULES._replace(clock_skew_seconds=10)
    assert principal_of({"sub": "app", "exp": NOW - 9}, lenient, NOW).expires_at == NOW + 1
    named = RULES._replace(role_claim="roles")
    assert principal_of({"sub": "no", "roles": ["first", "second"]}, named, NOW).role == "first"


@pytest.mark.parametrize(
    ("audience", "is_taken"),
    [
        ("ours", True),
        (["x", "ours"], True),
        ("our", False),
        (["x"], False),
        (None, False),
        (7, False),
    ],
)
def test_the_audience_is_ours(audience: object, is_taken: bool) -> None:
    rules = RULES._replace(audience_claim="aud", audiences=("ours",))
    claims = {"sub": "app", "aud": audience}
    if is_taken:
        assert principal_of(claims, rules, NOW).role == "app"
    else:
        with pytest.raises(AuthenticationFailedError, match="another audience"):
            principal_of(claims, rules, NOW)


# ---- keys


def test_keys_are_read_from_every_place(tmp_path: Path) -> None:
    path = tmp_path / "my key"
    path.write_bytes(SECRET)
    text = base64.b64encode(SECRET).decode()
    for place in (
        f"file://{str(path).replace(' ', '%20')}",
        f"file:{path}",
        str(path),
        f"data:;base64,{text}",
        f"data:application/octet-stream;base64,{text}",
        f"data:,{SECRET.decode()}",
        text,
    ):
        assert read_bytes(place, what="test") == SECRET


@pytest.mark.parametrize(
    "place",
    ["file:///none", "hunter2!", "data:hunter2", "data:;base64,hunter2!", "file:///\0", "/"],
)
def test_a_place_without_a_key_is_named_and_no_secret(place: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_bytes(place, what="tokenSecretKey")
    assert "tokenSecretKey" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "content", [RSA_PUBLIC, pem(RSA_PUBLIC), EC_PUBLIC], ids=["rsa", "pem", "ec"]
)
def test_a_public_key_is_no_secret(content: bytes) -> None:
    with pytest.raises(ConfigurationError, match="no secret"):
        secret_key(content, what="test")


def test_weak_and_foreign_keys_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="31 bytes, at least 32"):
        secret_key(b"x" * 31, what="test")
    with pytest.raises(ConfigurationError, match="not a public key"):
        public_key(SECRET, "RS256", what="test")
    with pytest.raises(ConfigurationError, match="not one for RS256, but for ES256"):
        public_key(EC_PUBLIC, "", what="test")
    with pytest.raises(ConfigurationError, match="not one for ES384, but for ES256"):
        public_key(EC_PUBLIC, "ES384", what="test")
    with pytest.raises(ConfigurationError, match="not a private key"):
        private_key(RSA_PUBLIC, "RS256", what="test")


def test_the_settings_make_a_provider(tmp_path: Path) -> None:
    path = tmp_path / "public.pem"
    path.write_bytes(pem(RSA_PUBLIC))
    settings = load_settings(
        None,
        [
            f"tokenPublicKey={path}",
            "tokenAuthClaim=role",
            "tokenAudienceClaim=aud",
            "tokenAudience=a",
        ],
        {},
    ).settings.security
    provider = TokenProvider.of(settings)
    signing = private_key(RSA_PRIVATE, "RS256", what="test")

    def principal(claims: dict[str, Any], key: SigningKey = signing) -> str:
        shown = Credentials("token", sign(key, claims).encode())
        return asyncio.run(provider.authenticate(shown, NOW)).role

    assert principal({"role": "app", "aud": "a"}) == "app"
    with pytest.raises(AuthenticationFailedError):
        principal({"role": "app"})
    with pytest.raises(AuthenticationFailedError):
        principal({"role": "app", "aud": "a"}, SIGNING)


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        (["authenticationEnabled=true"], "needs authenticationProviders"),
        (["authenticationProviders=org.example.Own"], "AuthenticationProviderToken"),
        (["tokenAudienceClaim=aud"], "needs tokenAudience"),
        (["tokenPublicAlg=HS256"], "tokenPublicAlg=HS256 is not allowed"),
        (
            [
                "authenticationEnabled=true",
                (
                    "authenticationProviders="
                    "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"
                ),
            ],
            "needs tokenSecretKey or tokenPublicKey",
        ),
    ],
)
def test_settings_that_cannot_be(given: list[str], wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=wrong):
        load_settings(None, given, {})


def test_credentials_are_not_in_a_repr() -> None:
    shown = Credentials("token", b"hunter2")
    assert "hunter2" not in repr(shown)
