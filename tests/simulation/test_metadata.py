"""Metadata in the log on a disk that is cut off at any moment, with SQL that follows at once, late, or not at all.

A life declares, binds, deletes, administers and imports, and publishes to what it has. After a power cut the next start
has to find what the first n changes lead to, for one n that is at least the number of those whose tickets were reached,
and not in the middle of an import; and every message that was confirmed, in a queue that is still there.
"""

from __future__ import annotations

import os
import random
from typing import Any, Final, NamedTuple

import pytest
from durable_harness import DurableHarness
from engine_harness import publish_frames, queue_declare

from simulation.simulated_file_system import SimulatedFileSystem
from simulation.small_store import Shape
from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.declarations import QueueDeclaration
from warren.amqp.field_table import EMPTY_TABLE
from warren.vhosts.metadata import PolicyDelete, PolicyPut

STATES: Final = int(os.environ.get("WARREN_TEST_CRASH_STATES", "110000"))
SEED: Final = int(os.environ.get("WARREN_TEST_CRASH_SEED", "1"))
LIVES: Final = max(8 if STATES < 10_000 else 12, STATES // 1500)
STEPS: Final = 60
SHAPE: Final = Shape(segment_bytes=1 << 13, page_entries=16)
CHANGES: Final = {"create", "write", "truncate", "rename", "unlink", "sync", "sync_directory"}

Rows = dict[tuple[Any, ...], Any]


class PowerCut(NamedTuple):
    """The state that a start found on a disk after a power cut. `reached`: the last ticket that was reached then."""

    event: str
    reached: int
    served: Rows
    bodies: dict[str, tuple[list[bytes], list[bytes]]]  # by queue: confirmed, and found


class Life:
    """One broker. ``after``: the state that it serves after each of its changes, by ticket."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.states = 0
        self._cuts: list[PowerCut] = []
        self._begin(DurableHarness(SimulatedFileSystem(), shape=SHAPE))

    def _begin(self, harness: DurableHarness) -> None:
        self.harness = harness
        self.journal = harness.broker.journal
        self.after = {0: _served(harness)}
        self.confirmed: dict[str, list[bytes]] = {}
        self.made = 0
        harness.broker.work.turn_steps = 200  # many changes take many turns
        self.client = harness.channel()
        self.client.call(1, m.ConfirmSelect(False))
        harness._fs.on_operation = self._cut

    # --- what it does -----------------------------------------------------------------------------------------------

    def step(self) -> None:
        self.harness.follows = self.random.random() < 0.5
        self.random.choice(
            [self.declare, self.declare, self.bind, self.delete, self.policy, self.publish, self.load, self.checkpoint]
        )()

    def declare(self) -> None:
        """Declare a queue and publish to it, all in one read."""
        name = self._new_name()
        self.client.feed(
            method_frame(1, queue_declare(name, durable=True))
            + publish_frames("", name, name.encode(), properties={"delivery_mode": 2})
        )
        self._noted()
        self.confirmed[name] = [name.encode()]

    def bind(self) -> None:
        if name := self._some_name():
            key = f"k{self.random.randrange(3)}"
            self.client.call(1, m.QueueBind(0, name, "amq.topic", key, False, EMPTY_TABLE))
            self._noted()

    def delete(self) -> None:
        if name := self._some_name():
            del self.confirmed[name]
            self.client.call(1, m.QueueDelete(0, name, if_unused=False, if_empty=False, no_wait=False))
            self._noted()

    def policy(self) -> None:
        name, priority = f"p{self.random.randrange(2)}", self.random.randrange(9)
        self.harness.broker.administer(PolicyPut("/", name, "^nothing", "all", priority, '{"expires":9}'))
        if self.random.random() < 0.5:
            self.harness.broker.administer(PolicyDelete("/", name))
        self.harness.settle()
        self._noted()

    def publish(self) -> None:
        if name := self._some_name():
            body = b"%d" % self.made
            self.client.feed(publish_frames("", name, body * 50, properties={"delivery_mode": 2}))
            assert any(isinstance(each.method, m.BasicAck) for each in self.client.take())
            self.confirmed[name].append(body * 50)

    def load(self) -> None:
        """Import: all of it is one frame."""
        self.journal.hold()
        for _ in range(self.random.choice((2, 5, 300))):
            self.harness.vhost.declare_queue(QueueDeclaration(self._new_name(), durable=True))
            if self.random.random() < 0.05:
                self.harness.settle()
        self.journal.release()
        self.harness.settle()
        self._noted()

    def checkpoint(self) -> None:
        self.harness.broker.log.checkpoints.want()
        self.harness.settle()

    def restart(self) -> None:
        """Kill it; written changes are there."""
        before = _served(self.harness)
        fs = self.harness._fs.kill9()
        self._begin(DurableHarness(fs, dict(self.harness._catalogue), shape=SHAPE))
        assert _served(self.harness) == before

    def _new_name(self) -> str:
        self.made += 1
        return f"q{self.made}.{self.harness.broker.log.next_queue_id}"

    def _some_name(self) -> str:
        return self.random.choice(sorted(self.confirmed)) if self.confirmed else ""

    def _noted(self) -> None:
        """Note the served state: the last change is durable."""
        self.client.take()
        assert self.journal.committed_ticket == self.journal.last_ticket
        self.after[self.journal.last_ticket] = _served(self.harness)

    # --- power cuts -------------------------------------------------------------------------------------------------

    def _cut(self, event: str) -> None:
        """Begin with some of the disks that a power cut just now may leave."""
        if event.split()[1] not in CHANGES or self.random.random() > 0.05:
            return
        reached = self.journal.committed_ticket
        for state in self.harness._fs.crash_states(self.random.getrandbits(32), 3):
            self.states += 1
            found = DurableHarness(state, dict(self.harness._catalogue), shape=SHAPE)
            self._cuts.append(PowerCut(event, reached, _served(found), _bodies(found, self.confirmed)))

    def judge(self) -> None:
        """Look at what was found after the power cuts of this step."""
        for cut in self._cuts:
            first = max(ticket for ticket in self.after if ticket <= cut.reached)
            allowed = [served for ticket, served in self.after.items() if ticket >= first]
            assert cut.served in allowed, f"power cut {cut.event}: no number of changes leads to what is found"
            for name, (confirmed, found) in cut.bodies.items():
                assert found[: len(confirmed)] == confirmed, f"power cut {cut.event}: {name} lost what was confirmed"
        self._cuts.clear()


def _served(harness: DurableHarness) -> Rows:
    """Return the durable things of a broker, by what names them."""
    vhost = harness.vhost
    rows: Rows = {("queue", queue.name): int(queue.store_id) for queue in vhost.queues.values() if queue.durable}
    for binding in vhost.bindings():
        rows["binding", binding.destination.name, binding.routing_key] = True
    for policy in vhost.policies.policies.values():
        rows["policy", policy.name] = policy.priority
    return rows


def _bodies(harness: DurableHarness, confirmed: dict[str, list[bytes]]) -> dict[str, tuple[list[bytes], list[bytes]]]:
    """Return what was confirmed of each queue that is there, and what it has."""
    found = {}
    client = harness.channel()
    for name, bodies in confirmed.items():
        if name in harness.vhost.queues:
            there = []
            while (got := client.get(name, no_ack=True)) is not None:
                assert got.content is not None
                there.append(got.content.body)
            found[name] = (list(bodies), there)
    return found


@pytest.mark.parametrize("group", range(4))
def test_metadata_is_found_as_it_was_promised_whenever_the_power_is_cut(group: int) -> None:
    states = 0
    for number in range(LIVES // 4):
        seed = SEED * 1_000_000 + group * 10_000 + number
        print(f"seed {seed}")
        life = Life(seed)
        for step in range(STEPS):
            life.step()
            life.judge()
            if step % 20 == 19:
                life.restart()
        states += life.states
    print(f"{states} crash states")
    assert states > LIVES
