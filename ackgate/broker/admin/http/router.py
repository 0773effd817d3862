"""Finds the handler for a method and a raw path, and the parameters in the path.

Pure. The path is split at its slashes as it came over the wire, before anything in it is
decoded, so that an encoded slash or dot never becomes part of the structure. Each piece is decoded
once, as Pulsar does (``+`` is a space). Names are checked where they are used.

Literal pieces win over parameters if their route is listed first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from urllib.parse import unquote_plus

from ackgate.broker.admin.http.refusals import RefusedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from ackgate.broker.admin.http.call import Call, Reply

    Handler: TypeAlias = Callable[[Call], Awaitable[Reply]]

SEGMENTS_MAX: Final = 16
"""No route has more pieces."""

BODY_BYTES_MAX: Final = 64 * 1024
"""No request comes near it, but for those whose route says so."""


class Route(NamedTuple):
    """One kind of request, and its handler."""

    method: str
    template: str
    """``/admin/v2/brokers/{name}/health``: a piece in braces is a parameter."""
    handler: Handler
    meaning: str = ""
    """A description for the reference page. Empty: the handler's docstring is used."""
    body_bytes_max: int = BODY_BYTES_MAX
    """Largest body that is read."""


class Found(NamedTuple):
    """The handler, and the parameters of the path, decoded."""

    handler: Handler
    template: str
    parameters: dict[str, str]
    body_bytes_max: int


class Router:
    """All routes of the admin interface."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_length: dict[int, list[tuple[tuple[str, ...], Route]]] = {}
        for route in routes:
            pieces = _pieces(route.template)
            self._by_length.setdefault(len(pieces), []).append((pieces, route))

    def find(self, method: str, raw_path: str) -> Found:
        """Find the handler. Raises `RefusedError`: 400 (bad encoding), 404 (path), 405 (method)."""
        pieces = _pieces(raw_path)
        ways: set[str] = set()
        if len(pieces) <= SEGMENTS_MAX:
            for template, route in self._by_length.get(len(pieces), ()):
                if not _fits(template, pieces):
                    continue
                if route.method == method:
                    parameters = _parameters(template, pieces)
                    return Found(route.handler, route.template, parameters, route.body_bytes_max)
                ways.add(route.method)
        if ways:
            allowed = ", ".join(sorted(ways))
            raise RefusedError(405, f"{method} is not possible here, but {allowed}")
        raise RefusedError(404, "no such path")


def _pieces(path: str) -> tuple[str, ...]:
    pieces = path.split("/", SEGMENTS_MAX + 2)[1:]
    if len(pieces) > 1 and not pieces[-1]:  # ignore a slash at the end
        pieces.pop()
    return tuple(pieces)


def _fits(template: tuple[str, ...], pieces: tuple[str, ...]) -> bool:
    return all(
        wanted.startswith("{") or wanted == piece
        for wanted, piece in zip(template, pieces, strict=True)
    )


def _parameters(template: tuple[str, ...], pieces: tuple[str, ...]) -> dict[str, str]:
    return {
        wanted[1:-1]: _decoded(piece)
        for wanted, piece in zip(template, pieces, strict=True)
        if wanted.startswith("{")
    }


def _decoded(piece: str) -> str:
    try:
        return unquote_plus(piece, errors="strict")
    except UnicodeDecodeError:
        raise RefusedError(400, "the path holds bytes that are not UTF-8") from None
