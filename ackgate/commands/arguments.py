"""The command lines of a broker's commands.

Pure. Apart from the commands themselves, which load much more.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import ackgate

if TYPE_CHECKING:
    from collections.abc import Mapping

_Commands: TypeAlias = Any
"""What `add_subparsers` returns: argparse keeps this type to itself."""


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
    for add in (
        _add_broker_parser,
        _add_stats_parser,
        _add_overview_parser,
        _add_config_parser,
        _add_delayed_parser,
        _add_bookies_parser,
        _add_ledgers_parser,
        _add_pulsar_parser,
        _add_tokens_parser,
        _add_tls_parser,
    ):
        add(commands)
    for name, line in (others or {}).items():
        commands.add_parser(name, help=line)
    return parser


def _add_broker_parser(commands: _Commands) -> None:
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


def _add_stats_parser(commands: _Commands) -> None:
    stats = commands.add_parser(
        "stats", help="show why a subscription is stuck, from a broker or its files"
    )
    stats.add_argument("topic", metavar="TOPIC")
    stats.add_argument("--subscription", metavar="S", help="only this one")
    stats.add_argument(
        "--exclude-consumers", action="store_true", help="do not list consumers, if there are many"
    )
    _add_source_arguments(stats)


def _add_overview_parser(commands: _Commands) -> None:
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


def _add_config_parser(commands: _Commands) -> None:
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
    _add_access_arguments(parser)
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument(
        "--watch",
        type=float,
        nargs="?",
        const=1.0,
        metavar="SECONDS",
        help="repeat at this interval (default: 1 s)",
    )


def _add_bookies_parser(commands: _Commands) -> None:
    bookies = commands.add_parser(
        "bookies", help="check the copies of all ledger entries, and repair them"
    )
    actions = bookies.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="all bookies: where they are, and their state")
    check = actions.add_parser("check", help="read and verify every copy; changes nothing")
    repair = actions.add_parser("repair", help="the same, and repair missing and bad copies")
    for parser in (listing, check, repair):
        _add_place_arguments(parser)
        parser.add_argument("--json", action="store_true", help="for programs")
    for parser in (check, repair):
        parser.add_argument(
            "--ledger", type=int, action="append", help="only this one; may be repeated"
        )
    repair.add_argument(
        "--replace-lost",
        action="store_true",
        help="copy the entries of absent bookies to others, which take their places",
    )
    repair.add_argument(
        "--bytes-per-second", type=float, help="limit of reading and writing (default: none)"
    )


def _add_ledgers_parser(commands: _Commands) -> None:
    ledgers = commands.add_parser("ledgers", help="inspect ledgers, of messages and of cursors")
    actions = ledgers.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="all ledgers, and their owners")
    listing.add_argument("--topic", help="only those of this topic and of its cursors")
    listing.add_argument(
        "--state", type=str.upper, choices=("OPEN", "IN_RECOVERY", "CLOSED"), help="only these"
    )
    show = actions.add_parser("show", help="one ledger: metadata, copies, records of a cursor")
    show.add_argument("ledger", type=int, metavar="LEDGER")
    read = actions.add_parser("read", help="entries of a ledger")
    read.add_argument("ledger", type=int, metavar="LEDGER")
    read.add_argument(
        "entries", nargs="?", metavar="FIRST[..LAST]", help="which ones (default: all)"
    )
    read.add_argument("--payload", action="store_true", help="messages with their content")
    form = read.add_mutually_exclusive_group()
    form.add_argument("--hex", action="store_true", help="the stored bytes, as a hex dump")
    form.add_argument("--raw", action="store_true", help="the stored bytes, and nothing else")
    verify = actions.add_parser("verify", help="read and verify every copy of every entry")
    verify.add_argument("ledger", type=int, nargs="*", metavar="LEDGER")
    adopt = actions.add_parser(
        "adopt", help="put ledgers that the metadata have forgotten back under their topics"
    )
    adopt.add_argument(
        "--apply", action="store_true", help="do it (default: only show what would be done)"
    )
    adopt.add_argument(
        "--cluster",
        metavar="NAME",
        help="on a BookKeeper cluster: whose ledgers, if the metadata have lost their name",
    )
    for parser in (listing, show, read, verify, adopt):
        _add_place_arguments(parser)
    for parser in (listing, show, verify, adopt):
        parser.add_argument("--json", action="store_true", help="for programs")
    form.add_argument("--json", action="store_true", help="an object a line")


def _add_place_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for where metadata and bookies are."""
    parser.add_argument("--data-dir", type=Path, help="of a broker (default: ./data)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the broker's broker.conf")
    parser.add_argument(
        "--metadata-url", metavar="URL", help="sqlite:PATH or zk:HOST:PORT,.../ROOT"
    )
    parser.add_argument(
        "--bookies", metavar="DIR[,DIR]", help="storage directories (default: the broker's)"
    )
    parser.add_argument(
        "--metadata",
        metavar="URI",
        help="ledgers of a BookKeeper cluster (default: --config's): zk+hierarchical://HOST:PORT[;HOST:PORT]/ledgers",
    )


