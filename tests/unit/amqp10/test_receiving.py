"""Output to a client: credit, drain, windows, frames, outcomes with their effects, conversion from 0-9-1."""

from __future__ import annotations

from typing import Any

import pytest
from amqp10_harness import DETACH, DISPOSITION, Amqp10Client, Frame, amqp10_client, message, section, sections
from engine_harness import Harness

from warren.amqp.field_table import Timestamp as Seconds
from warren.amqp.field_table import encode_table
from warren.amqp10.conversion import ANNOTATIONS_MAX_BYTES
from warren.amqp10.dispositions import ANNOTATED_MAX_BYTES
from warren.amqp10.performatives import ACCEPTED, MODIFIED, RECEIVED, REJECTED, RELEASED, described
from warren.amqp10.session import Amqp10Session
from warren.amqp10.values import Array, Described, Symbol, Timestamp, UByte, UInt, ULong, Uuid
from warren.engine_view.engine_view import EngineView
from warren.engine_view.refs import QueueRef
from warren.queues.delay import DELAY_MAX_MS
from warren.queues.unacked import deliveries_of

from .test_publishing import error_of


def transfers(frames: list[Frame]) -> list[Frame]:
    assert {each.name for each in frames} <= {"transfer"}, frames
    return frames


def bodies(frames: list[Frame]) -> list[bytes]:
    return [sections(each.payload)[0x75] for each in transfers(frames)]


def refused(client: Amqp10Client, handle: int, address: str | None, **given: Any) -> str:
    attach, detach = client.receiver(handle, address, **given)
    assert attach.name == "attach" and attach.field(5) is None and attach.field(9) == 0
    return error_of(detach)


@pytest.fixture
def harness() -> Harness:
    made = Harness()
    made.channel().declare("q", durable=True)
    return made


def fill(harness: Harness, count: int, queue: str = "q", **properties: Any) -> None:
    publisher = harness.channel()
    for number in range(count):
        publisher.publish("", queue, b"%d" % number, **properties)
    harness.settle()


def receiving(harness: Harness, credit: int = 0, **given: Any) -> Amqp10Client:
    client = amqp10_client(harness)
    (attached,) = client.receiver(0, "/queues/q", **given)
    assert attached.name == "attach" and attached.field(2) is False
    if credit:
        client.credit(0, credit)
    return client


def test_nothing_comes_without_credit_and_no_more_than_it_allows(harness: Harness) -> None:
    fill(harness, 5)
    client = receiving(harness)
    found = transfers(client.credit(0, 3))
    assert [each.field(1) for each in found] == [0, 1, 2]
    assert [each.field(4) for each in found] == [False] * 3
    assert len({each.field(2) for each in found}) == 3
    assert harness.queue("q").unacked_count == 3
    assert bodies(client.credit(0, 1, count=3)) == [b"3"]
    # Credit is counted from what the client has seen: one that was on its way is part of it.
    assert bodies(client.credit(0, 2, count=3)) == [b"4"]


def test_credit_that_is_taken_back_ends_deliveries(harness: Harness) -> None:
    client = receiving(harness, credit=10)
    client.credit(0, 0)
    fill(harness, 3)
    assert client.take() == []
    assert len(transfers(client.credit(0, 10))) == 3


def test_accepted_deliveries_are_gone(harness: Harness) -> None:
    fill(harness, 6)
    client = receiving(harness)
    client.credit(0, 10)
    assert client.settle(0, 2, ACCEPTED) == []
    assert harness.queue("q").unacked_count == 3
    client.settle(4, 4, ACCEPTED)
    client.settle(3, 5, ACCEPTED)
    assert harness.queue("q").message_count == 0
    assert client.settle(0, 2**31 - 1, ACCEPTED) == []
    harness.check()


def test_what_a_client_does_not_settle_itself_is_settled_by_the_answer(harness: Harness) -> None:
    fill(harness, 2)
    client = receiving(harness)
    client.credit(0, 10)
    (answer,) = client.settle(0, 1, ACCEPTED, settled=False)
    assert answer.name == "disposition" and answer.fields[:4] == [False, 0, 1, True]
    assert answer.field(4).descriptor == ACCEPTED
    assert harness.queue("q").message_count == 0
    assert client.settle(0, 1, None, settled=False) == []
    assert client.settle(0, 1, RECEIVED, settled=False, fields=[UInt(0), ULong(0)]) == []


