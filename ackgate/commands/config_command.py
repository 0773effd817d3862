"""``ackgate config check``: checks a ``broker.conf`` before a broker is started with it.

Edge: reads the file and the environment, prints. Nothing that may be a secret is printed.
"""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ackgate.commands.terminal.tables import aligned, printable
from ackgate.config.load import OLDER_NAMES, gather
from ackgate.config.settings import Settings
from ackgate.config.unused_keys import PULSAR_VERSION, security_asked_for
from ackgate.errors import ConfigurationError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ackgate.config.load import GivenSettings
    from ackgate.config.unused_keys import SecurityAsked, UnusedKey

EXIT_FINE: Final = 0
EXIT_WITHOUT_EFFECT: Final = 1
EXIT_WOULD_NOT_START: Final = 2

_COLUMNS: Final = 100


class _Report(NamedTuple):
    """The findings of a check."""

    source: str
    found: GivenSettings
    security: Sequence[SecurityAsked]
    wrong: Sequence[str]
    """One line for each value that is not allowed."""
    changed: Sequence[UnusedKey]
    """Keys without effect that are not at Pulsar's default."""
    unknown: Sequence[UnusedKey]
    """Keys without effect that Pulsar does not have either."""
    at_default: Sequence[UnusedKey]
    """Keys without effect that are at Pulsar's default."""

    @property
    def starts(self) -> bool:
        return not self.security and not self.wrong

    @property
    def exit_code(self) -> int:
        if not self.starts:
            return EXIT_WOULD_NOT_START
        without_effect = self.changed or self.unknown or self.found.of_directories
        return EXIT_WITHOUT_EFFECT if without_effect else EXIT_FINE


def run_config(arguments: argparse.Namespace) -> int:
    """Check, print, and return the exit code.

    Raises `ConfigurationError` if a source cannot be read.
    """
    report = _check(arguments.file)
    if arguments.json:
        print(json.dumps(_json(report), indent=2))  # noqa: T201
    else:
        print("\n".join(map(printable, _lines(report))))  # noqa: T201
    return report.exit_code


def _check(file: Path | None) -> _Report:
    found = gather(file)
    wrong: list[str] = []
    try:
        Settings().with_given(found.used)
    except ConfigurationError as error:
        wrong = str(error).splitlines()
    security = security_asked_for(found.given)
    refused = {switch.key for switch, _ in security}
    unused = [each for each in found.unused if each.key not in refused]
    return _Report(
        source=str(file) if file else "the environment",
        found=found,
        security=security,
        wrong=wrong,
        changed=[each for each in unused if each.is_known and not each.is_at_default],
        unknown=[each for each in unused if not each.is_known],
        at_default=[each for each in unused if each.is_at_default],
    )


# ------------------------------------------------------------------------------- for people


def _lines(report: _Report) -> Iterator[str]:
    yield f"{report.source}: the broker {'starts' if report.starts else 'would not start'}"
    yield from _section(
        "asks for security that this broker does not have",
        [
            (given.origin, f"{switch.key}={given.text}", switch.asks_for)
            for switch, given in report.security
        ],
    )
    yield from _section("not allowed", [(line,) for line in report.wrong])
    yield from _section(
        f"unknown here and to Pulsar {PULSAR_VERSION}",
        [
            (each.given.origin, each.key, f"did you mean {each.meant}?" if each.meant else "")
            for each in report.unknown
        ],
    )
    yield from _section(
        "without effect here, and not at Pulsar's default",
        [
            (
                each.given.origin,
                f"{each.key}={each.shown_value}",
                f"Pulsar: {each.pulsar_default or 'nothing'}"
                + (", deprecated" if each.is_deprecated else ""),
            )
            for each in report.changed
        ],
    )
    yield from _section(
        "without effect on a BookKeeper cluster, whose bookies have settings of their own",
        [
            (given.origin, f"{key}={given.text}")
            for key, given in report.found.of_directories.items()
        ],
    )
    yield from _section(
        "deprecated by Pulsar, and in effect",
        [
            (given.origin, name, f"counts as {OLDER_NAMES[name].present_key}")
            for name, given in report.found.older.items()
        ],
    )
    if report.at_default:
        yield ""
        yield f"without effect here, at Pulsar's default ({len(report.at_default)}):"
        names = ", ".join(_name(each) for each in report.at_default)
        yield from textwrap.wrap(
            names,
            _COLUMNS,
            initial_indent="  ",
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    yield ""
    yield f"in effect: {len(report.found.used) - len(report.found.of_directories)} keys"


def _name(each: UnusedKey) -> str:
    return f"{each.key} (deprecated)" if each.is_deprecated else each.key


def _section(title: str, rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    if rows:
        yield ""
        yield f"{title} ({len(rows)}):"
        yield from (f"  {line}".rstrip() for line in aligned(rows))


# ----------------------------------------------------------------------------- for programs


def _json(report: _Report) -> dict[str, Any]:
    return {
        "source": report.source,
        "starts": report.starts,
        "security": [
            {"key": switch.key, "origin": given.origin, "asksFor": switch.asks_for}
            for switch, given in report.security
        ],
        "notAllowed": list(report.wrong),
        "unknown": [
            {"key": each.key, "origin": each.given.origin, "meant": each.meant}
            for each in report.unknown
        ],
        "changed": [
            {
                "key": each.key,
                "origin": each.given.origin,
                "pulsarDefault": each.pulsar_default,
                "isDeprecated": each.is_deprecated,
            }
            for each in report.changed
        ],
        "atDefault": [each.key for each in report.at_default],
        "ofDirectories": sorted(report.found.of_directories),
        "older": {name: OLDER_NAMES[name].present_key for name in report.found.older},
        "inEffect": sorted(report.found.used.keys() - report.found.of_directories.keys()),
    }
