"""Clients connect to `advertisedAddress`, whatever they knew before; `bindAddress` is what listens."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from ackgate.config.load import load_settings
from ackgate.errors import ConfigurationError
from ackgate.testing import BrokerProcess
from ackgate.testing.ports import free_ports

TOPIC = "persistent://public/default/orders"


def addresses_used(
    broker: BrokerProcess, known: str, listener: str | None = None, port: int | None = None
) -> set[str]:
    """Where a producer's client is connected to when it has sent a message; it knew one address."""
    client = pulsar.Client(f"pulsar://{known}:{port or broker.port}", listener_name=listener)
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
def test_a_client_is_led_to_the_address_of_the_listener_that_it_names(tmp_path: Path) -> None:
    port, bound, web = free_ports(3)
    listeners = ",".join(
        [
            f"outside:pulsar://127.0.0.3:{port}",
            f"outside:http://127.0.0.3:{web}",
            f"inside:pulsar://127.0.0.2:{port}",
        ]
    )
    settings = {
        "bindAddress": "0.0.0.0",
        "advertisedListeners": listeners,
        "internalListenerName": "inside",
        "bindAddresses": f"outside:pulsar://127.0.0.4:{bound},outside:http://127.0.0.4:{web}",
    }
    with BrokerProcess(tmp_path / "data", settings=settings, port=port) as broker:
        assert addresses_used(broker, "127.0.0.1") == {"127.0.0.1", "127.0.0.2"}
        assert addresses_used(broker, "127.0.0.1", "outside") == {"127.0.0.1", "127.0.0.3"}
        lookup = f"{broker.admin_url}/lookup/v2/topic/persistent/public/default/orders"
        with urllib.request.urlopen(f"{lookup}?listenerName=outside") as answer:
            assert json.load(answer)["brokerUrl"] == f"pulsar://127.0.0.3:{port}"
        by_header = urllib.request.Request(lookup, headers={"X-Pulsar-ListenerName": "outside"})
        with urllib.request.urlopen(by_header) as answer:
            assert json.load(answer)["brokerUrl"] == f"pulsar://127.0.0.3:{port}"
        # The port says which listener it is, unless the client does.
        assert addresses_used(broker, "127.0.0.4", port=bound) == {"127.0.0.3"}
        assert addresses_used(broker, "127.0.0.4", "inside", port=bound) == {"127.0.0.2"}
        path = lookup.removeprefix(broker.admin_url)
        with urllib.request.urlopen(f"http://127.0.0.4:{web}{path}") as answer:
            led = json.load(answer)
            assert led["brokerUrl"] == f"pulsar://127.0.0.3:{port}"
            assert led["httpUrl"] == f"http://127.0.0.3:{web}"
        with urllib.request.urlopen(f"http://127.0.0.4:{web}{path}?listenerName=inside") as answer:
            led = json.load(answer)
            assert led["brokerUrl"] == f"pulsar://127.0.0.2:{port}"
            assert led["httpUrl"] == broker.admin_url
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{lookup}?listenerName=nowhere")
        assert "has no listener 'nowhere'" in refused.value.read().decode()


@pytest.mark.parametrize(
    ("listeners", "more", "why"),
    [
        ("pulsar://b:1", [], "it is a comma-separated list"),
        ("a:pulsar://b", [], "it is a comma-separated list"),
        ("a:pulsar://b:0", [], "it is a comma-separated list"),
        ("a:kafka://b:1", [], "it is a comma-separated list"),
        ("a:pulsar://b:1,c:pulsar://b:1", [], "b:1 is of two listeners"),
        ("a:pulsar://b:1,a:pulsar://c:1", [], "listener a has two addresses pulsar"),
        ("a:http://b:1", [], "listener a has no pulsar:// or pulsar.ssl:// address"),
        ("a:pulsar://b:1", ["internalListenerName=c"], "internalListenerName c is not in"),
        ("", ["internalListenerName=c"], "internalListenerName c is not in"),
        ("a:pulsar://b:1", ["advertisedAddress=b"], "exclude each other"),
    ],
)
def test_listeners_that_cannot_be_are_refused(listeners: str, more: list[str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        load_settings(None, [f"advertisedListeners={listeners}", *more], {})


@pytest.mark.parametrize(
    ("bound", "why"),
    [
        ("pulsar://b:1", "it is a comma-separated list"),
        ("a:pulsar://b:0", "it is a comma-separated list"),
        ("a:kafka://b:1", "it is a comma-separated list"),
        ("a:pulsar://b:1,a:pulsar://b:1", "it is a comma-separated list"),
        ("c:pulsar://b:1", "bindAddresses: listener c is not in advertisedListeners"),
        ("a:pulsar+ssl://b:1", "pulsar.ssl of a needs tlsCertificateFilePath"),
        ("a:https://b:1", "https of a needs tlsCertificateFilePath"),
    ],
)
def test_addresses_that_cannot_be_listened_on_are_refused(bound: str, why: str) -> None:
    given = ["advertisedListeners=a:pulsar://h:1", f"bindAddresses={bound}"]
    with pytest.raises(ConfigurationError, match=why):
        load_settings(None, given, {})


def test_the_internal_listener_comes_first_and_has_all_its_addresses() -> None:
    text = "out:pulsar+ssl://b.example:6651,in:pulsar://[fd00::7]:6650,in:http://h:8080"
    loaded = load_settings(None, [f"advertisedListeners={text}", "internalListenerName=in"], {})
    assert list(loaded.settings.broker.listeners.items()) == [
        ("in", {"pulsar": "pulsar://[fd00::7]:6650", "http": "http://h:8080"}),
        ("out", {"pulsar+ssl": "pulsar+ssl://b.example:6651"}),
    ]


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
