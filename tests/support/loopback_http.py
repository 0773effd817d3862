"""An HTTP server on loopback, with handlers of a test's own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class QuietHandler(BaseHTTPRequestHandler):
    """Logs no requests."""

    def log_message(self, *_: object) -> None: ...


@contextlib.contextmanager
def http_served(
    handler: Callable[..., BaseHTTPRequestHandler], *, tls: Any = None
) -> Iterator[str]:
    """The server's address, for the time of a `with`. `tls`: the context of an HTTPS server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
