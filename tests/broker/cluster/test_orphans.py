"""Ledgers that nobody names: whose maker lives on is left alone, the others go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ackgate.broker.server import BrokerServer
from ackgate.persistence.messages.managed_ledger import TOPIC_PATH_KEY
from tests.broker.cluster.conftest import MemoryCluster
from tests.broker.target import eventually


async def made_and_not_named(broker: BrokerServer) -> int:
    """A ledger as it is just before the topic's node names it."""
    options = replace(
        broker.services.ledger_options,
        custom_metadata={TOPIC_PATH_KEY: b"/managed-ledgers/public/default/persistent/new"},
    )
    return (await broker.services.ledger_client.create(options)).ledger_id


def test_a_ledger_goes_when_its_maker_has_gone(tmp_path: Path) -> None:
    with MemoryCluster(tmp_path) as cluster:
        maker = cluster.start()
        of_maker = cluster.run(made_and_not_named(maker))
        second = cluster.start()
        of_second = cluster.run(made_and_not_named(second))
        cluster.run(second.stop())

        third = cluster.start()
        client = third.services.ledger_client
        eventually(lambda: of_second not in cluster.run(client.ledger_ids()))
        assert of_maker in cluster.run(client.ledger_ids())

        cluster.call(cluster.session(maker).suspend)  # as stopped as it may be: its session lives
        fourth = cluster.start()
        cluster.run(fourth.stop())
        assert of_maker in cluster.run(client.ledger_ids())
        cluster.call(cluster.session(maker).resume)

        cluster.run(maker.stop())
        cluster.start()
        eventually(lambda: of_maker not in cluster.run(client.ledger_ids()))
