"""``ackgate tokens ...``: makes keys and tokens, and looks at them, as Pulsar's ``bin/pulsar tokens`` does.

Edge: reads and writes key files, prints. Keys are files of raw bytes: a secret, or DER. Files with a secret
are made for their owner alone, and no file is replaced.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.security import (
    AuthenticationFailedError,
    TokenRules,
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
from ackgate.errors import ConfigurationError

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from ackgate.broker.security import SigningKey, VerifyingKey

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}
_RELATIVE: Final = re.compile(r"([0-9]{1,9})([smhdwy]?)")
_CLAIMS_WITH_OPTIONS: Final = {"sub": "--subject", "exp": "--expiry-time"}
_TOKEN_BYTES_MAX: Final = 64 * 1024
_FOR_THE_OWNER: Final = 0o600
_FOR_ALL: Final = 0o644


def run_tokens(arguments: argparse.Namespace) -> int:
    """Run one action; returns the exit code. Raises `ConfigurationError`."""
    match arguments.action:
        case "create-secret-key":
            _create_secret_key(arguments)
        case "create-key-pair":
            private, public = new_key_pair(arguments.algorithm)
            _write(arguments.output_private_key, private, _FOR_THE_OWNER)
            try:
                _write(arguments.output_public_key, public, _FOR_ALL)
            except ConfigurationError:
                arguments.output_private_key.unlink()  # of no use alone, and in the way next time
                raise
        case "create":
            print(_created(arguments))  # noqa: T201
        case "validate":
            return _validate(arguments)
        case _:
            print(*_parts(_token(arguments)), sep="\n---\n")  # noqa: T201
    return 0


def _create_secret_key(arguments: argparse.Namespace) -> None:
    secret = new_secret(arguments.algorithm)
    content = base64.b64encode(secret) if arguments.base64 else secret
    if arguments.output is not None:
        _write(arguments.output, content, _FOR_THE_OWNER)
    else:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


def _write(path: Path, content: bytes, mode: int) -> None:
    """Make a new file, or none. Raises `ConfigurationError`."""
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise ConfigurationError(f"{path}: {error.strerror}") from error


def _created(arguments: argparse.Namespace) -> str:
    if not arguments.subject:
        raise ConfigurationError("--subject: the role is empty")
    claims: dict[str, Any] = {"sub": arguments.subject}
    for pair in arguments.claims:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ConfigurationError("--claim: must have the form NAME=VALUE")
        if name in _CLAIMS_WITH_OPTIONS:
            raise ConfigurationError(f"--claim {name}: {_CLAIMS_WITH_OPTIONS[name]} sets it")
        claims[name] = text
    if arguments.expiry_time is not None:
        claims["exp"] = int(time.time()) + _seconds(arguments.expiry_time)
    return sign(_signing_key(arguments), claims)


def _signing_key(arguments: argparse.Namespace) -> SigningKey:
    if arguments.secret_key is not None:
        what = "--secret-key"
        return signing_secret(read_bytes(arguments.secret_key, what=what), what=what)
    what = "--private-key"
    return private_key(read_bytes(arguments.private_key, what=what), arguments.algorithm, what=what)


def _seconds(text: str) -> int:
    found = _RELATIVE.fullmatch(text)
    if found is None:
        raise ConfigurationError(
            f"--expiry-time {text}: expected a number and s, m, h, d, w or y, such as 12h"
        )
    return int(found[1]) * _UNITS[found[2] or "s"]


def _validate(arguments: argparse.Namespace) -> int:
    try:
        claims = checked_claims(_token(arguments), _verifying_key(arguments))
        principal_of(claims, TokenRules(), time.time())
    except AuthenticationFailedError as error:
        print(f"ackgate: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(json.dumps(claims))  # noqa: T201
    return 0


def _verifying_key(arguments: argparse.Namespace) -> VerifyingKey:
    if arguments.secret_key is not None:
        what = "--secret-key"
        return secret_key(read_bytes(arguments.secret_key, what=what), what=what)
    what = "--public-key"
    return public_key(read_bytes(arguments.public_key, what=what), arguments.algorithm, what=what)


def _token(arguments: argparse.Namespace) -> str:
    """Read the token from where the command line says it is."""
    if arguments.token is not None:
        text: str = arguments.token
    elif arguments.token_file is not None:
        content = read_bytes(f"file:{arguments.token_file}", what="--token-file")
        text = content.decode("latin-1")
    else:
        try:
            text = sys.stdin.read(_TOKEN_BYTES_MAX)
        except UnicodeDecodeError:
            raise ConfigurationError("standard input: this is no token") from None
    return text.strip()


def _parts(token: str) -> tuple[str, str]:
    """Header and claims as JSON, without verifying the signature. Raises `ConfigurationError`."""
    try:
        header, claims, _ = token.split(".")
        found = [json.loads(base64.urlsafe_b64decode(part + "===")) for part in (header, claims)]
        return json.dumps(found[0]), json.dumps(found[1])
    except (ValueError, RecursionError):
        raise ConfigurationError("this is no token") from None
