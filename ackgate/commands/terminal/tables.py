"""What several commands print alike: aligned columns, figures with units, a ledger's metadata.

Pure.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ackgate.persistence.ports import LedgerMetadata

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "") -> list[str]:
    """Lines with aligned columns; none without rows.

    `right`: names of columns to align right, separated by blanks.
    """
    names = set(right.split())
    to_the_right = [place for place, name in enumerate(head) if name in names]
    return aligned((head, *rows), right=to_the_right) if rows else []


def aligned(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> list[str]:
    """The rows as lines with aligned columns. `right`: places of columns to align right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def size_text(count: int) -> str:
    """A number of bytes in the largest unit that gives at least 1."""
    size = float(count)
    for unit in _UNITS[:-1]:
        if abs(size) < 1024:
            return f"{count} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"


def time_text(at_ms: int) -> str:
    """A time in UTC. A stored number out of range is handled, too."""
    try:
        moment = time.gmtime(at_ms // 1000)
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", moment)


def printable(text: str) -> str:
    """The text with control characters escaped: names from clients must not move the cursor."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def metadata_json(metadata: LedgerMetadata) -> dict[str, Any]:
    """Ledger metadata as JSON: quorums, digest type, time of creation, fragments."""
    return {
        "ensembleSize": metadata.ensemble_size,
        "writeQuorum": metadata.write_quorum,
        "ackQuorum": metadata.ack_quorum,
        "digestType": metadata.digest_type.value,
        "createdMs": metadata.created_ms,
        "fragments": [
            {"firstEntryId": f.first_entry_id, "ensemble": list(f.ensemble)}
            for f in metadata.fragments
        ],
    }
