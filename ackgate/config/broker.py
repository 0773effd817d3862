"""Settings of the broker: addresses, connections, topics, message ledgers and retention. Pure."""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv6Address
from typing import Final, Literal, NamedTuple, Self

from pydantic import field_validator, model_validator

from ackgate.config.field import INT_MAX, SettingsGroup, setting

SubscriptionTypeName = Literal["Exclusive", "Shared", "Failover", "Key_Shared"]

CompatibilityName = Literal[
    "ALWAYS_COMPATIBLE",
    "ALWAYS_INCOMPATIBLE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
]


_NAME: Final = r"[a-zA-Z0-9_]([a-zA-Z0-9_.-]*[a-zA-Z0-9_])?\.?"
_HOST_NAME: Final = re.compile(_NAME)
_HOST_PATTERN: Final = re.compile(rf"\*|(\*\.)?{_NAME}")
_ORIGIN: Final = re.compile(rf"[a-z][a-z0-9+.-]*://({_NAME}|\[[0-9a-fA-F:.]+\])(:[0-9]{{1,5}})?/?")

_LISTENER: Final = re.compile(
    rf"(?P<name>[\w.-]+):(?P<url>(?P<scheme>pulsar|pulsar\+ssl|http|https)://"
    rf"(?P<place>(?P<host>{_NAME}|\[[0-9a-fA-F:.]+\]):(?P<port>[0-9]{{1,5}})))"
)

PORT_MAX: Final = 65_535


class BoundListener(NamedTuple):
    """An address to listen on, and the listener name for clients that connect there."""

    name: str
    scheme: str
    host: str
    port: int
    text: str
    """The address as `bindAddresses` has it; no two are equal."""


_WORKER_PORTS_STEP: Final = 10
"""Ports of the protocol and of the admin interface, in clear and by TLS, end in four different digits."""


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except AddressValueError:
        return False
    return True


