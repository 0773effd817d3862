"""Bytes of Avro records, by the schemas that lie beside this file.

Edge only in that a schema is read from the package at its first use. Bytes that do not fit a schema are a
`CorruptRecordError`, whatever the Avro library makes of them.

A field that came later says so (``"since_format": 2``) and has a default: the schema of an older
format is the same without it, and a reader elsewhere resolves one to the other as Avro does.
"""

from __future__ import annotations

import json
import pkgutil
from functools import cached_property
from io import BytesIO
from typing import Any

import fastavro
from fastavro.schema import parse_schema

from ackgate.errors import CorruptRecordError


class AvroSchema:
    """``schemas/<name>.avsc``, as it is in one format: encodes and decodes records."""

    def __init__(self, name: str, *, format_version: int = 1) -> None:
        self.name = name
        self._format_version = format_version

    @cached_property
    def _parsed(self) -> Any:  # noqa: ANN401 - fastavro's
        text = pkgutil.get_data("ackgate.persistence.records", f"schemas/{self.name}.avsc")
        assert text is not None, "packages lie in files or archives, and their loaders read both"
        schema = json.loads(text)
        schema["fields"] = [
            field
            for field in schema["fields"]
            if field.get("since_format", 1) <= self._format_version
        ]
        return parse_schema(schema)

    def encode(self, record: dict[str, Any]) -> bytes:
        """The record's Avro bytes, without any header."""
        stream = BytesIO()
        fastavro.schemaless_writer(stream, self._parsed, record)
        return stream.getvalue()

    def decode(self, body: bytes) -> dict[str, Any]:
        """Decode a record. Raises `CorruptRecordError` for bytes too few, too many or wrong."""
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
