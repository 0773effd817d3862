"""The nodes of brokers in the metadata store: which brokers live, and which one owns a bundle.

Pure. Both nodes are ephemeral and JSON. ::

    /loadbalance/brokers/<host:httpport>     a broker that lives
    /namespace/<tenant>/<namespace>/<range>  the owner of a bundle (by its range of hashes)

The address of its admin interface is a broker's name. The *instance* separates two runs of one
broker: nodes of an earlier run are not ours, although they have our name.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass
from typing import Any, Final, Self

from ackgate.errors import CorruptRecordError
from ackgate.network import AdvertisedListener, Urls
from ackgate.persistence.nodes.paths import node_of_name

BROKERS: Final = "/loadbalance/brokers"
OWNERS: Final = "/namespace"

HASH_MAX: Final = 0xFFFF_FFFF
_RANGE: Final = re.compile(r"0x([0-9a-f]{8})_0x([0-9a-f]{8})")


@dataclass(frozen=True, slots=True)
class BrokerRecord:
    """A broker as it announces itself."""

    broker_id: str
    """``host:port`` of its admin interface."""
    service_url: str
    """Where clients connect in clear; empty: nowhere."""
    web_url: str
    """Its admin interface in clear; empty: there is none."""
    instance: str
    """Unique for one session of one life."""
    bookies: tuple[str, ...] = ()
    """Ids of the bookies that it can reach."""
    started_ms: int = 0
    run: int = -1
    """Number of this start among all starts of brokers; marks the ledgers that it makes."""
    service_url_tls: str = ""
    """Where clients connect by TLS; empty: nowhere."""
    web_url_tls: str = ""
    """Its admin interface by TLS; empty: there is none."""
    listeners: tuple[AdvertisedListener, ...] = ()
    """Its addresses for other networks."""

    @property
    def service(self) -> Urls:
        return Urls(self.service_url, self.service_url_tls)

    @property
    def web(self) -> Urls:
        return Urls(self.web_url, self.web_url_tls)


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """The owner of a bundle."""

    broker_id: str
    service_url: str
    web_url: str
    instance: str
    epoch: int
    """Grows with every owner of the bundle."""
    is_disabled: bool = False
    """It is giving the bundle away."""
    service_url_tls: str = ""
    web_url_tls: str = ""

    @classmethod
    def of(cls, broker: BrokerRecord, epoch: int) -> Self:
        """A broker as the owner."""
        return cls(
            broker.broker_id,
            broker.service_url,
            broker.web_url,
            broker.instance,
            epoch,
            service_url_tls=broker.service_url_tls,
            web_url_tls=broker.web_url_tls,
        )

    @property
    def service(self) -> Urls:
        return Urls(self.service_url, self.service_url_tls)

    @property
    def web(self) -> Urls:
        return Urls(self.web_url, self.web_url_tls)


def broker_path(broker_id: str) -> str:
    """The node of a broker."""
    return f"{BROKERS}/{node_of_name(broker_id)}"


def owners_path(tenant: str, namespace: str) -> str:
    """The node below which lie the owners of a namespace's bundles."""
    return f"{OWNERS}/{node_of_name(tenant)}/{node_of_name(namespace)}"


def topic_hash(topic: str) -> int:
    """Hash of a topic (or partition), by its full name: its place among the bundles' ranges."""
    return zlib.crc32(topic.encode())


def is_in_range(range_name: str, topic: str) -> bool:
    """Whether a topic, by its full name, falls into the bundle of this range."""
    found = _RANGE.fullmatch(range_name)
    if found is None:
        return False
    low, high = (int(digits, 16) for digits in found.groups())
    place = topic_hash(topic)
    return low <= place < high or place == high == HASH_MAX


def encode_broker(record: BrokerRecord) -> bytes:
    return _encode(
        {
            "brokerId": record.broker_id,
            "pulsarServiceUrl": record.service_url,
            "pulsarServiceUrlTls": record.service_url_tls,
            "webServiceUrl": record.web_url,
            "webServiceUrlTls": record.web_url_tls,
            "instance": record.instance,
            "bookies": list(record.bookies),
            "startTimestamp": record.started_ms,
            "advertisedListeners": {
                each.name: {
                    "brokerServiceUrl": each.service.plain,
                    "brokerServiceUrlTls": each.service.tls,
                    "brokerHttpUrl": each.web.plain,
                    "brokerHttpsUrl": each.web.tls,
                }
                for each in record.listeners
            },
            "run": record.run,
        }
    )


def decode_broker(value: bytes, *, path: str) -> BrokerRecord:
    """Read the value of a broker's node. Raises `CorruptRecordError` naming the path."""
    try:
        fields = json.loads(value)
        return BrokerRecord(
            broker_id=_text(fields, "brokerId"),
            service_url=_text(fields, "pulsarServiceUrl"),
            web_url=_text(fields, "webServiceUrl"),
            instance=_text(fields, "instance"),
            bookies=tuple(str(bookie) for bookie in fields.get("bookies", ())),
            started_ms=int(fields.get("startTimestamp", 0)),
            run=int(fields.get("run", -1)),
            service_url_tls=_text(fields, "pulsarServiceUrlTls", ""),
            web_url_tls=_text(fields, "webServiceUrlTls", ""),
            listeners=tuple(
                AdvertisedListener(
                    name,
                    Urls(
                        _text(urls, "brokerServiceUrl", ""), _text(urls, "brokerServiceUrlTls", "")
                    ),
                    Urls(_text(urls, "brokerHttpUrl", ""), _text(urls, "brokerHttpsUrl", "")),
                )
                for name, urls in fields.get("advertisedListeners", {}).items()
            ),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptRecordError(f"node {path} cannot be read: {error!r}") from error


def encode_owner(record: OwnerRecord) -> bytes:
    return _encode(
        {
            "nativeUrl": record.service_url,
            "nativeUrlTls": record.service_url_tls,
            "httpUrl": record.web_url,
            "httpUrlTls": record.web_url_tls,
            "disabled": record.is_disabled,
            "brokerId": record.broker_id,
            "instance": record.instance,
            "epoch": record.epoch,
        }
    )


def decode_owner(value: bytes, *, path: str) -> OwnerRecord:
    """Read the value of a bundle's node. Raises `CorruptRecordError` naming the path."""
    try:
        fields = json.loads(value)
        return OwnerRecord(
            broker_id=_text(fields, "brokerId"),
            service_url=_text(fields, "nativeUrl"),
            web_url=_text(fields, "httpUrl"),
            instance=_text(fields, "instance"),
            epoch=int(fields["epoch"]),
            is_disabled=fields.get("disabled") is True,
            service_url_tls=_text(fields, "nativeUrlTls", ""),
            web_url_tls=_text(fields, "httpUrlTls", ""),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptRecordError(f"node {path} cannot be read: {error!r}") from error


def _encode(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _text(fields: dict[str, Any], key: str, default: str | None = None) -> str:
    value = fields[key] if default is None else fields.get(key) or default
    if not isinstance(value, str):
        raise TypeError(f"{key} is {value!r}")
    return value
