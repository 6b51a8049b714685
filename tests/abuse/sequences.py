"""Random clients whose every method is well formed and whose every value is extreme, against one engine.

The fuzzer breaks frames; here nothing is broken. Each value is drawn from the edges of what its domain allows: names
that exist, that do not, of 255 bytes, of control characters; the largest and smallest numbers; tables with every
argument the broker knows, set to values that make no sense; properties that make it act. The requirements:

1. No exception leaves the engine, it comes to rest, and no close says 541.
2. A connection that is gone leaves nothing behind: consumers, exclusive queues, unacked messages and bytes of bodies
   go.
3. Memory is back to its level when the vhost is deleted.
4. A step, one read with the turns that it causes, does not multiply: the turns until rest are bounded.

Everything is drawn from the seed; ``python -m abuse.sequences --seed S --first B`` in tests/ plays batch B again.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from engine import Client, Engine
from fuzz.session import handshake
from peer_frames import USER

from warren.amqp import methods as m
from warren.amqp.codec import frame, method_frame
from warren.amqp.field_table import Table, Timestamp, encode_table
from warren.amqp.methods import METHOD_IDS, METHODS, PROTOCOL_HEADER
from warren.amqp.properties import BasicProperties
from warren.exchanges.registry import EXCHANGE_TYPES
from warren.queues.arguments import ARGUMENTS
from warren.vhosts.metadata import PolicyPut

BATCH_METHODS: Final = 2_000
CLIENTS_AT_A_TIME: Final = 4
METHODS_PER_CLIENT: Final = (20, 200, 1_000)
WARM_UP_BATCHES: Final = 5
# With fewer, the memory after them is the memory of the warm-up.
JUDGED_BATCHES_MIN: Final = WARM_UP_BATCHES + 3
# Free lists of the interpreter fill up with some 500, of which the last come after hundreds of batches.
GROWTH_BLOCKS_MAX: Final = 1_000
GROWTH_BYTES_MAX: Final = 32 << 20

SENT_BY_CLIENTS: Final[tuple[type[Any], ...]] = (
    m.ChannelFlow,
    m.ExchangeDeclare,
    m.ExchangeDelete,
    m.ExchangeBind,
    m.ExchangeUnbind,
    m.QueueDeclare,
    m.QueueBind,
    m.QueueUnbind,
    m.QueuePurge,
    m.QueueDelete,
    m.BasicQos,
    m.BasicConsume,
    m.BasicCancel,
    m.BasicPublish,
    m.BasicGet,
    m.BasicAck,
    m.BasicReject,
    m.BasicRecover,
    m.BasicNack,
    m.TxSelect,
    m.TxCommit,
    m.TxRollback,
    m.ConfirmSelect,
)
# Methods by which the rest comes to mean something are more frequent.
WEIGHTS: Final = {m.BasicPublish: 12, m.QueueDeclare: 4, m.ExchangeDeclare: 3, m.QueueBind: 4, m.BasicConsume: 4}
RARE_FLAGS: Final = {"passive": 0.1, "if_unused": 0.1, "if_empty": 0.1, "immediate": 0.002, "no_local": 0.1}
RARE_FLAGS.update(active=0.98, requeue=0.7)

QUEUES: Final = [f"q{number}" for number in range(6)]
EXCHANGES: Final = [f"e{number}" for number in range(6)]
ODD_NAMES: Final = [
    "",
    "amq.",
    "amq.direct",
    "amq.rabbitmq.trace",
    "amq.control",
    "\x00\x07\x1b[2J",
    "\u202e",
    "n" * 255,
]
KEYS: Final = [
    "",
    "a",
    "a.b",
    "#",
    "*",
    "#.a.#",
    ".".join("#" * 60),
    ".".join("a" * 127),
    "k" * 255,
    "10",
    "-1",
    "9" * 200,
]
NUMBERS: Final = [-1, 0, 1, 2, 3, 127, 255, 256, 65535, 65536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1]
SMALLEST: Final = -(1 << 63)


class Hostility:
    """Draws extreme values, well formed all of them."""

    def __init__(self, choices: random.Random) -> None:
        self.choices = choices
        self.pick = choices.choice

    def method(self) -> Any:
        """Return a method that a client may send, with its arguments."""
        kind = self.pick(_WEIGHTED)
        return kind(*(self._argument(kind, name, domain) for name, domain in METHODS[METHOD_IDS[kind]].fields))

    def _argument(self, kind: type[Any], name: str, domain: str) -> Any:
        match domain:
            case "bit":
                # Some keep most of what is asked for from being done, or close the connection.
                return self.choices.random() < RARE_FLAGS.get(name, 0.4)
            case "octet":
                return self.pick([0, 1, 255])
            case "short":
                return self.pick([0, 0, 1, 2, 65535])
            case "long" if name == "prefetch_size":
                return self.pick([0] * 50 + [1])  # 540
            case "long":
                return self.pick([0, 0, 1, 1 << 31, (1 << 32) - 1])
            case "longlong":
                return self.pick([0, 1, 2, 3, 5, 100, (1 << 63) - 1, (1 << 64) - 1])
            case "shortstr":
                return self._text(kind, name)
            case "longstr":
                return b"\xff" * self.pick([0, 1, 1000])
            case "table":
                return self.table()
            case "rawtable":
                return encode_table(self._arguments(kind))
        raise AssertionError(f"no values for {domain}")

    def _text(self, kind: type[Any], name: str) -> str:
        if name == "type":
            return self.pick([*EXCHANGE_TYPES, *EXCHANGE_TYPES, "x-none"])
        if name == "routing_key":
            return self.pick(KEYS + QUEUES)
        if name == "consumer_tag":
            return self.pick(["", "c1", "c2", "c3", "t" * 255])
        names = QUEUES if name == "queue" else EXCHANGES
        if kind is m.BasicPublish and self.choices.random() < 0.3:
            return ""  # the default exchange
        return self.pick(ODD_NAMES) if self.choices.random() < 0.05 else self.pick(names)

    def _arguments(self, kind: type[Any]) -> Table:
        """Return arguments that the broker knows, with values that fit some of them."""
        if self.choices.random() < 0.4:
            return {}
        table: Table = {}
        for _ in range(self.choices.randint(1, 4)):
            table[self.pick(_ARGUMENT_NAMES)] = self.value()
        if kind is m.QueueDeclare and self.choices.random() < 0.5:
            # Rules that pass messages on, to wherever, without any room.
            table["x-dead-letter-exchange"] = self.pick([*EXCHANGES, ""])
            table["x-max-length"] = self.pick([0, 0, 1, 100])
            if self.choices.random() < 0.3:
                table["x-message-ttl"] = self.pick([0, 1, 1000])
        return table

    def value(self, depth: int = 0) -> Any:
        """Return any value of a field table."""
        match self.choices.randrange(12):
            case 0 | 1 | 2 | 3:
                return self.pick(NUMBERS)
            case 4:
                return self.pick([SMALLEST, -(1 << 31), True, False, None])
            case 5:
                return self.pick([0.0, -0.0, 1e308, float("inf"), float("-inf"), float("nan"), 5e-324])
            case 6:
                return self.pick([b"", b"\xff" * 100, Timestamp(0), Timestamp((1 << 63) - 1)])
            case 7 if depth < 5:
                return [self.value(depth + 1) for _ in range(self.choices.randint(0, 4))]
            case 8 if depth < 5:
                return self.table(depth + 1)
            case 9:
                return self.pick(_CHOICES)
            case _:
                return self.pick(KEYS + QUEUES + EXCHANGES + ["9" * 4_999, "1e400", "1h", "0x10"])

    def table(self, depth: int = 0) -> Table:
        """Return a table of a few values, with some of the names that the broker looks for."""
        return {self.pick(_HEADER_NAMES): self.value(depth) for _ in range(self.choices.randint(0, 4))}

    def content(self, channel: int) -> bytes:
        """Return the header and body frames after a publish."""
        properties = BasicProperties()
        for name in self.choices.sample(_PROPERTY_NAMES, self.choices.choice([0, 0, 1, 3, 13])):
            setattr(properties, name, self._property(name))
        body = b"x" * self.pick([0, 1, 10, 1000, 10_000])
        header = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + properties.encode()
        room = 4096 - m.FRAME_OVERHEAD_BYTES
        pieces = [body[at : at + room] for at in range(0, len(body), room)]
        return frame(m.FRAME_HEADER, channel, header) + b"".join(frame(m.FRAME_BODY, channel, each) for each in pieces)

    def _property(self, name: str) -> Any:
        match name:
            case "headers":
                table = self.table()
                if self.choices.random() < 0.3:
                    table[self.pick(["CC", "BCC"])] = [self.pick(KEYS + QUEUES) for _ in range(self.pick([1, 5, 100]))]
                return encode_table(table)
            case "delivery_mode":
                return self.pick([0, 1, 2, 255])
            case "priority":
                return self.pick([0, 9, 255])
            case "timestamp":
                return self.pick([0, 1, (1 << 64) - 1])
            case "user_id":
                return self.pick([USER, USER, "other"])
            case "expiration":
                return self.pick(["0", "1", "1000", "9" * 200, "-1", "1e3", ""])
            case "reply_to":
                return self.pick(["amq.rabbitmq.reply-to", "q1", ""])
        return self.pick(["", "text", "t" * 255])


_WEIGHTED: Final = [kind for kind in SENT_BY_CLIENTS for _ in range(WEIGHTS.get(kind, 1))]
_ARGUMENT_NAMES: Final = [f"x-{row.key}" for row in ARGUMENTS] + [
    "alternate-exchange",
    "x-match",
    "x-priority",
    "x-stream-offset",
    "x-cancel-on-ha-failover",
    "x-delayed-type",
    "x-super-stream",
    "hash-header",
    "x-recent-history-length",
    "x-group",
]
_HEADER_NAMES: Final = [
    "x-delay",
    "x-deliver-at",
    "x-death",
    "x-deduplication-header",
    "x-match",
    "x-stream-filter-value",
    "x-first-death-queue",
    "x-key",
    "CC",
    "BCC",
    "",
    "n" * 128,
]
_CHOICES: Final = [
    *("all", "any", "all-with-x", "any-with-x", "drop-head", "reject-publish", "reject-publish-dlx"),
    *("classic", "quorum", "stream", "at-least-once", "first", "last", "compact", "memory"),
]
_PROPERTY_NAMES: Final = [
    *("content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to"),
    *("expiration", "message_id", "timestamp", "type", "user_id", "app_id"),
]


class HostileClient:
    """One connection. It answers closes of its channels, and goes when its connection is closed."""

    def __init__(self, engine: Engine, hostility: Hostility, counts: Counter[str]) -> None:
        self.engine = engine
        self.counts = counts
        self.hostility = hostility
        self.client: Client = engine.connect()
        self.left = hostility.pick(METHODS_PER_CLIENT)
        self.feed(PROTOCOL_HEADER + b"".join(each.encode() for each in handshake()))
        self._read()
        self.feed(b"".join(method_frame(channel, m.ChannelOpen("")) for channel in (1, 2)))

    def step(self) -> bool:
        """Send a few methods in one read; False when the client is done."""
        data = bytearray()
        for _ in range(self.hostility.choices.choice([1, 1, 3, 10])):
            channel = self.hostility.choices.randint(1, 2)
            method = self.hostility.method()
            data += method_frame(channel, method)
            if isinstance(method, m.BasicPublish):
                data += self.hostility.content(channel)
            self.left -= 1
            self.counts["methods"] += 1
        self.feed(bytes(data))
        self._read()
        return self.left > 0 and not self.client.ended

    def feed(self, data: bytes) -> None:
        if not self.client.ended:
            self.client.connection.feed(data)
            self.engine.settle()

    def finish(self) -> None:
        self.engine.hang_up(self.client)

    def _read(self) -> None:
        """Look for closes in what came, and answer them."""
        received = self.client.take()
        at = 0
        answers = bytearray()
        while len(received) - at >= 8:
            size = int.from_bytes(received[at + 3 : at + 7], "big")
            if received[at] == m.FRAME_METHOD:
                method_id = int.from_bytes(received[at + 7 : at + 11], "big")
                channel = int.from_bytes(received[at + 1 : at + 3], "big")
                code = int.from_bytes(received[at + 11 : at + 13], "big")
                if method_id == METHOD_IDS[m.ChannelClose]:
                    self.counts[f"channel.close {code}"] += 1
                    answers += method_frame(channel, m.ChannelCloseOk()) + method_frame(channel, m.ChannelOpen(""))
                elif method_id == METHOD_IDS[m.ConnectionClose]:
                    assert code != 541, received[at : at + size + 8]
                    self.counts[f"connection.close {code}"] += 1
                    answers += method_frame(0, m.ConnectionCloseOk())
                    self.left = 0
            at += size + 8
        if answers:
            self.feed(bytes(answers))


class Sequences:
    """Runs batches. `counts` says what the clients have met."""

    def __init__(self, seed: int, first_batch: int = 0) -> None:
        self.seed = seed
        self.batch = first_batch
        self.engine = Engine()
        self.counts: Counter[str] = Counter()
        # Blocks and resident bytes, when it had warmed up and now. No more of them: they would be growth themselves.
        self.memory_before: tuple[int, int] | None = None
        self.memory = (0, 0)

    def run(self, methods: int, *, batches: int = 0, after_batch: Callable[[Sequences], None] | None = None) -> None:
        """Continue until `methods` methods were sent, in at least so many batches.

        Raises:
            AssertionError: one of the rules was broken; how to see it again.
        """
        done = 0
        while self.counts["methods"] < methods or done < batches:
            try:
                self._run_batch()
            except Exception as error:
                again = f"python -m abuse.sequences --seed {self.seed} --first {self.batch}"
                raise AssertionError(f"{error!r}; again with: {again}") from error
            self.batch += 1
            done += 1
            if done >= WARM_UP_BATCHES:
                self.memory = _memory()
                if self.memory_before is None:
                    self.memory_before = self.memory
            if after_batch is not None:
                after_batch(self)

    def _run_batch(self) -> None:
        choices = random.Random(f"{self.seed}/{self.batch}")
        hostility = Hostility(choices)
        goal = self.counts["methods"] + BATCH_METHODS
        clients: list[HostileClient] = []
        while self.counts["methods"] < goal or clients:
            if len(clients) < CLIENTS_AT_A_TIME and self.counts["methods"] < goal:
                self.counts["connections"] += 1
                clients.append(HostileClient(self.engine, hostility, self.counts))
            client = choices.choice(clients)
            if not client.step():
                clients.remove(client)
                client.finish()
                self.engine.check_idle()
            if choices.random() < 0.02:
                self._disturb(choices, hostility)
        self.engine.settle()
        self.engine.check_idle()
        self.engine.start_over()

    def _disturb(self, choices: random.Random, hostility: Hostility) -> None:
        """Advance the time, make memory short, and change policies."""
        engine = self.engine
        match choices.randrange(4):
            case 0:
                engine.advance(choices.choice([0.001, 1.0, 60.0]))
            case 1:
                engine.broker.set_alarm("memory", not engine.broker.has_alarm("memory"))
            case _:
                row = choices.choice(ARGUMENTS)
                value = hostility.pick([*NUMBERS, SMALLEST, 10**400, "9" * 400, True, 1.5, "drop-head"])
                put = PolicyPut("/", "extreme", ".*", "all", 0, json.dumps({row.key: value}))
                try:
                    engine.broker.administer(put)
                    self.counts["policies"] += 1
                except ValueError:
                    self.counts["policies refused"] += 1
        engine.settle()

    def check_memory(self) -> None:
        """Compare what there is with what there was after the first batches.

        Raises:
            AssertionError: the process has grown, or has not warmed up.
        """
        assert self.memory_before is not None, "it has not warmed up"
        (blocks, resident), (last_blocks, last_resident) = self.memory_before, self.memory
        assert last_blocks - blocks < GROWTH_BLOCKS_MAX, f"{blocks} to {last_blocks} blocks, seed {self.seed}"
        assert last_resident - resident < GROWTH_BYTES_MAX, f"{resident} to {last_resident} B, seed {self.seed}"


def _memory() -> tuple[int, int]:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return sys.getallocatedblocks(), pages * os.sysconf("SC_PAGE_SIZE")


def _progress(sequences: Sequences) -> None:
    print(f"\rbatch {sequences.batch}: {sequences.counts['methods']} methods", end="", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m abuse.sequences", description="Send extreme values to the engine.")
    parser.add_argument("--methods", type=int, default=1_000_000, help="methods to send (%(default)s)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--first", type=int, default=0, help="batch to begin with (%(default)s)")
    options = parser.parse_args()
    print(f"seed {options.seed}, from batch {options.first}")
    sequences = Sequences(options.seed, options.first)
    sequences.run(options.methods, after_batch=_progress)
    print(file=sys.stderr)
    for what, count in sorted(sequences.counts.items()):
        print(f"{count:10} {what}")
    if sequences.memory_before is not None:
        print(f"blocks and bytes: {sequences.memory_before} to {sequences.memory}")
        sequences.check_memory()


if __name__ == "__main__":
    main()
