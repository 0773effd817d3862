"""The page on trackers tells what happens: its programs and commands are run, one after the other.

``--rewrite`` puts the actual output into the page. Numbers that depend on the day or the machine
(times, bytes) are not compared.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from ackgate.broker.admin.metrics import METRICS
from ackgate.commands.cli import main
from ackgate.config.load import load_settings
from ackgate.testing import BrokerProcess
from tests.broker.admin.scenario import Ask, ask
from tests.broker.target import eventually

PAGE = Path(__file__).parents[2] / "docs" / "trackers.md"
BLOCK = re.compile(r"```(python|console)\n(.*?)```", re.DOTALL)
SERVICE_URL, ADMIN_URL = "pulsar://127.0.0.1:6650", "http://127.0.0.1:8080"
VARYING = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "TIME"),
    (r'"deliverAt":\d+', '"deliverAt":MS'),
    (r"[\d,]+ bytes", "SIZE bytes"),
    (r"[\d.,]+/s", "RATE/s"),
    (r"[\d.,]+ (s|ms|min)\b", "SPAN"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"http://ADDRESS", "URL"),
    (r"version [\d,]+", "version V"),
    (r"[\d,]+ loaded", "N loaded"),
    (r"reading at \d+:\d+", "reading at P"),
    (r" +", " "),
)

SETTINGS = {
    "delayedDeliveryTrackerFactoryClassName": (
        "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"
    ),
    "delayedDeliveryMinIndexCountPerBucket": 50,
    "managedLedgerMaxEntriesPerLedger": 50,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", settings=SETTINGS) as broker:
        yield broker


class Reader:
    """Somebody who does what the page says."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._names: dict[str, object] = {}

    def run(self, kind: str, block: str) -> str:
        """The block as it should read."""
        if kind == "python":
            program = block.replace(SERVICE_URL, self._broker.service_url)
            exec(compile(program, str(PAGE), "exec"), self._names)
            return block
        lines = []
        for line in block.splitlines():
            if line.startswith("$ "):
                self._settle()
                lines += [line, *self._command(line[2:])]
        return "".join(f"{line}\n" for line in lines)

    def _command(self, command: str) -> list[str]:
        name, *words = shlex.split(command)
        if name == "curl":
            return self._curl(words)
        assert name == "ackgate"
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = main([*words, "--url", self._broker.admin_url])
        assert code in {0, 1}, command
        return out.getvalue().replace(self._broker.admin_url, ADMIN_URL).splitlines()

    def _curl(self, words: list[str]) -> list[str]:
        assert ("-d" in words) == ("Content-Type: application/json" in words)
        url = next(word for word in words if word.startswith("http"))
        asked = Ask(
            words[words.index("-X") + 1] if "-X" in words else "GET",
            url.removeprefix(ADMIN_URL),
            json.loads(words[words.index("-d") + 1]) if "-d" in words else None,
        )
        return ask(self._broker.admin_url, asked).text.splitlines()

    def _settle(self) -> None:
        """People type slowly; a cleared index is built and a bucket stored by then."""
        if "producer" in self._names:
            path = "/admin/v2/persistent/public/default/orders/delayed"
            eventually(
                lambda: is_settled(ask(self._broker.admin_url, Ask("GET", path)).value), seconds=20
            )

    def leave(self) -> None:
        client = self._names.get("client")
        if client is not None:
            client.close()  # type: ignore[attr-defined]


def is_settled(told: dict) -> bool:
    billing = told["subscriptions"]["billing"]
    return bool(
        billing["delayedEntries"] + told["cancelled"] == 120
        and not billing["buckets"]["bucketsStoring"]
    )


def compared(text: str) -> str:
    for pattern, word in VARYING:
        text = re.sub(pattern, word, text)
    return text


@pytest.mark.slow
def test_programs_and_commands_do_what_the_page_says(
    broker: BrokerProcess, request: pytest.FixtureRequest
) -> None:
    page = PAGE.read_text()
    reader = Reader(broker)
    try:
        actual = BLOCK.sub(
            lambda found: f"```{found[1]}\n{reader.run(found[1], found[2])}```", page
        )
    finally:
        reader.leave()
    if request.config.getoption("--rewrite"):
        PAGE.write_text(actual)
    assert compared(page) == compared(actual)


def test_settings_of_the_table_exist() -> None:
    table = PAGE.read_text().partition("## Settings")[2].partition("## Looking")[0]
    named = set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))
    assert len(named) >= 10
    assert sorted(named - set(load_settings(None, (), {}).settings.texts())) == []


def test_metrics_of_the_table_are_exposed() -> None:
    table = PAGE.read_text().partition("## Looking")[2].partition("## Policies")[0]
    named = set(re.findall(r"`((?:ackgate|pulsar)_\w+)`", table))
    assert len(named) >= 10
    assert [name for name in sorted(named) if name not in METRICS] == []


def test_figures_are_left_to_those_who_measure() -> None:
    """A figure without its command would be a claim."""
    table = PAGE.read_text().partition("## Figures")[2]
    rows = [row for row in table.splitlines() if row.startswith("| ")][2:]
    assert rows
    assert all("`bench/" in row for row in rows)


def test_pictures_are_those_that_the_script_draws(tmp_path: Path) -> None:
    pages = PAGE.read_text() + (PAGE.parent / "timing.md").read_text()
    named = re.findall(r"\]\(pictures/(\w+\.svg)\)", pages)
    script = PAGE.parents[1] / "scripts" / "draw_trackers.py"
    subprocess.run([sys.executable, script, tmp_path], check=True)
    assert sorted(named) == sorted(path.name for path in tmp_path.iterdir())
    for name in named:
        drawn = (tmp_path / name).read_text()
        assert drawn == (PAGE.parent / "pictures" / name).read_text(), name
        ET.fromstring(drawn)
