"""TLS to ZooKeeper, as a file of its own client properties asks for it (Pulsar's `metadataStoreConfigPath`).

Edge: reads the file. Only what a client without Java can do: stores in PEM form. A key store in that form is
one file with the certificate and its key. ::

    zookeeper.client.secure=true
    zookeeper.ssl.trustStore.location=/etc/ackgate/ca.pem
    zookeeper.ssl.keyStore.location=/etc/ackgate/client-and-key.pem
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from ackgate.config.properties import parse_properties
from ackgate.errors import ConfigurationError
from ackgate.network import ClientTls, PemFile

if TYPE_CHECKING:
    from collections.abc import Mapping

SETTING: Final = "metadataStoreConfigPath"
_PREFIX: Final = "zookeeper."


def zookeeper_tls(path: str) -> ClientTls | None:
    """What the file asks for; None: nothing, or no file is named. Raises `ConfigurationError`."""
    if not path:
        return None
    file = PemFile(SETTING, path)
    found = {each.key: each.value.strip() for each in parse_properties(file.text(), path)}
    if found.get(f"{_PREFIX}client.secure", "").lower() != "true":
        return None
    return ClientTls(
        trust=_store(found, path, "ssl.trustStore"),
        certificate=_store(found, path, "ssl.keyStore"),
        verifies_host_name=found.get(f"{_PREFIX}ssl.hostnameVerification", "").lower() != "false",
        protocols=tuple(
            each.strip()
            for each in found.get(f"{_PREFIX}ssl.enabledProtocols", "").split(",")
            if each.strip() in {"TLSv1.2", "TLSv1.3"}
        ),
        ciphers=tuple(
            each.strip()
            for each in found.get(f"{_PREFIX}ssl.ciphersuites", "").split(",")
            if each.strip()
        ),
        ciphers_key=f"{path}: {_PREFIX}ssl.ciphersuites",
    )


def _store(found: Mapping[str, str], path: str, name: str) -> PemFile:
    key = f"{_PREFIX}{name}"
    location = found.get(f"{key}.location", "")
    kind = found.get(f"{key}.type", "").upper() or (Path(location).suffix[1:].upper())
    if location and kind != "PEM":
        raise ConfigurationError(
            f"{path}: {key}.location={location}: a store of type {kind or 'JKS'}; it must be PEM "
            f"({key}.type=PEM)"
        )
    return PemFile(f"{path}: {key}.location", location)
