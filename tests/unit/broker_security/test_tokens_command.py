"""``ackgate tokens``: what it makes, it finds valid; errors name the option, and no secret."""

from __future__ import annotations

import base64
import io
import json
import signal
import stat
import sys
from pathlib import Path

import pytest

from ackgate.__main__ import main


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tokens(*words: str) -> int:
    return main(["tokens", *words])


@pytest.fixture
def out(capsys: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    return capsys


def test_a_secret_signs_and_checks(directory: Path, out: pytest.CaptureFixture[str]) -> None:
    assert tokens("create-secret-key", "--output", "my.key") == 0
    assert len((directory / "my.key").read_bytes()) == 32
    assert stat.S_IMODE((directory / "my.key").stat().st_mode) == 0o600
    assert tokens("create", "-sk", f"file://{directory}/my.key", "-s", "app", "-e", "1h") == 0
    token = out.readouterr().out.strip()
    (directory / "token").write_text(f"{token}\n")
    assert tokens("validate", "-sk", "my.key", "-f", "token") == 0
    assert json.loads(out.readouterr().out)["sub"] == "app"
    assert tokens("validate", "-sk", "my.key", token) == 0
    out.readouterr()
    assert tokens("show", token) == 0
    header, dashes, claims = out.readouterr().out.splitlines()
    assert (json.loads(header), dashes) == ({"alg": "HS256"}, "---")
    assert set(json.loads(claims)) == {"sub", "exp"}


@pytest.mark.parametrize("algorithm", ["RS256", "es384"])
def test_a_key_pair_signs_and_checks(
    algorithm: str, out: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = ("--output-private-key", "private", "--output-public-key", "public")
    assert tokens("create-key-pair", "-a", algorithm, *pair) == 0
    create = ("create", "-a", algorithm, "-pk", "private", "-s", "app", "--claim", "aud=orders")
    assert tokens(*create) == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO(out.readouterr().out))
    assert tokens("validate", "-a", algorithm, "-pk", "public", "--stdin") == 0
    assert json.loads(out.readouterr().out) == {"sub": "app", "aud": "orders"}


def test_a_secret_as_text(out: pytest.CaptureFixture[str]) -> None:
    assert tokens("create-secret-key", "-a", "HS512", "--base64") == 0
    text = out.readouterr().out
    assert len(base64.b64decode(text)) == 64
    assert tokens("create", "-sk", f"data:;base64,{text}", "-s", "app") == 0
    assert tokens("validate", "-sk", text, out.readouterr().out.strip()) == 0


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("create", "-sk", "hunter2!", "-s", "app"), 2, "--secret-key: neither file:///PATH"),
        (("create", "-sk", "data:,hunter2", "-s", "app"), 2, "7 bytes, at least 32"),
        (("create", "-pk", "data:,hunter2", "-s", "app"), 2, "--private-key: not a private key"),
        (("create", "-sk", "my.key", "-s", "app", "-e", "soon"), 2, "--expiry-time soon"),
        (("create", "-sk", "my.key", "-s", "app", "--claim", "x"), 2, "NAME=VALUE"),
        (("create", "-sk", "my.key", "-s", ""), 2, "--subject: the role is empty"),
        (("create", "-sk", "my.key", "-s", "app", "--claim", "exp=1"), 2, "--expiry-time sets it"),
        (("create", "-sk", "my.key", "-s", "app", "--claim", "sub=x"), 2, "--subject sets it"),
        (("create-secret-key", "-o", "my.key"), 2, "my.key: File exists"),
        (("show", "hunter2"), 2, "this is no token"),
        (("validate", "-sk", "my.key", "hunter2"), 1, "cannot be read"),
        (("validate", "-sk", "my.key", "-f", "none"), 2, "none: No such file"),
    ],
)
def test_what_cannot_be_used_is_named(
    words: tuple[str, ...], code: int, why: str, out: pytest.CaptureFixture[str]
) -> None:
    assert tokens("create-secret-key", "-o", "my.key") == 0
    assert tokens(*words) == code
    said = out.readouterr().err
    assert why in said
    assert "hunter2" not in said


def test_bytes_that_are_no_text_are_no_token(
    out: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), "utf-8"))
    assert tokens("show") == 2
    assert "this is no token" in out.readouterr().err


def test_an_expired_token_is_not_valid(out: pytest.CaptureFixture[str]) -> None:
    tokens("create-secret-key", "-o", "my.key")
    tokens("create", "-sk", "my.key", "-s", "app", "-e", "0")
    assert tokens("validate", "-sk", "my.key", out.readouterr().out.strip()) == 1
    assert "expired" in out.readouterr().err


def test_a_pair_is_made_whole_or_not_at_all(
    directory: Path, out: pytest.CaptureFixture[str]
) -> None:
    (directory / "public").write_bytes(b"older")
    pair = ("--output-private-key", "private", "--output-public-key")
    assert tokens("create-key-pair", *pair, "public") == 2
    assert "public: File exists" in out.readouterr().err
    assert tokens("create-key-pair", *pair, "private") == 2
    assert "private: File exists" in out.readouterr().err
    assert {path.name for path in directory.iterdir()} == {"public"}
    assert tokens("create-key-pair", *pair, "other") == 0


def test_a_full_disk_leaves_no_half_of_a_key(
    directory: Path, out: pytest.CaptureFixture[str]
) -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails instead
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
    try:
        code = tokens("create-secret-key", "--output", "my.key")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert code == 2
    assert "my.key: File too large" in out.readouterr().err
    assert not list(directory.iterdir())


@pytest.mark.parametrize("depth", [900, 990, 1_000, 5_000, 100_000])
def test_claims_of_any_depth(depth: int, out: pytest.CaptureFixture[str]) -> None:
    part = base64.urlsafe_b64encode(b"[" * depth + b"]" * depth).decode()
    assert tokens("show", f"{part}.{part}.x") in {0, 2}
    assert out.readouterr().err in {"", "ackgate: this is no token\n"}
