"""Streams and claims of drains over restarts, kills and copies of the directory that are started beside it.

Readers remember how far they are, and which life has written what they read last. Asked for that, a broker says that
they have diverged exactly when it has something else below the offset.
"""

from __future__ import annotations

import itertools
from typing import Any, Final, NamedTuple

import pytest
from durable_harness import DurableHarness
from engine_harness import publish_frames, queue_declare
from hypothesis import example, given, settings
from hypothesis import strategies as st

from warren.amqp.declarations import QueueDeclaration
from warren.msgstore.log.epoch_table import NO_LIFE
from warren.queues.claim_names import claims_name
from warren.queues.claims import ClaimQueue, claims_arguments
from warren.queues.offset_queue import OffsetQueue

CLAIMS: Final = claims_name("q", "c")
STREAM: Final[dict[str, object]] = {"x-queue-type": "stream"}
KINDS: Final = ("s", CLAIMS)
_LIVES: Final = itertools.count()


class Remembered(NamedTuple):
    """A reader's knowledge: the messages, and the life that has written the last one."""

    queue: str
    messages: tuple[bytes, ...]
    life_id: bytes


class Copy:
    """One directory and the broker that runs on it. `stream`, `queue`: the published messages that each has.

    `claimers`: for each claim the life that made it. Two copies may claim the same message, each for itself.
    """

    def __init__(self, harness: DurableHarness, stream: list[bytes], queue: list[bytes], claimers: list[int]) -> None:
        self.harness = harness
        self.client = harness.channel()
        self.stream = stream
        self.queue = queue
        self._life = next(_LIVES)
        self._claimers = claimers

    def found(self, name: str) -> OffsetQueue:
        found = self.harness.queue(name)
        assert isinstance(found, OffsetQueue)
        return found

    def messages(self, name: str) -> list[bytes]:
        """Return what a reader of the stream, or of the claims, can find."""
        if name == "s":
            return self.stream
        return [b"%b by %d" % claim for claim in zip(self.queue, self.claimers(), strict=False)]

    def claimers(self) -> list[int]:
        """Return the lives that have made the claims, in their order."""
        self._claimers += [self._life] * (int(self.found(CLAIMS).next_offset()) - len(self._claimers))
        return self._claimers

    def publish(self, count: int, path: int) -> None:
        for _ in range(count):
            body = b"%d %d" % (path, len(self.stream))
            for name, bodies in (("s", self.stream), ("q", self.queue)):
                self.client.feed(publish_frames("", name, body, properties={"delivery_mode": 2}))
                bodies.append(body)

    def claim(self, count: int) -> None:
        claims = self.found(CLAIMS)
        assert isinstance(claims, ClaimQueue)
        claims.claim(self.harness.plain_queue("q"), count, 1 << 40, True, [])
        self.harness.settle()

    def remember(self, name: str) -> Remembered:
        found = self.found(name)
        end = found.synced_end()
        return Remembered(name, tuple(self.messages(name)[:end]), found.lineage().life_at(end))

    def on(self, harness: DurableHarness) -> Copy:
        """Return a copy that `harness` runs on: unwritten messages are lost."""
        harness.settle()
        copy = Copy(harness, self.stream, self.queue, [])
        copy._claimers = self.claimers()[: int(copy.found(CLAIMS).next_offset())]
        copy.stream = self.stream[: copy.found("s").next_offset()]
        waiting = int(harness.queue("q").message_count)
        copy.queue = self.queue[: copy.found(CLAIMS).next_offset() + waiting]
        return copy

    def beside(self) -> Copy:
        """Return a copy of the directory as a power cut would leave it, started."""
        old = self.harness
        now_ms = int(old.broker.log.now_ms)
        return self.on(DurableHarness(old._fs.kill9(), dict(old._catalogue), now_ms, shape=old._shape))

    def again(self, *, clean: bool) -> Copy:
        return self.on(self.harness.restart(clean=clean))


