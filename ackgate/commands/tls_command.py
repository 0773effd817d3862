"""``ackgate tls``: certificates for trying. Edge: writes files, prints what to do with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.errors import ConfigurationError
from ackgate.network import make_trial_certificates

if TYPE_CHECKING:
    import argparse

CLIENTS = ("client", "admin")


def run_tls(arguments: argparse.Namespace) -> int:
    """Make them. Raises `ConfigurationError`."""
    if arguments.days < 1:
        raise ConfigurationError(f"--days {arguments.days}: at least 1")
    made = make_trial_certificates(
        arguments.directory,
        clients=arguments.clients or CLIENTS,
        hosts=arguments.hosts,
        days=arguments.days,
    )
    lines = [
        f"tlsCertificateFilePath={made.server.certificate}",
        f"tlsKeyFilePath={made.server.key}",
        f"tlsTrustCertsFilePath={made.authority}",
        *(f"# client {name}: {pair.certificate} {pair.key}" for name, pair in made.clients.items()),
    ]
    print("\n".join(lines))  # noqa: T201
    return 0
