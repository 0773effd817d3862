"""The ``ackgate`` command: parses the command line, and calls the module of the command.

Edge. ``ackgate tls`` calls `ackgate.network` directly, and has no module.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import ackgate
from ackgate.commands.arguments import (
    add_access_arguments,
    add_bookies_parser,
    add_delayed_parser,
    add_ledgers_parser,
    add_pulsar_parser,
    add_tls_parser,
    add_tokens_parser,
)
from ackgate.errors import AckGateError, ConfigurationError, DataDirectoryBusyError
from ackgate.standard_output import unwritten, written_out

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


def command_parser(others: Mapping[str, str] | None = None) -> argparse.ArgumentParser:
    """Parser of a broker's commands. `others` (name to help) appear in the help only."""
    parser = argparse.ArgumentParser(
        prog="ackgate",
        description="A message broker that does not forget an ack, and stops before it would.",
        epilog="Exit codes: 0 success, 1 a failure, or a problem was found, 2 a wrong command line or "
        "configuration, 130 interrupted.",
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"ackgate {ackgate.__version__}",
        help="print the version",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    broker = commands.add_parser("broker", help="run a broker that speaks Pulsar's protocol")
    broker.add_argument("--data-dir", type=Path, help="directory of all its data (default: ./data)")
    broker.add_argument("--port", type=int, help="protocol port, 0 = a free one (default: 6650)")
    broker.add_argument("--http-port", type=int, help="admin port, 0 = a free one (default: 8080)")
    broker.add_argument("--bind", help="address to listen on (default: 127.0.0.1)")
    broker.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="processes that serve together, at best one for each core (default: 1)",
    )
    broker.add_argument("--worker", type=int, help=argparse.SUPPRESS)  # started by `--workers`
    broker.add_argument("--config", type=Path, metavar="FILE", help="a broker.conf")
    broker.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set one key of broker.conf; may be repeated",
    )
    stats = commands.add_parser(
        "stats", help="show why a subscription is stuck, from a broker or its files"
    )
    stats.add_argument("topic", metavar="TOPIC")
    stats.add_argument("--subscription", metavar="S", help="only this one")
    _add_source_arguments(stats)
    overview = commands.add_parser(
        "overview", help="all subscriptions, worst first, from a broker or its files"
    )
    overview.add_argument("--text", default="", metavar="T", help="only those with it in a name")
    overview.add_argument(
        "--state",
        action="append",
        choices=("stuck", "at-risk", "waiting", "fine"),
        help="only these; may be repeated",
    )
    overview.add_argument(
        "--order",
        default="worst",
        choices=(
            *("worst", "topic", "subscription", "ranges", "backlog", "unacked", "again"),
            *("delayed", "shuts-in", "consumers"),
        ),
        help="which come first (default: worst)",
    )
    overview.add_argument("--reversed", action="store_true", help="which come last")
    overview.add_argument("--offset", type=int, default=0, help="leave out so many (default: 0)")
    overview.add_argument("--rows", type=int, default=20, help="how many (default: 20)")
    _add_source_arguments(overview)
    config = commands.add_parser("config", help="check a broker.conf")
    check = config.add_subparsers(dest="action", required=True, metavar="ACTION").add_parser(
        "check",
        help="list keys that are wrong, unknown or without effect",
        description="What a broker that is started here would make of FILE and of the environment's "
        "ACKGATE_ and PULSAR_PREFIX_ keys.",
        epilog="Exit codes: 0 every key has its effect or is at Pulsar's default, 1 some other key has "
        "none, 2 the broker would not start.",
    )
    check.add_argument("file", type=Path, nargs="?", metavar="FILE", help="a broker.conf")
    check.add_argument("--json", action="store_true", help="for programs")
    add_delayed_parser(commands)
    add_bookies_parser(commands)
    add_ledgers_parser(commands)
    add_pulsar_parser(commands)
    add_tokens_parser(commands)
    add_tls_parser(commands)
    for name, line in (others or {}).items():
        commands.add_parser(name, help=line)
    return parser


def _add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Options for the source (a broker or files) and for the form of the answer."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--url", help="of a broker's admin port (default: http://127.0.0.1:8080)")
    source.add_argument(
        "--data-dir", type=Path, help="read the files of a running or dead broker, without changes"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="the broker's broker.conf")
    parser.add_argument(
        "--metadata-url", metavar="URL", help="read the files of a cluster: zk:HOST:PORT,.../ROOT"
    )
    parser.add_argument("--bookies", metavar="DIR[,DIR]", help="its storage directories")
    parser.add_argument(
        "--bookkeeper",
        metavar="URI",
        help="the BookKeeper cluster instead: zk+hierarchical://HOST:PORT[;HOST:PORT]/ledgers",
    )
    add_access_arguments(parser)
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument(
        "--watch",
        type=float,
        nargs="?",
        const=1.0,
        metavar="SECONDS",
        help="repeat at this interval (default: 1 s)",
    )
