"""All settings, by room, and the one way from texts to them.

Pure. `Settings()` is every default. A text (from a file, the environment, a command line, the admin
interface) becomes a value in `with_given` only, which knows where each text came from and says so
when it cannot be used.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ackgate.config.broker import PORT_MAX, BrokerSettings
from ackgate.config.defaults import ENTRY_OVERHEAD_BYTES
from ackgate.config.delayed import DelayedSettings
from ackgate.config.dispatcher import DispatcherSettings
from ackgate.config.field import (
    INT_MAX,
    SettingsGroup,
    about,
    allowed,
    is_secret,
    key_of,
    may_be_nothing,
)
from ackgate.config.journal import JournalSettings
from ackgate.config.persistence import (
    BOOKKEEPER_COPIES,
    STOCK_FRAME_BYTES,
    CursorSettings,
    PersistenceSettings,
)
from ackgate.config.security import SecuritySettings
from ackgate.config.tls import TlsSettings
from ackgate.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.fields import FieldInfo

ROOMS: Final[Mapping[str, type[SettingsGroup]]] = {
    "cursor": CursorSettings,
    "persistence": PersistenceSettings,
    "dispatcher": DispatcherSettings,
    "delayed": DelayedSettings,
    "journal": JournalSettings,
    "broker": BrokerSettings,
    "security": SecuritySettings,
    "tls": TlsSettings,
}

FIELDS: Final[Mapping[str, FieldInfo]] = {
    key_of(name): field for room in ROOMS.values() for name, field in room.model_fields.items()
}
"""Every setting by its key."""

DYNAMIC_KEYS: Final = frozenset(key for key, field in FIELDS.items() if about(field).is_dynamic)
"""Keys that may change while the broker runs."""

CLEARED_BY_NOTHING: Final = frozenset(
    key for key, field in FIELDS.items() if may_be_nothing(field) and field.default is not None
)
"""Keys for which an empty value means none. For other keys it brings back the default."""

_COPIES: Final = (
    "managedLedgerDefaultEnsembleSize",
    "managedLedgerDefaultWriteQuorum",
    "managedLedgerDefaultAckQuorum",
)

HIDDEN: Final = "******"
"""Shown in place of a secret."""


class Given(NamedTuple):
    """A text that was given for a key, and its source: "broker.conf:12", "--set"."""

    text: str
    origin: str


class Settings(BaseModel):
    """Every setting, one group per room."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    cursor: CursorSettings = Field(default_factory=CursorSettings)
    persistence: PersistenceSettings = Field(default_factory=PersistenceSettings)
    dispatcher: DispatcherSettings = Field(default_factory=DispatcherSettings)
    delayed: DelayedSettings = Field(default_factory=DelayedSettings)
    journal: JournalSettings = Field(default_factory=JournalSettings)
    broker: BrokerSettings = Field(default_factory=BrokerSettings)
    security: SecuritySettings = Field(default_factory=SecuritySettings)
    tls: TlsSettings = Field(default_factory=TlsSettings)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        resume = self.dispatcher.dispatcher_pause_on_ack_state_resume_ranges
        limit = self.persistence.managed_ledger_max_unacked_ranges_to_persist
        if resume > limit:
            raise ValueError(
                "need dispatcherPauseOnAckStateResumeRanges <= "
                f"managedLedgerMaxUnackedRangesToPersist, got {resume} and {limit}"
            )
        entry_bytes = self.persistence.max_entry_bytes
        message_bytes = self.broker.max_message_size
        if entry_bytes < message_bytes + ENTRY_OVERHEAD_BYTES:
            raise ValueError(
                f"need maxEntryBytes >= maxMessageSize + {ENTRY_OVERHEAD_BYTES}, "
                f"got {entry_bytes} and {message_bytes}"
            )
        self._agree_on_ports()
        if self.broker.broker_workers > 1:
            self._agree_on_workers()
        return self

    def _agree_on_workers(self) -> None:
        broker = self.broker
        url = self.persistence.metadata_store_url
        if url and not url.startswith("sqlite:"):
            raise ValueError(
                f"brokerWorkers={broker.broker_workers} needs the embedded metadata store, and"
                f" metadataStoreUrl is {url}: run one broker for each core on that store instead"
            )
        if broker.advertised_listeners:
            self._agree_on_listeners_of_workers()
        taken = {bound.port: f"that of {bound.text}" for bound in broker.bound_listeners}
        for number in range(broker.broker_workers + 1):
            for key, port in broker.ports_of_worker(number).items():
                whose = f"{key} of worker {number}" if number else key
                if port > PORT_MAX:
                    raise ValueError(
                        f"{whose} would be {port}, and there is none: choose a lower {key}"
                    )
                if port and taken.setdefault(port, whose) != whose:
                    raise ValueError(
                        f"{whose} would be {port}, as {taken[port]} is: worker n has the ports of the"
                        " broker and ten times n"
                    )

    def _agree_on_listeners_of_workers(self) -> None:
        broker = self.broker
        for key, port in broker.ports_of_worker(0).items():
            if not port:
                raise ValueError(
                    f"{key} is 0, so nobody can map a port of advertisedListeners to that of a worker:"
                    " with brokerWorkers above 1 give it a number"
                )
        taken: dict[str, str] = {}
        for number in range(broker.broker_workers + 1):
            for text in broker.listeners_of_worker(number):
                name, _, url = text.partition(":")
                place = url.rpartition("/")[2]
                whose = f"{name} of worker {number}" if number else name
                if int(place.rpartition(":")[2]) > PORT_MAX:
                    raise ValueError(
                        f"advertisedListeners: {whose} would be {place}, and there is no such port"
                    )
                if taken.setdefault(place, whose) != whose:
                    raise ValueError(
                        f"advertisedListeners: {whose} would be {place}, as {taken[place]} is: worker n"
                        " has the ports of the listener and ten times n"
                    )

    def _agree_on_ports(self) -> None:
        broker = self.broker
        for plain, by_tls, plain_key, tls_key in (
            (
                *(broker.broker_service_port, broker.broker_service_port_tls),
                *("brokerServicePort", "brokerServicePortTls"),
            ),
            (
                *(broker.web_service_port, broker.web_service_port_tls),
                *("webServicePort", "webServicePortTls"),
            ),
        ):
            if plain is None and by_tls is None:
                raise ValueError(f"{plain_key} and {tls_key} are both empty: one of them is needed")
            if by_tls is not None and not self.tls.tls_certificate_file_path:
                raise ValueError(f"{tls_key} needs tlsCertificateFilePath")
        if not self.tls.tls_certificate_file_path:
            for bound in broker.bound_listeners:
                if bound.scheme in {"pulsar+ssl", "https"}:
                    raise ValueError(
                        f"bindAddresses: {bound.scheme} of {bound.name} needs tlsCertificateFilePath"
                    )
        ports = (broker.broker_service_port_tls, broker.web_service_port_tls)
        if self.tls.tls_require_trusted_client_cert_on_connect and ports == (None, None):
            raise ValueError(
                "tlsRequireTrustedClientCertOnConnect needs brokerServicePortTls or webServicePortTls"
            )
        if self.tls.broker_client_tls_enabled and broker.web_service_port_tls is None:
            raise ValueError(
                "brokerClientTlsEnabled needs webServicePortTls: there the other brokers ask this one"
            )

    def with_dynamic(self, changes: Mapping[str, str]) -> Settings:
        """These settings with some changed at run time, by key; all of them or none.

        Apply every change in force to the settings that the broker started with: to take a change
        back is to leave it out. Raises `ConfigurationError`.
        """
        for key in changes:
            if key not in FIELDS:
                raise ConfigurationError(unknown_key(key, "dynamic configuration"))
            if key not in DYNAMIC_KEYS:
                raise ConfigurationError(
                    f"dynamic configuration: {key} cannot change while the broker runs"
                )
        given = {key: Given(text, "dynamic configuration") for key, text in changes.items()}
        return self.with_given(given)

    def with_given(self, given: Mapping[str, Given]) -> Settings:
        """These settings with texts in place of some values. Every key must be in `FIELDS`.

        Raises `ConfigurationError`, a line for each text that cannot be used.
        """
        complaints: list[str] = []
        rooms: dict[str, Any] = {}
        for name, room in ROOMS.items():
            values = _values(getattr(self, name))
            values |= {key: _parse(key, given[key].text) for key in values if key in given}
            if name == "persistence" and "maxEntryBytes" not in given:
                values["maxEntryBytes"] = max(values["maxEntryBytes"], _entry_bytes(given))
            if "bookkeeperMetadataServiceUri" in given:
                defaults = _defaults_on_bookkeeper(given)
                values |= {key: defaults[key] for key in defaults if key in values}
            try:
                rooms[name] = room.model_validate(values)
            except ValidationError as error:
                complaints += _complaints(error, given)
        if not complaints:
            try:
                return Settings(**rooms)
            except ValidationError as error:
                complaints += _complaints(error, given)
        raise ConfigurationError("\n".join(complaints))

    def texts(self) -> dict[str, str]:
        """Every setting in force by its key, as in a `broker.conf`. `HIDDEN` replaces a secret."""
        return {
            key: _text(value) if not is_secret(FIELDS[key]) else HIDDEN
            for name in ROOMS
            for key, value in _values(getattr(self, name)).items()
        }


