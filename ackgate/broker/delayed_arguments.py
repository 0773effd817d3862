"""The command line of ``ackgate delayed``. Pure; apart from the command, which needs more loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any


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
