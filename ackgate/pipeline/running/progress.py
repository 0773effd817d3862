"""JobProgress of a job: what it does, in lines; on a terminal, the stages that run, in one line.

Edge: owns a thread while there is a terminal and a session to ask.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from typing import Self

_POLL_SECONDS: Final = 0.5
_CLEAR_LINE: Final = "\r\x1b[K"


class JobProgress:
    """Shows on standard error what is being done."""

    def __init__(self, stream: TextIO, spark: Any) -> None:  # noqa: ANN401 - Spark's session
        self._stream = stream
        self._tracker = spark.sparkContext.statusTracker() if spark is not None else None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._is_line_shown = False
        self._thread: threading.Thread | None = None

    @classmethod
    def on_terminal(cls, spark: Any) -> Self:  # noqa: ANN401
        """On standard error."""
        return cls(sys.stderr, spark)

    def tell(self, what: str) -> None:
        """A line that stays."""
        with self._lock:
            self._clear()
            print(what, file=self._stream, flush=True)

    def __enter__(self) -> Self:
        if self._tracker is not None and self._stream.isatty():
            self._thread = threading.Thread(target=self._follow, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._clear()

    def _follow(self) -> None:
        with contextlib.suppress(Exception):  # a session that ends is asked no more
            while not self._ended.wait(_POLL_SECONDS):
                line = stages_line(self._stages())
                with self._lock:
                    self._clear()
                    if line:
                        self._stream.write(line)
                        self._stream.flush()
                        self._is_line_shown = True

    def _stages(self) -> list[tuple[int, int, int]]:
        assert self._tracker is not None
        found = [self._tracker.getStageInfo(stage) for stage in self._tracker.getActiveStageIds()]
        return [(s.stageId, s.numCompletedTasks, s.numTasks) for s in found if s is not None]

    def _clear(self) -> None:
        if self._is_line_shown:
            self._stream.write(_CLEAR_LINE)
            self._is_line_shown = False


def stages_line(stages: list[tuple[int, int, int]]) -> str:
    """Of (stage, tasks done, tasks); nothing when none runs."""
    return "  ".join(f"stage {stage}: {done}/{tasks} tasks" for stage, done, tasks in stages)
