"""A subscription without a broker. Run it twice: the first run kills itself, the second goes on."""

import asyncio
import os
import signal

import ackgate


async def main() -> None:
    async with ackgate.open_embedded("orders-data") as storage:
        topic = await storage.topic("orders")
        gate = ackgate.GateSettings(enabled=True, ranges_max=40)
        sub = await topic.subscribe("billing", kind=ackgate.Shared(), gate=gate)
        print(f"{topic.message_count} orders stored, {sub.backlog} to bill", flush=True)
        if sub.backlog == 0:
            await topic.publish([b"order %d" % n for n in range(300)])  # durable
        consumer = sub.attach("alice", permits=1_000)
        async for message in consumer:  # pauses when the gate shuts, goes on when it opens
            if message.position.entry_id % 2 == 0 and not message.redelivery_count:
                consumer.nack(message, delay_ms=500)
                continue
            await consumer.ack(message)  # durable, or raises
            if sub.backlog == 200:
                os.kill(os.getpid(), signal.SIGKILL)
            if sub.backlog == 0:
                print("all billed")
                break


asyncio.run(main())
