"""Which extra brings what is not installed.

Pure. The core wants little; ``pip install 'ackgate[broker]'`` and the like bring the rest. An edge that meets
a missing module says which extra has it, instead of naming a foreign package.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ackgate.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Iterator

EXTRA_OF: Final = {
    "aiohttp": "broker",
    "cryptography": "broker",
    "google.protobuf": "broker",
    "jwt": "broker",
    "passlib": "broker",
    "uvloop": "broker",
    "kazoo": "zookeeper",
    "opentelemetry": "opentelemetry",
    "pulsar": "client",
    "_pulsar": "client",
    "fsspec": "spark",
    "pandas": "spark",
    "pyarrow": "spark",
    "pyspark": "spark",
    "vl_convert": "spark",
    "pytest": "testing",
}
"""Modules that the core does without, and the extra that installs each."""


def missing_extra(
    error: ModuleNotFoundError, *, wanted: str | None = None
) -> MissingExtraError | None:
    """The error to show in its place; None when no extra has the module.

    `wanted`: the extra that brings all that its user needs, where several have this module.
    """
    name = error.name or ""
    for module, extra in EXTRA_OF.items():
        if name == module or name.startswith(f"{module}.") or module.startswith(f"{name}."):
            return MissingExtraError(
                f"this needs {module}, which is not installed: "
                f"pip install 'ackgate[{wanted or extra}]'"
            )
    return None


@contextmanager
def named_extras(wanted: str | None = None) -> Iterator[None]:
    """Raise `MissingExtraError` for an import that an extra would have made work."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = missing_extra(error, wanted=wanted)
        if missing is None:
            raise
        raise missing from error
