"""Acks out of order, a gate, `kill -9`, and nothing is forgotten: a subscription without a broker."""

import asyncio
import multiprocessing
import os
import signal
import tempfile

import ackgate


async def live(directory: str, acks_max: int) -> None:
    """Bill every second order at once, the others half a second later; crash after so many."""
    async with ackgate.open_embedded(directory) as storage:
        topic = await storage.topic("orders")
        gate = ackgate.GateSettings(enabled=True, ranges_max=40)
        sub = await topic.subscribe("billing", kind=ackgate.Shared(), gate=gate)
        print(f"{topic.message_count} orders are kept, {sub.backlog} to bill", flush=True)
        if not topic.message_count:
            await topic.publish([b"order %d" % n for n in range(300)])  # durable
        acks = 0
        consumer = sub.attach("alice", permits=1_000)
        async for message in consumer:  # pauses when the gate shuts, goes on when it opens
            if message.position.entry_id % 2 or message.redelivery_count:
                await consumer.ack(message)  # durable, or raises
                acks += 1
            else:
                consumer.nack(message, delay_ms=500)
            if acks == acks_max:
                print(f"billed {acks}, then kill -9", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)


def run(directory: str, acks_max: int) -> None:
    """One life, in a process of its own."""
    asyncio.run(live(directory, acks_max))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as data:
        for acks in (100, 200):
            life = multiprocessing.Process(target=run, args=(data, acks))
            life.start()
            life.join()