def test_released_deliveries_come_back_in_their_place_uncounted(harness: Harness) -> None:
    harness.channel().declare("q2", arguments={"x-queue-type": "quorum"}, durable=True)
    fill(harness, 3, "q2", delivery_mode=2)
    client = amqp10_client(harness)
    client.receiver(0, "/queues/q2")
    client.credit(0, 3)
    client.settle(0, 1, RELEASED)
    found = client.credit(0, 2, count=3)
    assert bodies(found) == [b"0", b"1"]
    assert all(sections(each.payload)[0x70][3] is False for each in found)  # first-acquirer
    assert all(len(sections(each.payload)[0x70]) == 4 for each in found)  # no delivery-count


def test_failed_deliveries_are_counted(harness: Harness) -> None:
    harness.channel().declare("q2", arguments={"x-queue-type": "quorum"}, durable=True)
    fill(harness, 1, "q2", delivery_mode=2)
    client = amqp10_client(harness)
    client.receiver(0, "/queues/q2")
    assert sections(client.credit(0, 1)[0].payload)[0x70][3:] == [True]
    for count in (1, 2):
        client.settle(count - 1, count - 1, MODIFIED, fields=[True, False])
        (found,) = client.credit(0, 1, count=count)
        assert sections(found.payload)[0x70][3:] == [False, count]


def dead_letters(harness: Harness) -> None:
    channel = harness.channel()
    channel.declare("dead")
    channel.declare("dying", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})


@pytest.mark.parametrize(("state", "fields"), [(REJECTED, []), (MODIFIED, [False, True]), (MODIFIED, [True, True])])
def test_what_is_rejected_or_undeliverable_is_a_dead_letter(harness: Harness, state: int, fields: list[Any]) -> None:
    dead_letters(harness)
    fill(harness, 2, "dying")
    client = amqp10_client(harness)
    client.receiver(0, "/queues/dying")
    client.receiver(1, "/queues/dead")
    client.credit(0, 2)
    client.settle(0, 1, state, fields=fields)
    found = client.credit(1, 10)
    assert bodies(found) == [b"0", b"1"]
    annotations = sections(found[0].payload)[0x72]
    (death,) = annotations["x-opt-deaths"].elements
    assert (death["queue"], death["reason"], death["count"]) == ("dying", "rejected", 1)
    assert annotations["x-routing-key"] == "dead" and annotations["x-exchange"] == ""


@pytest.mark.parametrize("discard", [False, True])
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_annotations_of_a_modified_delivery_stay_with_it(harness: Harness, queue_type: str, discard: bool) -> None:
    channel = harness.channel()
    channel.declare("dead")
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"} if discard else {}
    channel.declare("dying", durable=True, arguments={"x-queue-type": queue_type, **dead})
    fill(harness, 1, "dying", delivery_mode=2, headers=encode_table({"own": 1}))
    client = amqp10_client(harness)
    client.receiver(0, "/queues/dying")
    client.receiver(1, "/queues/dead")
    client.credit(0, 1)
    said = {Symbol("x-opt-why"): "busy", Symbol("x-try"): UInt(3), Symbol("no"): 1, Symbol("x-exchange"): "forged"}
    client.settle(0, 0, MODIFIED, fields=[True, discard, said])
    (found,) = client.credit(1 if discard else 0, 1, count=0 if discard else 1)
    shown = sections(found.payload)
    assert (shown[0x72]["x-opt-why"], shown[0x72]["x-try"], shown[0x72]["x-exchange"]) == ("busy", 3, "")
    assert "no" not in shown[0x72] and shown[0x74] == {"own": 1}
    harness.check()


def test_annotations_of_an_outcome_are_few_and_those_of_streams_change_nothing(harness: Harness) -> None:
    fill(harness, 1)
    client = receiving(harness, credit=1)
    client.settle(0, 0, MODIFIED, fields=[False, False, {Symbol("x-a"): "x" * ANNOTATIONS_MAX_BYTES}])
    (found,) = client.credit(0, 1, count=1)
    assert "x-a" not in sections(found.payload)[0x72]
    harness.channel().declare("s", durable=True, arguments={"x-queue-type": "stream"})
    fill(harness, 1, "s")
    offset = Symbol("rabbitmq:stream-offset-spec")
    client.receiver(1, "/queues/s", filter={offset: Described(offset, "first")})
    (found,) = client.credit(1, 1)
    assert client.settle(1, 1, MODIFIED, fields=[False, False, {Symbol("x-a"): 1}]) == []


