"""Asking a live broker's admin interface: where the token may go."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ackgate.errors import StorageError
from ackgate.network import make_trial_certificates
from ackgate.pulsar import live_topic

TOPIC = "persistent://public/default/orders"


@contextmanager
def served(handler: type[BaseHTTPRequestHandler], tls: ssl.SSLContext | None) -> Iterator[int]:
    """An HTTP server on loopback; yields its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def test_a_token_does_not_follow_a_redirect_out_of_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_trial_certificates(tmp_path / "certificates")
    monkeypatch.setenv("SSL_CERT_FILE", str(made.authority))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(made.server.certificate, made.server.key)
    seen: list[str | None] = []

    class Clear(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_error(404)

        def log_message(self, *_: object) -> None: ...

    with served(Clear, None) as clear_port:

        class Secure(Clear):
            def do_GET(self) -> None:
                self.send_response(307)
                self.send_header("Location", f"http://127.0.0.1:{clear_port}{self.path}")
                self.end_headers()

        with (
            served(Secure, tls) as port,
            pytest.raises(StorageError, match="which is in clear: not followed"),
        ):
            live_topic(f"https://127.0.0.1:{port}", TOPIC, token="secret")
    assert seen == []
