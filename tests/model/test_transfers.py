"""Moving and copying messages from queue to queue, over the whole engine with a disk in memory, by hand.

A power cut while a transfer is written is tried at every point: a moved message is in one queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import trio
import trio.testing
from engine_harness import Client, Harness, body_of, publish_frames
from simulation.small_store import Shape

from warren.amqp import methods as m
from warren.amqp.field_table import Table, decode_table, encode_table
from warren.amqp.properties import BasicProperties, decode_properties
from warren.channels.broker import Broker
from warren.engine_view.engine_view import EngineView
from warren.engine_view.refs import QueueRef
from warren.mgmt_plugin.resources import transfers
from warren.mgmt_plugin.resources.browsing import Filter
from warren.mgmt_plugin.resources.transfers import (
    DONE,
    FAILED,
    KEPT_MAX,
    KEPT_OF_USER_MAX,
    KEPT_S,
    PIECE_MESSAGES,
    RUNNING,
    RUNNING_QUOTA,
    STOPPED,
    Destination,
    Ended,
    Transfer,
    Transfers,
)
from warren.queues.browse import Cursor, Seen, look
from warren.vhosts.metadata import (
    PermissionDelete,
    PermissionPut,
    TopicPermissionPut,
    UserDelete,
    UserLimitsPut,
    UserPut,
)

from .restarting_broker import RestartingBroker

START_MS: Final = 1_700_000_000_000
CRASH_STATES: Final = 12
FIRST: Final = 1  # messages of the first piece: it tells how many queues get each
EVERYTHING: Final = ".*"


class Desk:
    """The part of the broker that a transfer needs. `between`: called where clients would have their turn."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self.between: Callable[[], None] = lambda: None
        self.pieces = 0
        self.view = EngineView(self._harness.broker, self.settle)

    @property
    def broker(self) -> Broker:
        return self._harness.broker

    def settle(self) -> None:
        self._harness.settle()
        self._harness.broker.log.close_if_due(lingered=True)
        self._harness.settle()
        self.pieces += 1
        self.between()


class Bench:
    """A broker with a client, and transfers out of ``from``."""

    def __init__(self, harness: Harness, **arguments: Any) -> None:
        self.harness = harness
        self.client: Client = harness.channel()
        self.client.declare("from", durable=True, arguments=arguments)
        self.client.declare("to", durable=True)
        self.desk = Desk(harness)

    def publish(self, count: int, key: str = "from", first: int = 0, **properties: Any) -> list[bytes]:
        """Publish messages whose bodies are numbers; return them."""
        bodies = [b"%d" % number for number in range(first, first + count)]
        given = {"delivery_mode": 2} | properties
        self.client.feed(b"".join(publish_frames("", key, body, properties=given) for body in bodies))
        return bodies

    def transfer(
        self,
        exchange: str | None = "",
        key: str | None = "to",
        *,
        moves: bool = True,
        count: int | None = None,
        passes: Filter | None = None,
        source: str = "from",
        user: str = "guest",
    ) -> Transfer:
        """Return a transfer that has not begun. `exchange` None: back to where the messages died first."""
        queue = self.harness.vhost.queues[source]
        where = Destination(exchange, key, {})
        total = int(queue.ready_count)
        limit = total if count is None else count
        what = QueueRef(queue), where, moves, passes or Filter(), False, limit, None, total, user, START_MS
        return Transfer("1", "/", source, *what)

    def run(self, transfer: Transfer) -> Transfer:
        """Carry a transfer out."""
        trio.run(transfer.run, self.desk.view)
        assert transfer.ended_at_ms is not None and transfer.state != RUNNING
        self.harness.check()
        return transfer

    def seen(self, name: str) -> list[Seen]:
        """Return what waits in a queue."""
        cursor = Cursor()
        told: list[list[Seen]] = []
        while not cursor.ended:
            look(self.harness.queue(name), cursor, 1000, told.append)
            self.harness.settle()
        return [each for piece in told for each in piece]

    def bodies(self, name: str) -> list[bytes]:
        return [each.message.body() for each in self.seen(name)]

    def got(self, name: str) -> list[bytes]:
        """Take everything out of a queue."""
        found: list[bytes] = []
        while (received := self.client.get(name, no_ack=True)) is not None:
            found.append(body_of(received))
        return found

    def close_batch(self) -> None:
        self.harness.broker.log.close_if_due(lingered=True)
        self.harness.settle()


