"""Random commands around one queue some of whose consumers want only some messages, compared with a list.

The model does not choose the receiver of a message. It learns of each delivery and says whether it was allowed: the
receiver wants the message, and no older message that it wants, and that was ready all the time, is still there. Then it
looks for a message that could have been delivered and was not. It also counts decisions: each receiver decides on each
message once, and once more whenever the message has come back.

Clients of AMQP 1.0 with two links each, which may be without a condition, and channels of 0-9-1. A command is three
numbers, read modulo what there is; what the queue is declared with comes from the first numbers of a run.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from amqp10_harness import DETACH, Amqp10Client, Frame, amqp10_client, sections
from engine_harness import Client, Harness, basic_consume, body_of
from example_counts import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warren.amqp import methods as m
from warren.amqp.field_table import Table, encode_table
from warren.amqp10.performatives import ACCEPTED, MODIFIED, REJECTED, RELEASED
from warren.amqp10.values import Described, Symbol, UInt
from warren.queues.consumer import Consumer
from warren.queues.selective import Selective

CLIENTS, CHANNELS, LINKS = 3, 2, 2
COLORS = ("red", "green", "blue")
Command = tuple[str, int, int, int]
Wants = Callable[["Entry"], bool]
CONDITIONS: tuple[tuple[str | None, Wants], ...] = (
    ("color = 'red'", lambda each: each.color == "red"),
    ("color IN ('red', 'blue')", lambda each: each.color in ("red", "blue")),
    ("n % 3 = 0", lambda each: each.body % 3 == 0),
    ("color = 'none'", lambda each: False),
    (None, lambda each: True),
)


@dataclass(order=True)
class Entry:
    """A message: its place in the queue, and what became of it."""

    place: tuple[int, int]
    body: int = field(compare=False)
    color: str = field(compare=False)
    deadline_ms: int | None = field(compare=False)
    redelivered: bool = field(compare=False, default=False)


@dataclass(eq=False)
class Receiver:
    """A link of AMQP 1.0, or a consumer of 0-9-1, of which `room` is the prefetch."""

    wants: Wants
    client: int = -1
    handle: int = -1
    channel: int = -1
    room: int = 0
    count: int = 0  # messages sent to it
    condition: str | None = None
    may_decide: int = 0
    consumer: Consumer | None = None

    def has_room(self) -> bool:
        return self.room > 0


class Comparison:
    """A broker and its model, fed with the same commands."""

    def __init__(self, choices: tuple[int, int, int]) -> None:
        self.harness = Harness()
        dice = random.Random(repr(choices))
        self.now_ms = self.harness.broker.now_ms()
        self.pages_out = dice.random() < 0.4
        self.levels = dice.choice([0, 0, 3])
        self.arguments: Table = {}
        if self.levels:
            self.arguments["x-max-priority"] = self.levels
        self.ttl_ms = 2000 if not self.pages_out and dice.random() < 0.3 else None
        if self.ttl_ms:
            self.arguments["x-message-ttl"] = self.ttl_ms
        if dice.random() < 0.3:
            self.arguments["x-queue-type"] = "quorum"
            self.arguments["x-delivery-limit"] = 1_000_000
            self.arguments.pop("x-max-priority", None)
            self.levels = 0
        self.is_active_only = dice.random() < 0.15
        if self.is_active_only:
            self.arguments["x-single-active-consumer"] = True
        self.refuses_get = self.is_active_only and "x-queue-type" in self.arguments
        if self.pages_out:
            self.harness.broker.log.memory_bytes = 0
        self.admin = self.harness.channel()
        self.admin.declare("q", durable=True, arguments=self.arguments)
        self.ready: list[Entry] = []
        self.before: list[Entry] = []  # messages that are ready from the beginning of the command on
        self.unsettled: dict[tuple[str, int, int], tuple[Entry, Receiver | None]] = {}
        self.bodies = 0
        self.receivers: list[Receiver] = []
        self.clients: list[Amqp10Client] = [amqp10_client(self.harness) for _ in range(CLIENTS)]
        self.channels: list[Client] = [self.harness.channel() for _ in range(CHANNELS)]
        self.tags = 0

    def run(self, commands: list[Command]) -> None:
        for name, a, b, c in commands:
            self.before = sorted(self.ready)
            getattr(self, name)(a, b, c)
            self.look_at_deliveries([])
            self.compare()
            self.harness.check()

    # --- what was delivered ---------------------------------------------------------------------------------------

    def look_at_deliveries(self, frames: list[tuple[int, Frame]]) -> None:
        """Take what has come for everybody; `frames`: of clients, taken already."""
        frames += [(at, each) for at, client in enumerate(self.clients) for each in client.take()]
        sent: list[tuple[Receiver, Entry]] = []
        for at, each in frames:
            if each.name != "transfer":
                assert each.name in ("flow", "disposition"), each
                continue
            (receiver,) = [one for one in self.receivers if (one.client, one.handle) == (at, each.field(0))]
            found = sections(each.payload)
            entry = self._taken(int(found[0x75]))
            assert found[0x70][3] is not entry.redelivered, f"{entry}: first-acquirer is {found[0x70][3]}"
            receiver.room -= 1
            receiver.count += 1
            self.unsettled["client", at, each.field(1)] = (entry, receiver)
            sent.append((receiver, entry))
        for at, channel in enumerate(self.channels):
            for delivery in channel.take():
                method = delivery.method
                if not isinstance(method, m.BasicDeliver):
                    continue
                (receiver,) = [one for one in self.receivers if one.channel == at]
                entry = self._taken(int(body_of(delivery)))
                assert method.redelivered is entry.redelivered, entry
                receiver.room -= 1
                self.unsettled["channel", at, method.delivery_tag] = (entry, receiver)
                sent.append((receiver, entry))
        for receiver, entry in sent:
            assert receiver.wants(entry), f"{receiver.condition} got {entry}"
            for older in self.ready:
                assert not (older < entry and older in self.before and receiver.wants(older)), f"{older} before {entry}"

    def _taken(self, body: int) -> Entry:
        (entry,) = [each for each in self.ready if each.body == body]
        assert entry.deadline_ms is None or entry.deadline_ms > self.now_ms, f"{entry} has expired"
        self.ready.remove(entry)
        return entry

    def compare(self) -> None:
        queue = self.harness.plain_queue("q")
        assert queue.ready_count == len(self.ready)
        assert queue.unacked_count == len(self.unsettled)
        here = [int(each.body()) for each in queue.ready.in_memory()]
        wanted = [each.body for each in sorted(self.ready)]
        if len(here) == len(wanted):
            assert here == wanted
        assert set(here) <= set(wanted)
        served = self.receivers[:1] if self.is_active_only else self.receivers
        for receiver in served:
            if receiver.has_room():
                found = [each for each in self.ready if receiver.wants(each)]
                assert not found, f"{found} could go to {receiver}"
        for receiver in self.receivers:
            consumer = receiver.consumer
            if consumer is not None and consumer.search is not None:
                assert consumer.search.looks <= receiver.may_decide, f"{receiver} decides too often"

    def _put_back(self, key: tuple[str, int, int]) -> None:
        entry, _ = self.unsettled.pop(key)
        entry.redelivered = True
        if entry.deadline_ms is not None and entry.deadline_ms <= self.now_ms:
            return
        self.ready.append(entry)
        self._may_decide(1)

    def _may_decide(self, count: int) -> None:
        for receiver in self.receivers:
            receiver.may_decide += count

    # --- commands -------------------------------------------------------------------------------------------------

    def publish(self, a: int, b: int, c: int) -> None:
        # Messages that should be only on disk come after the 64 that memory keeps.
        many = 120 if self.pages_out else 40
        for number in range(1 + (many if c % 15 == 0 else c % 4)):
            color = COLORS[(a + b * number) % 3]
            priority = (b + number) % 4
            level = self.levels - min(priority, self.levels)
            body = self.bodies
            self.bodies += 1
            deadline = None if self.ttl_ms is None else self.now_ms + self.ttl_ms
            self.ready.append(Entry((level, body), body, color, deadline))
            self._may_decide(1)
            self.admin.publish(
                "",
                "q",
                b"%d" % body,
                headers=encode_table({"color": color, "n": body}),
                priority=priority,
                delivery_mode=1 + (a + number) % 2,
            )
        self.harness.settle()

    def attach(self, a: int, b: int, c: int) -> None:
        client, handle = a % CLIENTS, b % LINKS
        if any((one.client, one.handle) == (client, handle) for one in self.receivers):
            return
        condition, wants = CONDITIONS[c % len(CONDITIONS)]
        given: dict[str, Any] = {}
        if condition is not None:
            given["filter"] = {Symbol("f"): Described(Symbol("amqp:sql-filter"), condition)}
        earlier = list(self.harness.queue("q").consumers)
        (answer,) = self.clients[client].receiver(handle, "/queues/q", **given)
        assert answer.name == "attach"
        receiver = Receiver(wants, client, handle, condition=condition, may_decide=len(self.ready))
        (receiver.consumer,) = [one for one in self.harness.queue("q").consumers if one not in earlier]
        self.receivers.append(receiver)

    def credit(self, a: int, b: int, c: int) -> None:
        links = [one for one in self.receivers if one.client >= 0]
        if links:
            receiver = links[a % len(links)]
            receiver.room = b % 7
            client = self.clients[receiver.client]
            frames = client.credit(receiver.handle, receiver.room, count=receiver.count)
            self.look_at_deliveries([(receiver.client, each) for each in frames])

    def drain(self, a: int, b: int, c: int) -> None:
        links = [one for one in self.receivers if one.client >= 0]
        if links:
            receiver = links[a % len(links)]
            receiver.room = 1 + b % 7
            frames = self.clients[receiver.client].credit(
                receiver.handle, receiver.room, count=receiver.count, drain=True
            )
            self.look_at_deliveries([(receiver.client, each) for each in frames])
            is_served = not self.is_active_only or receiver is self.receivers[0]
            flows = [each for each in frames if each.name == "flow"]
            if not flows:
                # It waits for its turn to be active: a tick ends that.
                assert not is_served
                for _ in range(2):
                    self.clients[receiver.client].peer.tick(self.harness.broker.log.now_ms / 1000)
                    self.harness.settle()
                frames = self.clients[receiver.client].take()
                self.look_at_deliveries([(receiver.client, each) for each in frames])
                flows = [each for each in frames if each.name == "flow"]
            (flow,) = flows
            assert flow.field(6) == 0 and flow.field(8) is True
            receiver.count += receiver.room
            receiver.room = 0

    def detach(self, a: int, b: int, c: int) -> None:
        links = [one for one in self.receivers if one.client >= 0]
        if links:
            receiver = links[a % len(links)]
            self._gone(receiver)
            frames = self.clients[receiver.client].send(DETACH, [UInt(receiver.handle), True])
            self.look_at_deliveries([(receiver.client, each) for each in frames if each.name != "detach"])

    def hang_up(self, a: int, b: int, c: int) -> None:
        client = a % CLIENTS
        for receiver in [one for one in self.receivers if one.client == client]:
            self._gone(receiver)
        self.clients[client].hang_up()
        self.clients[client] = amqp10_client(self.harness)

    def hang_up_channel(self, a: int, b: int, c: int) -> None:
        at = a % CHANNELS
        for receiver in [one for one in self.receivers if one.channel == at]:
            self.receivers.remove(receiver)
        for key in [key for key in self.unsettled if key[:2] == ("channel", at)]:
            self._put_back(key)
        self.channels[at].hang_up()
        self.channels[at] = self.harness.channel()

    def _gone(self, receiver: Receiver) -> None:
        self.receivers.remove(receiver)
        receiver.consumer = None
        for key in [key for key, (_, whose) in self.unsettled.items() if whose is receiver]:
            self._put_back(key)

    def settle(self, a: int, b: int, c: int) -> None:
        kind = (ACCEPTED, RELEASED, MODIFIED, REJECTED, ACCEPTED, RELEASED)[c % 6]
        client = a % CLIENTS
        ids = sorted(key[2] for key in self.unsettled if key[:2] == ("client", client))
        if not ids:
            return
        first = ids[b % len(ids)]
        last = first + c // 6
        for number in [each for each in ids if first <= each <= last]:
            key = ("client", client, number)
            if kind in (RELEASED, MODIFIED):
                self._put_back(key)
            else:
                del self.unsettled[key]
        frames = self.clients[client].settle(first, last, kind, fields=[True] if kind == MODIFIED else [])
        self.look_at_deliveries([(client, each) for each in frames])

    def consume(self, a: int, b: int, c: int) -> None:
        at = a % CHANNELS
        if any(one.channel == at for one in self.receivers):
            return
        prefetch = 1 + b % 4
        self.receivers.append(Receiver(lambda each: True, channel=at, room=prefetch))
        self.channels[at].send(1, m.BasicQos(0, prefetch, False), basic_consume("q", "c"))

    def cancel(self, a: int, b: int, c: int) -> None:
        at = a % CHANNELS
        for receiver in [one for one in self.receivers if one.channel == at]:
            self.receivers.remove(receiver)
            self.channels[at].send(1, m.BasicCancel("c", False))

    def answer(self, a: int, b: int, c: int) -> None:
        at = a % CHANNELS
        tags = sorted(key[2] for key in self.unsettled if key[:2] == ("channel", at))
        if not tags:
            return
        tag = tags[b % len(tags)]
        requeue = c % 2 == 1
        for each in [each for each in tags if each == tag or (c % 3 == 0 and each < tag)]:
            _, receiver = self.unsettled["channel", at, each]
            if receiver is not None:
                receiver.room += 1
            if requeue:
                self._put_back(("channel", at, each))
            else:
                del self.unsettled["channel", at, each]
        call: Any = m.BasicNack(tag, c % 3 == 0, True) if requeue else m.BasicAck(tag, c % 3 == 0)
        self.channels[at].send(1, call)

    def get(self, a: int, b: int, c: int) -> None:
        """Get what is first."""
        if self.refuses_get:
            return
        before = sorted(self.ready)
        found = self.admin.get("q", no_ack=True)
        if found is None:
            assert not before
            return
        assert int(body_of(found)) == before[0].body, "not the first"
        assert found.method.redelivered is before[0].redelivered
        self.ready.remove(before[0])

    def purge(self, a: int, b: int, c: int) -> None:
        if c % 3 == 0:
            assert self.admin.call(1, m.QueuePurge(0, "q", False)) == m.QueuePurgeOk(len(self.ready))
            self.ready = []

    def write(self, a: int, b: int, c: int) -> None:
        self.harness.broker.log.close_if_due(lingered=True)
        self.harness.settle()

    def pass_time(self, a: int, b: int, c: int) -> None:
        self.now_ms += 300 + 100 * (b % 12)
        self.ready = [each for each in self.ready if each.deadline_ms is None or each.deadline_ms > self.now_ms]
        self.harness.broker.keep_time(self.now_ms)
        self.harness.settle()

    def finish(self) -> None:
        """Disconnect all clients; the remaining messages come in order, and no others."""
        self.run([("hang_up", client, 0, 0) for client in range(CLIENTS)])
        self.run([("hang_up_channel", at, 0, 0) for at in range(CHANNELS)])
        queue = self.harness.plain_queue("q")
        assert not isinstance(queue.need_keeper().dispatch, Selective)
        if self.refuses_get:
            self.admin.consume("q", no_ack=True)
            found = self.admin.deliveries()
            assert [int(body_of(each)) for each in found] == [each.body for each in sorted(self.ready)]
        else:
            for _ in range(len(self.ready)):
                self.get(0, 0, 0)
            assert self.admin.get("q") is None
        assert (queue.ready_count, queue.ready_bytes, queue.unacked_count) == (0, 0, 0)
        assert self.harness.broker.log.resident_bytes == 0
        self.harness.check()


WEIGHTS: dict[str, int] = {
    "publish": 22,
    "attach": 8,
    "credit": 16,
    "drain": 4,
    "detach": 3,
    "hang_up": 1,
    "hang_up_channel": 1,
    "settle": 16,
    "consume": 3,
    "cancel": 2,
    "answer": 6,
    "get": 4,
    "purge": 1,
    "write": 6,
    "pass_time": 3,
}
NUMBERS = (st.integers(0, 5), st.integers(0, 319), st.integers(0, 59))
COMMANDS = st.tuples(
    st.sampled_from([name for name, weight in WEIGHTS.items() for _ in range(weight)]),
    *NUMBERS,
)


def _run(choices: tuple[int, int, int], commands: list[Command]) -> None:
    comparison = Comparison(choices)
    comparison.run(commands)
    comparison.finish()


@settings(max_examples=examples(50), deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
@given(st.tuples(*NUMBERS), st.lists(COMMANDS, min_size=20, max_size=70))
def test_any_few_commands_leave_everybody_what_is_wanted(
    choices: tuple[int, int, int], commands: list[Command]
) -> None:
    _run(choices, commands)


def test_a_drain_gets_more_than_a_channel_may_always_owe() -> None:
    commands: list[Command] = [
        ("publish", 5, 258, 30),
        ("attach", 2, 137, 32),
        ("credit", 0, 55, 39),
        ("credit", 2, 57, 53),
        ("credit", 0, 32, 59),
        ("credit", 2, 101, 12),
        ("credit", 3, 253, 44),
        ("attach", 5, 286, 9),
        ("settle", 5, 236, 14),
        ("drain", 5, 2, 18),
        ("settle", 2, 68, 45),
        ("detach", 2, 296, 20),
        ("credit", 4, 79, 24),
        ("credit", 1, 55, 33),
        ("credit", 1, 146, 32),
        ("drain", 4, 239, 1),
    ]
    _run((0, 183, 32), commands)


def test_what_came_back_at_the_place_of_a_search_on_disk_is_decided_on_once() -> None:
    commands: list[Command] = [
        ("attach", 4, 235, 5),
        ("publish", 2, 177, 0),
        ("publish", 2, 181, 47),
        ("credit", 3, 127, 31),
        ("write", 3, 83, 31),
        ("drain", 2, 232, 6),
        ("attach", 2, 75, 8),
        ("detach", 0, 318, 26),
        ("drain", 5, 128, 10),
    ]
    _run((2, 260, 25), commands)


@pytest.mark.parametrize("runs", [8])
def test_many_commands_leave_everybody_what_is_wanted(runs: int) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for run in range(runs):
        print(f"run {run}")
        commands: list[Command] = [
            (name, dice.randrange(6), dice.randrange(320), dice.randrange(60))
            for name in dice.choices(list(WEIGHTS), list(WEIGHTS.values()), k=300)
        ]
        _run((dice.randrange(6), dice.randrange(320), dice.randrange(60)), commands)
