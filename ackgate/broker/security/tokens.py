"""Tokens: JSON Web Tokens (RFC 7519), their keys, signing and checking.

Pure, but for `read_bytes`, which may read a file. PyJWT and cryptography do the cryptography; which
algorithms a key takes is decided here, by the key and never by the token:

    a secret               HS256, HS384, HS512: those whose hash is not longer
    a public key, RSA      RS256, RS384, RS512
    a public key, EC       the one of its curve: ES256, ES384 or ES512

So a token without a signature (``alg: none``) fails, and so does one that is signed with the public key as if
that were a secret: no key takes algorithms of both kinds, and a secret that is the text or the bytes of a
public key is refused when it is loaded. Expiry and audience are checked against the time given.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from ackgate.broker.security.identity import (
    ROLE_CHARACTERS_MAX,
    TOKEN_METHOD,
    AuthenticationFailedError,
    Credentials,
    Principal,
)
from ackgate.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackgate.config.security import SecuritySettings

KEY_BYTES_MAX: Final = 64 * 1024
"""A key has a few kilobytes at most."""

SECRET_BYTES_MIN: Final = 32
"""RFC 7518 requires at least the size of the hash. Pulsar's library rejects shorter ones, too."""

RSA_BITS_MIN: Final = 2048

HMAC_ALGORITHMS: Final = ("HS256", "HS384", "HS512")
RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512")
_CURVE_OF: Final[Mapping[str, Callable[[], ec.EllipticCurve]]] = {
    "ES256": ec.SECP256R1,
    "ES384": ec.SECP384R1,
    "ES512": ec.SECP521R1,
}

_DATA_URL: Final = re.compile(r"data:[^,]*?(?P<base64>;base64)?,(?P<data>.*)", re.DOTALL)
_PEM: Final = b"-----BEGIN"
_BAD: Final = (ValueError, TypeError, UnsupportedAlgorithm)


class VerifyingKey(NamedTuple):
    """A key that checks signatures, and the algorithms that it takes."""

    key: Any
    algorithms: tuple[str, ...]


class SigningKey(NamedTuple):
    """A key that signs, and its algorithm."""

    key: Any
    algorithm: str


# ---- reading keys


def read_bytes(place: str, *, what: str) -> bytes:
    """Read the bytes that a setting such as ``tokenSecretKey`` refers to.

    ``file:///PATH``, ``data:;base64,...``, a path, or Base64. Raises `ConfigurationError`, which
    names `what` and never the value.
    """
    if place.startswith("data:"):
        found = _DATA_URL.fullmatch(place)
        if found is None:
            raise ConfigurationError(f"{what}: a data: URL has the form data:;base64,...")
        if found["base64"]:
            return _from_base64(found["data"], what)
        return unquote(found["data"]).encode()
    if place.startswith("file:"):
        path = place.removeprefix("file:")
        if path.startswith("//"):
            path = "/" + path.removeprefix("//").partition("/")[2]
        return _from_file(Path(unquote(path)), what)
    try:
        is_file = len(place) < 4096 and Path(place).is_file()
    except (OSError, ValueError):
        is_file = False
    if is_file:
        return _from_file(Path(place), what)
    return _from_base64(place, what)