def unknown_key(key: str, origin: str) -> str:
    """Error text for a key that does not exist, with the key that was probably meant."""
    known = {candidate.lower(): candidate for candidate in FIELDS}
    near = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.7)
    hint = f"; did you mean {known[near[0]]}?" if near else ""
    return f"{origin}: {key} is not a setting of this broker{hint}"


def _values(group: SettingsGroup) -> dict[str, Any]:
    return {key_of(name): getattr(group, name) for name in type(group).model_fields}


def _parse(key: str, text: str) -> object:
    """Convert the text to what pydantic takes. It reads numbers and switches itself."""
    if get_origin(FIELDS[key].annotation) is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    return None if not text and key in CLEARED_BY_NOTHING else text


def _text(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case tuple():
            return ",".join(map(str, value))
        case _:
            return str(value)


def _entry_bytes(given: Mapping[str, Given]) -> int:
    """The least `maxEntryBytes` for the given `maxMessageSize`, which counts as 0 if not given."""
    text = given["maxMessageSize"].text if "maxMessageSize" in given else ""
    message_bytes = int(text) if text.isdecimal() else 0
    return min(message_bytes + ENTRY_OVERHEAD_BYTES, INT_MAX)


def _defaults_on_bookkeeper(given: Mapping[str, Given]) -> dict[str, int]:
    """Values of keys that are not given and have other defaults on a BookKeeper cluster."""
    defaults = dict.fromkeys(_COPIES, BOOKKEEPER_COPIES)
    defaults["maxMessageSize"] = STOCK_FRAME_BYTES - 2 * ENTRY_OVERHEAD_BYTES
    stock_entry_bytes = STOCK_FRAME_BYTES - ENTRY_OVERHEAD_BYTES
    defaults["maxEntryBytes"] = max(stock_entry_bytes, _entry_bytes(given))
    return {key: value for key, value in defaults.items() if key not in given}


def _complaints(error: ValidationError, given: Mapping[str, Given]) -> list[str]:
    """One line for each wrong value: its source, the value, and what is allowed."""
    lines: dict[str, None] = {}  # in order, once: a list with two bad members is one bad text
    for detail in error.errors(include_url=False, include_input=False):
        place = detail["loc"]
        key = str(place[0]) if place else ""
        if key in given:
            wrong, field = given[key], FIELDS[key]
            text = HIDDEN if is_secret(field) else wrong.text
            line = f"{wrong.origin}: {key}={text} is not allowed; it is {allowed(field)}"
        else:
            line = detail["msg"].removeprefix("Value error, ")
            origins = [f"{key}: {given[key].origin}" for key in given if key in line]
            line += f" ({', '.join(origins)})" if origins else ""
        lines[line] = None
    return list(lines)
