"""The main job, told by a real broker and the real pulsar-client: `make demo`.

A consumer acknowledges every second message, the gate shuts, the broker is killed with `kill -9`
and comes back, and no acknowledged message comes again. Every line with a tick was checked; the
first claim that does not hold ends the demo with exit code 1 and says what was expected and seen.

Everything lives in a temporary directory, which goes when the demo ends, and so does the broker.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pulsar

from ackgate.errors import AckGateError
from ackgate.testing import BrokerFailedError, BrokerProcess, query_stats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ackgate.testing import SubscriptionAnswer

MESSAGES: Final = 20_000
RANGES_MAX: Final = 2_000
TOPIC: Final = "persistent://public/default/orders"
SUBSCRIPTION: Final = "billing"
SETTINGS: Final = {  # keys of broker.conf
    "dispatcherPauseOnAckStatePersistentEnabled": True,  # there is a gate
    "dispatcherPauseOnAckStateStrictEnabled": True,  # the limit is never exceeded
    "managedLedgerMaxUnackedRangesToPersist": RANGES_MAX,  # the limit
}

SILENCE_MS: Final = 300
"""No message for this long: time to ask the broker why."""

PATIENCE_SECONDS: Final = 20.0
"""What has not happened by then does not happen."""


class ClaimError(Exception):
    """Something that the demo says is not so."""


FAILURES: Final = (
    *(ClaimError, BrokerFailedError, AckGateError),
    *(pulsar.PulsarException, subprocess.CalledProcessError),
)
"""What ends the demo with exit code 1."""


class Story:
    """The chapters in order, and what they hand on to each other."""

    def __init__(self, terminal: Terminal, broker: BrokerProcess, client_log: Path) -> None:
        self.terminal = terminal
        self.broker = broker
        self.client_log = client_log
        self.acks = 0
        """Acknowledgements so far."""
        self.received = 0
        """Messages received since the broker started."""
        self.acked: set[int] = set()
        """Numbers of the messages that were acked before the broker was killed."""
        self.unacked: set[int] = set()
        """Numbers of those that were received before, and not acked: the holes."""
        self.after_kill: Counter[int] = Counter()
        """Number of a message -> how often it came after the broker was killed."""

    def tell(self) -> None:
        """From beginning to end. Raises `ClaimError` at the first thing that is not as told."""
        terminal = self.terminal
        terminal.chapter(f"A broker, and {MESSAGES:,} messages")
        self.start_broker()
        client = self.connect()
        self.send(client)

        terminal.chapter("Every second message is acked, until the gate shuts")
        terminal.say("Acked messages form ranges, with holes between them. This broker keeps")
        terminal.say(
            f"{RANGES_MAX:,} ranges of a subscription on disk, and stops delivering before"
        )
        terminal.say("the next ack could make one more, which a crash would forget.")
        self.ack_every_second(client)
        self.show_stats("--url", self.broker.admin_url)

        terminal.chapter(f"kill -9, with {len(self.unacked):,} messages in the consumer's hands")
        self.kill_broker(client)
        terminal.say("No broker runs now. This is what its files say:")
        self.show_stats("--data-dir", str(self.broker.data_directory))

        terminal.chapter("The broker comes back")
        self.start_broker()
        self.check_recovered()
        client = self.connect()
        consumer = self.subscribe(client)
        holes = self.receive_holes(consumer)

        terminal.chapter("The holes are acked, the gate opens, everything drains")
        self.ack_holes(consumer, holes)
        self.drain(consumer)
        client.close()
        terminal.check("the broker stops in good order", expected=0, seen=self.broker.stop())

    # ---------------------------------------------------------------- chapters

    def start_broker(self) -> None:
        """The first time, or again."""
        began = time.monotonic()
        self.broker.start()
        self.received = 0
        self.terminal.say(
            f"process {self.broker.pid} listens on {self.broker.service_url} "
            f"after {time.monotonic() - began:.1f} s"
        )

    def send(self, client: pulsar.Client) -> None:
        """All messages, numbered, each an entry of its own."""
        results: Counter[str] = Counter()
        producer = client.create_producer(
            TOPIC, block_if_queue_full=True, max_pending_messages=5_000, batching_enabled=False
        )
        began = time.monotonic()
        for number in range(MESSAGES):
            producer.send_async(
                str(number).encode(), lambda result, _: results.update([result.name])
            )
            self.terminal.progress(number + 1, MESSAGES, "sent")
        with contextlib.suppress(pulsar.PulsarException):  # the results say what went wrong
            producer.flush()
        seconds = time.monotonic() - began
        self.terminal.end_progress(f"{MESSAGES:,} messages sent in {seconds:.1f} s, not batched")
        self.terminal.check(
            f"all {MESSAGES:,} messages are confirmed",
            expected={"Ok": MESSAGES},
            seen=dict(results),
        )

    def ack_every_second(self, client: pulsar.Client) -> None:
        """Ack the odd numbers and hold on to the even ones until nothing more comes."""
        consumer = self.subscribe(client)
        looks = []
        for message in self.messages(consumer):
            number = int(message.data())
            if number % 2:
                self.ack(consumer, message)
                self.acked.add(number)
            else:
                self.unacked.add(number)
            if self.received % 250 == 0:
                looks.append(self.look())
        self.terminal.end_progress(
            f"{self.received:,} of {MESSAGES:,} messages received, {self.acks:,} acked; "
            "then nothing more came"
        )
        told = self.wait_until(is_durable, "all acks are durable")
        looks.append(told)
        self.terminal.check(
            "the gate is shut: isBlockedOnAckStatePersistent is true",
            expected=True,
            seen=is_blocked(told),
        )
        self.terminal.check(
            f"{RANGES_MAX:,} ranges, the limit, and never more in {len(looks)} looks at it",
            expected=(RANGES_MAX, RANGES_MAX),
            seen=(told.ack_state.ranges_live, max(look.ack_state.ranges_live for look in looks)),
        )
        self.terminal.check(
            f"all {self.acks:,} acks are durable",
            expected=(self.acks, RANGES_MAX, 0),
            seen=(
                told.ack_state.cursor.acked_count,
                told.ack_state.ranges_persisted,
                told.ack_state.entries_dropped,
            ),
        )

    def kill_broker(self, client: pulsar.Client) -> None:
        """No goodbye, neither from the broker nor from the consumer."""
        pid = self.broker.pid
        self.broker.kill()
        client.shutdown()
        self.terminal.say(f"kill -9 {pid}; the consumer is gone, too")

    def check_recovered(self) -> None:
        """What the broker found in its files when the topic was asked for."""
        report = self.look().ack_state.recovery
        if report is None:
            raise ClaimError("the broker recovered nothing")
        self.terminal.say(
            f"recovered from the cursor's {report.source.value} in {report.duration_ms:.0f} ms: "
            f"mark-delete {report.mark_delete}, {report.ranges:,} ranges, "
            f"{report.records_applied} records read"
        )
        self.terminal.check(
            f"all {RANGES_MAX:,} ranges are back, nothing was lost or torn",
            expected=(RANGES_MAX, None, ()),
            seen=(report.ranges, report.lost, report.torn_records),
        )

    def receive_holes(self, consumer: pulsar.Consumer) -> list[pulsar.Message]:
        """What a new consumer gets, before it acks anything."""
        holes = list(self.messages(consumer))
        self.terminal.end_progress(f"a new consumer was sent {len(holes):,} messages")
        self.after_kill.update(int(message.data()) for message in holes)
        self.check_none_came_again()
        self.terminal.check(
            f"all {len(self.unacked):,} messages that were not acked came, each once",
            expected=dict.fromkeys(self.unacked, 1),
            seen=dict(self.after_kill),
        )
        self.terminal.check("the gate is shut", expected=True, seen=is_blocked(self.look()))
        return holes

    def ack_holes(self, consumer: pulsar.Consumer, holes: list[pulsar.Message]) -> None:
        """Until the first new message is there."""
        began = time.monotonic()
        for message in holes:
            self.ack(consumer, message)
        acked_ms = (time.monotonic() - began) * 1000
        message = next(self.messages(consumer))
        opened_ms = (time.monotonic() - began) * 1000
        number = int(message.data())
        self.ack(consumer, message)
        self.after_kill[number] += 1
        self.terminal.say(f"{len(holes):,} holes acked within {acked_ms:.0f} ms")
        self.terminal.check(
            f"the gate opened: a new message came {opened_ms:.0f} ms after the first of these acks",
            expected=False,
            seen=number in self.acked | self.unacked,
        )

    def drain(self, consumer: pulsar.Consumer) -> None:
        """Ack the rest as it comes."""
        for message in self.messages(consumer):
            self.ack(consumer, message)
            self.after_kill[int(message.data())] += 1
        self.terminal.end_progress(f"{self.received:,} messages received since the restart")
        told = self.wait_until(is_durable, "all acks are durable")
        self.terminal.check(
            f"{MESSAGES:,} of {MESSAGES:,} messages came and are acked, durably",
            expected=(set(range(MESSAGES)), 0, 0),
            seen=(
                self.acked | self.after_kill.keys(),
                told.ack_state.cursor.backlog_entries,
                told.ack_state.ranges_persisted,
            ),
        )
        self.check_none_came_again()

    def check_none_came_again(self) -> None:
        """The promise."""
        again = len(self.acked & self.after_kill.keys())
        self.terminal.check(f"{again} acked messages came again", expected=0, seen=again)

    # ---------------------------------------------------------------- a client, and a look

    def connect(self) -> pulsar.Client:
        """A client as anybody would make it, but quiet about a broker that is killed."""
        log = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(self.client_log))
        return pulsar.Client(self.broker.service_url, logger=log)

    def subscribe(self, client: pulsar.Client) -> pulsar.Consumer:
        """A consumer of a shared subscription, from the first message on."""
        return client.subscribe(
            TOPIC,
            SUBSCRIPTION,
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
        )

    def messages(self, consumer: pulsar.Consumer) -> Iterator[pulsar.Message]:
        """All that comes, until the broker has nothing more to send, or the gate is shut."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                message = consumer.receive(SILENCE_MS)
            except pulsar.Timeout:
                told = self.look()
                if self.has_sent_all(told):
                    return
                if time.monotonic() > deadline:
                    raise ClaimError(f"no message for {PATIENCE_SECONDS:.0f} s\n{told}") from None
            else:
                deadline = time.monotonic() + PATIENCE_SECONDS
                self.received += 1
                self.terminal.progress(self.received, MESSAGES, "received")
                yield message

    def has_sent_all(self, told: SubscriptionAnswer) -> bool:
        """Whether nothing is under way, neither messages nor acks, and nothing more will come."""
        cursor = told.ack_state.cursor
        is_quiet = (
            told.stats is not None
            and told.stats.msg_out_counter == self.received
            and cursor.backlog_entries == MESSAGES - self.acks
        )
        return is_quiet and (is_blocked(told) or cursor.unread_entries == 0)

    def ack(self, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        """The client sends acks in groups: 1,000 at a time, or after 100 ms."""
        consumer.acknowledge(message)
        self.acks += 1

    def look(self) -> SubscriptionAnswer:
        """What `ackgate stats` shows, as a Python call."""
        answer = query_stats(TOPIC, subscription=SUBSCRIPTION, url=self.broker.admin_url)
        return answer.subscriptions[0]

    def wait_until(
        self, is_so: Callable[[SubscriptionAnswer], bool], what: str
    ) -> SubscriptionAnswer:
        """Look until it is so. Raises `ClaimError`."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_so(told := self.look()):
            if time.monotonic() > deadline:
                raise ClaimError(f"{what}: not so after {PATIENCE_SECONDS:.0f} s\n{told}")
            time.sleep(0.01)
        return told

    def show_stats(self, *source: str) -> None:
        """Run the command that anybody would type."""
        command = ["ackgate", "stats", TOPIC, *source]
        self.terminal.prompt(command)
        environment = self.broker.environment()
        self.terminal.is_starting = True
        with subprocess.Popen([sys.executable, "-m", *command], env=environment) as running:
            self.terminal.is_starting = False
            try:
                self.terminal.end_if_interrupted()
                code = running.wait()
            except BaseException:
                running.kill()
                running.wait()
                raise
        if code:
            raise subprocess.CalledProcessError(code, command)


def is_blocked(told: SubscriptionAnswer) -> bool:
    """Whether the gate is shut, by Pulsar's name for it."""
    return told.stats is not None and told.stats.is_blocked_on_ack_state_persistent


def is_durable(told: SubscriptionAnswer) -> bool:
    """Whether nothing of the ack state is in memory only."""
    store = told.ack_state.store
    return store is not None and store.dirty_versions == 0


class Terminal:
    """Chapters, ticked claims, and one line that moves. A pipe gets the same without the latter."""

    BAR_COLUMNS: Final = 40
    REDRAW_SECONDS: Final = 0.05

    def __init__(self) -> None:
        self.is_live = sys.stdout.isatty()
        can_draw = (sys.stdout.encoding or "").lower().startswith("utf")
        self.tick, self.full, self.empty = "✓━─" if can_draw else "*#."
        self.chapters = 0
        self.claims = 0
        self.drawn_at = 0.0
        self.is_interrupted = False
        """Set by a signal. Libraries may swallow the `KeyboardInterrupt`: the next line looks here."""
        self.is_starting = False
        """While a command is being started: an exception then would leave it to run on by itself."""

    def title(self, text: str) -> None:
        """Bold where that can be shown."""
        self.end_if_interrupted()
        print(self._in("1", text), flush=True)

    def chapter(self, text: str) -> None:
        """The next chapter begins."""
        self.chapters += 1
        self.title(f"\n{self.chapters}. {text}")

    def prompt(self, command: list[str]) -> None:
        """The output of this command follows."""
        self.title(f"\n$ {shlex.join(command)}")

    def say(self, text: str) -> None:
        """One line of the story."""
        self.end_if_interrupted()
        print(f"   {text}", flush=True)

    def check(self, claim: str, *, expected: object, seen: object) -> None:
        """Tick the claim off, or raise `ClaimError`."""
        if seen != expected:
            raise ClaimError(f"{claim}\n   expected  {shown(expected)}\n   seen      {shown(seen)}")
        self.claims += 1
        self.say(f"{self._in('32', self.tick)} {claim}")

    def progress(self, done: int, total: int, what: str) -> None:
        """Draw how far it is, now and then."""
        self.end_if_interrupted()
        now = time.monotonic()
        if self.is_live and now - self.drawn_at >= self.REDRAW_SECONDS:
            self.drawn_at = now
            full = self.BAR_COLUMNS * done // total
            bar = self.full * full + self.empty * (self.BAR_COLUMNS - full)
            print(f"\r   {bar}  {done:,} of {total:,} {what}\x1b[K", end="", flush=True)

    def end_progress(self, text: str) -> None:
        """What became of it, in place of the bar."""
        self.clear_line()
        self.say(text)

    def fail(self, text: str) -> None:
        """The last words."""
        self.clear_line()
        print(text, file=sys.stderr, flush=True)

    def end_if_interrupted(self) -> None:
        """Raises `KeyboardInterrupt` when a signal has come."""
        if self.is_interrupted:
            raise KeyboardInterrupt

    def clear_line(self) -> None:
        """Remove the bar."""
        if self.is_live:
            print("\r\x1b[K", end="", flush=True)

    def _in(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.is_live else text


def shown(value: object) -> str:
    """A value of a claim, however large, in a line."""
    text = repr(value)
    return text if len(text) <= 500 else f"{text[:500]}... ({len(text):,} characters)"


def main() -> int:
    """Tell the story; returns the exit code."""
    terminal = Terminal()

    def interrupt(*_: object) -> None:
        terminal.is_interrupted = True
        if not terminal.is_starting:
            raise KeyboardInterrupt

    # SIGTERM tidies up, too; and Ctrl-C, even where a shell had it ignored as it started this.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, interrupt)
    began = time.monotonic()
    terminal.title(f"ackgate: no ack is forgotten. Broker and pulsar-client {pulsar.__version__}")
    with tempfile.TemporaryDirectory(prefix="ackgate-demo-") as directory:
        broker = BrokerProcess(Path(directory, "data"), settings=SETTINGS)
        try:
            Story(terminal, broker, Path(directory, "client.log")).tell()
            seconds = time.monotonic() - began
            terminal.title(f"\n{terminal.claims} claims checked in {seconds:.1f} s.")
        except (*FAILURES, KeyboardInterrupt) as error:
            # The broker and a command had the same Ctrl-C, and may have ended first.
            if terminal.is_interrupted:
                terminal.fail("interrupted")
                return 130
            end_of_log = "\n".join(broker.log.splitlines()[-10:]) or "(empty)"
            terminal.fail(f"FAILED: {error}\nThe end of the broker's log:\n{end_of_log}")
            return 1
        except BrokenPipeError:  # nobody reads on
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C shall not leave a mess
            broker.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
