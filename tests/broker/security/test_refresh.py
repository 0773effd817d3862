"""Credentials that expire amid a connection, certificates and passwords: one broker that takes them all."""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from ackgate.broker.wire.errors import ServerError
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.network import ClientTls, PemFile, TrialCertificates, make_trial_certificates
from ackgate.testing import BrokerProcess
from tests.broker.security.secured import TOKENS_ON, http, token
from tests.broker.target import eventually
from tests.support.wire_client import WireClient

PROVIDERS = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
USERS = base64.b64encode(b"app:$apr1$d5gy1i.I$tK7hWCZXFG5cXe1Ofq99e0\n").decode()
SILENT = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TrialCertificates:
    return make_trial_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(
    made: TrialCertificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    settings = {
        **TOKENS_ON,
        "authenticationProviders": ",".join(
            f"{PROVIDERS}{kind}" for kind in ("Token", "Tls", "Basic")
        ),
        "basicAuthConf": f"data:;base64,{USERS}",
        "authenticationRefreshCheckSeconds": 1,
        "brokerServicePortTls": 0,
        "webServicePortTls": 0,
        "tlsCertificateFilePath": made.server.certificate,
        "tlsKeyFilePath": made.server.key,
        "tlsTrustCertsFilePath": made.authority,
        "authorizationEnabled": True,
        "superUserRoles": "app,client",
    }
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings=settings) as process:
        yield process


def test_a_client_with_a_supplier_stays_connected_over_many_tokens(broker: BrokerProcess) -> None:
    given: list[float] = []

    def supply() -> str:
        given.append(time.time())
        return token("app", exp=time.time() + 1)

    client = pulsar.Client(
        broker.service_url, authentication=pulsar.AuthenticationToken(supply), logger=SILENT
    )
    producer = client.create_producer("refreshed")
    path = f"{broker.admin_url}/admin/v2/persistent/public/default/refreshed/stats"

    def address() -> str:
        answer = http(path, token("app"))[1]
        return str(answer["publishers"][0]["address"])

    before = address()
    eventually(lambda: len(given) >= 4, seconds=60)
    producer.send(b"goes on")
    assert address() == before
    client.close()


def expire(
    broker: BrokerProcess, *, supports: bool, answer: str | None = None
) -> tuple[list[int], Any]:
    """What a client gets whose token expires: the types that came, and the error at the end."""

    async def attempt() -> tuple[list[int], Any]:
        client = await WireClient.connect(
            "127.0.0.1",
            broker.port,
            token=token("app", exp=time.time() + 1),
            feature_flags=pb.FeatureFlags(supports_auth_refresh=supports),
        )
        try:
            if supports:
                await client.until(lambda: client.events)
                challenge = client.events[0].authChallenge.challenge
                assert (challenge.auth_method_name, challenge.auth_data) == (
                    "token",
                    b"PulsarAuthRefresh",
                )
            if answer is not None:
                command = pb.BaseCommand(type=pb.BaseCommand.AUTH_RESPONSE)
                command.authResponse.response.auth_method_name = "token"
                command.authResponse.response.auth_data = answer.encode()
                client.send(command)
            await client.wait_closed()
        finally:
            client.abort()
        return [event.type for event in client.events], client.events[-1].error

    return asyncio.run(attempt())


@pytest.mark.parametrize(
    ("supports", "answer", "why"),
    [
        (False, None, "the credentials have expired"),
        (True, None, "the credentials have expired"),
        (True, token("app", exp=1), "the token has expired"),
        (True, token("admin"), "another role"),
        (True, "abc", "cannot be read"),
    ],
    ids=["no-refresh", "no-answer", "expired", "another", "garbage"],
)
def test_a_client_without_newer_credentials_is_closed(
    broker: BrokerProcess, supports: bool, answer: str | None, why: str
) -> None:
    types, error = expire(broker, supports=supports, answer=answer)
    challenged = [pb.BaseCommand.AUTH_CHALLENGE] if supports else []
    assert types == [*challenged, pb.BaseCommand.ERROR]
    assert error.error == ServerError.AUTHENTICATION
    assert why in error.message


def test_an_answer_that_nobody_asked_for_ends_the_connection(broker: BrokerProcess) -> None:
    async def attempt() -> None:
        client = await WireClient.connect("127.0.0.1", broker.port, token=token("app"))
        command = pb.BaseCommand(type=pb.BaseCommand.AUTH_RESPONSE)
        command.authResponse.response.auth_data = token("admin").encode()
        client.send(command)
        await client.wait_closed()
        assert "without a challenge" in client.events[-1].error.message

    asyncio.run(attempt())


def test_a_certificate_is_the_role(broker: BrokerProcess, made: TrialCertificates) -> None:
    pair = made.clients["client"]

    def client(name: str) -> pulsar.Client:
        shown = made.clients[name]
        return pulsar.Client(
            broker.service_url_tls,
            tls_trust_certs_file_path=str(made.authority),
            authentication=pulsar.AuthenticationTLS(str(shown.certificate), str(shown.key)),
            operation_timeout_seconds=10,
            logger=SILENT,
        )

    known, other = client("client"), client("admin")
    known.create_producer("by-certificate").send(b"hello")
    with pytest.raises(pulsar.AuthorizationError):
        other.create_producer("by-certificate")
    known.close()
    other.close()

    def ask(pair_shown: Any) -> int:
        context: ssl.SSLContext = ClientTls(
            trust=PemFile("", str(made.authority)),
            certificate=PemFile("", str(pair_shown.certificate) if pair_shown else ""),
            key=PemFile("", str(pair_shown.key) if pair_shown else ""),
        ).context()
        url = f"{broker.admin_url_tls}/admin/v2/tenants"
        try:
            with urllib.request.urlopen(url, context=context, timeout=60) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    assert ask(pair) == 200
    assert ask(made.clients["admin"]) == 403
    assert ask(None) == 401


def test_a_password_is_enough(broker: BrokerProcess) -> None:
    client = pulsar.Client(
        broker.service_url,
        authentication=pulsar.AuthenticationBasic("app", "pw"),
        operation_timeout_seconds=20,
        logger=SILENT,
    )
    client.create_producer("by-password").send(b"hello")
    client.close()
    url = f"{broker.admin_url}/admin/v2/tenants"
    for password, status in (("pw", 200), ("px", 401), ("", 401)):
        pair = base64.b64encode(f"app:{password}".encode()).decode()
        assert http(url, Authorization=f"Basic {pair}")[0] == status
