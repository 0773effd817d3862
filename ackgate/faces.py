"""A face whose names are imported at their first use (PEP 562).

Pure. A face lists its names three times: under TYPE_CHECKING for type checkers, in `__all__`, and with
their homes for `lazy_face`. `tests/unit/test_faces.py` checks that the three agree.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ackgate.extras import named_extras

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def lazy_face(face: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of the package `face`: it imports each name at its first use.

    `homes`: modules, each with the names that the face exports from it.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def __getattr__(name: str) -> Any:  # noqa: ANN401, N807 - as PEP 562 has it
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {face!r} has no attribute {name!r}")
        with named_extras():
            found = getattr(import_module(home), name)
        setattr(sys.modules[face], name, found)
        return found

    return __getattr__
