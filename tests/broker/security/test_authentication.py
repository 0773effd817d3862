"""A broker that asks who its clients are: real clients with good tokens pass, others are turned away."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from ackgate.broker.security.tokens import new_key_pair, private_key, sign
from ackgate.broker.wire.errors import ServerError
from ackgate.broker.wire.intake import HANDSHAKE_FRAME_BYTES_MAX
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.broker.wire.protocol_server import HALF_OPEN_MAX
from ackgate.config.load import load_settings
from ackgate.errors import ConfigurationError
from ackgate.testing import BrokerFailedError, BrokerProcess
from tests.broker.security.secured import SECRET, SECRET_TEXT, TOKENS_ON, http, token
from tests.support.wire_client import DisconnectedError, RefusedError, WireClient

NUMBERS = itertools.count()
BROKERS_TOKEN = token("broker-canary")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {
        **TOKENS_ON,
        "proxyRoles": "proxy",
        "logLevel": "DEBUG",
        "brokerClientAuthenticationPlugin": (
            "org.apache.pulsar.client.impl.auth.AuthenticationToken"
        ),
        "brokerClientAuthenticationParameters": f"token:{BROKERS_TOKEN}",
    }
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings=settings) as process:
        yield process


def connect(broker: BrokerProcess, **shown: Any) -> str:
    """What comes of a CONNECT: the error's code and text, "closed", or "" when it is accepted."""

    async def attempt() -> str:
        try:
            client = await WireClient.connect("127.0.0.1", broker.port, **shown)
        except RefusedError as error:
            return f"{error.code.name}: {error.message}"
        except DisconnectedError:
            return "closed"
        await client.close()
        return ""

    return asyncio.run(attempt())


def test_a_client_with_a_token_produces_and_consumes(broker: BrokerProcess) -> None:
    client = pulsar.Client(
        broker.service_url,
        authentication=pulsar.AuthenticationToken(lambda: token("app", exp=time.time() + 60)),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    consumer = client.subscribe("orders", "worker")
    client.create_producer("orders").send(b"hello")
    message = consumer.receive(60_000)
    assert message.data() == b"hello"
    consumer.acknowledge(message)
    client.close()


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        ({}, "credentials are needed: token"),
        ({"auth_method_name": "none"}, "credentials are needed: token"),
        ({"auth_method_name": "token"}, "cannot be read"),
        ({"auth_method_name": "tls"}, "'tls' is not offered here, but token"),
        ({"auth_method_name": "\nsasl"}, r"'\\nsasl' is not offered"),
        ({"token": "abc"}, "cannot be read"),
        ({"token": token("app", exp=1)}, "expired"),
        ({"token": token("app", nbf=2**40)}, "not valid yet"),
        ({"token": token("")}, "names no role"),
        (
            {"token": sign(private_key(new_key_pair("RS256")[0], "RS256", what=""), {"sub": "a"})},
            "algorithm is not allowed",
        ),
        (
            {"token": token("app"), "original_principal": "admin"},
            "'app' is no proxy .proxyRoles., and names an original principal",
        ),
        ({"token": token("proxy")}, "'proxy' does not name an original principal"),
        ({"token": token("proxy"), "original_principal": "proxy"}, "cannot be a proxy itself"),
    ],
)
def test_a_client_that_proves_nothing_is_refused_and_closed(
    broker: BrokerProcess, shown: dict[str, Any], why: str
) -> None:
    import re

    refused = connect(broker, **shown)
    assert refused.startswith(ServerError.AUTHENTICATION.name), refused
    assert re.search(why, refused)


def test_a_client_that_proves_who_it_is_gets_in(broker: BrokerProcess) -> None:
    assert connect(broker, token=token("app")) == ""
    assert connect(broker, token=token("app"), original_principal="app") == ""
    assert connect(broker, token=token("proxy"), original_principal="app") == ""


def test_nothing_is_done_before_a_client_is_known(broker: BrokerProcess) -> None:
    topic = f"persistent://public/default/early-{next(NUMBERS)}"

    async def ask_at_once(shown: str) -> tuple[list[int], bool]:
        """CONNECT and PARTITIONED_METADATA in one write: the types that came back."""
        client = await WireClient.open("127.0.0.1", broker.port)
        connect = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
        connect.connect.client_version, connect.connect.protocol_version = "early", 21
        connect.connect.auth_method_name, connect.connect.auth_data = "token", shown.encode()
        client.send(connect)
        asked = pb.BaseCommand(type=pb.BaseCommand.PARTITIONED_METADATA)
        asked.partitionMetadata.topic, asked.partitionMetadata.request_id = topic, 7
        client.send(asked)
        if shown == "abc":
            await client.wait_closed()
        else:
            await client.until(lambda: client.events)
        types = [event.type for event in client.events]
        is_connected = client.connected is not None
        client.abort()
        return types, is_connected

    assert asyncio.run(ask_at_once("abc")) == ([pb.BaseCommand.ERROR], False)
    assert asyncio.run(ask_at_once(token("app"))) == (
        [pb.BaseCommand.PARTITIONED_METADATA_RESPONSE],
        True,
    )


