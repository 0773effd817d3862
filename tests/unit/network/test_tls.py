"""TLS of a port: who gets in, what is read anew, and what becomes of who does not fit. On both loops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from ackgate.errors import ConfigurationError
from ackgate.network import (
    CertificateFile,
    ClientTls,
    Listener,
    PeerCertificate,
    PemFile,
    ReloadedTls,
    ServerTls,
    TrialCertificates,
    expiry_warning,
    listen,
    listener,
    make_trial_certificates,
    peer_certificate,
)
from ackgate.network.tls import openssl_name

SECONDS = 20


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TrialCertificates:
    return make_trial_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> TrialCertificates:
    return make_trial_certificates(tmp_path_factory.mktemp("others"), hosts=("other.example",))


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    def run_it(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(_tidy(work), SECONDS))

    return run_it


TRANSPORTS: list[Any] = []
"""Both ends of all connections of a story."""


async def _tidy(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    finally:
        while TRANSPORTS:
            TRANSPORTS.pop().abort()
        await asyncio.sleep(0.02)  # what was aborted is closed in the loop's next turns


async def connect(at: int, **how: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", at, **how)
    TRANSPORTS.append(writer.transport)
    return reader, writer


def server_tls(made: TrialCertificates, **more: Any) -> ServerTls:
    return ServerTls(
        certificate=PemFile("tlsCertificateFilePath", str(made.server.certificate)),
        key=PemFile("tlsKeyFilePath", str(made.server.key)),
        **{"trust": PemFile("tlsTrustCertsFilePath", str(made.authority)), **more},
    )


def client_tls(
    made: TrialCertificates, shown: TrialCertificates | None = None, **more: Any
) -> ssl.SSLContext:
    """Trusts `made`; shows the certificate of a client of `shown`."""
    pair = shown.clients["client"] if shown else None
    return ClientTls(
        trust=PemFile("trust", str(made.authority)),
        certificate=PemFile("certificate", str(pair.certificate) if pair else ""),
        key=PemFile("key", str(pair.key) if pair else ""),
        **more,
    ).context()


class Echo(asyncio.Protocol):
    """Says what certificate it has seen, and then all that it is sent."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        TRANSPORTS.append(transport)
        self._write = transport.write  # type: ignore[attr-defined]
        self._write(f"{peer_certificate(transport)}\n".encode())

    def data_received(self, data: bytes) -> None:
        self._write(data)


async def port(tls: ServerTls, **more: Any) -> Listener:
    return await listen("127.0.0.1", 0, Echo, tls=ReloadedTls(tls, 0), **more)


async def greeting(at: int, context: ssl.SSLContext, host: str = "127.0.0.1") -> str:
    reader, writer = await connect(at, ssl=context, server_hostname=host)
    try:
        line = await reader.readline()
        writer.write(b"again\n")
        assert await reader.readline() == (b"again\n" if line else b"")
        return line.decode().strip()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@pytest.mark.slow
def test_a_client_shows_a_certificate_or_none(run, made, others, caplog) -> None:
    async def story() -> None:
        listening = await port(server_tls(made))
        shown = PeerCertificate("CN=client,O=ackgate test certificates", "client")
        assert await greeting(listening.port, client_tls(made, made)) == str(shown)
        assert await greeting(listening.port, client_tls(made)) == "None"
        with contextlib.suppress(OSError):  # TLS 1.3: the client learns it with its first read
            assert await greeting(listening.port, client_tls(made, others)) == ""
        with pytest.raises(ssl.SSLCertVerificationError):
            await greeting(listening.port, client_tls(others))
        listening.close()

    run(story())
    assert "its certificate is not accepted: " in caplog.text


def test_a_client_without_one_does_not_get_in_where_one_is_required(run, made, caplog) -> None:
    async def story() -> None:
        listening = await port(server_tls(made, requires_client_certificate=True))
        with contextlib.suppress(OSError):
            assert await greeting(listening.port, client_tls(made)) == ""
        assert "client" in await greeting(listening.port, client_tls(made, made))
        assert listening.failures == 1
        assert listening.tls.handshakes.failed["no_certificate"] == 1
        assert listening.tls.handshakes.succeeded == 1
        listening.close()

    run(story())
    assert "it shows no certificate" in caplog.text


