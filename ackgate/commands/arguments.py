"""The command lines of ``ackgate bookies``, ``ackgate ledgers`` and ``ackgate delayed``.

Pure. Apart from the commands themselves, which load much more.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse


def add_bookies_parser(commands: Any) -> None:  # noqa: ANN401 - argparse keeps this type to itself
    bookies = commands.add_parser(
        "bookies", help="check the copies of all ledger entries, and repair them"
    )
    actions = bookies.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = actions.add_parser("check", help="read and verify every copy; changes nothing")
    repair = actions.add_parser("repair", help="the same, and repair missing and bad copies")
    for parser in (check, repair):
        add_place_arguments(parser)
        parser.add_argument(
            "--ledger", type=int, action="append", help="only this one; may be repeated"
        )
        parser.add_argument("--json", action="store_true", help="for programs")
    repair.add_argument(
        "--replace-lost",
        action="store_true",
        help="copy the entries of absent bookies to others, which take their places",
    )
    repair.add_argument(
        "--bytes-per-second", type=float, help="limit of reading and writing (default: none)"
    )


def add_ledgers_parser(commands: Any) -> None:  # noqa: ANN401 - as above
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
    for parser in (listing, show, read, verify, adopt):
        add_place_arguments(parser)
    for parser in (listing, show, verify, adopt):
        parser.add_argument("--json", action="store_true", help="for programs")
    form.add_argument("--json", action="store_true", help="an object a line")


def add_place_arguments(parser: argparse.ArgumentParser) -> None:
    """The options for the places of metadata and bookies."""
    parser.add_argument("--data-dir", type=Path, help="of a broker (default: ./data)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the broker's broker.conf")
    parser.add_argument(
        "--metadata-url", metavar="URL", help="sqlite:PATH or zk:HOST:PORT,.../ROOT"
    )
    parser.add_argument(
        "--bookies", metavar="DIR[,DIR]", help="storage directories (default: the broker's)"
    )


def add_delayed_parser(commands: Any) -> None:  # noqa: ANN401 - argparse keeps this type to itself
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
        parser.add_argument("--json", action="store_true", help="for programs")
    cancel.add_argument(
        "positions", nargs="*", metavar="POSITION", help="ledger:entry or ledger:entry:partition"
    )
    cancel.add_argument(
        "--file", type=Path, metavar="F", help="positions, one a line; - reads standard input"
    )
    clear.add_argument("--subscription", metavar="S", help="only this one's; default: all")
