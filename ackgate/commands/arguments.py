"""The command lines of ``ackgate bookies``, ``ackgate ledgers`` and ``ackgate delayed``.

Pure. Apart from the commands themselves, which load much more.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse


def add_bookies_parser(commands: Any) -> None:  # noqa: ANN401 - argparse keeps this type to itself
    """Declare the command."""
    bookies = commands.add_parser(
        "bookies", help="check the copies of all ledger entries, and bring back what is missing"
    )
    actions = bookies.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = actions.add_parser("check", help="read and verify every copy; changes nothing")
    repair = actions.add_parser("repair", help="the same, and mend what can be mended")
    for parser in (check, repair):
        add_place_arguments(parser)
        parser.add_argument(
            "--ledger", type=int, action="append", help="only this one; may be repeated"
        )
        parser.add_argument("--json", action="store_true", help="for programs")
    repair.add_argument(
        "--replace-lost",
        action="store_true",
        help="copy what bookies held that are not here to others, and give those their place",
    )
    repair.add_argument(
        "--bytes-per-second", type=float, help="read and write no faster (default: no limit)"
    )


def add_ledgers_parser(commands: Any) -> None:  # noqa: ANN401 - as above
    """Declare the command."""
    ledgers = commands.add_parser("ledgers", help="look into ledgers, of messages and of cursors")
    actions = ledgers.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="which ledgers there are, and what they are for")
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
    form.add_argument("--hex", action="store_true", help="the bytes as stored, to look at")
    form.add_argument("--raw", action="store_true", help="the bytes as stored, and nothing else")
    verify = actions.add_parser("verify", help="read and verify every copy of every entry")
    verify.add_argument("ledger", type=int, nargs="*", metavar="LEDGER")
    adopt = actions.add_parser(
        "adopt", help="put ledgers that the metadata have forgotten back under their topics"
    )
    adopt.add_argument(
        "--apply", action="store_true", help="do it (default: say what would be done)"
    )
    for parser in (listing, show, read, verify, adopt):
        add_place_arguments(parser)
    for parser in (listing, show, verify, adopt):
        parser.add_argument("--json", action="store_true", help="for programs")
    form.add_argument("--json", action="store_true", help="an object a line")


def add_place_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that say where things are."""
    parser.add_argument("--data-dir", type=Path, help="of a broker (default: ./data)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the broker's broker.conf")
    parser.add_argument(
        "--metadata-url", metavar="URL", help="sqlite:PATH or zk:HOST:PORT,.../ROOT"
    )
    parser.add_argument(
        "--bookies", metavar="DIR[,DIR]", help="storage directories (default: as the broker has)"
    )


def add_delayed_parser(commands: Any) -> None:  # noqa: ANN401 - argparse keeps this type to itself
    """Declare the command."""
    delayed = commands.add_parser("delayed", help="messages that wait: list, cancel, clear")
    actions = delayed.add_subparsers(dest="action", required=True, metavar="ACTION")
    shown = actions.add_parser("list", help="what each subscription of a topic holds back")
    cancel = actions.add_parser("cancel", help="cancel delayed messages, for every subscription")
    clear = actions.add_parser(
        "clear", help="drop the index; it is built again by reading, and no message is lost"
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
