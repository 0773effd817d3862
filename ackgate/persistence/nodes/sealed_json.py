"""The form that the nodes of topics and of delivery journals share.

Pure. JSON, so that an operator can read a node with any tool. It carries a format version and a CRC32C
of its canonical text, so that a damaged node is noticed and named instead of believed::

    {"format":1,"crc32c":2774583911,"topic":{"ledgers":[...],"ownerEpoch":3,...}}
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypeVar

import google_crc32c

from ackgate.errors import CorruptRecordError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

FORMAT_VERSION: Final = 1


def encode_sealed(name: str, fields: dict[str, Any]) -> bytes:
    """A node's value, with its fields under `name`."""
    body = _canonical(fields)
    crc = google_crc32c.value(body.encode())
    return f'{{"format":{FORMAT_VERSION},"crc32c":{crc},"{name}":{body}}}'.encode()


def decode_sealed(value: bytes, name: str, read: Callable[[dict[str, Any]], T], *, of: str) -> T:
    """What `read` makes of the fields under `name`.

    Raises `CorruptRecordError` naming `of` and what is wrong, also for what `read` stumbles over.
    """
    try:
        outer = json.loads(value)
        if outer["format"] != FORMAT_VERSION:
            raise CorruptRecordError(
                f"{of}: format {outer['format']!r}, this build reads {FORMAT_VERSION}"
            )
        fields: dict[str, Any] = outer[name]
        if google_crc32c.value(_canonical(fields).encode()) != outer["crc32c"]:
            raise CorruptRecordError(f"{of}: checksum does not match")
        return read(fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptRecordError(f"{of}: cannot be read: {error!r}") from error


def optional_int(number: Any) -> int | None:  # noqa: ANN401 - from JSON
    return None if number is None else int(number)


def _canonical(fields: dict[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))
