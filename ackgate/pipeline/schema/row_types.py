"""Schemas of rows that are dataclasses: Spark's as text, Arrow's as an object.

Pure. ``int`` is a bigint, ``float`` a double, ``list[T]`` an array, a dataclass a struct.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, Final

_SPARK: Final = {int: "bigint", float: "double", str: "string", bool: "boolean"}


def spark_columns(row: type) -> str:
    """Columns and types, as ``applyInArrow(..., schema)`` takes them."""
    return ", ".join(f"{name} {_spark(hint)}" for name, hint in _fields(row))


def arrow_columns(row: type) -> Any:  # noqa: ANN401 - Arrow has no types here
    """Arrow's schema of such rows."""
    import pyarrow as pa  # noqa: PLC0415

    plain = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}

    def kind(hint: Any) -> Any:  # noqa: ANN401
        if hint in plain:
            return plain[hint]
        if typing.get_origin(hint) is list:
            return pa.list_(kind(typing.get_args(hint)[0]))
        return pa.struct([pa.field(name, kind(each)) for name, each in _fields(hint)])

    return pa.schema([pa.field(name, kind(hint)) for name, hint in _fields(row)])


def _spark(hint: Any) -> str:  # noqa: ANN401 - what a field is annotated with
    if hint in _SPARK:
        return _SPARK[hint]
    if typing.get_origin(hint) is list:
        return f"array<{_spark(typing.get_args(hint)[0])}>"
    inner = ", ".join(f"{name}: {_spark(each)}" for name, each in _fields(hint))
    return f"struct<{inner}>"


def _fields(row: type) -> list[tuple[str, Any]]:
    """Names and types; that a field may be None is left out, since any column may be null."""
    hints = typing.get_type_hints(row)
    return [(field.name, _present(hints[field.name])) for field in dataclasses.fields(row)]


def _present(hint: Any) -> Any:  # noqa: ANN401
    if isinstance(hint, types.UnionType):
        return next(each for each in typing.get_args(hint) if each is not type(None))
    return hint
