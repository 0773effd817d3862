"""Settings of TLS: the broker's own ports, and its connections to the other brokers. Pure.

The ports themselves are settings of the broker (`brokerServicePortTls`, `webServicePortTls`). TLS to bookies
and to ZooKeeper belongs to persistence.
"""

from __future__ import annotations

from typing import Literal, Self, TypeAlias

from pydantic import model_validator

from ackgate.config.field import INT_MAX, SettingsGroup, setting

ProtocolName: TypeAlias = Literal["TLSv1.3", "TLSv1.2"]


class TlsSettings(SettingsGroup):
    """Certificates, and which clients must show one."""

    # --- the broker's ports

    tls_certificate_file_path: str = setting(
        "",
        "The broker's certificate for its TLS ports, PEM, followed by those between it and its authority.",
        pulsar="",
    )
    tls_key_file_path: str = setting(
        "",
        "The key of that certificate, PEM, not encrypted. Empty: it is in the same file.",
        pulsar="",
    )
    tls_trust_certs_file_path: str = setting(
        "",
        "Certificates of the authorities that sign clients', PEM. Empty: clients are asked for none, "
        "where Pulsar's trust every authority of the JVM.",
        pulsar="",
    )
    tls_require_trusted_client_cert_on_connect: bool = setting(
        default=False,
        description="Clients without a certificate that `tlsTrustCertsFilePath` vouches for do not get in. "
        "Otherwise they may come without one, but one that they show must be good.",
        pulsar=False,
    )
    tls_allow_insecure_connection: bool = setting(
        default=False,
        description="Ask clients for no certificate, where Pulsar takes any and believes the name in it, "
        "and do not verify those of other brokers. For trying only.",
        pulsar=False,
    )
    tls_protocols: tuple[ProtocolName, ...] = setting(
        (),
        "Versions of TLS on the port of the binary protocol. Empty: both.",
        pulsar=(),
    )
    tls_ciphers: tuple[str, ...] = setting(
        (),
        "Ciphers on that port, by the names of OpenSSL or of Java. Those of TLS 1.3 cannot be chosen "
        "one by one; if no other is named, TLS 1.2 is off. Empty: OpenSSL's defaults.",
        pulsar=(),
    )
    web_service_tls_protocols: tuple[ProtocolName, ...] = setting(
        (),
        "Versions of TLS on the port of the admin interface. Empty: both.",
        pulsar=(),
    )
    web_service_tls_ciphers: tuple[str, ...] = setting(
        (),
        "Ciphers on that port, as `tlsCiphers`.",
        pulsar=(),
    )
    tls_cert_refresh_check_duration_sec: int = setting(
        300,
        "How often the files above are looked at, with the first connection after it: changed ones "
        "are used from then on. Files that cannot be used are logged, and the old ones stay. 0: with "
        "every connection.",
        unit="s",
        pulsar=300,
        ge=0,
        le=INT_MAX,
    )

    # --- the broker as a client of the other brokers

    broker_client_tls_enabled: bool = setting(
        default=False,
        description="Ask other brokers by TLS, at their `webServicePortTls`.",
        pulsar=False,
        dynamic=True,
    )
    broker_client_trust_certs_file_path: str = setting(
        "",
        "Certificates of the authorities that sign the brokers', PEM. Empty: the system's.",
        pulsar="",
    )
    broker_client_certificate_file_path: str = setting(
        "", "The certificate that other brokers are shown, PEM. Empty: none.", pulsar=""
    )
    broker_client_key_file_path: str = setting(
        "", "The key of that certificate, PEM. Empty: it is in the same file.", pulsar=""
    )
    broker_client_tls_protocols: tuple[ProtocolName, ...] = setting(
        (), "Versions of TLS to other brokers. Empty: both.", pulsar=()
    )
    broker_client_tls_ciphers: tuple[str, ...] = setting(
        (), "Ciphers to other brokers, as `tlsCiphers`.", pulsar=()
    )
    tls_hostname_verification_enabled: bool = setting(
        default=True,
        description="The certificate of another broker must name the host or address by which it is "
        "reached: its `advertisedAddress`.",
        pulsar=False,
        departs="Without it, whoever has any certificate of the authority can pass for a broker.",
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.tls_require_trusted_client_cert_on_connect:
            if self.tls_allow_insecure_connection:
                raise ValueError(
                    "either tlsRequireTrustedClientCertOnConnect or tlsAllowInsecureConnection: "
                    "clients must be trusted, or need not be"
                )
            if not self.tls_trust_certs_file_path:
                raise ValueError(
                    "tlsRequireTrustedClientCertOnConnect needs tlsTrustCertsFilePath: the "
                    "authorities that sign clients' certificates"
                )
        return self
