"""No web page of somebody else changes anything, and Pulsar's own tools go on working."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.broker.admin.conftest import InProcessBroker

CONSOLE = "https://console.example.com"
EVIL = "https://evil.example"
RETENTION = "/admin/v2/namespaces/public/default/retention"
DURABILITY = "/admin/v2/brokers/configuration/ackReceiptDurability/applied"
BODY = json.dumps({"retentionTimeInMinutes": 7, "retentionSizeInMB": 7}).encode()
JSON = {"Content-Type": "application/json"}


class Told(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def reason(self) -> str:
        return str(json.loads(self.body)["reason"])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessBroker]:
    settings: dict[str, object] = {
        "advertisedAddress": "127.0.0.1",
        "webServiceAllowedHosts": "broker.internal",
        "webServiceAllowedOrigins": CONSOLE,
    }
    with InProcessBroker(tmp_path_factory.mktemp("browsers"), settings) as broker:
        yield broker


def say(
    broker: InProcessBroker,
    method: str,
    path: str,
    headers: dict[str, str] | list[tuple[str, str]],
    body: bytes = b"",
) -> Told:
    """A request with just these headers (and, unless it is given, our Host)."""
    address = urlsplit(broker.url)
    assert address.hostname is not None
    pairs = list(headers.items()) if isinstance(headers, dict) else headers
    connection = http.client.HTTPConnection(address.hostname, address.port or 0, timeout=60)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        if not any(name == "Host" for name, _ in pairs):
            connection.putheader("Host", address.netloc)
        for name, value in pairs:
            connection.putheader(name, value)
        if body:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body or None)
        response = connection.getresponse()
        return Told(response.status, response.headers, response.read())
    finally:
        connection.close()


def retention(broker: InProcessBroker) -> Any:
    return broker.ask("GET", RETENTION).value


@pytest.mark.parametrize("kind", ["text/plain", "application/json", ""])
@pytest.mark.parametrize(
    "page",
    [
        {"Origin": EVIL},
        {"Origin": "null"},
        {"Origin": EVIL, "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "attacker.example"},
        {"Host": "attacker.example", "Origin": "http://attacker.example"},
        {"Host": "attacker.example", "Sec-Fetch-Site": "same-origin"},
    ],
)
def test_a_foreign_page_changes_nothing_and_sees_nothing(
    broker: InProcessBroker, page: dict[str, str], kind: str
) -> None:
    broker.ask("PUT", "persistent/public/default/precious")
    headers = {**page, **({"Content-Type": kind} if kind else {})}
    attempts = (
        ("POST", RETENTION, BODY),
        ("POST", DURABILITY, b""),
        ("PUT", "/admin/v2/persistent/public/default/mischief", b""),
        ("DELETE", "/admin/v2/persistent/public/default/precious", b""),
        ("GET", "/admin/v2/persistent/public/default/mischief/partitions?checkAllowAutoCreation=true", b""),
        ("GET", "/admin/v2/persistent/public/default", b""),
        ("GET", "/metrics", b""),
        ("GET", "/nowhere", b""),
        ("OPTIONS", RETENTION, b""),
    )  # fmt: skip
    for method, path, body in attempts:
        told = say(broker, method, path, headers, body)
        assert told.status == 403, (method, path, told)
        assert told.reason
        assert told.headers["Access-Control-Allow-Origin"] is None
        assert b"precious" not in told.body
    assert retention(broker) is None
    assert broker.get("brokers/configuration/values") == {}
    assert broker.get("persistent/public/default") == ["persistent://public/default/precious"]


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_a_body_that_is_not_said_to_be_json_is_not_read(broker: InProcessBroker, kind: str) -> None:
    told = say(broker, "POST", RETENTION, {"Content-Type": kind} if kind else {}, BODY)
    assert told.status == 415
    assert "add the header Content-Type: application/json" in told.reason
    assert retention(broker) is None


def test_where_no_body_is_due_none_is_asked_for(broker: InProcessBroker) -> None:
    path = "/admin/v2/persistent/public/default/bare"
    form = {"Content-Type": "application/x-www-form-urlencoded"}  # as `curl -d ''` says
    assert say(broker, "PUT", path, {}).status == 204
    assert say(broker, "PUT", f"{path}/unload", form).status == 204
    assert say(broker, "DELETE", path, {}).status == 204


@pytest.mark.parametrize(
    "headers",
    [
        [("Host", "127.0.0.1"), ("Host", "attacker.example")],
        [("Origin", CONSOLE), ("Origin", EVIL)],
        [("Sec-Fetch-Site", "none"), ("Sec-Fetch-Site", "cross-site")],
        [("Content-Type", "application/json"), ("Content-Type", "text/plain")],
        [("Host", "")],
    ],
)
def test_a_request_that_says_two_things_or_none_is_refused(
    broker: InProcessBroker, headers: list[tuple[str, str]]
) -> None:
    assert say(broker, "GET", "/admin/v2/tenants", headers).status == 400


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "broker.internal:8080", "[::1]"])
def test_names_that_lead_here_are_taken(broker: InProcessBroker, host: str) -> None:
    assert say(broker, "GET", "/admin/v2/tenants", {"Host": host}).status == 200


def test_the_reason_names_the_setting(broker: InProcessBroker) -> None:
    told = say(broker, "GET", "/metrics", {"Host": "elsewhere.example"})
    assert "webServiceAllowedHosts" in told.reason
    told = say(broker, "GET", "/metrics", {"Origin": EVIL})
    assert "webServiceAllowedOrigins" in told.reason


def test_a_page_that_is_allowed_asks_and_reads(broker: InProcessBroker) -> None:
    page = {"Origin": CONSOLE, "Sec-Fetch-Site": "cross-site"}
    asking = {**page, "Access-Control-Request-Method": "POST"}
    asking["Access-Control-Request-Headers"] = "content-type"
    told = say(broker, "OPTIONS", RETENTION, asking)
    assert told.status == 204
    assert told.headers["Access-Control-Allow-Origin"] == CONSOLE
    assert "POST" in told.headers["Access-Control-Allow-Methods"]
    assert told.headers["Access-Control-Allow-Headers"] == "Authorization, Content-Type"
    assert told.headers["Vary"] == "Origin"

    told = say(broker, "POST", RETENTION, {**page, **JSON}, BODY)
    assert (told.status, told.headers["Access-Control-Allow-Origin"]) == (204, CONSOLE)
    assert retention(broker) == json.loads(BODY)
    told = say(broker, "DELETE", RETENTION, page)
    assert (told.status, told.headers["Access-Control-Allow-Origin"]) == (204, CONSOLE)
    told = say(broker, "GET", "/admin/v2/nonsense", page)  # refusals are for reading, too
    assert (told.status, told.headers["Access-Control-Allow-Origin"]) == (404, CONSOLE)


def test_without_allowed_pages_there_is_no_word_of_them(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with InProcessBroker(tmp_path_factory.mktemp("plain")) as plain:
        told = say(plain, "GET", "/admin/v2/tenants", {})
        assert told.status == 200
        assert {"Vary", "Access-Control-Allow-Origin"} & set(told.headers) == set()
        assert say(plain, "OPTIONS", "/admin/v2/tenants", {"Origin": CONSOLE}).status == 403
        assert say(plain, "OPTIONS", "/admin/v2/tenants", {}).status == 405


def test_a_broker_knows_the_names_that_it_gives_away(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    machine = socket.gethostname()
    settings: dict[str, object] = {"advertisedAddress": "broker-7.example.com"}
    with InProcessBroker(tmp_path_factory.mktemp("named"), settings) as named:
        advertised = urlsplit(named.url).netloc
        address = f"127.0.0.1:{named.server.http_port}"
        for host in (advertised, machine, f"{machine}:80", machine.partition(".")[0]):
            connection = http.client.HTTPConnection(address, timeout=60)
            connection.request("GET", "/admin/v2/tenants", headers={"Host": host})
            assert connection.getresponse().status == 200, host
            connection.close()
