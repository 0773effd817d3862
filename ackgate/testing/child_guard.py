"""Ends child processes with the process that started them, however that one ends.

Edge: owns one small process, started at first use, that does nothing but read a pipe. The parent
writes its children's ids; when the pipe ends, because the parent was killed, it kills the rest. That
works from every thread, unlike ``PR_SET_PDEATHSIG``, and on every POSIX system.
"""

from __future__ import annotations

import atexit
import contextlib
import subprocess
import sys
import threading
from typing import Final

_WATCH: Final = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
living = set()
for line in sys.stdin:
    pid = int(line[1:])
    (living.add if line[0] == "+" else living.discard)(pid)
for pid in living:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""

END_SECONDS_MAX: Final = 1.0


class ChildGuard:
    """Children of this process that must end with it. One for a whole process is enough."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def add(self, pid: int) -> None:
        self._send(f"+{pid}\n")

    def remove(self, pid: int) -> None:
        """Forget a child that was waited for: its number may soon be another process's."""
        self._send(f"-{pid}\n")

    def _send(self, line: str) -> None:
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                atexit.unregister(self._end)
                atexit.register(self._end)
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _WATCH],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    text=True,
                    bufsize=1,
                )
            assert self._process.stdin is not None
            self._process.stdin.write(line)

    def _end(self) -> None:
        """Wait for it: Python warns of one that is left running. Not for long: a fork may have the pipe."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.communicate(timeout=END_SECONDS_MAX)


CHILDREN: Final = ChildGuard()
"""This process's own. Its pipe ends with the process, and then nothing is left to guard."""
