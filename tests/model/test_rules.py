"""Random commands around queues with rules: the broker against `small_rules`, compared after each.

Five clients with a channel each (two plain, one confirming, two transactional) share four queues, which get random
arguments each time they are declared, and policies that come and go. Dead letters go to other queues, to the queue
that they come from, in chains and cycles. Time goes from one timer of the broker to the next, each compared on
its own: what has expired is gone at that moment. Jumps of the clock do all that is due at once. The broker stops and
starts again, or is killed and starts again, and in some runs memory is so short that of long queues only the head is
in it.

After each command: what everybody was sent, flags, headers and deaths included; confirms; what waits, in order; what is
out and what is held. A run is played again by its seed, which it prints:

    WARREN_TEST_RULE_SEED=7 WARREN_TEST_RULE_RUNS=1
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from itertools import combinations, islice, permutations
from random import Random, SystemRandom
from typing import Any, Final

from engine_harness import Client, Received, basic_consume, body_of, publish_frames, queue_declare
from simulation.machine import Shape

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import Table, decode_table, encode_table
from warren.amqp.properties import headers_of, priority_of
from warren.msgstore.log.message import Message as StoredMessage
from warren.queues.held_messages import HeldMessage
from warren.queues.queue import Queue as RealQueue
from warren.vhosts.metadata import PolicyPut

from .restarting_broker import RestartingBroker
from .small_rules import NEVER, Channel, Consumer, Entry, Message, Queue, World

RUNS: Final = int(os.environ.get("WARREN_TEST_RULE_RUNS", "25"))
SEED: Final = int(os.environ.get("WARREN_TEST_RULE_SEED", "0"))
COMMANDS: Final = 250

CONFIRMING: Final = 1
TRANSACTIONAL: Final = (2, 3)
CLIENTS: Final = 5
NAMES: Final = ("a", "b", "c", "d")
START_MS: Final = 1_700_000_000_000
UNDELIVERABLE: Final = "nowhere"
ORDERED_MAX: Final = 4  # so many things may have to happen at once when the clock jumps: all orders are tried
ORDERS_MAX: Final = 720
UNSURE_MAX: Final = 6
LONG: Final = 40
# A turn does all that is asked for: else it would matter how many letters are placed before the next message dies.
MANY_STEPS: Final = 1 << 40

Command = Callable[[], None]


class Replies:
    """What came after a command, deliveries apart: by client, in order."""

    def __init__(self) -> None:
        self.deliveries: list[tuple[int, Received]] = []
        self.methods: dict[int, list[Any]] = {}
        self.cancelled: list[tuple[int, str]] = []
        self.confirms: list[tuple[int, bool, bool]] = []  # tag, multiple, refused


class UndecidedError(Exception):
    """So much has happened at once that the model cannot tell whether the broker is right: the run ends here."""


class Run:
    """A broker and its model under one seed."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.trace: list[str] = []
        self.is_short = self.dice.random() < 0.3  # of memory
        # What a queue lets go of itself, for its age or its length, may have to be read first if it is a dead letter;
        # what comes meanwhile goes before it. Where memory is short a run has either such rules or dead lettering.
        self.dead_letters = not self.is_short or self.dice.random() < 0.4
        self.drops = not self.is_short or not self.dead_letters
        memory_bytes = 0 if self.is_short else 128 << 20
        shape = Shape(1 << 17, self.dice.choice((4, 16, 64)), self.dice.choice((1 << 14, 1 << 30)))
        self.broker = RestartingBroker(shape, START_MS, memory_bytes, MANY_STEPS)
        self.world = World(START_MS, pages_out=self.is_short)
        self.has_started_again = False  # then what was held is read when it is due
        self.latest_ms = START_MS  # the clock was there before
        self.aging_ms = START_MS  # when a policy came last
        self.moments: set[int] = set()  # at which messages are due or expire
        self.bodies = 0
        self.tags = 0
        self.clients: list[Client] = []
        self.published = 0  # on the confirming channel
        self.expected: dict[int, bool] = {}  # its publishes that are not confirmed yet, and whether they are refused
        self._connect_all()
        weights: list[tuple[Command, float]] = [
            (self.declare, 6),
            (self.delete, 0.5),
            (self.purge, 0.7),
            (self.publish, 22),
            (self.burst, 4),
            (self.consume, 7),
            (self.cancel, 2),
            (self.get, 5),
            (self.ack, 8),
            (self.nack, 12),
            (self.recover, 1),
            (self.end_transaction, 4),
            (self.close_channel, 1),
            (self.hang_up, 1),
            (self.pass_time, 18),
            (self.jump, 2),
            (self.set_back, 0.7),
            (self.put_policy, 5),
            (self.page_out, 2),
            (self.restart, 1.2),
        ]
        self.commands = [command for command, _ in weights]
        self.weights = [weight * self.dice.choice((0.5, 1, 1, 2)) for _, weight in weights]

    def run(self) -> None:
        for name in NAMES:
            self._declare(name)
        for _ in range(COMMANDS):
            (command,) = self.dice.choices(self.commands, self.weights)
            command()
            self._tick()
        self.finish()

    def _note(self, *what: object) -> None:
        self.trace.append(f"{self.world.now_ms - START_MS}: " + " ".join(str(each) for each in what))

    # --- clients ----------------------------------------------------------------------------------------------------

    def _connect_all(self) -> None:
        self.clients = [self.broker.client() for _ in range(CLIENTS)]
        for number in range(CLIENTS):
            self._open(number)

    def _open(self, number: int) -> None:
        client = self.clients[number]
        client.open(1)
        self.world.channels[number] = Channel(number, number in TRANSACTIONAL)
        if number == CONFIRMING:
            client.call(1, m.ConfirmSelect(False))
            self.published = 0
            self.expected = {}
        elif number in TRANSACTIONAL:
            client.call(1, m.TxSelect())

    def _pick(self) -> tuple[int, Channel]:
        number = self.dice.randrange(CLIENTS)
        return number, self.world.channels[number]

    def _queue(self) -> Queue | None:
        return self.world.queues.get(self.dice.choice(NAMES))

    # --- comparing --------------------------------------------------------------------------------------------------

    def _collect(self) -> Replies:
        replies = Replies()
        for number, client in enumerate(self.clients):
            for each in client.take():
                method = each.method
                if isinstance(method, m.BasicDeliver):
                    replies.deliveries.append((number, each))
                elif isinstance(method, m.BasicCancel):
                    replies.cancelled.append((number, method.consumer_tag))
                elif isinstance(method, m.BasicAck | m.BasicNack):
                    assert number == CONFIRMING
                    refused = isinstance(method, m.BasicNack)
                    replies.confirms.append((method.delivery_tag, method.multiple, refused))
                else:
                    replies.methods.setdefault(number, []).append(each if each.content else method)
        return replies

    def _step(
        self, number: int, data: bytes, replies: list[Any] | None = None, cancelled: Sequence[Consumer] = ()
    ) -> None:
        """Feed `data`, whose meaning the model knows already, and compare."""
        self.clients[number].feed(data)
        self._compare(self._collect(), {number: replies} if replies else {}, cancelled)

    def _compare(
        self,
        received: Replies,
        replies: dict[int, list[Any]] | None = None,
        cancelled: Sequence[Consumer] = (),
        *,
        thorough: bool = False,
    ) -> None:
        """Compare everything with the model, which learns who got what; not every time what waits in a long queue."""
        self.world.hand_out()
        assert received.methods == (replies or {})
        assert sorted(received.cancelled) == sorted((each.client, each.tag) for each in cancelled)
        self._compare_deliveries(received.deliveries)
        self._compare_handed()
        self._compare_queues(thorough=thorough)
        for tag, multiple, refused in received.confirms:
            for each in [each for each in self.expected if each == tag or (multiple and each < tag)]:
                # What was refused is not in what is acknowledged later on, although its number is.
                assert self.expected.pop(each) == refused, f"publish {each} refused: {not refused}"
        assert not self.expected, "a publish is not confirmed"

    def _compare_deliveries(self, deliveries: list[tuple[int, Received]]) -> None:
        order: dict[str, int] = {}  # how far the messages of each consumer have come in what was handed out
        handed = {name: list(queue.handed) for name, queue in self.world.queues.items()}
        for number, each in deliveries:
            channel = self.world.channels[number]
            consumer = channel.consumers[each.method.consumer_tag]
            queue = self.world.queues[consumer.queue]
            assert consumer in queue.served(), "it is not its turn"
            found = [entry for entry in queue.handed if entry.message.body == body_of(each)]
            found = [entry for entry in found if self._is_as(entry, each)] or found
            assert found, f"{body_of(each)!r} goes out of {queue.name}, and should not"
            entry = found[0]
            self._compare_message(entry, each)
            at = handed[queue.name].index(entry)
            assert at > order.get(consumer.tag, -1), "messages out of order"
            order[consumer.tag] = at
            self.world.took(consumer, entry)
            assert each.method.delivery_tag == channel.tags
            assert consumer.no_ack or not consumer.prefetch or consumer.outstanding <= consumer.prefetch

    def _compare_handed(self) -> None:
        for queue in self.world.queues.values():
            assert not queue.handed, f"{[entry.message.body for entry in queue.handed]} of {queue.name} do not go out"

    def _is_as(self, entry: Entry, received: Received) -> bool:
        try:
            self._compare_message(entry, received)
        except AssertionError:
            return False
        return True

    def _compare_message(self, entry: Entry, received: Received) -> None:
        message = entry.message
        method, content = received.method, received.content
        assert content is not None
        assert content.body == message.body
        assert (method.exchange, method.routing_key) == (message.exchange, message.key)
        if not entry.doubtful:
            assert method.redelivered == entry.redelivered, f"redelivered: {not entry.redelivered}"
        properties = content.properties
        assert (properties.delivery_mode == 2) == message.persistent
        assert (properties.priority or 0) == message.priority
        assert properties.expiration == (None if message.expiration_ms is None else str(message.expiration_ms))
        headers = decode_table(properties.headers) if properties.headers is not None else {}
        timeless, expected = _timeless(headers, self.latest_ms // 1000), _headers(entry)
        assert timeless == expected, f"headers are {timeless}, and should be {expected}"

    def _compare_queues(self, *, thorough: bool) -> None:
        broker = self.broker
        names = sorted(broker.vhost.queues)
        assert names == sorted(self.world.queues), f"there are {names}, and should be {sorted(self.world.queues)}"
        for name, queue in self.world.queues.items():
            real = broker.queue(name)
            assert real.ready_count == len(queue.ready), f"{name}: {real.ready_count} ready, not {len(queue.ready)}"
            assert real.ready_bytes == queue.size()
            assert real.unacked_count == len(queue.out), f"{name}: {real.unacked_count} out, not {len(queue.out)}"
            assert real.unacked_bytes == sum(len(each.entry.message.body) for each in queue.out)
            self._compare_held(queue, real)
            if thorough:
                self._compare_out(queue)
            if len(queue.ready) > LONG and not thorough and self.dice.random() < 0.9:
                continue
            resident = sorted(real.ready.in_memory(), key=lambda each: -min(_priority(each), queue.rules.levels))
            counts = Counter(entry.message.body for entry in queue.ready)
            # Copies of one message are told apart by their deaths.
            several = {body for body, count in counts.items() if count > 1 or thorough}
            here = [(each.body(), _history(each) if each.body() in several else None) for each in resident]
            waiting = [
                (entry.message.body, _expected_history(entry) if entry.message.body in several else None)
                for entry in queue.ready
            ]
            right = here == waiting if len(here) == len(waiting) else _is_part(here, waiting)
            assert right, f"{name}: another order"
        broker.check()

    @staticmethod
    def _compare_held(queue: Queue, real: RealQueue) -> None:
        keeper = real.keeper
        for lane, held in (("held", queue.held), ("parked", queue.parked), ("undelivered", queue.undelivered)):
            real_lane = None if keeper is None else getattr(keeper.lanes, lane)
            count = 0 if real_lane is None else real_lane.count
            assert count == len(held), f"{queue.name}: {count} {lane}, not {len(held)}"

    def _orders_held(self) -> dict[tuple[str, str], list[bytes]]:
        """Return what queues hold in which lane, in its order; lanes that are still read after a start are left out."""
        found: dict[tuple[str, str], list[bytes]] = {}
        for name, queue in self.broker.vhost.queues.items():
            keeper = queue.keeper
            for lane in ("held", "undelivered"):
                real = None if keeper is None else getattr(keeper.lanes, lane)
                if real is not None and not real.scanning:
                    listed: list[HeldMessage] = []
                    real.list_earliest(int(real.count), listed.extend)
                    self.broker.settle()
                    found[name, lane] = [each.message.body() for each in listed]
        return found

    def _compare_orders_held(self, held: dict[tuple[str, str], list[bytes]]) -> None:
        """Compare in which order what is held will go: of what has the same time it matters when it came."""
        for (name, lane), bodies in held.items():
            entries = sorted(getattr(self.world.queues[name], lane), key=lambda each: each.until_ms)
            assert bodies == [entry.message.body for entry in entries], f"{name}: another order of what is {lane}"

    def _compare_out(self, queue: Queue) -> None:
        """Compare the places to which unanswered messages would return: of several consumers each sees only its own."""
        out: list[tuple[tuple[int, int], int, int, int]] = []
        for number, channel in self.world.channels.items():
            ledger = self.clients[number].connection.channels[1].ledger
            for tag, delivery in channel.unacked.items():
                if delivery.queue is queue:
                    out.append((delivery.entry.place, int(ledger.outstanding(tag).sequence_number), number, tag))
        places: dict[int, int] = {}  # by level
        for place, real, number, tag in sorted(out):
            assert real > places.get(place[0], -1), f"{queue.name}: delivery {tag} to {number} has another place"
            places[place[0]] = real

    # --- queues -----------------------------------------------------------------------------------------------------

    def _arguments(self, name: str) -> tuple[bool, Table]:
        """Return whether the queue is durable, and its arguments."""
        dice = self.dice
        arguments: Table = {}
        durable = dice.random() < 0.7
        if self.dead_letters and dice.random() < 0.5:
            arguments |= self._dead_lettering()
        if self.drops and dice.random() < 0.35:
            arguments["x-message-ttl"] = self._life_ms()
        if self.drops and dice.random() < 0.3:
            arguments |= self._limits()
        if dice.random() < 0.1:
            arguments["x-expires"] = dice.randrange(1000, 20000)
        if dice.random() < 0.4:
            arguments |= self._retrying()
        if dice.random() < 0.2:
            arguments["x-visibility-timeout"] = dice.randrange(1, 5000)
        if dice.random() < 0.15:
            arguments["x-single-active-consumer"] = True
        if dice.random() < 0.25:
            arguments["x-queue-type"] = "quorum"
            durable = True
            if dice.random() < 0.5:
                arguments["x-overflow"] = "reject-publish"
                arguments["x-dead-letter-strategy"] = "at-least-once"
                # To one queue: of several whoever has taken a letter gets it again while another refuses it.
                arguments["x-dead-letter-exchange"] = ""
        elif dice.random() < 0.3 and not self.is_short:
            arguments["x-max-priority"] = dice.choice((0, 1, 2, 5))
        elif dice.random() < 0.2 and ("x-max-length" in arguments or "x-max-length-bytes" in arguments):
            arguments["x-storage"] = "memory"
        return durable, arguments

    def _dead_lettering(self) -> Table:
        exchange = self.dice.choice(("", "", "", "amq.fanout", UNDELIVERABLE))
        found: Table = {"x-dead-letter-exchange": exchange}
        if self.dice.random() < 0.7:
            found["x-dead-letter-routing-key"] = self.dice.choice((*NAMES, "nobody"))
        return found

    def _life_ms(self) -> int:
        return 0 if self.dice.random() < 0.05 else self.dice.randrange(1, 8000)

    def _limits(self) -> Table:
        found: Table = {
            "x-overflow": self.dice.choice(("drop-head", "drop-head", "reject-publish", "reject-publish-dlx"))
        }
        if self.dice.random() < 0.7:
            found["x-max-length"] = self.dice.choice((0, 1, 2, 3, 5, 100 if self.is_short else 8))
        if self.dice.random() < 0.4:
            found["x-max-length-bytes"] = self.dice.choice((0, 20, 60, 200, 5000))
        return found

    def _retrying(self) -> Table:
        dice = self.dice
        found: Table = {}
        if dice.random() < 0.7:
            found["x-delivery-limit"] = dice.randrange(4)
            found["x-delivery-limit-action"] = dice.choice(("dead-letter", "dead-letter", "drop", "park"))
        if dice.random() < 0.5:
            found["x-delayed-retry-type"] = dice.choice(("all", "failed", "returned", "disabled"))
            found["x-delayed-retry-min"] = dice.randrange(1, 2000)
            if dice.random() < 0.5:
                found["x-delayed-retry-max"] = dice.randrange(1, 4000)
        elif dice.random() < 0.3:
            found["x-retry-backoff"] = [dice.randrange(1, 3000) for _ in range(dice.randrange(1, 4))]
        return found

    def _declare(self, name: str) -> None:
        queue = self.world.queues.get(name)
        if queue is None:
            durable, arguments = self._arguments(name)
            self._note("declare", name, "durable" if durable else "", arguments)
            queue = self.world.declare(name, durable, arguments)
        self.world.declare(name, queue.durable, queue.arguments)
        call = queue_declare(name, durable=queue.durable, arguments=queue.arguments)
        declared = m.QueueDeclareOk(name, len(queue.ready), len(queue.consumers))
        self._step(0, method_frame(1, call), [declared])
        if self.dice.random() < 0.4:
            self._note("bind", name)
            self.world.bind(name)
            bind = m.QueueBind(0, name, "amq.fanout", "", False, encode_table({}))
            self._step(0, method_frame(1, bind), [m.QueueBindOk()])

    def declare(self) -> None:
        missing = [name for name in NAMES if name not in self.world.queues]
        self._declare(self.dice.choice(missing or NAMES))

    def delete(self) -> None:
        queue = self._queue()
        if queue is not None:
            self._note("delete", queue.name)
            count = len(queue.ready)
            cancelled = self.world.delete(queue)
            call = m.QueueDelete(0, queue.name, False, False, False)
            self._step(0, method_frame(1, call), [m.QueueDeleteOk(count)], cancelled)

    def purge(self) -> None:
        queue = self._queue()
        if queue is not None:
            self._note("purge", queue.name)
            purged = m.QueuePurgeOk(self.world.purge(queue))
            self._step(0, method_frame(1, m.QueuePurge(0, queue.name, False)), [purged])

    def put_policy(self) -> None:
        """Set the policy of one queue, or empty it: what is due because of that happens at once."""
        if self.world.now_ms < self.latest_ms:
            return  # ages are counted from now on, and some messages come from later
        name = self.dice.choice(NAMES)
        arguments: Table = {}
        if self.dice.random() < 0.7:
            arguments |= {"x-message-ttl": self._life_ms()} if self.drops and self.dice.random() < 0.5 else {}
            arguments |= self._limits() if self.drops and self.dice.random() < 0.4 else {}
            arguments |= self._dead_lettering() if self.dead_letters and self.dice.random() < 0.3 else {}
            arguments |= self._retrying() if self.dice.random() < 0.3 else {}
            arguments |= {"x-expires": self.dice.randrange(5000, 30000)} if self.dice.random() < 0.1 else {}
            arguments |= {"x-visibility-timeout": self.dice.randrange(1, 5000)} if self.dice.random() < 0.3 else {}
        queue = self.world.queues.get(name)
        if queue is not None and (not _has_order_of_ages(queue) or any(entry.returned for entry in queue.ready)):
            # After the clock was set back some have a deadline of their own, by the time to live that there was; and
            # what was returned may go before or after its neighbours.
            arguments.pop("x-message-ttl", None)
        definition = {key.removeprefix("x-"): value for key, value in arguments.items()} or {"queue-mode": "default"}
        self.aging_ms = self.world.now_ms
        self._note("policy", name, definition)
        self.world.put_policy(name, {} if "queue-mode" in definition else definition)
        self.broker.broker.administer(PolicyPut("/", name, f"^{name}$", "queues", 0, json.dumps(definition)))
        self.broker.settle()
        self._compare(self._collect())

    # --- publishing -------------------------------------------------------------------------------------------------

    def _moment_in(self, ms: int) -> int:
        """Return in how many ms, not less than asked for, no other message has something before it.

        Of two in one queue the one in memory leaves first, and of several in several any.
        """
        while ms and self.world.now_ms + ms in self.moments:
            ms += 1
        self.moments.add(self.world.now_ms + ms)
        return ms

    def _message(self, exchange: str, key: str, transactional: bool) -> tuple[Message, bytes]:
        """Make a message; return it and its frames."""
        dice = self.dice
        self.bodies += 1
        body = b"%d " % self.bodies + b"x" * dice.choice((0, 0, 5, 30))
        persistent = dice.random() < 0.6
        properties: dict[str, Any] = {"delivery_mode": 2 if persistent else 1}
        expiration_ms = delay_ms = None
        priority = 0
        if dice.random() < 0.15:
            delay_ms = self._moment_in(dice.randrange(1, 6000))
            properties["headers"] = encode_table({"x-delay": delay_ms})
        if dice.random() < 0.3 and not (self.is_short and transactional):  # it counts from the commit on
            # What dies as it comes may overtake one before it that is dropped, and has to be read from disk for that.
            life_ms = max(self._life_ms(), int(self.is_short))
            expiration_ms = self._moment_in(life_ms + (delay_ms or 0)) - (delay_ms or 0)
            properties["expiration"] = str(expiration_ms)
        if dice.random() < 0.4:
            priority = properties["priority"] = dice.randrange(8)
        message = Message(body, exchange, key, persistent, priority, expiration_ms, delay_ms)
        return message, publish_frames(exchange, key, body, properties=properties)

    def publish(self, count: int = 1) -> None:
        number, channel = self._pick()
        exchange, key = ("amq.fanout", "") if self.dice.random() < 0.2 else ("", self.dice.choice(NAMES))
        data = b""
        if count >= 10:
            self._note("publish", number, repr(exchange), repr(key), count, "messages after", self.bodies)
        for _ in range(count):
            message, frames = self._message(exchange, key, channel.transactional)
            data += frames
            if count < 10:
                life, delay = message.expiration_ms, message.delay_ms
                self._note("publish", number, repr(exchange), repr(key), message.body, life, delay)
            taken = self.world.publish(channel, message)
            if number == CONFIRMING:
                self.published += 1
                self.expected[self.published] = not taken
        self._step(number, data)

    def burst(self) -> None:
        self.publish(self.dice.randrange(70, 120) if self.is_short else self.dice.randrange(2, 6))

    # --- consuming --------------------------------------------------------------------------------------------------

    def consume(self) -> None:
        number, channel = self._pick()
        queue = self._queue()
        if queue is None:
            return
        channel.prefetch = self.dice.choice((0, 1, 1, 2, 3, 100))
        no_ack = self.dice.random() < 0.2
        self.tags += 1
        tag = f"t{self.tags}"
        self._note("consume", number, queue.name, tag, "no-ack" if no_ack else channel.prefetch)
        self._step(number, method_frame(1, m.BasicQos(0, channel.prefetch, False)), [m.BasicQosOk()])
        self.world.consume(channel, queue, tag, no_ack)
        self._step(number, method_frame(1, basic_consume(queue.name, tag, no_ack)), [m.BasicConsumeOk(tag)])

    def cancel(self) -> None:
        number, channel = self._pick()
        if channel.consumers:
            tag = self.dice.choice(sorted(channel.consumers))
            self._note("cancel", number, tag)
            self.world.cancel(channel.consumers[tag])
            self._step(number, method_frame(1, m.BasicCancel(tag, False)), [m.BasicCancelOk(tag)])

    def get(self) -> None:
        number, channel = self._pick()
        queue = self._queue()
        if queue is None:
            return
        no_ack = self.dice.random() < 0.3
        self._note("get", number, queue.name, "no-ack" if no_ack else "")
        entry = self.world.get(channel, queue, no_ack)
        self.clients[number].feed(method_frame(1, m.BasicGet(0, queue.name, no_ack)))
        received = self._collect()
        (answer,) = received.methods.pop(number)
        if entry is None:
            assert answer == m.BasicGetEmpty("")
        else:
            assert isinstance(answer, Received), f"{entry.message.body!r} is not there to get"
            self._compare_message(entry, answer)
            assert answer.method.delivery_tag == channel.tags
            assert answer.method.message_count == len(queue.ready)
        self._compare(received)

    def _answers(self, channel: Channel) -> tuple[int, bool] | None:
        """Choose a tag, and whether those before it are meant too; None: nothing waits for an answer."""
        if not channel.unacked:
            return None
        return self.dice.choice(sorted(channel.unacked)), self.dice.random() < 0.3

    def ack(self) -> None:
        number, channel = self._pick()
        answer = self._answers(channel)
        if answer is None:
            return
        tag, multiple = answer
        self._note("ack", number, tag, multiple)
        taken = channel.take(tag, multiple)
        if channel.transactional:
            channel.acked |= taken
        else:
            self.world.settle(list(taken.values()))
        self._step(number, method_frame(1, m.BasicAck(tag, multiple)))

    def nack(self) -> None:
        number, channel = self._pick()
        answer = self._answers(channel)
        if answer is None:
            return
        tag, multiple = answer
        requeue = self.dice.random() < 0.6
        failed = not multiple and self.dice.random() < 0.6
        self._note("reject" if failed else "nack", number, tag, multiple, "requeue" if requeue else "")
        taken = channel.take(tag, multiple)
        if channel.transactional:
            channel.rejected += [(each, delivery, requeue, failed) for each, delivery in taken.items()]
        else:
            self.world.put_back(list(taken.values()), requeue=requeue, failed=failed)
        call: Any = m.BasicReject(tag, requeue) if failed else m.BasicNack(tag, multiple, requeue)
        self._step(number, method_frame(1, call))

    def recover(self) -> None:
        number, channel = self._pick()
        self._note("recover", number)
        back = [channel.unacked[tag] for tag in sorted(channel.unacked)]
        channel.unacked = {}
        self.world.put_back(back, requeue=True, failed=False)
        self._step(number, method_frame(1, m.BasicRecover(True)), [m.BasicRecoverOk()])

    def end_transaction(self) -> None:
        number = self.dice.choice(TRANSACTIONAL)
        channel = self.world.channels[number]
        if self.dice.random() < 0.25:
            self._note("rollback", number)
            self.world.rollback(channel)
            self._step(number, method_frame(1, m.TxRollback()), [m.TxRollbackOk()])
            return
        self._note("commit", number)
        if self.world.commit(channel):
            self._step(number, method_frame(1, m.TxCommit()), [m.TxCommitOk()])
            return
        self.clients[number].feed(method_frame(1, m.TxCommit()))
        received = self._collect()
        # What went to this channel before it was closed has come back from there.
        self._compare_deliveries([each for each in received.deliveries if each[0] == number])
        received.deliveries = [each for each in received.deliveries if each[0] != number]
        self.world.end(channel)
        (close,) = received.methods.pop(number)
        assert isinstance(close, m.ChannelClose)
        assert (close.reply_code, close.reply_text) == (406, "PRECONDITION_FAILED - partial tx completion")
        self._compare(received)
        self.clients[number].feed(method_frame(1, m.ChannelCloseOk()))
        self._open(number)

    def close_channel(self) -> None:
        number, channel = self._pick()
        self._note("close", number)
        self.world.end(channel)
        self._step(number, method_frame(1, m.ChannelClose(200, "", 0, 0)), [m.ChannelCloseOk()])
        self._open(number)

    def hang_up(self) -> None:
        number, _ = self._pick()
        self._hang_up(number)
        self.clients[number] = self.broker.client()
        self._open(number)

    def _hang_up(self, number: int) -> None:
        self._note("hang up", number)
        self.world.end(self.world.channels[number])
        self.clients[number].hang_up()
        self.clients[number].take_bytes()
        self._compare(self._collect())

    # --- time -------------------------------------------------------------------------------------------------------

    def _now(self, now_ms: int) -> None:
        """Have the broker and the model do what is due at a moment."""
        self.world.now_ms = now_ms
        self.latest_ms = max(self.latest_ms, now_ms)
        self.broker.broker.keep_time(now_ms)
        self.broker.settle()
        while self.broker.broker.timers.next_ms() <= now_ms:  # what a start has read meanwhile
            self.broker.broker.keep_time(now_ms)
            self.broker.settle()
        received = self._collect()
        unsure = self._unsure()
        if len(self.world.due()) < 2 and not unsure:
            self.world.moment(self.world.due())
            self._compare(received)
            return
        before, errors = self.world, []
        held = self._orders_held()
        for alone, order, hasty in islice(self._orders(unsure), ORDERS_MAX):
            self.world = deepcopy(before)
            try:
                self.world.leave_alone(alone)
                self.world.moment(order, hasty=hasty)
                self._compare(received, thorough=True)
                self._compare_orders_held(held)
            except AssertionError as error:
                errors.append(f"{order}: {error}")
            else:
                return
        if len(unsure) == UNSURE_MAX:
            raise UndecidedError  # there may be more of them, and not all orders were tried
        raise AssertionError("\n".join(["wrong in any order:", *errors[:24]]))

    def _unsure(self) -> list[tuple[str, tuple[int, int]]]:
        """Return which returned messages expire now whose neighbours may go before or after them."""
        found: list[tuple[str, tuple[int, int]]] = []
        for queue in self.world.queues.values():
            expired = [entry for entry in queue.ready if queue.aged_ms(entry) <= self.world.now_ms]
            if len(expired) > 1 and queue.rules.dead_letter_exchange is not None:
                found += [(queue.name, entry.place) for entry in expired if entry.returned]
        return found[:UNSURE_MAX]

    def _orders(self, unsure: list[tuple[str, tuple[int, int]]]) -> Iterator[tuple[Any, Any, bool]]:
        """Yield what may go alone, an order of all that is due then, and whether consumers get messages in between.

        They do when what is due next has to be read from disk first.
        """
        before = self.world
        for count in range(len(unsure) + 1):
            for alone in combinations(unsure, count):
                world = deepcopy(before) if alone else before
                world.leave_alone(alone)
                for order in permutations(world.due()):
                    yield alone, order, False
                    if self.is_short or self.has_started_again:
                        yield alone, order, True

    def _tick(self) -> None:
        """Do what is due now, as the shell does at once."""
        if self.broker.broker.timers.next_ms() <= self.world.now_ms:
            self._now(self.world.now_ms)
        late = self.world.due()
        assert not late, f"nothing is planned for what is due: {late}"

    def pass_time(self) -> None:
        """Go from one timer to the next."""
        end_ms = self.world.now_ms + self.dice.choice((1, 10, 100, 500, 1000, 3000, 6000)) + self.dice.randrange(100)
        self._note("pass time until", end_ms - START_MS)
        while self.world.now_ms < end_ms:
            planned_ms = self.broker.broker.timers.next_ms()
            next_ms = self.world.next_ms()
            assert next_ms >= min(planned_ms, end_ms), f"something is due in {next_ms - self.world.now_ms} ms"
            self._now(max(min(planned_ms, end_ms), self.world.now_ms))

    def jump(self) -> None:
        """The clock jumps forward: everything in between is due at once."""
        before_ms = self.world.now_ms
        self.world.now_ms += self.dice.randrange(1, 10000)
        if self.is_short or len(self.world.due()) > ORDERED_MAX:
            # Either not all of what leaves at once is in memory, or there are too many orders to try.
            self.world.now_ms = before_ms
            self.pass_time()
            return
        self._note("jump to", self.world.now_ms - START_MS)
        self._now(self.world.now_ms)

    def set_back(self) -> None:
        """The clock goes back a little."""
        now_ms = self.world.now_ms - self.dice.randrange(1, 500)
        if now_ms < self.aging_ms:
            return  # what comes now would be older than the policy it ages by
        self._note("set back to", now_ms - START_MS)
        self._now(now_ms)

    # --- memory and restarts ----------------------------------------------------------------------------------------

    def page_out(self) -> None:
        """Memory is short for a moment: transient messages are stored as well."""
        if not self.is_short:
            return
        self._note("page out")
        log = self.broker.broker.log
        log.under_pressure = True
        for name in self.world.queues:
            self.broker.queue(name).page_out()
        self.broker.rest()
        log.under_pressure = False
        self._compare(self._collect())

    def restart(self) -> None:
        if self.world.now_ms < self.latest_ms or self._forgets_ages():
            return
        clean = self.dice.random() < 0.5 or self._start_depends_on_the_disk()
        self._note("restart", "clean" if clean else "killed")
        if clean:
            for number in range(CLIENTS):
                self._hang_up(number)
            self.broker.stop()
        self.broker.rest()
        self.broker.start()
        if not self.is_short:
            self.broker.read_heads()  # or else of several levels those in memory expire first
        self.has_started_again = True
        self.world.restart(clean=clean)
        self._connect_all()
        self._now(self.world.now_ms)  # what was out may have expired

    def _start_depends_on_the_disk(self) -> bool:
        """Tell whether what is out would be too old or too much after a start, and it matters what goes first."""
        for queue in self.world.queues.values():
            back = [delivery.entry for delivery in queue.out]
            size = queue.size() + sum(len(entry.message.body) for entry in back)
            expired = any(queue.deadline_ms(entry) <= self.world.now_ms for entry in back)
            over = queue.rules.overflow == "drop-head" and queue.rules.is_over(len(queue.ready) + len(back), size)
            if (expired or over) and (queue.rules.dead_letter_exchange is not None or (expired and over)):
                return True
        return False

    def _forgets_ages(self) -> bool:
        """Tell whether a start would not know what it has to: how old a message is, or that one leaves before another.

        With a time to live only the first message is looked at. Those older than that, from a policy, begin to age at
        the start, and after the clock was set back a later one can be older.
        """
        for queue in self.world.queues.values():
            if queue.rules.ttl_ms is not None and not _has_order_of_ages(queue):
                return True
            if queue.rules.ttl_ms is not None and any(entry.aged for entry in _waiting_or_out(queue)):
                return True
        return False

    # --- the end ----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """End everybody, take what is left, and find that nothing else is."""
        self._note("finish")
        for number in range(CLIENTS):
            self._hang_up(number)
        self._connect_all()
        for name, queue in list(self.world.queues.items()):
            while (entry := self.world.get(self.world.channels[0], queue, True)) is not None:
                got = self.clients[0].get(name, no_ack=True)
                assert got is not None, f"{entry.message.body!r} is not there to get"
                self._compare_message(entry, got)
            assert self.clients[0].get(name, no_ack=True) is None
            cancelled = self.world.delete(queue)
            assert cancelled == []
            self._step(0, method_frame(1, m.QueueDelete(0, name, False, False, False)), [m.QueueDeleteOk(0)])
        self.broker.rest()
        assert self.broker.broker.log.resident_bytes == 0
        assert not [index for index in self.broker.broker.log.indexes.values() if index.live_count]


def _waiting_or_out(queue: Queue) -> list[Entry]:
    return sorted([*queue.ready, *(delivery.entry for delivery in queue.out)])


def _has_order_of_ages(queue: Queue) -> bool:
    """Tell whether of each level the oldest message is the first."""
    ages = [(entry.place[0], entry.ages_ms) for entry in _waiting_or_out(queue)]
    return ages == sorted(ages)


def _headers(entry: Entry) -> Table:
    """Return the headers that a delivery has to have."""
    message = entry.message
    headers: Table = {}
    if message.delay_ms is not None:
        headers["x-delay"] = -message.delay_ms
    if entry.returns:
        headers["x-acquired-count"] = entry.returns
    if entry.failures:
        headers["x-delivery-count"] = entry.failures
    deaths: list[Table] = []
    for death in message.deaths:
        table: Table = {"count": death.count, "reason": death.reason, "queue": death.queue}
        table |= {"exchange": death.exchange, "routing-keys": [death.key]}
        if death.expiration_ms is not None:
            table["original-expiration"] = str(death.expiration_ms)
        deaths.append(table)
    if deaths:
        headers["x-death"] = deaths
    for when, where in (("first", message.first), ("last", message.last)):
        if where is not None:
            for what, value in zip(("reason", "queue", "exchange"), where, strict=True):
                headers[f"x-{when}-death-{what}"] = value
    return headers


def _timeless(headers: Table, now_s: int) -> Table:
    """Take the times out of x-death."""
    deaths = headers.get("x-death", [])
    assert isinstance(deaths, list)
    for death in deaths:
        assert isinstance(death, dict)
        assert START_MS // 1000 - 60 < death.pop("time") <= now_s
    return headers


def _priority(message: StoredMessage) -> int:
    return int(priority_of(message.header_payload(), 0))


def _history(message: StoredMessage) -> tuple[int, Any]:
    """Return a message's expiration and deaths."""
    headers = headers_of(message.header_payload())
    deaths = _timeless(decode_table(headers), NEVER).get("x-death", []) if headers else []
    return int(message.expiration_ms), deaths


def _expected_history(entry: Entry) -> tuple[int, Any]:
    expiration_ms = entry.message.expiration_ms
    return -1 if expiration_ms is None else expiration_ms, _headers(entry).get("x-death", [])


def _is_part(some: list[Any], of: list[Any]) -> bool:
    rest = iter(of)
    return all(any(each == other for other in rest) for each in some)


def test_queues_do_what_small_ones_do() -> None:
    seed = SEED or SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    undecided = 0
    for number in range(RUNS):
        run = Run(seed + number)
        try:
            run.run()
        except UndecidedError:
            undecided += 1
            print(f"seed {seed + number}: undecided after {len(run.trace)} commands")
        except BaseException:
            print(*run.trace[-60:], sep="\n")
            print(f"WARREN_TEST_RULE_SEED={seed + number} WARREN_TEST_RULE_RUNS=1")
            raise
    assert undecided <= max(1, RUNS // 4)