def bench(**arguments: Any) -> Bench:
    return Bench(Harness(), **arguments)


def properties_of(seen: Seen) -> BasicProperties:
    payload = seen.message.header_payload()
    return decode_properties(payload, 0, len(payload))


def headers_in(seen: Seen) -> Table:
    encoded = properties_of(seen).headers
    return {} if encoded is None else decode_table(encoded)


@pytest.mark.parametrize("memory_bytes", [0, 128 << 20])
@pytest.mark.parametrize("target", [{}, {"x-queue-type": "quorum"}])
def test_after_any_power_cut_a_moved_message_is_in_one_of_the_two_queues(memory_bytes: int, target: Table) -> None:
    broker = RestartingBroker(Shape(1 << 14, 4, 1 << 11), START_MS, memory_bytes)
    work = Bench(broker)
    work.client.declare("target", durable=True, arguments=target)
    bodies: list[bytes] = []
    for first in range(0, 240, 40):
        bodies += work.publish(40, first=first)
        broker.rest()
    broker.rest()
    transfer = work.transfer(key="target")
    points = states = 0
    splits: set[int] = set()

    def cut(operation: str) -> None:
        nonlocal points, states
        points += 1
        for state in broker.disk.crash_states(seed=points, limit=CRASH_STATES):
            states += 1
            left = Bench.__new__(Bench)
            left.harness = broker.found_on(state)
            source, moved = left.bodies("from"), left.bodies("target")
            assert moved + source == bodies, f"after {operation}"
            splits.add(len(moved))

    broker.disk.on_operation = cut
    work.run(transfer)
    broker.rest()
    broker.disk.on_operation = None
    assert (transfer.state, transfer.transferred) == (DONE, 240)
    assert work.bodies("target") == bodies and work.bodies("from") == []
    assert states > points > 4
    assert {0, 240} < splits, "there were states in between"


def test_what_is_not_chosen_keeps_its_place_and_its_order() -> None:
    work = bench()
    bodies = work.publish(500)
    transfer = work.run(work.transfer(passes=Filter(body=b"7")))
    chosen = [body for body in bodies if b"7" in body]
    assert (transfer.scanned, transfer.transferred) == (500, len(chosen))
    assert work.got("to") == chosen
    assert work.got("from") == [body for body in bodies if b"7" not in body]


@pytest.mark.parametrize("count", [1, 99, 100, 101, 499, 500, 600])
@pytest.mark.parametrize("moves", [True, False])
def test_no_more_than_the_count_is_transferred(count: int, moves: bool) -> None:
    work = bench()
    bodies = work.publish(500)
    transfer = work.run(work.transfer(count=count, moves=moves))
    assert transfer.state == DONE and transfer.transferred == min(count, 500)
    assert work.bodies("to") == bodies[:count]
    assert work.bodies("from") == (bodies[count:] if moves else bodies)


def test_a_copy_has_the_properties_and_the_body_and_leaves_the_original_as_it_was() -> None:
    work = bench()
    work.client.feed(
        publish_frames(
            "",
            "from",
            b"x" * 300_000,
            properties={
                "delivery_mode": 2,
                "message_id": "id",
                "priority": 3,
                "headers": encode_table({"n": 1}),
                "expiration": "9000",
            },
        )
    )
    before = [(each.place, each.redelivered) for each in work.seen("from")]
    work.run(work.transfer(moves=False))
    assert [(each.place, each.redelivered) for each in work.seen("from")] == before
    (copy,) = work.seen("to")
    assert copy.message.body() == b"x" * 300_000 and copy.message.persistent
    found = properties_of(copy)
    assert (found.message_id, found.priority, found.expiration) == ("id", 3, "9000")
    assert headers_in(copy) == {"n": 1}
    assert (copy.message.envelope.exchange, copy.message.envelope.routing_key) == ("", "to")
    work.harness.pass_time(9.5)
    assert work.bodies("from") == [] and work.bodies("to") == []


