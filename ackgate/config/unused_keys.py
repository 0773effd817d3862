"""Keys of a `broker.conf` that have no effect, and those that stop the start.

Pure, but for reading the list of Pulsar's keys beside this file. A real `broker.conf` has hundreds of
keys without effect here, nearly all at Pulsar's default. Those that matter are the few that were
changed, and unknown ones, which may be misspelt.

A key that enables security is different. Its user relies on it, so a broker without it does not start
(`refuse_security`). Only the switches count: a key file without
a port that uses it protects nothing in Pulsar either, and is one of the keys without effect.
"""

from __future__ import annotations

import difflib
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.config.properties import parse_properties
from ackgate.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ackgate.config.settings import Given

PULSAR_VERSION: Final = "4.0"
_LIST: Final = Path(__file__).with_name(f"pulsar-{PULSAR_VERSION}.conf")

_PASSED_ON: Final = ("brokerClient_", "bookkeeper_")
"""Pulsar passes keys with these prefixes on to its clients, whatever follows."""

_SECRET_WORDS: Final = ("password", "secret", "param", "token", "auth", "credential", "key")

DEPRECATED: Final = frozenset(
    {
        "backlogQuotaDefaultLimitGB",
        "brokerServicePurgeInactiveFrequencyInSeconds",
        "configurationStoreServers",
        "enableNamespaceIsolationUpdateOnTime",
        "globalZookeeperServers",
        "loadBalancerBandwithInResourceWeight",
        "loadBalancerBandwithOutResourceWeight",
        "loadBalancerBrokerComfortLoadLevelPercentage",
        "loadBalancerBrokerUnderloadedThresholdPercentage",
        "loadBalancerMemoryResourceWeight",
        "loadBalancerPlacementStrategy",
        "managedLedgerCacheEvictionFrequency",
        "managedLedgerMaxUnackedRangesToPersistInZooKeeper",
        "numCacheExecutorThreadPoolSize",
        "numWorkerThreadsForNonPersistentTopic",
        "replicationTlsEnabled",
        "subscriptionKeySharedEnable",
        "tlsEnabled",
        "zooKeeperAllowReadOnlyOperations",
        "zooKeeperCacheExpirySeconds",
        "zooKeeperOperationTimeoutSeconds",
        "zooKeeperSessionTimeoutMillis",
        "zookeeperServers",
    }
)
"""Keys that Pulsar 4.0 marks as deprecated."""


# ---------------------------------------------------------------------------------- security


def _unless_false(text: str) -> bool:
    return text.lower() != "false"  # "yes" turns nothing on in Pulsar, but is meant to


class SecuritySwitch(NamedTuple):
    """A key that turns on a protection which this broker may not have."""

    key: str
    asks_for: str
    """The protection, in words."""
    is_on: Callable[[str], bool] = _unless_false
    """Whether a value turns it on; called with a text that is not empty."""
    given_by: tuple[str, ...] = ()
    """Settings each of which provides the protection."""

    @property
    def off(self) -> str:
        """The `--set` argument that turns it off."""
        return f"{self.key}={'false' if self.is_on is _unless_false else ''}"


SECURITY_SWITCHES: Final = (
    SecuritySwitch(
        "tlsEnabled", "ports that encrypt", given_by=("brokerServicePortTls", "webServicePortTls")
    ),
    SecuritySwitch("tlsEnabledWithKeyStore", "ports that encrypt, by a key store"),
    SecuritySwitch("encryptionRequireOnProducer", "only encrypted messages are taken"),
    SecuritySwitch("brokerClientTlsEnabledWithKeyStore", "the same, by a key store"),
    SecuritySwitch("replicationTlsEnabled", "clusters talk to each other encrypted"),
)
"""To implement one, remove it here and make it a setting."""

SECURITY_KEYS: Final = frozenset(switch.key for switch in SECURITY_SWITCHES)


class SecurityAsked(NamedTuple):
    """A switch that is on, and the text and source that turned it on."""

    switch: SecuritySwitch
    given: Given


def security_asked_for(given: Mapping[str, Given]) -> list[SecurityAsked]:
    """The switches that are on and whose protection no given setting provides."""
    return [
        SecurityAsked(switch, given[switch.key])
        for switch in SECURITY_SWITCHES
        if switch.key in given
        and given[switch.key].text
        and switch.is_on(given[switch.key].text)
        and not any(key in given and given[key].text for key in switch.given_by)
    ]


def refuse_security(given: Mapping[str, Given]) -> None:
    """Raise `ConfigurationError` naming every switch that is on, and what can be done."""
    asked = security_asked_for(given)
    if not asked:
        return
    lines = [f"{given.origin}: {switch.key} asks for: {switch.asks_for}" for switch, given in asked]
    off = " ".join(f"--set {switch.off}" for switch, _ in asked)
    head = (
        "the configuration asks for security that this broker does not have, so it does not start:"
    )
    tail = (
        "Without it, everyone who reaches the ports can read and change everything. "
        f"To start without it: {off}"
    )
    raise ConfigurationError("\n".join((head, *lines, tail)))


# -------------------------------------------------------------------------------- all others


class UnusedKey(NamedTuple):
    """A given key that has no effect here."""

    key: str
    given: Given
    pulsar_default: str | None
    """None if Pulsar has no such key."""

    @property
    def is_known(self) -> bool:
        """Whether Pulsar has such a key."""
        return self.pulsar_default is not None

    @property
    def is_deprecated(self) -> bool:
        """Whether Pulsar has deprecated the key."""
        return self.key in DEPRECATED

    @property
    def is_at_default(self) -> bool:
        """Whether the value is what Pulsar does by default."""
        return self.pulsar_default is not None and _is_same(self.given.text, self.pulsar_default)

    @property
    def shown_value(self) -> str:
        """The value, or asterisks where it may be a secret."""
        is_secret = any(word in self.key.lower() for word in _SECRET_WORDS)
        is_plain = self.given.text.lower() in {"true", "false"} or self.given.text.isdecimal()
        return self.given.text if self.is_known and (is_plain or not is_secret) else "******"

    @property
    def meant(self) -> str | None:
        """Pulsar's key that is spelt most like this one; None if none is close."""
        known = {key.lower(): key for key in pulsar_defaults()}
        near = difflib.get_close_matches(self.key.lower(), known, n=1, cutoff=0.8)
        return known[near[0]] if near else None


def unused_keys(given: Mapping[str, Given], used: Iterable[str]) -> tuple[UnusedKey, ...]:
    """The given keys without effect, sorted."""
    names = sorted(given.keys() - set(used))
    defaults = pulsar_defaults() if names else {}
    return tuple(UnusedKey(key, given[key], _default_of(key, defaults)) for key in names)


@functools.cache
def pulsar_defaults() -> Mapping[str, str]:
    """Every key of Pulsar's broker with its default."""
    text = _LIST.read_text(encoding="utf-8")
    return {found.key: found.value.strip() for found in parse_properties(text, _LIST.name)}


def _default_of(key: str, defaults: Mapping[str, str]) -> str | None:
    return defaults.get(key, "" if key.startswith(_PASSED_ON) else None)


def _is_same(text: str, default: str) -> bool:
    if text.lower() == default.lower():
        return True
    try:
        return float(text) == float(default)
    except ValueError:
        return False
