"""The command lines of the tools that look into storage: ``ackgate bookies``, ``ackgate ledgers``.

Pure. Apart from the commands themselves, which need much more to be loaded.
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
    for parser in (listing, show, read, verify):
        add_place_arguments(parser)
    for parser in (listing, show, verify):
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
