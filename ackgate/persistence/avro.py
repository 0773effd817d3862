"""Bytes of Avro records, by the schemas that lie beside this file.

Edge only in that schemas are read from the package at import. Bytes that do not fit a schema are a
`CorruptRecordError`, whatever the Avro library makes of them.
"""

from __future__ import annotations

import json
from importlib.resources import files
from io import BytesIO
from typing import Any, Final

import fastavro
from fastavro.schema import parse_schema

from ackgate.errors import CorruptRecordError


class AvroSchema:
    """One schema, parsed once."""

    __slots__ = ("_parsed", "name")

    def __init__(self, name: str) -> None:
        """Load ``schemas/<name>.avsc``."""
        self.name = name
        text = files("ackgate.persistence").joinpath("schemas", f"{name}.avsc").read_text("utf-8")
        self._parsed: Final = parse_schema(json.loads(text))

    def encode(self, record: dict[str, Any]) -> bytes:
        """The record's Avro bytes, without any header."""
        stream = BytesIO()
        fastavro.schemaless_writer(stream, self._parsed, record)
        return stream.getvalue()

    def decode(self, body: bytes) -> dict[str, Any]:
        """The record again. Raises `CorruptRecordError` for bytes too few, too many or wrong."""
        stream = BytesIO(body)
        try:
            record = fastavro.schemaless_reader(stream, self._parsed, None)
        except Exception as error:  # fastavro raises whatever it stumbles over
            raise CorruptRecordError(f"not a {self.name}: {error!r}") from error
        if stream.tell() != len(body):
            raise CorruptRecordError(
                f"not a {self.name}: {len(body) - stream.tell()} bytes are left over"
            )
        assert isinstance(record, dict)
        return record