def test_a_full_destination_that_refuses_ends_the_transfer_and_nothing_is_lost() -> None:
    work = bench()
    work.client.declare("full", arguments={"x-max-length": 30, "x-overflow": "reject-publish"})
    bodies = work.publish(100)
    transfer = work.run(work.transfer(key="full"))
    assert transfer.state == FAILED and "refuses" in transfer.error
    assert transfer.transferred == 30
    assert work.bodies("full") == bodies[:30] and work.bodies("from") == bodies[30:]


def test_what_cannot_be_routed_stays_where_it_is() -> None:
    work = bench()
    work.client.declare_exchange("topics", "topic")
    work.client.bind("to", "topics", "odd")
    bodies = work.publish(50)
    work.client.feed(b"".join(publish_frames("", "from", b"odd", properties={}) for _ in range(3)))
    transfer = work.run(work.transfer("topics", None))  # with the keys they have
    assert (transfer.state, transfer.transferred, transfer.unroutable) == (DONE, 0, 53)
    transfer = work.run(work.transfer("topics", "odd", passes=Filter(body=b"odd")))
    assert (transfer.transferred, transfer.unroutable) == (3, 0)
    assert work.bodies("from") == bodies and work.bodies("to") == [b"odd"] * 3


def test_what_has_expired_is_not_moved_to_a_new_life() -> None:
    work = bench()
    work.publish(1, expiration="1000")
    work.publish(1, first=1)
    work.harness.broker.log.now_ms += 1500  # and nobody has looked yet
    transfer = work.run(work.transfer())
    assert transfer.transferred == 1
    assert work.bodies("to") == [b"1"]


@pytest.mark.parametrize("gone", ["from", "to"])
def test_a_queue_that_is_deleted_in_the_middle_ends_or_empties_a_transfer(gone: str) -> None:
    work = bench()
    bodies = work.publish(3 * PIECE_MESSAGES)
    client = work.harness.channel()

    def between() -> None:
        if work.desk.pieces == 1:
            client.call(1, m.QueueDelete(0, gone, if_unused=False, if_empty=False, no_wait=False))

    work.desk.between = between
    transfer = work.run(work.transfer())
    assert transfer.transferred == FIRST
    if gone == "from":
        assert transfer.state == FAILED and transfer.error == "the queue was deleted"
        assert work.bodies("to") == bodies[:FIRST]
    else:
        assert (transfer.state, transfer.unroutable) == (DONE, len(bodies) - FIRST)
        assert work.bodies("from") == bodies[FIRST:]


def test_a_stopped_transfer_keeps_what_it_has_done_and_does_no_more() -> None:
    work = bench()
    bodies = work.publish(5 * PIECE_MESSAGES)
    transfer = work.transfer()

    def between() -> None:
        if work.desk.pieces == 2:
            transfer.stop()

    work.desk.between = between
    work.run(transfer)
    done = transfer.transferred
    assert transfer.state == STOPPED and PIECE_MESSAGES <= done < len(bodies)
    work.close_batch()
    assert work.bodies("to") == bodies[:done] and work.bodies("from") == bodies[done:]


def test_a_transfer_takes_what_a_key_shared_queue_has_set_aside_as_well() -> None:
    work = bench(**{"x-key-shared": True, "x-key-header": "k"})
    work.client.send(1, m.BasicQos(0, 1, False))
    work.client.take()
    for number in range(20):
        key = str(number % 3)
        work.client.publish("", "from", b"%d" % number, headers=encode_table({"k": key}), delivery_mode=2)
    tag = work.client.consume("from", "one")
    (out,) = work.client.deliveries()
    other = work.harness.channel()
    other.send(1, m.BasicQos(0, 1, False))
    other.take()
    other.consume("from", "two")
    (second,) = other.deliveries()
    before = work.bodies("from")
    assert len(before) == 18
    transfer = work.run(work.transfer())
    assert transfer.transferred == 18
    assert work.bodies("to") == before and work.bodies("from") == []
    assert tag == "one"
    for client, delivery in ((work.client, out), (other, second)):
        client.send(1, m.BasicAck(delivery.method.delivery_tag, False))
        client.nothing()
    work.harness.check()
    work.client.publish("", "from", b"new", headers=encode_table({"k": "0"}))
    assert len([*work.client.deliveries(), *other.deliveries()]) == 1


