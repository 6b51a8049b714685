"""Random commands around one key-shared queue, compared after each with a list of messages that is searched.

The model does not choose the consumer of a message. It learns of each delivery and says whether it was allowed: the
oldest ready message of its key, to a consumer with room, while no other consumer has one of that key unanswered, and no
older message could have gone there. Then it looks for a message that could have been delivered and was not.

Two clients with two channels each; a command is three numbers, read modulo what there is. What the queue is declared
with comes from the first numbers of a run.
"""

from __future__ import annotations

import random
from bisect import insort
from dataclasses import dataclass, field
from typing import Any

import pytest
from engine_harness import Client, Harness, Received, basic_consume, body_of, publish_frames
from example_counts import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import Table, encode_table
from warren.queues.key_sharing import KeyShared

CLIENTS, CHANNELS = 2, 2
KEYS = ("", "a", "b", "c", "dd")
Command = tuple[str, int, int, int]


@dataclass(order=True)
class Entry:
    """A message: its place in the queue, and what became of it."""

    place: int
    body: int = field(compare=False)
    key: str = field(compare=False)
    deadline_ms: int | None = field(compare=False)
    redelivered: bool = field(compare=False, default=False)
    failures: int = field(compare=False, default=0)


@dataclass(eq=False)
class Channel:
    client: int
    number: int
    prefetch: int = 0
    shared_prefetch: int = 0
    tags: int = 0
    unacked: dict[int, Held] = field(default_factory=dict)
    consumers: dict[str, Consumer] = field(default_factory=dict)


@dataclass(eq=False)
class Consumer:
    channel: Channel
    tag: str
    no_ack: bool
    priority: int
    prefetch: int

    def has_room(self) -> bool:
        if self.no_ack:
            return True
        held = [each for each in self.channel.unacked.values() if isinstance(each.holder, Consumer)]
        if self.channel.shared_prefetch and len(held) >= self.channel.shared_prefetch:
            return False
        return not self.prefetch or sum(each.holder is self for each in held) < self.prefetch


@dataclass(eq=False)
class Held:
    """An unanswered delivery; the holder is a channel when it was got."""

    queue: SmallQueue
    entry: Entry
    holder: Consumer | Channel


@dataclass(eq=False)
class SmallQueue:
    """The queue as it should be: ready messages in order of places, outstanding ones in any order."""

    arguments: Table
    aside_max: int
    ready: list[Entry] = field(default_factory=list)
    out: list[Held] = field(default_factory=list)
    consumers: list[Consumer] = field(default_factory=list)
    places: int = 0
    added: int = 0  # during this command
    ready_before: int = 0

    def number(self, argument: str) -> int | None:
        value = self.arguments.get(argument)
        assert value is None or isinstance(value, int)
        return value

    def add(self, entry: Entry) -> None:
        insort(self.ready, entry)
        self.added += 1

    def holders(self, key: str) -> set[Consumer | Channel]:
        return {held.holder for held in self.out if held.entry.key == key}

    def may_have(self, holder: Consumer | Channel, entry: Entry) -> bool:
        """Tell whether `holder` may be sent this ready message as far as its key goes."""
        oldest = next(each for each in self.ready if each.key == entry.key)
        return oldest is entry and self.holders(entry.key) <= {holder}

    def is_out_of_sight(self, entry: Entry) -> bool:
        """Tell whether enough messages may be set aside before this one to hide it."""
        return self.ready.index(entry) >= self.aside_max

    def lets_nothing_out(self) -> bool:
        most = self.number("x-max-unacked")
        return most is not None and len(self.out) >= most

    def expire(self, now_ms: int) -> None:
        self.ready = [each for each in self.ready if each.deadline_ms is None or each.deadline_ms > now_ms]


