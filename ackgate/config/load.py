"""Where settings come from: defaults < file < environment < `--set`. The last one to speak wins.

Edge: reads the file, and is the only reader of the environment.

- *File*: a Pulsar `broker.conf` as it is. An empty value leaves the key unset, as in Pulsar; of a port
  it means that there is none, as in Pulsar, too, and from every source. Keys
  that are not used here are collected, not refused: such a file has hundreds of them. Those that ask
  for security are refused (`unused_keys.py`).
- *Environment*: `ACKGATE_<key>`, or `PULSAR_PREFIX_<key>` as with Pulsar's container images; the
  key in its own spelling, `ACKGATE_brokerServicePort=6651`. `ACKGATE_CLIENT_authPlugin`, `ACKGATE_PORT`
  and the like, whose first word is in capitals, are no settings of a broker.
- *`--set KEY=VALUE`*: a key that is not used here is an error, since somebody has just typed it; but
  one that asks for security may be switched off so. An empty value brings back the default.

Keys that Pulsar deprecated count as the keys that took their place.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.config.field import key_of
from ackgate.config.persistence import ONLY_OF_DIRECTORIES
from ackgate.config.properties import parse_properties
from ackgate.config.security import SecuritySettings
from ackgate.config.settings import CLEARED_BY_NOTHING, FIELDS, Given, Settings, unknown_key
from ackgate.config.unused_keys import SECURITY_KEYS, UnusedKey, refuse_security, unused_keys
from ackgate.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FILE_BYTES_MAX: Final = 1024 * 1024
"""A `broker.conf` with all its comments has 80 kB; a larger file is not one."""

ENVIRONMENT_PREFIXES: Final = ("PULSAR_PREFIX_", "ACKGATE_")
"""Prefixes of keys in the environment. The later one wins."""

_NO_SETTING: Final = re.compile(r"ACKGATE_[A-Z0-9]+(_|$)")
"""Variables that are no settings: those of the command line, of test suites, and of Kubernetes,
which names the ports of a service `ackgate` like this."""

_OF_SERVING: Final = frozenset(map(key_of, SecuritySettings.model_fields))
"""Security settings. A tool without connections ignores them: it authenticates nobody, and Pulsar
has more ways to do it."""


class OlderName(NamedTuple):
    """A key that Pulsar deprecated, and how to turn its value into one of the present key."""

    present_key: str
    unset: str
    """The text that counts as not given."""
    prefix: str
    """Put before the older key's value to make the present key's."""
    has_precedence: bool
    """Whether it wins over the present key if one source gives both."""


OLDER_NAMES: Final[Mapping[str, OlderName]] = {
    "managedLedgerMaxUnackedRangesToPersistInZooKeeper": OlderName(
        present_key="managedLedgerMaxUnackedRangesToPersistInMetadataStore",
        unset="-1",
        prefix="",
        has_precedence=True,
    ),
    "zookeeperServers": OlderName(
        present_key="metadataStoreUrl", unset="", prefix="zk:", has_precedence=False
    ),
}


@dataclass(frozen=True, slots=True)
class GivenSettings:
    """What all sources together give, before it is checked."""

    given: Mapping[str, Given]
    """By key, from the last source that has it. A deprecated key stands under its present name."""

    older: Mapping[str, Given]
    """The deprecated keys that were used, by their own names."""

    @property
    def used(self) -> dict[str, Given]:
        """The given keys that are settings."""
        return {key: value for key, value in self.given.items() if key in FIELDS}

    @property
    def of_directories(self) -> dict[str, Given]:
        """Given settings that have no effect because the ledgers lie on a BookKeeper cluster."""
        if "bookkeeperMetadataServiceUri" not in self.given:
            return {}
        return {key: value for key, value in self.given.items() if key in ONLY_OF_DIRECTORIES}

    @property
    def unused(self) -> tuple[UnusedKey, ...]:
        """The given keys that are no settings, sorted by key."""
        return unused_keys(self.given, FIELDS)


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings, and the given keys that have no effect."""

    settings: Settings

    unused: tuple[UnusedKey, ...]
    """Keys from the file and the environment, sorted."""

    of_directories: tuple[str, ...] = ()
    """Keys that have no effect because the ledgers lie on a BookKeeper cluster."""


def load_settings(
    config_file: Path | None = None,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    *,
    is_serving: bool = True,
) -> LoadedSettings:
    """Load and check the settings from every source. `overrides` are the `KEY=VALUE` of `--set`.

    `is_serving`: False for a tool without connections, so that the settings of a broker with
    security can be read. Raises `ConfigurationError`, which names source, key, value and what is
    allowed, or which security the broker does not have.
    """
    found = gather(config_file, overrides, environ)
    if is_serving:
        refuse_security(found.given)
    used = found.used
    if not is_serving:
        used = {key: given for key, given in used.items() if key not in _OF_SERVING}
    settings = Settings().with_given(used)
    return LoadedSettings(settings, found.unused, tuple(sorted(found.of_directories)))


