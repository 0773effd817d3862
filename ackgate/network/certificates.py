"""The certificate that a client has shown in the TLS handshake, and that was verified.

Pure, but for the transport that it asks. Names are written as in RFC 2253, the most specific part first, as
Java's ``X500Principal.getName`` has them: ``CN=alice,OU=sales,O=example``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import asyncio

_SHORT: Final = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
"""OpenSSL's long names, and what RFC 2253 calls them; others keep theirs."""

_ESCAPED: Final = frozenset(',+"\\<>;=')


class PeerCertificate(NamedTuple):
    """A verified certificate."""

    subject: str
    """Its distinguished name, RFC 2253."""
    common_name: str
    """The most specific CN of the subject; empty: it has none."""


def peer_certificate(transport: asyncio.BaseTransport | None) -> PeerCertificate | None:
    """What the other side of a connection has shown. None: no TLS, or no certificate.

    A certificate that was not verified is none: the listener asks only for those that it verifies.
    """
    found: Any = transport.get_extra_info("peercert") if transport is not None else None
    if not found:
        return None
    parts = [pair for part in found.get("subject", ()) for pair in part]
    names = [value for name, value in parts if name == "commonName"]
    subject = ",".join(
        "+".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in part)
        for part in reversed(found.get("subject", ()))
    )
    return PeerCertificate(subject, names[-1] if names else "")


def _escaped(value: str) -> str:
    text = "".join(f"\\{letter}" if letter in _ESCAPED else letter for letter in value)
    if text.startswith(("#", " ")):
        text = f"\\{text}"
    return f"{text[:-1]}\\ " if len(value) > 1 and value.endswith(" ") else text
