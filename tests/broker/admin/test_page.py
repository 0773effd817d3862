"""The page in a real Chromium, and what lies below it: one broker with a shut gate, one browser.

Names that would be markup, were they not text, are everywhere: a page that runs one of them logs it.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pulsar
import pytest

from ackgate.broker.admin.app import STREAMS_MAX, STREAMS_PER_CLIENT_MAX
from ackgate.broker.admin.page import overview
from ackgate.broker.wire import NotOwnedError
from ackgate.network import Urls
from ackgate.persistence.nodes.owner_nodes import BrokerRecord
from tests.broker.admin.conftest import InProcessBroker
from tests.broker.security.secured import TOKENS_ON, token
from tests.broker.target import eventually
from tests.support.chromium import READY, Chromium, click

TOPIC = "persistent://public/default/orders"
MARKUP = "<img src=x onerror=\"console.error('ran')\">"
NASTY = "persistent://public/default/" + quote(MARKUP, safe="")
NASTY_PATH = f"{quote(quote(MARKUP, safe=''), safe='')}/{quote(MARKUP, safe='')}"
RANGES_MAX = 20
LATER = "persistent://public/default/later"
DUE_TIMES = "/ackgate/subscriptions/public/default/later/later/dueTimes"
BILLING = "/ackgate/subscriptions/public/default/orders/billing"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessBroker]:
    settings: dict[str, object] = {
        "dispatcherPauseOnAckStatePersistentEnabled": "true",
        "managedLedgerMaxUnackedRangesToPersist": RANGES_MAX,
    }
    with InProcessBroker(tmp_path_factory.mktemp("page"), settings) as broker:
        client = pulsar.Client(
            broker.server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        consumer = client.subscribe(
            TOPIC,
            "billing",
            consumer_type=pulsar.ConsumerType.Shared,
            consumer_name="c1",
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=60,
        )
        producer = client.create_producer(TOPIC, batching_enabled=False)
        for number in range(100):
            producer.send(b"%d" % number)
        for number in range(60):
            message = consumer.receive(60_000)
            if number % 2 == 0:
                consumer.acknowledge(message)
        nasty = client.subscribe(
            NASTY,
            MARKUP,
            consumer_type=pulsar.ConsumerType.Shared,
            consumer_name=MARKUP,
            properties={MARKUP: MARKUP},
        )
        producer = client.create_producer(NASTY, properties={MARKUP: MARKUP})
        for _ in range(3):
            producer.send(MARKUP.encode(), properties={MARKUP: MARKUP}, partition_key=MARKUP)
        nasty.acknowledge([nasty.receive(60_000) for _ in range(3)][1])
        delayed = client.subscribe(LATER, "later", consumer_type=pulsar.ConsumerType.Shared)
        producer = client.create_producer(LATER, batching_enabled=False)
        for number in range(5):
            producer.send(b"x", deliver_after=timedelta(hours=1 + number))
        eventually(lambda: broker.get(DUE_TIMES)["held"] == 5)
        eventually(lambda: broker.get(BILLING)["row"]["gateReasons"])
        eventually(lambda: broker.get("/ackgate/overview?text=img")["rows"][0]["ranges"] == 1)
        yield broker
        delayed.close()
        client.shutdown()


def fetched(broker: InProcessBroker, path: str, **headers: str) -> tuple[Any, bytes]:
    """The answer to a GET of just this path, and its body."""
    address = urlsplit(broker.url)
    assert address.hostname is not None
    with closing(http.client.HTTPConnection(address.hostname, address.port, timeout=60)) as asked:
        asked.putrequest("GET", path, skip_host="Host" in headers)
        for name, value in headers.items():
            asked.putheader(name.replace("_", "-"), value)
        asked.endheaders()
        answer = asked.getresponse()
        return answer, answer.read()


# ---- below the page


def test_the_page_may_run_its_own_scripts_only(broker: InProcessBroker) -> None:
    answer, body = fetched(broker, "/")
    assert answer.status == 200
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    text = body.decode()
    assert not re.search(r"<script(?![^>]*src=)|<style|\son[a-z]+=|style=|https?:", text)
    for path in re.findall(r'(?:src|href)="([^"#]+)"', text):
        answer, content = fetched(broker, f"/{path}")
        assert answer.status == 200, path
        assert content
        assert "immutable" in answer.headers["Cache-Control"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_the_pages_own_scripts_parse_nothing_as_markup() -> None:
    sources = list((Path(__file__).parents[3] / "ackgate/broker/page").glob("*.js"))
    assert len(sources) > 5
    for path in sources:
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|srcdoc",
            path.read_text(),
        ), path


@pytest.mark.parametrize(
    "path",
    [
        "/page/x/app.js",
        "/page/{digest}/..%2fadmin%2fpage.py",
        "/page/{digest}/../../admin/app.py",
        "/page/{digest}/%2e%2e/page.py",
        "/page/{digest}/vendor/..%2fapp.js",
        "/page/{digest}/vendor",
        "/page/{digest}/index.html",
        "/page/{digest}/app.js%00",
        "/page/{digest}//etc/passwd",
    ],
)
def test_no_path_leads_out_of_the_page(broker: InProcessBroker, path: str) -> None:
    _, body = fetched(broker, "/")
    [digest, *_] = re.findall(rb"page/([0-9a-f]+)/app", body)
    answer, content = fetched(broker, path.replace("{digest}", digest.decode()))
    assert answer.status == 404, content


def test_a_link_from_any_site_leads_to_the_page_and_to_no_data(broker: InProcessBroker) -> None:
    linked = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
    assert fetched(broker, "/", **linked)[0].status == 200
    assert fetched(broker, "/ackgate/overview", **linked)[0].status == 403
    assert fetched(broker, BILLING + "/events", **linked)[0].status == 403
    assert fetched(broker, "/", Host="attacker.example")[0].status == 403
    assert fetched(broker, "/", Origin="https://evil.example")[0].status == 403


def test_the_worst_comes_first_and_says_why(broker: InProcessBroker) -> None:
    seen = broker.get("/ackgate/overview")
    assert seen["total"] == seen["matching"] == 3
    first = seen["rows"][0]
    assert (first["topic"], first["subscription"]) == (TOPIC, "billing")
    assert first["severity"] == "stuck"
    assert first["ranges"] > RANGES_MAX == first["rangesMax"]
    assert first["why"][0].startswith("dispatch is paused for ")
    assert f"{first['ranges']} ack ranges of {RANGES_MAX}" in first["why"][0]
    assert first["why"][1].startswith("oldest hole ")
    assert " held by consumer c1 for " in first["why"][1]
    assert first["rangesHistory"][-1][1] == first["ranges"]
    assert broker.get("/ackgate/overview?state=fine,waiting&text=orders")["rows"] == []
    by_name = broker.get("/ackgate/overview?order=subscription&rows=1&offset=1")
    assert [row["subscription"] for row in by_name["rows"]] == ["billing"]


def test_one_subscription_with_its_holes_and_their_holders(broker: InProcessBroker) -> None:
    seen = broker.get(BILLING)
    [holder] = seen["holders"]
    assert holder["consumer"] == "c1"
    assert holder["first"] == seen["holes"][0]["first"]
    assert {(hole["state"], hole["holder"]) for hole in seen["holes"]} == {("held", "c1")}
    assert seen["pauses"][-1]["untilMs"] is None
    assert "ranges-live" in seen["pauses"][-1]["reasons"]
    [ledger] = seen["picture"]["ledgers"]
    window = broker.get(f"{BILLING}/holes/{ledger['ledgerId']}?from=0&to=100&cells=50")
    each = {
        run["first"] + number: (run["state"], run["holder"])
        for run in window["runs"]
        for number in range(run["entries"])
    }
    assert len(each) == 100
    assert each[0] == ("acked", None)
    assert each[1] == ("held", "c1")
    acked = sum(state == "acked" for state, _ in each.values())
    assert acked == ledger["acked"]
    assert sum(window["cells"]) == acked * 1000 / 2


def test_since_when_the_active_consumer_of_a_failover_holds_the_oldest(
    broker: InProcessBroker,
) -> None:
    view = "/ackgate/subscriptions/public/default/in-turn/z"
    client = pulsar.Client(
        broker.server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )

    def subscribe(name: str) -> pulsar.Consumer:
        kind = pulsar.ConsumerType.Failover
        return client.subscribe("in-turn", "z", consumer_type=kind, consumer_name=name)

    try:
        a = subscribe("a")
        producer = client.create_producer("in-turn", batching_enabled=False)
        sent = [producer.send(b"x") for _ in range(3)]
        messages = [a.receive(10_000) for _ in sent]
        subscribe("b")
        a.acknowledge(messages[1])
        seen = eventually(
            lambda: found if len((found := broker.get(view))["holes"]) == 2 else None, seconds=30
        )
        [holder] = seen["holders"]
        assert holder["consumer"] == "a"
        assert holder["first"] == seen["holes"][0]["first"]
        assert seen["holes"][0]["sinceMs"] == holder["sinceMs"] <= seen["takenMs"]
        assert seen["holes"][1]["sinceMs"] is None
        a.close()  # what it had goes to the other
        eventually(
            lambda: [h["consumer"] for h in broker.get(view)["holders"]] == ["b"], seconds=30
        )
    finally:
        client.close()
        broker.ask("DELETE", "persistent/public/default/in-turn?force=true")


def position_of_nasty(broker: InProcessBroker) -> str:
    [hole, *_] = broker.get(f"/ackgate/subscriptions/public/default/{NASTY_PATH}")["holes"]
    return str(hole["first"])


def test_a_message_with_its_properties_and_where_it_is(broker: InProcessBroker) -> None:
    ledger_id, entry_id = position_of_nasty(broker).split(":")
    topic_path = NASTY_PATH.rpartition("/")[0]
    seen = broker.get(f"/ackgate/messages/public/default/{topic_path}/{ledger_id}/{entry_id}")
    [message] = seen["messages"]
    assert message["key"] == MARKUP
    assert message["properties"] == {MARKUP: MARKUP}
    assert message["payload"]["text"] == MARKUP
    assert seen["subscriptions"] == {MARKUP: {"state": "held", "holder": MARKUP}}
    assert seen["subscriptionCount"] == 1


def test_when_delayed_messages_are_due(broker: InProcessBroker) -> None:
    seen = broker.get(DUE_TIMES)
    assert seen["held"] == seen["sampled"] == sum(seen["counts"]) == 5
    hours = (len(seen["counts"]) * seen["slotMs"]) / 3_600_000
    assert 3.9 < hours < 4.3
    assert broker.get(BILLING + "/dueTimes")["counts"] == []


def test_the_storage_and_the_broker(broker: InProcessBroker) -> None:
    storage = broker.get("/ackgate/storage")
    [bookie] = storage["bookies"]
    assert bookie["lastError"] is None
    assert bookie["commits"] > 0
    assert 0 < bookie["commitMsMean"] <= bookie["commitMsMax"]
    assert storage["disks"][0]["freeBytes"] > 0
    seen = broker.get("/ackgate/broker")
    assert [each["id"] for each in seen["brokers"]] == [seen["brokerId"]]
    assert seen["busiest"][0]["consumers"] >= 1
    assert seen["settings"]["managedLedgerMaxUnackedRangesToPersist"] == str(RANGES_MAX)
    assert seen["settings"]["managedLedgerPassword"] == "******"
    assert seen["withoutEffect"] == {}


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/ackgate/overview?order=nope", 400, "order is not one of worst, topic"),
        ("/ackgate/overview?state=stuck,nope", 400, "state is not one of stuck"),
        ("/ackgate/overview?rows=201", 400, "at most 200"),
        ("/ackgate/overview?rows=0", 400, "at least 1"),
        ("/ackgate/overview?offset=-1", 400, "at least 0"),
        ("/ackgate/overview?offset=" + "9" * 20, 400, "more than 19 digits"),
        ("/ackgate/overview?text=" + "x" * 300, 400, "longer than 256"),
        ("/ackgate/overview/events?every=x", 400, "not an integer"),
        ("/ackgate/subscriptions/public/default/nope/s", 404, "not found"),
        ("/ackgate/subscriptions/public/default/orders/nope/events", 404, "not found"),
        ("/ackgate/messages/public/default/orders/999999/0", 404, "Message id not found"),
        ("/ackgate/messages/public/default/orders/x/0", 400, "not an integer"),
        (f"{BILLING}/holes/999999", 412, "no ledger 999999"),
        (f"{BILLING}?cells=5000", 412, "allowed is 1..1024"),
    ],
)
def test_a_bad_question_is_refused(
    broker: InProcessBroker, path: str, status: int, words: str
) -> None:
    answer = broker.ask("GET", path)
    assert answer.status == status
    assert words in answer.value["reason"]


def test_events_tell_what_is_new_and_their_streams_are_bounded(broker: InProcessBroker) -> None:
    clients = STREAMS_MAX // STREAMS_PER_CLIENT_MAX
    open_streams = []
    try:
        for number in range(STREAMS_MAX):
            stream, answer = opened(broker, f"127.0.0.{2 + number % clients}")
            open_streams.append(stream)
            assert answer.headers["Content-Type"] == "text/event-stream"
            assert answer.headers["Cache-Control"] == "no-store"
            assert answer.readline() == b"event: view\n"
            seen = json.loads(answer.readline().removeprefix(b"data: "))
            assert [row["subscription"] for row in seen["rows"]] == ["billing"]
        told = broker.ask("GET", "/ackgate/overview/events")
        assert told.status == 503
        assert "streams of events are open" in told.value["reason"]
    finally:
        closed(open_streams)
    eventually(lambda: fetched_stream_opens(broker))


def test_one_address_has_its_share_of_the_streams(broker: InProcessBroker) -> None:
    paths = ("/ackgate/overview/events", f"{BILLING}/events")
    open_streams = []
    try:
        for number in range(STREAMS_PER_CLIENT_MAX):
            open_streams.append(opened(broker, "127.0.0.60", paths[number % 2])[0])
        for path in paths:
            stream, answer = stream_of(broker, "127.0.0.60", path)
            open_streams.append(stream)
            assert answer.status == 429
            assert "open for your address, which is its share" in answer.read().decode()
        open_streams.append(opened(broker, "127.0.0.61")[0])
    finally:
        closed(open_streams)


def test_a_stream_ends_with_its_connection(broker: InProcessBroker) -> None:
    rarely = f"{BILLING}/events?every=3600000"
    streams = [opened(broker, "127.0.0.62", rarely)[0] for _ in range(STREAMS_PER_CLIENT_MAX)]
    closed(streams)
    open_streams = [opened(broker, "127.0.0.62", rarely, seconds=20)[0]]
    closed(open_streams)


Stream = tuple[http.client.HTTPConnection, http.client.HTTPResponse]


def opened(
    broker: InProcessBroker,
    client: str,
    path: str = "/ackgate/overview/events?every=500&text=billing",
    *,
    seconds: float = 60.0,
) -> Stream:
    """One that is admitted, once the broker has noticed that those of the tests before are closed."""
    found: list[Stream] = []

    def is_admitted() -> bool:
        stream, answer = stream_of(broker, client, path)
        if answer.status != 200:
            stream.close()
            return False
        found.append((stream, answer))
        return True

    eventually(is_admitted, seconds=seconds)
    return found[0]


def stream_of(
    broker: InProcessBroker,
    client: str,
    path: str,
    **headers: str,
) -> Stream:
    """Asked for from this address."""
    address = urlsplit(broker.url)
    assert address.hostname is not None
    stream = http.client.HTTPConnection(
        address.hostname, address.port, timeout=60, source_address=(client, 0)
    )
    stream.request("GET", path, headers=headers)
    return stream, stream.getresponse()


def closed(streams: list[http.client.HTTPConnection]) -> None:
    for stream in streams:
        with suppress(OSError, AttributeError):
            stream.sock.close()
        stream.close()


def fetched_stream_opens(broker: InProcessBroker) -> bool:
    address = urlsplit(broker.url)
    assert address.hostname is not None
    with closing(http.client.HTTPConnection(address.hostname, address.port, timeout=60)) as stream:
        stream.request("GET", f"{BILLING}/events")
        return stream.getresponse().status == 200


@contextmanager
def beside(broker: InProcessBroker, other: BrokerRecord) -> Iterator[None]:
    """As if the other broker were of one cluster with this one."""
    brokers = broker.server.ownership.view.brokers
    broker.call(lambda: brokers.update({other.broker_id: other}))
    try:
        yield
    finally:
        broker.call(lambda: brokers.pop(other.broker_id))


def record_of(url: str) -> BrokerRecord:
    return BrokerRecord(urlsplit(url).netloc, "", url, "")


def test_the_overview_is_that_of_all_brokers(
    broker: InProcessBroker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with InProcessBroker(tmp_path_factory.mktemp("other")) as other:
        for name in ("a", "b"):
            other.ask("PUT", f"persistent/public/default/elsewhere/subscription/{name}")
        with beside(broker, record_of(other.url)):
            seen = broker.get("/ackgate/overview?order=subscription")
            assert seen["total"] == seen["matching"] == sum(seen["severities"].values()) == 5
            assert [(row["subscription"], row["broker"]) for row in seen["rows"]] == [
                (MARKUP, ""),
                ("a", other.url),
                ("b", other.url),
                ("billing", ""),
                ("later", ""),
            ]
            assert broker.get("/ackgate/overview")["rows"][0]["subscription"] == "billing"
            second = broker.get("/ackgate/overview?order=subscription&rows=2&offset=2")
            assert [row["subscription"] for row in second["rows"]] == ["b", "billing"]
            assert broker.get("/ackgate/overview?here=true")["total"] == 3
            told = broker.ask("GET", "/ackgate/overview?offset=5000")
            assert (told.status, "first 1000 rows" in told.value["reason"]) == (400, True)
    with beside(broker, record_of("http://127.0.0.1:1")):
        seen = broker.get("/ackgate/overview")
        assert seen["total"] == 3
        assert seen["missing"] == ["broker http://127.0.0.1:1 does not answer"]


def test_a_topic_of_another_broker_names_that_one(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def elsewhere(name: object, **_: object) -> None:
        raise NotOwnedError(name, Urls("http://other:8080"), is_owner=True)

    monkeypatch.setattr(broker.server.ownership, "require", elsewhere)
    for path in (BILLING, f"{BILLING}/events", f"{BILLING}/holes/1", f"{BILLING}/dueTimes",
                 "/ackgate/messages/public/default/orders/1/0"):  # fmt: skip
        told = broker.ask("GET", path)
        assert (told.status, told.value["reason"]) == (
            421,
            "broker http://other:8080 serves this topic",
        )


def test_a_broker_that_is_frozen_is_named_and_holds_nobody_up(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "PEER_SECONDS_MAX", 1.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts nothing
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with beside(broker, record_of(url)):
            seen = broker.get("/ackgate/overview")
            assert seen["missing"] == [f"broker {url} has not answered for 2 s"]
            assert seen["total"] == 3
            stream, answer = opened(broker, "127.0.0.63")
            try:
                lines = [answer.readline() for _ in range(7)]
            finally:
                closed([stream])
            # A client that hears nothing for a while takes the broker for dead.
            assert lines[3:] == [b": not ready\n", b"\n"] * 2


# ---- in a browser


@pytest.fixture(autouse=True)
def _no_errors(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "browser" in request.fixturenames:
        browser: Chromium = request.getfixturevalue("browser")
        errors, browser.errors = browser.errors, []
        assert errors == []


def test_the_overview_answers_at_a_glance(broker: InProcessBroker, browser: Chromium) -> None:
    browser.open(f"{broker.url}/")
    browser.until(READY)
    text = browser.ask("document.querySelector('#rows .tabulator-row').innerText")
    assert text.startswith("stuck billing Shared")
    assert "dispatch is paused for " in text
    assert "held by consumer c1" in text
    browser.until("document.querySelector('#live').className === 'live'")
    assert {urlsplit(url).netloc for url in browser.requested} == {urlsplit(broker.url).netloc}


def test_what_is_filtered_and_sorted_is_a_link(broker: InProcessBroker, browser: Chromium) -> None:
    browser.open(f"{broker.url}/")
    browser.until(READY)
    click(browser, "button[data-order=backlog]")
    browser.until("location.hash.includes('order=backlog')")
    browser.ask(
        "(f => { f.value = 'onerror'; f.dispatchEvent(new Event('input')); })"
        "(document.querySelector('input[type=search]'))"
    )
    browser.until("location.hash.includes('text=onerror')")
    browser.until(f"{READY} && document.querySelectorAll('#rows .tabulator-row').length === 1")
    link = browser.ask("location.href")
    browser.open("about:blank")
    browser.open(link)
    browser.until(f"{READY} && document.querySelectorAll('#rows .tabulator-row').length === 1")
    assert browser.ask("document.querySelector('input[type=search]').value") == "onerror"
    assert browser.ask("document.querySelector('.named a').textContent") == MARKUP
    click(browser, ".named a")
    browser.until("document.querySelector('h1')?.textContent.includes('onerror')")
    browser.until("document.querySelector('.strip canvas')")
    browser.until(f"document.body.innerText.includes({json.dumps(MARKUP)})")
    assert browser.ask("document.querySelectorAll('main img').length") == 0


def test_holes_can_be_looked_at_closely(broker: InProcessBroker, browser: Chromium) -> None:
    browser.open(f"{broker.url}/#/subscription?topic={TOPIC}&name=billing")
    browser.until(READY)
    browser.ask(
        "document.querySelector('.strip canvas').dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'}))"
    )
    browser.until("document.querySelector('.window canvas')")
    browser.until("document.querySelector('.window .legend')?.textContent.includes('with c1')")
    browser.until("location.hash.includes('from=0&to=100')")
    link = browser.ask("location.href")
    click(browser, ".window button[title=Closer]")
    browser.until("location.hash.includes('from=25&to=75')")
    browser.open("about:blank")
    browser.open(link)
    browser.until(
        "document.querySelector('.window strong')?.textContent.includes('0 to 99 of 100')"
    )


def test_light_dark_and_a_phone(broker: InProcessBroker, browser: Chromium) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    browser.open(f"{broker.url}/")
    browser.until(READY)
    browser.prefer("light")
    assert browser.ask(paper) == "rgb(255, 255, 255)"
    browser.prefer("dark")
    assert browser.ask(paper) == "rgb(13, 17, 23)"
    click(browser, "#theme")
    assert browser.ask(paper) == "rgb(255, 255, 255)"
    browser.ask("localStorage.clear(); delete document.documentElement.dataset.theme")
    for view in ("#/", f"#/subscription?topic={TOPIC}&name=billing"):
        browser.size(390, 844, is_phone=True)
        browser.open("about:blank")
        browser.open(f"{broker.url}/{view}")
        browser.until(READY)
        browser.until("document.documentElement.scrollWidth <= innerWidth")
    browser.size(1280, 900)
    browser.prefer("light")


def again(browser: Chromium) -> None:
    """Wait for the next update of the view."""
    before = browser.ask(READY)
    browser.until(f"{READY} && {READY} !== {json.dumps(before)}")


def test_a_new_order_and_updates_leave_the_focus_where_it_is(
    broker: InProcessBroker, browser: Chromium
) -> None:
    focused = "document.activeElement.textContent"
    browser.open(f"{broker.url}/#/subscriptions")
    browser.until(READY)
    browser.ask("document.querySelector('[data-order=subscription]').focus()")
    click(browser, "[data-order=subscription]")
    browser.until(f"{READY} && document.querySelector('.named a').textContent !== 'billing'")
    assert browser.ask(focused) == "Subscription ▲"
    click(browser, "[data-order=subscription]")
    browser.until(f"{READY} && {focused} === 'Subscription ▼'")
    link = "[...document.querySelectorAll('.named a')].find(a => a.textContent === 'billing')"
    browser.ask(f"{link}.focus()")
    again(browser)
    assert browser.ask(focused) == "billing"
    click(browser, ".states [data-state=stuck]")
    browser.ask("document.querySelector('.states [data-state=stuck]').focus()")
    browser.until(f"{READY} && document.querySelectorAll('#rows .tabulator-row').length === 1")
    again(browser)
    assert browser.ask(focused) == "1 stuck"


def test_a_page_after_the_last_shows_the_last(broker: InProcessBroker, browser: Chromium) -> None:
    browser.open("about:blank")
    browser.open(f"{broker.url}/#/subscriptions?offset=5000")
    browser.until(READY)
    assert browser.ask("document.querySelector('#summary').textContent").startswith("1 to ")
    assert "offset" not in browser.ask("location.hash")
    browser.open("about:blank")
    browser.open(f"{broker.url}/#/subscriptions?text=nowhere&offset=100")
    browser.until(READY)
    assert "no subscription matches" in browser.ask("document.body.innerText")


def test_a_phone_shows_all_figures_and_orders(broker: InProcessBroker, browser: Chromium) -> None:
    browser.size(390, 844, is_phone=True)
    browser.open("about:blank")
    browser.open(f"{broker.url}/")
    browser.until(READY)
    row = browser.ask("document.querySelector('#rows .tabulator-row').innerText")
    for title in ("Ranges", "Gate", "Backlog", "Unacked", "Again after a crash", "Consumers"):
        assert title in row
    browser.ask(
        "(order => { order.value = 'backlog'; order.dispatchEvent(new Event('change')); })"
        "(document.querySelector('select[aria-label=Order]'))"
    )
    browser.until(f"{READY} && location.hash.includes('order=backlog')")
    wide = (
        "[...document.querySelectorAll('#rows .figures > span')]"
        ".filter(each => each.getBoundingClientRect().right > innerWidth).length"
    )
    assert browser.ask(wide) == 0
    browser.size(1280, 900)


def test_updates_leave_what_is_open_and_scrolled_as_it_is(
    broker: InProcessBroker, browser: Chromium
) -> None:
    browser.open("about:blank")
    browser.open(f"{broker.url}/#/broker")
    browser.until(READY)
    settings = "[...document.querySelectorAll('.tall')].at(-1)"
    browser.until(f"({settings}.scrollTop = 300) && {settings}.scrollTop === 300")
    again(browser)
    assert browser.ask(f"{settings}.scrollTop") == 300
    ledger = broker.get(BILLING)["picture"]["ledgers"][0]["ledgerId"]
    browser.open(
        f"{broker.url}/#/subscription?topic={TOPIC}&name=billing&ledger={ledger}&from=0&to=50"
    )
    browser.until("document.querySelector('.window details')")
    browser.ask("document.querySelector('.window details').open = true")
    browser.ask("document.querySelector('.window button[title=Wider]').focus()")
    browser.ask("document.querySelector('.window details').dataset.old = 'yes'")
    browser.until("document.querySelector('.window details').dataset.old === undefined")
    assert browser.ask("document.querySelector('.window details').open")
    assert browser.ask("document.activeElement.title") == "Wider"


def test_the_values_of_settings_are_to_be_seen(broker: InProcessBroker, browser: Chromium) -> None:
    for width in (1280, 390):
        browser.size(width, 900)
        browser.open("about:blank")
        browser.open(f"{broker.url}/#/broker")
        browser.until(READY)
        hidden = (
            "[...[...document.querySelectorAll('.tall')].at(-1).querySelectorAll('td')]"
            ".filter(d => d.getBoundingClientRect().right > innerWidth).length"
        )
        assert browser.ask(hidden) == 0, width
    browser.size(1280, 900)


def test_an_action_happens_after_its_name_was_typed(
    broker: InProcessBroker, browser: Chromium
) -> None:
    before = broker.get(BILLING)["row"]["backlog"]
    browser.open(f"{broker.url}/#/subscription?topic={TOPIC}&name=billing")
    browser.until(READY)
    click(browser, "[aria-label=Actions] button")
    browser.until("document.querySelector('dialog.confirm[open]')")
    type_name = (
        "(name => { document.querySelector('dialog [name=typed]').value = name; "
        "document.querySelector('dialog [name=do]').click(); })"
    )
    browser.ask(f"{type_name}('another')")
    browser.until("document.querySelector('dialog .bad').textContent === 'the name is another one'")
    assert broker.get(BILLING)["row"]["backlog"] == before
    browser.ask(f"{type_name}('billing')")
    browser.until("document.querySelector('#said').textContent === 'Skip entries: done'")
    assert broker.get(BILLING)["row"]["backlog"] == before - 1
    browser.until("!document.querySelector('dialog')")


def test_a_message_is_text_whatever_it_is(broker: InProcessBroker, browser: Chromium) -> None:
    at = position_of_nasty(broker)
    browser.open("about:blank")
    browser.open(f"{broker.url}/#/message?topic={quote(NASTY, safe='')}&at={at}")
    browser.until(READY)
    assert browser.ask("document.querySelector('pre').textContent") == MARKUP
    assert browser.ask("document.querySelectorAll('main img').length") == 0
    assert (
        browser.ask("[...document.querySelectorAll('td')].map(d => d.textContent)").count(MARKUP)
        == 3
    )


def test_every_view_shows_itself(broker: InProcessBroker, browser: Chromium) -> None:
    for view, words in (
        ("storage?topic=orders", "Ledgers of public/default/orders"),
        ("broker", "Settings in force"),
    ):
        browser.open("about:blank")
        browser.open(f"{broker.url}/#/{view}")
        browser.until(READY)
        browser.until(f"document.body.innerText.includes({json.dumps(words)})")
    browser.open("about:blank")
    browser.open(f"{broker.url}/#/subscription?topic={LATER}&name=later")
    browser.until(READY)
    browser.ask(
        "[...document.querySelectorAll('button')].find(b => b.textContent.includes('due?')).click()"
    )
    browser.until("document.querySelector('.uplot')")
    browser.until("document.body.innerText.includes('5 of 5 delayed entries')")


def test_a_topic_that_moves_to_another_broker_leads_there(
    broker: InProcessBroker, browser: Chromium, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def elsewhere(name: object, **_: object) -> None:
        raise NotOwnedError(name, Urls("http://other:8080"), is_owner=True)

    line = "document.querySelector('#lost').textContent"
    browser.open("about:blank")
    browser.open(f"{broker.url}/#/subscription?topic={TOPIC}&name=billing")
    browser.until(READY)
    with monkeypatch.context() as moved:
        moved.setattr(broker.server.ownership, "require", elsewhere)
        browser.until(f"{line}.endsWith('broker http://other:8080 serves this topic Go there')")
        assert browser.ask("document.querySelector('#lost a').href").startswith(
            f"http://other:8080/#/subscription?topic={TOPIC}"
        )
        click(browser, "[aria-label=Actions] button")
        browser.until("document.querySelector('dialog [name=typed]')")
        browser.ask("document.querySelector('dialog [name=typed]').value = 'billing'")
        click(browser, "dialog [name=do]")
        wrong = browser.until("document.querySelector('dialog .bad').textContent")
        assert wrong == "another broker serves this topic now"
        click(browser, "dialog button[type=button]")
    browser.until("document.querySelector('#live').className === 'live'")
    assert browser.ask(line) == ""
    browser.errors = [error for error in browser.errors if "421" not in error]


def test_streams_that_end_at_once_are_not_asked_for_in_a_storm(
    broker: InProcessBroker, browser: Chromium, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "STREAM_SECONDS_MAX", 0.0)
    browser.open("about:blank")
    browser.open(f"{broker.url}/#/subscriptions")
    streams = "performance.getEntriesByType('resource').filter(e => e.name.includes('/events'))"
    starts = browser.until(f"(s => s.length >= 3 && s.map(e => e.startTime))({streams})")
    assert min(b - a for a, b in pairwise(starts)) > 900
    browser.open("about:blank")


def test_updates_leave_the_zoom_of_the_chart(
    broker: InProcessBroker, browser: Chromium, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hour(_: object) -> tuple[tuple[int, int], ...]:
        now_ms = broker.server.services.clock_ms()
        return tuple((now_ms - 10_000 * back, 20) for back in range(360, 0, -1))

    monkeypatch.setattr(broker.server.sampler, "ranges_history", hour)
    browser.open("about:blank")
    browser.open(f"{broker.url}/#/subscription?topic={TOPIC}&name=billing")
    browser.until(READY)
    over = "document.querySelector('.chart .u-over')"
    browser.until(over)
    browser.ask(f"{over}.scrollIntoView({{block: 'center'}})")
    left, middle, width = browser.ask(
        f"(r => [r.left, r.top + r.height / 2, r.width])({over}.getBoundingClientRect())"
    )

    def mouse(kind: str, share: float) -> None:
        browser.command(
            "Input.dispatchMouseEvent",
            type=kind,
            x=left + width * share,
            y=middle,
            button="none" if kind == "mouseMoved" else "left",
            clickCount=0 if kind == "mouseMoved" else 1,
        )

    def first_minute() -> float:
        """Minutes before now of what stands at the left end of the chart."""
        mouse("mouseMoved", 0.5)
        mouse("mouseMoved", 0.002)
        text = browser.until(
            "(t => t.includes('Z') && t)(document.querySelector('.chart .u-legend .u-value').textContent)"
        )
        return (datetime.now(UTC) - datetime.fromisoformat(text)).total_seconds() / 60

    assert first_minute() > 55
    mouse("mouseMoved", 0.5)
    mouse("mousePressed", 0.5)
    mouse("mouseMoved", 0.8)
    mouse("mouseReleased", 0.8)
    assert 25 < first_minute() < 35
    again(browser)
    assert 25 < first_minute() < 35


def test_a_broker_that_asks_who_you_are_is_told_by_a_token(
    browser: Chromium, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with InProcessBroker(tmp_path_factory.mktemp("secured"), dict(TOKENS_ON)) as secured:
        assert fetched(secured, "/ackgate/overview")[0].status == 401
        a_role_has_its_share_of_the_streams(secured)
        browser.open("about:blank")
        browser.open(f"{secured.url}/")
        browser.until("document.querySelector('dialog[open] input[type=password]')")
        secret = token("admin")
        browser.ask(
            f"document.querySelector('dialog input').value = {json.dumps(secret)};"
            "document.querySelector('dialog button.main').click()"
        )
        browser.until(READY)
        browser.until("document.querySelector('#summary').textContent.includes('0 to 0 of 0')")
        assert not any(secret in url for url in browser.requested)
        assert browser.ask("Object.values(localStorage).join() + document.cookie") == ""
        refused = [error for error in browser.errors if "401" in error]
        browser.errors = [error for error in browser.errors if error not in refused]
        assert refused
        browser.open("about:blank")


def a_role_has_its_share_of_the_streams(secured: InProcessBroker) -> None:
    open_streams = []

    def status_for(role: str, client: str) -> int:
        shown = {"Authorization": f"Bearer {token(role)}"}
        stream, answer = stream_of(secured, client, "/ackgate/overview/events", **shown)
        open_streams.append(stream)
        return answer.status

    try:
        for number in range(STREAMS_PER_CLIENT_MAX):
            assert status_for("greedy", f"127.0.0.{2 + number}") == 200
        assert status_for("greedy", "127.0.0.50") == 429
        assert status_for("modest", "127.0.0.2") == 200
    finally:
        closed(open_streams)


def test_of_one_active_consumer_what_was_read_counts_as_sent(broker: InProcessBroker) -> None:
    client = pulsar.Client(
        broker.server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    topic = "persistent://public/default/alone"
    consumer = client.subscribe(
        topic, "one", consumer_type=pulsar.ConsumerType.Exclusive, receiver_queue_size=5
    )
    producer = client.create_producer(topic, batching_enabled=False)
    for _ in range(20):
        producer.send(b"x")
    first = consumer.receive(60_000)

    def row() -> Any:
        return broker.get("/ackgate/subscriptions/public/default/alone/one")["row"]

    eventually(lambda: row()["unackedMessages"] >= 5)
    seen = row()
    assert seen["backlog"] == 20 == seen["unackedMessages"] + seen["undelivered"]
    assert 5 <= seen["unackedMessages"] < 20
    consumer.acknowledge(first)
    eventually(lambda: row()["backlog"] == 19)
    client.close()
    broker.ask("DELETE", "persistent/public/default/alone?force=true")
