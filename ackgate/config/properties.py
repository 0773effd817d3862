r"""Reads Java properties, the format of Pulsar's `broker.conf`.

Pure. The rules are those of `java.util.Properties`, because the files were written for it:

- a line is empty, a comment (``#`` or ``!`` first), or a key and its value;
- the key ends at the first ``=``, ``:`` or blank that no backslash precedes; blanks round that
  separator, and before the key, do not count;
- an odd number of backslashes at the end of a line continues it; blanks at the start of the
  continuation do not count;
- ``\t \n \r \f \uXXXX`` stand for characters, before any other character a backslash vanishes;
- a repeated key counts with its last value (the caller sees every one of them, in order).

Blanks at the end of a value stay; the reader of the value may strip it.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ackgate.errors import ConfigurationError

_BLANKS: Final = " \t\f"
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_TRAILING_BACKSLASHES: Final = re.compile(r"\\*$")
_KEY: Final = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
_SEPARATOR: Final = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.|$)", re.DOTALL)
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    """One key and its value, and the line (from 1) where it begins."""

    key: str
    value: str
    line: int


def parse_properties(text: str, source: str) -> list[Property]:
    """All properties in order. `source` names the file in errors."""
    found: list[Property] = []
    lines = _LINE_END.split(text)
    position = 0
    while position < len(lines):
        first = position
        line = lines[position].lstrip(_BLANKS)
        position += 1
        if line in {"", "\\"} or line[0] in "#!":  # a lone backslash continues nothing
            continue
        while _is_continued(line):
            following = lines[position].lstrip(_BLANKS) if position < len(lines) else ""
            position += 1
            line = line[:-1] + following
        found.append(_property(line, first + 1, source))
    return found


def _is_continued(line: str) -> bool:
    backslashes = _TRAILING_BACKSLASHES.search(line)
    return backslashes is not None and len(backslashes.group()) % 2 == 1


def _property(line: str, number: int, source: str) -> Property:
    key = _KEY.match(line)
    assert key is not None  # the pattern matches the empty string, too
    separator = _SEPARATOR.match(line, key.end())
    assert separator is not None
    where = f"{source}:{number}"
    value = line[separator.end() :]
    return Property(_unescape(key.group(), where), _unescape(value, where), number)


def _unescape(text: str, where: str) -> str:
    def character(escape: re.Match[str]) -> str:
        code = escape.group(1)
        if len(code) > 1:
            return chr(int(code[1:], 16))
        if code == "u":
            raise ConfigurationError(rf"{where}: \u needs four hexadecimal digits after it")
        return _CONTROLS.get(code, code)

    return _ESCAPE.sub(character, text) if "\\" in text else text