def begun() -> Copy:
    harness = DurableHarness()
    copy = Copy(harness, [], [], [])
    copy.client.call(1, queue_declare("s", durable=True, arguments=STREAM))
    copy.client.call(1, queue_declare("q", durable=True))
    declaration = QueueDeclaration(CLAIMS, durable=True, arguments=claims_arguments("q", "c"))
    harness.vhost.declare_queue(declaration, by="guest")
    harness.settle()
    return copy


def check(copies: list[Copy], memory: list[Remembered]) -> None:
    for copy in copies:
        for name, messages, life_id in memory:
            number = len(messages)
            divergence = copy.found(name).maybe_divergence(life_id, number)
            is_same = copy.messages(name)[:number] == list(messages)
            assert (divergence is None) == is_same, (name, number, divergence)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["publish", "publish", "claim", "write", "write", "read", "clean", "kill", "copy", "checkpoint"]
        ),
        st.integers(1, 6),
        st.integers(0, 3),
    ),
    min_size=4,
    max_size=24,
)


# Two copies that claim the same message, each for itself, have different histories.
SAME_CLAIM: Final = [("publish", 1, 0), ("write", 1, 0), ("copy", 1, 0), ("publish", 1, 1), ("write", 1, 1)]


@settings(max_examples=60, deadline=None)
@given(STEPS)
@example(SAME_CLAIM)
def test_a_broker_says_that_histories_diverged_exactly_when_they_have(steps: list[tuple[str, int, int]]) -> None:
    copies = [begun()]
    memory: list[Remembered] = []
    for number, (what, count, which) in enumerate(steps):
        at = which % len(copies)
        copy = copies[at]
        if what == "publish":
            copy.publish(count, number)
        elif what == "claim":
            copy.claim(count)
        elif what == "write":
            copy.harness.write()
        elif what == "read":
            memory += [copy.remember(name) for name in KINDS]
        elif what == "checkpoint":
            copy.harness.broker.log.checkpoints.want()
            copy.harness.settle()
        elif what == "copy":
            if len(copies) < 4:
                copies.append(copy.beside())
        else:
            copies[at] = copy.again(clean=what == "clean")
    check(copies, memory)
    for at, copy in enumerate(copies):
        copy.publish(8, -at)
        copy.claim(8)
        copy.harness.write()
        memory += [copy.remember(name) for name in KINDS]
    check(copies, memory)


@pytest.mark.parametrize("grown", [False, True])
def test_a_reader_of_two_hundred_is_told_of_a_broker_that_was_restored_to_one_hundred(grown: bool) -> None:
    """The report: 200 read, restored to 100, 250 new."""
    original = begun()
    original.publish(100, 0)
    original.harness.write()
    restored = original.beside()
    original.publish(100, 1)
    original.claim(200)
    original.harness.write()
    known = original.remember("s")
    assert len(known.messages) == 200 and known.life_id != NO_LIFE
    if grown:
        restored.publish(250, 2)
        restored.harness.write()
    stream = restored.found("s")
    end = 350 if grown else 100
    divergence: Any = stream.maybe_divergence(known.life_id, 200)
    assert "'s' diverged at offset 100: " in divergence and f"end at offset {end}." in divergence
    assert stream.maybe_divergence(known.life_id, 100) is None


def test_a_deleted_stream_leaves_nothing_and_a_new_one_of_its_name_has_its_own_lineage() -> None:
    copy = begun()
    copy.publish(3, 0)
    copy.harness.write()
    assert [name for name, _ in copy.harness.vhost.records.values("lineage of ")] != []
    known = copy.remember("s")
    copy.harness.broker.delete_queue(copy.harness.vhost, copy.found("s"), "guest")
    copy.harness.settle()
    assert copy.harness.vhost.records.values("lineage of ") == []
    copy.client.call(1, queue_declare("s", durable=True, arguments=STREAM))
    assert copy.found("s").maybe_divergence(known.life_id, 3) is not None
