"""``ackgate broker``: one broker in the foreground, until SIGTERM or SIGINT.

Standard output carries exactly one line, when the broker listens; everything else is a log line on
standard error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ackgate.broker.log_format import KeyValueFormatter
from ackgate.config.load import load_settings

if TYPE_CHECKING:
    import argparse

    from ackgate.broker.server import BrokerServer
    from ackgate.config.settings import Settings

log = logging.getLogger(__name__)


def run_broker(arguments: argparse.Namespace) -> int:
    """Run until told to stop. Raises `AckGateError` when the broker cannot start."""
    loaded = load_settings(arguments.config, _overrides(arguments))
    settings = loaded.settings
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValueFormatter())
    logging.basicConfig(level=settings.broker.log_level, handlers=[handler])
    if loaded.unused_keys:
        log.debug("keys that are not used: %s", ", ".join(loaded.unused_keys))
    data_directory = Path(settings.broker.data_directory or "data")
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return asyncio.run(_serve(settings, data_directory))
    return uvloop.run(_serve(settings, data_directory))


def _overrides(arguments: argparse.Namespace) -> list[str]:
    named = {
        "dataDirectory": arguments.data_dir,
        "brokerServicePort": arguments.port,
        "webServicePort": arguments.http_port,
        "bindAddress": arguments.bind,
    }
    given = [f"{key}={value}" for key, value in named.items() if value is not None]
    return [*arguments.overrides, *given]


async def _serve(settings: Settings, data_directory: Path) -> int:
    from ackgate.broker.server import BrokerServer  # noqa: PLC0415 - after the settings are right

    told_to_stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told_to_stop.set)
    log.info(
        "starting on %s with %s",
        data_directory,
        settings.persistence.metadata_store_url or "its own metadata store",
    )
    starting = asyncio.ensure_future(BrokerServer.start(settings, data_directory))
    broker = await _unless_told_to_stop(starting, told_to_stop)
    if broker is None:
        log.info("told to stop before it served")
        return 0
    print(f"ackgate ready {broker.service_url} {broker.web_url}", flush=True)  # noqa: T201
    ownership = broker.ownership
    ownership.on_displaced = told_to_stop.set
    if ownership.displaced is None:
        await told_to_stop.wait()
    log.info("stopping")
    await broker.stop()
    log.info("stopped")
    if ownership.displaced is not None:
        raise ownership.displaced
    return 0


async def _unless_told_to_stop(
    starting: asyncio.Future[BrokerServer], told_to_stop: asyncio.Event
) -> BrokerServer | None:
    """The broker; `None` when it was to stop first: a store that does not answer is waited for long."""
    stopping = asyncio.ensure_future(told_to_stop.wait())
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            return starting.result()
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await starting).stop()  # it was ready in this very moment
        return None
    finally:
        stopping.cancel()