class Comparison:
    """A broker and its model, fed with the same commands."""

    def __init__(self, choices: tuple[int, int, int]) -> None:
        self.harness = Harness()
        self.now_ms = self.harness.broker.now_ms()
        self.clients: list[Client] = []
        self.channels: dict[tuple[int, int], Channel] = {}
        self.bodies = 0
        self.tags = 0
        dice = random.Random(repr(choices))
        self.header = dice.choice(["", "customer"])
        self.durable = dice.random() < 0.5
        self.arguments: Table = {"x-key-shared": True}
        if self.header:
            self.arguments["x-key-header"] = self.header
        if dice.random() < 0.4:
            self.arguments["x-max-length"] = dice.randrange(1, 9)
            self.arguments["x-overflow"] = dice.choice(["drop-head", "reject-publish"])
        if dice.random() < 0.3:
            self.arguments["x-message-ttl"] = 2000
        if dice.random() < 0.2:
            self.arguments["x-max-unacked"] = dice.randrange(2, 6)
        if dice.random() < 0.2:
            self.arguments["x-consumer-prefetch-max"] = 2
        if dice.random() < 0.3:
            self.arguments["x-delivery-limit"] = 1
        self.aside_max = dice.choice([1, 2, 4, 10_000, 10_000])
        self.one_client = dice.random() < 0.5
        # With so little memory whatever is stored leaves it as soon as there are more than a few messages.
        self.pages_out = self.durable and dice.random() < 0.5
        if self.pages_out:
            self.harness.broker.log.memory_bytes = 0
            self.aside_max = min(self.aside_max, 64)
        for client in range(CLIENTS):
            self._connect(client)
        self.small = self._declare()

    def _connect(self, client: int) -> None:
        peer = self.harness.client()
        self.clients[client:] = [peer, *self.clients[client + 1 :]]
        for number in range(1, CHANNELS + 1):
            self._open(client, number)

    def _open(self, client: int, number: int) -> None:
        self.clients[client].open(number)
        self.channels[client, number] = Channel(client, number)

    def _declare(self) -> SmallQueue:
        self.clients[0].declare("shared", durable=self.durable, arguments=self.arguments)
        self.clients[0].bind("shared", "amq.fanout")
        sharing = self.harness.plain_queue("shared").need_keeper().dispatch
        assert isinstance(sharing, KeyShared)
        sharing.keys.aside_max = self.aside_max
        return SmallQueue(self.arguments, self.aside_max)

    def run(self, commands: list[Command]) -> None:
        for name, a, b, c in commands:
            self.small.added = 0
            self.small.ready_before = len(self.small.ready)
            getattr(self, name)(a, b, c)
            self.harness.check()

    # --- one step -------------------------------------------------------------------------------------------------

    def _pick(self, a: int) -> tuple[Client, Channel]:
        client = 0 if self.one_client else a % CLIENTS
        return self.clients[client], self.channels[client, 1 + a // CLIENTS % CHANNELS]

    def _step(self, client: Client, data: bytes, *, ended: bool = False) -> list[Any]:
        """Feed `data`, whose meaning the model knows already; check what was delivered, return what else came."""
        if ended:
            client.hang_up()
        else:
            client.feed(data)
        replies: list[Any] = []
        sent: list[list[Received]] = []
        for peer in self.clients:
            mine: list[Received] = []
            for each in peer.take():
                if isinstance(each.method, m.BasicDeliver):
                    mine.append(each)
                else:
                    replies.append(each.method if each.content is None else each)
            sent.append(mine)
        if ended:
            assert sent[self.clients.index(client)] == []
        self._check_deliveries(sent)
        return replies

    def _drop(self, sent: list[list[Received]]) -> None:
        """Take note of what a length limit has dropped; it was gone before what was put back could leave."""
        small = self.small
        limit = small.number("x-max-length")
        if limit is None or small.arguments["x-overflow"] != "drop-head":
            return
        real = self.harness.queue("shared")
        here = {int(message.body()) for message in real.ready.in_memory()}
        if len(here) < real.ready_count:
            return  # the rest is on disk, from where nothing is dropped before it has been loaded
        delivered = {int(body_of(each)) for mine in sent for each in mine}
        gone = [each for each in small.ready if each.body not in here | delivered]
        small.ready = [each for each in small.ready if each not in gone]
        left = [each for each in small.ready if each.body in here]
        assert len(gone) <= max(0, small.ready_before + small.added - limit), f"dropped too many: {gone}"
        assert not gone or not left or max(gone) < left[0], f"dropped, and not the oldest: {gone}"

    def _compare(self) -> None:
        """Compare what is ready and what is out."""
        small = self.small
        real = self.harness.queue("shared")
        here = [int(message.body()) for message in real.ready.in_memory()]
        ready = [each.body for each in small.ready]
        if len(here) == real.ready_count:
            assert here == ready
        assert real.ready_count == len(ready)
        assert set(here) <= set(ready)
        if small.arguments.get("x-overflow") == "drop-head":
            assert real.ready_count <= (small.number("x-max-length") or 0)
        assert real.unacked_count == len(small.out)

    def _check_deliveries(self, sent: list[list[Received]]) -> None:
        small = self.small
        new: list[Consumer] = []  # consumers that got the first message of a key
        self._drop(sent)
        while any(sent):
            # Clients do not know their order: take a message that can have been next.
            for client, mine in enumerate(sent):
                if mine and (len(sent[1 - client]) == 0 or self._is_next(mine[0])):
                    each = mine.pop(0)
                    self._deliver(client, each, new)
                    break
            else:
                raise AssertionError(f"nobody can have been first: {sent}")
        self._compare()
        for consumer in new:
            better = [other for other in small.consumers if other.priority > consumer.priority and other.has_room()]
            assert not better, "a consumer of lower priority was preferred"
        if small.lets_nothing_out():
            return
        for entry in small.ready:
            for consumer in small.consumers:
                could = consumer.has_room() and small.may_have(consumer, entry)
                assert not could or small.is_out_of_sight(entry), f"{entry} waits, {consumer.tag} could have it"

    def _is_next(self, each: Received) -> bool:
        body = int(body_of(each))
        return any(
            entry.body == body and not any(other.key == entry.key for other in self.small.ready[:at])
            for at, entry in enumerate(self.small.ready)
        )

    def _deliver(self, client: int, each: Received, new: list[Consumer]) -> None:
        small = self.small
        channel = self.channels[client, each.channel]
        consumer = channel.consumers[each.method.consumer_tag]
        body = int(body_of(each))
        found = [entry for entry in small.ready if entry.body == body]
        assert found, f"message {body} was delivered and is not ready"
        entry = found[0]
        assert not [other for other in small.ready if other.key == entry.key and other < entry], "passed an older one"
        assert small.holders(entry.key) <= {consumer}, "two consumers have messages of one key"
        assert consumer.has_room(), "more than its prefetch"
        # Of two clients nobody knows whether what needs no answer went before what filled the queue's limit.
        assert not small.lets_nothing_out() or (consumer.no_ack and not self.one_client), "more than x-max-unacked"
        assert each.method.redelivered == entry.redelivered
        if self.one_client:
            for older in small.ready[: small.ready.index(entry)]:
                assert not small.may_have(consumer, older) or small.is_out_of_sight(older), "an older one could go"
        if not small.holders(entry.key):
            new.append(consumer)
        self._out(channel, entry, consumer, consumer.no_ack, each.method.delivery_tag)

    def _out(self, channel: Channel, entry: Entry, holder: Consumer | Channel, no_ack: bool, tag: int) -> None:
        channel.tags += 1
        assert tag == channel.tags
        self.small.ready.remove(entry)
        if not no_ack:
            held = Held(self.small, entry, holder)
            self.small.out.append(held)
            channel.unacked[tag] = held

    def _answer(self, held: Held, *, requeue: bool, failed: bool) -> None:
        queue = held.queue
        queue.out.remove(held)
        if not requeue or queue is not self.small:
            return
        entry = held.entry
        limit = queue.number("x-delivery-limit")
        entry.failures += failed
        entry.redelivered = True
        if limit is not None and failed and entry.failures > limit:
            return
        if entry.deadline_ms is None or entry.deadline_ms > self.now_ms:
            queue.add(entry)

    def _cancel(self, consumer: Consumer) -> None:
        del consumer.channel.consumers[consumer.tag]
        if consumer in self.small.consumers:
            self.small.consumers.remove(consumer)

    def _end(self, channel: Channel) -> None:
        for consumer in list(channel.consumers.values()):
            self._cancel(consumer)
        for held in channel.unacked.values():
            self._answer(held, requeue=True, failed=True)
        channel.unacked = {}

    # --- commands: three numbers each -------------------------------------------------------------------------------

    def publish(self, a: int, b: int, c: int) -> None:
        client, channel = self._pick(a)
        assert self._step(client, self._publishes(channel, b, c)) == []
        if self.pages_out:
            self.harness.broker.log.close_if_due(lingered=True)
            assert self._step(client, b"") == []

    def _publishes(self, channel: Channel, b: int, c: int) -> bytes:
        small = self.small
        refuses = self.arguments.get("x-overflow") == "reject-publish"
        dice = random.Random(b * 60 + c)
        count = 1 if refuses else 1 + c % 5
        if b % 32 == 0 and not refuses:
            count = 150
        data = b""
        for _ in range(count):
            self.bodies += 1
            key = dice.choice(KEYS)
            properties: dict[str, Any] = {"delivery_mode": dice.choice([1, 2, 2, 2])}
            if self.header and key:
                properties["headers"] = encode_table({"other": "x", self.header: key})
            life_ms = small.number("x-message-ttl")
            if dice.random() < 0.2:
                own_ms = dice.choice([500, 1000, 3000])
                properties["expiration"] = str(own_ms)
                life_ms = own_ms if life_ms is None else min(life_ms, own_ms)
            routing_key = "" if self.header else key
            data += publish_frames(
                "amq.fanout", routing_key, b"%d" % self.bodies, channel.number, properties=properties
            )
            limit = small.number("x-max-length")
            if refuses and limit is not None and len(small.ready) >= limit:
                continue
            deadline_ms = None if life_ms is None else self.now_ms + life_ms
            small.add(Entry(small.places, self.bodies, key, deadline_ms))
            small.places += 1
        return data

    def consume(self, a: int, b: int, c: int) -> None:
        client, channel = self._pick(a)
        self.tags += 1
        tag = f"t{self.tags}"
        prefetch = channel.prefetch
        most = self.small.number("x-consumer-prefetch-max")
        if most is not None and (prefetch == 0 or prefetch > most):
            prefetch = most
        consumer = Consumer(channel, tag, b % 6 == 0, c % 3 - 1, prefetch)
        channel.consumers[tag] = consumer
        self.small.consumers.append(consumer)
        call = basic_consume("shared", tag, consumer.no_ack, False, {"x-priority": consumer.priority})
        assert self._step(client, method_frame(channel.number, call)) == [m.BasicConsumeOk(tag)]

    def cancel(self, a: int, b: int, c: int) -> None:
        client, channel = self._pick(a)
        tags = sorted(channel.consumers)
        if tags:
            tag = tags[b % len(tags)]
            self._cancel(channel.consumers[tag])
            call = m.BasicCancel(tag, False)
            assert self._step(client, method_frame(channel.number, call)) == [m.BasicCancelOk(tag)]

    def get(self, a: int, b: int, c: int) -> None:
        small = self.small
        client, channel = self._pick(a)
        no_ack = b % 3 == 0
        found = [entry for entry in small.ready if small.may_have(channel, entry)]
        (answer,) = self._got(client, channel, no_ack, found)
        if isinstance(answer, m.BasicGetEmpty):
            assert not found or small.is_out_of_sight(found[0]), "there was one to get"
        self._compare()

    def _got(self, client: Client, channel: Channel, no_ack: bool, found: list[Entry]) -> list[Any]:
        """Get, and account for it before what is delivered because of it."""
        client.feed(method_frame(channel.number, m.BasicGet(0, "shared", no_ack)))
        mine = client.take()
        answers = [each for each in mine if not isinstance(each.method, m.BasicDeliver)]
        if answers and answers[0].content is not None:
            got = answers[0]
            assert int(body_of(got)) == found[0].body, "not the oldest it may have"
            assert got.method.redelivered == found[0].redelivered
            # Tags are given in order: deliveries of this channel that came first have theirs already.
            before = [each for each in mine[: mine.index(got)] if each.channel == channel.number]
            assert before == [], "a get does not deliver before it answers"
            self._out(channel, found[0], channel, no_ack, got.method.delivery_tag)
        others = [each for each in mine if isinstance(each.method, m.BasicDeliver)]
        sent = [others if peer is client else peer.take() for peer in self.clients]
        self._check_deliveries(sent)
        return [each.method for each in answers]

    def ack(self, a: int, b: int, c: int) -> None:
        client, channel = self._pick(a)
        assert self._step(client, self._acks(channel, b, c)) == []

    def ack_and_publish(self, a: int, b: int, c: int) -> None:
        """Both in one piece: messages that the acks release are older than the published ones."""
        client, channel = self._pick(a)
        data = self._acks(channel, b, c)
        assert self._step(client, data + self._publishes(channel, b, c)) == []

    def _acks(self, channel: Channel, b: int, c: int) -> bytes:
        data = b""
        for turn in range(1 + c // 3 % 3):
            tags = sorted(channel.unacked)
            if tags:
                tag = tags[(b + turn) % len(tags)]
                multiple = c % 3 == 0
                for each in [each for each in tags if each == tag or (multiple and each < tag)]:
                    self._answer(channel.unacked.pop(each), requeue=False, failed=False)
                data += method_frame(channel.number, m.BasicAck(tag, multiple))
        return data

    def nack(self, a: int, b: int, c: int) -> None:
        client, channel = self._pick(a)
        tags = sorted(channel.unacked)
        if not tags:
            return
        tag = tags[b % len(tags)]
        requeue = c // 3 % 4 > 0
        multiple = c % 3 == 1
        failed = c % 3 == 0
        call: Any = m.BasicReject(tag, requeue) if failed else m.BasicNack(tag, multiple, requeue)
        for each in [each for each in tags if each == tag or (multiple and each < tag)]:
            self._answer(channel.unacked.pop(each), requeue=requeue, failed=failed)
        assert self._step(client, method_frame(channel.number, call)) == []

    def recover(self, a: int, b: int, c: int) -> None:
        client, channel = self._pick(a)
        for held in channel.unacked.values():
            self._answer(held, requeue=True, failed=False)
        channel.unacked = {}
        assert self._step(client, method_frame(channel.number, m.BasicRecover(True))) == [m.BasicRecoverOk()]

    def qos(self, a: int, b: int, c: int) -> None:
        client, channel = self._pick(a)
        count = b % 5
        shared = c % 3 == 0
        if shared:
            channel.shared_prefetch = count
        else:
            channel.prefetch = count
        call = m.BasicQos(0, count, shared)
        assert self._step(client, method_frame(channel.number, call)) == [m.BasicQosOk()]

    def purge(self, a: int, b: int, c: int) -> None:
        client, channel = self._pick(a)
        count = len(self.small.ready)
        self.small.ready = []
        call = m.QueuePurge(0, "shared", False)
        assert self._step(client, method_frame(channel.number, call)) == [m.QueuePurgeOk(count)]

    def delete(self, a: int, b: int, c: int) -> None:
        client, _ = self._pick(a)
        old = self.small
        self.clients[0].send(1, m.QueueDelete(0, "shared", if_unused=False, if_empty=False, no_wait=False))
        cancelled = [each.method for peer in self.clients for each in peer.take()]
        assert m.QueueDeleteOk(len(old.ready)) in cancelled
        assert len(cancelled) == 1 + len(old.consumers)
        for consumer in list(old.consumers):
            self._cancel(consumer)
        self.small = self._declare()
        self._step(client, b"")

    def pass_time(self, a: int, b: int, c: int) -> None:
        self.now_ms += 300 + 100 * (b % 12)
        self.small.expire(self.now_ms)
        self.harness.broker.keep_time(self.now_ms)
        self.harness.settle()
        assert self._step(self.clients[0], b"") == []

    def close_channel(self, a: int, b: int, c: int) -> None:
        client, channel = self._pick(a)
        self._end(channel)
        replies = self._step(client, method_frame(channel.number, m.ChannelClose(200, "", 0, 0)))
        assert replies == [m.ChannelCloseOk()]
        self._open(channel.client, channel.number)

    def hang_up(self, a: int, b: int, c: int) -> None:
        _, channel = self._pick(a)
        client = channel.client
        for each in list(self.channels.values()):
            if each.client == client:
                self._end(each)
        assert self._step(self.clients[client], b"", ended=True) == []
        self._connect(client)

    def finish(self) -> None:
        """Disconnect all clients; the remaining messages come in order, and no others."""
        self.one_client = False
        for client in range(CLIENTS):
            self.hang_up(client, 0, 0)
        self.small.added = 0
        self.small.ready_before = len(self.small.ready)
        channel = self.channels[0, 1]
        consumer = Consumer(channel, "last", True, 0, 0)
        channel.consumers["last"] = consumer
        self.small.consumers.append(consumer)
        left = [entry.body for entry in self.small.ready]
        self.clients[0].send(1, basic_consume("shared", "last", True))
        received = self.clients[0].take()
        assert [int(body_of(each)) for each in received[1:]] == left
        queue = self.harness.queue("shared")
        assert (queue.ready_count, queue.ready_bytes, queue.unacked_count) == (0, 0, 0)
        assert self.harness.broker.log.resident_bytes == 0


WEIGHTS: dict[str, int] = {
    "publish": 20,
    "consume": 8,
    "cancel": 3,
    "get": 4,
    "ack": 12,
    "ack_and_publish": 6,
    "nack": 8,
    "recover": 1,
    "qos": 4,
    "purge": 1,
    "delete": 1,
    "pass_time": 4,
    "close_channel": 2,
    "hang_up": 1,
}
NUMBERS = (st.integers(0, 3), st.integers(0, 319), st.integers(0, 59))
COMMANDS = st.tuples(
    st.sampled_from([name for name, weight in WEIGHTS.items() for _ in range(weight)]),
    *NUMBERS,
)


def _run(choices: tuple[int, int, int], commands: list[Command]) -> None:
    comparison = Comparison(choices)
    comparison.run(commands)
    comparison.finish()


@settings(max_examples=examples(150), deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
@given(st.tuples(*NUMBERS), st.lists(COMMANDS, min_size=20, max_size=70))
def test_any_few_commands_keep_keys_together_and_in_order(
    choices: tuple[int, int, int], commands: list[Command]
) -> None:
    _run(choices, commands)


@pytest.mark.parametrize("runs", [25])
def test_many_commands_keep_keys_together_and_in_order(runs: int) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for run in range(runs):
        print(f"run {run}")
        commands: list[Command] = [
            (name, dice.randrange(4), dice.randrange(320), dice.randrange(60))
            for name in dice.choices(list(WEIGHTS), list(WEIGHTS.values()), k=400)
        ]
        _run((dice.randrange(4), dice.randrange(320), dice.randrange(60)), commands)
