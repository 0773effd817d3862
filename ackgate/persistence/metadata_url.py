"""Which metadata store a URL means, in Pulsar's way of writing it (``metadataStoreUrl``).

============================  =========================================================
``sqlite:PATH``               one SQLite file, the embedded default
``memory:``                   nothing is kept; for tests
``zk:HOST:PORT,.../ROOT``     ZooKeeper servers, and the node below which all of ours lie
``unix:PATH``                 the SQLite file that another process of this machine serves there
============================  =========================================================
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ackgate.errors import ConfigurationError
from ackgate.extras import named_extras
from ackgate.persistence.metadata.memory import MemoryMetadataStore
from ackgate.persistence.metadata.socket_store import SocketMetadataStore
from ackgate.persistence.metadata.sqlite import SqliteMetadataStore
from ackgate.persistence.ports.node_rules import NODE_BYTES_MAX

if TYPE_CHECKING:
    from ackgate.persistence.metadata.session_options import SessionOptions
    from ackgate.persistence.ports import MetadataStore


class MetadataScheme(enum.Enum):
    """The kinds of store, by the first word of the URL."""

    SQLITE = "sqlite"
    MEMORY = "memory"
    ZOOKEEPER = "zk"
    SOCKET = "unix"


class MetadataUrl(NamedTuple):
    """The fields of a metadata URL."""

    scheme: MetadataScheme
    address: str
    """A path, or a ZooKeeper connection string; empty for memory."""


def parse_metadata_url(url: str) -> MetadataUrl:
    """Take a URL apart. Raises `ConfigurationError` saying what is allowed."""
    word, colon, address = url.partition(":")
    try:
        scheme = MetadataScheme(word) if colon else None
    except ValueError:
        scheme = None
    if scheme is None:
        raise ConfigurationError(
            f"metadataStoreUrl {url!r} is not understood; allowed are sqlite:PATH, memory:, "
            "zk:HOST:PORT[,HOST:PORT...][/ROOT] and unix:PATH"
        )
    if scheme is MetadataScheme.MEMORY:
        if address:
            raise ConfigurationError(f"metadataStoreUrl {url!r}: nothing may follow memory:")
    elif not address:
        raise ConfigurationError(f"metadataStoreUrl {url!r}: something must follow {word}:")
    return MetadataUrl(scheme, address)


async def open_metadata_store(
    url: str,
    *,
    read_only: bool = False,
    node_bytes_max: int = NODE_BYTES_MAX,
    session: SessionOptions | None = None,
) -> MetadataStore:
    """Open the store that `url` names. `session` is for stores of other processes and machines.

    Raises `ConfigurationError`, `DataDirectoryBusyError`, `MetadataStoreError`.
    """
    scheme, address = parse_metadata_url(url)
    match scheme:
        case MetadataScheme.SQLITE:
            return await SqliteMetadataStore.open(
                address, read_only=read_only, node_bytes_max=node_bytes_max
            )
        case MetadataScheme.MEMORY:
            return MemoryMetadataStore(node_bytes_max=node_bytes_max)
        case MetadataScheme.SOCKET:
            return await SocketMetadataStore.open(
                Path(address), read_only=read_only, node_bytes_max=node_bytes_max, options=session
            )
        case MetadataScheme.ZOOKEEPER:
            # Imported late: a broker without ZooKeeper starts 50 ms sooner.
            with named_extras():
                from ackgate.persistence.zookeeper.store import (  # noqa: PLC0415
                    ZooKeeperMetadataStore,
                )

            return await ZooKeeperMetadataStore.open(
                address, read_only=read_only, node_bytes_max=node_bytes_max, options=session
            )
