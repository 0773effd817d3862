"""``ackgate pulsar topics|stats|cursors|ledgers``: a Pulsar cluster from its ZooKeeper and bookies.

Edge: prints. Lists are printed as they are found, a line each (with ``--json`` an object a line), so that
a million topics take no memory; progress goes to standard error where that is a terminal. Exit codes: 0;
1 when something of it could not be read, which standard error names; 2 when nothing could be shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.stats import CELLS_MAX
from ackgate.commands.pulsar_view import (
    LEDGER_HEAD,
    LEDGERS_HEAD,
    cursor_json,
    cursor_line,
    ledger_json,
    ledger_line,
    orphans_line,
    render_topic,
    report_json,
    topic_json,
    topic_ledger_json,
    topic_ledger_rows,
    topic_ledgers_title,
    topic_line,
)
from ackgate.commands.stats.look import Look
from ackgate.commands.terminal.tables import printable, table
from ackgate.config.load import gather, load_settings
from ackgate.errors import (
    AckGateError,
    CallerError,
    ConfigurationError,
    CorruptRecordError,
    MetadataStoreError,
    NoSuchNodeError,
    SessionLostError,
    StorageError,
)
from ackgate.persistence.offline_storage import quiet_logs
from ackgate.pulsar import (
    AckForm,
    BrokerKeys,
    PulsarCluster,
    PulsarPolicy,
    PulsarTopic,
    live_keys,
    live_topic,
    report_topic,
    topic_ledgers,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator
    from pathlib import Path

    from ackgate.pulsar import PersistCaps, PulsarPolicies

_TOPICS_AT_ONCE: Final = 64
_CURSORS_AT_ONCE: Final = 8
_PROGRESS_SECONDS: Final = 0.5
_UNREADABLE: Final = (CorruptRecordError, StorageError)
TIMEOUT_SECONDS_MAX: Final = 86_400.0


def run_pulsar(arguments: argparse.Namespace) -> int:
    """Run one action, print, and return the exit code."""
    output = _Output(arguments)
    try:
        with quiet_logs():
            asyncio.run(_run(arguments, output))
    except AckGateError as error:
        output.failed(None, error)
    return output.end()


async def _run(arguments: argparse.Namespace, output: _Output) -> None:
    _check_times(arguments)
    async with await PulsarCluster.connect_with(
        load_settings(arguments.config, is_serving=False).settings.persistence,
        arguments.metadata,
        bookkeeper=arguments.bookkeeper,
        timeout_seconds=arguments.timeout,
    ) as cluster:
        match arguments.action:
            case "topics":
                await _topics(cluster, arguments, output)
            case "cursors":
                await _cursors(cluster, arguments, output)
            case "ledgers" if arguments.orphans or arguments.topic is None:
                await _all_ledgers(cluster, arguments, output)
            case "ledgers":
                await _ledgers(cluster, arguments, output)
            case _:
                await _stats(cluster, arguments, output)


def _check_times(arguments: argparse.Namespace) -> None:
    """Raise `ConfigurationError` for times that cannot be meant."""
    if not 0 < arguments.timeout <= TIMEOUT_SECONDS_MAX:
        raise ConfigurationError(
            f"--timeout {arguments.timeout:g}: more than 0, at most {TIMEOUT_SECONDS_MAX:.0f} s"
        )
    if arguments.action == "ledgers" and not 0 <= arguments.older_than < math.inf:
        raise ConfigurationError(f"--older-than {arguments.older_than:g}: from 0 s, and finite")


class _Output:
    """Prints lines to standard output, and progress and failures to standard error."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.is_json: bool = arguments.json
        self._shows_progress = sys.stderr.isatty()
        self._shown_at = time.monotonic()
        self._shown = 0
        self._is_on_line = False
        self._failures = 0
        self._has_output = False

    def line(self, text: str, value: dict[str, Any]) -> None:
        """Print one item: the text for people, or the value as JSON."""
        self.text(json.dumps(value) if self.is_json else printable(text))

    def text(self, text: str) -> None:
        self._has_output = True
        self._clear()
        print(text)  # noqa: T201

    def failed(self, what: str | None, error: AckGateError | str) -> None:
        """Report that `what` could not be read, and go on.

        Raises the error instead if the metadata store itself failed.
        """
        if what is not None and isinstance(error, MetadataStoreError | SessionLostError):
            raise error
        self._failures += 1
        self._clear()
        text = str(error) if what is None else f"{what}: {error}"
        print(f"ackgate: {printable(text)}", file=sys.stderr)  # noqa: T201

    def seen(self, count: int, noun: str) -> None:
        """Count so many more items as looked at, and show the progress now and then."""
        self._shown += count
        now = time.monotonic()
        if self._shows_progress and now - self._shown_at > _PROGRESS_SECONDS:
            self._shown_at = now
            self._is_on_line = True
            print(f"\r{self._shown:,} {noun}", end="", file=sys.stderr, flush=True)  # noqa: T201

    def _clear(self) -> None:
        if self._is_on_line:
            self._is_on_line = False
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)  # noqa: T201

    def end(self) -> int:
        """Clear the progress. Returns the exit code."""
        self._clear()
        if not self._failures:
            return 0
        return 1 if self._has_output else 2


