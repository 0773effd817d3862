"""What the pages on operation and durability name exists: metrics, errors, settings, commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from ackgate import errors
from ackgate.broker.admin.metrics import METRICS
from ackgate.commands import cli
from ackgate.config.load import load_settings
from ackgate.config.unused_keys import SECURITY_KEYS

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("operations.md", "durability.md", "deploying.md")


def page(name: str) -> str:
    return (DOCS / name).read_text()


def commands() -> list[str]:
    """Every ``ackgate`` command line of the pages, continued lines joined, without its comment."""
    blocks = re.findall(r"```sh\n(.*?)```", "".join(map(page, PAGES)), re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line.split(" #")[0].strip() for line in lines if line.startswith("ackgate ")]


def test_metrics_that_are_to_be_watched_are_exposed() -> None:
    named = set(re.findall(r"`((?:ackgate|pulsar)_\w+)`", page("operations.md")))
    assert named
    assert [name for name in sorted(named) if name not in METRICS] == []


def test_errors_that_are_explained_are_raised() -> None:
    named = set(re.findall(r"`(\w+Error)`", "".join(map(page, PAGES))))
    assert len(named) > 10
    assert [name for name in sorted(named) if not hasattr(errors, name)] == []


KEYS_OF_BOOKIES = {
    "autoRecoveryDaemonEnabled",
    "diskUsageThreshold",
    "gcWaitTime",
    "journalFlushWhenQueueEmpty",
    "journalSyncData",
    "journalWriteData",
    "nettyMaxFrameSizeBytes",
}
"""In BookKeeper's bk_server.conf, not in a broker's."""


def test_settings_that_are_named_exist() -> None:
    text = re.sub(r"```.*?```", "", "".join(map(page, PAGES)), flags=re.DOTALL)
    named = set(re.findall(r"`([a-z]+[A-Z]\w+)(?:=[\w.:]+)?`", text))
    named |= set(re.findall(r"--set ([A-Za-z]+)=", "".join(map(page, PAGES))))
    known = set(load_settings(None, (), {}).settings.texts())
    known |= {"managedLedgerPassword", "metadataStoreDigest"}  # secrets are never told
    known |= SECURITY_KEYS | KEYS_OF_BOOKIES  # of Pulsar alone
    assert len(named) > 10
    assert sorted(named - known) == []


@pytest.mark.parametrize("command", commands())
def test_commands_are_understood(command: str) -> None:
    cli.command_parser().parse_args(shlex.split(command)[1:])
