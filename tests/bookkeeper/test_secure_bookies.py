"""Bookies that want TLS with a certificate of the client, and a login by SASL."""

import asyncio
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pulsar
import pytest
import uvloop
from cryptography.x509 import load_pem_x509_certificate

from ackgate.bookkeeper import BookieLogin, BookieTls, BookKeeperClient, BookKeeperSettings
from ackgate.errors import BookieRefusedError, ConfigurationError, NotEnoughBookiesError
from ackgate.persistence import LedgerOptions
from ackgate.testing import BrokerAdmin, BrokerProcess
from tests.broker.target import eventually, numbered, payloads, receive, send_all
from tests.support.bookkeeper import RealBookKeeper, missing

pytestmark = pytest.mark.slow

LOGIN = BookieLogin("bookkeeper", 'a "word" with \\ and ü')
"""By default bookies take only users with this word in their names."""


class Certificates(NamedTuple):
    """PEM files of an authority, and of a bookie and a client that it has signed."""

    authority: str
    bookie: str
    bookie_key: str
    client: str
    client_key: str

    @property
    def tls(self):
        return BookieTls(self.authority, self.client, self.client_key)


def make_certificates(directory):
    directory.mkdir()

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    key = ("-newkey", "rsa:2048", "-nodes", "-days", "2")
    openssl("req", "-x509", *key, "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    for name, address in (("bookie", "IP:127.0.0.1"), ("client", "DNS:client")):
        (directory / "extensions").write_text(f"subjectAltName={address}\n")
        files = ("-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl("req", *key[:3], "-subj", f"/CN={name}", *files)
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
        made = ("-in", f"{name}.csr", "-extfile", "extensions", "-out", f"{name}.pem")
        openssl("x509", "-req", *signed, *made)
    names = ("ca.pem", "bookie.pem", "bookie.key", "client.pem", "client.key")
    return Certificates(*(str(directory / name) for name in names))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("no certificates: no openssl")
    return make_certificates(tmp_path_factory.mktemp("certificates") / "own")


@pytest.fixture(scope="module")
def secure_bookkeeper(certificates, tmp_path_factory):
    """One bookie."""
    if why := missing():
        pytest.skip(why)
    directory = tmp_path_factory.mktemp("secure")
    logins = directory / "jaas.conf"
    password = LOGIN.password.replace("\\", "\\\\").replace('"', '\\"')
    module = "org.apache.zookeeper.server.auth.DigestLoginModule required"
    logins.write_text(f'Bookie {{\n  {module}\n  user_{LOGIN.user}="{password}";\n}};\n')
    cluster = RealBookKeeper(
        directory / "cluster",
        bookies=1,
        options=(f"-Djava.security.auth.login.config={logins}", "-Dfile.encoding=UTF-8"),
        tlsProviderFactoryClass="org.apache.bookkeeper.tls.TLSContextFactory",
        tlsProvider="JDK",
        tlsClientAuthentication="true",
        tlsKeyStoreType="PEM",
        tlsKeyStore=certificates.bookie_key,
        tlsCertificatePath=certificates.bookie,
        tlsTrustStoreType="PEM",
        tlsTrustStore=certificates.authority,
        bookieAuthProviderFactoryClass="org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory",
    )
    with cluster:
        yield cluster


async def write_and_read(cluster, **settings):
    client = await BookKeeperClient.connect(cluster.uri, settings=BookKeeperSettings(**settings))
    try:
        writer = await client.create(LedgerOptions(1, 1, 1))
        payloads = [b"%d" % i * 50 for i in range(2_000)]
        await writer.append(payloads).durable
        reader = await client.open(writer.ledger_id)
        entries = await reader.read(0, len(payloads) - 1)
        assert [entry.payload for entry in entries] == payloads
        [bookie] = await client.bookies()
        assert (await client.disk_space(bookie.bookie_id)).free_bytes > 0
    finally:
        await client.close()


async def test_entries_go_over_tls_after_a_login(secure_bookkeeper, certificates):
    await write_and_read(secure_bookkeeper, tls=certificates.tls, login=LOGIN)


async def test_a_login_alone_does_if_the_bookie_does_not_insist_on_tls(secure_bookkeeper):
    await write_and_read(secure_bookkeeper, login=LOGIN)


def test_uvloop_has_its_own_tls(secure_bookkeeper, certificates):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(write_and_read(secure_bookkeeper, tls=certificates.tls, login=LOGIN))


async def test_what_does_not_fit_is_named(
    secure_bookkeeper, real_bookkeeper, certificates, tmp_path
):
    others = make_certificates(tmp_path / "others")
    without_certificate = BookieTls(certificates.authority)
    wrong = BookieLogin(LOGIN.user, "wrong")
    stranger = BookieLogin("stranger", LOGIN.password)

    async def refusal(cluster, **settings):
        client = await BookKeeperClient.connect(
            cluster.uri, settings=BookKeeperSettings(**settings)
        )
        try:
            bookie = (await client.bookies())[0]
            with pytest.raises(BookieRefusedError) as asked:
                await client.disk_space(bookie.bookie_id)
            with pytest.raises(NotEnoughBookiesError) as created:
                await client.create(LedgerOptions(1, 1, 1))
        finally:
            await client.close()
        assert str(asked.value).startswith(f"bookie {bookie.bookie_id}")
        assert "wrong" not in str(asked.value)
        # OpenSSL's reason comes with it, or is lost with the connection.
        sentence = str(asked.value).partition(" (")[0]
        assert sentence in str(created.value)
        return sentence

    assert "wants clients to authenticate" in await refusal(secure_bookkeeper)
    for login in (wrong, stranger):
        assert f"refuses user '{login.user}'" in await refusal(
            secure_bookkeeper, tls=certificates.tls, login=login
        )
    assert "its certificate is refused" in await refusal(
        secure_bookkeeper, tls=others.tls, login=LOGIN
    )
    assert "it may want another certificate" in await refusal(
        secure_bookkeeper, tls=without_certificate, login=LOGIN
    )
    assert "has no TLS" in await refusal(real_bookkeeper, tls=certificates.tls)


async def test_tools_take_certificates_and_login_from_the_configuration(
    secure_bookkeeper, certificates, tmp_path, ackgate, monkeypatch
):
    config = tmp_path / "broker.conf"
    config.write_text(
        "bookkeeperTLSClientAuthentication=true\n"
        f"bookkeeperTLSTrustCertsFilePath={certificates.authority}\n"
        f"bookkeeperTLSCertificateFilePath={certificates.client}\n"
        f"bookkeeperTLSKeyFilePath={certificates.client_key}\n"
        "bookkeeperClientAuthenticationPlugin=org.apache.bookkeeper.sasl.SASLClientProviderFactory\n"
    )
    command = ("bookies", "list", "--metadata", secure_bookkeeper.uri)
    user = f"{LOGIN.user}:"
    monkeypatch.setenv("ACKGATE_bookkeeperClientAuthenticationParameters", user + LOGIN.password)
    told = await ackgate(*command, "--config", config)
    assert (told.code, told.err) == (0, "")
    monkeypatch.setenv("ACKGATE_bookkeeperClientAuthenticationParameters", user + "wrong")
    told = await ackgate(*command, "--config", config)
    [line] = told.err.splitlines()
    assert (told.code, "refuses user" in line, "wrong" in told.out + line) == (2, True, False)
    told = await ackgate(*command)
    assert (told.code, "authenticate" in told.err) == (2, True)


@contextmanager
def connected(service_url: str) -> Iterator[pulsar.Client]:
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        yield client
    finally:
        client.close()


def test_a_broker_on_them_recovers_after_kill_9_and_reports_when_its_certificate_expires(
    secure_bookkeeper, certificates, tmp_path
):
    settings = {
        "bookkeeperMetadataServiceUri": secure_bookkeeper.uri,
        "managedLedgerDefaultEnsembleSize": 1,
        "managedLedgerDefaultWriteQuorum": 1,
        "managedLedgerDefaultAckQuorum": 1,
        "bookkeeperTLSClientAuthentication": True,
        "bookkeeperTLSTrustCertsFilePath": certificates.authority,
        "bookkeeperTLSCertificateFilePath": certificates.client,
        "bookkeeperTLSKeyFilePath": certificates.client_key,
        "bookkeeperClientAuthenticationPlugin": (
            "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
        ),
        "bookkeeperClientAuthenticationParameters": f"{LOGIN.user}:{LOGIN.password}",
    }
    with BrokerProcess(tmp_path / "broker", settings=settings) as broker:
        admin = BrokerAdmin(broker.admin_url)
        with connected(broker.service_url) as client:
            consumer = client.subscribe("orders", "s", consumer_type=pulsar.ConsumerType.Shared)
            send_all(client.create_producer("orders"), numbered(20))
            for message in receive(consumer, 20)[::2]:
                consumer.acknowledge(message)
            eventually(
                lambda: admin.subscription_stats("orders", "s")["ackState"]["rangesPersisted"] == 9
            )
        broker.kill()
        broker.start()
        with connected(broker.service_url) as client:
            consumer = client.subscribe("orders", "s", consumer_type=pulsar.ConsumerType.Shared)
            assert payloads(receive(consumer, 10)) == numbered(20)[1::2]
        with urllib.request.urlopen(f"{broker.admin_url}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        assert LOGIN.password not in broker.log + text
    [expires] = re.findall(
        r'^ackgate_tls_client_certificate_expiry_timestamp_seconds{.*to="bookies"} (.*)$',
        text,
        re.MULTILINE,
    )
    pem = Path(certificates.client).read_bytes()
    assert float(expires) == load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()


async def test_a_login_that_no_bookie_wants_does_not_disturb(real_bookkeeper, connect):
    client = await connect(real_bookkeeper, login=LOGIN)
    writer = await client.create(LedgerOptions(3, 3, 2))
    assert await writer.add_entry(b"x") == 0


async def test_new_certificates_are_used_by_the_next_connection(
    secure_bookkeeper, certificates, tmp_path
):
    strangers = make_certificates(tmp_path / "strangers")
    authority, client = tmp_path / "ca.pem", tmp_path / "client.pem"

    def put(shown):
        shutil.copy(shown.authority, authority)
        parts = (Path(part).read_text() for part in (shown.client, shown.client_key))
        client.write_text("".join(parts))

    put(strangers)
    tls = BookieTls(authority, client, reload_seconds=1e-9)
    settings = BookKeeperSettings(tls=tls, login=LOGIN)
    bookkeeper = await BookKeeperClient.connect(secure_bookkeeper.uri, settings=settings)
    try:
        [bookie] = await bookkeeper.bookies()
        with pytest.raises(BookieRefusedError, match="its certificate is refused"):
            await bookkeeper.disk_space(bookie.bookie_id)
        put(certificates)
        writer = await bookkeeper.create(LedgerOptions(1, 1, 1))
        put(strangers)
        assert await writer.add_entry(b"by the connection that is there") == 0
    finally:
        await bookkeeper.close()


def test_certificates_that_cannot_be_read_are_named(certificates, tmp_path):
    for tls in (
        BookieTls(tmp_path / "missing.pem"),
        BookieTls(certificates.authority, certificates.client, certificates.bookie_key),
        BookieTls(certificates.bookie_key),
    ):
        with pytest.raises(ConfigurationError, match=r"TLS to bookies: .*\.(pem|key)"):
            tls.loaded()
