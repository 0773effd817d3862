"""A directory served over HTTP on this machine, with ranges or without."""

from __future__ import annotations

import contextlib
import io
import re
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.support.loopback_http import http_served


class RangeHandler(SimpleHTTPRequestHandler):
    """Answers a request for a part of a file with that part."""

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""

    def send_head(self) -> Any:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if wanted is None or not path.is_file():
            return super().send_head()
        content = path.read_bytes()
        first, last = int(wanted[1]), min(int(wanted[2]), len(content) - 1)
        self.send_response(HTTPStatus.PARTIAL_CONTENT)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        return io.BytesIO(content[first : last + 1])


class WholeHandler(SimpleHTTPRequestHandler):
    """Knows nothing of parts."""

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


def served(directory: Path, *, has_ranges: bool = True) -> contextlib.AbstractContextManager[str]:
    """The address of the directory, for the time of a `with`."""
    handler = RangeHandler if has_ranges else WholeHandler
    return http_served(partial(handler, directory=str(directory)))
