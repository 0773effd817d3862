"""Which requests a web page of somebody else may have sent."""

from __future__ import annotations

import pytest

from ackgate.broker.admin.http.browsers import BrowserGuard, RequestHeaders
from ackgate.broker.admin.http.refusals import RefusedError
from ackgate.config.load import load_settings
from ackgate.errors import ConfigurationError

CONSOLE = "https://console.example.com"
GUARD = BrowserGuard(
    ["Broker-1.example.com", "0.0.0.0", ""],
    allowed_hosts=["lb.example.net", "*.internal"],
    allowed_origins=[f"{CONSOLE.upper()}/"],
)


def refusal(guard: BrowserGuard, headers: RequestHeaders) -> int:
    """The status; 0 when nothing is refused."""
    try:
        guard.check(headers)
    except RefusedError as error:
        return error.status
    return 0


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8080",
        "localhost.",
        "app.localhost:1",
        "127.0.0.1:8080",
        "192.168.1.7",
        "[::1]:8080",
        "[fe80::1]",
        "broker-1.EXAMPLE.com:8080",
        "broker-1.example.com.",
        "lb.example.net",
        "a.internal",
        "a.b.internal:80",
    ],
)
def test_hosts_that_are_ours(host: str) -> None:
    assert refusal(GUARD, RequestHeaders(host)) == 0


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("attacker.example", 403),
        ("attacker.example:8080", 403),
        ("localhost.attacker.example", 403),
        ("127.0.0.1.attacker.example", 403),
        ("notlocalhost", 403),
        ("example.com", 403),
        ("internal", 403),
        ("xinternal", 403),
        ("*", 403),
        ("127.1", 403),
        ("", 400),
        (":8080", 400),
        ("a b", 400),
        ("user@localhost", 400),
        ("localhost:8080:9", 400),
        ("localhost:123456", 400),
        ("[::1", 400),
        ("localhost/x", 400),
        ("x" * 10_000, 403),
    ],
)
def test_hosts_that_are_not_ours(host: str, status: int) -> None:
    assert refusal(GUARD, RequestHeaders(host)) == status


def test_a_star_takes_every_host() -> None:
    guard = BrowserGuard([], allowed_hosts=["*"])
    assert refusal(guard, RequestHeaders("attacker.example")) == 0
    assert refusal(guard, RequestHeaders("")) == 400
    assert refusal(guard, RequestHeaders("a", origin="https://b")) == 403


@pytest.mark.parametrize(
    ("origin", "site", "status"),
    [
        ("", "", 0),  # no browser
        ("", "none", 0),  # typed into the address bar
        ("", "same-origin", 0),
        ("", "cross-site", 403),  # an image, a script, a link
        ("", "same-site", 403),
        ("", "anything", 403),
        ("http://localhost:8080", "same-origin", 0),
        ("http://localhost:8080", "", 0),
        ("https://LOCALHOST:8080", "", 0),  # a proxy that encrypts
        ("http://localhost:3000", "same-site", 403),
        ("http://localhost", "", 403),
        ("http://127.0.0.1:8080", "", 403),
        ("https://evil.example", "cross-site", 403),
        ("https://evil.example", "", 403),
        ("null", "cross-site", 403),
        ("file://", "", 403),
        ("http://[", "", 403),
        (CONSOLE, "cross-site", 0),
        (CONSOLE, "", 0),
        (f"{CONSOLE}:444", "", 403),
        (CONSOLE.replace("https", "http"), "", 403),
        (f"{CONSOLE}.evil.example", "", 403),
    ],
)
def test_pages_that_may_ask(origin: str, site: str, status: int) -> None:
    headers = RequestHeaders("localhost:8080", origin=origin, fetch_site=site)
    assert refusal(GUARD, headers) == status


@pytest.mark.parametrize(
    ("kind", "is_taken"),
    [
        ("application/json", True),
        ("Application/JSON; charset=utf-8", True),
        ("application/vnd.partitioned-topic-metadata+json", True),
        ("", False),
        ("text/plain", False),
        ("text/json", False),
        ("application/x-www-form-urlencoded", False),
        ("multipart/form-data; boundary=x", False),
        ("text/plain; application/json", False),
        ("application/jsonx", False),
    ],
)
def test_bodies_that_are_taken(kind: str, *, is_taken: bool) -> None:
    headers = RequestHeaders("localhost", content_type=kind)
    if is_taken:
        GUARD.check_body(headers)
    else:
        with pytest.raises(RefusedError, match="Content-Type: application/json") as caught:
            GUARD.check_body(headers)
        assert caught.value.status == 415


def test_answers_name_the_page_that_may_read_them() -> None:
    assert GUARD.answer_headers(CONSOLE) == {
        "Vary": "Origin",
        "Access-Control-Allow-Origin": CONSOLE,
    }
    assert GUARD.answer_headers("https://evil.example") == {"Vary": "Origin"}
    assert GUARD.answer_headers("") == {"Vary": "Origin"}
    assert BrowserGuard([]).answer_headers(CONSOLE) == {}


def test_a_preflight_is_for_pages_that_may_ask() -> None:
    reply = GUARD.preflight(RequestHeaders("localhost", origin=CONSOLE))
    assert reply.status == 204
    assert reply.headers["Access-Control-Allow-Methods"] == "DELETE, GET, POST, PUT"
    assert reply.headers["Access-Control-Allow-Headers"] == "Authorization, Content-Type"
    with pytest.raises(RefusedError, match=r"evil\.example"):
        GUARD.preflight(RequestHeaders("localhost", origin="https://evil.example"))


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("webServiceAllowedHosts", "a.example,*.internal,b_c"),
        ("webServiceAllowedHosts", "*"),
        ("webServiceAllowedOrigins", "https://a.example,http://localhost:3000,http://[::1]:80/"),
    ],
)
def test_settings_that_are_taken(key: str, text: str) -> None:
    assert load_settings(None, [f"{key}={text}"], {}).settings.texts()[key] == text


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("webServiceAllowedHosts", "a.example:8080"),
        ("webServiceAllowedHosts", "http://a.example"),
        ("webServiceAllowedHosts", "a.*.example"),
        ("webServiceAllowedHosts", "a b"),
        ("webServiceAllowedOrigins", "*"),
        ("webServiceAllowedOrigins", "null"),
        ("webServiceAllowedOrigins", "console.example.com"),
        ("webServiceAllowedOrigins", "https://*.example.com"),
        ("webServiceAllowedOrigins", "https://a.example/page"),
    ],
)
def test_settings_that_are_none(key: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"--set: {key}=.* is not allowed; it is a comma"):
        load_settings(None, [f"{key}={text}"], {})
