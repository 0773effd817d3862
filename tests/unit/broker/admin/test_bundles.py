"""Taking a bundle that does not come to rest."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ackgate.broker.admin.bundles import acquire_bundle
from ackgate.broker.admin.http.refusals import RefusedError
from ackgate.broker.cluster.bundles import NamespaceBundles
from ackgate.broker.wire.names import NamespaceName
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