@pytest.mark.parametrize("path", ["brokers", "persistent/public/default/orders/stats", "tenants"])
def test_the_admin_interface_asks_the_same(broker: BrokerProcess, path: str) -> None:
    url = f"{broker.admin_url}/admin/v2/{path}"
    assert http(url, token("app"))[0] in {200, 404}
    for shown in (None, "abc", token("app", exp=1), token("proxy")):
        status, answer = http(url, shown)
        assert status == 401, answer
        assert set(answer) == {"reason"}
    assert http(url, token("app"), **{"X-Original-Principal": "admin"})[0] == 401
    assert http(url, token("proxy"), **{"X-Original-Principal": "app"})[0] in {200, 404}
    for shown in ("Basic !", "Negotiate abc", "Bearer", f"Basic {SECRET_TEXT}", token("app")):
        assert http(url, Authorization=shown)[0] == 401


def test_a_body_is_not_read_from_strangers(broker: BrokerProcess) -> None:
    url = f"{broker.admin_url}/admin/v2/tenants/strange"
    assert http(url, method="PUT", body={"adminRoles": []})[0] == 401
    assert (
        http(url, method="PUT", body={"adminRoles": []}, **{"Content-Type": "text/plain"})[0] == 401
    )


def test_probes_and_metrics_need_no_token(broker: BrokerProcess) -> None:
    for path in ("admin/v2/brokers/health", "admin/v2/brokers/ready", "metrics"):
        assert http(f"{broker.admin_url}/{path}")[0] == 200
    for path in (
        "admin/v2/brokers/health/",
        "admin/v2/brokers/%68ealth",
        "admin/v2/brokers/../tenants",
    ):
        assert http(f"{broker.admin_url}/{path}")[0] in {200, 401, 404}
    assert http(f"{broker.admin_url}/admin/v2/brokers/ready/../../tenants")[0] in {401, 404}


def test_strangers_cost_a_bounded_number_of_bytes(broker: BrokerProcess) -> None:
    """A frame above the bound ends the connection; connections above theirs end the oldest."""

    async def flood() -> int:
        big = await WireClient.open("127.0.0.1", broker.port)
        big.send_bytes((HANDSHAKE_FRAME_BYTES_MAX + 1).to_bytes(4, "big") + b"\0\0\0\x04")
        await big.wait_closed()
        silent = [
            await WireClient.open("127.0.0.1", broker.port) for _ in range(HALF_OPEN_MAX + 10)
        ]
        for client in silent:
            client.send_bytes(
                (HANDSHAKE_FRAME_BYTES_MAX).to_bytes(4, "big") + b"\0\0\0\x08" + b"x" * 100
            )
        await asyncio.gather(*(client.wait_closed() for client in silent[:10]))
        known = await WireClient.connect("127.0.0.1", broker.port, token=token("app"))
        await known.close()
        still_open = sum(not client.closed.done() for client in silent)
        for client in silent:
            client.abort()
        return still_open

    assert asyncio.run(flood()) <= HALF_OPEN_MAX


def test_no_secret_is_shown_anywhere(broker: BrokerProcess) -> None:
    """After all the tests above: their tokens and the secret are in no log, answer or error."""
    canary = token("canary", exp=1)
    connect(broker, token=canary)
    connect(broker, token=canary[:-3])
    http(f"{broker.admin_url}/admin/v2/tenants", canary)
    url = f"{broker.admin_url}/admin/v2/brokers/configuration"
    parameter = "brokerClientAuthenticationParameters"
    assert http(f"{url}/{parameter}/token:{canary}", token("app"), method="POST")[0] == 200
    shown = [
        broker.log,
        str(http(f"{url}/runtime", token("app"))),
        str(http(f"{url}/values", token("app"))),
        str(http(f"{broker.admin_url}/metrics")),
    ]
    assert parameter in shown[1]
    assert parameter in shown[2]
    assert "authentication of" in broker.log
    for secret in (SECRET_TEXT, SECRET.decode(), canary, canary.split(".")[2][:-3], BROKERS_TOKEN):
        for text in shown:
            assert secret not in text


@pytest.mark.parametrize(
    "wrong", [{"tokenSecretKey": "hunter2"}, {"brokerClientAuthenticationParameters": "hunter 2"}]
)
def test_a_broker_does_not_start_with_a_wrong_secret_and_does_not_show_it(
    tmp_path: Any, wrong: dict[str, str]
) -> None:
    plugin = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
    settings = {**TOKENS_ON, "brokerClientAuthenticationPlugin": plugin}
    settings |= {"brokerClientAuthenticationParameters": "token:abc", **wrong}
    with pytest.raises(BrokerFailedError, match="exit code 2") as caught:
        BrokerProcess(tmp_path / "data", settings=settings).start()
    assert next(iter(wrong)) in str(caught.value)
    assert "hunter" not in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_a_file_that_a_broker_can_read_but_no_key(tmp_path: Any) -> None:
    with pytest.raises(ConfigurationError, match="tokenPublicKey"):
        from ackgate.broker.security import Authentication

        path = tmp_path / "key"
        path.write_bytes(b"hunter2")
        given = {**TOKENS_ON, "tokenPublicKey": path, "tokenSecretKey": ""}
        settings = load_settings(None, [f"{key}={value}" for key, value in given.items()], {})
        Authentication.of(settings.settings.security)
