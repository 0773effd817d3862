"""The ``ackgate`` command, as ``python -m ackgate`` too: a broker's commands, and the pipeline's.

Neither room knows of the other; here they meet.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from ackgate.commands.arguments import command_parser
from ackgate.commands.cli import EXIT_INTERRUPTED, EXIT_USAGE, run_parsed
from ackgate.errors import MissingExtraError
from ackgate.extras import named_extras
from ackgate.standard_output import written_out

if TYPE_CHECKING:
    from collections.abc import Sequence

_PIPELINE: Final = "pipeline"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        with named_extras():
            return _run(sys.argv[1:] if argv is None else list(argv))
    except MissingExtraError as error:
        print(f"ackgate: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    except SystemExit as ended:  # `--help`, or a wrong command line
        raise SystemExit(written_out(ended.code if isinstance(ended.code, int) else 0)) from None
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except RuntimeError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # as a class was being made
            return EXIT_INTERRUPTED
        raise


def _run(words: list[str]) -> int:
    if words[:1] == [_PIPELINE]:
        from ackgate.pipeline.command import run_pipeline  # noqa: PLC0415 - only when asked for

        return run_pipeline(words[1:])
    others = {_PIPELINE: "jobs over everything that was ever persisted, on Spark"}
    return run_parsed(command_parser(others).parse_args(words))


if __name__ == "__main__":
    raise SystemExit(main())
