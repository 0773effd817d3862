"""Our broker with a watch over its event loop: which pauses it has, and what caused them.

``python -m bench.loop_watch REPORT broker --data-dir DIR ...`` runs the command, and writes REPORT (JSON) at
its end. The loop is asked to tick every millisecond. When a tick is late, a thread looks at what the loop's
thread is doing, and files the pause under the innermost frames that are ours. Collections of the garbage
collector are timed by its own callbacks, and so are slow commits of the journals, apart those during which
fragment files were written. All that costs some percent of the processor: watch in order to find a cause,
and measure without.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import json
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ackgate.__main__ import main
from ackgate.persistence.bookies.fragment_storage import FragmentStorage
from ackgate.persistence.bookies.journal import Journal

if TYPE_CHECKING:
    from types import FrameType

TICK_SECONDS: Final = 0.001
PAUSE_SECONDS: Final = 0.005
"""A tick that comes so late is a pause."""

DEPTH: Final = 4
"""Frames of ours by which a pause is known."""


class LoopWatch:
    """Ticks, and who held them up."""

    def __init__(self) -> None:
        self.pauses: dict[str, list[float]] = defaultdict(list)
        self.collections: dict[int, list[float]] = defaultdict(list)
        self._last = time.perf_counter()
        self._thread_id = threading.get_ident()
        self._seen: Counter[str] = Counter()
        self._collecting = 0.0
        self._collected = 0.0
        self._is_over = threading.Event()
        self.commits: dict[str, list[float]] = defaultdict(list)
        self._writing = 0

    def time_commits(self) -> None:
        """Slow ones of the journals, by whether fragment files are written meanwhile."""
        commit, write = Journal.commit, FragmentStorage.write

        def timed_commit(journal: Journal, *arguments: Any) -> None:
            began, was_writing = time.perf_counter(), self._writing
            commit(journal, *arguments)
            took = time.perf_counter() - began
            if took > PAUSE_SECONDS:
                is_beside = was_writing or self._writing
                self.commits["beside a checkpoint" if is_beside else "alone"].append(took)

        def noted_write(storage: FragmentStorage, *arguments: Any) -> None:
            self._writing += 1
            began = time.perf_counter()
            try:
                write(storage, *arguments)
            finally:
                self._writing -= 1
                self.commits["(the checkpoints' own writes)"].append(time.perf_counter() - began)

        Journal.commit = timed_commit  # type: ignore[assignment,method-assign]
        FragmentStorage.write = noted_write  # type: ignore[assignment,method-assign]

    def begin(self) -> None:
        """On the loop's thread, with the loop running."""
        gc.callbacks.append(self._on_collection)
        threading.Thread(target=self._look, daemon=True).start()
        self._last = time.perf_counter()
        self._tick()

    def _tick(self) -> None:
        now = time.perf_counter()
        late = now - self._last - TICK_SECONDS
        if late > PAUSE_SECONDS:
            if self._collected > late / 2:
                cause = "garbage collection"
            elif self._seen:
                cause = self._seen.most_common(1)[0][0]
            else:
                cause = "unseen (another process had the processor, or the interpreter was held)"
            self.pauses[cause].append(late)
        self._collected = 0.0
        self._seen = Counter()
        self._last = now
        asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def _look(self) -> None:
        while not self._is_over.wait(TICK_SECONDS):
            if time.perf_counter() - self._last > 2 * TICK_SECONDS:
                self._seen[_story(sys._current_frames().get(self._thread_id))] += 1

    def _on_collection(self, phase: str, about: dict[str, Any]) -> None:
        if phase == "start":
            self._collecting = time.perf_counter()
        else:
            took = time.perf_counter() - self._collecting
            self.collections[about["generation"]].append(took)
            self._collected += took

    def report(self) -> dict[str, Any]:
        """Milliseconds, by cause."""
        pauses = sorted(self.pauses.items(), key=lambda item: -sum(item[1]))
        return {
            "pauses": {cause: _summary(seconds) for cause, seconds in pauses},
            "slow_commits": {what: _summary(each) for what, each in self.commits.items()},
            "collections": {
                f"generation {generation}": _summary(seconds)
                for generation, seconds in sorted(self.collections.items())
            },
        }


def _summary(seconds: list[float]) -> dict[str, float]:
    return {
        "count": len(seconds),
        "sum_ms": round(1000 * sum(seconds), 1),
        "max_ms": round(1000 * max(seconds), 1),
    }


def _story(frame: FrameType | None) -> str:
    ours: list[str] = []
    while frame is not None and len(ours) < DEPTH:
        path = frame.f_code.co_filename
        if "/ackgate/" in path:
            ours.append(f"{path.rsplit('/ackgate/', 1)[1]}:{frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(ours) or "the loop itself"


def _run() -> int:
    report, sys.argv[1:] = Path(sys.argv[1]), sys.argv[2:]
    watch = LoopWatch()
    from ackgate.broker.server import BrokerServer

    start = BrokerServer.start

    async def watched_start(*arguments: Any, **options: Any) -> BrokerServer:
        broker = await start(*arguments, **options)
        watch.begin()
        return broker

    BrokerServer.start = watched_start  # type: ignore[method-assign]
    watch.time_commits()
    atexit.register(lambda: report.write_text(json.dumps(watch.report(), indent=2)))
    return main()


if __name__ == "__main__":
    raise SystemExit(_run())
