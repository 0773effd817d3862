"""The ``ackgate`` command: parses the command line, and calls the module of the command.

Edge. ``ackgate tls`` calls `ackgate.network` directly, and has no module.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ackgate.commands.arguments import command_parser
from ackgate.errors import AckGateError, ConfigurationError, DataDirectoryBusyError
from ackgate.standard_output import unwritten, written_out

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

EXIT_FAILED = 1
EXIT_USAGE = 2
"""Bad command line, bad configuration, or a data directory in use."""

EXIT_INTERRUPTED = 130
"""As a shell reports SIGINT."""

_VERDICTS: Final = {
    *(("bookies", action) for action in ("list", "check", "repair")),
    *(("ledgers", action) for action in ("verify", "adopt")),
    *(("delayed", action) for action in ("cancel", "clear")),
    ("config", "check"),
}
"""Actions whose exit code says what they found or did."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    return run_parsed(command_parser().parse_args(argv))


def run_parsed(arguments: argparse.Namespace) -> int:
    """Run the command that `command_parser` has parsed; returns the exit code."""
    _open_closed_streams()
    # A broker prints one line, and may have been given its standard output after its start.
    if arguments.command != "broker" and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # paths and names have any characters
    is_verdict = (arguments.command, getattr(arguments, "action", "")) in _VERDICTS
    unseen = EXIT_FAILED if is_verdict else 0
    try:
        code = _ended(arguments)
    except OSError as error:
        return unwritten(error, 0, unseen=unseen)
    return written_out(code, unseen=unseen)


def _open_closed_streams() -> None:
    """Open the null device for each standard stream that the caller has closed (`>&-`).

    A file of the data directory would get its number, and what is printed.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115


def _ended(arguments: argparse.Namespace) -> int:
    """Run one command and print its error; returns the exit code."""
    try:
        _check_texts(arguments)
        return _run(arguments)
    except AckGateError as error:
        print(f"ackgate: {error}", file=sys.stderr)  # noqa: T201
        return exit_code(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def exit_code(error: AckGateError) -> int:
    """The exit code of a command that ended with this error."""
    return EXIT_USAGE if isinstance(error, DataDirectoryBusyError | ValueError) else EXIT_FAILED


def _check_texts(arguments: argparse.Namespace) -> None:
    """Raise `ConfigurationError` for a text that is not UTF-8. Paths may have any bytes."""
    for value in vars(arguments).values():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and not text.isascii():
                try:
                    text.encode()
                except UnicodeEncodeError:
                    raise ConfigurationError(f"{text!a} is not UTF-8") from None


def _run(arguments: argparse.Namespace) -> int:
    """Run one command, and import only what it needs. Raises `AckGateError`."""
    if arguments.command == "broker":
        from ackgate.broker.run import run_broker  # noqa: PLC0415 - start only what is asked for

        return run_broker(arguments)
    if arguments.command == "bookies":
        from ackgate.commands.ledgers.bookies_command import run_bookies  # noqa: PLC0415

        return run_bookies(arguments)
    if arguments.command == "ledgers":
        from ackgate.commands.ledgers.ledgers_command import run_ledgers  # noqa: PLC0415

        return run_ledgers(arguments)
    if arguments.command == "config":
        from ackgate.commands.config_command import run_config  # noqa: PLC0415

        return run_config(arguments)
    if arguments.command == "delayed":
        from ackgate.commands.delayed_command import run_delayed  # noqa: PLC0415

        return run_delayed(arguments)
    if arguments.command == "tokens":
        from ackgate.commands.tokens_command import run_tokens  # noqa: PLC0415

        return run_tokens(arguments)
    if arguments.command == "tls":
        return _make_certificates(arguments)
    if arguments.command == "pulsar":
        from ackgate.commands.pulsar_command import run_pulsar  # noqa: PLC0415

        return run_pulsar(arguments)
    from ackgate.commands.stats.command import run_overview, run_stats  # noqa: PLC0415

    return run_overview(arguments) if arguments.command == "overview" else run_stats(arguments)


def _make_certificates(arguments: argparse.Namespace) -> int:
    """Write certificates for trying TLS, and print the settings that name them.

    Raises `ConfigurationError`.
    """
    from ackgate.network import make_trial_certificates  # noqa: PLC0415

    if arguments.days < 1:
        raise ConfigurationError(f"--days {arguments.days}: at least 1")
    made = make_trial_certificates(
        arguments.directory,
        clients=arguments.clients or ("client", "admin"),
        hosts=arguments.hosts,
        days=arguments.days,
    )
    lines = [
        f"tlsCertificateFilePath={made.server.certificate}",
        f"tlsKeyFilePath={made.server.key}",
        f"tlsTrustCertsFilePath={made.authority}",
        *(f"# client {name}: {pair.certificate} {pair.key}" for name, pair in made.clients.items()),
    ]
    print("\n".join(lines))  # noqa: T201
    return 0
