"""Schemas of topics: their versions in the metadata store, and which may follow which."""

from ackgate.broker.schemas.definitions import check_definition
from ackgate.broker.schemas.registry import DEFINITION_BYTES_MAX, SchemaRegistry
from ackgate.broker.schemas.versions import version_bytes

__all__ = [
    "DEFINITION_BYTES_MAX",
    "SchemaRegistry",
    "check_definition",
    "version_bytes",
]
