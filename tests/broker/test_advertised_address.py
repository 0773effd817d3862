"""Clients connect to `advertisedAddress`, whatever they knew before; `bindAddress` is what listens."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from ackgate.config.load import load_settings
from ackgate.errors import ConfigurationError
from ackgate.testing import BrokerProcess

TOPIC = "persistent://public/default/orders"


def addresses_used(broker: BrokerProcess, known: str) -> set[str]:
    """Where a producer's client is connected to when it has sent a message; it knew one address."""
    client = pulsar.Client(f"pulsar://{known}:{broker.port}")
    try:
        client.create_producer(TOPIC).send(b"hello")
        return set(_connected_to(broker.port))
    finally:
        client.close()


def _connected_to(port: int) -> Iterator[str]:
    """The far addresses of this machine's established IPv4 connections to a port (proc(5), net/tcp)."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        address, _, far_port = line.split()[2].partition(":")
        if int(far_port, 16) == port and line.split()[3] == "01":
            yield socket.inet_ntoa(bytes.fromhex(address)[::-1])


@pytest.mark.slow
def test_a_client_is_led_to_the_advertised_address(tmp_path: Path) -> None:
    settings = {"bindAddress": "0.0.0.0", "advertisedAddress": "127.0.0.2"}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        assert broker.service_url == f"pulsar://127.0.0.2:{broker.port}"
        assert addresses_used(broker, "127.0.0.1") == {"127.0.0.1", "127.0.0.2"}


@pytest.mark.slow
def test_only_the_bound_address_listens(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", settings={"bindAddress": "127.0.0.3"}) as broker:
        assert broker.service_url == f"pulsar://127.0.0.3:{broker.port}"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", broker.port), timeout=60)
        socket.create_connection(("127.0.0.3", broker.port), timeout=60).close()


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
