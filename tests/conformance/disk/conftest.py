"""The disks under test, each with a directory to work in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ackgate.persistence.system.disk import Disk, OsDisk
from tests.support.faulty_disk import FaultyDisk
from tests.support.simulation.disk import SimulatedFiles


@dataclass
class Machine:
    """A disk as two processes see it."""

    directory: Path
    connect: Callable[[], Disk]

    def __post_init__(self) -> None:
        self.disk = self.connect()
        self.disk.make_directory(self.directory)


def real(directory: Path) -> Machine:
    return Machine(directory / "machine", OsDisk)


def faulty(directory: Path) -> Machine:
    return Machine(directory / "machine", FaultyDisk)


def simulated(_: Path) -> Machine:
    files = SimulatedFiles()
    names = iter("abcdef")
    return Machine(Path("/machine/data"), lambda: files.disk(next(names)))


DISKS = [real, faulty, simulated]


@pytest.fixture(params=DISKS, ids=lambda disk: disk.__name__)
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    made: Machine = request.param(tmp_path)
    return made


@pytest.fixture
def disk(machine: Machine) -> Disk:
    return machine.disk


@pytest.fixture
def directory(machine: Machine) -> Path:
    return machine.directory