def gather(
    config_file: Path | None = None,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> GivenSettings:
    """Collect what the sources give.

    Raises `ConfigurationError` for a source that cannot be read.
    """
    older: dict[str, Given] = {}
    given = _from_file(config_file, older) if config_file else {}
    given |= _from_environment(os.environ if environ is None else environ, older)
    for key, override in _from_overrides(overrides, older).items():
        if override.text or key in CLEARED_BY_NOTHING:
            given[key] = override
        else:
            given.pop(key, None)
    return GivenSettings(given, older)


def _from_file(path: Path, older: dict[str, Given]) -> dict[str, Given]:
    properties = parse_properties(_read(path), str(path))
    # An empty value unsets the key: also when an earlier line of the file had set it.
    last = {found.key: Given(found.value.strip(), f"{path}:{found.line}") for found in properties}
    return _by_present_name(_that_say_something(last), older)


def _that_say_something(given: Mapping[str, Given]) -> dict[str, Given]:
    return {key: value for key, value in given.items() if value.text or key in CLEARED_BY_NOTHING}


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > FILE_BYTES_MAX:
        raise ConfigurationError(
            f"{path}: larger than {FILE_BYTES_MAX} bytes; this is no configuration file"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")  # what Java reads; every byte sequence is valid in it


def _from_environment(environ: Mapping[str, str], older: dict[str, Given]) -> dict[str, Given]:
    found: dict[str, Given] = {}
    for prefix in ENVIRONMENT_PREFIXES:
        named = {
            name.removeprefix(prefix): Given(text.strip(), f"environment {name}")
            for name, text in environ.items()
            if name.startswith(prefix) and not _NO_SETTING.match(name)
        }
        found |= _by_present_name(_that_say_something(named), older)
    return found


def _from_overrides(overrides: Sequence[str], older: dict[str, Given]) -> dict[str, Given]:
    found: dict[str, Given] = {}
    for override in overrides:
        key, equals, text = (part.strip() for part in override.partition("="))
        if not equals:
            raise ConfigurationError(f"--set {override}: must have the form KEY=VALUE")
        if key not in FIELDS and key not in OLDER_NAMES and key not in SECURITY_KEYS:
            raise ConfigurationError(unknown_key(key, "--set"))
        found[key] = Given(text, "--set")
    return _by_present_name(found, older)


def _by_present_name(given: dict[str, Given], older: dict[str, Given]) -> dict[str, Given]:
    """What one source gives, with deprecated keys renamed. Adds those to `older`."""
    for name, present in OLDER_NAMES.items():
        value = given.pop(name, None)
        if value is None or value.text == present.unset:
            continue
        older[name] = value
        if present.has_precedence or present.present_key not in given:
            given[present.present_key] = Given(present.prefix + value.text, value.origin)
    return given


# ---- how a command reaches a broker: Pulsar's `client.conf`


CLIENT_KEYS: Final = (
    "webServiceUrl",
    "authPlugin",
    "authParams",
    "tlsTrustCertsFilePath",
    "tlsCertificateFilePath",
    "tlsKeyFilePath",
    "tlsAllowInsecureConnection",
    "tlsEnableHostnameVerification",
)
"""Keys of `client.conf` that commands use; others are ignored."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Values of `CLIENT_KEYS` as texts. A key that was not given has an empty text."""

    texts: dict[str, str] = field(default_factory=dict, repr=False)

    def __getitem__(self, key: str) -> str:
        return self.texts.get(key, "")

    def switch(self, key: str, *, default: bool) -> bool:
        """The key's value as a switch. Raises `ConfigurationError` for anything but true and false."""
        text = self[key].lower()
        if text not in {"", "true", "false"}:
            raise ConfigurationError(f"{key}={self[key]} is not allowed; it is true or false")
        return text == "true" if text else default


def client_settings(
    file: str | Path | None, given: Mapping[str, str], environ: Mapping[str, str] | None = None
) -> ClientSettings:
    """How a command reaches a broker. Raises `ConfigurationError` for a file that cannot be read.

    Sources, the last one wins: `file` or what ``PULSAR_CLIENT_CONF`` names, the environment's
    ``ACKGATE_CLIENT_<key>``, and `given` (by key).
    """
    environ = os.environ if environ is None else environ
    name = file or environ.get("PULSAR_CLIENT_CONF")
    texts: dict[str, str] = {}
    if name:
        found = parse_properties(_read(Path(name)), str(name))
        texts = {each.key: each.value.strip() for each in found}
    named = {key: environ.get(f"ACKGATE_CLIENT_{key}", "") for key in CLIENT_KEYS}
    for source in (named, given):
        texts |= {key: text for key, text in source.items() if text}
    return ClientSettings({key: texts[key] for key in CLIENT_KEYS if texts.get(key)})