def test_annotations_that_are_added_over_and_over_come_to_an_end(harness: Harness) -> None:
    fill(harness, 1, delivery_mode=2)
    client = receiving(harness, credit=1)
    for number in range(40):
        client.settle(number, number, MODIFIED, fields=[False, False, {Symbol(f"x-{number}"): "x" * 900}])
        client.credit(0, 1, count=number + 1)
    (message_,) = [
        each.message
        for each in deliveries_of(harness.queue("q"), next(iter(client.peer.channels.values())).ledger.unanswered())
    ]
    assert 15_000 < len(message_.header_payload()) < ANNOTATED_MAX_BYTES + ANNOTATIONS_MAX_BYTES


def test_a_modified_delivery_may_ask_for_a_time(harness: Harness) -> None:
    fill(harness, 1)
    client = receiving(harness)
    client.credit(0, 2)
    due = Timestamp(int(harness.broker.log.now_ms) + 5000)
    client.settle(0, 0, MODIFIED, fields=[False, False, {Symbol("x-opt-delivery-time"): due}])
    assert client.take() == []
    harness.pass_time(6)
    assert bodies(client.take()) == [b"0"]


@pytest.mark.parametrize("due", [Timestamp((1 << 63) - 1), ULong((1 << 64) - 1), Timestamp(1 << 62)])
def test_a_modified_delivery_is_back_in_ten_years_whatever_time_it_asks_for(harness: Harness, due: int) -> None:
    fill(harness, 1)
    client = receiving(harness)
    client.credit(0, 2)
    assert client.settle(0, 0, MODIFIED, fields=[False, False, {Symbol("x-opt-delivery-time"): due}]) == []
    keeper = harness.plain_queue("q").keeper
    assert keeper is not None
    assert keeper.lanes.first_ms() == harness.broker.log.now_ms + DELAY_MAX_MS


@pytest.mark.parametrize("due", [Timestamp(-(1 << 63)), Timestamp(0), Timestamp(-1)])
def test_a_modified_delivery_that_asks_for_a_time_that_has_been_is_back_at_once(harness: Harness, due: int) -> None:
    fill(harness, 1)
    client = receiving(harness)
    client.credit(0, 2)
    found = client.settle(0, 0, MODIFIED, fields=[False, False, {Symbol("x-opt-delivery-time"): due}])
    assert bodies(found) == [b"0"]


def test_a_delivery_settled_without_an_outcome_is_released(harness: Harness) -> None:
    fill(harness, 1)
    client = receiving(harness)
    client.credit(0, 1)
    client.settle(0, 0, None)
    assert harness.queue("q").ready_count == 1


def test_a_state_that_is_no_outcome_ends_the_session(harness: Harness) -> None:
    fill(harness, 1)
    client = receiving(harness)
    client.credit(0, 1)
    (end,) = client.settle(0, 0, 0x33)
    assert end.name == "end" and error_of(end) == "amqp:invalid-field"
    assert harness.queue("q").ready_count == 1


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("size", [200, 3000, (1 << 20) + 1])
def test_a_receiver_gets_no_message_that_is_larger_than_it_takes(harness: Harness, mode: int, size: int) -> None:
    """The session ends, as with RabbitMQ, and all messages are in the queue again, in both settle modes."""
    queue = harness.queue("q")
    publisher = harness.channel()
    publisher.publish("", "q", b"small")
    client = amqp10_client(harness)
    (attached,) = client.receiver(0, "/queues/q", mode=mode, message_max=ULong(size))
    assert attached.field(10) == size
    first = client.credit(0, 10)
    assert bodies(first) == [b"small"] and first[0].field(4) == bool(mode)
    if mode == 0:
        client.settle(0, 0, ACCEPTED)
    exact = size - (len(first[0].payload) - len(b"small")) - (0 if size < 256 else 3)
    publisher.publish("", "q", b"x" * exact)
    arrived = client.take()
    assert b"".join(each.payload for each in arrived)[-exact:] == b"x" * exact
    assert sum(len(each.payload) for each in arrived) == size
    if mode == 0:
        client.settle(1, 1, ACCEPTED)
    assert queue.message_count == 0
    for body in (b"y" * (exact + 1), b"behind"):
        publisher.publish("", "q", body)
    assert client.take() == []
    harness.pass_time(0)
    (end,) = client.take()
    assert (end.name, error_of(end)) == ("end", "amqp:link:message-size-exceeded")
    assert (queue.ready_count, queue.unacked_count) == (2, 0)
    other = amqp10_client(harness)
    other.receiver(0, "/queues/q")
    again = other.credit(0, 2)
    assert b"".join(each.payload for each in again).endswith(b"behind"), "in their old places"