async def _chosen(
    cluster: PulsarCluster, arguments: argparse.Namespace
) -> AsyncIterator[PulsarTopic]:
    if arguments.topic is not None:
        for topic in await cluster.partitions(arguments.topic):
            yield topic
        return
    async for topic in cluster.topics(arguments.namespace):
        yield topic


async def _groups(
    topics: AsyncIterator[PulsarTopic], size: int
) -> AsyncIterator[list[PulsarTopic]]:
    group: list[PulsarTopic] = []
    async for topic in topics:
        group.append(topic)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


# ------------------------------------------------------------------------------------------- the actions


async def _topics(cluster: PulsarCluster, arguments: argparse.Namespace, output: _Output) -> None:
    async for group in _groups(cluster.topics(arguments.namespace), _TOPICS_AT_ONCE):
        nodes = asyncio.gather(*map(cluster.node, group), return_exceptions=True)
        cursors = asyncio.gather(*map(cluster.subscriptions, group), return_exceptions=True)
        for topic, node, names in zip(group, await nodes, await cursors, strict=True):
            if isinstance(node, NoSuchNodeError):
                continue  # deleted meanwhile
            if isinstance(node, AckGateError):
                output.failed(str(topic), node)
            elif isinstance(names, AckGateError):
                output.failed(str(topic), names)
            elif isinstance(node, BaseException):
                raise node
            elif isinstance(names, BaseException):
                raise names
            else:
                output.line(topic_line(topic, node, names), topic_json(topic, node, names))
        output.seen(len(group), "topics")


async def _cursors(cluster: PulsarCluster, arguments: argparse.Namespace, output: _Output) -> None:
    caps = _caps(arguments, await _broker_keys(cluster, arguments))
    wanted = None if arguments.subscription is None else [arguments.subscription]
    is_found = arguments.topic is not None or wanted is None
    async for group in _groups(_chosen(cluster, arguments), _CURSORS_AT_ONCE):
        reports = await asyncio.gather(
            *(report_topic(cluster, topic, subscriptions=wanted, caps=caps) for topic in group),
            return_exceptions=True,
        )
        for topic, report in zip(group, reports, strict=True):
            if isinstance(report, NoSuchNodeError):
                continue  # deleted meanwhile
            if isinstance(report, AckGateError):
                output.failed(str(topic), report)
                continue
            if isinstance(report, BaseException):
                raise report
            for each in report.subscriptions:
                is_found = True
                output.line(cursor_line(each), cursor_json(each))
                for trouble in each.troubles:
                    output.failed(f"{topic} {each.cursor.subscription}", trouble)
            for name, error in report.failures.items():
                is_elsewhere = wanted is not None and isinstance(error, CallerError)
                if arguments.topic is not None or not is_elsewhere:
                    output.failed(f"{topic} {name}", error)
        output.seen(len(group), "topics")
    if not is_found:
        output.failed(None, f"there is no subscription {arguments.subscription!r}")


async def _stats(cluster: PulsarCluster, arguments: argparse.Namespace, output: _Output) -> None:
    keys = await _broker_keys(cluster, arguments)
    caps = _caps(arguments, keys)
    look = Look.of_terminal()
    cells = min(look.cells, CELLS_MAX)
    wanted = None if arguments.subscription is None else [arguments.subscription]
    answers: list[dict[str, Any]] = []
    has_shown = False
    for topic in await cluster.partitions(arguments.topic):
        policies = await _policies(cluster, topic, keys, output)
        try:
            report = await report_topic(
                cluster, topic, subscriptions=wanted, caps=caps, policies=policies
            )
        except _UNREADABLE as error:
            output.failed(str(topic), error)
            continue
        if arguments.admin is not None:
            # The disk is read first, so that memory is never behind it.
            live = await asyncio.to_thread(
                live_topic,
                arguments.admin,
                str(topic),
                token=_token(arguments.token_file),
                timeout_seconds=arguments.timeout,
            )
            report = report.beside(live)
        for name, failure in report.failures.items():
            output.failed(f"{topic} {name}", failure)
        for each in report.subscriptions:
            for trouble in each.troubles:
                output.failed(f"{topic} {each.cursor.subscription}", trouble)
        if output.is_json:
            answers.append(report_json(report, cells))
        elif report.subscriptions or not report.failures:
            text = render_topic(report, cluster.url, look)
            output.text(f"\n{text}" if has_shown else text)
            has_shown = True
    if answers:
        output.text(json.dumps({"metadata": cluster.url, "topics": answers}, indent=2))


