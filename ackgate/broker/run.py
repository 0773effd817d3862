"""``ackgate broker``: one broker in the foreground, until SIGTERM or SIGINT.

Standard output carries exactly one line, when the broker listens; everything else is a log line on
standard error.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ackgate.config.load import load_settings
from ackgate.errors import AckGateError
from ackgate.network import LogDamper, and_left_out
from ackgate.persistence.system.platform_files import require_supported_platform

if TYPE_CHECKING:
    import argparse

    from ackgate.broker.server import BrokerServer
    from ackgate.broker.workers import WorkerPart
    from ackgate.config.load import LoadedSettings
    from ackgate.config.settings import Settings
    from ackgate.config.unused_keys import UnusedKey

log = logging.getLogger(__name__)

SWITCH_SECONDS: Final = 0.0005
"""How long a disk's thread may keep the interpreter from the event loop. During a checkpoint the
loop gets its turn ten times as often as with Python's 5 ms, at the same cost."""

START_FAILED: Final = 1
"""Exit code of a worker that has reported why it did not start."""

STOP_CUT_SHORT: Final = 1
"""Exit code of a stop that did not end in time; the next start recovers what was left."""


class KeyValueFormatter(logging.Formatter):
    """Formats a record as ``key=value`` pairs, for people and for machines: one line an event.

    ``time=2026-11-21T05:27:11.582Z level=INFO logger=ackgate.broker.server message="..."``

    One of several workers has its number after the level.

    A message is quoted as JSON, so a line break in a client's name stays inside its line. Stack
    traces follow on lines of their own. Payloads are never logged.
    """

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._worker = f"worker={worker} " if worker is not None else ""

    def format(self, record: logging.LogRecord) -> str:
        """The line, followed by the stack trace if there is one."""
        line = (
            f"time={_time_of(record)} level={record.levelname} {self._worker}"
            f"logger={record.name} message={json.dumps(record.getMessage(), ensure_ascii=False)}"
        )
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object on one line; a stack trace is in `exception`."""

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._worker = {"worker": worker} if worker is not None else {}

    def format(self, record: logging.LogRecord) -> str:
        """The object as text, without a line break."""
        fields = {
            "time": _time_of(record),
            "level": record.levelname,
            **self._worker,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


class SpanLogFilter(logging.Filter):
    """Limits OpenTelemetry's lines: one a minute for each place in its code, no stack traces.

    While a collector does not answer, the exporter logs every attempt, and the SDK a stack trace of
    each.
    """

    def __init__(self) -> None:
        super().__init__()
        self._damper = LogDamper(at_once=1, seconds_per_line=60.0)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write the record.

        Appends the error to the message, in place of the stack trace.
        """
        if not record.name.startswith("opentelemetry."):
            return True
        left_out = self._damper.admit((record.pathname, record.lineno), record.created)
        if left_out is None:
            return False
        error = record.exc_info[1] if record.exc_info else None
        reason = "" if error is None else f": {error!r}"
        text = f"{record.getMessage()}{reason}"[:SPAN_LINE_CHARACTERS_MAX]
        record.msg, record.args = f"{text}{and_left_out(left_out)}", ()
        record.exc_info = record.exc_text = None
        return True


SPAN_LINE_CHARACTERS_MAX: Final = 400
"""Longest line of OpenTelemetry's: an exporter's error contains all the errors that caused it."""