@pytest.mark.parametrize("arguments", [{}, {"x-key-shared": True}, {"x-max-priority": 2}])
def test_a_receiver_with_a_limit_that_settles_at_once_gets_all(arguments: dict[str, object]) -> None:
    """A delivery is settled while it is made."""
    harness = Harness()
    publisher = harness.channel()
    publisher.declare("q", durable=True, arguments=arguments)
    client = amqp10_client(harness)
    client.receiver(0, "/queues/q", mode=1, message_max=ULong(1000))
    client.credit(0, 10)
    for body in (b"1", b"2"):
        publisher.publish("", "q", body, delivery_mode=2)
    assert bodies(client.take()) == [b"1", b"2"]
    queue = harness.queue("q")
    assert (queue.message_count, queue.persistent()) == (0, (0, 0))
    harness.check()


def test_a_limit_goes_with_its_link(harness: Harness) -> None:
    client = amqp10_client(harness)
    for _ in range(3):
        client.receiver(0, "/queues/q", message_max=ULong(100))
        client.send(DETACH, [UInt(0), True])
    session = next(iter(client.peer.channels.values()))
    assert isinstance(session, Amqp10Session) and not session.transfers._limits


def test_settled_deliveries_wait_for_nothing(harness: Harness) -> None:
    fill(harness, 3)
    client = receiving(harness, mode=1)
    found = transfers(client.credit(0, 10))
    assert [each.field(4) for each in found] == [True] * 3
    assert harness.queue("q").message_count == 0


def test_drain_uses_up_the_credit(harness: Harness) -> None:
    fill(harness, 2)
    client = receiving(harness)
    *sent, flow = client.credit(0, 10, drain=True)
    assert len(transfers(sent)) == 2
    assert flow.name == "flow" and flow.fields[4:7] == [0, 10, 0] and flow.field(8) is True
    fill(harness, 1)
    assert client.take() == []
    assert len(transfers(client.credit(0, 1, count=10))) == 1
    (flow,) = client.credit(0, 5, count=11, drain=True)
    assert flow.fields[4:7] == [0, 16, 0]


def test_drain_ends_for_a_consumer_that_is_not_served(harness: Harness) -> None:
    harness.channel().declare("single", arguments={"x-single-active-consumer": True})
    client = amqp10_client(harness)
    client.receiver(0, "/queues/single")
    client.receiver(1, "/queues/single")
    fill(harness, 1, "single")
    assert client.credit(1, 5, drain=True) == []
    harness.pass_time(1)
    (flow,) = client.take()
    assert flow.fields[4:7] == [1, 5, 0]
    assert bodies(client.credit(0, 1)) == [b"0"]


def test_echo_is_answered(harness: Harness) -> None:
    fill(harness, 4)
    client = receiving(harness)
    found = client.credit(0, 3, echo=True)
    assert [each.name for each in found] == ["flow", "transfer", "transfer", "transfer"]
    assert found[0].fields[4:8] == [0, 0, 3, 4]
    (flow,) = client.send(0x13, [UInt(0), UInt(100), UInt(0), UInt(100), None, None, None, None, None, True])
    assert flow.name == "flow" and flow.fields[:2] == [0, 4096] and len(flow.fields) == 4