def test_priorities_are_transferred_highest_first_and_sorted_again_at_the_target() -> None:
    work = bench(**{"x-max-priority": 5})
    work.client.declare("levels", arguments={"x-max-priority": 5})
    for number in range(300):
        work.client.publish("", "from", b"%d" % number, priority=number % 6, delivery_mode=2)
    before = work.bodies("from")
    work.run(work.transfer(moves=False))
    assert work.bodies("to") == before
    work.run(work.transfer(key="levels"))
    assert work.bodies("levels") == before and work.bodies("from") == []


def test_a_redriven_dead_letter_is_back_in_its_queue_and_may_die_there_again() -> None:
    work = bench()
    work.client.declare("morgue", durable=True)
    work.client.declare(
        "work", durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "morgue"}
    )
    work.publish(3, "work", headers=encode_table({"n": 1}))
    for round_number in range(1, 4):
        while (received := work.client.get("work")) is not None:
            work.client.send(1, m.BasicNack(received.method.delivery_tag, multiple=False, requeue=False))
        assert work.bodies("morgue") == [b"0", b"1", b"2"], round_number
        deaths = headers_in(work.seen("morgue")[0])["x-death"]
        assert isinstance(deaths, list) and isinstance(deaths[0], dict)
        assert deaths[0]["queue"] == "work" and deaths[0]["count"] == round_number
        transfer = work.run(work.transfer(None, None, source="morgue"))
        assert (transfer.state, transfer.transferred) == (DONE, 3)
        assert work.bodies("morgue") == [] and work.bodies("work") == [b"0", b"1", b"2"]


def test_redriving_a_dead_letter_does_not_count_as_a_cycle() -> None:
    work = bench()
    for name, target in (("work", "wait"), ("wait", "morgue")):
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target, "x-message-ttl": 1000}
        work.client.declare(name, durable=True, arguments=arguments)
    work.client.declare("morgue", durable=True)
    bodies = work.publish(2, "work")
    for _ in range(3):
        # `wait` is in x-death from the second time on, and nobody has rejected the message: of itself that is a cycle.
        work.harness.pass_time(1.5)
        assert work.bodies("wait") == bodies
        work.harness.pass_time(1.5)
        assert work.bodies("morgue") == bodies
        work.run(work.transfer(None, None, source="morgue"))
        assert work.bodies("work") == bodies and work.bodies("morgue") == []


def test_what_never_died_or_whose_queue_is_gone_is_not_redriven() -> None:
    work = bench()
    work.client.declare("morgue")
    work.client.declare("gone", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "morgue"})
    work.client.publish("", "morgue", b"alive")
    work.client.publish("", "gone", b"dead")
    received = work.client.get("gone")
    assert received is not None
    work.client.send(1, m.BasicNack(received.method.delivery_tag, multiple=False, requeue=False))
    work.client.call(1, m.QueueDelete(0, "gone", if_unused=False, if_empty=False, no_wait=False))
    transfer = work.run(work.transfer(None, None, source="morgue"))
    assert (transfer.state, transfer.transferred, transfer.unroutable) == (DONE, 0, 2)
    assert work.bodies("morgue") == [b"alive", b"dead"]


def test_moving_into_an_exchange_that_leads_back_ends_after_one_round() -> None:
    work = bench()
    bodies = work.publish(250)
    transfer = work.run(work.transfer("", "from"))
    assert (transfer.state, transfer.transferred) == (DONE, 250)
    assert work.bodies("from") == bodies


def test_a_hundred_thousand_messages_go_piece_by_piece_and_clients_have_their_turns() -> None:
    work = bench()
    work.harness.broker.log.memory_bytes = 1 << 20
    count = 100_000
    for first in range(0, count, 5000):
        work.publish(5000, first=first)
        work.close_batch()
    assert work.harness.queue("from").ready.paged_out_count() > count // 2
    largest = 0
    last = 0
    transfer = work.transfer()
    client = work.harness.channel()
    served = 0

    def between() -> None:
        nonlocal largest, last, served
        largest = max(largest, transfer.transferred - last)
        last = transfer.transferred
        if work.desk.pieces % 100 == 0:
            client.publish("", "to", b"client")
            served += 1

    work.desk.between = between
    work.run(transfer)
    assert (transfer.state, transfer.transferred) == (DONE, count)
    assert 0 < largest <= PIECE_MESSAGES and served > 5
    assert work.harness.queue("from").ready_count == 0
    assert work.harness.queue("to").ready_count == count + served
    assert transfers.PIECE_MESSAGES <= 1000