def _time_of(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def run_broker(arguments: argparse.Namespace) -> int:
    """Run until a signal stops it. Raises `AckGateError` when the broker cannot start."""
    require_supported_platform()
    part = _worker_part(arguments.worker)
    overrides = _overrides(arguments)
    loaded = load_settings(arguments.config, overrides)
    settings = loaded.settings
    _log_to_standard_error(settings, arguments.worker)
    if part is None:
        _warn_of(loaded, arguments.config)
    data_directory = Path(settings.broker.data_directory or "data")
    if settings.broker.broker_workers > 1:
        from ackgate.broker.workers import supervise, worker_command  # noqa: PLC0415 - seldom

        running = supervise(settings, data_directory, worker_command(arguments.config, overrides))
    else:
        running = _serve(settings, data_directory, loaded.unused, part)
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return asyncio.run(running)
    return uvloop.run(running)


def _worker_part(number: int | None) -> WorkerPart | None:
    """What the supervisor shares with worker `number`. None if this process is no worker."""
    if number is None:
        return None
    from ackgate.broker.workers import WorkerPart  # noqa: PLC0415 - seldom

    part = WorkerPart.read(number)
    part.end_with_supervisor()
    return part


def _log_to_standard_error(settings: Settings, worker: int | None) -> None:
    handler = logging.StreamHandler(sys.stderr)
    is_json = settings.broker.log_format == "json"
    handler.setFormatter(JsonFormatter(worker) if is_json else KeyValueFormatter(worker))
    handler.addFilter(SpanLogFilter())
    logging.basicConfig(level=settings.broker.log_level, handlers=[handler])


def _warn_of(loaded: LoadedSettings, config: Path | None) -> None:
    if loaded.unused:
        log.warning("%s", _unused_line(loaded.unused, config))
    if loaded.of_directories:
        log.warning(
            "without effect on a BookKeeper cluster, whose bookies have settings of their own: %s",
            ", ".join(loaded.of_directories),
        )


def _unused_line(unused: tuple[UnusedKey, ...], config: Path | None) -> str:
    unknown = sum(not each.is_known for each in unused)
    changed = sum(each.is_known and not each.is_at_default for each in unused)
    command = f"ackgate config check{f' {config}' if config else ''}"
    return (
        f"{len(unused)} keys of the configuration have no effect here: {changed} that are not at "
        f"Pulsar's default, {unknown} that Pulsar does not know; `{command}` lists them"
    )


def _overrides(arguments: argparse.Namespace) -> list[str]:
    named = {
        "dataDirectory": arguments.data_dir,
        "brokerServicePort": arguments.port,
        "webServicePort": arguments.http_port,
        "bindAddress": arguments.bind,
        "brokerWorkers": arguments.workers,
    }
    given = [f"{key}={value}" for key, value in named.items() if value is not None]
    return [*arguments.overrides, *given]


async def _serve(
    settings: Settings,
    data_directory: Path,
    unused: tuple[UnusedKey, ...],
    part: WorkerPart | None,
) -> int:
    from ackgate.broker.collector import Collector  # noqa: PLC0415 - with what follows
    from ackgate.broker.server import BrokerServer  # noqa: PLC0415 - after the settings are right

    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_requested.set)
    log.info(
        "starting on %s with %s",
        data_directory,
        settings.persistence.metadata_store_url or "its own metadata store",
    )
    starting = asyncio.ensure_future(
        BrokerServer.start(
            settings,
            data_directory,
            shared_ports=part.ports if part else None,
            worker=part.number if part else None,
        )
    )
    try:
        broker = await _unless_stop_requested(starting, stop_requested)
    except AckGateError as error:
        if part is None:
            raise
        part.failed(error)  # the supervisor reports it
        return START_FAILED
    if broker is None:
        log.info("stopped before it served")
        return 0
    if part is None and (data_directory / "workers").exists():
        from ackgate.broker.workers import clear_directories  # noqa: PLC0415 - seldom

        clear_directories(data_directory)  # left by workers that were killed
    broker.settings_without_effect = {each.key: each.given.origin for each in unused}
    sys.setswitchinterval(SWITCH_SECONDS)
    collecting = Collector().begin()
    addresses = (broker.service.plain, broker.web.plain, broker.service.tls, broker.web.tls)
    print("ackgate ready", *filter(None, addresses), flush=True)  # noqa: T201
    ownership = broker.ownership
    ownership.on_displaced = stop_requested.set
    if ownership.displaced is None:
        await stop_requested.wait()
    log.info("stopping")
    # The process ends: a garbage collection would take a quarter of the time, and free nothing.
    collecting.cancel()
    gc.freeze()
    gc.disable()
    is_whole = await broker.stop()
    if settings.broker.open_telemetry_traces_enabled:
        from ackgate.broker.topic import send_last_spans  # noqa: PLC0415 - an extra

        send_last_spans()
    log.info("stopped")
    if not is_whole:
        # A normal exit would wait for threads of a disk that does not answer.
        logging.shutdown()
        os._exit(STOP_CUT_SHORT)
    if ownership.displaced is not None:
        raise ownership.displaced
    return 0


async def _unless_stop_requested(
    starting: asyncio.Future[BrokerServer], stop_requested: asyncio.Event
) -> BrokerServer | None:
    """Wait until the broker has started. None if a stop was requested first.

    A metadata store that does not answer may delay a start for a long time.
    """
    stopping = asyncio.ensure_future(stop_requested.wait())
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            return starting.result()
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await starting).stop()  # it became ready in this very moment
        return None
    finally:
        stopping.cancel()
