"""Ports of the loopback interface for servers that tests start, stop and start again.

Edge: binds and closes. The ports lie below those that systems give to outgoing connections (Linux: from
32,768 on). A server that is started again finds its port free, however many clients have connected
to something meanwhile.
"""

from __future__ import annotations

import itertools
import random
import socket
from typing import Final

_FIRST: Final = 10_000
_COUNT: Final = 22_000

_numbers: Final = itertools.count(random.randrange(_COUNT))


def free_ports(count: int) -> list[int]:
    """Different ports that are free at the moment, none of which this process was given before.

    Raises `OSError` if there are not as many.
    """
    found: list[int] = []
    for number in itertools.islice(_numbers, _COUNT):
        if len(found) == count:
            break
        port = _FIRST + number % _COUNT
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    if len(found) < count:
        raise OSError(f"{count} ports of 127.0.0.1 are wanted, {len(found)} are free")
    return found
