"""`kill -9` anywhere in a host: nothing acked comes again, and nothing else is skipped."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import ackgate

MESSAGES = 120

HOST = textwrap.dedent(
    """
    import asyncio, sys
    import ackgate

    def told(*words):
        print(*words, flush=True)

    async def host():
        async with ackgate.open_embedded(sys.argv[1]) as storage:
            topic = await storage.topic("orders")
            gate = ackgate.GateSettings(enabled=True, ranges_max=40)
            sub = await topic.subscribe("billing", kind=ackgate.Shared(), gate=gate)
            consumers = [sub.attach(name, permits=50) for name in ("alice", "bob")]
            told("opened", topic.message_count)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(publish(topic))
                for consumer in consumers:
                    tasks.create_task(consume(consumer))

    async def publish(topic):
        while topic.message_count < int(sys.argv[2]):
            for position in await topic.publish([b"x" * 100] * 5):
                told("published", *position)
        told("all")

    async def consume(consumer):
        waiting = []
        async for message in consumer:
            told("got", *message.position)
            if message.position.entry_id % 3 == 0 and not message.redelivery_count:
                consumer.nack(message, delay_ms=20)
                continue
            await consumer.ack(message)
            told("acked", *message.position)
            if not consumer.subscription.backlog:
                told("done")

    asyncio.run(host())
    """
)


def live(directory: Path, kill_after_lines: int) -> list[tuple[str, ...]]:
    """One life of the host: what it said until it was killed, or had done everything."""
    with subprocess.Popen(
        [sys.executable, "-c", HOST, str(directory), str(MESSAGES)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        told = []
        for line in process.stdout:
            told.append(tuple(line.split()))
            if told[-1] == ("done",) and ("all",) in told:
                break
            if len(told) == kill_after_lines:
                break
        process.kill()
        told += [tuple(line.split()) for line in process.stdout if line.endswith("\n")]
    return told


def positions(told: list[tuple[str, ...]], what: str) -> set[tuple[str, ...]]:
    return {tuple(rest) for first, *rest in told if first == what}


@pytest.mark.slow
def test_nothing_acked_comes_again_and_nothing_else_is_skipped(
    tmp_path: Path,
) -> None:
    dice = random.Random(7)  # where the lives end; the rest is up to the machine
    directory = tmp_path / "data"
    published: set[tuple[str, ...]] = set()
    acked: set[tuple[str, ...]] = set()
    got: set[tuple[str, ...]] = set()
    for life in range(30):
        told = live(directory, dice.randrange(5, 150) if life < 6 else 10_000)
        published |= positions(told, "published")
        got |= positions(told, "got")
        came_again = positions(told, "got") & acked
        assert not came_again, f"life {life}: {sorted(came_again)}"
        acked |= positions(told, "acked")
        if ("done",) in told:
            break
    else:
        pytest.fail("never done")
    assert published <= got, f"skipped: {sorted(published - got)}"
    output = asyncio.run(stats_beside_a_host(directory))
    assert "persistent://embedded/default/orders" in output
    assert "0 holes" in output


async def stats_beside_a_host(directory: Path) -> str:
    """What another process reads while a host has the directory open."""
    command = [sys.executable, "-m", "ackgate", "stats", "orders", "--data-dir", str(directory)]
    async with ackgate.open_embedded(directory) as storage:
        await (await storage.topic("orders")).subscribe("billing")
        told = await asyncio.to_thread(
            subprocess.run, command, check=True, capture_output=True, text=True
        )
    return str(told.stdout)
