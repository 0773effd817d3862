"""`ackgate broker --workers 2` as processes, for the tests of workers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ackgate.errors import AckGateError
from ackgate.testing import BrokerAdmin, BrokerProcess

T = TypeVar("T")

PORTS = ("brokerServicePort", "webServicePort", "brokerServicePortTls", "webServicePortTls")


class Workers(BrokerProcess):
    """Two of them, and what their directories say."""

    token: str | None = None
    """What their admin interface is shown."""

    def launch(self) -> None:
        ports = PORTS if "tlsCertificateFilePath" in self.settings else PORTS[:2]
        self.settings |= dict.fromkeys(ports, 0)  # else those of workers are fixed, perhaps taken
        super().launch()

    def record(self, number: int) -> dict[str, Any]:
        """Who holds the directory of a worker; empty: nobody does now."""
        path = self.data_directory / "workers" / str(number) / "lock"
        try:
            return dict(json.loads(path.read_bytes()))
        except (FileNotFoundError, ValueError):
            return {}

    @property
    def pids(self) -> list[int]:
        return [int(self.record(number)["pid"]) for number in (1, 2)]

    def number_of(self, topic: str) -> int:
        """The worker that owns a topic; 0: that is not known now."""
        url = if_answered(lambda: BrokerAdmin(self.admin_url, token=self.token).owner_url(topic))
        return next((n for n in (1, 2) if url and self.record(n).get("pulsar") == url), 0)

    def ended(self, pids: list[int]) -> bool:
        return not any(map(_lives, pids))


def if_answered(ask: Callable[[], T]) -> T | None:
    """None: the worker that would know has just been killed, or gives the topic away."""
    try:
        return ask()
    except AckGateError:
        return None


def _lives(pid: int) -> bool:
    try:
        about = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return about.rpartition(")")[2].split()[0] != "Z"
