"""Names that clients send: topics, namespaces, subscriptions, producers.

Pure. A name is checked once, where it enters, and is a value afterwards::

    persistent :// tenant / namespace / topic-partition-3
    domain         tenant   namespace   local name: partition 3 of "topic"

    tenant/namespace/topic   ->  persistent://tenant/namespace/topic
    topic                    ->  persistent://public/default/topic

Refused with `InvalidTopicNameError` (topics, namespaces) or `InvalidNameError` (everything else):
what Pulsar refuses (an empty part, an unknown domain, letters outside ``-=:.`` and word characters
in tenant or namespace), and beyond it whatever could do harm where a name becomes a metadata node,
a log line or a table cell: control characters, ``.`` and ``..``, parts above `NAME_BYTES_MAX`; the
old form with a cluster (four parts) too. Non-persistent topics are recognised, so that they can be
refused as not offered instead of malformed (`require_persistent`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ackgate.broker.security import Resource
from ackgate.broker.wire.errors import (
    BrokerError,
    InvalidTopicNameError,
    NotAllowedError,
    ServerError,
)

NAME_BYTES_MAX: Final = 1024
"""UTF-8 bytes of one part of a name. Pulsar has no bound of its own; ZooKeeper's node and Linux's
path are 4,096 at most, and a path holds four parts."""

PARTITION_SUFFIX: Final = "-partition-"

_PARTITION_INDEX_MAX: Final = 2**31 - 1
_ENTITY: Final = re.compile(r"[-=:.\w]+", re.ASCII)  # Pulsar's NamedEntity
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # Unicode's Cc, Zl and Zp
_QUOTED_CHARACTERS_MAX: Final = 80


class InvalidNameError(BrokerError, ValueError):
    """The name of a subscription, producer or consumer cannot be used."""

    code = ServerError.NOT_ALLOWED


@dataclass(frozen=True, slots=True)
class NamespaceName:
    """A namespace: ``tenant/namespace``."""

    tenant: str
    namespace: str

    @classmethod
    def parse(cls, text: str) -> NamespaceName:
        """Parse ``tenant/namespace``. Raises `InvalidTopicNameError`."""
        parts = text.split("/")
        if len(parts) != 2:
            raise InvalidTopicNameError(
                f"invalid namespace name {quoted(text)}: expected tenant/namespace"
            )
        for kind, part in zip(("tenant", "namespace"), parts, strict=True):
            fault = _fault(part)
            if fault is None and not _ENTITY.fullmatch(part):
                fault = "only letters, digits and _-=:. are allowed"
            if fault:
                raise InvalidTopicNameError(f"invalid {kind} in name {quoted(text)}: {fault}")
        return cls(*parts)

    def __str__(self) -> str:
        return f"{self.tenant}/{self.namespace}"

    @property
    def resource(self) -> Resource:
        """The resource on which rights are checked."""
        return Resource(self.tenant, self.namespace)


@dataclass(frozen=True, slots=True)
class TopicName:
    """A full topic name. Equal names are equal values; `str` gives the full form."""

    namespace_name: NamespaceName
    local_name: str
    is_persistent: bool = True

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Parse a full or short name. Raises `InvalidTopicNameError` naming it."""
        domain, found, rest = text.partition("://")
        if not found:
            domain, rest = "persistent", text if "/" in text else f"public/default/{text}"
        if domain not in {"persistent", "non-persistent"}:
            raise InvalidTopicNameError(
                f"invalid topic name {quoted(text)}: domain {quoted(domain)} is not"
                " persistent or non-persistent"
            )
        parts = rest.split("/")
        if len(parts) != 3:
            raise InvalidTopicNameError(
                f"invalid topic name {quoted(text)}: expected [DOMAIN://]TENANT/NAMESPACE/TOPIC"
                " or TOPIC alone"
            )
        namespace_name = NamespaceName.parse(f"{parts[0]}/{parts[1]}")
        if fault := _fault(parts[2]):
            raise InvalidTopicNameError(f"invalid topic name {quoted(text)}: {fault}")
        name = cls(namespace_name, parts[2], domain == "persistent")
        if fault := _fault(name.partitioned.local_name):
            raise InvalidTopicNameError(
                f"invalid topic name {quoted(text)}: of its partitioned topic, {fault}"
            )
        return name

    def __str__(self) -> str:
        domain = "persistent" if self.is_persistent else "non-persistent"
        return f"{domain}://{self.namespace_name}/{self.local_name}"

    @property
    def tenant(self) -> str:
        """The tenant of its namespace."""
        return self.namespace_name.tenant

    @property
    def namespace(self) -> str:
        """Name of the namespace, without its tenant."""
        return self.namespace_name.namespace

    @property
    def partition_index(self) -> int:
        """N of ``...-partition-N``, or -1 for a name that is not a partition's.

        As Pulsar: the last such suffix counts, and N is written without leading zeros.
        """
        _, found, digits = self.local_name.rpartition(PARTITION_SUFFIX)
        if not found or not digits.isascii() or not digits.isdecimal() or len(digits) > 10:
            return -1
        index = int(digits)
        return index if str(index) == digits and index <= _PARTITION_INDEX_MAX else -1

    @property
    def is_partition(self) -> bool:
        """Whether this names one partition of a partitioned topic."""
        return self.partition_index >= 0

    @property
    def partitioned(self) -> TopicName:
        """The partitioned topic that this partition belongs to; itself otherwise."""
        if not self.is_partition:
            return self
        base = self.local_name.rpartition(PARTITION_SUFFIX)[0]
        return TopicName(self.namespace_name, base, self.is_persistent)

    def partition(self, index: int) -> TopicName:
        """The name of one partition of this topic."""
        local_name = f"{self.local_name}{PARTITION_SUFFIX}{index}"
        return TopicName(self.namespace_name, local_name, self.is_persistent)

    def resource(self, subscription: str = "") -> Resource:
        """The resource on which rights are checked: the topic, or a subscription of it."""
        return Resource(self.tenant, self.namespace, str(self), str(self.partitioned), subscription)

    def require_persistent(self) -> TopicName:
        """Itself, or `NotAllowedError` for a non-persistent topic."""
        if not self.is_persistent:
            raise NotAllowedError(f"this broker does not serve non-persistent topics: {self}")
        return self


def check_subscription_name(name: str) -> str:
    """Return the name if it is valid for a subscription. Raises `InvalidNameError`."""
    return _check("subscription name", name)


def check_producer_name(name: str) -> str:
    """Return the name if it is valid for a producer. Raises `InvalidNameError`."""
    return _check("producer name", name)


def check_consumer_name(name: str) -> str:
    """Return the name if it is valid for a consumer; it may be empty. Raises `InvalidNameError`."""
    return _check("consumer name", name) if name else name


def quoted(text: str) -> str:
    """The text in quotes, escaped and shortened, for error texts."""
    if len(text) > _QUOTED_CHARACTERS_MAX:
        text = text[:_QUOTED_CHARACTERS_MAX] + "..."
    return ascii(text) if not text.isprintable() else repr(text)


def _check(kind: str, name: str) -> str:
    if fault := _fault(name):
        raise InvalidNameError(f"invalid {kind} {quoted(name)}: {fault}")
    return name


def _fault(part: str) -> str | None:
    """What is wrong with one part of a name, or None."""
    if not part.strip():
        return "it is empty"
    if part in {".", ".."}:
        return f"{part!r} is no name"
    if len(part.encode()) > NAME_BYTES_MAX:
        return f"longer than {NAME_BYTES_MAX} bytes"
    if _CONTROL.search(part):
        return "control characters are not allowed"
    return None