def test_without_an_authority_nobody_is_asked_for_a_certificate(run, made) -> None:
    async def story() -> None:
        listening = await port(server_tls(made, trust=PemFile("tlsTrustCertsFilePath", "")))
        assert await greeting(listening.port, client_tls(made, made)) == "None"
        listening.close()

    run(story())


@pytest.mark.slow
def test_changed_files_are_used_and_broken_ones_are_not(run, tmp_path, caplog) -> None:
    caplog.set_level(logging.INFO)

    async def story() -> None:
        made = make_trial_certificates(tmp_path)
        listening = await port(server_tls(made))
        tls = listening.tls
        assert tls is not None
        old = client_tls(made, made)
        reader, writer = await connect(listening.port, ssl=old)
        assert b"client" in await reader.readline()

        make_trial_certificates(tmp_path, replaces=True)
        new = client_tls(made, made)
        assert "client" in await greeting(listening.port, new)
        with pytest.raises(ssl.SSLCertVerificationError):
            await greeting(listening.port, old)
        assert (tls.reloads, tls.failures) == (1, 0)
        writer.write(b"still here\n")  # a connection goes on with what it began
        assert await reader.readline() == b"still here\n"
        writer.close()

        key = made.server.key.read_bytes()
        made.server.key.write_bytes(made.clients["client"].key.read_bytes())
        assert "client" in await greeting(listening.port, new)
        assert "client" in await greeting(listening.port, new)
        assert (tls.reloads, tls.failures) == (1, 1)  # told once
        made.server.key.unlink()
        assert "client" in await greeting(listening.port, new)
        made.server.key.write_bytes(key)
        assert "client" in await greeting(listening.port, new)
        assert (tls.reloads, tls.failures) == (2, 2)
        listening.close()

    run(story())
    assert (
        f"tlsKeyFilePath={tmp_path}/server.key.pem: is not the key of the certificate"
        in caplog.text
    )
    assert f"tlsKeyFilePath={tmp_path}/server.key.pem: cannot be read: No such file" in caplog.text


@pytest.mark.slow
def test_files_are_looked_at_when_it_is_time(made: TrialCertificates, tmp_path: Path) -> None:
    made = make_trial_certificates(tmp_path)
    now = [0.0]
    tls = ReloadedTls(server_tls(made), 300, seconds=lambda: now[0])
    first = tls.newest()
    make_trial_certificates(tmp_path, replaces=True)
    now[0] = 299.0
    assert tls.newest() is first
    now[0] = 300.0
    assert tls.newest() is not first
    assert tls.reloads == 1


@pytest.mark.slow
def test_when_the_certificate_of_a_client_expires_is_known(tmp_path: Path) -> None:
    now, day = time.time(), 86_400
    made = make_trial_certificates(tmp_path, days=10)
    shown = made.clients["client"].certificate
    file = CertificateFile(PemFile("key", str(shown)))
    assert file.certificate_expires_at == pytest.approx(now + 10 * day, abs=600)
    make_trial_certificates(tmp_path, days=100, replaces=True)
    assert file.certificate_expires_at == pytest.approx(now + 100 * day, abs=600)
    shown.unlink()
    assert file.certificate_expires_at is None


def test_certificates_that_expire_soon_are_worth_a_warning() -> None:
    now, day = 1_800_000_000.0, 86_400
    assert expiry_warning(None, now) == expiry_warning(now + 14 * day, now) == ""
    assert expiry_warning(now + 3 * day, now) == "expires at 2027-01-18 08:00 UTC, in 3 days"
    assert expiry_warning(now, now) == "has expired at 2027-01-15 08:00 UTC"


