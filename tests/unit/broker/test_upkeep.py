"""Periodic work goes on whatever happens to it, and says what that was."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from ackgate.broker.upkeep import Chore, run_chore
from ackgate.errors import SessionLostError, StoreSuspendedError


async def test_a_failure_of_the_world_is_a_line_and_one_of_ours_a_trace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = [StoreSuspendedError("away"), SessionLostError("expired"), RuntimeError("a bug")]
    done = asyncio.Event()

    async def work() -> None:
        if failures:
            raise failures.pop(0)
        done.set()

    task = asyncio.create_task(run_chore(Chore(work, lambda: 1e-6)))
    async with asyncio.timeout(60):
        await done.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    first, second, third = caplog.records[:3]
    assert [first.getMessage(), second.getMessage()] == [
        "upkeep is put off: away",
        "upkeep is put off: expired",
    ]
    assert (first.levelname, first.exc_info, second.exc_info) == ("WARNING", None, None)
    assert third.exc_info is not None
