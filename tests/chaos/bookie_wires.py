"""The wires between brokers and real bookies: a proxy for each pair, which a fault may cut.

Edge: proxies, and Python's `sitecustomize`. Bookies register one address for everybody; so a broker's client
is led to its own proxies where it resolves a bookie's address, by a patch that Python runs before the
broker. Everything else of the broker is as it is::

    broker 0 --> proxy --> bookie 0        broker 1 --> proxy --> bookie 0
             `-> proxy --> bookie 1                 `-> proxy --> bookie 1
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Self

from ackgate.testing.proxy import ProxyMode, TcpProxy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ackgate.testing import BrokerProcess
    from tests.support.bookkeeper.cluster import Bookie

_PATCH: Final = """
import json
import sys
from pathlib import Path

from ackgate.persistence.bookkeeper.cluster import BookKeeperCluster

WIRES = json.loads(Path(__file__).with_name("wires.json").read_text())
straight = BookKeeperCluster.address


async def address(self, bookie_id):
    found = await straight(self, bookie_id)
    own = next((each for each in WIRES if each in sys.argv), None)
    return found if own is None else found._replace(port=WIRES[own][str(found.port)])


BookKeeperCluster.address = address
"""


class BookieWires:
    """See the module. Brokers that are started inside the `with` are led."""

    def __init__(
        self, directory: Path, brokers: Sequence[BrokerProcess], bookies: Sequence[Bookie]
    ) -> None:
        self._directory = directory
        self._brokers = brokers
        self._bookies = bookies
        self._proxies = [
            [TcpProxy(("127.0.0.1", bookie.port)) for bookie in bookies] for _ in brokers
        ]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for proxies in self._proxies:
                for proxy in proxies:
                    stack.enter_context(proxy)
            self._directory.mkdir()
            (self._directory / "sitecustomize.py").write_text(_PATCH)
            wires = {
                str(broker.data_directory): {
                    bookie.port: proxy.port
                    for bookie, proxy in zip(self._bookies, proxies, strict=True)
                }
                for broker, proxies in zip(self._brokers, self._proxies, strict=True)
            }
            (self._directory / "wires.json").write_text(json.dumps(wires))
            before = os.environ.get("PYTHONPATH")
            stack.callback(_set_python_path, before)
            _set_python_path(os.pathsep.join(filter(None, (str(self._directory), before))))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def switch(self, broker: int, mode: ProxyMode, *, bookie: int | None = None) -> None:
        """Trouble between a broker and one bookie, or (None) all of them."""
        for number, proxy in enumerate(self._proxies[broker]):
            if bookie in (None, number):
                proxy.switch(mode)

    def heal(self, broker: int) -> None:
        self.switch(broker, ProxyMode.PASS)

    def used(self, broker: int) -> bool:
        """Whether the broker has sent anything to a bookie by its proxies."""
        return any(proxy.counts.bytes_to_target for proxy in self._proxies[broker])


def _set_python_path(value: str | None) -> None:
    if value is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = value