@pytest.mark.slow
def test_when_the_certificate_in_use_expires_is_known(tmp_path: Path) -> None:
    now, day = time.time(), 86_400
    made = make_trial_certificates(tmp_path, days=10)
    tls = ReloadedTls(server_tls(made), 0)
    assert tls.certificate_expires_at == pytest.approx(now + 10 * day, abs=600)
    make_trial_certificates(tmp_path, days=100, replaces=True)
    assert tls.certificate_expires_at == pytest.approx(now + 100 * day, abs=600)  # no handshake yet
    made.server.certificate.write_text("nothing")
    assert tls.certificate_expires_at == pytest.approx(now + 100 * day, abs=600)
    assert (tls.reloads, tls.failures) == (1, 1)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"\0\0\0\x20\0\0\0\x1chello, I am a client", "it does not speak TLS"),
        (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", "it speaks HTTP in clear"),
    ],
)
def test_a_client_in_clear_is_cut_off(run, made, caplog, said: bytes, why: str) -> None:
    async def story() -> None:
        listening = await port(server_tls(made))
        for _ in range(35):
            reader, writer = await connect(listening.port)
            writer.write(said)
            with contextlib.suppress(OSError):
                await reader.read()
            writer.close()
        assert listening.failures == listening.tls.handshakes.failed["not_tls"] == 35
        listening.close()

    run(story())
    assert caplog.text.count(why) == 30  # the others are left out


def test_a_handshake_has_its_time(run, made, caplog) -> None:
    async def story() -> None:
        listening = await port(server_tls(made), handshake_seconds=lambda: 0.05)
        silent, first = await connect(listening.port)
        slow, second = await connect(listening.port)
        second.write(b"\x16\x03\x01\x02\x00\x01")  # a beginning, and no more
        for reader in (silent, slow):
            with contextlib.suppress(OSError):
                assert await reader.read() == b""
        first.close()
        second.close()
        while listening.handshakes:
            await asyncio.sleep(0)
        listening.close()

    run(story())
    assert caplog.text.count("it did not come to an end within 0.05 s") == 2


def test_of_too_many_handshakes_the_oldest_is_cut_off(run, made, monkeypatch) -> None:
    monkeypatch.setattr(listener, "HANDSHAKES_MAX", 3)

    async def story() -> None:
        listening = await port(server_tls(made))
        silent = [await connect(listening.port) for _ in range(4)]
        with contextlib.suppress(OSError):
            assert await silent[0][0].read() == b""
        assert listening.handshakes == 3
        assert "client" in await greeting(listening.port, client_tls(made, made))
        listening.close()
        for reader, writer in silent:
            with contextlib.suppress(OSError):
                assert await reader.read() == b""
            writer.close()
        assert listening.handshakes == 0

    run(story())


def test_a_closed_port_takes_nobody_and_connections_stay(run, made) -> None:
    async def story() -> None:
        listening = await port(server_tls(made))
        reader, writer = await connect(listening.port, ssl=client_tls(made))
        await reader.readline()
        listening.close()
        listening.close()
        await asyncio.sleep(0.02)
        with pytest.raises(OSError, match=r"refused|111|Connect call failed"):
            await connect(listening.port)
        writer.write(b"here\n")
        assert await reader.readline() == b"here\n"
        writer.close()

    run(story())


# ------------------------------------------------------------------------------------ files


def test_what_is_wrong_with_a_file_is_said_in_a_line(made, others, tmp_path) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    certificate, key, authority = made.server.certificate, made.server.key, made.authority

    def refused(**files: Path) -> str:
        named = {
            name: PemFile(setting, str(files.get(name, default)))
            for name, setting, default in (
                ("certificate", "tlsCertificateFilePath", certificate),
                ("key", "tlsKeyFilePath", key),
                ("trust", "tlsTrustCertsFilePath", authority),
            )
        }
        with pytest.raises(ConfigurationError) as caught:
            ReloadedTls(ServerTls(**named), 0)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    gone = tmp_path / "gone"
    for name, setting in (
        ("certificate", "tlsCertificateFilePath"),
        ("key", "tlsKeyFilePath"),
        ("trust", "tlsTrustCertsFilePath"),
    ):
        assert refused(**{name: gone}).startswith(f"{setting}={gone}: cannot be read: No such file")
        assert refused(**{name: tmp_path}).startswith(f"{setting}={tmp_path}: cannot be read: Is a")
        assert refused(**{name: nonsense}).startswith(f"{setting}={nonsense}: holds no ")
    assert f"tlsCertificateFilePath={broken}" in refused(certificate=broken)
    assert f"tlsTrustCertsFilePath={broken}: holds no" in refused(trust=broken)
    assert refused(key=others.server.key) == (
        f"tlsKeyFilePath={others.server.key}: is not the key of the certificate in "
        f"tlsCertificateFilePath={certificate}"
    )


