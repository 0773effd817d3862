"""A file system of a few megabytes, which a test can fill without filling anybody else's.

Edge: a tmpfs, mounted by us where that is allowed (root), else in a user and mount namespace of its own,
held by a child process; a broker that shall see it is started in there (`enter`). Files on it outlive
every broker. Where neither is allowed, `open` raises `NotMountableError` with the reason.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from ackgate.testing.broker_process import BrokerProcess
from ackgate.testing.child_guard import CHILDREN

FILLER: Final = "filler"

SMALL_BYTES: Final = 256 * 1024 * 1024
"""Enough for a chaos run and a reserve, and little enough to be filled in a moment."""

_SMALLEST_BYTES: Final = 512


class NotMountableError(Exception):
    """This machine allows no mount. Says why."""


class SmallFileSystem:
    """One, mounted. Make it with `open`; a context manager."""

    def __init__(self, directory: Path, holder: subprocess.Popen[str] | None) -> None:
        self.directory = directory
        """Where a broker sees it."""
        self._holder = holder
        root = Path("/") if holder is None else Path(f"/proc/{holder.pid}/root")
        self.path = root / directory.relative_to("/")
        """Where we see it."""

    @classmethod
    def open(cls, directory: Path, size_bytes: int) -> Self:
        """Mount it at this (empty, absolute) directory. Raises `NotMountableError`."""
        if sys.platform != "linux":
            raise NotMountableError("tmpfs is Linux's")
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(directory)]
        try:
            ours = subprocess.run(mount, capture_output=True, text=True, check=False)
            if ours.returncode == 0:
                return cls(directory, None)
            # The child says when it is there, and ends with us: its standard input does.
            theirs = subprocess.Popen(
                ["unshare", "-rm", "sh", "-c", '"$@" && echo there && exec cat', "sh", *mount],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        except FileNotFoundError as error:
            raise NotMountableError(str(error)) from error
        CHILDREN.add(theirs.pid)
        found = cls(directory, theirs)
        assert theirs.stdout is not None
        if theirs.stdout.readline() != "there\n":
            assert theirs.stderr is not None
            why = theirs.stderr.read().strip()
            found.close()
            raise NotMountableError(f"{ours.stderr.strip()}; with unshare: {why}")
        return found

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self) -> None:
        """Take every byte that is left."""
        size = 1024 * 1024
        with (self.path / FILLER).open("ab", buffering=0) as file:
            while size >= _SMALLEST_BYTES:
                try:
                    if not file.write(bytes(size)):
                        size //= 2
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2

    def empty(self) -> None:
        """Give back what `fill` took."""
        (self.path / FILLER).unlink(missing_ok=True)

    @property
    def is_filled(self) -> bool:
        """Whether it was filled, and not emptied since."""
        return (self.path / FILLER).exists()

    def enter(self) -> list[str]:
        """What a command begins with that shall see it."""
        if self._holder is None:
            return []
        return ["nsenter", "--preserve-credentials", "-U", "-m", "-t", str(self._holder.pid)]

    def close(self) -> None:
        """Unmount it; what is on it is gone."""
        holder = self._holder
        if holder is None:
            subprocess.run(["umount", "-l", str(self.directory)], check=True)
            return
        for pipe in (holder.stdin, holder.stdout, holder.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        holder.wait()
        CHILDREN.remove(holder.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BrokerThere(BrokerProcess):
    """A broker that keeps its data on it."""

    def __init__(self, files: SmallFileSystem, **options: object) -> None:
        super().__init__(files.directory / "data", **options)  # type: ignore[arg-type]
        self._files = files

    def command(self) -> list[str]:
        """See `BrokerProcess.command`."""
        return [*self._files.enter(), *super().command()]
