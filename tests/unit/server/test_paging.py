"""Which objects give up memory, when, and in which order. Numbers in parentheses: the header of
``warren/server/paging.py``."""

from __future__ import annotations

import pytest
from engine_harness import Client, Harness, publish_frames

from warren.amqp import methods as m
from warren.amqp.field_table import Table
from warren.msgstore.log.message_log import PAGED_BYTES_MAX, PAGED_ROWS_MAX
from warren.queues.backlog import GIVE_UP_MAX, SHORT_HEAD_BYTES
from warren.server import paging
from warren.server.paging import Pager

WATERMARK_BYTES = 1000
BELOW, BETWEEN, ABOVE = 899, 950, 1001


class Fixture:
    """A broker that keeps little in memory, and its pager."""

    def __init__(self) -> None:
        self.harness = Harness()
        self.log = self.harness.broker.log
        self.log.memory_bytes = 1 << 10
        self.pager = Pager(self.harness.broker, WATERMARK_BYTES)

    def fill(self, queue: str, count: int, *, durable: bool = False, persistent: bool = False) -> Client:
        """Put `count` messages into a new queue."""
        client = self.harness.channel()
        client.declare(queue, durable=durable)
        for number in range(count):
            client.publish("", queue, b"%d" % number * 50, delivery_mode=2 if persistent else 1)
        self.harness.settle()
        return client

    def relieve(self, resident_bytes: int) -> bool:
        needed = self.pager.relieve(resident_bytes)
        self.log.close_if_due(lingered=True)
        self.harness.settle()
        return needed

    def written_bytes(self) -> int:
        return self.harness.store.written_bytes


def test_transient_messages_go_to_disk_above_the_watermark_and_come_back_in_order() -> None:
    """(1)"""
    f = Fixture()
    client = f.fill("q", 400)
    before = f.log.resident_bytes
    f.relieve(BETWEEN)
    assert f.written_bytes() == 0
    f.relieve(ABOVE)
    assert f.written_bytes() > 300 * 50
    assert f.log.resident_bytes < before // 2
    client.consume("q", no_ack=True)
    f.harness.settle()
    assert client.bodies() == [b"%d" % number * 50 for number in range(400)]
    f.harness.check()


def test_paging_ends_well_below_the_watermark() -> None:
    """(1)"""
    f = Fixture()
    needed = []
    for resident_bytes in (BETWEEN, ABOVE, BETWEEN, BELOW, BETWEEN):
        needed.append(f.relieve(resident_bytes))
        assert f.log.under_pressure == needed[-1]
    assert needed == [False, True, True, False, False]


def test_routes_are_dropped_once_when_memory_becomes_short() -> None:
    """(4) Paging comes round 50 times a second, for as long as memory is short."""
    f = Fixture()
    client = f.fill("q", 400)
    routes = f.harness.broker.access.routes
    assert routes.bytes > 0
    f.relieve(ABOVE)
    assert routes.bytes == 0
    client.publish("", "q", b"later")
    remembered = int(routes.bytes)
    assert remembered > 0
    for _ in range(3):
        f.relieve(ABOVE)
    assert routes.bytes == remembered
    f.relieve(BELOW)
    f.relieve(ABOVE)
    assert routes.bytes == 0


def test_durable_queues_keep_to_their_share_of_memory_without_pressure() -> None:
    """(2)"""
    f = Fixture()
    f.log.memory_bytes = 1 << 30
    client = f.fill("q", 400, durable=True, persistent=True)
    f.fill("transient", 400)
    before = f.log.resident_bytes
    assert not f.relieve(BELOW)
    f.log.memory_bytes = 1 << 10
    assert f.relieve(BELOW)
    assert not f.log.under_pressure
    assert f.log.resident_bytes < before * 3 // 4
    client.consume("q", no_ack=True)
    f.harness.settle()
    assert client.bodies() == [b"%d" % number * 50 for number in range(400)]
    f.harness.check()


def test_every_queue_has_its_turn_the_longest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """(3)"""
    monkeypatch.setattr(paging, "SLICE_S", -1.0)  # one queue a slice
    f = Fixture()
    for name, count in (("short", 100), ("long", 400), ("middle", 200)):
        f.fill(name, count)
    written = []
    for _ in range(4):
        before = f.written_bytes()
        f.relieve(ABOVE)
        written.append(f.written_bytes() - before)
    assert written[0] > written[1] > written[2] > 0
    assert written[3] == 0, "the next round begins with nothing left to write"


