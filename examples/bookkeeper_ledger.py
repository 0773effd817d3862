"""A ledger on a real BookKeeper cluster: made, read, fenced, deleted.

python examples/bookkeeper_ledger.py zk+hierarchical://127.0.0.1:2181/ledgers
"""

import asyncio
import sys

from ackgate.bookkeeper import BookKeeperClient, LedgerOptions
from ackgate.errors import LedgerFencedError


async def main(uri: str) -> None:
    client = await BookKeeperClient.connect(uri)
    writer = await client.create(LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=2))
    ticket = writer.append([b"entry %d" % number for number in range(1000)])
    await ticket.durable  # an ack quorum of bookies has synced all of them
    print(f"ledger {writer.ledger_id}: {writer.last_add_confirmed + 1} entries are confirmed")

    successor = await BookKeeperClient.connect(uri)
    reader = await successor.open(writer.ledger_id)  # fences the writer, recovers, closes
    entries = await reader.read(0, reader.last_add_confirmed)
    print(f"its successor reads {len(entries)} entries, {reader.length_bytes} bytes")
    try:
        await writer.add_entry(b"too late")
    except LedgerFencedError as error:
        print(f"its writer: {error}")

    await successor.delete(writer.ledger_id)
    await client.close()
    await successor.close()


asyncio.run(main(sys.argv[1]))
