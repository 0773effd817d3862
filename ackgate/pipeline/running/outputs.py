"""A job's output: written beside its final name, and renamed when all of it is there.

Edge. ::

    results/                    the output, complete
    .results.1234-5678.staging/ what process 1234 (started at 5678) is writing

A staging directory whose process is gone was left by a job that was killed; the next one removes it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ackgate.errors import CallerError, ConfigurationError, StorageError
from ackgate.pipeline.schema.addresses import shown_address, without_local

if TYPE_CHECKING:
    from collections.abc import Iterator


_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(?:::|:/)")


class OutputExistsError(CallerError, ValueError):
    """The output is there already. Nothing was changed."""


def output_directory(given: str) -> Path:
    """The path that a command line names, as such or as ``file:`` and ``local:``.

    Raises `ConfigurationError` for any other address: what lies there cannot be renamed in one step.
    """
    path = without_local(given)
    if _ADDRESS.match(path):
        raise ConfigurationError(
            f"{shown_address(given)} is an address, and output goes to a directory of this machine or "
            "of a file system that is mounted here; it can be copied from there"
        )
    return Path(path)


@contextlib.contextmanager
def staged_output(output: Path) -> Iterator[Path]:
    """An empty directory that becomes `output` when the block ends well, else is removed.

    Raises `OutputExistsError`, `StorageError`.
    """
    output = Path(os.path.abspath(output))  # noqa: PTH100 - a link at its end stays a link
    staging = _staging_of(output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        _clear_left_over(output)
        _check_free(output)
        staging.mkdir()
    except OSError as error:
        raise StorageError(f"output {output} cannot be written: {error.strerror}") from error
    try:
        yield staging
        _put_in_place(staging, output)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _check_free(output: Path) -> None:
    if os.path.lexists(output):
        raise OutputExistsError(f"output {output} exists; it is left alone")


def _put_in_place(staging: Path, output: Path) -> None:
    try:
        _check_free(output)  # somebody else may have been faster
        staging.rename(output)
    except OSError as error:
        raise StorageError(f"output {output} cannot be written: {error.strerror}") from error


def _clear_left_over(output: Path) -> None:
    pattern = re.compile(rf"\.{re.escape(output.name)}\.(\d+)-(\d+)\.staging")
    for path in output.parent.iterdir():
        found = pattern.fullmatch(path.name)
        if found is not None and _started(int(found[1])) != found[2]:
            shutil.rmtree(path, ignore_errors=True)


def _staging_of(output: Path) -> Path:
    pid = os.getpid()
    return output.parent / f".{output.name}.{pid}-{_started(pid)}.staging"


def _started(pid: int) -> str | None:
    """When that process was started, in the system's own count; None: there is none.

    Distinguishes a process from a later one with the same number, if the system can (Linux).
    """
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "0"
