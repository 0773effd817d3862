"""Asking a live broker's admin interface: where the token may go."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from ackgate.errors import StorageError
from ackgate.network import make_trial_certificates
from ackgate.pulsar import live_topic
from tests.support.loopback_http import QuietHandler, http_served

TOPIC = "persistent://public/default/orders"


def test_a_token_does_not_follow_a_redirect_out_of_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_trial_certificates(tmp_path / "certificates")
    monkeypatch.setenv("SSL_CERT_FILE", str(made.authority))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(made.server.certificate, made.server.key)
    seen: list[str | None] = []

    class Clear(QuietHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_error(404)

    with http_served(Clear) as clear_url:

        class Secure(QuietHandler):
            def do_GET(self) -> None:
                self.send_response(307)
                self.send_header("Location", f"{clear_url}{self.path}")
                self.end_headers()

        with (
            http_served(Secure, tls=tls) as url,
            pytest.raises(StorageError, match="which is in clear: not followed"),
        ):
            live_topic(url, TOPIC, token="secret")
    assert seen == []
