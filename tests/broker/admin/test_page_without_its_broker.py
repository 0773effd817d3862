"""An open page whose broker is killed, frozen, or no longer has what the page shows, in a real Chromium."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import pulsar
import pytest

from ackgate.testing import BrokerAdmin, BrokerProcess
from tests.broker.target import eventually
from tests.support.chromium import READY, Chromium, click

TOPIC: Final = "persistent://public/default/orders"
MANY: Final = "persistent://public/default/many"
SUBSCRIPTIONS: Final = 40
IDLE: Final = "persistent://public/default/idle"
"""Has no clients, so that nobody loads it after a restart."""
PAGE_ROWS: Final = 50

LINE: Final = "(document.querySelector('#lost')?.textContent ?? '')"
LIVE: Final = "document.querySelector('#live').className === 'live'"
IS_OLD: Final = "getComputedStyle(document.querySelector('main')).filter === 'grayscale(1)'"
STREAMS: Final = (
    "performance.getEntriesByType('resource')"
    ".filter(e => e.name.includes('/events')).map(e => e.startTime)"
)
OF_THEN: Final = re.compile(
    r"The figures below are of \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ: the broker does not answer"
)
SOON: Final = 12.0
"""Seconds; by then a view of which nothing new comes has to say so."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One whose topics have clients, so that they are loaded again after each restart."""
    with BrokerProcess(tmp_path_factory.mktemp("page") / "data") as broker:
        client = pulsar.Client(
            broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        consumer = client.subscribe(
            TOPIC,
            "billing",
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        producer = client.create_producer(TOPIC, batching_enabled=False)
        for number in range(100):
            producer.send(b"%d" % number)
        for number in range(100):
            message = consumer.receive(60_000)
            if number % 2 == 0:
                consumer.acknowledge(message)
        many = client.create_producer(MANY)
        admin = BrokerAdmin(broker.admin_url)
        for number in range(SUBSCRIPTIONS):
            admin.create_subscription(MANY, f"s{number:02}")
        assert many.is_connected()
        yield broker
        client.shutdown()


@pytest.fixture(autouse=True)
def _no_errors_but_those_of_the_network(browser: Chromium, broker: BrokerProcess) -> Iterator[None]:
    """A browser logs each request that fails; of the page itself there may be no error."""
    if not broker.is_running:
        broker.start()
    browser.open("about:blank")
    yield
    errors, browser.errors = browser.errors, []
    assert [each for each in errors if not each.startswith("Failed to load resource: ")] == []


def view_of(broker: BrokerProcess, browser: Chromium, view: str) -> None:
    """Open it, and mark the document, to notice when it is loaded again."""
    browser.open(f"{broker.admin_url}/#/{view}")
    browser.until(READY)
    browser.ask("window.isTheSame = true")


def goes_on(browser: Chromium) -> None:
    """Wait until what the page shows is live again."""
    browser.until(LIVE)
    assert browser.ask(f"[{LINE}, {IS_OLD}, window.isTheSame]") == ["", False, True]


@pytest.mark.parametrize(
    "view",
    [
        "subscriptions",
        f"subscription?topic={TOPIC}&name=billing",
        "storage?topic=orders",
        "broker",
    ],
)
def test_a_view_of_a_killed_broker_says_of_when_it_is_and_goes_on_by_itself(
    broker: BrokerProcess, browser: Chromium, view: str
) -> None:
    view_of(broker, browser, view)
    shown = browser.ask("document.querySelector('main').innerText")
    broker.kill()
    assert OF_THEN.fullmatch(browser.until(LINE, SOON))
    assert browser.ask(IS_OLD)
    assert browser.ask("document.querySelector('#live').textContent") == "not live"
    assert len(browser.ask("document.querySelector('main').innerText")) > len(shown) / 2
    broker.start()
    before = browser.ask(READY)
    browser.until(f"{READY} && {READY} !== {json.dumps(before)}")
    goes_on(browser)


def test_a_message_is_shown_once_its_broker_is_back(
    broker: BrokerProcess, browser: Chromium
) -> None:
    view_of(broker, browser, f"subscription?topic={TOPIC}&name=billing")
    link = browser.until("document.querySelector('.card td a')?.getAttribute('href')")
    broker.kill()
    browser.until(LINE, SOON)
    browser.ask(f"location.hash = {json.dumps(link)}")
    line = browser.until(f"{LINE}.startsWith('Nothing') && {LINE}", SOON)
    assert line == "Nothing to show yet: the broker does not answer"
    broker.start()
    browser.until("document.querySelector('h1')?.textContent.startsWith('Entry ')")
    assert browser.ask(LINE) == ""
    assert re.search(
        r"Where it was at \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", browser.ask("document.body.innerText")
    )


def test_a_broker_that_is_gone_is_asked_ever_more_rarely(
    broker: BrokerProcess, browser: Chromium
) -> None:
    view_of(broker, browser, "subscriptions")
    broker.kill()
    _live, *again = browser.until(f"(s => s.length >= 4 && s)({STREAMS})")
    first, second = (b - a for a, b in pairwise(again))
    assert 1900 < first < 3500
    assert 4900 < second < 7000
    assert len(browser.errors) <= 5


def test_a_frozen_broker_is_no_live_one(broker: BrokerProcess, browser: Chromium) -> None:
    for view in ("subscriptions", "broker"):
        view_of(broker, browser, view)
        browser.until(LIVE)
        before = len(browser.requested)
        broker.pause()
        try:
            assert OF_THEN.fullmatch(browser.until(LINE, SOON))
            assert browser.ask(IS_OLD)
            assert len(browser.requested) <= before + 1
        finally:
            broker.resume()
        goes_on(browser)


def pressed(browser: Chromium) -> None:
    """Skip an entry: the name typed, the button pressed."""
    click(browser, "[aria-label=Actions] button")
    browser.until("document.querySelector('dialog.confirm[open]')")
    browser.ask(
        "document.querySelector('dialog [name=typed]').value = 'billing';"
        "document.querySelector('dialog [name=do]').click()"
    )


def test_an_action_that_is_not_answered_says_so(broker: BrokerProcess, browser: Chromium) -> None:
    view_of(broker, browser, f"subscription?topic={TOPIC}&name=billing")
    broker.pause()
    try:
        pressed(browser)
        browser.until("document.querySelector('dialog [role=status]').textContent")
        assert browser.ask("document.querySelector('dialog [name=do]').disabled")
    finally:
        broker.resume()
    browser.until("document.querySelector('#said').textContent === 'Skip entries: done'")
    broker.kill()
    pressed(browser)
    said = browser.until("document.querySelector('dialog .bad').textContent", SOON)
    assert said == ("the broker does not answer; it may be done or not: look before you repeat it")
    assert not browser.ask("document.querySelector('dialog [name=do]').disabled")


def test_what_is_filtered_focused_and_scrolled_stays(
    broker: BrokerProcess, browser: Chromium
) -> None:
    view_of(broker, browser, "subscriptions?order=subscription&text=many")
    rows = "document.querySelectorAll('#rows .tabulator-row').length"
    browser.until(f"{rows} === {SUBSCRIPTIONS}")
    link = "[...document.querySelectorAll('.named a')].find(a => a.textContent === 's20')"
    browser.ask(f"{link}.focus()")
    browser.ask("scrollTo(0, 700)")
    browser.until("scrollY === 700")
    top = browser.ask(f"{link}.getBoundingClientRect().top")
    broker.kill()
    browser.until(LINE, SOON)
    assert abs(browser.ask(f"{link}.getBoundingClientRect().top") - top) < 2
    broker.start()
    goes_on(browser)
    browser.until(f"{rows} === {SUBSCRIPTIONS}")
    browser.until("document.activeElement.textContent === 's20'")
    assert abs(browser.ask(f"{link}.getBoundingClientRect().top") - top) < 2
    assert browser.ask("document.querySelector('input[type=search]').value") == "many"
    assert "text=many" in browser.ask("location.hash")


def test_a_later_page_waits_for_topics_that_are_not_loaded_yet(
    broker: BrokerProcess, browser: Chromium
) -> None:
    admin = BrokerAdmin(broker.admin_url)
    admin.create_topic(IDLE)
    for number in range(PAGE_ROWS + 3):
        admin.create_subscription(IDLE, f"s{number:02}")
    view_of(broker, browser, "subscriptions?order=subscription&text=idle")
    browser.until(f"document.querySelector('#summary').textContent.includes('of {PAGE_ROWS + 3}')")
    browser.ask("document.querySelector('.pager button:last-child').click()")
    shown = "[...document.querySelectorAll('#rows .named a')].map(a => a.textContent).join()"
    browser.until(f"{shown} === 's50,s51,s52'")
    broker.kill()
    browser.until(LINE, SOON)
    broker.start()
    goes_on(browser)
    browser.until(f"{shown} === ''")
    assert f"offset={PAGE_ROWS}" in browser.ask("location.hash")
    assert "not loaded these topics again yet" in browser.ask("document.body.innerText")
    assert admin.subscriptions(IDLE)
    browser.until(f"{shown} === 's50,s51,s52'")
    assert f"offset={PAGE_ROWS}" in browser.ask("location.hash")
    admin.delete_topic(IDLE)
    browser.until(f"!location.hash.includes('offset=') && {shown} === ''")


def test_a_window_of_a_ledger_stays_as_it_is(broker: BrokerProcess, browser: Chromium) -> None:
    view_of(broker, browser, f"subscription?topic={TOPIC}&name=billing")
    browser.ask(
        "document.querySelector('.strip canvas').dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'}))"
    )
    click(browser, ".window button[title=Closer]")
    shown = "document.querySelector('.window strong')?.textContent"
    browser.until(f"{shown}?.includes('25 to 74 of 100')")
    broker.kill()
    browser.until(LINE, SOON)
    browser.ask("document.querySelector('.window button[title=Later]').focus()")
    browser.ask("document.activeElement.click()")
    said = browser.until("document.querySelector('.card > div > [role=alert]').textContent", SOON)
    assert "the broker does not answer" in said
    assert "25 to 74 of 100" in browser.ask(shown)
    broker.start()
    browser.until(f"{shown}.includes('50 to 99 of 100')")
    goes_on(browser)
    assert browser.ask("document.activeElement.title") == "Later"


def test_a_subscription_that_is_deleted_is_named_and_shown_again_when_it_is_back(
    broker: BrokerProcess, browser: Chromium
) -> None:
    admin = BrokerAdmin(broker.admin_url)
    eventually(lambda: admin.subscriptions(MANY))
    view_of(broker, browser, f"subscription?topic={MANY}&name=s39")
    admin.delete_subscription(MANY, "s39")
    line = browser.until(LINE, SOON)
    assert re.fullmatch(r"The figures below are of \S+ \S+Z: .*not found.*", line, re.IGNORECASE)
    assert browser.ask(IS_OLD)
    admin.create_subscription(MANY, "s39")
    goes_on(browser)
