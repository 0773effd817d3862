"""Takes the pictures of docs/page.md: ``python -m scripts.picture_page docs/pictures``.

A broker with some subscriptions in trouble, real clients, and a real Chromium without a window. It takes two
minutes, since trends need a while.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pulsar

from ackgate.testing import BrokerAdmin, BrokerProcess
from tests.support.chromium import READY, Chromium

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ORDERS: Final = "persistent://shop/sales/orders"
RANGES_MAX: Final = 200
SETTINGS: Final = {
    "dispatcherPauseOnAckStatePersistentEnabled": "true",
    "managedLedgerMaxUnackedRangesToPersist": RANGES_MAX,
}
ORDERS_SENT: Final = 1_080
SHIPPED: Final = 330
"""How many orders the consumer of shipping has; it acks every second one."""

ACK_SECONDS: Final = 0.5
PHONE_PIXELS: Final = 500


class Shop:
    """Topics and subscriptions, each in another state."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._client = pulsar.Client(
            broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        admin = BrokerAdmin(broker.admin_url)
        admin.create_tenant("shop")
        for namespace in ("sales", "mail", "books"):
            admin.create_namespace(f"shop/{namespace}")
        self._admin = admin
        self._open: list[object] = []

    def fill(self) -> None:
        """Fill the topics. Takes about a minute."""
        self._orders()
        self._others()
        self._ship()

    def close(self) -> None:
        """Disconnect all clients."""
        self._client.close()

    def _subscribe(
        self, topic: str, subscription: str, name: str, queue: int = 1_000, **more: object
    ) -> pulsar.Consumer:
        consumer = self._client.subscribe(
            topic,
            subscription,
            consumer_type=pulsar.ConsumerType.Shared,
            consumer_name=name,
            receiver_queue_size=queue,
            **more,
        )
        self._open.append(consumer)
        return consumer

    def _send(self, topic: str, count: int, **more: object) -> None:
        producer = self._client.create_producer(topic, batching_enabled=False)
        self._open.append(producer)
        for number in range(count):
            producer.send_async(b"%d" % number, None, **more)
        producer.flush()

    def _orders(self) -> None:
        """Three consumers that leave holes: the gate of billing shuts."""
        billing = [
            self._subscribe(ORDERS, "billing", name, queue=ORDERS_SENT // 3)
            for name in ("alice", "bob", "carol")
        ]
        self._dock = self._subscribe(ORDERS, "shipping", "dock", queue=SHIPPED)
        self._send(ORDERS, ORDERS_SENT)
        received = [list(_whatever_comes(consumer)) for consumer in billing]
        for place, (consumer, messages) in enumerate(zip(billing, received, strict=True)):
            for number, message in enumerate(messages):
                if number % 2 if place else number % 10:
                    consumer.acknowledge(message)

    def _others(self) -> None:
        self._admin.create_topic("persistent://shop/books/late")
        self._admin.create_subscription("persistent://shop/books/late", "abandoned")
        self._send("persistent://shop/books/late", 20)
        mailer = self._subscribe("persistent://shop/mail/reminders", "mailer", "post")
        for hours in range(6):
            self._send(
                "persistent://shop/mail/reminders", 40, deliver_after=timedelta(hours=1 + hours)
            )
        self._send("persistent://shop/mail/reminders", 12)
        for number, message in enumerate(_received(mailer, 12)):
            if number != 5:
                mailer.acknowledge(message)
        archive = self._subscribe("persistent://shop/books/invoices", "archive", "shelf")
        self._send("persistent://shop/books/invoices", 50)
        for message in _received(archive, 50):
            archive.acknowledge(message)

    def _ship(self) -> None:
        """Ack at a steady rate, so that there is a trend."""
        for number, message in enumerate(_received(self._dock, SHIPPED)):
            if number % 2:
                self._dock.acknowledge(message)
                time.sleep(ACK_SECONDS)


def _received(consumer: pulsar.Consumer, count: int) -> Sequence[pulsar.Message]:
    return [consumer.receive(60_000) for _ in range(count)]


def _whatever_comes(consumer: pulsar.Consumer) -> Iterator[pulsar.Message]:
    with contextlib.suppress(pulsar.Timeout):
        while True:
            yield consumer.receive(2_000)


class Camera:
    """The browser, and where its pictures go."""

    def __init__(self, browser: Chromium, url: str, directory: Path) -> None:
        self._browser = browser
        self._url = url
        self._directory = directory

    def take(self, name: str, view: str, scheme: str, size: tuple[int, int]) -> None:
        """`scheme`: light or dark. A phone is narrower than 500 pixels."""
        self._browser.size(*size, is_phone=size[0] < PHONE_PIXELS)
        self._browser.prefer(scheme)
        self._open(view)
        self._browser.picture(self._directory / f"page-{name}.png")

    def first_ledger(self, view: str) -> str:
        """The first ledger of a subscription that has holes."""
        self._open(view)
        return str(self._browser.until("document.querySelector('.strip')?.dataset.ledger"))

    def _open(self, view: str) -> None:
        self._browser.open("about:blank")
        self._browser.open(f"{self._url}/#/{view}")
        self._browser.until(f"{READY} && document.querySelector('#live').className === 'live'")
        if "ledger=" in view:
            self._browser.until("document.querySelector('.window canvas')")


def main(directory: Path) -> None:
    """Write the pictures into the directory."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        BrokerProcess(Path(scratch, "data"), settings=SETTINGS) as broker,
        Chromium(Path(scratch, "profile")) as browser,
    ):
        shop = Shop(broker)
        shop.fill()
        camera = Camera(browser, broker.admin_url, directory)
        billing = f"subscription?topic={ORDERS}&name=billing"
        ledger = camera.first_ledger(billing)
        camera.take("overview", "", "light", (1280, 760))
        window = f"{billing}&ledger={ledger}&from=0&to=160"
        camera.take("subscription", window, "dark", (1280, 1000))
        camera.take("phone", "", "light", (390, 844))
        shop.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
