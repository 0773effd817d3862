"""Archives of Java classes: a JVM that maps one in needs half the processor time for its start (JEP 350).

The first JVM of a kind in a checkout makes its archive below ``build``, by running a program of that kind
to its end; others that want it meanwhile wait. An archive is named after the Java and the jars that it
is made of, since Java refuses it with any others.
"""

from __future__ import annotations

import fcntl
import hashlib
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ackgate.testing import ZooKeeperFailedError, ZooKeeperProcess
from ackgate.testing.zookeeper import jar_directory, java_program

if TYPE_CHECKING:
    from collections.abc import Callable

_BUILD: Final = Path(__file__).parents[2] / "build" / "classes"


@dataclass(frozen=True)
class ClassArchive:
    """The archive of one kind of program."""

    name: str
    jars: Callable[[], Path]
    """Returns the directory of the program's jars."""
    run: Callable[[str], None]
    """Runs such a program with this option of Java until its own end, which writes the archive."""

    @cached_property
    def options(self) -> tuple[str, ...]:
        """Java's options for it; none where it could not be made."""
        _BUILD.mkdir(parents=True, exist_ok=True)
        archive = _BUILD / f"{self.name}-{self._made_of()}.jsa"
        with (_BUILD / f"{self.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not archive.exists():
                self._make(archive)
        if not archive.stat().st_size:
            return ()
        # What Java says of an archive that it refuses must not stand among a program's answers.
        return (f"-XX:SharedArchiveFile={archive}", "-Xlog:disable")

    def _made_of(self) -> str:
        files = [Path(java_program()).resolve(), *sorted(self.jars().glob("*.jar"))]
        states = [(str(file), file.stat().st_mtime_ns) for file in files]
        return hashlib.sha256(repr(states).encode()).hexdigest()[:12]

    def _make(self, archive: Path) -> None:
        """An empty file where the program failed: it would fail again."""
        for old in _BUILD.glob(f"{self.name}-*"):
            old.unlink()
        part = archive.with_suffix(".part")
        self.run(f"-XX:ArchiveClassesAtExit={part}")
        part.touch()
        part.replace(archive)


def _run_zookeeper(option: str) -> None:
    with tempfile.TemporaryDirectory() as directory, suppress(ZooKeeperFailedError):
        server = ZooKeeperProcess(Path(directory), force_sync=False)
        server.java_options = lambda: (option,)
        server.start().stop()


ZOOKEEPER: Final = ClassArchive("zookeeper", jar_directory, _run_zookeeper)
