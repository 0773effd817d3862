"""Whatever is asked for, the answer is a status and a reason, and the broker goes on."""

from __future__ import annotations

import http.client
import json
import socket
from urllib.parse import urlsplit

import pytest

from ackgate.broker.admin.app import CONNECTIONS_MAX
from ackgate.broker.admin.http.router import BODY_BYTES_MAX
from tests.broker.admin.conftest import InProcessBroker

TOPICS = "/admin/v2/persistent/public/default"


def raw(
    broker: InProcessBroker, method: str, path: str, body: bytes | None = None
) -> tuple[int, str]:
    """A request whose path goes over the wire as it is."""
    address = urlsplit(broker.url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port or 0, timeout=60)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
            connection.putheader("Content-Type", "application/json")
        connection.endheaders(body)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    finally:
        connection.close()


def is_refused(answer: tuple[int, str], *statuses: int) -> str:
    status, text = answer
    assert status in statuses, answer
    reason = json.loads(text)["reason"]
    assert reason
    for telltale in ("Traceback", 'File "', ".py", "/tmp"):
        assert telltale not in reason
    return str(reason)


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "%2e%2e",
        ".",
        "%2E",
        "a%2Fb",
        "..%2F..%2Fetc%2Fpasswd",
        "%00",
        "a%00b",
        "a%0Ab",
        "a%0D%0ASet-Cookie:x",
        "%E2%80%A8",
        "%20",
        "x" * 2000,
    ],
)
def test_bad_topic_names(broker: InProcessBroker, name: str) -> None:
    for method, rest in (("PUT", ""), ("GET", "/stats"), ("DELETE", ""), ("GET", "/partitions")):
        is_refused(raw(broker, method, f"{TOPICS}/{name}{rest}"), 412)
    assert broker.get("persistent/public/default") == []


@pytest.mark.parametrize("name", ["..", "%2e%2e", "a%2Fb", "%00", "a b", "é", "x" * 2000, "a%20b"])
def test_bad_tenants_and_namespaces(broker: InProcessBroker, name: str) -> None:
    name = name.replace(" ", "%20").replace("é", "%C3%A9")
    is_refused(raw(broker, "PUT", f"/admin/v2/persistent/{name}/ns/t"), 412)
    is_refused(raw(broker, "PUT", f"/admin/v2/persistent/public/{name}/t"), 412)
    is_refused(raw(broker, "PUT", f"/admin/v2/tenants/{name}"), 412)
    is_refused(raw(broker, "GET", f"/admin/v2/namespaces/public/{name}/retention"), 412)
    assert broker.get("tenants") == ["public"]


@pytest.mark.parametrize("name", ["..", ".", "%00", "a%0Ab", "%20", "x" * 2000])
def test_bad_subscription_names(broker: InProcessBroker, name: str) -> None:
    broker.ask("PUT", "persistent/public/default/names")
    subscription = f"{TOPICS}/names/subscription/{name}"
    is_refused(raw(broker, "PUT", subscription), 412)
    is_refused(raw(broker, "DELETE", subscription), 412)
    is_refused(raw(broker, "POST", f"{subscription}/skip_all"), 412)
    assert broker.get("persistent/public/default/names/subscriptions") == []
    assert broker.ask("DELETE", "persistent/public/default/names").status == 204


def test_the_subscription_that_the_broker_keeps_for_itself(broker: InProcessBroker) -> None:
    broker.ask("PUT", "persistent/public/default/own")
    path = f"{TOPICS}/own/subscription/pulsar.dedup"
    is_refused(raw(broker, "PUT", path), 412)
    broker.ask("DELETE", "persistent/public/default/own")


@pytest.mark.parametrize(
    "path",
    [
        "/admin",
        "/admin/v2",
        "/admin/v2/../v2/tenants",
        "/admin/v2/%2e%2e/tenants",
        "/admin/v2/persistent//default/t/stats",
        "/admin" + "/x" * 3000,
        "/etc/passwd",
        "/admin/v2/persistent/public/default/t/stats/more",
    ],
)
def test_paths_that_lead_nowhere(broker: InProcessBroker, path: str) -> None:
    is_refused(raw(broker, "GET", path), 404, 412)


def test_other_methods_and_bytes_that_are_not_text(broker: InProcessBroker) -> None:
    is_refused(raw(broker, "PATCH", f"{TOPICS}/t/stats"), 405)
    is_refused(raw(broker, "POST", f"{TOPICS}/t/stats"), 405)
    is_refused(raw(broker, "PUT", f"{TOPICS}/%FF%FE"), 400)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"2.0"',
        b'"0x2"',
        b'""',
        b"2.5",
        b"true",
        b"1e999",
        b"[" * 60_000,
        b"\xff\xfe\x00",
        b'{"partitions": "x"}',
    ],
)
def test_bodies_that_are_no_number_of_partitions(broker: InProcessBroker, body: bytes) -> None:
    is_refused(raw(broker, "PUT", f"{TOPICS}/parted/partitions", body), 400)
    assert broker.get("persistent/public/default/partitioned") == []


