"""Taking a bundle that does not come to rest, and giving away a namespace of many."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ackgate.broker.admin.bundles import acquire_bundle, unload_namespace
from ackgate.broker.admin.http.peers import ASKED_AT_ONCE_MAX
from ackgate.broker.admin.http.refusals import RefusedError
from ackgate.broker.cluster.bundles import BundleState, NamespaceBundles
from ackgate.broker.wire.names import NamespaceName
from ackgate.errors import MetadataStoreError
from tests.support.virtual_time import run_in_virtual_time

NAMESPACE = NamespaceName("a", "b")


class Ownership:
    """Of a bundle that is being released for ever."""

    async def bundles(self, namespace: NamespaceName) -> NamespaceBundles:
        return NamespaceBundles.cut(namespace, 1)

    async def locate_bundle(self, bundle: Any, *, is_authoritative: bool) -> None:
        await asyncio.sleep(3600)


def test_it_is_refused_as_something_that_may_be_tried_again() -> None:
    call: Any = SimpleNamespace(
        namespace_name=NAMESPACE,
        parameters={"bundle": "0x00000000_0xffffffff"},
        broker=SimpleNamespace(ownership=Ownership()),
    )

    async def main() -> None:
        with pytest.raises(RefusedError, match="changing hands") as refused:
            await acquire_bundle(call)
        assert refused.value.status == 503

    run_in_virtual_time(main())


class Releasing:
    """Ownership of all bundles of a namespace. Each takes a second to release; the tenth fails."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.released: list[Any] = []
        self.at_once = self.at_once_max = 0

    async def bundles(self, namespace: NamespaceName) -> NamespaceBundles:
        return NamespaceBundles.cut(namespace, self.count)

    async def look(self, bundle: Any) -> None:
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)

    def state(self, _: Any) -> BundleState:
        return BundleState.OWNED

    async def release(self, bundle: Any) -> None:
        await asyncio.sleep(1)
        self.at_once -= 1
        self.released.append(bundle)
        if len(self.released) == 10:
            raise MetadataStoreError("the store is away")


def test_a_namespace_is_unloaded_a_bounded_number_of_bundles_at_a_time() -> None:
    ownership = Releasing(4 * ASKED_AT_ONCE_MAX)

    async def nothing() -> None: ...

    call: Any = SimpleNamespace(
        namespace_name=NAMESPACE,
        require_namespace=nothing,
        broker=SimpleNamespace(ownership=ownership),
    )

    async def main() -> None:
        with pytest.raises(RefusedError, match="the store is away"):
            await unload_namespace(call)

    run_in_virtual_time(main())
    assert len(set(ownership.released)) == ownership.count, "a failure keeps no other from it"
    assert ownership.at_once_max == ASKED_AT_ONCE_MAX
