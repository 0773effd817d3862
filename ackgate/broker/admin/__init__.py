"""The admin interface over HTTP: Pulsar's paths, and the metrics."""

from ackgate.broker.admin.app import AdminServer, serve_http
from ackgate.broker.admin.http.peers import Peers

__all__ = [
    "AdminServer",
    "Peers",
    "serve_http",
]
