"""A ZooKeeper connection string taken apart: ``host:port,host:port/root``. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ackgate.errors import CallerError, ConfigurationError
from ackgate.persistence.metadata.rules import check_path

PORT: Final = 2181
"""ZooKeeper's own, for a host without one."""

HOSTS_MAX: Final = 64
"""More is a mistake in writing, not an ensemble."""

ROOT_BYTES_MAX: Final = 1024
"""The root comes before every path, and is no part of what the size guard allows for it."""

_HOST: Final = re.compile(r"(?P<host>[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5}))?", re.ASCII)


class ZooKeeperAddress(NamedTuple):
    """Where the servers are, and below which node this store lives."""

    hosts: tuple[str, ...]
    """``host:port``, each with its port."""
    root: str
    """Empty, or an absolute path without a slash at the end."""

    def __str__(self) -> str:
        return ",".join(self.hosts) + self.root


def parse_address(address: str) -> ZooKeeperAddress:
    """Take the part after ``zk:`` apart. Raises `ConfigurationError` naming the whole URL."""
    servers, slash, rest = address.partition("/")
    try:
        return ZooKeeperAddress(_hosts(servers), _root(slash + rest) if slash and rest else "")
    except (ValueError, CallerError) as error:
        raise ConfigurationError(
            f"metadataStoreUrl {'zk:' + address!r}: {error}; it must read "
            "zk:HOST:PORT[,HOST:PORT...][/ROOT]"
        ) from None


def _hosts(servers: str) -> tuple[str, ...]:
    found = []
    for server in servers.split(","):
        match = _HOST.fullmatch(server.strip())
        if match is None:
            raise ValueError(f"{server.strip()!r} is no HOST:PORT")
        port = int(match["port"] or PORT)
        if not 0 < port < 65_536:
            raise ValueError(f"{port} is no port")
        found.append(f"{match['host']}:{port}")
    if len(found) > HOSTS_MAX:
        raise ValueError(f"{len(found)} hosts, at most {HOSTS_MAX} are taken")
    return tuple(dict.fromkeys(found))


def _root(root: str) -> str:
    check_path(root)
    if len(root.encode()) > ROOT_BYTES_MAX:
        raise ValueError(f"the root is longer than {ROOT_BYTES_MAX} bytes")
    return root
