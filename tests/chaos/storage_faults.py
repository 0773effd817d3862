"""What befalls the files of a broker that is down: older metadata in their place, one flipped bit.

Edge: files, a broker, `ackgate ledgers adopt`. Everything random comes from the seed. A fault is brought,
the broker's answer is judged, and the run goes on with nothing lost:

    older metadata   the start is refused in a line that says what to do; then the newest are put back.
                     On a copy of the whole directory they are adopted instead, and a broker starts there
    a flipped bit    in the metadata, or in what a bookie keeps beside entries: the broker starts, since
                     another file has what this one has lost, or it refuses, naming the file
"""

from __future__ import annotations

import asyncio
import enum
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ackgate.testing.broker_process import BrokerFailedError, BrokerProcess
from tests.chaos.facts import ViolationError
from tests.corruption.damages import flip

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

METADATA: Final = "metadata.sqlite"
OLDER_SHARE: Final = 0.15
FLIP_SHARE: Final = 0.25
ADOPT_SECONDS_MAX: Final = 60.0

_FLIPPED: Final = (
    METADATA,
    f"{METADATA}-wal",
    f"{METADATA}-log",
    f"{METADATA}-mirror",
    "bookies/*/bookie.json",
    "bookies/*/cluster.json",
    "bookies/*/marks",
    "bookies/*/origins/*",
)


class StorageFault(enum.Enum):
    """What happens before a start."""

    OLDER_METADATA = "older metadata"
    FLIPPED_BIT = "a flipped bit"


def plan_storage_fault(seed: int, number: int) -> StorageFault | None:
    """What happens before this cycle, of a stream of its own, so that all else is as it was."""
    drawn = random.Random(f"{seed}/{number}/storage fault").random()
    if drawn < OLDER_SHARE:
        return StorageFault.OLDER_METADATA
    return StorageFault.FLIPPED_BIT if drawn < OLDER_SHARE + FLIP_SHARE else None


class StorageFaults:
    """Those of one run on one data directory."""

    def __init__(self, data: Path, aside: Path, seed: int) -> None:
        self._data = data
        self._older = aside / "older-metadata"
        self._newest = aside / "newest-metadata"
        self._copy = aside / "copy"
        self._seed = seed
        self._starts = 0
        """Of the broker, when the older copy was taken."""

    async def before(self, number: int, broker: BrokerProcess) -> str:
        """Bring what is planned for this cycle upon a broker that is down. Returns the story.

        Raises `ViolationError`.
        """
        if not (self._data / METADATA).exists():
            return ""
        fault = plan_storage_fault(self._seed, number)
        rng = random.Random(f"{self._seed}/{number}/storage")
        story = ""
        if fault is StorageFault.OLDER_METADATA and self._older.exists():
            if broker.starts > self._starts:
                story = await asyncio.to_thread(self._put_older, broker)
        elif fault is StorageFault.FLIPPED_BIT:
            story = await asyncio.to_thread(self._flip, broker, rng)
        if not self._older.exists() or rng.random() < 0.3:
            _copy_metadata(self._data, self._older)
            self._starts = broker.starts
        return story

    def _put_older(self, broker: BrokerProcess) -> str:
        _copy_metadata(self._data, self._newest)
        _put_metadata(self._older, self._data)
        try:
            broker.start()
        except BrokerFailedError:
            line = broker.log.splitlines()[-1]
            if "is older than bookie" not in line or "ackgate ledgers adopt" not in line:
                raise ViolationError(f"older metadata are refused without a word: {line}") from None
        else:
            raise ViolationError("older metadata were believed")
        self._adopt(broker.settings)
        _put_metadata(self._newest, self._data)
        return "older metadata refused, and adopted elsewhere; "

    def _adopt(self, settings: Mapping[str, object]) -> None:
        """The older metadata lie in the data directory: adopt in a copy of it."""
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._data, self._copy)
        command = ("-m", "ackgate", "ledgers", "adopt", "--apply", "--data-dir", str(self._copy))
        done = subprocess.run(
            [sys.executable, *command],
            capture_output=True,
            text=True,
            timeout=ADOPT_SECONDS_MAX,
            check=False,
        )
        if done.returncode != 0:
            raise ViolationError(f"not adopted: {done.stdout}{done.stderr}")
        other = BrokerProcess(self._copy, settings=settings)
        try:
            other.start()
        except BrokerFailedError as error:
            raise ViolationError(f"adopted, and refused all the same: {error}") from error
        finally:
            other.kill()
        shutil.rmtree(self._copy)

    def _flip(self, broker: BrokerProcess, rng: random.Random) -> str:
        found = (sorted(self._data.glob(pattern)) for pattern in _FLIPPED)
        filled = [[path for path in paths if path.stat().st_size] for paths in found]
        path = rng.choice(rng.choice([paths for paths in filled if paths]))
        content = path.read_bytes()
        what = f"{path.relative_to(self._data)}: {flip(path, rng)}"
        try:
            broker.start()
        except BrokerFailedError:
            line = broker.log.splitlines()[-1]
            if str(self._data) not in line:
                raise ViolationError(f"{what}: refused without a word: {line}") from None
            path.write_bytes(content)
            return f"{what}, refused; "
        broker.kill()
        return f"{what}, repaired; "


def _metadata_files(directory: Path) -> Iterable[Path]:
    return (path for path in directory.glob(f"{METADATA}*") if not path.name.endswith("-lock"))


def _copy_metadata(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for path in _metadata_files(source):
        shutil.copy2(path, target)


def _put_metadata(source: Path, target: Path) -> None:
    for path in list(_metadata_files(target)):
        path.unlink()
    for path in source.iterdir():
        shutil.copy2(path, target)