def _add_access_arguments(parser: _Commands) -> None:
    """Add options of a command that asks a broker: address, certificates, credentials."""
    group = parser.add_argument_group(
        "access to the broker",
        "also as keys of Pulsar's client.conf, and as environment variables ACKGATE_CLIENT_<key>",
    )
    group.add_argument("--client-config", metavar="FILE", help="Pulsar's client.conf")
    group.add_argument(
        "--tls-trust-certs", metavar="FILE", help="authorities that are trusted, PEM"
    )
    group.add_argument("--tls-certificate", metavar="FILE", help="certificate that is shown, PEM")
    group.add_argument("--tls-key", metavar="FILE", help="its key, PEM")
    group.add_argument(
        "--tls-allow-insecure", action="store_true", help="take any certificate of the broker"
    )
    group.add_argument("--auth-plugin", metavar="NAME", help="token, or Pulsar's class name")
    group.add_argument(
        "--auth-params", metavar="TEXT", help="file:///PATH of a token; everybody sees options"
    )


def _add_delayed_parser(commands: _Commands) -> None:
    delayed = commands.add_parser("delayed", help="delayed messages: list, cancel, clear the index")
    actions = delayed.add_subparsers(dest="action", required=True, metavar="ACTION")
    shown = actions.add_parser("list", help="held messages of each subscription of a topic")
    cancel = actions.add_parser("cancel", help="cancel delayed messages, for every subscription")
    clear = actions.add_parser(
        "clear", help="drop the index; reads rebuild it, and no message is lost"
    )
    for parser in (shown, cancel, clear):
        parser.add_argument("topic", metavar="TOPIC")
        parser.add_argument(
            "--admin-url",
            "--url",
            dest="url",
            help="of a broker's admin port (default: http://127.0.0.1:8080)",
        )
        _add_access_arguments(parser)
        parser.add_argument("--json", action="store_true", help="for programs")
    cancel.add_argument(
        "positions", nargs="*", metavar="POSITION", help="ledger:entry or ledger:entry:partition"
    )
    cancel.add_argument(
        "--file", type=Path, metavar="F", help="positions, one a line; - reads standard input"
    )
    clear.add_argument("--subscription", metavar="S", help="only this one's; default: all")


def _add_pulsar_parser(commands: _Commands) -> None:
    pulsar = commands.add_parser(
        "pulsar",
        help="look at a real Pulsar cluster, from its ZooKeeper and bookies, read-only",
        description="Nothing is written, fenced or recovered; no broker is needed.",
    )
    actions = pulsar.add_subparsers(dest="action", required=True, metavar="ACTION")
    topics = actions.add_parser("topics", help="all topics: ledgers, entries, sizes, subscriptions")
    stats = actions.add_parser(
        "stats", help="a topic's subscriptions: holes, and what a restart would deliver again"
    )
    cursors = actions.add_parser("cursors", help="all subscriptions, a line each")
    ledgers = actions.add_parser("ledgers", help="ledgers: owners, sizes, retention, orphans")
    stats.add_argument("topic", metavar="TOPIC")
    for parser in (cursors, ledgers):
        parser.add_argument("topic", nargs="?", metavar="TOPIC", help="default: all")
    for parser in (topics, cursors):
        parser.add_argument("--namespace", metavar="T/N", help="only its topics")
    for parser in (stats, cursors):
        parser.add_argument("--subscription", metavar="S", help="only this one")
        parser.add_argument(
            "--ranges-max",
            type=int,
            metavar="N",
            help="the brokers' managedLedgerMaxUnackedRangesToPersist (default: --admin's, --config's, or "
            "10000)",
        )
        parser.add_argument(
            "--batch-indexes-max",
            type=int,
            metavar="N",
            help="their managedLedgerMaxBatchDeletedIndexToPersist (default: as above)",
        )
        parser.add_argument(
            "--ack-form",
            choices=("ranges", "words", "ranges-5", "words-5"),
            help="how they write acks: words with managedLedgerPersistIndividualAckAsLongArray, "
            "...-5 from Pulsar 5.0 on (default: as --admin and --config say, or ranges)",
        )
    stats.add_argument(
        "--admin", metavar="URL", help="ask the live broker, too, and compare: http://HOST:8080"
    )
    stats.add_argument(
        "--token-file", type=Path, metavar="FILE", help="holds the token that --admin wants"
    )
    ledgers.add_argument(
        "--orphans", action="store_true", help="only those that their owners name no more"
    )
    ledgers.add_argument(
        "--older-than",
        type=float,
        default=3600.0,
        metavar="SECONDS",
        help="younger ledgers are no orphans: a broker may be about to name them (default: 3600)",
    )
    for parser in (topics, stats, cursors, ledgers):
        parser.add_argument(
            "--metadata",
            required=True,
            metavar="URL",
            help="the cluster's metadataStoreUrl: zk:HOST:PORT[,HOST:PORT...][/CHROOT]",
        )
        parser.add_argument(
            "--bookkeeper",
            metavar="URI",
            help="its bookkeeperMetadataServiceUri (default: /ledgers beside Pulsar's nodes)",
        )
        parser.add_argument(
            "--config",
            type=Path,
            metavar="FILE",
            help="the cluster's broker.conf: caps, retention; and its metadataStoreDigest, if ZooKeeper "
            "wants one",
        )
        parser.add_argument(
            "--timeout",
            type=float,
            default=10.0,
            metavar="SECONDS",
            help="longest wait for a server (default: 10)",
        )
        parser.add_argument("--json", action="store_true", help="for programs")