def test_no_more_transfers_go_out_than_the_window_has(harness: Harness) -> None:
    fill(harness, 10)
    client = amqp10_client(harness)
    client.begin(1, window=4)
    client.receiver(0, "/queues/q", channel=1)
    assert len(transfers(client.credit(0, 10, window=4, channel=1))) == 4
    # As the client had not seen them when it said so, it takes none.
    assert client.send(0x13, [UInt(0), UInt(4), UInt(0), UInt(0)], 1) == []
    assert len(transfers(client.send(0x13, [UInt(4), UInt(4), UInt(0), UInt(0)], 1))) == 4
    assert len(transfers(client.send(0x13, [UInt(8), UInt(4), UInt(0), UInt(0)], 1))) == 2


def test_a_large_message_comes_in_frames_that_the_client_takes(harness: Harness) -> None:
    body = bytes(range(256)) * 2000
    harness.channel().publish("", "q", body)
    harness.channel().publish("", "q", b"small")
    client = amqp10_client(harness, max_frame=512)
    client.receiver(0, "/queues/q")
    frames = client.credit(0, 2, window=100)
    assert len(frames) == 100
    seen = 100
    while len(more := client.send(0x13, [UInt(seen), UInt(700), UInt(0), UInt(0)])) > 0:
        frames += more
        seen += len(more)
    assert all(len(each.payload) + 30 <= 512 for each in frames)
    assert [each.field(5) for each in frames[:-2]] == [True] * (len(frames) - 2)
    assert not frames[-2].field(5) and not frames[-1].field(5)
    assert sections(b"".join(each.payload for each in frames[:-1]))[0x75] == body
    assert sections(frames[-1].payload)[0x75] == b"small"


def test_a_message_of_many_pieces_is_read_where_it_lies(harness: Harness) -> None:
    body = bytes(range(256)) * 8000
    publisher = harness.channel()
    publisher.publish("", "q", body)
    assert harness.queue("q").ready_count == 1
    client = receiving(harness)
    frames = client.credit(0, 1)
    assert len(frames) > 10
    assert sections(b"".join(each.payload for each in frames))[0x75] == body


def test_a_link_that_ends_gives_back_what_was_not_answered(harness: Harness) -> None:
    fill(harness, 5)
    client = receiving(harness)
    client.credit(0, 3)
    client.settle(1, 1, ACCEPTED)
    (detach,) = client.send(0x16, [UInt(0), True])
    assert detach.name == "detach" and detach.fields == [0, True]
    queue = harness.queue("q")
    assert (queue.ready_count, queue.unacked_count, len(queue.consumers)) == (4, 0, 0)
    client.receiver(0, "/queues/q")
    assert bodies(client.credit(0, 10)) == [b"0", b"2", b"3", b"4"]
    harness.check()


def test_a_session_that_ends_gives_back_what_was_not_answered(harness: Harness) -> None:
    fill(harness, 3)
    client = receiving(harness, credit=3)
    (end,) = client.send(0x17, [])
    assert end.name == "end" and end.fields == []
    assert harness.queue("q").ready_count == 3
    client.begin()
    client.receiver(0, "/queues/q")
    assert len(client.credit(0, 3)) == 3
    client.hang_up()
    assert harness.queue("q").ready_count == 3
    harness.check_idle()


@pytest.mark.parametrize(("state", "left"), [(RELEASED, 200), (REJECTED, 0), (ACCEPTED, 0)])
def test_an_outcome_of_many_deliveries_is_completed_when_the_client_leaves(
    harness: Harness, state: int, left: int
) -> None:
    fill(harness, 200)
    client = receiving(harness)
    harness.broker.work.turn_steps = 64
    client.credit(0, 200)
    client.send(DISPOSITION, [True, UInt(0), UInt(199), False, described(state, [])], settle=False)
    assert len(harness.broker.work) == 1, "a part of it is done"
    client.hang_up()
    assert harness.queue("q").message_count == left
    assert len(receiving(harness).credit(0, 200)) == left
    harness.check()


def volatile(client: Amqp10Client, handle: int = 0, **given: Any) -> list[Frame]:
    source: list[Any] = [None, None, Symbol("link-detach"), None, True, None, None, None, None, None]
    source.append(Array(0xA3, [Symbol("rabbitmq:volatile-queue")]))
    fields: list[Any] = [
        f"r{handle}",
        UInt(handle),
        True,
        UByte(given.pop("mode", 1)),
        UByte(0),
        described(0x28, source),
    ]
    return client.send(0x12, [*fields, described(0x29, [])])