class BrokerSettings(SettingsGroup):
    """The server that embeds the other rooms."""

    # --- where it is

    cluster_name: str = setting(
        "standalone",
        "Name of the cluster, as the admin interface shows it.",
        pulsar="",
        departs="Pulsar refuses to start without one; its standalone takes this name.",
    )
    data_directory: str = setting(
        "data",
        "Holds everything that must survive a restart. One broker at a time.",
    )
    broker_service_port: int | None = setting(
        6650,
        "Port of the binary protocol, in clear. 0: any free one. Empty: none.",
        pulsar=6650,
        ge=0,
        le=PORT_MAX,
    )
    broker_service_port_tls: int | None = setting(
        None,
        "Port of the binary protocol by TLS. 0: any free one. Empty: none.",
        pulsar=None,
        ge=0,
        le=PORT_MAX,
    )
    web_service_port: int | None = setting(
        8080,
        "Port of the admin interface, in clear. 0: any free one. Empty: none.",
        pulsar=8080,
        ge=0,
        le=PORT_MAX,
    )
    web_service_port_tls: int | None = setting(
        None,
        "Port of the admin interface by TLS. 0: any free one. Empty: none.",
        pulsar=None,
        ge=0,
        le=PORT_MAX,
    )
    bind_address: str = setting(
        "127.0.0.1",
        "Address to listen on. 0.0.0.0: every interface.",
        pulsar="0.0.0.0",  # noqa: S104  # a fact about Pulsar
        departs="Authentication is off by default, so listening on other addresses must be configured.",
    )
    advertised_address: str = setting(
        "",
        "Address that clients and other brokers get to connect to. Empty: the bound address, or the host's "
        "name where that is every interface.",
        unit="a host name or an IP address, without a port",
        pulsar="",
    )
    advertised_listeners: tuple[str, ...] = setting(
        (),
        "Addresses for networks that do not see each other, instead of `advertisedAddress`. A client gets "
        "those of the listener that it names, others those of `internalListenerName`.",
        unit="name:scheme://host:port",
        pulsar=(),
    )
    internal_listener_name: str = setting(
        "",
        "The listener by which brokers reach each other. Empty: the first of `advertisedListeners`.",
        pulsar="",
    )
    bind_addresses: tuple[str, ...] = setting(
        (),
        "Further addresses to listen on. A client that connects to one gets the addresses of its listener, "
        "one of `advertisedListeners`, without naming it.",
        unit="name:scheme://host:port",
        pulsar=(),
    )
    broker_workers: int = setting(
        1,
        "Processes that serve together, as `ackgate broker --workers` asks for: one process uses one core. "
        "Each is a broker of its own for bundles, caches and limits; all share the data directory and "
        "these ports. Worker *n* has ports of its own as well, to which lookups lead: those here and ten "
        "times *n*, or any free ones where these are 0; `advertisedListeners` likewise. More than one needs "
        "the embedded metadata store.",
        unit="processes",
        ge=1,
        le=64,
    )
    web_service_allowed_hosts: tuple[str, ...] = setting(
        (),
        "Further names by which the admin interface may be called. It knows localhost, every IP "
        "address, `advertisedAddress`, `bindAddress` and the machine's name, and refuses others: a web "
        "page can make its own name lead here. `*.example.com`: every name below. `*`: any name.",
        unit="names without a port, *.NAME, or *",
    )
    web_service_allowed_origins: tuple[str, ...] = setting(
        (),
        "Origins of web pages that may use the admin interface, `https://console.example.com`. Pages "
        "of all others are refused.",
        unit="SCHEME://HOST or SCHEME://HOST:PORT",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = setting(
        "INFO",
        "Least severe log lines that are written.",
    )
    log_format: Literal["text", "json"] = setting(
        "text",
        "Form of log lines: `key=value` pairs, or an object of JSON a line, with a stack trace in it.",
    )
    open_telemetry_traces_enabled: bool = setting(
        False,
        "Make OpenTelemetry spans of publishes, deliveries and acks, for messages that carry a context "
        "(`traceparent`) in their properties. They go to the tracer provider of the process, as "
        "`opentelemetry-instrument` sets one up. Wants the extra `opentelemetry`.",
    )
    broker_shutdown_timeout_ms: int = setting(
        8_000,
        "How long a stop may take, all in all: closing topics, writing cursors, ending connections, "
        "bringing files up to date. What is not done by then is left to the next start, as after a "
        "crash, and the exit code is 1.",
        unit="ms",
        pulsar=60_000,
        departs="`docker stop` kills after 10 s, and nothing confirmed is lost by a stop that is cut "
        "short. Some 3,000 topics with unwritten acks are closed in this time.",
        dynamic=True,
        ge=0,
        le=INT_MAX,
    )

    # --- connections

    max_message_size: int = setting(
        5 * 1024 * 1024,
        "Largest message (or batch) that a producer may send. With `bookkeeperMetadataServiceUri` the "
        "default is 5,222,400: bookies take requests of 5 MiB. A larger value needs "
        "`nettyMaxFrameSizeBytes` of 10 KiB more in the bookies' own configuration, as with Pulsar.",
        unit="bytes",
        pulsar=5 * 1024 * 1024,
        ge=1024,
        le=1024 * 1024 * 1024,
    )
    max_message_publish_buffer_size_in_mb: int | None = setting(
        None,
        "Memory for messages between their producers' sockets and the disk, over all connections, "
        "half-received ones included. When half of it is taken, the connections that hold most are "
        "not read until it is written. There is always room for two of the largest messages. Not "
        "set: a sixteenth of the memory of the machine or container, from 16 to 64 MB. 0 or -1: no "
        "limit.",
        unit="MB",
        pulsar="half of the JVM's direct memory",
        departs="More would not make a disk faster, and an entry on its way is held twice.",
        dynamic=True,
        ge=-1,
        le=1024 * 1024,
    )
    keep_alive_interval_seconds: int = setting(
        30,
        "A connection that is silent for this long is pinged, and closed if it stays silent for "
        "as long again. 0: never.",
        unit="s",
        pulsar=30,
        ge=0,
        le=INT_MAX,
    )
    handshake_timeout_seconds: int = setting(
        10,
        "A connection that has not sent CONNECT by then is closed; one whose TLS handshake is not "
        "through by then, too.",
        unit="s",
        ge=1,
        le=3_600,
    )
    broker_max_connections: int = setting(
        0,
        "Most connections at a time; further ones are closed at once. 0: no limit.",
        unit="connections",
        pulsar=0,
        ge=0,
        le=INT_MAX,
    )
    broker_max_connections_per_ip: int = setting(
        0,
        "Most connections at a time from one address. 0: no limit.",
        unit="connections",
        pulsar=0,
        ge=0,
        le=INT_MAX,
    )
    max_pending_publish_requests_per_connection: int = setting(
        1_000,
        "With this many messages of a connection not yet durable, nothing more is read from it.",
        unit="messages",
        pulsar=1_000,
        ge=1,
        le=INT_MAX,
    )
    connection_write_buffer_bytes_max: int = setting(
        1024 * 1024,
        "With this many bytes waiting for a slow consumer's connection, deliveries to it pause.",
        unit="bytes",
        ge=1024,
        le=INT_MAX,
    )

    # --- topics and subscriptions

    default_number_of_namespace_bundles: int = setting(
        4,
        "Slices that a namespace's topics are cut into when it is first used. Each slice is served "
        "by one broker. What is stored for a namespace stays.",
        unit="bundles",
        pulsar=4,
        dynamic=True,
        ge=1,
        le=1_024,
    )
    allow_auto_topic_creation: bool = setting(
        True,
        "Create a topic when a producer or consumer first asks for it, in a namespace that exists.",
        pulsar=True,
        dynamic=True,
    )
    allow_auto_topic_creation_type: Literal["non-partitioned", "partitioned"] = setting(
        "non-partitioned",
        "Kind of the topics created that way.",
        pulsar="non-partitioned",
        dynamic=True,
    )
    default_num_partitions: int = setting(
        1,
        "Partitions of the topics created that way, where they are partitioned.",
        unit="partitions",
        pulsar=1,
        dynamic=True,
        ge=1,
        le=100_000,
    )
    max_num_partitions_per_partitioned_topic: int = setting(
        0,
        "Most partitions of one topic. 0: no limit.",
        unit="partitions",
        pulsar=0,
        dynamic=True,
        ge=0,
        le=INT_MAX,
    )
    allow_auto_subscription_creation: bool = setting(
        True,
        "Create a subscription when a consumer first asks for it.",
        pulsar=True,
        dynamic=True,
    )
    subscription_types_enabled: tuple[SubscriptionTypeName, ...] = setting(
        ("Exclusive", "Shared", "Failover", "Key_Shared"),
        "Subscription types that consumers may ask for.",
        pulsar=("Exclusive", "Shared", "Failover", "Key_Shared"),
        dynamic=True,
    )
    max_producers_per_topic: int = setting(
        0,
        "Most producers of one topic. 0: no limit.",
        unit="producers",
        pulsar=0,
        ge=0,
        le=INT_MAX,
    )
    max_consumers_per_topic: int = setting(
        0,
        "Most consumers of one topic. 0: no limit.",
        unit="consumers",
        pulsar=0,
        ge=0,
        le=INT_MAX,
    )
    max_consumers_per_subscription: int = setting(
        0,
        "Most consumers of one subscription. 0: no limit.",
        unit="consumers",
        pulsar=0,
        ge=0,
        le=INT_MAX,
    )
    max_subscriptions_per_topic: int = setting(
        0,
        "Most subscriptions of one topic. 0: no limit.",
        unit="subscriptions",
        pulsar=0,
        ge=0,
        le=INT_MAX,
    )
    max_topics_per_namespace: int = setting(
        0,
        "Most topics of one namespace; each partition counts. 0: no limit.",
        unit="topics",
        pulsar=0,
        dynamic=True,
        ge=0,
        le=INT_MAX,
    )
    broker_delete_inactive_topics_enabled: bool = setting(
        True,
        "Delete unused topics.",
        pulsar=True,
        dynamic=True,
    )
    broker_delete_inactive_topics_mode: Literal[
        "delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"
    ] = setting(
        "delete_when_no_subscriptions",
        "Which topics count as unused, none of them with a producer: those without subscriptions, "
        "or those whose subscriptions have no consumer and no backlog.",
        pulsar="delete_when_no_subscriptions",
        dynamic=True,
    )
    broker_delete_inactive_topics_frequency_seconds: int = setting(
        60,
        "How often unused topics are looked for.",
        unit="s",
        pulsar=60,
        dynamic=True,
        ge=1,
        le=INT_MAX,
    )
    broker_delete_inactive_topics_max_inactive_duration_seconds: int | None = setting(
        None,
        "How long a topic must have been unused. Nothing: as long as the interval between looks.",
        unit="s",
        pulsar=None,
        dynamic=True,
        ge=1,
        le=INT_MAX,
    )

    # --- de-duplication and schemas

    broker_deduplication_enabled: bool = setting(
        False,
        "Discard messages that a producer sends a second time, by sequence id.",
        pulsar=False,
    )
    broker_deduplication_entries_interval: int = setting(
        1_000,
        "Entries between two snapshots of the producers' sequence ids.",
        unit="entries",
        pulsar=1_000,
        ge=1,
        le=INT_MAX,
    )
    broker_deduplication_max_number_of_producers: int = setting(
        10_000,
        "Most producers of a topic whose sequence ids are remembered.",
        unit="producers",
        pulsar=10_000,
        ge=1,
        le=INT_MAX,
    )
    is_allow_auto_update_schema_enabled: bool = setting(
        True,
        "Let producers register new versions of a topic's schema.",
        pulsar=True,
        dynamic=True,
    )
    is_schema_validation_enforced: bool = setting(
        False,
        "Refuse producers without a schema on topics that have one.",
        pulsar=False,
    )
    schema_compatibility_strategy: CompatibilityName = setting(
        "FULL",
        "What a new version of a schema has to be compatible with.",
        pulsar="FULL",
    )

    # --- message ledgers

    managed_ledger_max_entries_per_ledger: int = setting(
        50_000,
        "A message ledger with this many entries is closed, and a new one opened.",
        unit="entries",
        pulsar=50_000,
        ge=1,
        le=INT_MAX,
    )
    managed_ledger_max_size_per_ledger_mbytes: int = setting(
        2_048,
        "A message ledger of this size is closed, and a new one opened.",
        unit="MB",
        pulsar=2_048,
        ge=1,
        le=1024 * 1024,
    )
    managed_ledger_min_ledger_rollover_time_minutes: int = setting(
        10,
        "A message ledger younger than this stays open, however large.",
        unit="min",
        pulsar=10,
        ge=0,
        le=INT_MAX,
    )
    managed_ledger_max_ledger_rollover_time_minutes: int = setting(
        240,
        "A message ledger older than this is closed at its next entry, however small.",
        unit="min",
        pulsar=240,
        ge=1,
        le=INT_MAX,
    )
    managed_ledger_cache_size_mb: int = setting(
        64,
        "Memory for recently written entries, shared by all topics.",
        unit="MB",
        pulsar="a fifth of the JVM's direct memory",
        departs="A fixed and modest amount; what is not cached comes from the page cache.",
        dynamic=True,
        ge=0,
        le=1024 * 1024,
    )

    # --- how long messages are kept

    default_retention_time_in_minutes: int = setting(
        0,
        "How long messages stay after every subscription has acknowledged them, as long as "
        "`defaultRetentionSizeInMB` allows it. 0: not at all. -1: forever.",
        unit="min",
        pulsar=0,
        ge=-1,
        le=INT_MAX,
    )
    default_retention_size_in_mb: int = setting(
        0,
        "How much of them stays. 0: nothing. -1: as much as there is.",
        unit="MB",
        pulsar=0,
        ge=-1,
        le=INT_MAX,
    )
    retention_check_interval_in_seconds: int = setting(
        120,
        "How often ledgers are looked through for what need not stay. 0: only at roll-over.",
        unit="s",
        pulsar=120,
        ge=0,
        le=INT_MAX,
    )
    ttl_duration_default_in_seconds: int = setting(
        0,
        "Messages older than this are acknowledged on behalf of every subscription. 0: never.",
        unit="s",
        pulsar=0,
        ge=0,
        le=INT_MAX,
    )
    message_expiry_check_interval_in_minutes: int = setting(
        5,
        "How often messages are looked through for such old ones.",
        unit="min",
        pulsar=5,
        ge=1,
        le=INT_MAX,
    )

    def ports_of_worker(self, number: int) -> dict[str, int]:
        """Ports of a worker by key, 0 for any free one. Number 0: the ports that all workers share.

        A port that is switched off has no key.
        """
        ports = {
            "brokerServicePort": self.broker_service_port,
            "brokerServicePortTls": self.broker_service_port_tls,
            "webServicePort": self.web_service_port,
            "webServicePortTls": self.web_service_port_tls,
        }
        return {
            key: port + _WORKER_PORTS_STEP * number if port else 0
            for key, port in ports.items()
            if port is not None
        }

    def listeners_of_worker(self, number: int) -> tuple[str, ...]:
        """`advertisedListeners` of a worker: each port is higher by ten times its number."""
        matches = filter(None, map(_LISTENER.fullmatch, self.advertised_listeners))
        step = _WORKER_PORTS_STEP * number
        return tuple(
            f"{match['name']}:{match['scheme']}://{match['host']}:{int(match['port']) + step}"
            for match in matches
        )

    @property
    def listeners(self) -> dict[str, dict[str, str]]:
        """Addresses of `advertisedListeners` by listener name, then by scheme.

        The internal listener is first.
        """
        found: dict[str, dict[str, str]] = {}
        for match in filter(None, map(_LISTENER.fullmatch, self.advertised_listeners)):
            found.setdefault(match["name"], {})[match["scheme"]] = match["url"]
        return dict(sorted(found.items(), key=lambda each: each[0] != self.internal_listener_name))

    @property
    def bound_listeners(self) -> list[BoundListener]:
        """Further addresses to listen on (`bindAddresses`), each with its listener's name; may be empty."""
        return [
            BoundListener(
                name=match["name"],
                scheme=match["scheme"],
                host=match["host"].strip("[]"),
                port=int(match["port"]),
                text=match[0],
            )
            for match in filter(None, map(_LISTENER.fullmatch, self.bind_addresses))
        ]

    @field_validator("bind_addresses")
    @classmethod
    def _check_bound(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        places = set()
        for text in addresses:
            match = _LISTENER.fullmatch(text)
            if match is None or not 0 < int(match["port"]) <= PORT_MAX:
                raise ValueError(f"{text!r} is no address of a listener")
            if match["place"] in places:
                raise ValueError(f"{match['place']} stands there twice")
            places.add(match["place"])
        return addresses

    @field_validator("advertised_listeners")
    @classmethod
    def _check_listeners(cls, listeners: tuple[str, ...]) -> tuple[str, ...]:
        for text in listeners:
            match = _LISTENER.fullmatch(text)
            if match is None or not 0 < int(match["port"]) <= PORT_MAX:
                raise ValueError(f"{text!r} is no listener")
        return listeners

    @field_validator("advertised_address")
    @classmethod
    def _check_address(cls, address: str) -> str:
        if address and not _HOST_NAME.fullmatch(address) and not _is_ipv6(address):
            raise ValueError(f"{address!r} is no host name and no IP address")
        return address

    @field_validator("web_service_allowed_hosts")
    @classmethod
    def _check_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if not _HOST_PATTERN.fullmatch(host):
                raise ValueError(f"{host!r} is no host name")
        return hosts

    @field_validator("web_service_allowed_origins")
    @classmethod
    def _check_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin!r} is no origin")
        return origins

    @model_validator(mode="after")
    def _agree(self) -> Self:
        youngest = self.managed_ledger_min_ledger_rollover_time_minutes
        oldest = self.managed_ledger_max_ledger_rollover_time_minutes
        if youngest > oldest:
            raise ValueError(
                "need managedLedgerMinLedgerRolloverTimeMinutes <= "
                f"managedLedgerMaxLedgerRolloverTimeMinutes, got {youngest} and {oldest}"
            )
        self._agree_on_listeners()
        return self

    def _agree_on_listeners(self) -> None:
        listeners, internal = self.listeners, self.internal_listener_name
        names: dict[str, str] = {}
        for match in filter(None, map(_LISTENER.fullmatch, self.advertised_listeners)):
            name, scheme, place = match["name"], match["scheme"], match["place"]
            if names.setdefault(place, name) != name:
                raise ValueError(f"advertisedListeners: {place} is of two listeners")
            if names.setdefault(f"{name}:{scheme}", place) != place:
                raise ValueError(f"listener {name} has two addresses {scheme}")
        for bound in self.bound_listeners:
            if bound.name not in listeners:
                raise ValueError(
                    f"bindAddresses: listener {bound.name} is not in advertisedListeners"
                )
        if internal and internal not in listeners:
            raise ValueError(f"internalListenerName {internal} is not in advertisedListeners")
        if not listeners:
            return
        if self.advertised_address:
            raise ValueError("advertisedListeners and advertisedAddress exclude each other")
        for name, urls in listeners.items():
            if not urls.keys() & {"pulsar", "pulsar+ssl"}:
                raise ValueError(f"listener {name} has no pulsar:// or pulsar+ssl:// address")