_SECRET_ALGORITHMS = ("HS256", "HS384", "HS512")
_PAIR_ALGORITHMS = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512")


def _add_tokens_parser(commands: _Commands) -> None:
    tokens = commands.add_parser(
        "tokens",
        help="make keys and tokens, and look at them",
        description="As Pulsar's bin/pulsar tokens. A KEY is file:///PATH, data:;base64,..., a path, or "
        "Base64.",
    )
    actions = tokens.add_subparsers(dest="action", required=True, metavar="ACTION")
    secret = actions.add_parser("create-secret-key", help="a secret, to sign and to check")
    secret.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="a new file (default: standard output)"
    )
    secret.add_argument("-b", "--base64", action="store_true", help="as text")
    pair = actions.add_parser("create-key-pair", help="a private and a public key")
    for option, metavar in (("--output-private-key", "FILE"), ("--output-public-key", "FILE")):
        pair.add_argument(option, type=Path, metavar=metavar, required=True, help="a new file")
    create = actions.add_parser("create", help="a token for a role")
    create.add_argument("-s", "--subject", required=True, metavar="ROLE", help="the role")
    create.add_argument(
        "-e",
        "--expiry-time",
        metavar="TIME",
        help="valid so long: 30m, 12h, 3d, 1y (default: always)",
    )
    create.add_argument(
        "--claim",
        dest="claims",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a further claim, such as aud=orders; may be repeated",
    )
    validate = actions.add_parser(
        "validate",
        help="check a token: signature and expiry",
        epilog="Exit codes: 0 it is valid, 1 it is not, 2 a wrong command line.",
    )
    show = actions.add_parser("show", help="header and claims of a token, unchecked")
    for parser, algorithms in (
        (secret, _SECRET_ALGORITHMS),
        (pair, _PAIR_ALGORITHMS),
        (create, _PAIR_ALGORITHMS),
        (validate, _PAIR_ALGORITHMS),
    ):
        parser.add_argument(
            "-a",
            "--signature-algorithm",
            dest="algorithm",
            type=str.upper,
            choices=algorithms,
            default=algorithms[0],
            help=f"default: {algorithms[0]}",
        )
    for parser, short, other in (
        (create, "-pk", "--private-key"),
        (validate, "-pk", "--public-key"),
    ):
        key = parser.add_mutually_exclusive_group(required=True)
        key.add_argument("-sk", "--secret-key", metavar="KEY")
        key.add_argument(short, other, metavar="KEY")
    for parser in (validate, show):
        parser.add_argument(
            "token", nargs="?", metavar="TOKEN", help="default: read from standard input"
        )
        parser.add_argument("-f", "--token-file", metavar="FILE", help="read it from there")
        parser.add_argument(
            "-i",
            "--stdin",
            action="store_true",
            help="read it from standard input, which is the default",
        )


def _add_tls_parser(commands: _Commands) -> None:
    tls = commands.add_parser("tls", help="make certificates for trying TLS")
    make = tls.add_subparsers(dest="action", required=True, metavar="ACTION").add_parser(
        "make-test-certificates",
        help="an authority, a server's certificate, and some of clients",
        description="Writes PEM files into DIR, and prints the settings that name them. Whoever reads DIR "
        "can pass for anybody: for trying only.",
    )
    make.add_argument("directory", type=Path, metavar="DIR", help="made if it is not there")
    make.add_argument(
        "--host",
        dest="hosts",
        action="append",
        default=[],
        metavar="NAME",
        help="a further name or address of the server; may be repeated (localhost, 127.0.0.1 and ::1 "
        "are in it)",
    )
    make.add_argument(
        "--client",
        dest="clients",
        action="append",
        metavar="NAME",
        help="the common name of a client; may be repeated (default: client and admin)",
    )
    make.add_argument("--days", type=int, default=365, help="valid for so long (default: 365)")