def _token(path: Path | None) -> str | None:
    try:
        return None if path is None else path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--token-file {path}: {error}") from None


async def _ledgers(cluster: PulsarCluster, arguments: argparse.Namespace, output: _Output) -> None:
    keys = await _broker_keys(cluster, arguments)
    for topic in await cluster.partitions(arguments.topic):
        policies = await _policies(cluster, topic, keys, output)
        failures: dict[str, AckGateError] = {}
        try:
            rows = await topic_ledgers(cluster, topic, policies, failed=failures.__setitem__)
        except _UNREADABLE as error:
            output.failed(str(topic), error)
            continue
        if output.is_json:
            for row in rows:
                output.line("", topic_ledger_json(topic, row))
        else:
            output.text(topic_ledgers_title(topic, rows, policies))
            lines = table(LEDGER_HEAD, topic_ledger_rows(rows), right="ledger entries size")
            output.text("\n".join(map(printable, lines or ["no ledgers"])))
        for name, failure in failures.items():
            output.failed(f"{topic} {name}", failure)
        for row in rows:
            if row.is_missing:
                output.failed(str(topic), f"ledger {row.ledger_id} is named and does not exist")


async def _all_ledgers(
    cluster: PulsarCluster, arguments: argparse.Namespace, output: _Output
) -> None:
    wanted = None if arguments.topic is None else set(await cluster.partitions(arguments.topic))
    age_ms = round(arguments.older_than * 1000) if arguments.orphans else None
    looked = found = size = 0
    async for view in cluster.ledgers(orphans_after_ms=age_ms, failed=output.failed):
        looked += 1
        output.seen(1, "ledgers")
        if arguments.orphans and not view.is_orphan:
            continue
        if wanted is not None and view.owner.topic not in wanted:
            continue
        if not found and not output.is_json:
            output.text(LEDGERS_HEAD)
        found += 1
        size += max(0, view.metadata.length_bytes)
        output.line(ledger_line(view), ledger_json(view))
    if arguments.orphans and not output.is_json:
        output.text(orphans_line(found, size, looked, arguments.older_than))


# ---------------------------------------------------------------------------------- what brokers say


async def _broker_keys(cluster: PulsarCluster, arguments: argparse.Namespace) -> BrokerKeys:
    """The brokers' configuration: from the file, from ZooKeeper, from a live broker if named.

    The later one wins.
    """
    given = gather(arguments.config).given
    keys = BrokerKeys({key: PulsarPolicy(each.text, each.origin) for key, each in given.items()})
    keys = await cluster.broker_keys(keys)
    if getattr(arguments, "admin", None) is None:
        return keys
    with contextlib.suppress(CallerError):  # a broker answers superusers only
        texts, version = await asyncio.to_thread(
            live_keys,
            arguments.admin,
            token=_token(arguments.token_file),
            timeout_seconds=arguments.timeout,
        )
        keys = keys.updated(texts, "broker", version)
    return keys


def _caps(arguments: argparse.Namespace, keys: BrokerKeys) -> PersistCaps:
    caps = keys.caps
    if arguments.ranges_max is not None:
        caps = replace(caps, ranges_max=arguments.ranges_max, origin="--ranges-max")
    if arguments.batch_indexes_max is not None:
        caps = replace(caps, batch_indexes_max=arguments.batch_indexes_max)
    if arguments.ack_form is not None:
        caps = replace(caps, form=AckForm(arguments.ack_form))
    return caps


async def _policies(
    cluster: PulsarCluster, topic: PulsarTopic, keys: BrokerKeys, output: _Output
) -> PulsarPolicies | None:
    """The topic's policies, or None if they cannot be read, which is reported on standard error."""
    try:
        return await cluster.policies(topic, keys)
    except AckGateError as error:
        output.failed(f"{topic}: its policies", error)
        return None
