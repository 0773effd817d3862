"""Connections that waste: half open, silent, slow, too many."""

from __future__ import annotations

import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from ackgate.testing import BrokerProcess
from tests.broker.bad_input.bystander import Bystander
from tests.broker.bad_input.raw import RawConnection

FLOOD = 400
PATIENCE_SECONDS = 20.0
LINES_MAX = 100
"""Of the log, for a flood from one host."""


@pytest.fixture
def impatient(tmp_path) -> Iterator[BrokerProcess]:
    """A broker that waits one second for a handshake and for a sign of life."""
    settings = {"handshakeTimeoutSeconds": 1, "keepAliveIntervalSeconds": 1}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        yield broker


def flood(broker: BrokerProcess, count: int, first_bytes: bytes) -> list[socket.socket]:
    """Connections that say `first_bytes` and nothing more."""
    parts = urlsplit(broker.service_url)
    sockets = []
    for _ in range(count):
        connection = socket.create_connection((parts.hostname, parts.port), PATIENCE_SECONDS)
        connection.sendall(first_bytes)
        sockets.append(connection)
    return sockets


def all_closed_by_the_other_side(sockets: list[socket.socket]) -> bool:
    for connection in sockets:
        try:
            while connection.recv(4096):
                pass
        except ConnectionError:
            pass
        connection.close()
    return True


@pytest.mark.parametrize(
    "first_bytes",
    [
        pytest.param(b"", id="silent"),
        pytest.param(b"\x00", id="one byte"),
        pytest.param(struct.pack(">II", 60_000, 59_000) + bytes(1000), id="the start of a frame"),
        pytest.param(bytes(range(1, 256)), id="garbage"),
    ],
)
def test_a_flood_of_half_open_connections_passes_by(impatient, ackgate_topic, first_bytes):
    with Bystander(impatient.service_url, ackgate_topic) as bystander:
        sockets = flood(impatient, FLOOD, first_bytes)
        bystander.wait_for_more()
        assert all_closed_by_the_other_side(sockets)
        bystander.wait_for_more()
    assert len(impatient.log.splitlines()) < LINES_MAX


def test_one_that_drips_its_handshake_is_cut_off(impatient):
    connection = RawConnection(impatient.service_url, connect=False)
    began = time.monotonic()
    connection.send_bytes(struct.pack(">II", 60_000, 59_000))
    connection.last_words()
    assert time.monotonic() - began < 5
    connection.close()


def test_one_that_answers_no_ping_is_cut_off(impatient):
    connection = RawConnection(impatient.service_url)
    words = connection.last_words()
    assert words[0].HasField("ping")
    connection.close()


def test_a_bound_on_connections_keeps_those_that_are_there(tmp_path, ackgate_topic):
    with (
        BrokerProcess(tmp_path / "data", settings={"brokerMaxConnections": 20}) as broker,
        Bystander(broker.service_url, ackgate_topic) as bystander,
    ):
        sockets = flood(broker, 100, b"")
        bystander.wait_for_more()
        for connection in sockets[30:]:
            assert all_closed_by_the_other_side([connection])
        for connection in sockets[:30]:
            connection.close()
        bystander.wait_for_more()
        assert len(broker.log.splitlines()) < LINES_MAX


def test_running_out_of_file_descriptors_is_survived(
    tmp_path, ackgate_topic, fresh_ackgate_topic: Callable[[], str]
):
    with BrokerProcess(tmp_path / "data") as broker:
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (200, 200))
        with Bystander(broker.service_url, ackgate_topic) as bystander:
            sockets = flood(broker, 300, b"")
            bystander.wait_for_more()
            for connection in sockets:
                connection.close()
            with Bystander(broker.service_url, fresh_ackgate_topic()) as newcomer:
                newcomer.wait_for_more()
            bystander.wait_for_more()