# --- whose transfer it is ---------------------------------------------------------------------------------------------


def guests_rights(work: Bench, *changes: Any) -> None:
    for change in changes:
        work.harness.broker.administer(change, "admin")
    work.harness.settle()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (UserDelete("guest"), "user 'guest' was deleted"),
        (PermissionDelete("guest", "/"), "access to vhost '/' refused for user 'guest'"),
        (PermissionPut("guest", "/", EVERYTHING, EVERYTHING, "^to$"), "read access to queue 'from'"),
        (PermissionPut("guest", "/", EVERYTHING, "^from$", EVERYTHING), "write access to exchange 'topics'"),
        (TopicPermissionPut("guest", "/", "topics", "^other$", EVERYTHING), "write access to topic 'key'"),
        (UserLimitsPut("guest", '{"max-connections": 0}'), "may have no connections"),
        (UserLimitsPut("guest", '{"max-channels": 0}'), "may have no connections"),
    ],
)
@pytest.mark.parametrize("moves", [True, False])
def test_a_transfer_ends_with_the_reason_when_its_user_may_not_go_on(change: Any, reason: str, moves: bool) -> None:
    work = bench()
    work.client.declare_exchange("topics", "topic")
    work.client.bind("to", "topics", "key")
    bodies = work.publish(5 * PIECE_MESSAGES)
    transfer = work.transfer("topics", "key", moves=moves)

    def between() -> None:
        if work.desk.pieces == 2:
            work.desk.between = lambda: None
            guests_rights(work, change)

    work.desk.between = between
    work.run(transfer)
    done = FIRST + PIECE_MESSAGES
    assert (transfer.state, transfer.transferred) == (FAILED, done)
    assert reason in transfer.error
    assert work.bodies("to") == bodies[:done]
    assert work.bodies("from") == (bodies[done:] if moves else bodies)


def test_permissions_hold_for_what_is_parked_as_well() -> None:
    work = bench(**{"x-delivery-limit": 0, "x-delivery-limit-action": "park"})
    work.publish(2 * PIECE_MESSAGES)
    while (received := work.client.get("from")) is not None:
        work.client.send(1, m.BasicReject(received.method.delivery_tag, True))
    transfer = work.transfer()
    transfer.parked, transfer.total, transfer.limit = True, 2 * PIECE_MESSAGES, 2 * PIECE_MESSAGES

    def between() -> None:
        if transfer.transferred == FIRST:
            work.desk.between = lambda: None
            guests_rights(work, PermissionPut("guest", "/", EVERYTHING, "^$", EVERYTHING))

    work.desk.between = between
    work.run(transfer)
    assert (transfer.state, transfer.transferred) == (FAILED, FIRST)
    assert "write access to exchange 'amq.default'" in transfer.error


def test_each_message_needs_the_topic_permission_for_its_own_key() -> None:
    work = bench()
    work.client.declare_exchange("topics", "topic")
    for key in ("open", "closed"):
        work.client.bind("to", "topics", key)
    work.client.bind("from", "amq.direct", "open")
    work.client.bind("from", "amq.direct", "closed")
    for key in ("open", "open", "closed", "open"):
        work.client.publish("amq.direct", key, key.encode())
    guests_rights(work, TopicPermissionPut("guest", "/", "topics", "^open$", EVERYTHING))
    transfer = work.run(work.transfer("topics", None))
    assert (transfer.state, transfer.transferred) == (FAILED, 2)
    assert "write access to topic 'closed' in exchange 'topics'" in transfer.error
    assert work.bodies("to") == [b"open"] * 2 and work.bodies("from") == [b"closed", b"open"]


