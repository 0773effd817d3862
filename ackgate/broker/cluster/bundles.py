"""Bundles: the slices of a namespace's topics that brokers own as a whole, and the states of one.

Pure. A topic falls into a bundle by the CRC32 of its full name; a bundle is a range of hashes, and
called by its bounds, as in Pulsar::

    0x00000000        0x40000000        0x80000000        0xc0000000        0xffffffff
        |  0x00000000_    |  0x40000000_    |  0x80000000_    |  0xc0000000_    |
        |     0x40000000  |     0x80000000  |     0xc0000000  |     0xffffffff  |

Lower bounds are included and upper ones are not, but for the last. Where a namespace is cut is
stored when it is first needed, so that all brokers agree, and never changes afterwards.
"""

from __future__ import annotations

import enum
import json
import re
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ackgate.broker.wire import NamespaceName, quoted
from ackgate.errors import CallerError, CorruptRecordError, IllegalTransitionError
from ackgate.persistence.nodes import owner_nodes
from ackgate.persistence.nodes.owner_nodes import HASH_MAX, OWNERS, owners_path
from ackgate.persistence.nodes.paths import name_of_node, node_of_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ackgate.broker.wire import TopicName

BUNDLES_MAX: Final = 1024
"""Bundles of one namespace. Each has an owner node; thousands of nodes would make every join
slow."""

LOCAL_POLICIES: Final = "/admin/local-policies"
BUNDLE_EPOCHS: Final = "/ackgate/bundle-epochs"

_RANGE: Final = re.compile(r"0x([0-9a-f]{8})_0x([0-9a-f]{8})")
_BOUNDARY: Final = re.compile(r"0x([0-9a-f]{8})")


class Bundle(NamedTuple):
    """One slice of a namespace's topics."""

    namespace: NamespaceName
    range_name: str
    """Its range of hashes, ``0x00000000_0x40000000``."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.range_name}"

    @property
    def owner_path(self) -> str:
        """The ephemeral node that names its owner."""
        namespace = self.namespace
        return f"{owners_path(namespace.tenant, namespace.namespace)}/{self.range_name}"

    @property
    def epoch_path(self) -> str:
        """The node that counts its owners, to give each an epoch."""
        return f"{BUNDLE_EPOCHS}/{_below(self.namespace)}/{self.range_name}"


def bundle_of_owner_path(path: str) -> Bundle | None:
    """The bundle whose owner's node this is; None for any other node."""
    pieces = path.split("/")
    if len(pieces) != 5 or f"/{pieces[1]}" != OWNERS or not _RANGE.fullmatch(pieces[4]):
        return None
    return Bundle(NamespaceName(name_of_node(pieces[2]), name_of_node(pieces[3])), pieces[4])


def local_policies_path(namespace: NamespaceName) -> str:
    """The node that stores the boundaries of a namespace's bundles."""
    return f"{LOCAL_POLICIES}/{_below(namespace)}"


def topic_hash(topic: TopicName) -> int:
    """The hash of a topic (or partition), which decides on its bundle."""
    return owner_nodes.topic_hash(str(topic))


