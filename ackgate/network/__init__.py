"""Connections to and from other machines: TLS, ports that listen, and the damper of log lines on clients.

The face of the room. It knows files of certificates and sockets, and nothing of what is said on them. A
name is imported from its home at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.faces import lazy_face

if TYPE_CHECKING:
    from ackgate.network.damper import LogDamper, and_left_out
    from ackgate.network.listener import (
        HANDSHAKES_MAX,
        Listener,
        listen,
        listening_sockets,
        words_of,
    )
    from ackgate.network.tls import (
        HANDSHAKE_FAILURES,
        CertificateFile,
        ClientTls,
        PeerCertificate,
        PemFile,
        ReloadedTls,
        ServerTls,
        expiry_warning,
        peer_certificate,
    )
    from ackgate.network.trial_certificates import TrialCertificates, make_trial_certificates
    from ackgate.network.urls import (
        NOWHERE,
        AdvertisedListener,
        Urls,
        advertised_host,
        is_http_address,
        url_of,
    )

__all__ = [
    "HANDSHAKES_MAX",
    "HANDSHAKE_FAILURES",
    "NOWHERE",
    "AdvertisedListener",
    "CertificateFile",
    "ClientTls",
    "Listener",
    "LogDamper",
    "PeerCertificate",
    "PemFile",
    "ReloadedTls",
    "ServerTls",
    "TrialCertificates",
    "Urls",
    "advertised_host",
    "and_left_out",
    "expiry_warning",
    "is_http_address",
    "listen",
    "listening_sockets",
    "make_trial_certificates",
    "peer_certificate",
    "url_of",
    "words_of",
]

__getattr__ = lazy_face(
    __name__,
    {
        "ackgate.network.damper": ("LogDamper", "and_left_out"),
        "ackgate.network.listener": (
            "HANDSHAKES_MAX",
            "Listener",
            "listen",
            "listening_sockets",
            "words_of",
        ),
        "ackgate.network.tls": (
            "HANDSHAKE_FAILURES",
            "CertificateFile",
            "ClientTls",
            "PeerCertificate",
            "PemFile",
            "ReloadedTls",
            "ServerTls",
            "expiry_warning",
            "peer_certificate",
        ),
        "ackgate.network.trial_certificates": ("TrialCertificates", "make_trial_certificates"),
        "ackgate.network.urls": (
            "NOWHERE",
            "AdvertisedListener",
            "Urls",
            "advertised_host",
            "is_http_address",
            "url_of",
        ),
    },
)
