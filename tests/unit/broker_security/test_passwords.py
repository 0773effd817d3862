"""Users and passwords of `htpasswd`: every scheme that it writes, and nothing else."""

from __future__ import annotations

import asyncio
import base64

import pytest

from ackgate.broker.security import AuthenticationFailedError, Credentials, http_credentials
from ackgate.broker.security.passwords import BasicProvider, users_in
from ackgate.errors import ConfigurationError

HASHES = {
    "bcrypt": "$2y$04$iHcPluX7B.FcfWBGCa.bK.isoNdAhsuAlec8R96VSklTPy8QuSLTu",
    "apr1": "$apr1$d5gy1i.I$tK7hWCZXFG5cXe1Ofq99e0",
    "sha1": "{SHA}GpHWL3ymc5liWkNopqtdSjuqYHM=",
    "des": "9.sFXcthqaRjI",
}
"""All of the password pw."""

FILE = "# users\n\n" + "".join(f"{user}:{hashed}\n" for user, hashed in HASHES.items())


def role(provider: BasicProvider, pair: bytes) -> str:
    return asyncio.run(provider.authenticate(Credentials("basic", pair), 0.0)).role


@pytest.mark.parametrize("user", HASHES)
def test_a_user_with_the_password_gets_in_and_nobody_else(user: str) -> None:
    provider = BasicProvider(users_in(FILE.encode(), what="test"))
    for _ in range(2):  # the second time it is remembered
        assert role(provider, f"{user}:pw".encode()) == user
        for wrong in ("pw ", "PW", "", "x" * 100, "x" * 2000, "p\0w", HASHES[user]):
            with pytest.raises(AuthenticationFailedError) as caught:
                role(provider, f"{user}:{wrong}".encode())
            assert user not in str(caught.value)


@pytest.mark.parametrize("pair", [b"", b"nobody:pw", b"pw", b":pw", b"\xff:pw"])
def test_strangers_stay_outside(pair: bytes) -> None:
    with pytest.raises(AuthenticationFailedError):
        role(BasicProvider(HASHES), pair)


def test_http_shows_the_same_pair() -> None:
    shown = http_credentials(f"Basic {base64.b64encode(b'apr1:p:w').decode()}", "")
    assert shown is not None
    assert (shown.method, shown.data) == ("basic", b"apr1:p:w")


@pytest.mark.parametrize(
    ("content", "why"),
    [("", "no users"), ("a:$apr1$x\nhunter2\n", "line 2"), (":x", "line 1"), ("a:", "line 1")],
)
def test_a_file_that_cannot_be_read(content: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        users_in(content.encode(), what="basicAuthConf")
    assert "hunter2" not in str(caught.value)


def test_a_password_in_plain_text_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="'app' is no known hash") as caught:
        BasicProvider({"app": "hunter2"})
    assert "hunter2" not in str(caught.value)
