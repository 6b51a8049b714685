"""Deduplication against lists: random publishes, jumps of the clock, and a broker that dies at any moment.

The whole engine on a simulated disk. Whenever a batch of the log is closed, the model records its own state. The state
after a crash has to be one of these, and not older than the last one that a confirm depended on. So a confirmed key is
never forgotten, and any other key is known only together with its message.

The queue ``q`` deduplicates, and refuses when it is full. The exchange ``e`` deduplicates for ``q`` and for ``r``,
which takes everything. The body of a message is its number.

An expired key becomes valid again when the clock is set back. The broker may know it or not, and only there the model
follows the broker.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final
from unittest import mock

import pytest
from engine_harness import USER, Client, Harness, body_of, publish_frames
from life_ids import new_life_id
from seen_keys_view import producers
from simulation.machine import MUTATING
from simulation.simulated_file_system import SimulatedFileSystem
from simulation.small_limits import small_limits
from simulation.small_store import Shape, open_store

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import EMPTY_TABLE, Table, encode_table
from warren.channels.broker import Broker
from warren.msgstore.log import message_log
from warren.msgstore.log.compaction import Compaction
from warren.queues import record_lane, seen_keys
from warren.queues.lanes import DELAYED
from warren.queues.seen_keys import SeenKeys
from warren.queues.timers import NEVER
from warren.vhosts.metadata import BindingPut, ExchangePut, PermissionPut, QueuePut, UserPut, VhostPut

from .restarting_broker import Disk

SIZE: Final = 3
FULL: Final = 8
KEYS: Final = "abcdefg"
PRODUCERS: Final = "pqrstu"
START_MS: Final = 1_700_000_000_000
DELAYS_MS: Final = (0, 0, 3000)
SEED: Final = 1
LIVES: Final = int(os.environ.get("WARREN_TEST_DEDUP_LIVES", "25"))
STEPS: Final = 60

Keys = tuple[str | None, tuple[str, int] | None]  # key, producer and number

# --- the model --------------------------------------------------------------------------------------------------------


@dataclass
class Key:
    """`batch`: which has it, 0: it is not stored. `stored_ms`: until when it is remembered, as its record says."""

    key: str
    until_ms: int
    batch: int
    stored_ms: int


@dataclass
class Producer:
    """`stored`: the number that the log has, since `batch`."""

    name: str
    sequence: int
    stored: int | None = None
    batch: int = 0


@dataclass
class Window:
    """The keys that one queue or exchange has seen. `stored_order`: names in the order in which their numbers were
    stored."""

    ttl_ms: int
    keys: list[Key] = field(default_factory=list)
    producers: list[Producer] = field(default_factory=list)
    stored_order: list[str] = field(default_factory=list)

    def repeats(self, keys: Keys, now_ms: int) -> int | None:
        """Return the batch that a repetition has to wait for; None: it is not a repetition."""
        key, numbered = keys
        for seen in self.keys:
            if seen.key == key and seen.until_ms > now_ms:
                return seen.batch
        for at, producer in enumerate(self.producers):
            if numbered is not None and producer.name == numbered[0] and numbered[1] <= producer.sequence:
                self.producers.append(self.producers.pop(at))
                return producer.batch
        return None

    def add(self, keys: Keys, now_ms: int, batch: int) -> None:
        key, numbered = keys
        if key is not None:
            self.keys = [seen for seen in self.keys if seen.key != key]
            until_ms = now_ms + self.ttl_ms if self.ttl_ms else int(NEVER)
            self.keys.append(Key(key, until_ms, batch, until_ms))
            self.keys = self.keys[-SIZE:]
        if numbered is not None:
            name, sequence = numbered
            found = [producer for producer in self.producers if producer.name == name] or [Producer(name, sequence)]
            found[0].sequence = sequence
            if batch:
                found[0].stored, found[0].batch = sequence, batch
                self.stored_order = [other for other in self.stored_order if other != name] + [name]
            self.producers = [*(other for other in self.producers if other is not found[0]), found[0]][-SIZE:]
            names = {producer.name for producer in self.producers}
            self.stored_order = [other for other in self.stored_order if other in names]

    def after_restart(self) -> Window:
        stored = {producer.name: producer.stored for producer in self.producers}
        kept = [Key(seen.key, seen.stored_ms, 1, seen.stored_ms) for seen in self.keys if seen.batch]
        restored = Window(self.ttl_ms, kept)
        for name in self.stored_order:
            sequence = stored[name]
            assert sequence is not None
            restored.producers.append(Producer(name, sequence, sequence, 1))
        restored.stored_order = list(self.stored_order)
        return restored

    def begin(self, now_ms: int) -> None:
        """A process begins with what was restored: no key has more than its time from then on."""
        for seen in self.keys if self.ttl_ms else ():
            seen.until_ms = min(seen.stored_ms, now_ms + self.ttl_ms)

    def shown(self, later_than_ms: int) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
        keys = [(seen.key, seen.until_ms) for seen in self.keys if seen.until_ms > later_than_ms]
        return keys, [(producer.name, producer.sequence) for producer in self.producers]

    def follow(self, seen: SeenKeys, later_than_ms: int) -> None:
        """Take over what the broker has of those keys that may be there or not."""
        there = {(key, until_ms) for key, until_ms in seen.oldest(100)}
        self.keys = [k for k in self.keys if k.until_ms > later_than_ms or (k.key, k.until_ms) in there]


@dataclass
class Model:
    """The expected contents of the broker. `q` and `r`: the messages of the queues, with whether they are stored."""

    of_queue: Window
    of_exchange: Window
    q: dict[int, bool] = field(default_factory=dict)
    r: dict[int, bool] = field(default_factory=dict)

    def after_restart(self) -> Model:
        q, r = ({number: True for number, stored in held.items() if stored} for held in (self.q, self.r))
        return Model(self.of_queue.after_restart(), self.of_exchange.after_restart(), q, r)

    def begin(self, now_ms: int) -> None:
        self.of_queue.begin(now_ms)
        self.of_exchange.begin(now_ms)

    def shown(self, later_than_ms: int) -> tuple[object, ...]:
        windows = (self.of_queue.shown(later_than_ms), self.of_exchange.shown(later_than_ms))
        return (*windows, sorted(self.q), sorted(self.r))


# --- the broker -------------------------------------------------------------------------------------------------------


class Restarted(Harness):
    """A broker that has begun on a disk, with what the catalogue remembers, and has read what it waits for."""

    def __init__(self, fs: SimulatedFileSystem, shape: Shape, now_ms: int, ttls_ms: tuple[int, int]) -> None:
        super().__init__()
        opened = open_store(fs, shape)
        self.broker = Broker(self.broker.limits, self._entropy, seed=1, log=opened.log)
        self.log = opened.log
        self.log.now_ms = now_ms
        self.disk = Disk(self.broker, opened.store)
        self.store = self.disk  # type: ignore[assignment]
        for change in topology(ttls_ms):
            self.broker.restore(change)
        for queue_id, index in list(self.log.indexes.items()):
            if queue_id in (1, 2):
                self.queue("q" if queue_id == 1 else "r").restore(index, opened.found.clean)
            else:
                assert self.broker.restore_lane(index, opened.found.clean), f"lane {index.lane} of {index.name}"
        while self.broker.is_restoring():
            assert self.disk.run(), "it waits for something that nobody reads"
        seen = self.queue("q").seen
        assert seen is not None
        self.of_queue = seen
        self.of_exchange = self.vhost.seen_keys["e"]
        self.of_queue.check_invariants()
        self.of_exchange.check_invariants()

    def begin(self) -> None:
        """Go on writing where the log ends."""
        log = self.log
        self.disk.store.resume(log.last_crc, log.next_lsn, log.epoch, log.store_id, log.algorithm)
        log.begin_epoch(int(log.epoch), 0, new_life_id())
        self.settle()

    def shown(self, later_than_ms: int) -> tuple[object, ...]:
        """Return what there is, as the model shows it. Takes everything out."""
        windows = (shown(self.of_queue, later_than_ms), shown(self.of_exchange, later_than_ms))
        self.begin()
        self.pass_time(100_000)  # held messages come
        self.settle()
        client = self.channel()
        return (*windows, *(sorted(self.numbers(client, name)) for name in ("q", "r")))

    def numbers(self, client: Client, name: str) -> Iterator[int]:
        while (got := client.get(name, no_ack=True)) is not None:
            yield int(body_of(got))


def shown(seen: SeenKeys, later_than_ms: int) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    keys = [(key, until_ms) for key, until_ms in seen.oldest(100) if until_ms > later_than_ms]
    return keys, producers(seen)


def topology(ttls_ms: tuple[int, int]) -> list[Any]:
    """Return the contents of the catalogue. A time of 0 means no time limit."""

    def dedup(ttl_ms: int) -> Table:
        table: Table = {"x-message-deduplication": True, "x-deduplication-header": "id", "x-cache-size": SIZE}
        return table | ({"x-cache-ttl": ttl_ms} if ttl_ms else {})

    of_queue = encode_table(dedup(ttls_ms[0]) | {"x-max-length": FULL, "x-overflow": "reject-publish"})
    return [
        VhostPut("/"),
        UserPut(USER, "", "rabbit_password_hashing_sha256"),
        PermissionPut(USER, "/", ".*", ".*", ".*"),
        QueuePut("/", "q", False, of_queue, 1),
        QueuePut("/", "r", False, EMPTY_TABLE, 2),
        ExchangePut("/", "e", "fanout", auto_delete=False, internal=False, arguments=encode_table(dedup(ttls_ms[1]))),
        BindingPut("/", "e", "q", "queue", "", EMPTY_TABLE),
        BindingPut("/", "e", "r", "queue", "", EMPTY_TABLE),
    ]


# --- lives ------------------------------------------------------------------------------------------------------------


@dataclass
class Expected:
    """The wait of a publish in confirm mode. `batch`: the one that its ack promises, 0 without one."""

    refused: bool
    batch: int


class Life:
    """A broker under one seed, with crashes."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.shape = Shape(self.random.choice((2048, 8192)), 4, self.random.choice((1 << 12, 1 << 30)))
        self.ttls_ms = (self.random.choice((0, 10_000)), self.random.choice((0, 10_000)))
        self.now_ms = self.latest_ms = START_MS
        self.model = Model(Window(self.ttls_ms[0]), Window(self.ttls_ms[1]))
        self.number = 0
        self.sequences = dict.fromkeys(PRODUCERS, 0)
        self.trace: list[str] = []
        self.judged = self.crashes = self.repeated = self.refused = 0
        self.sudden = self.random.choice((0.0, 0.0, 0.01, 0.03))
        operations: list[tuple[Callable[[], None], float]] = [
            (self._publish, 10),
            (self._burst, 1),
            (self._transaction, 1.5),
            (self._get, 4),
            (self._consume, 0.7),
            (self._hold, 2),
            (self._go_on, 3),
            (self._pass_time, 3),
            (self._checkpoint, 1),
            (self._compact, 1),
            (self._crash, 1),
            (self._stop, 0.5),
        ]
        self._operations = [operation for operation, _ in operations]
        self._weights = [weight * self.random.choice((0.3, 1, 1, 3)) for _, weight in operations]
        self._begin(SimulatedFileSystem(), {0: self.model.after_restart()}, 0)

    def run(self) -> None:
        for _ in range(STEPS):
            (operation,) = self.random.choices(self._operations, self._weights)
            self.trace.append(operation.__name__)
            try:
                operation()
                self._look()
            except PowerCut:
                self.trace.append("power cut")
                self._restart(self._any_crash_state())
        self.sudden = 0.0
        self._go_on()
        self._look()
        self._judge(self.fs.kill9(), int(self.broker.log.done_batch))

    # --- beginnings and ends ----------------------------------------------------------------------------------------

    def _begin(self, fs: SimulatedFileSystem, allowed: dict[int, Model], promised: int) -> None:
        """Begin on `fs`: its contents have to be allowed."""
        while True:
            self.model = self._judge_with(fs.kill9(), allowed, promised)
            self.fs = fs
            self.promised = 0
            self.answers: dict[int, Expected] = {}
            self.published = 0
            self.commit_waits = -1
            self.consuming = False
            self.broker = Restarted(fs, self.shape, self.now_ms, self.ttls_ms)
            self.model.of_queue.follow(self.broker.of_queue, self.latest_ms)
            self.model.of_exchange.follow(self.broker.of_exchange, self.latest_ms)
            self.allowed = {0: self.model.after_restart()}
            self.batch = 1
            fs.on_operation = self._operation
            try:
                self.broker.begin()
                self.compaction = Compaction(self.broker.log)
                self.client, self.transacting, self.reader = (self.broker.channel() for _ in range(3))
                assert self.client.call(1, m.ConfirmSelect(False)) == m.ConfirmSelectOk()
                self.transacting.call(1, m.TxSelect())
                self._look()
                return
            except PowerCut:
                fs, allowed, promised = self._any_crash_state(), self.allowed, 0

    def _operation(self, event: str) -> None:
        when, operation, _ = event.split(" ", 2)
        if when == "before" and operation in MUTATING:
            if self.random.random() < 0.3:
                for state in self.fs.crash_states(self.random.getrandbits(32), 2):
                    self._judge(state, self.promised)
            if self.random.random() < self.sudden:
                raise PowerCut

    def _any_crash_state(self) -> SimulatedFileSystem:
        return self.random.choice(list(self.fs.crash_states(self.random.getrandbits(32), 4)))

    def _restart(self, fs: SimulatedFileSystem) -> None:
        self.crashes += 1
        self._write_down()
        self._begin(fs, self.allowed, self.promised)

    def _crash(self) -> None:
        self._restart(self._any_crash_state())

    def _stop(self) -> None:
        """A clean stop, and a new process."""
        self._go_on()
        for client in (self.client, self.transacting, self.reader):
            client.hang_up()
        self.broker.log.checkpoints.want(clean=True)
        self.broker.settle()
        self._write_down()
        self.broker.disk.store.close()
        self.crashes += 1
        self._begin(self.fs.kill9(), self.allowed, max(self.allowed))

    def _judge(self, state: SimulatedFileSystem, promised: int) -> None:
        # During an operation of the disk, the contents are those of the open batch, or of one that is not begun.
        allowed = self.allowed | {1 << 30: self.model.after_restart()}
        self._judge_with(state, allowed, promised)

    def _judge_with(self, state: SimulatedFileSystem, allowed: dict[int, Model], promised: int) -> Model:
        """Return which of the `allowed` states from `promised` on came back."""
        self.judged += 1
        found = Restarted(state, self.shape, self.now_ms, self.ttls_ms).shown(self.latest_ms)
        for batch, written in allowed.items():
            model = deepcopy(written)
            model.begin(self.now_ms)
            if batch >= promised and model.shown(self.latest_ms) == found:
                return model
        expected = "\n".join(f"{batch}: {model.shown(self.latest_ms)}" for batch, model in allowed.items())
        raise AssertionError(f"came back: {found}\npromised: {promised}\n{expected}")

    # --- after each operation ---------------------------------------------------------------------------------------

    def _write_down(self) -> None:
        """Write down the state for each batch that was closed since."""
        closed = int(self.broker.log.batch.number)
        for batch in range(self.batch, closed):
            self.allowed[batch] = self.model.after_restart()
        self.batch = closed

    def _look(self) -> None:
        """Compare, and take note of what was confirmed."""
        self._write_down()
        for received in self.client.take():
            answer = received.method
            assert isinstance(answer, m.BasicAck | m.BasicNack), answer
            assert not isinstance(answer, m.BasicNack) or not answer.multiple
            tag = answer.delivery_tag
            for each in [each for each in self.answers if each == tag or (answer.multiple and each < tag)]:
                expected = self.answers.pop(each)
                assert expected.refused == isinstance(answer, m.BasicNack)
                self.promised = max(self.promised, expected.batch)
        for received in self.transacting.take():
            assert received.method == m.TxCommitOk()
            assert self.commit_waits >= 0
            self.promised = max(self.promised, self.commit_waits)
            self.commit_waits = -1
        broker = self.broker
        if not broker.disk.hold:
            assert not self.answers
            assert self.commit_waits < 0
        assert shown(broker.of_queue, self.latest_ms) == self.model.of_queue.shown(self.latest_ms)
        assert shown(broker.of_exchange, self.latest_ms) == self.model.of_exchange.shown(self.latest_ms)
        broker.of_queue.check_invariants()
        broker.of_exchange.check_invariants()
        lane = broker.queue("q").held(DELAYED)
        held = 0 if lane is None else int(lane.count)
        assert broker.queue("q").ready_count + held == len(self.model.q)
        assert broker.queue("r").ready_count == len(self.model.r)
        broker.check()

    # --- operations -------------------------------------------------------------------------------------------------

    def _keys(self) -> Keys:
        key: str | None = None
        numbered: tuple[str, int] | None = None
        if self.random.random() < 0.7:
            key = self.random.choice(KEYS)
        if self.random.random() < 0.5:
            name = self.random.choice(PRODUCERS)
            self.sequences[name] += self.random.choice((-2, 0, 1, 1, 1, 3))
            numbered = (name, self.sequences[name])
        return key, numbered

    def _frames(self, exchange: str, keys: Keys, number: int, *, persistent: bool, delay_ms: int = 0) -> bytes:
        key, numbered = keys
        table: Table = {} if key is None else {"id": key}
        if numbered is not None:
            table |= {"x-producer": numbered[0], "x-seq": numbered[1]}
        if delay_ms:
            table["x-delay"] = delay_ms
        properties = {"headers": encode_table(table), "delivery_mode": 2 if persistent else 1}
        return publish_frames(exchange, "q", b"%d" % number, 1, False, False, properties)

    def _expect(self, exchange: str, keys: Keys, number: int, *, persistent: bool, delay_ms: int = 0) -> Expected:
        """Make the model take a publish to ``e`` or, with ``""``, to ``q``."""
        model = self.model
        now_ms = self.now_ms
        open_batch = int(self.broker.log.batch.number)
        batch = open_batch if persistent else 0
        if exchange:
            first = model.of_exchange.repeats(keys, now_ms)
            if first is not None:
                self.repeated += 1
                return Expected(False, first)
            if not self.consuming:
                model.r[number] = persistent
        refused = False
        first = model.of_queue.repeats(keys, now_ms)
        if first is not None:
            self.repeated += 1
        elif self._ready >= FULL and not delay_ms:
            refused = True
            self.refused += 1
        else:
            model.of_queue.add(keys, now_ms, batch)
            model.q[number] = persistent
            self._ready += not delay_ms
        if exchange and not refused:
            model.of_exchange.add(keys, now_ms, batch)
        return Expected(refused, 0 if refused else batch if exchange or first is None else first)

    def _publish(self, most: int = 1) -> None:
        frames = []
        self._ready = int(self.broker.queue("q").ready_count)
        for _ in range(self.random.randint(1, most)):
            exchange = self.random.choice(("", "e"))
            keys = self._keys()
            self.number += 1
            persistent = self.random.random() < 0.8
            delay_ms = self.random.choice(DELAYS_MS) if not exchange else 0
            frames.append(self._frames(exchange, keys, self.number, persistent=persistent, delay_ms=delay_ms))
            self.published += 1
            self.answers[self.published] = self._expect(
                exchange, keys, self.number, persistent=persistent, delay_ms=delay_ms
            )
        self.client.feed(b"".join(frames))
        for received in self.reader.take():
            assert isinstance(received.method, m.BasicDeliver)

    def _burst(self) -> None:
        self._publish(30)

    def _transaction(self) -> None:
        """Publish a few messages at once. One that is refused would end the channel: only where there is room."""
        self._ready = int(self.broker.queue("q").ready_count)
        count = self.random.randint(1, 3)
        if self.commit_waits >= 0 or self._ready + count > FULL:
            return
        frames = b""
        waits = 0
        for _ in range(count):
            exchange, keys = self.random.choice(("", "e")), self._keys()
            self.number += 1
            frames += self._frames(exchange, keys, self.number, persistent=True)
            waits = max(waits, self._expect(exchange, keys, self.number, persistent=True).batch)
        self.commit_waits = waits
        self.transacting.feed(frames + method_frame(1, m.TxCommit()))
        self.reader.take()

    def _get(self) -> None:
        name = self.random.choice("qqr")
        for _ in range(self.random.choice((1, 3, 10))):
            got = self.reader.get(name, no_ack=True) if self.broker.queue(name).ready.ready_or_fetch() else None
            if got is None:
                return
            number = int(body_of(got))
            held = self.model.q if name == "q" else self.model.r
            assert number in held, f"message {number} came a second time"
            del held[number]

    def _consume(self) -> None:
        """Begin or end to take what comes into ``r`` at once, without acks."""
        if self.consuming:
            assert self.reader.call(1, m.BasicCancel("c", False)) == m.BasicCancelOk("c")
            self.consuming = False
        elif not self.model.r:
            self.reader.consume("r", "c", no_ack=True)
            self.consuming = True

    def _hold(self) -> None:
        self.broker.disk.hold = True

    def _go_on(self) -> None:
        self.broker.disk.hold = False
        self.broker.settle()

    def _pass_time(self) -> None:
        self.now_ms += self.random.choice((1, 100, 3000, 12_000, -2000, -20_000))
        self.latest_ms = max(self.latest_ms, self.now_ms)
        broker = self.broker
        broker.broker.keep_time(self.now_ms)
        broker.settle()
        self.model.of_queue.follow(broker.of_queue, self.latest_ms)
        self.model.of_exchange.follow(broker.of_exchange, self.latest_ms)

    def _checkpoint(self) -> None:
        self.broker.log.checkpoints.want()
        self.broker.settle()

    def _compact(self) -> None:
        for _ in range(5):
            self.compaction.step(urgent=True)
            self.broker.settle()