def test_far_too_many_partitions(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings: dict[str, object] = {"maxNumPartitionsPerPartitionedTopic": 5}
    with InProcessBroker(tmp_path_factory.mktemp("limited"), settings) as limited:
        answer = limited.ask("PUT", "persistent/public/default/parted/partitions", 6)
        assert "1..5" in is_refused((answer.status, answer.text), 412)


@pytest.mark.parametrize("body", [b"5", b'{"ledgerId": 1}', b'{"ledgerId": null, "entryId": 1}'])
def test_bodies_that_are_no_position(broker: InProcessBroker, body: bytes) -> None:
    broker.ask("PUT", "persistent/public/default/places/subscription/s")
    path = f"{TOPICS}/places/subscription/s/resetcursor"
    is_refused(raw(broker, "POST", path, body), 400)


@pytest.mark.parametrize(
    "number", ["-1", "x", "", "1.5", "9" * 30, "%D9%A3", "0x10", "1_000", "%2B1"]
)
def test_numbers_that_are_none(broker: InProcessBroker, number: str) -> None:
    broker.ask("PUT", "persistent/public/default/numbers/subscription/s")
    path = f"{TOPICS}/numbers/subscription/s"
    is_refused(raw(broker, "POST", f"{path}/skip/{number}"), 400, 404)
    is_refused(raw(broker, "POST", f"{path}/resetcursor/{number}"), 400)
    is_refused(raw(broker, "GET", f"{path}/ackState?cells={number}"), 400)


def test_positions_beyond_all_bounds_are_taken_as_the_ends(broker: InProcessBroker) -> None:
    broker.ask("PUT", "persistent/public/default/bounds/subscription/s")
    for ledger_id, entry_id in ((-(2**70), 0), (2**70, 0), (2**63 - 1, 2**63 - 1), (1, 2**40)):
        body = {"ledgerId": ledger_id, "entryId": entry_id}
        path = "persistent/public/default/bounds/subscription/s/resetcursor"
        assert broker.ask("POST", path, body).status == 204


def test_a_body_without_end_is_not_read(broker: InProcessBroker) -> None:
    body = b" " * (BODY_BYTES_MAX + 1)
    is_refused(raw(broker, "PUT", f"{TOPICS}/large/partitions", body), 413)


def test_a_query_of_many_fields(broker: InProcessBroker) -> None:
    query = "&".join(f"a{number}=1" for number in range(1000))
    is_refused(raw(broker, "GET", f"/admin/v2/tenants?{query}"), 400)


@pytest.mark.parametrize(
    "noise",
    [
        b"\x00\x01\x02\x03" * 1000 + b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 5000 + b"\r\n",
        b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_bytes_that_are_no_http(
    broker: InProcessBroker, noise: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="ackgate")
    address = urlsplit(broker.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        connection.sendall(noise)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass
    assert broker.ask("GET", "brokers/health").status == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert max((len(record.getMessage()) for record in caplog.records), default=0) < 300


def test_a_flood_of_connections_that_never_ask(broker: InProcessBroker) -> None:
    address = urlsplit(broker.url)
    flood = [
        socket.create_connection((address.hostname, address.port), timeout=60)
        for _ in range(CONNECTIONS_MAX + 50)
    ]
    try:
        assert broker.ask("GET", "brokers/health").status == 200
        assert flood[0].recv(1) == b""  # the oldest was dropped
    finally:
        for connection in flood:
            connection.close()
    assert broker.ask("GET", "brokers/health").status == 200


@pytest.mark.parametrize(
    ("key", "value", "status"),
    [
        ("dispatcherMaxReadBatchSize", "many", 412),
        ("dispatcherMaxReadBatchSize", "-5", 412),
        ("dispatcherMaxReadBatchSizes", "5", 412),
        ("dataDirectory", "%2Fetc", 412),
        ("managedLedgerPassword", "x", 412),
    ],
)
def test_settings_that_cannot_be_changed_so(
    broker: InProcessBroker, key: str, value: str, status: int
) -> None:
    is_refused(raw(broker, "POST", f"/admin/v2/brokers/configuration/{key}/{value}"), status)
    assert broker.get("brokers/configuration/values") == {}


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"retentionTimeInMinutes": 5},
        {"retentionTimeInMinutes": "5", "retentionSizeInMB": 5},
        {"retentionTimeInMinutes": -2, "retentionSizeInMB": 5},
        {"retentionTimeInMinutes": 2**31, "retentionSizeInMB": 5},
        {"retentionTimeInMinutes": True, "retentionSizeInMB": True},
    ],
)
def test_retentions_that_are_none(broker: InProcessBroker, body: object) -> None:
    answer = broker.ask("POST", "namespaces/public/default/retention", body)
    is_refused((answer.status, answer.text), 400)
    assert broker.ask("GET", "namespaces/public/default/retention").text == ""


def test_secrets_are_not_told(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings: dict[str, object] = {"managedLedgerPassword": "s3cret"}
    with InProcessBroker(tmp_path_factory.mktemp("secret"), settings) as secretive:
        text = secretive.ask("GET", "brokers/configuration/runtime").text
    assert "managedLedgerPassword" in text
    assert "s3cret" not in text