def test_direct_reply_to(harness: Harness) -> None:
    client, server = amqp10_client(harness), amqp10_client(harness)
    addresses = []
    for handle in (0, 1):
        (attached,) = volatile(client, handle)
        source = attached.field(5).value
        addresses.append(source[0])
        assert source[4] is True and str(source[10].elements[0]) == "rabbitmq:volatile-queue"
    assert all(each.startswith("/queues/amq.rabbitmq.reply-to.") for each in addresses) and addresses[0] != addresses[1]
    assert list(harness.vhost.queues) == ["q"]
    client.credit(0, 10)
    (attached, *_) = server.sender(0, addresses[0])
    assert attached.name == "attach"
    server.transfer(0, message(b"answer"))
    assert bodies(client.take()) == [b"answer"]
    channel = harness.channel()
    channel.publish("", addresses[0].removeprefix("/queues/"), b"of 0-9-1")
    assert bodies(client.take()) == [b"of 0-9-1"]
    client.send(0x16, [UInt(0), True])
    assert len(harness.vhost.reply_queues) == 1
    server.transfer(0, message(b"late"))
    client.hang_up()
    harness.settle()
    assert not harness.vhost.reply_queues


def test_direct_reply_to_waits_for_no_answer(harness: Harness) -> None:
    attach, detach = volatile(amqp10_client(harness), mode=0)
    assert attach.field(5) is None and error_of(detach) == "amqp:invalid-field"


def test_a_link_is_detached_when_its_queue_is_deleted(harness: Harness) -> None:
    client = receiving(harness, credit=3)
    harness.broker.delete_queue(harness.vhost, harness.queue("q"))
    harness.settle()
    (detach,) = client.take()
    assert error_of(detach) == "amqp:resource-deleted"
    assert client.send(0x16, [UInt(0), True]) == []
    assert refused(client, 0, "/queues/q") == "amqp:not-found"


def test_a_link_is_detached_when_it_does_not_answer_in_time(harness: Harness) -> None:
    harness.channel().declare("slow", durable=True, arguments={"x-consumer-timeout": 5000})
    fill(harness, 2, "slow")
    client = amqp10_client(harness)
    client.receiver(0, "/queues/slow")
    assert bodies(client.credit(0, 2)) == [b"0", b"1"]
    harness.pass_time(5)
    (detach,) = client.take()
    assert error_of(detach) == "amqp:resource-limit-exceeded"
    queue = harness.queue("slow")
    assert (queue.ready_count, queue.unacked_count, len(queue.consumers)) == (2, 0, 0)
    assert client.settle(0, 1, ACCEPTED) == []


def test_a_link_is_detached_when_an_operator_cancels_its_consumer(harness: Harness) -> None:
    client = receiving(harness, credit=3)
    view = EngineView(harness.broker, harness.settle)
    (consumer,) = view.queues.consumers(QueueRef(harness.queue("q")))
    assert view.consumers.cancel(consumer, "enough")
    (detach,) = client.take()
    assert error_of(detach) == "amqp:link:detach-forced"
    assert client.send(0x16, [UInt(0), True]) == []
    assert not harness.queue("q").consumers


def test_a_dynamic_source_is_a_queue_of_the_connection_that_goes_with_its_link(harness: Harness) -> None:
    client = amqp10_client(harness)
    (attached,) = client.receiver(0, None, dynamic=True)
    address = attached.field(5).value[0]
    assert address.startswith("/queues/amq.gen-") and attached.field(5).value[4] is True
    client.sender(1, address)
    client.transfer(1, message(b"reply"))
    assert bodies(client.credit(0, 1)) == [b"reply"]
    other = amqp10_client(harness)
    assert refused(other, 0, address) == "amqp:resource-locked"
    queues = len(harness.vhost.queues)
    client.send(0x16, [UInt(0), True])
    assert len(harness.vhost.queues) == queues - 1
    client.receiver(0, None, dynamic=True)
    client.hang_up()
    assert len(harness.vhost.queues) == queues - 1


@pytest.mark.parametrize(
    ("address", "condition"),
    [
        ("/queues/none", "amqp:not-found"),
        ("/exchanges/amq.topic/k", "amqp:invalid-field"),
        ("/queues/%", "amqp:invalid-field"),
        (None, "amqp:invalid-field"),
        ("/management", "amqp:invalid-field"),
    ],
)
def test_sources_that_are_none_are_refused(harness: Harness, address: str | None, condition: str) -> None:
    client = amqp10_client(harness)
    assert refused(client, 0, address) == condition