@dataclass(frozen=True, slots=True)
class NamespaceBundles:
    """The bundles of one namespace. Make it with `cut` or `decode`."""

    namespace: NamespaceName
    boundaries: tuple[int, ...]
    """From 0 to `HASH_MAX`, ascending; one more than there are bundles."""

    @classmethod
    def cut(cls, namespace: NamespaceName, count: int) -> NamespaceBundles:
        """`count` bundles of the same width, up to rounding."""
        _check_count(count)
        width = (HASH_MAX + 1) // count
        return cls(namespace, (*(width * index for index in range(count)), HASH_MAX))

    @classmethod
    def decode(cls, namespace: NamespaceName, value: bytes) -> NamespaceBundles:
        """Decode the value of the node. Raises `CorruptRecordError`."""
        try:
            return cls(namespace, _boundaries(json.loads(value)["bundles"]["boundaries"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptRecordError(
                f"bundles of namespace {namespace} cannot be read: {error!r}"
            ) from error

    @classmethod
    def of_boundaries(cls, namespace: NamespaceName, texts: Iterable[object]) -> NamespaceBundles:
        """Make bundles from boundaries as Pulsar writes them.

        Raises `BadBundleError`, a `ValueError`.
        """
        boundaries = _boundaries(texts)
        _check_count(len(boundaries) - 1)
        return cls(namespace, boundaries)

    def encode(self) -> bytes:
        """The value of the node, in Pulsar's form."""
        return json.dumps({"bundles": self.to_json()}).encode()

    def to_json(self) -> dict[str, Any]:
        """The bundles as JSON, in Pulsar's form."""
        return {
            "boundaries": [f"0x{boundary:08x}" for boundary in self.boundaries],
            "numBundles": self.count,
        }

    @property
    def count(self) -> int:
        """How many bundles there are."""
        return len(self.boundaries) - 1

    def __iter__(self) -> Iterator[Bundle]:
        return (self._bundle(index) for index in range(self.count))

    def of(self, topic: TopicName) -> Bundle:
        """The bundle that a topic falls into."""
        return self._bundle(
            min(self.count - 1, bisect_right(self.boundaries, topic_hash(topic)) - 1)
        )

    def named(self, range_name: str) -> Bundle:
        """The bundle of this range. Raises `BadBundleError` if there is none."""
        found = _RANGE.fullmatch(range_name)
        if found is None:
            raise BadBundleError(
                f"{quoted(range_name)} is no bundle range: expected 0xLLLLLLLL_0xUUUUUUUU"
            )
        index = bisect_right(self.boundaries, int(found[1], 16)) - 1
        if index >= self.count or self._bundle(index).range_name != range_name:
            raise BadBundleError(f"namespace {self.namespace} has no bundle {range_name}")
        return self._bundle(index)

    def _bundle(self, index: int) -> Bundle:
        low, high = self.boundaries[index : index + 2]
        return Bundle(self.namespace, f"0x{low:08x}_0x{high:08x}")


class BadBundleError(CallerError, ValueError):
    """The namespace has no such bundle, or these are no bundles."""


def _check_count(count: int) -> None:
    if not 1 <= count <= BUNDLES_MAX:
        raise BadBundleError(f"a namespace has 1 to {BUNDLES_MAX} bundles, not {count}")


def _boundaries(texts: Iterable[object]) -> tuple[int, ...]:
    boundaries = tuple(map(_boundary, texts))
    is_whole = boundaries[:1] == (0,) and boundaries[-1:] == (HASH_MAX,)
    if not is_whole or any(low >= high for low, high in pairwise(boundaries)):
        raise BadBundleError("bundles do not ascend from 0x00000000 to 0xffffffff")
    return boundaries


def _boundary(text: object) -> int:
    found = _BOUNDARY.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise BadBundleError(f"{quoted(str(text))} is no boundary of bundles: expected 0xHHHHHHHH")
    return int(found[1], 16)


def _below(namespace: NamespaceName) -> str:
    return f"{node_of_name(namespace.tenant)}/{node_of_name(namespace.namespace)}"


# ---- The states of a bundle, as this broker sees it, and their transitions, in one table
#
#             ACQUIRE             WON               RELEASE
#     FREE ------------> ACQUIRING ----> OWNED ----------------> RELEASING --RELEASED--> FREE
#      ^ |                | | |            |                       ^
#      | |  FAILED, LOST  | | |            |  LOST (the session, or the owner's node)
#      | +<---------------+ | |            +-----------------------+
#      |                    | +--BEATEN--> ELSEWHERE
#      +---- DESERTED ------|-----------------|
#                           |                 ^
#                           SEEN (FREE) ------+
#
# `FREE` and `ELSEWHERE` are what the metadata store last said; this broker brings about the others.
# In `RELEASING` it closes the topics, and opens none. After `LOST` it drops them without writing
# anything; then the bundle is `FREE` to it.


class BundleState(enum.Enum):
    """The state of a bundle, as this broker sees it."""

    FREE = "free"
    ACQUIRING = "acquiring"
    OWNED = "owned"
    RELEASING = "releasing"
    ELSEWHERE = "elsewhere"


class BundleEvent(enum.Enum):
    """What happens to a bundle."""

    ACQUIRE = "acquire"
    """A client asked this broker for the bundle."""
    WON = "won"
    """Our owner's node is in place."""
    BEATEN = "beaten"
    """Another broker's owner's node is in place."""
    FAILED = "failed"
    """The metadata store failed to make our node."""
    RELEASE = "release"
    """Another broker is to serve the bundle, or none."""
    LOST = "lost"
    """The session, or our node, is gone."""
    RELEASED = "released"
    """The bundle's topics are closed, and our node is deleted."""


_FREE, _ACQUIRING, _OWNED, _RELEASING, _ELSEWHERE = BundleState

_MOVES: Final = {
    (_FREE, BundleEvent.ACQUIRE): _ACQUIRING,
    (_ACQUIRING, BundleEvent.WON): _OWNED,
    (_ACQUIRING, BundleEvent.BEATEN): _ELSEWHERE,
    (_ACQUIRING, BundleEvent.FAILED): _FREE,
    (_ACQUIRING, BundleEvent.LOST): _FREE,
    (_OWNED, BundleEvent.RELEASE): _RELEASING,
    (_OWNED, BundleEvent.LOST): _RELEASING,
    (_RELEASING, BundleEvent.LOST): _RELEASING,
    (_RELEASING, BundleEvent.RELEASED): _FREE,
}


def after(state: BundleState, event: BundleEvent, bundle: object) -> BundleState:
    """The next state. Raises `IllegalTransitionError` naming bundle, state and event."""
    try:
        return _MOVES[state, event]
    except KeyError:
        raise IllegalTransitionError(
            f"bundle {bundle} is {state.value}: {event.value} is impossible"
        ) from None