class PowerCut(BaseException):
    """Passes through everything, as a power cut does."""


@contextmanager
def small_windows() -> Iterator[None]:
    """Put pages of keys into the log, and read a few at a time; only where nothing is compiled."""
    few_at_a_time = mock.patch.object(record_lane, "RESTORE_MAX", 5)
    # The model takes a publish at once. With few rows in a batch publishers would wait for a disk that is held.
    none_waits = mock.patch.object(message_log, "FURTHER_ROWS", message_log.FURTHER_ROWS)
    with small_limits(), mock.patch.object(seen_keys, "PAGED_FROM", 0), few_at_a_time, none_waits:
        yield


@pytest.mark.timeout(900 + 10 * LIVES)
@pytest.mark.parametrize("group", range(4))
def test_a_broker_that_dies_at_any_moment_knows_what_it_confirmed_and_nothing_that_is_lost(group: int) -> None:
    judged = crashes = repeated = refused = 0
    with small_windows():
        for seed in range(SEED * 100_000 + group * LIVES, SEED * 100_000 + (group + 1) * LIVES):
            life: Life | None = None
            try:
                life = Life(seed)
                life.run()
            except Exception:
                print(f"seed {seed}, after {' '.join(life.trace) if life else 'nothing'}")
                raise
            judged += life.judged
            crashes += life.crashes
            repeated += life.repeated
            refused += life.refused
    print(f"{judged} disks judged, {crashes} crashes, {repeated} repetitions, {refused} refused")
    assert min(crashes, repeated, refused) > LIVES
