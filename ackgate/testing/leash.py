"""A leash: a child process that does not outlive this one, however this one ends.

Edge: owns one tiny shell per child. The shell waits at a pipe whose other end is held here. When
this process is killed, the kernel closes that end, and the shell kills the child, stopped
(`SIGSTOP`) or not. Nothing has to be built into the child, so that brokers and Java programs are
held alike::

    process = subprocess.Popen(...)
    leash = Leash(process.pid)
    ...
    process.wait()
    leash.release()      # before the process id may belong to somebody else
"""

from __future__ import annotations

import subprocess
from typing import Final

_SCRIPT: Final = "trap '' INT TERM HUP; read -r _; kill -9 \"$0\" 2>/dev/null"


class Leash:
    """Holds one process."""

    def __init__(self, pid: int) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, str(pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def release(self) -> None:
        """Let go. Twice is fine."""
        self._shell.kill()  # before the pipe closes: it must not do its work now
        self._shell.wait()
        if self._shell.stdin is not None:
            self._shell.stdin.close()
