"""Clients connect to `advertisedAddress`, whatever they knew before; `bindAddress` is what listens."""

from __future__ import annotations

import re
import socket
import urllib.request
from pathlib import Path

import pulsar
import pytest

from ackgate.config.load import load_settings
from ackgate.errors import ConfigurationError
from ackgate.testing import BrokerProcess
from tests.broker.target import eventually

TOPIC = "persistent://public/default/orders"


def addresses_used(broker: BrokerProcess, known: str, log: Path) -> list[str]:
    """Where a producer's client connected to, in order; it knew the first. Waits for two of them."""
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Info, str(log))
    client = pulsar.Client(f"pulsar://{known}:{broker.port}", logger=logger)
    client.create_producer(TOPIC).send(b"hello")
    client.close()
    place = re.compile(rf"-> (\S+):{broker.port}\] Connected to broker")
    # The client writes its log when it likes to.
    return eventually(lambda: two if len(two := place.findall(log.read_text())) > 1 else None)


@pytest.mark.slow
def test_a_client_is_led_to_the_advertised_address(tmp_path: Path) -> None:
    settings = {"bindAddress": "0.0.0.0", "advertisedAddress": "127.0.0.2"}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        assert broker.service_url == f"pulsar://127.0.0.2:{broker.port}"
        assert addresses_used(broker, "127.0.0.1", tmp_path / "log") == ["127.0.0.1", "127.0.0.2"]


@pytest.mark.slow
def test_only_the_bound_address_listens(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", settings={"bindAddress": "127.0.0.3"}) as broker:
        assert broker.service_url == f"pulsar://127.0.0.3:{broker.port}"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", broker.port), timeout=10)
        socket.create_connection(("127.0.0.3", broker.port), timeout=10).close()


@pytest.mark.slow
@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6")
def test_an_ipv6_address_stands_in_brackets(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", settings={"bindAddress": "::1"}) as broker:
        assert broker.service_url == f"pulsar://[::1]:{broker.port}"
        # The C++ client takes no such address; others do.
        with urllib.request.urlopen(f"{broker.admin_url}/admin/v2/brokers/health") as answer:
            assert answer.read() == b"ok"


@pytest.mark.parametrize("address", ["broker:6650", "pulsar://broker", "a,b", "[::1]", "a b"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"advertisedAddress.*a host name or an IP"):
        load_settings(None, [f"advertisedAddress={address}"], {})


@pytest.mark.parametrize("address", ["", "broker-1.example.com", "10.0.0.7", "fd00::7", "b_1."])
def test_what_is_an_address_is_taken(address: str) -> None:
    loaded = load_settings(None, [f"advertisedAddress={address}"], {})
    assert loaded.settings.broker.advertised_address == address