def test_the_right_to_read_is_asked_for_and_taken_away(harness: Harness) -> None:
    harness.add_user("reader")
    client = Amqp10Client(harness)
    client.login("reader", "reader")
    client.raw(b"AMQP\0\1\0\0")
    client.send(0x10, ["c", "vhost:/"])
    client.begin()
    client.receiver(0, "/queues/q")
    harness.permit("reader", read="other")
    (detach,) = client.take()
    assert error_of(detach) == "amqp:resource-deleted"
    assert refused(client, 1, "/queues/q") == "amqp:unauthorized-access"


def test_consumers_have_priorities(harness: Harness) -> None:
    client = amqp10_client(harness)
    client.receiver(0, "/queues/q")
    client.receiver(1, "/queues/q", properties={Symbol("rabbitmq:priority"): 5})
    client.credit(0, 10)
    client.credit(1, 2)
    fill(harness, 3)
    assert [each.field(0) for each in transfers(client.take())] == [1, 1, 0]


def test_streams_are_read_from_where_a_filter_says(harness: Harness) -> None:
    harness.channel().declare("s", durable=True, arguments={"x-queue-type": "stream"})
    fill(harness, 10, "s")
    client = amqp10_client(harness)

    def offset(value: object) -> dict[object, object]:
        name = Symbol("rabbitmq:stream-offset-spec")
        return {name: Described(name, value)}

    for handle, (value, first) in enumerate((("first", b"0"), (ULong(4), b"4"), (Timestamp(0), b"0"), ("last", b"9"))):
        unknown = {Symbol("unknown"): Described(ULong(1), "x")}
        (attached,) = client.receiver(handle, "/queues/s", filter={**offset(value), **unknown})
        assert list(attached.field(5).value[7]) == ["rabbitmq:stream-offset-spec"]
        found = client.credit(handle, 1)
        assert bodies(found) == [first]
        assert sections(found[0].payload)[0x72]["x-stream-offset"] == int(first)
    client.receiver(4, "/queues/s", filter=offset("next"))
    assert client.credit(4, 5) == []
    fill(harness, 1, "s")
    assert bodies([each for each in client.take() if each.field(0) == 4]) == [b"0"]
    assert refused(client, 5, "/queues/s", filter=offset("nonsense")) == "amqp:precondition-failed"
    assert refused(client, 6, "/queues/s", filter=offset(1.5)) == "amqp:invalid-field"


def test_credit_on_a_stream_lasts_beyond_its_acknowledgements(harness: Harness) -> None:
    harness.channel().declare("s", durable=True, arguments={"x-queue-type": "stream"})
    fill(harness, 30, "s")
    client = amqp10_client(harness)
    name = Symbol("rabbitmq:stream-offset-spec")
    client.receiver(0, "/queues/s", filter={name: Described(name, "first")})
    seen = 0
    for _ in range(3):
        found = client.credit(0, 10, count=seen)
        assert len(transfers(found)) == 10
        client.settle(seen, seen + 9, ACCEPTED)
        seen += 10


def test_properties_of_0_9_1_become_sections(harness: Harness) -> None:
    headers = {
        "text": "t",
        "number": 5,
        "big": 1 << 40,
        "flag": True,
        "ratio": 0.5,
        "raw": b"\0",
        "none": None,
        "when": Seconds(1000),
        "list": [1],
        "table": {},
        "x-own": [1, {"a": "b"}],
        "CC": ["other"],
    }
    harness.channel().publish(
        "",
        "q",
        b"body",
        headers=encode_table(headers),
        content_type="text/plain",
        content_encoding="gzip",
        delivery_mode=2,
        priority=3,
        correlation_id="urn:uuid:00010203-0405-0607-0809-0a0b0c0d0e0f",
        reply_to="a b",
        expiration="60000",
        message_id="m",
        timestamp=1_700_000_000,
        type="kind",
        user_id="guest",
        app_id="app",
    )
    client = receiving(harness)
    (found,) = client.credit(0, 1)
    parts = sections(found.payload)
    assert parts[0x70] == [True, 3, 60000, True]
    assert parts[0x72] == {
        "x-exchange": "",
        "x-routing-key": "q",
        "x-own": [1, {"a": "b"}],
        "x-cc": ["other"],
        "x-basic-type": "kind",
    }
    assert parts[0x73] == [
        "m",
        b"guest",
        None,
        None,
        "/queues/a%20b",
        Uuid(bytes(range(16))),
        "text/plain",
        "gzip",
        None,
        1_700_000_000_000,
        "app",
    ]
    assert parts[0x74] == {
        "text": "t",
        "number": 5,
        "big": 1 << 40,
        "flag": True,
        "ratio": 0.5,
        "raw": b"\0",
        "none": None,
        "when": 1_000_000,
    }
    assert parts[0x75] == b"body"