def _from_file(path: Path, what: str) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(KEY_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        raise ConfigurationError(f"{what}: {path}: {reason}") from None
    if len(content) > KEY_BYTES_MAX:
        raise ConfigurationError(f"{what}: {path} is larger than {KEY_BYTES_MAX} bytes")
    return content


def _from_base64(text: str, what: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigurationError(
            f"{what}: neither file:///PATH, data:;base64,..., the path of a file, nor Base64"
        ) from None


def secret_key(content: bytes, *, what: str) -> VerifyingKey:
    """A secret. Raises `ConfigurationError` if it is too short, or a key of a key pair."""
    if content.lstrip().startswith(_PEM) or _is_public_key(content):
        raise ConfigurationError(f"{what}: this is a key of a key pair, and no secret")
    if len(content) < SECRET_BYTES_MIN:
        raise ConfigurationError(
            f"{what}: the secret has {len(content)} bytes, at least {SECRET_BYTES_MIN} are needed"
        )
    long_enough = tuple(name for name in HMAC_ALGORITHMS if _bytes_of(name) <= len(content))
    return VerifyingKey(content, long_enough)


def _bytes_of(algorithm: str) -> int:
    """Bytes of the algorithm's hash, which is also the shortest secret that it takes."""
    return int(algorithm[2:]) // 8


def _is_public_key(content: bytes) -> bool:
    try:
        serialization.load_der_public_key(content)
    except _BAD:
        return False
    return True


def public_key(content: bytes, algorithm: str, *, what: str) -> VerifyingKey:
    """A public key in DER (as Pulsar writes it) or PEM. Raises `ConfigurationError`."""
    load = (
        serialization.load_pem_public_key
        if content.lstrip().startswith(_PEM)
        else serialization.load_der_public_key
    )
    try:
        key = load(content)
    except _BAD:
        raise ConfigurationError(f"{what}: not a public key in DER or PEM") from None
    return VerifyingKey(key, _algorithms_of(key, algorithm or "RS256", what))


def private_key(content: bytes, algorithm: str, *, what: str) -> SigningKey:
    """A private key in DER (PKCS #8, as Pulsar writes it) or PEM. Raises `ConfigurationError`."""
    load = (
        serialization.load_pem_private_key
        if content.lstrip().startswith(_PEM)
        else serialization.load_der_private_key
    )
    try:
        key = load(content, None)
    except _BAD:
        raise ConfigurationError(f"{what}: not a private key in DER or PEM") from None
    _algorithms_of(key, algorithm, what)
    return SigningKey(key, algorithm)


def _algorithms_of(key: object, algorithm: str, what: str) -> tuple[str, ...]:
    """The algorithms that the key takes.

    Raises `ConfigurationError` if `algorithm` is not one of them.
    """
    if isinstance(key, rsa.RSAPublicKey | rsa.RSAPrivateKey) and key.key_size < RSA_BITS_MIN:
        raise ConfigurationError(f"{what}: {key.key_size} bits, at least {RSA_BITS_MIN} are needed")
    algorithms = algorithms_of(key)
    if algorithm not in algorithms:
        raise ConfigurationError(
            f"{what}: the key is not one for {algorithm}"
            + (f", but for {' '.join(algorithms)}" if algorithms else "")
        )
    return algorithms


def algorithms_of(key: object) -> tuple[str, ...]:
    """The algorithms that a key of a pair takes; empty: it is too weak, or of another kind."""
    if isinstance(key, rsa.RSAPublicKey | rsa.RSAPrivateKey):
        return RSA_ALGORITHMS if key.key_size >= RSA_BITS_MIN else ()
    if isinstance(key, ec.EllipticCurvePublicKey | ec.EllipticCurvePrivateKey):
        return tuple(n for n, curve in _CURVE_OF.items() if curve().name == key.curve.name)
    return ()


# ---- making keys and tokens


def new_secret(algorithm: str) -> bytes:
    """A new random secret, as long as the algorithm's hash."""
    return secrets.token_bytes(_bytes_of(algorithm))


def new_key_pair(algorithm: str) -> tuple[bytes, bytes]:
    """A new private key (PKCS #8) and its public key, in DER, as Pulsar writes them."""
    private: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
    if algorithm in _CURVE_OF:
        private = ec.generate_private_key(_CURVE_OF[algorithm]())
    else:
        private = rsa.generate_private_key(public_exponent=65537, key_size=RSA_BITS_MIN)
    return (
        private.private_bytes(
            serialization.Encoding.DER,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        private.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
    )


def signing_secret(content: bytes, *, what: str) -> SigningKey:
    """The secret with the strongest algorithm that it is long enough for, as Pulsar chooses it."""
    key = secret_key(content, what=what)
    return SigningKey(key.key, key.algorithms[-1])


def sign(signing: SigningKey, claims: dict[str, Any], headers: dict[str, Any] | None = None) -> str:
    """Sign the claims. Returns the token."""
    return jwt.encode(claims, signing.key, signing.algorithm, {"typ": None, **(headers or {})})


# ---- checking tokens


class TokenRules(NamedTuple):
    """What a token must contain, besides a signature and an expiry in the future."""

    role_claim: str = "sub"
    audience_claim: str = ""
    """Empty: the audience is not checked."""
    audiences: tuple[str, ...] = ()
    """The token must name one of these."""
    clock_skew_seconds: float = 0.0


def checked_claims(token: str | bytes, key: VerifyingKey) -> dict[str, Any]:
    """The claims of a token that this key verifies. Raises `AuthenticationFailedError`.

    The claims themselves are not checked. White space around the token, as the end of the line in a file of
    a token, is passed over; Pulsar does that too.
    """
    try:
        decoded = jwt.api_jws.decode_complete(
            token.strip(), key.key, algorithms=list(key.algorithms)
        )
        claims = json.loads(decoded["payload"])
    except jwt.InvalidAlgorithmError:
        raise AuthenticationFailedError("the token's algorithm is not allowed here") from None
    except jwt.InvalidSignatureError:
        raise AuthenticationFailedError("the token's signature is wrong") from None
    except (jwt.PyJWTError, RecursionError, *_BAD):
        raise AuthenticationFailedError("the token cannot be read") from None
    if not isinstance(claims, dict):
        raise AuthenticationFailedError("the token cannot be read")
    return claims


def unchecked_parts(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and claims of a token, without verifying it. Raises `AuthenticationFailedError`.

    White space around it is passed over.
    """
    try:
        header, claims, _ = token.strip().split(".")
        found = [json.loads(base64.urlsafe_b64decode(part + "===")) for part in (header, claims)]
    except (ValueError, RecursionError):
        raise AuthenticationFailedError("the token cannot be read") from None
    if not all(isinstance(each, dict) for each in found):
        raise AuthenticationFailedError("the token cannot be read")
    return found[0], found[1]


def principal_of(claims: dict[str, Any], rules: TokenRules, now_seconds: float) -> Principal:
    """The client that the claims name.

    Raises `AuthenticationFailedError` if they are not valid now.
    """
    expires_at = _time(claims, "exp")
    starts_at = _time(claims, "nbf")
    if expires_at is not None and now_seconds >= expires_at + rules.clock_skew_seconds:
        raise AuthenticationFailedError("the token has expired")
    if starts_at is not None and now_seconds < starts_at - rules.clock_skew_seconds:
        raise AuthenticationFailedError("the token is not valid yet")
    if rules.audience_claim:
        named = claims.get(rules.audience_claim)
        audiences = named if isinstance(named, list) else [named]
        if not any(audience in audiences for audience in rules.audiences):
            raise AuthenticationFailedError("the token is for another audience, or for none")
    role = claims.get(rules.role_claim)
    if isinstance(role, list):
        role = role[0] if role else None
    if not isinstance(role, str) or not role.strip() or len(role) > ROLE_CHARACTERS_MAX:
        raise AuthenticationFailedError("the token names no role")
    if expires_at is not None:
        expires_at += rules.clock_skew_seconds
    return Principal(role, TOKEN_METHOD, expires_at)


def _time(claims: dict[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise AuthenticationFailedError(f"the token's {name} is no time")
    return float(value)


class TokenProvider:
    """Checks tokens by one configured key, as Pulsar's `AuthenticationProviderToken`."""

    method: Final = TOKEN_METHOD

    def __init__(self, key: VerifyingKey, rules: TokenRules) -> None:
        self._key = key
        self._rules = rules

    @classmethod
    def of(cls, settings: SecuritySettings) -> TokenProvider:
        """Read the configured key. Raises `ConfigurationError`."""
        secret = settings.token_secret_key.get_secret_value()
        if secret:
            what = "tokenSecretKey"
            key = secret_key(read_bytes(secret, what=what), what=what)
        else:
            what = "tokenPublicKey"
            content = read_bytes(settings.token_public_key, what=what)
            key = public_key(content, settings.token_public_alg, what=what)
        rules = TokenRules(
            role_claim=settings.token_auth_claim or "sub",
            audience_claim=settings.token_audience_claim,
            audiences=(settings.token_audience,),
            clock_skew_seconds=settings.token_allowed_clock_skew_seconds or 0,
        )
        return cls(key, rules)

    async def authenticate(self, credentials: Credentials, now_seconds: float) -> Principal:
        """Check a token. Raises `AuthenticationFailedError`."""
        return principal_of(checked_claims(credentials.data, self._key), self._rules, now_seconds)
