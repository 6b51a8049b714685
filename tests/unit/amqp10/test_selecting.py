"""Receivers of queues that want only some of the messages. In parentheses: ``queues.selective``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from amqp10_harness import DETACH, Amqp10Client, Frame, amqp10_client, sections
from durable_harness import DurableHarness
from engine_harness import Harness, basic_consume, body_of

from warren.amqp import methods as m
from warren.amqp.field_table import Table, encode_table
from warren.amqp10.performatives import ACCEPTED, MODIFIED, REJECTED, RELEASED
from warren.amqp10.values import Described, Symbol, UInt
from warren.queues.base_queue import BaseQueue
from warren.queues.consumer import Consumer
from warren.queues.dispatch import DRAIN_BUDGET
from warren.queues.selective import SELECTIVE_MAX, THIN_OUT_AFTER, TURN_LOOKS, WINDOW_MESSAGES, Search, Selective

from .test_publishing import error_of
from .test_receiving import bodies, refused

Declared = Callable[..., Harness]


def sql(condition: str) -> dict[object, object]:
    return {Symbol("sql-filter"): Described(Symbol("amqp:sql-filter"), condition)}


@pytest.fixture
def harness() -> Harness:
    made = Harness()
    made.channel().declare("q", durable=True)
    return made


def declare(harness: Harness, name: str, **arguments: Any) -> None:
    more: Table = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
    harness.channel().declare(name, durable=True, arguments=more)


def fill(harness: Harness, *colors: str, queue: str = "q", first: int = 0, **properties: Any) -> None:
    """Publish a message for each of these colours, with its number as body."""
    publisher = harness.channel()
    for number, color in enumerate(colors, first):
        publisher.publish("", queue, b"%d" % number, headers=encode_table({"color": color}), **properties)
    harness.settle()


def selecting(
    harness: Harness,
    condition: str,
    *,
    queue: str = "q",
    credit: int = 0,
    client: Amqp10Client | None = None,
    **given: Any,
) -> Amqp10Client:
    client = client or amqp10_client(harness)
    handle = given.pop("handle", 0)
    (attached,) = client.receiver(handle, f"/queues/{queue}", filter=sql(condition), **given)
    assert attached.field(5).value[7] == sql(condition)
    assert attached.field(11).elements == ["AMQP_FILTEX_PROP_V1_0", "AMQP_FILTEX_SQL_V1_0"]
    if credit:
        assert bodies(client.credit(handle, credit)) == []
    return client


def flows(frames: list[Frame]) -> list[Frame]:
    return [each for each in frames if each.name == "flow"]


def delivered(frames: list[Frame]) -> list[bytes]:
    return bodies([each for each in frames if each.name != "flow"])


def left(harness: Harness, queue: str = "q") -> list[bytes]:
    return [message.body() for message in harness.queue(queue).ready.in_memory()]


def got(harness: Harness, count: int, queue: str = "q") -> list[tuple[bytes, bool]]:
    """Get `count` messages, and whether they are redelivered."""
    channel = harness.channel()
    found = [channel.get(queue, no_ack=True) for _ in range(count)]
    return [(body_of(each), each.method.redelivered) for each in found if each is not None]


def search_of(queue: BaseQueue, at: int = 0) -> Search:
    consumers: list[Consumer] = list(queue.consumers)
    search = consumers[at].search
    assert search is not None
    return search


# --- which receiver gets which message
# ----------------------------------------------------------------------------------------------------


def test_what_does_not_match_stays_in_its_order(harness: Harness) -> None:
    fill(harness, "red", "blue", "red", "green", "blue")
    client = selecting(harness, "color = 'blue'")
    assert bodies(client.credit(0, 10)) == [b"1", b"4"]
    assert left(harness) == [b"0", b"2", b"3"]
    fill(harness, "green", "blue", first=5)
    assert bodies(client.take()) == [b"6"]
    assert got(harness, 4) == [(b"0", False), (b"2", False), (b"3", False), (b"5", False)]
    client.settle(0, 2, ACCEPTED)
    assert harness.queue("q").message_count == 0
    harness.check()


def test_properties_are_selected_by_too(harness: Harness) -> None:
    publisher = harness.channel()
    publisher.publish("", "q", b"0", correlation_id="mine")
    publisher.publish("", "q", b"1", correlation_id="yours")
    client = amqp10_client(harness)
    client.receiver(0, "/queues/q", filter={Symbol("f"): Described(0x173, {Symbol("correlation-id"): "yours"})})
    assert bodies(client.credit(0, 10)) == [b"1"]


def test_each_gets_what_it_wants_and_the_others_the_rest(harness: Harness) -> None:
    blue = selecting(harness, "color = 'blue'", credit=10)
    red = selecting(harness, "color = 'red'", credit=10)
    fill(harness, "red", "blue", "green", "red")
    assert bodies(blue.take()) == [b"1"]
    assert bodies(red.take()) == [b"0", b"3"]
    other = harness.channel()
    other.consume("q")
    assert other.bodies() == [b"2"]
    fill(harness, "white", first=4)
    assert other.bodies() == [b"4"]
    assert blue.take() == [] == red.take()


def test_those_who_want_the_same_get_it_in_turn(harness: Harness) -> None:
    first = selecting(harness, "color = 'blue'", credit=100)
    second = selecting(harness, "color LIKE 'b%'", credit=100)
    plain = harness.channel()
    plain.consume("q")
    for number in range(30):
        fill(harness, "blue", first=number)
    shares = [len(bodies(first.take())), len(bodies(second.take())), len(plain.bodies())]
    assert sum(shares) == 30 and min(shares) >= 9


def test_nobody_decides_without_credit(harness: Harness) -> None:
    client = selecting(harness, "color = 'blue'")
    fill(harness, *["red"] * 5)
    search = search_of(harness.queue("q"))
    assert search.looks == 0
    client.credit(0, 1)
    assert search.looks == 5
    fill(harness, "blue", "blue", "red", first=5)
    assert bodies(client.take()) == [b"5"]
    assert search.looks == 6
    client.credit(0, 0, count=1)
    fill(harness, "blue", first=8)
    assert search.looks == 6


def test_what_is_released_is_looked_at_again_by_everybody(harness: Harness) -> None:
    fill(harness, "red", "blue", "red", "blue")
    client = selecting(harness, "color = 'blue'")
    other = selecting(harness, "color <> 'green'")
    assert bodies(client.credit(0, 10)) == [b"1", b"3"]
    assert bodies(other.credit(0, 1)) == [b"0"]
    assert search_of(harness.queue("q"), 1).looks == 1
    client.credit(0, 0, count=2)
    client.settle(0, 1, RELEASED)
    assert left(harness) == [b"1", b"2", b"3"]
    assert bodies(other.credit(0, 10, count=1)) == [b"1", b"2", b"3"]
    other.settle(0, 3, RELEASED)
    # To the other one, which has credit, but for what comes to nobody else.
    assert harness.queue("q").unacked_count == 4
    other.credit(0, 0, count=8)
    other.hang_up()
    assert bodies(client.credit(0, 10, count=2)) == [b"1", b"3"]
    assert got(harness, 2) == [(b"0", True), (b"2", True)]


def test_a_message_out_of_turn_comes_back_behind_those_that_waited_before_it(harness: Harness) -> None:
    fill(harness, "red", "blue", "red", "blue")
    client = selecting(harness, "color = 'blue'")
    client.credit(0, 2)
    client.settle(0, 1, MODIFIED, fields=[True])
    assert left(harness) == [b"0", b"1", b"2", b"3"]
    assert got(harness, 4) == [(b"0", False), (b"1", True), (b"2", False), (b"3", True)]


def test_a_link_that_ends_gives_back_what_others_want(harness: Harness) -> None:
    fill(harness, "red", "blue", "blue")
    client = selecting(harness, "color = 'blue'")
    client.credit(0, 10)
    other = selecting(harness, "color = 'blue'", credit=10)
    client.send(DETACH, [UInt(0), True])
    assert bodies(other.take()) == [b"1", b"2"]
    assert harness.plain_queue("q").need_keeper().dispatch.selective_count() == 1
    other.hang_up()
    assert not isinstance(harness.plain_queue("q").need_keeper().dispatch, Selective)
    assert [body for body, _ in got(harness, 3)] == [b"0", b"1", b"2"]
    harness.check()


def test_settled_deliveries_are_gone_at_once(harness: Harness) -> None:
    fill(harness, "red", "blue", "red", delivery_mode=2)
    client = selecting(harness, "color = 'blue'", mode=1)
    assert bodies(client.credit(0, 10)) == [b"1"]
    assert harness.queue("q").message_count == 2
    harness.check()


def test_a_queue_that_is_deleted_ends_the_link(harness: Harness) -> None:
    fill(harness, "red", "blue")
    client = selecting(harness, "color = 'blue'")
    client.credit(0, 10)
    harness.channel().call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    (detach,) = client.take()
    assert error_of(detach) == "amqp:resource-deleted"
    harness.check()


def test_what_was_purged_is_not_handed_out(harness: Harness) -> None:
    fill(harness, "red", "blue", "red", "blue", delivery_mode=2)
    client = selecting(harness, "color = 'blue'")
    client.credit(0, 1)
    assert harness.queue("q").purge() == 3
    harness.settle()
    assert bodies(client.credit(0, 10, count=1)) == []
    assert bodies(client.settle(0, 0, RELEASED)) == [b"1"]
    fill(harness, "blue", first=4)
    assert bodies(client.take()) == [b"4"]
    client.settle(0, 2, ACCEPTED)
    assert harness.queue("q").message_count == 0
    harness.check()


# --- what else a queue may be -----------------------------------------------------------------------------------------


def test_of_a_priority_queue_the_highest_is_looked_at_first(harness: Harness) -> None:
    declare(harness, "p", max_priority=5)
    for number, priority in enumerate([1, 5, 3, 5, 1]):
        fill(harness, "blue" if number != 3 else "red", queue="p", first=number, priority=priority)
    client = selecting(harness, "color = 'blue'", queue="p")
    assert bodies(client.credit(0, 10)) == [b"1", b"2", b"0", b"4"]
    assert bodies(client.settle(1, 2, RELEASED)) == [b"2", b"0"]
    fill(harness, "red", "blue", queue="p", first=5, priority=5)
    assert bodies(client.take()) == [b"6"]
    assert [body for body, _ in got(harness, 3, "p")] == [b"3", b"5"]
    harness.check()


def test_conditions_on_the_priority_hold_in_any_queue(harness: Harness) -> None:
    for number, priority in enumerate([1, 9, 4]):
        fill(harness, "any", first=number, priority=priority)
    assert bodies(selecting(harness, "h.priority >= 4").credit(0, 10)) == [b"1", b"2"]


def test_only_the_active_consumer_is_served(harness: Harness) -> None:
    declare(harness, "s", single_active_consumer=True)
    first = selecting(harness, "color = 'blue'", queue="s", credit=10)
    second = selecting(harness, "color = 'red'", queue="s", credit=10)
    fill(harness, "red", "blue", "red", queue="s")
    assert bodies(first.take()) == [b"1"] and second.take() == []
    first.hang_up()
    assert bodies(second.take()) == [b"0", b"2"]
    assert left(harness, "s") == [b"1"]
    harness.check()


def test_a_receiver_that_waits_to_be_active_is_behind_one_without_filters(harness: Harness) -> None:
    declare(harness, "s", single_active_consumer=True)
    plain = harness.channel()
    plain.consume("s")
    second = selecting(harness, "color = 'red'", queue="s", credit=10)
    fill(harness, "red", "blue", queue="s")
    assert plain.bodies() == [b"0", b"1"] and second.take() == []


@pytest.mark.parametrize("first", ["selecting", "plain"])
def test_who_has_a_higher_priority_has_what_it_wants(harness: Harness, first: str) -> None:
    priority = {Symbol("rabbitmq:priority"): 5 if first == "selecting" else -5}
    client = selecting(harness, "color = 'blue'", properties=priority, credit=100)
    plain = harness.channel()
    plain.consume("q")
    fill(harness, *["blue", "red"] * 5)
    taken = 5 if first == "selecting" else 0
    assert len(bodies(client.take())) == taken
    assert len(plain.bodies()) == 10 - taken


def test_what_matches_and_has_expired_is_a_dead_letter(harness: Harness) -> None:
    harness.channel().declare("dead")
    declare(harness, "t", dead_letter_exchange="", dead_letter_routing_key="dead", message_ttl=1000)
    client = selecting(harness, "color = 'blue'", queue="t")
    fill(harness, "red", "blue", queue="t")
    harness.pass_time(2)
    assert bodies(client.credit(0, 10)) == []
    fill(harness, "blue", "red", queue="t", first=2)
    assert bodies(client.take()) == [b"2"]
    harness.pass_time(2)
    assert [body for body, _ in got(harness, 9, "dead")] == [b"0", b"1", b"3"]


def test_a_time_to_live_of_its_own_is_over_wherever_a_message_stands(harness: Harness) -> None:
    fill(harness, "red")
    fill(harness, "blue", first=1, expiration="1000")
    fill(harness, "blue", first=2)
    harness.pass_time(2)
    assert bodies(selecting(harness, "color = 'blue'").credit(0, 10)) == [b"2"]


def test_a_length_limit_drops_what_nobody_takes(harness: Harness) -> None:
    declare(harness, "l", max_length=2)
    client = selecting(harness, "color = 'blue'", queue="l", credit=2)
    fill(harness, "red", "blue", "red", "blue", "red", "blue", queue="l")
    assert bodies(client.take()) == [b"1", b"3"]
    assert left(harness, "l") == [b"4", b"5"]
    client.settle(0, 0, RELEASED)
    assert left(harness, "l") == [b"4", b"5"], "what came back is the oldest"


def test_deliveries_are_counted_and_limited_as_ever(harness: Harness) -> None:
    harness.channel().declare("dead")
    limits = {"delivery_limit": 1, "dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
    declare(harness, "c", queue_type="quorum", **limits)
    fill(harness, "red", "blue", "red", queue="c")
    client = selecting(harness, "color = 'blue'", queue="c")
    (first,) = client.credit(0, 10)
    assert sections(first.payload)[0x70][3:] == [True]
    (again,) = client.settle(0, 0, MODIFIED, fields=[True])
    assert sections(again.payload)[0x70][3:] == [False, 1]
    assert client.settle(1, 1, MODIFIED, fields=[True]) == []
    assert got(harness, 1, "dead")[0][0] == b"1"
    assert left(harness, "c") == [b"0", b"2"]
    harness.check()


def test_what_is_rejected_is_a_dead_letter(harness: Harness) -> None:
    harness.channel().declare("dead")
    declare(harness, "r", dead_letter_exchange="", dead_letter_routing_key="dead")
    fill(harness, "red", "blue", queue="r")
    client = selecting(harness, "color = 'blue'", queue="r")
    client.credit(0, 10)
    client.settle(0, 0, REJECTED)
    assert got(harness, 1, "dead")[0][0] == b"1"


def test_what_was_delayed_is_looked_at_when_its_time_has_come(harness: Harness) -> None:
    client = selecting(harness, "color = 'blue'", credit=10)
    headers = encode_table({"color": "blue", "x-delay": 5000})
    harness.channel().publish("", "q", b"late", headers=headers)
    fill(harness, "blue")
    assert bodies(client.take()) == [b"0"]
    harness.pass_time(6)
    assert bodies(client.take()) == [b"late"]


def test_a_paused_queue_and_one_with_enough_unacked_hand_out_nothing(harness: Harness) -> None:
    declare(harness, "u", max_unacked=1)
    client = selecting(harness, "color = 'blue'", queue="u")
    fill(harness, "blue", "red", "blue", queue="u")
    assert bodies(client.credit(0, 10)) == [b"0"]
    assert bodies(client.settle(0, 0, ACCEPTED)) == [b"2"]
    harness.queue("u").pause(paused=True)
    client.settle(1, 1, ACCEPTED)
    fill(harness, "blue", queue="u", first=3)
    assert client.take() == []
    harness.queue("u").pause(paused=False)
    harness.settle()
    assert bodies(client.take()) == [b"3"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"key_shared": True}, "queue 'no' shares keys"),
        ({"storage": "memory", "max_length": 10}, "queue 'no' has x-storage memory"),
    ],
)
def test_what_does_not_go_with_filters_is_refused(harness: Harness, arguments: dict[str, Any], text: str) -> None:
    declare(harness, "no", **arguments)
    client = amqp10_client(harness)
    attach, detach = client.receiver(0, "/queues/no", filter=sql("color = 'blue'"))
    assert attach.field(5) is None
    assert error_of(detach) == "amqp:not-implemented"
    assert text in detach.field(2).value[1] and "attach without filters" in detach.field(2).value[1]
    client.send(DETACH, [UInt(0), True])
    (attached,) = client.receiver(0, "/queues/no")
    assert attached.field(11) is None
    assert not list(harness.queue("no").consumers)[1:]


def test_a_queue_has_so_many_of_them_and_no_more(harness: Harness) -> None:
    client = amqp10_client(harness)
    for handle in range(SELECTIVE_MAX):
        client.receiver(handle, "/queues/q", filter=sql(f"n = {handle}"))
    assert refused(client, SELECTIVE_MAX, "/queues/q", filter=sql("n = 0")) == "amqp:resource-limit-exceeded"
    (attached,) = client.receiver(SELECTIVE_MAX + 1, "/queues/q")
    assert attached.field(5) is not None
    client.send(DETACH, [UInt(0), True])
    (attached,) = client.receiver(0, "/queues/q", filter=sql("n = 0"))
    assert attached.field(5) is not None


def test_who_may_not_read_a_queue_does_not_hear_what_it_is(harness: Harness) -> None:
    declare(harness, "no", key_shared=True)
    harness.add_user("outsider", read="^$")
    client = Amqp10Client(harness)
    client.login("outsider", "outsider")
    client.raw(b"AMQP\x00\x01\x00\x00")
    client.send(0x10, ["client", "vhost:/"])
    client.begin()
    assert refused(client, 0, "/queues/no", filter=sql("n = 0")) == "amqp:unauthorized-access"


# --- drains -----------------------------------------------------------------------------------------------------------


def test_a_drain_ends_when_what_is_there_has_been_looked_at(harness: Harness) -> None:
    fill(harness, *["red"] * 20, "blue", "red")
    client = selecting(harness, "color = 'blue'")
    found = client.credit(0, 5, drain=True)
    assert delivered(found) == [b"20"]
    (drained,) = flows(found)
    assert (drained.field(6), drained.field(7), drained.field(8)) == (0, 0, True)
    fill(harness, "blue", first=22)
    assert client.take() == []


def test_what_has_not_been_looked_at_may_be_available(harness: Harness) -> None:
    client = selecting(harness, "color = 'blue'")
    fill(harness, "red", "red")
    (told,) = client.credit(0, 0, echo=True)
    assert told.field(7) == 2
    (told,) = client.credit(0, 1, echo=True)
    assert told.field(7) == 2, "it looks at the end of the turn"
    (told,) = client.credit(0, 1, echo=True)
    assert told.field(7) == 0


def test_a_drain_of_a_long_queue_goes_on_in_later_turns(harness: Harness) -> None:
    fill(harness, *["red"] * (3 * DRAIN_BUDGET), "blue")
    client = selecting(harness, "color = 'blue'")
    found = client.credit(0, 5, drain=True)
    assert delivered(found) == [b"%d" % (3 * DRAIN_BUDGET)]
    (drained,) = flows(found)
    assert drained.field(6) == 0 and drained.field(8) is True


def test_a_drain_that_finds_nothing_is_answered_at_once(harness: Harness) -> None:
    client = selecting(harness, "color = 'blue'")
    (drained,) = client.credit(0, 5, drain=True)
    assert drained.field(6) == 0 and drained.field(8) is True
    fill(harness, "red")
    (drained,) = client.credit(0, 5, count=5, drain=True)
    assert drained.field(6) == 0 and drained.field(8) is True


def test_a_drain_that_reads_the_disk_ends_when_that_is_read() -> None:
    harness = on_disk(*["red"] * 2000, "blue")
    client = selecting(harness, "color = 'blue'")
    found = client.credit(0, 5, drain=True)
    assert delivered(found) == [b"2000"]
    (drained,) = flows(found)
    assert drained.field(6) == 0 and drained.field(8) is True


# --- work -------------------------------------------------------------------------------------------------------------


def test_a_turn_looks_at_so_many_and_others_have_theirs(harness: Harness) -> None:
    fill(harness, *["red"] * (2 * DRAIN_BUDGET))
    client = selecting(harness, "color = 'blue'")
    client.credit(0, 1, window=2048)
    queue = harness.queue("q")
    search = search_of(queue)
    looked = [int(search.looks)]
    assert looked == [2 * DRAIN_BUDGET]
    fill(harness, *["red"] * DRAIN_BUDGET)
    queue.wake()
    queue.drain()
    assert search.looks == 3 * DRAIN_BUDGET


def test_one_turn_of_a_queue_costs_its_budget(harness: Harness) -> None:
    fill(harness, *["red"] * (3 * DRAIN_BUDGET))
    selecting(harness, "color = 'blue'")
    queue = harness.queue("q")
    (consumer,) = queue.consumers
    consumer.credit = 1
    consumer.come_back()
    queue.wake()
    queue.drain()
    assert DRAIN_BUDGET - TURN_LOOKS <= search_of(queue).looks <= DRAIN_BUDGET + TURN_LOOKS
    queue.serve(consumer)
    assert search_of(queue).looks <= 2 * DRAIN_BUDGET + 2 * TURN_LOOKS
    harness.settle()


@pytest.mark.parametrize("lane", [0, 3])
def test_a_message_that_nobody_takes_keeps_no_place_for_those_that_pass(lane: int) -> None:
    harness = Harness()
    declare(harness, "q", **({"max_priority": 3} if lane else {}))
    client = selecting(harness, "color = 'blue'", mode=1)
    client.credit(0, 1_000_000, window=1_000_000)
    queue = harness.queue("q")
    publisher = harness.channel()
    red, blue = encode_table({"color": "red"}), encode_table({"color": "blue"})
    for _ in range(2):
        publisher.publish("", "q", b"stays", headers=red)
        for _ in range(17):
            for _ in range(THIN_OUT_AFTER):
                publisher.publish("", "q", b"goes", headers=blue)
            harness.settle()
            client.raw(b"")
    harness.broker.log.close_if_due(lingered=True)
    harness.settle()
    backlog = queue.ready.backlog(lane)
    assert sum(len(run.items) - run.at for run in (backlog.head, backlog.tail)) < 2 * 16384
    publisher.publish("", "q", b"goes", headers=blue)
    harness.settle()
    assert search_of(queue).looks == 2 + 2 * 17 * THIN_OUT_AFTER + 1
    assert [body for body, _ in got(harness, 3)] == [b"stays"] * 2
    harness.check()


# --- disk -------------------------------------------------------------------------------------------------------------


def on_disk(*colors: str, **arguments: Any) -> Harness:
    """Return a broker whose queue has what it can on disk only."""
    harness = Harness()
    harness.broker.log.memory_bytes = 0
    declare(harness, "q", **arguments)
    fill(harness, *colors, delivery_mode=2)
    write(harness)
    return harness


def write(harness: Harness) -> None:
    harness.broker.log.close_if_due(lingered=True)
    harness.settle()


def test_what_waits_on_disk_is_looked_at_there() -> None:
    colors = ["blue" if number % 100 == 99 else "red" for number in range(1000)]
    harness = on_disk(*colors)
    assert harness.queue("q").ready.paged_out_count() > 900
    client = selecting(harness, "color = 'blue'")
    assert bodies(client.credit(0, 20)) == [b"%d" % number for number in range(99, 1000, 100)]
    assert harness.queue("q").ready.paged_out_count() > 800, "what does not match stays there"
    client.settle(0, 4, ACCEPTED)
    client.settle(5, 6, RELEASED)
    write(harness)
    client.hang_up()
    red = [b"%d" % number for number in range(1000) if number % 100 != 99 or number > 500]
    assert [body for body, _ in got(harness, 1001)] == red
    assert harness.queue("q").message_count == 0
    assert harness.broker.log.resident_bytes == 0
    harness.check()


def test_what_came_out_of_the_middle_is_not_loaded_while_it_is_out() -> None:
    harness = on_disk(*["red"] * 150, "blue", *["red"] * 150)
    client = selecting(harness, "color = 'blue'")
    assert bodies(client.credit(0, 1)) == [b"150"]
    assert [body for body, _ in got(harness, 301)] == [b"%d" % number for number in range(301) if number != 150]
    assert harness.queue("q").unacked_count == 1
    client.settle(0, 0, RELEASED)
    assert got(harness, 2) == [(b"150", True)]
    harness.check()


def test_what_came_out_of_the_middle_is_not_purged_with_it() -> None:
    harness = on_disk(*["red", "blue"] * 200)
    client = selecting(harness, "color = 'blue'")
    client.credit(0, 100)
    assert harness.queue("q").purge() == 300
    write(harness)
    client.credit(0, 0, count=100)
    client.settle(0, 49, ACCEPTED)
    client.settle(50, 99, RELEASED)
    write(harness)
    assert [body for body, _ in got(harness, 51)] == [b"%d" % number for number in range(101, 200, 2)]
    assert harness.queue("q").message_count == 0
    harness.check()


def test_index_pages_of_what_is_out_stay_in_memory() -> None:
    harness = on_disk(*["red"] * 300, "blue", *["red"] * 1200)
    client = selecting(harness, "color = 'blue'")
    assert bodies(client.credit(0, 10)) == [b"300"]
    for number in range(4):
        fill(harness, "red", first=1501 + number, delivery_mode=2)
        write(harness)
    index = harness.queue("q").ready.index_of(0)
    assert index is not None
    assert [page is not None and page.resident for page in index.pages[1:4]] == [True, False, False]
    client.settle(0, 0, ACCEPTED)
    for number in range(4):
        fill(harness, "red", first=1505 + number, delivery_mode=2)
        write(harness)
    assert [page is not None and page.resident for page in index.pages[1:4]] == [False] * 3
    client.hang_up()
    assert [body for body, _ in got(harness, 1600)] == [b"%d" % number for number in range(1509) if number != 300]
    harness.check()


def test_what_is_out_when_the_rest_is_purged_is_there_after_a_start() -> None:
    harness = DurableHarness()
    harness.broker.log.memory_bytes = 0
    declare(harness, "q")
    fill(harness, *["red"] * 200, "blue", *["red"] * 200, delivery_mode=2)
    harness.write()
    fill(harness, "red", first=401, delivery_mode=2)
    harness.write()
    assert harness.queue("q").ready.paged_out_count() > 300
    client = selecting(harness, "color = 'blue'")
    assert bodies(client.credit(0, 1)) == [b"200"]
    assert harness.queue("q").purge() == 401
    harness.settle()
    harness.write()
    harness = harness.restart(clean=False)
    assert got(harness, 3) == [(b"200", True)]


def test_settled_deliveries_from_disk_are_gone() -> None:
    harness = on_disk(*["red"] * 300, "blue", *["red"] * 20)
    client = selecting(harness, "color = 'blue'", mode=1)
    assert bodies(client.credit(0, 10)) == [b"300"]
    write(harness)
    assert len(got(harness, 400)) == 320
    harness.check()


def test_counted_returns_from_disk_are_there_once() -> None:
    harness = on_disk(*["red"] * 300, "blue", *["red"] * 300, queue_type="quorum")
    client = selecting(harness, "color = 'blue'")
    client.credit(0, 1)
    client.settle(0, 0, MODIFIED, fields=[True])
    write(harness)
    assert [body for body, _ in got(harness, 700)] == [b"%d" % number for number in range(601)]
    assert harness.queue("q").message_count == 0
    harness.check()


def test_two_with_their_places_far_apart_both_go_on() -> None:
    harness = on_disk(*["red"] * (4 * WINDOW_MESSAGES), "blue", "green")
    log = harness.broker.log
    first = selecting(harness, "color = 'blue'")
    first.credit(0, 1)
    first.settle(0, 0, RELEASED)
    second = selecting(harness, "color = 'green'")
    assert bodies(second.credit(0, 1)) == [b"%d" % (4 * WINDOW_MESSAGES + 1)]
    third = selecting(harness, "color = 'blue'")
    first.credit(0, 0, count=2)
    first.hang_up()
    assert bodies(third.credit(0, 1)) == [b"%d" % (4 * WINDOW_MESSAGES)]
    harness.check()
    third.hang_up()
    second.hang_up()
    assert log.resident_bytes < 1 << 16
    harness.check()


@pytest.mark.parametrize("clean", [True, False])
def test_after_a_start_what_was_handed_out_out_of_turn_may_have_been_delivered(clean: bool) -> None:
    harness = DurableHarness()
    declare(harness, "q")
    fill(harness, *["red"] * 40, "blue", "red", "blue", delivery_mode=2)
    client = selecting(harness, "color = 'blue'")
    assert bodies(client.credit(0, 1)) == [b"40"]
    harness.write()
    harness = harness.restart(clean=clean)
    found = got(harness, 50)
    assert [body for body, _ in found] == [b"%d" % number for number in range(43)]
    assert found[40] == (b"40", True)
    assert found[41:] == [(b"41", not clean), (b"42", not clean)]


def test_a_plain_consumer_beside_takes_what_is_first(harness: Harness) -> None:
    fill(harness, *["red"] * 50, "blue")
    client = selecting(harness, "color = 'blue'", credit=0)
    plain = harness.channel()
    plain.send(1, m.BasicQos(0, 3, False), basic_consume("q", "c"))
    assert [body_of(each) for each in plain.take()[2:]] == [b"0", b"1", b"2"]
    assert bodies(client.credit(0, 10)) == [b"50"]
    plain.send(1, m.BasicAck(0, True))
    assert plain.bodies() == [b"3", b"4", b"5"]
    harness.check()