def test_an_encrypted_key_is_refused_without_a_question(made, tmp_path) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(made.server.key.read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(ConfigurationError, match=r"tlsKeyFilePath=.*the private key is encrypted"):
        ServerTls(
            certificate=PemFile("tlsCertificateFilePath", str(made.server.certificate)),
            key=PemFile("tlsKeyFilePath", str(locked)),
        ).context()


def test_only_the_protocols_and_ciphers_that_are_wanted(run, made) -> None:
    async def story() -> None:
        older = await port(server_tls(made, protocols=("TLSv1.2",)))
        newer = await port(server_tls(made, protocols=("TLSv1.3",)))
        one = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
        named = await port(server_tls(made, ciphers=(one,), protocols=("TLSv1.2",)))
        only_newest = await port(server_tls(made, ciphers=("TLS_AES_128_GCM_SHA256",)))
        for listening, version in (
            (older, "TLSv1.2"),
            (newer, "TLSv1.3"),
            (only_newest, "TLSv1.3"),
        ):
            _, writer = await connect(listening.port, ssl=client_tls(made))
            assert writer.get_extra_info("ssl_object").version() == version
            writer.close()
        for listening in (newer, only_newest):
            with pytest.raises(OSError):
                await greeting(listening.port, client_tls(made, protocols=("TLSv1.2",)))
        _, writer = await connect(named.port, ssl=client_tls(made))
        assert writer.get_extra_info("cipher")[0] == "ECDHE-RSA-AES128-GCM-SHA256"
        writer.close()
        for listening in (older, newer, named, only_newest):
            listening.close()

    run(story())
    for wrong in (
        {"ciphers": ("NOBODY",)},
        {"ciphers": ("TLS_AES_128_GCM_SHA256",), "protocols": ("TLSv1.2",)},
    ):
        with pytest.raises(ConfigurationError, match="tlsCiphers: "):
            server_tls(made, ciphers_key="tlsCiphers", **wrong).context()


@pytest.mark.parametrize(
    ("java", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256", "ECDHE-RSA-AES128-SHA256"),
        ("TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
    ],
)
def test_ciphers_have_two_names(java: str, openssl: str) -> None:
    assert openssl_name(java) == openssl
    assert openssl in {each["name"] for each in _all_ciphers()}


def _all_ciphers() -> list[Any]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL")
    return context.get_ciphers()


def test_a_server_is_who_it_says(run, made, others) -> None:
    async def story() -> None:
        listening = await port(server_tls(others, trust=PemFile("", "")))
        for name in ("localhost", "127.0.0.1", "other.example"):
            assert await greeting(listening.port, client_tls(others), name) == "None"
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            await greeting(listening.port, client_tls(others), "stranger")
        lax = client_tls(others, verifies_host_name=False)
        assert await greeting(listening.port, lax, "stranger") == "None"
        trusting = client_tls(made, verifies_server=False)
        assert await greeting(listening.port, trusting, "stranger") == "None"
        listening.close()

    run(story())


# ------------------------------------------------------------------------------ trial certificates


def test_what_is_made_is_for_its_owner_and_replaces_nothing(tmp_path: Path) -> None:
    os.umask(os.umask(0))
    made = make_trial_certificates(tmp_path / "new", clients=("alice",), days=1)
    for path in (tmp_path / "new").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    before = made.authority.read_bytes()
    with pytest.raises(ConfigurationError, match="holds PEM files already"):
        make_trial_certificates(tmp_path / "new")
    assert made.authority.read_bytes() == before
    other = tmp_path / "other"
    for name in ("", "../up", ".hidden", "n" * 65):
        with pytest.raises(ConfigurationError, match="cannot be a client's name"):
            make_trial_certificates(other, clients=(name,))
    with pytest.raises(ConfigurationError, match=r"'bücher\.example' cannot be a host's name"):
        make_trial_certificates(other, hosts=("bücher.example",))
    with pytest.raises(ConfigurationError, match="no calendar"):
        make_trial_certificates(other, days=10**8)
    assert not list(other.iterdir())
