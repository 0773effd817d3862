"""Standard output that cannot be written: the reader has gone, or the disk is full.

Edge. What was printed is written out before a command ends: at the exit, Python would complain about it in
lines of its own, and end with exit code 120.
"""

from __future__ import annotations

import errno
import sys
from typing import Final

_FAULTS: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""Why standard output cannot be written, apart from a closed pipe."""

_EXIT_FAILED: Final = 1


def written_out(code: int, *, unseen: int = 0) -> int:
    """Write out what was printed, and return the exit code: `code`, or as `unwritten`."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        return unwritten(error, code, unseen=unseen)
    return code


def unwritten(error: OSError, code: int, *, unseen: int = 0) -> int:
    """The exit code of a command that would end with `code`, and met this error as it printed.

    `unseen`: instead of 0 if nobody reads the output (`| head`). A full disk is reported on standard
    error. Raises any other error.
    """
    if isinstance(error, BrokenPipeError):
        sys.stdout = None
        return code or unseen
    if error.errno not in _FAULTS or error.filename is not None:
        raise error
    sys.stdout = None
    print(f"ackgate: standard output: {error.strerror}", file=sys.stderr)  # noqa: T201
    return code or _EXIT_FAILED
