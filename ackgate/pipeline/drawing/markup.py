"""Text that comes from outside, made harmless.

Pure.
"""

from __future__ import annotations

from html import escape


def escaped(text: str) -> str:
    """Text for HTML and SVG; control characters, which neither may hold, are replaced."""
    return escape("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text))


def shortened(text: str, length: int = 24) -> str:
    """At most so many characters; the middle of a name says the least."""
    if len(text) <= length:
        return text
    kept = length - 1
    return f"{text[: kept - kept // 2]}\N{HORIZONTAL ELLIPSIS}{text[len(text) - kept // 2 :]}"