def test_an_exchange_that_is_deleted_in_the_middle_ends_a_transfer() -> None:
    work = bench()
    work.client.declare_exchange("gone", "fanout")
    work.client.bind("to", "gone", "")
    bodies = work.publish(3 * PIECE_MESSAGES)

    def between() -> None:
        if work.desk.pieces == 1:
            work.client.call(1, m.ExchangeDelete(0, "gone", if_unused=False, no_wait=False))

    work.desk.between = between
    transfer = work.run(work.transfer("gone", "k"))
    assert (transfer.state, transfer.transferred) == (FAILED, FIRST)
    assert transfer.error == "no exchange 'gone' in vhost '/'"
    assert work.bodies("from") == bodies[FIRST:]


def test_a_transfer_waits_while_publishers_have_to_wait() -> None:
    work = bench()
    work.publish(3 * PIECE_MESSAGES)
    transfer = work.transfer(moves=False)
    broker = work.harness.broker

    def between() -> None:
        if work.desk.pieces == 1:
            broker.set_alarm("memory", True)

    work.desk.between = between
    clock = trio.testing.MockClock()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transfer.run, work.desk.view)
            for _ in range(5):
                await trio.testing.wait_all_tasks_blocked()
                assert transfer.state == RUNNING and transfer.transferred == FIRST
                clock.jump(10)
            broker.set_alarm("memory", False)
            while transfer.ended_at_ms is None:
                await trio.testing.wait_all_tasks_blocked()
                clock.jump(1)

    trio.run(main, clock=clock)
    assert (transfer.state, transfer.transferred) == (DONE, 3 * PIECE_MESSAGES)


# --- what is kept -----------------------------------------------------------------------------------------------------


class Office:
    """Transfers on a clock of their own, each of one message."""

    def __init__(self) -> None:
        self.work = bench()
        self.now_s = 0.0
        desk = self.work.desk
        self.transfers = Transfers(desk.view, lambda: self.now_s)

    def carry_out(self, user: str = "guest") -> str:
        """Carry out a transfer; return its id."""
        transfer = self.work.transfer(user=user)
        transfer.id = self.transfers.next_id()
        trio.run(self.transfers.carry_out, transfer)
        return transfer.id

    def kept(self) -> list[str]:
        return [described["id"] for described in self.transfers.of(["/"])]


def test_of_ended_transfers_so_many_are_kept_of_a_user_and_of_all() -> None:
    office = Office()
    other = office.carry_out("somebody")
    mine = [office.carry_out() for _ in range(KEPT_OF_USER_MAX + 5)]
    assert office.kept() == [*reversed(mine[5:]), other]
    for number in range(KEPT_MAX):
        office.carry_out(f"user {number % 50}")
    assert len(office.kept()) == KEPT_MAX and other not in office.kept()


def test_ended_transfers_are_forgotten_when_they_are_old() -> None:
    office = Office()
    first = office.carry_out()
    office.now_s = KEPT_S - 1
    second = office.carry_out()
    assert office.kept() == [second, first]
    office.now_s = KEPT_S
    assert office.transfers.maybe_find("/", first) is None
    assert office.kept() == [second]
    assert office.transfers.maybe_find("other", second) is None
    found = office.transfers.maybe_find("/", second)
    assert isinstance(found, Ended)
    office.transfers.end(found)
    assert office.kept() == []


def test_only_so_many_run_and_an_administrator_has_a_share_always() -> None:
    office = Office()
    running = office.transfers._running
    for number in range(RUNNING_QUOTA.of_user):
        assert office.transfers.maybe_refusal("somebody") == ""
        running[f"a{number}"] = office.work.transfer(user="somebody")
    assert "somebody" in office.transfers.maybe_refusal("somebody")
    for number in range(RUNNING_QUOTA.total):
        running[f"b{number}"] = office.work.transfer(user=f"user {number}")
    guests_rights(office.work, UserPut("admin", "", "", ("administrator",)), UserPut("plain", "", "", ()))
    assert "there are" in office.transfers.maybe_refusal("plain")
    assert office.transfers.maybe_refusal("admin") == ""
    for number in range(RUNNING_QUOTA.of_user):
        running[f"c{number}"] = office.work.transfer(user="admin")
    assert "admin" in office.transfers.maybe_refusal("admin")