def test_a_slice_looks_at_a_bounded_number_of_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """(3)"""
    monkeypatch.setattr(paging, "SLICE_S", -1.0)
    monkeypatch.setattr(paging, "LOOKED_AT", 10)
    f = Fixture()
    for number in range(34):
        f.fill(f"empty{number}", 0)
    f.fill("q", 400)
    written = []
    for _ in range(4):
        before = f.written_bytes()
        f.relieve(ABOVE)
        written.append(f.written_bytes() - before)
    assert written[:3] == [0, 0, 0]
    assert written[3] > 300 * 50


def test_the_search_for_queues_takes_a_tenth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """(3) Most of very many queues may have nothing to release, for as long as memory is short."""
    f = Fixture()
    f.fill("q", 1)
    now_s = 100.0
    rounds: list[float] = []
    queue_class = type(f.harness.queue("q"))
    real = queue_class.may_page_out

    def may_page_out(queue: object) -> bool:
        nonlocal now_s
        rounds.append(now_s)
        now_s += 0.5
        return real(queue)  # type: ignore[arg-type]

    monkeypatch.setattr("warren.server.paging.time.monotonic", lambda: now_s)
    monkeypatch.setattr(queue_class, "may_page_out", may_page_out)
    while now_s < 120:
        f.pager.relieve(ABOVE)
        now_s += 0.02
    assert 3 <= len(rounds) <= 4


def test_nothing_is_given_up_while_the_disk_is_behind() -> None:
    f = Fixture()
    f.fill("q", 400)
    client = f.fill("persistent", 0, durable=True)
    f.harness.store.hold = True
    while not f.log.is_congested():
        client.publish("", "persistent", bytes(1 << 20), delivery_mode=2)
    assert f.pager.relieve(ABOVE)
    f.harness.store.hold = False
    f.harness.settle()
    f.relieve(ABOVE)
    assert f.harness.queue("q").ready_count == 400
    f.harness.check()


BODY = bytes(100_000)


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 2}], ids=["plain", "priority"])
def test_a_confirm_waits_for_a_bounded_part_of_what_leaves_memory(arguments: Table) -> None:
    """(4) One queue with everything, and many: a waiting publisher has one frame before it and shares one."""
    f = Fixture()
    owner = f.harness.channel()
    queues = ["large", *(f"small{number}" for number in range(8))]
    for name in queues:
        owner.declare(name, arguments=arguments)
    for name, count in zip(queues, [120] + [20] * 8, strict=True):
        for _ in range(count):
            owner.publish("", name, BODY)
    f.harness.settle()
    innocent = f.harness.channel()
    innocent.declare("innocent", durable=True)
    innocent.call(1, m.ConfirmSelect(False))
    f.harness.settle()
    f.log.under_pressure = True
    f.harness.store.hold = True
    f.pager.relieve(ABOVE)
    innocent.publish("", "innocent", b"mine", delivery_mode=2)
    f.harness.settle()
    f.harness.store.hold = False
    before = f.written_bytes()
    batch = f.log.batch.number
    while f.log.done_batch < batch:
        assert f.harness.store.run()
        f.harness.broker.end_turn()
    assert f.written_bytes() - before < 2 * (PAGED_BYTES_MAX + len(BODY)) + 4096
    f.harness.settle()
    assert innocent.expect(m.BasicAck).delivery_tag == 1
    for _ in range(100):
        f.relieve(ABOVE)
    assert f.log.resident_bytes < len(queues) * (SHORT_HEAD_BYTES + len(BODY))
    assert f.harness.store.largest_frame_bytes < PAGED_BYTES_MAX + len(BODY) + 4096
    f.harness.check()


def test_a_batch_takes_a_bounded_number_of_messages_out_of_memory() -> None:
    """(4) However small they are."""
    f = Fixture()
    client = f.harness.channel()
    for name in ("a", "b", "c", "d"):
        client.declare(name)
        client.feed(publish_frames("", name, b"x") * (GIVE_UP_MAX + 100))
    f.log.under_pressure = True
    f.harness.store.hold = True
    for _ in range(4):
        f.pager.relieve(ABOVE)  # one queue at least
    f.log.close_if_due(lingered=True)
    job = f.log.in_flight
    assert job is not None
    assert PAGED_ROWS_MAX <= job.record_count < PAGED_ROWS_MAX + GIVE_UP_MAX
