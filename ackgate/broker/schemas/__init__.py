"""Schemas of topics: their versions in the metadata store, and which may follow which."""

from ackgate.broker.schemas.registry import SchemaRegistry, version_bytes

__all__ = [
    "SchemaRegistry",
    "version_bytes",
]
