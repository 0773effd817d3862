"""A broker by TLS, through the real client and over HTTPS, with ports in clear beside it and without."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pulsar
import pytest

from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.broker.wire.replies import encode
from ackgate.commands.cli import main
from ackgate.network import ClientTls, PemFile, TrialCertificates, make_trial_certificates
from ackgate.testing import BrokerFailedError, BrokerProcess
from ackgate.testing.ports import free_ports
from tests.broker.target import eventually

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TrialCertificates:
    return make_trial_certificates(tmp_path_factory.mktemp("certificates"))


def settings(made: TrialCertificates, **more: object) -> dict[str, object]:
    return {
        "brokerServicePortTls": 0,
        "webServicePortTls": 0,
        "tlsCertificateFilePath": made.server.certificate,
        "tlsKeyFilePath": made.server.key,
        "tlsTrustCertsFilePath": made.authority,
        "tlsCertRefreshCheckDurationSec": 0,
        **more,
    }


@pytest.fixture(scope="module")
def broker(
    made: TrialCertificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings=settings(made)) as running:
        yield running


def client(
    url: str, made: TrialCertificates, name: str = "", *, seconds: int = 20
) -> pulsar.Client:
    pair = made.clients.get(name)
    return pulsar.Client(
        url,
        tls_trust_certs_file_path=str(made.authority),
        tls_validate_hostname=True,
        authentication=(
            pulsar.AuthenticationTLS(str(pair.certificate), str(pair.key)) if pair else None
        ),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        operation_timeout_seconds=seconds,
    )


def context(made: TrialCertificates, name: str = "") -> ssl.SSLContext:
    pair = made.clients.get(name)
    return ClientTls(
        trust=PemFile("", str(made.authority)),
        certificate=PemFile("", str(pair.certificate) if pair else ""),
        key=PemFile("", str(pair.key) if pair else ""),
    ).context()


def get(url: str, path: str, trusting: ssl.SSLContext) -> tuple[int, bytes]:
    parts = urlsplit(url)
    assert parts.hostname
    connection = http.client.HTTPSConnection(
        parts.hostname, parts.port, timeout=60, context=trusting
    )
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def send_and_receive(connected: pulsar.Client, topic: str, count: int = 50) -> None:
    consumer = connected.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = connected.create_producer(topic)
    for number in range(count):
        producer.send_async(b"%d" % number + b"x" * 10_000, None)
    producer.flush()
    for _ in range(count):
        consumer.acknowledge(consumer.receive(timeout_millis=60_000))
    producer.close()
    consumer.close()


def logged(broker: BrokerProcess, words: str) -> None:
    """Return when the log has it: its lines come through a pipe."""
    eventually(lambda: words in broker.log)


@pytest.mark.parametrize("name", ["", "client"])
def test_messages_by_tls_with_and_without_a_certificate(broker, made, name: str) -> None:
    assert broker.service_url_tls.startswith("pulsar+ssl://127.0.0.1:")
    connected = client(broker.service_url_tls, made, name)
    try:
        send_and_receive(connected, f"of-{name or 'nobody'}")
    finally:
        connected.close()


def test_lookups_have_both_addresses(broker, made) -> None:
    status, body = get(
        broker.admin_url_tls, "/lookup/v2/topic/persistent/public/default/any", context(made)
    )
    assert status == 200
    found = json.loads(body)
    assert found["brokerUrl"] == broker.service_url
    assert found["brokerUrlTls"] == broker.service_url_tls
    assert found["httpUrl"] == broker.admin_url
    assert found["httpUrlTls"] == broker.admin_url_tls


def test_a_client_of_an_https_address_is_led_to_the_tls_port(broker, made) -> None:
    connected = client(broker.admin_url_tls, made)
    try:
        send_and_receive(connected, "found-by-https", 3)
    finally:
        connected.close()


def test_who_trusts_another_authority_does_not_connect(broker, tmp_path) -> None:
    connected = client(broker.service_url_tls, make_trial_certificates(tmp_path), seconds=2)
    try:
        with pytest.raises(pulsar.PulsarException):
            connected.create_producer("nobody")
    finally:
        connected.close()
    logged(broker, "TLS handshake of 127.0.0.1")
    with urllib.request.urlopen(f"{broker.admin_url}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    samples = dict(line.rpartition(" ")[::2] for line in text.splitlines() if line[0] != "#")
    of_port = 'cluster="standalone",port="pulsar+ssl"'
    failures = f'ackgate_tls_handshake_failures_total{{{of_port},reason="broker_not_trusted"}}'
    assert int(samples[failures]) >= 1
    expiry = f"ackgate_tls_certificate_expiry_timestamp_seconds{{{of_port}}}"
    assert float(samples[expiry]) > time.time()


def test_a_tls_client_on_the_port_in_clear_and_the_other_way_round(broker, made) -> None:
    for url in (broker.service_url, broker.admin_url):
        address = urlsplit(url)
        with (
            socket.create_connection((address.hostname, address.port), 20) as plain,
            pytest.raises(ssl.SSLError, match=r"WRONG_VERSION_NUMBER|wrong version number"),
        ):
            context(made).wrap_socket(plain, server_hostname="localhost")
    address = urlsplit(broker.service_url_tls)
    with socket.create_connection((address.hostname, address.port), 20) as plain:
        plain.sendall(encode(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing())))
        with contextlib.suppress(ConnectionError):
            assert plain.recv(100) == b""
    status = get(broker.admin_url_tls, "/admin/v2/brokers/health", context(made))
    assert status == (200, b"ok")
    logged(broker, "it speaks TLS, and this port is in clear")
    logged(broker, "a client speaks TLS on the port in clear")
    logged(broker, "it does not speak TLS, which this port wants")


def test_a_renewed_certificate_is_shown_to_new_connections(broker, made) -> None:
    before = _serial(broker, context(made))
    connected = client(broker.service_url_tls, made)
    try:
        producer = connected.create_producer("renewed")
        producer.send(b"before")
        made = make_trial_certificates(made.authority.parent, replaces=True)
        assert _serial(broker, context(made)) != before
        producer.send(b"after")  # on the connection it has
    finally:
        connected.close()
    renewed = client(broker.service_url_tls, made, "client")
    try:
        send_and_receive(renewed, "renewed-too", 3)
    finally:
        renewed.close()


def _serial(broker: BrokerProcess, trusting: ssl.SSLContext) -> str:
    address = urlsplit(broker.service_url_tls)
    with (
        socket.create_connection((address.hostname, address.port), 20) as plain,
        trusting.wrap_socket(plain, server_hostname=address.hostname) as secured,
    ):
        certificate = secured.getpeercert()
    assert certificate
    return str(certificate["serialNumber"])


def test_commands_ask_by_https(broker, made, tmp_path, monkeypatch, capsys) -> None:
    for name in list(os.environ):
        if name.startswith(("ACKGATE_", "PULSAR_")):
            monkeypatch.delenv(name)
    stats = ["overview", "--url", broker.admin_url_tls]
    trust = str(made.authority)
    assert main(stats) == 1
    assert "CERTIFICATE_VERIFY_FAILED" in capsys.readouterr().err
    assert main([*stats, "--tls-allow-insecure"]) == 0
    assert main([*stats, "--tls-trust-certs", trust]) == 0
    alice = made.clients["client"]
    shown = ["--tls-certificate", str(alice.certificate), "--tls-key", str(alice.key)]
    assert main([*stats, "--tls-trust-certs", trust, *shown]) == 0
    file = tmp_path / "client.conf"
    file.write_text(
        f"webServiceUrl={broker.admin_url_tls}\ntlsTrustCertsFilePath={trust}\nserviceUrl=x\n"
    )
    assert main(["overview", "--client-config", str(file)]) == 0
    monkeypatch.setenv("PULSAR_CLIENT_CONF", str(file))
    assert main(["overview"]) == 0
    monkeypatch.setenv("ACKGATE_CLIENT_tlsTrustCertsFilePath", str(tmp_path / "gone"))
    capsys.readouterr()
    assert main(["overview"]) == 2
    assert f"tlsTrustCertsFilePath={tmp_path}/gone: cannot be read" in capsys.readouterr().err
    assert main(["overview", "--tls-trust-certs", trust]) == 0
    monkeypatch.setenv("ACKGATE_CLIENT_tlsAllowInsecureConnection", "maybe")
    assert main(["overview"]) == 2


def test_only_by_tls_and_only_with_a_certificate(made, tmp_path) -> None:
    port, bound, web = free_ports(3)
    outside = f"pulsar+ssl://localhost:{port}"
    strict = settings(
        made,
        brokerServicePortTls=port,
        advertisedListeners=f"inside:pulsar+ssl://127.0.0.1:{port},outside:{outside}",
        bindAddresses=f"outside:pulsar+ssl://127.0.0.1:{bound},outside:https://127.0.0.1:{web}",
        brokerServicePort="",
        webServicePort="",
        tlsRequireTrustedClientCertOnConnect=True,
        tlsProtocols="TLSv1.3",
    )
    with BrokerProcess(tmp_path / "strict", settings=strict) as broker:
        assert broker.service_url == broker.service_url_tls
        assert broker.admin_url == broker.admin_url_tls
        connected = client(broker.service_url, made, "admin")
        try:
            send_and_receive(connected, "strict", 3)
        finally:
            connected.close()
        connected = client(f"pulsar+ssl://127.0.0.1:{bound}", made, "admin")
        try:
            send_and_receive(connected, "strict", 3)
        finally:
            connected.close()
        path = "/lookup/v2/topic/persistent/public/default/strict"
        status, body = get(f"https://127.0.0.1:{web}", path, context(made, "admin"))
        assert (status, json.loads(body)["brokerUrlTls"]) == (200, outside)
        anonymous = client(broker.service_url, made, seconds=2)
        try:
            with pytest.raises(pulsar.PulsarException):
                anonymous.create_producer("nobody")
        finally:
            anonymous.close()
        with contextlib.suppress(OSError, http.client.HTTPException):
            get(broker.admin_url, "/admin/v2/clusters", context(made))
            pytest.fail("let in without a certificate")
        status, body = get(broker.admin_url, "/admin/v2/brokers", context(made, "admin"))
        assert (status, json.loads(body)) == (200, [urlsplit(broker.admin_url).netloc])
        broker.restart()
        status, _ = get(broker.admin_url, "/admin/v2/clusters", context(made, "admin"))
        assert status == 200


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tlsKeyFilePath": "/nowhere"}, "tlsKeyFilePath=/nowhere: cannot be read: No such file"),
        ({"tlsCertificateFilePath": ""}, "brokerServicePortTls needs tlsCertificateFilePath"),
        (
            {"tlsTrustCertsFilePath": "", "tlsRequireTrustedClientCertOnConnect": True},
            "tlsRequireTrustedClientCertOnConnect needs tlsTrustCertsFilePath",
        ),
        (
            {"brokerServicePort": "", "brokerServicePortTls": ""},
            "brokerServicePort and brokerServicePortTls are both empty",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_at_the_start(
    made, tmp_path: Path, changed: dict[str, object], words: str
) -> None:
    with pytest.raises(BrokerFailedError) as caught:
        BrokerProcess(tmp_path / "none", settings=settings(made, **changed)).start()
    assert words in str(caught.value)
    assert "exit code 2" in str(caught.value)
    assert "Traceback" not in str(caught.value)
