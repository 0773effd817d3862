"""Which broker shall own a bundle that nobody owns.

Pure. Every broker that sees the same owners comes to the same answer without asking another, for
each bundle of a namespace, in whatever order clients ask for them: it lays a *plan* for all of them
at once. Bundles are given, in the order of their names, to the broker with the fewest; among
equals, to the one with the highest hash of bundle and broker together (rendezvous hashing).

What is owned stays where it is: a broker that joins gets what becomes free, and nothing else.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def plan(unowned: Iterable[str], owned_by: Mapping[str, int]) -> dict[str, str]:
    """A broker for each bundle; empty when there is no broker.

    `owned_by` tells how many bundles each broker that may be chosen owns.
    """
    counts = dict(owned_by)
    chosen: dict[str, str] = {}
    for bundle in sorted(unowned) if counts else ():
        least = min(counts.values())
        broker = max(
            (broker for broker, count in counts.items() if count == least),
            key=lambda broker: (_affinity(bundle, broker), broker),
        )
        counts[broker] += 1
        chosen[bundle] = broker
    return chosen


def _affinity(bundle: str, broker: str) -> bytes:
    return hashlib.blake2b(f"{bundle} {broker}".encode(), digest_size=8).digest()
