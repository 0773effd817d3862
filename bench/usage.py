"""Memory and processor time of a process, as Linux reports them in /proc."""

from __future__ import annotations

import os
import time
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """User and system time of all its threads so far; 0 if the system does not say."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # as Linux numbers the clocks of processes
    except OSError:
        return 0.0


def resident_bytes(pid: int | None = None) -> int:
    """Memory in use now; None: of this process."""
    return _memory_bytes("VmRSS", pid)


def peak_bytes(pid: int | None = None) -> int:
    """The most memory that was ever in use; None: of this process."""
    return _memory_bytes("VmHWM", pid)


def _memory_bytes(field: str, pid: int | None) -> int:
    for line in Path(f"/proc/{pid or 'self'}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} of process {pid or os.getpid()}")