def test_what_is_sent_comes_back_as_it_was(harness: Harness) -> None:
    sent = [
        section(0x70, [True, None, None]),
        section(0x72, {Symbol("x-own"): "annotation"}),
        section(
            0x73,
            [
                "id",
                b"guest",
                "/queues/q",
                "subject",
                "/queues/back",
                Uuid(bytes(16)),
                Symbol("a/b"),
                Symbol("c"),
                Timestamp(1),
                Timestamp(1_700_000_000_123),
                "group",
                UInt(1),
                "reply group",
            ],
        ),
        section(0x74, {"text": "t", "flag": False, "number": -5, "raw": b"\xff"}),
    ]
    client = amqp10_client(harness)
    client.sender(1, "/queues/q")
    client.receiver(0, "/queues/q")
    for body in (section(0x75, b"\x00\x01"), section(0x77, {"a": [1, Symbol("b")]}), section(0x76, [1]) * 2):
        client.transfer(1, b"".join(sent) + body)
        count = int(client.next_id) - 1
        (found,) = client.credit(0, 1, count=count)
        parts = sections(found.payload)
        original = sections(b"".join(sent))
        assert parts[0x70][0] is True
        assert parts[0x73] == original[0x73] and parts[0x74] == original[0x74]
        assert parts[0x72] == {"x-own": "annotation", "x-exchange": "", "x-routing-key": "q"}
        assert found.payload.endswith(body)


def test_a_body_that_only_says_that_it_is_encoded_is_data(harness: Harness) -> None:
    harness.channel().publish("", "q", b"no sections", type="amqp-1.0")
    client = receiving(harness)
    assert bodies(client.credit(0, 1)) == [b"no sections"]


def test_a_time_to_live_is_what_is_left_of_it(harness: Harness) -> None:
    harness.channel().publish("", "q", b"x", expiration="10000")
    harness.pass_time(4)
    client = receiving(harness)
    (found,) = client.credit(0, 1)
    assert 5000 <= sections(found.payload)[0x70][2] <= 6000


def test_a_client_that_does_not_read_is_not_sent_for_ever(harness: Harness) -> None:
    publisher = harness.channel()
    for _ in range(100):
        publisher.publish("", "q", b"x" * 50_000)
    client = receiving(harness)
    client.stall(stalled=True)
    client.credit(0, 1000)
    limit = harness.broker.limits.outbox_soft_bytes
    assert client.peer.outbox.waiting_bytes() < limit + 200_000
    assert harness.queue("q").ready_count > 50
    client.stall(stalled=False)
    assert harness.queue("q").ready_count == 0


def test_a_drain_goes_on_when_the_client_reads_again(harness: Harness) -> None:
    publisher = harness.channel()
    for _ in range(100):
        publisher.publish("", "q", b"x" * 50_000)
    client = receiving(harness)
    client.stall(stalled=True)
    client.credit(0, 1000, drain=True)
    assert 50 < harness.queue("q").ready_count < 100
    client.stall(stalled=False)
    assert harness.queue("q").ready_count == 0
    harness.pass_time(1)  # others have had their turn on the connection meanwhile
    flow = client.take()[-1]
    assert flow.name == "flow" and flow.fields[4:7] == [0, 1000, 0]


def test_each_of_two_clients_gets_its_share(harness: Harness) -> None:
    clients = [receiving(harness, credit=100) for _ in range(2)]
    fill(harness, 100)
    assert [len(client.take()) for client in clients] == [50, 50]
