"""How a command gets into a broker's admin interface: address, TLS, and who it says that it is.

Edge: reads files and, through the settings, the environment. Of each key the last one wins::

    Pulsar's client.conf  <  environment ACKGATE_CLIENT_<key>  <  options

A token belongs into the file or the environment: options can be seen by everybody on the machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ackgate.config.load import client_settings
from ackgate.network import ClientTls, PemFile

if TYPE_CHECKING:
    import argparse
    import ssl
    from collections.abc import Mapping

    from ackgate.config.load import ClientSettings

DEFAULT_URL: Final = "http://127.0.0.1:8080"

_OPTIONS: Final = {
    "tls_trust_certs": "tlsTrustCertsFilePath",
    "tls_certificate": "tlsCertificateFilePath",
    "tls_key": "tlsKeyFilePath",
    "auth_plugin": "authPlugin",
    "auth_params": "authParams",
}


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """Certificates and credentials of a command."""

    tls: ClientTls = field(default_factory=ClientTls)
    auth_plugin: str = ""
    """Pulsar's class name, or ``token``. Empty: nobody in particular."""
    auth_params: str = field(default="", repr=False)

    def context(self) -> ssl.SSLContext:
        """Raises `ConfigurationError`."""
        return self.tls.context()

    def headers(self) -> Mapping[str, str]:
        """What says who asks. Raises `ConfigurationError`."""
        if not self.auth_plugin:
            return {}
        from ackgate.broker.security import http_headers  # noqa: PLC0415 - loads what makes tokens

        return http_headers(self.auth_plugin, self.auth_params, what="authParams")


def access_of(arguments: argparse.Namespace) -> tuple[str, AdminAccess]:
    """The address that is asked, and how to get in. Raises `ConfigurationError`."""
    given = {
        key: str(value) for name, key in _OPTIONS.items() if (value := getattr(arguments, name))
    }
    if arguments.url:
        given["webServiceUrl"] = arguments.url
    if arguments.tls_allow_insecure:
        given["tlsAllowInsecureConnection"] = "true"
    settings = client_settings(arguments.client_config, given)
    return settings["webServiceUrl"] or DEFAULT_URL, _access(settings)


def _access(settings: ClientSettings) -> AdminAccess:
    plugin, params = settings["authPlugin"], settings["authParams"]
    certificate, key = settings["tlsCertificateFilePath"], settings["tlsKeyFilePath"]
    if plugin.endswith("AuthenticationTls"):  # its parameters are files
        files = dict(part.partition(":")[::2] for part in params.split(",") if part)
        certificate = files.get("tlsCertFile", certificate)
        key = files.get("tlsKeyFile", key)
        plugin, params = "", ""
    return AdminAccess(
        ClientTls(
            trust=PemFile("tlsTrustCertsFilePath", settings["tlsTrustCertsFilePath"]),
            certificate=PemFile("tlsCertificateFilePath", certificate),
            key=PemFile("tlsKeyFilePath", key),
            verifies_server=not settings.switch("tlsAllowInsecureConnection", default=False),
            verifies_host_name=settings.switch("tlsEnableHostnameVerification", default=True),
        ),
        plugin,
        params,
    )
