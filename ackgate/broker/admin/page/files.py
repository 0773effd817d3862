"""The page: static files, which ask the paths of the admin interface for everything that they show.

Edge: reads the package's own files, once. They hold no data, so any client may have them. Nothing
is inline, and nothing comes from elsewhere: the Content-Security-Policy tells the browser so. The
path of a file contains a digest of all files, so that a browser may cache them for ever.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.broker.admin.http.call import Reply
from ackgate.broker.admin.http.refusals import RefusedError
from ackgate.broker.admin.http.router import Route

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.broker.admin.http.call import Call

DIRECTORY: Final = Path(__file__).parents[2] / "page"

_TYPES: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

HEADERS: Final = MappingProxyType(
    {
        "Content-Security-Policy": CONTENT_SECURITY_POLICY,
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-cache",
    }
)
_HEADERS_KEPT: Final = MappingProxyType(
    {**HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
)


class _Page(NamedTuple):
    document: bytes
    digest: str
    files: Mapping[str, bytes]
    """Content of each file, by its path below `DIRECTORY`."""


@cache
def _page() -> _Page:
    paths = sorted(path for path in DIRECTORY.rglob("*") if path.suffix in _TYPES)
    files = {path.relative_to(DIRECTORY).as_posix(): path.read_bytes() for path in paths}
    whole = hashlib.sha256()
    for name, content in files.items():
        whole.update(f"{name} {len(content)}\n".encode() + content)
    digest = whole.hexdigest()[:16]
    index = (DIRECTORY / "index.html").read_bytes().replace(b"{{base}}", f"page/{digest}".encode())
    return _Page(index, digest, files)


async def get_page(_: Call) -> Reply:
    """The page, for a browser: [page.md](page.md) (ours)."""
    return Reply(200, _page().document, "text/html; charset=utf-8", headers=HEADERS)


async def get_page_file(call: Call) -> Reply:
    """A script or style of the page; the digest is that of the version in use (ours)."""
    return _file(call, call.parameters["file"])


async def get_page_library(call: Call) -> Reply:
    """A script or style of a library that the page brings (ours)."""
    return _file(call, f"vendor/{call.parameters['file']}")


def _file(call: Call, name: str) -> Reply:
    page = _page()
    content = page.files.get(name)
    if content is None or call.parameters["digest"] != page.digest:
        raise RefusedError(404, "the page has no such file")
    return Reply(200, content, _TYPES[Path(name).suffix], headers=_HEADERS_KEPT)


PAGE_PATH: Final = "/"

ROUTES: Final = (
    Route("GET", PAGE_PATH, get_page),
    Route("GET", "/page/{digest}/{file}", get_page_file),
    Route("GET", "/page/{digest}/vendor/{file}", get_page_library),
)
