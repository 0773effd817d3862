"""Text that comes from outside, made harmless.

Pure.
"""

from __future__ import annotations

from html import escape


def escaped(text: str) -> str:
    """Text for HTML and SVG; control characters, which neither may hold, are replaced."""
    return escape("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text))
