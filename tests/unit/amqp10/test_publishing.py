"""Input of a client: addresses, outcomes, credit, windows, deliveries in several transfers, conversion to 0-9-1."""

from __future__ import annotations

from typing import Any

import pytest
from amqp10_harness import DETACH, Amqp10Client, Frame, amqp10_client, message, section
from engine_harness import Harness

from warren.amqp.field_table import decode_table
from warren.amqp10.links import CREDIT_STEP, HEAD_BYTES, LINK_CREDIT
from warren.amqp10.performatives import ACCEPTED, COORDINATOR, MODIFIED, REJECTED, RELEASED, described
from warren.amqp10.session import WINDOW
from warren.amqp10.values import Array, Described, Symbol, Timestamp, UByte, UInt, ULong, Uuid


def error_of(frame: Frame) -> str:
    """Return the condition that a detach, end or close tells."""
    for value in frame.fields:
        if isinstance(value, Described):
            fields: Any = value.value
            return str(fields[0])
    raise AssertionError(f"no error: {frame}")


def outcomes(frames: list[Frame]) -> list[tuple[int, int, int]]:
    """Return first, last and state of dispositions."""
    found = []
    for each in frames:
        assert each.name == "disposition" and each.field(0) is True and each.field(3) is True, each
        found.append((each.field(1), each.field(2), each.field(4).descriptor))
    return found


def refused(client: Amqp10Client, handle: int, address: str | None, **given: Any) -> str:
    """Attach a sender that is refused; return the condition."""
    attach, detach = client.sender(handle, address, **given)
    assert attach.name == "attach" and attach.field(6) is None
    assert detach.name == "detach" and detach.field(1) is True
    return error_of(detach)


@pytest.fixture
def harness() -> Harness:
    made = Harness()
    queue = made.channel()
    queue.declare("q", durable=True)
    return made


def test_a_message_to_a_queue_is_accepted_when_it_is_on_disk(harness: Harness) -> None:
    client = amqp10_client(harness)
    attach, flow = client.sender(0, "/queues/q")
    assert attach.field(2) is True and flow.fields[4:7] == [0, 0, LINK_CREDIT]
    harness.hold_commits = True
    assert client.transfer(0, message(b"one", durable=True)) == []
    assert client.transfer(0, message(b"two", durable=True)) == []
    harness.hold_commits = False
    harness.settle()
    assert outcomes(client.take()) == [(0, 0, ACCEPTED), (1, 1, ACCEPTED)]
    assert harness.queue("q").ready_count == 2


def test_a_range_of_accepted_deliveries_is_told_at_once(harness: Harness) -> None:
    client = amqp10_client(harness)
    client.sender(0, "/queues/q")
    sent = b"".join(client.transfer_frame(0, message(b"x")) for _ in range(100))
    assert outcomes(client.feed(sent)) == [(0, 99, ACCEPTED)]


def test_delivery_ids_wrap(harness: Harness) -> None:
    client = Amqp10Client(harness)
    client.open()
    client.next_id = 2**32 - 2
    client.begin()
    client.sender(0, "/queues/q")
    sent = b"".join(
        client.transfer_frame(0, message(b"x"), delivery_id=number % 2**32) for number in range(2**32 - 2, 2**32 + 2)
    )
    assert outcomes(client.feed(sent)) == [(2**32 - 2, 1, ACCEPTED)]


def test_what_goes_to_no_queue_is_released(harness: Harness) -> None:
    client = amqp10_client(harness)
    client.sender(0, "/exchanges/amq.direct/nobody")
    client.sender(1, "/queues/q")
    sent = [client.transfer_frame(handle, message(b"x")) for handle in (1, 0, 1)]
    found = sorted(outcomes(client.feed(b"".join(sent))))
    assert found == [(0, 0, ACCEPTED), (1, 1, RELEASED), (2, 2, ACCEPTED)]


def test_a_link_whose_queue_was_deleted_is_detached_when_it_sends_again(harness: Harness) -> None:
    client = amqp10_client(harness)
    client.sender(0, "/queues/q")
    assert outcomes(client.transfer(0, message(b"x"))) == [(0, 0, ACCEPTED)]
    harness.broker.delete_queue(harness.vhost, harness.queue("q"))
    sent = b"".join(client.transfer_frame(0, message(b"x")) for _ in range(2))
    released, detach = client.feed(sent)
    assert outcomes([released]) == [(1, 1, RELEASED)] and error_of(detach) == "amqp:resource-deleted"
    assert client.send(0x16, [UInt(0), True]) == []
    assert refused(client, 0, "/queues/q") == "amqp:not-found"


def test_a_link_whose_queue_was_declared_again_sends_to_the_new_one(harness: Harness) -> None:
    client = amqp10_client(harness)
    client.sender(0, "/queues/q")
    harness.broker.delete_queue(harness.vhost, harness.queue("q"))
    harness.channel().declare("q")
    assert outcomes(client.transfer(0, message(b"x"))) == [(0, 0, ACCEPTED)]


def test_what_a_full_queue_refuses_is_rejected_with_the_reason(harness: Harness) -> None:
    harness.channel().declare("small", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    client = amqp10_client(harness)
    client.sender(0, "/queues/small")
    sent = b"".join(client.transfer_frame(0, message(b"x")) for _ in range(3))
    found = client.feed(sent)
    assert sorted(outcomes(found)) == [(0, 0, ACCEPTED), (1, 1, REJECTED), (2, 2, REJECTED)]
    rejected = next(each for each in found if each.field(1) == 1)
    (error,) = rejected.field(4).value
    assert error.value[0] == "amqp:resource-limit-exceeded" and error.value[2] == {"reason": "maxlen"}


def test_settled_deliveries_are_not_answered(harness: Harness) -> None:
    client = amqp10_client(harness)
    client.sender(0, "/queues/q", mode=1)
    assert client.transfer(0, message(b"x"), settled=True) == []
    assert client.transfer(0, message(b"x"), settled=True) == []
    assert harness.queue("q").ready_count == 2
    client.sender(1, "/exchanges/amq.direct/nobody", mode=1)
    assert client.transfer(1, message(b"x"), settled=True) == []


def test_credit_is_topped_up_as_it_is_used(harness: Harness) -> None:
    client = amqp10_client(harness)
    client.sender(0, "/queues/q")
    sent = 0
    flows = 0
    while sent < 5 * LINK_CREDIT:
        found = client.feed(b"".join(client.transfer_frame(0, message(b"x")) for _ in range(256)))
        sent += 256
        flows += sum(each.name == "flow" and each.field(4) == 0 for each in found)
        assert not any(each.name in ("detach", "end") for each in found)
    assert 5 <= flows <= 40
    assert harness.queue("q").ready_count == sent


def test_whoever_sends_without_credit_is_detached(harness: Harness) -> None:
    client = amqp10_client(harness)
    client.sender(0, "/queues/q")
    harness.hold_commits = True  # nothing is confirmed, so credit is not given again
    frames = [client.transfer_frame(0, message(b"x", durable=True)) for _ in range(LINK_CREDIT)]
    assert {each.name for each in client.feed(b"".join(frames))} == {"flow"}  # of the session
    (detach,) = client.transfer(0, message(b"x"))
    assert error_of(detach) == "amqp:link:transfer-limit-exceeded"
    harness.hold_commits = False
    harness.settle()
    assert outcomes([each for each in client.take() if each.name != "flow"]) == [(0, LINK_CREDIT - 1, ACCEPTED)]
    assert client.send(0x16, [UInt(0), True]) == []
    assert client.sender(0, "/queues/q")[0].name == "attach"


def test_more_transfers_than_the_window_has_end_the_session(harness: Harness) -> None:
    client = amqp10_client(harness)
    client.sender(0, "/queues/q")
    part = client.transfer_frame(0, b"", more=True, delivery_id=0)
    found = client.feed(part * (WINDOW // 2 - 1))
    assert found == []
    assert [each.name for each in client.feed(part * 10)] == ["flow"]
    found = client.feed(part * (WINDOW + 1))
    assert not any(each.name == "end" for each in found)  # it was widened meanwhile


def test_a_link_that_has_failed_does_not_use_up_the_window(harness: Harness) -> None:
    client = amqp10_client(harness)
    client.sender(0, "/queues/q")
    assert client.transfer(0, b"malformed")[0].name == "detach"
    late = client.transfer_frame(0, b"", more=True, delivery_id=1)
    assert [each.name for each in client.feed(late * (WINDOW // 2))] == ["flow"]


def test_a_detached_link_gets_no_credit(harness: Harness) -> None:
    client = amqp10_client(harness)
    client.sender(0, "/queues/q")
    harness.hold_commits = True
    client.feed(b"".join([client.transfer_frame(0, message(durable=True)) for _ in range(CREDIT_STEP)]))
    assert [each.name for each in client.send(DETACH, [UInt(0), True])] == ["detach"]
    harness.hold_commits = False
    harness.settle()
    assert outcomes(client.take()) == [(0, CREDIT_STEP - 1, ACCEPTED)]


def test_a_delivery_may_come_in_many_transfers(harness: Harness) -> None:
    client = amqp10_client(harness)
    client.sender(0, "/queues/q")
    client.sender(1, "/queues/q")
    body = bytes(range(256)) * 40
    whole = message(body)
    pieces = [whole[at : at + 100] for at in range(0, len(whole), 100)]
    for at, piece in enumerate(pieces):
        found = client.transfer(0, piece, more=at < len(pieces) - 1, delivery_id=7)
        if at == 3:  # of another link, between them
            assert outcomes(client.transfer(1, message(b"y"), delivery_id=8)) == [(8, 8, ACCEPTED)]
            assert harness.broker.shared.inbound.held_bytes > 0
    assert outcomes(found) == [(7, 7, ACCEPTED)]
    assert harness.broker.shared.inbound.held_bytes == 0
    reader = harness.channel()
    got = [reader.get("q", no_ack=True) for _ in range(2)]
    assert [each.content.body for each in got if each is not None and each.content is not None] == [b"y", body]


def test_a_message_has_at_most_the_size_that_is_announced(harness: Harness) -> None:
    harness = Harness(message_max_bytes=1000)
    harness.channel().declare("q")
    client = amqp10_client(harness)
    attach = client.sender(0, "/queues/q")[0]
    assert attach.field(10) == 1000
    assert outcomes(client.transfer(0, message(b"x" * 1000))) == [(0, 0, ACCEPTED)]
    (detach,) = client.transfer(0, message(b"x" * 1001))
    assert error_of(detach) == "amqp:link:message-size-exceeded"
    client.sender(1, "/queues/q")
    for _ in range(10):
        found = client.transfer(1, b"\x00\x53\x75\xb0\x00\x10\x00\x00" + b"x" * 50_000, more=True, delivery_id=9)
        if found:
            break
    assert error_of(found[0]) == "amqp:link:message-size-exceeded"
    assert harness.broker.shared.inbound.held_bytes == 0


def largest_parts(beyond: int) -> dict[str, bytes]:
    """Return messages with as much beside their content as may be there, and `beyond` more of it."""
    around = len(section(0x74, {"k": "v" * 1000})) - 1000  # a map of one value, application properties or a footer
    properties = section(0x74, {"k": "v" * (HEAD_BYTES + beyond - around)})
    return {
        "properties": properties + section(0x75, b"x"),
        "properties without a body": properties,
        "delivery annotations": section(0x71, {"k": "v" * (HEAD_BYTES + beyond - around)}) + section(0x75, b"x"),
        "data sections": section(0x75, b"") * (HEAD_BYTES // 3 + beyond),
        "values": section(0x77, UInt(0)) * (HEAD_BYTES // 3 + beyond),
        "footer": section(0x75, b"x") + section(0x78, {"k": "v" * (HEAD_BYTES + beyond - around - 3)}),
    }


@pytest.mark.parametrize("part", largest_parts(0))
def test_what_is_beside_the_content_has_a_bound_of_its_own(harness: Harness, part: str) -> None:
    client = amqp10_client(harness)
    client.sender(0, "/queues/q")

    def send(delivery_id: int, whole: bytes) -> list[Frame]:
        pieces = [whole[at : at + 100_000] for at in range(0, len(whole), 100_000)]
        for piece in pieces[:-1]:
            assert client.transfer(0, piece, more=True, delivery_id=delivery_id) == []
        return client.transfer(0, pieces[-1], delivery_id=delivery_id)

    assert outcomes(send(0, largest_parts(0)[part])) == [(0, 0, ACCEPTED)]
    (detach,) = send(1, largest_parts(1)[part])
    assert error_of(detach) == "amqp:link:message-size-exceeded"
    assert harness.queue("q").ready_count == 1


def test_addresses_name_exchanges_and_routing_keys_percent_encoded(harness: Harness) -> None:
    amqp = harness.channel()
    amqp.declare("\u00e4 queue/%", durable=True)
    amqp.declare_exchange("ex/1", "topic")
    amqp.bind("\u00e4 queue/%", "ex/1", "a.b/c")
    amqp.bind("\u00e4 queue/%", "ex/1", "")
    client = amqp10_client(harness)
    for handle, address in enumerate(
        ("/queues/%C3%A4%20queue%2f%25", "/exchanges/ex%2F1/a.b%2Fc", "/exchanges/ex%2F1", "/exchanges/ex%2F1/")
    ):
        client.sender(handle, address)
        assert outcomes(client.transfer(handle, message(b"x")))[0][2] == ACCEPTED, address
    assert harness.queue("\u00e4 queue/%").ready_count == 4


@pytest.mark.parametrize(
    ("address", "condition"),
    [
        ("/exchanges/none/k", "amqp:not-found"),
        ("/queues/none", "amqp:not-found"),
        ("/queues/", "amqp:invalid-field"),
        ("/queues/a/b", "amqp:invalid-field"),
        ("/exchanges//k", "amqp:invalid-field"),
        ("/exchanges/amq.direct/a/b", "amqp:invalid-field"),
        ("/queues/%", "amqp:invalid-field"),
        ("/queues/%zz", "amqp:invalid-field"),
        ("/queues/%FF", "amqp:invalid-field"),
        ("/queues/" + "x" * 256, "amqp:invalid-field"),
        ("/topic/x", "amqp:invalid-field"),
        ("q", "amqp:invalid-field"),
        ("", "amqp:invalid-field"),
        ("/management", "amqp:invalid-field"),
    ],
)
def test_addresses_that_are_none_are_refused(harness: Harness, address: str, condition: str) -> None:
    client = amqp10_client(harness)
    assert refused(client, 0, address) == condition
    assert client.send(0x16, [UInt(0), True]) == []
    assert client.sender(0, "/queues/q")[1].name == "flow"


def test_transactions_and_dynamic_targets_are_not_there(harness: Harness) -> None:
    client = amqp10_client(harness)
    for handle, target in enumerate((described(COORDINATOR, []), described(0x29, [None, None, None, None, True]))):
        fields = ["n", UInt(handle), False, None, None, described(0x28, []), target, None, None, UInt(0)]
        attach, detach = client.send(0x12, fields)
        assert attach.name == "attach" and error_of(detach) == "amqp:not-implemented"


def test_a_link_without_a_target_sends_to_where_each_message_says(harness: Harness) -> None:
    client = amqp10_client(harness)
    client.sender(0, None)

    def to(address: str | None) -> bytes:
        return message(b"x", before=section(0x73, [None, None, address]))

    assert outcomes(client.transfer(0, to("/queues/q"))) == [(0, 0, ACCEPTED)]
    for address, condition in (
        ("/queues/none", None),
        ("/exchanges/none/k", "amqp:not-found"),
        ("nonsense", "amqp:invalid-field"),
        (None, "amqp:invalid-field"),
    ):
        (frame,) = client.transfer(0, to(address))
        state = frame.field(4)
        assert state.descriptor == (RELEASED if condition is None else REJECTED)
        if condition is not None:
            assert state.value[0].value[0] == condition
    assert outcomes(client.transfer(0, to("/queues/q"))) == [(5, 5, ACCEPTED)]
    (detach,) = client.transfer(0, to(None), settled=True)
    assert error_of(detach) == "amqp:invalid-field"


def test_the_right_to_write_is_asked_for(harness: Harness) -> None:
    harness.add_user("reader")
    harness.permit("reader", write="none")
    client = Amqp10Client(harness)
    client.login("reader", "reader")
    client.raw(b"AMQP\0\1\0\0")
    client.send(0x10, ["c", "vhost:/"])
    client.begin()
    assert refused(client, 0, "/queues/q") == "amqp:unauthorized-access"
    assert refused(client, 1, "/exchanges/amq.topic/k") == "amqp:unauthorized-access"


def test_malformed_messages_cost_their_link_only(harness: Harness) -> None:
    client = amqp10_client(harness)
    for handle, payload in enumerate(
        (
            b"x",
            b"\x00\x53\x60\x45",
            section(0x75, b"x") + section(0x73, []),
            section(0x75, "no binary"),
            b"\x00\x53\x74\xc1\x01\x00" + section(0x10, []),
            section(0x74, {"key": ["no simple value"]}) + section(0x75, b""),
            section(0x73, [None, b"x" * 300]) + section(0x75, b""),
            section(0x73, [None, None, 5]) + section(0x75, b""),
            section(0x72, ["no map"]) + section(0x75, b""),
            section(0x74, {}) * 2 + section(0x75, b""),
        )
    ):
        client.sender(handle, "/queues/q")
        frames = client.transfer(handle, payload)
        assert [each.name for each in frames] == ["detach"], payload
    client.sender(100, "/queues/q")
    assert outcomes(client.transfer(100, message(b"x")))[0][2] == ACCEPTED


def converted(harness: Harness, payload: bytes) -> Any:
    """Return what a client of 0-9-1 gets of a message."""
    client = amqp10_client(harness)
    client.sender(0, "/queues/q")
    assert outcomes(client.transfer(0, payload))[0][2] == ACCEPTED
    reader = harness.channel()
    got = reader.get("q", no_ack=True)
    assert got is not None
    return got.content


def test_properties_become_those_of_0_9_1(harness: Harness) -> None:
    fields = [
        "m-1",
        b"guest",
        "/queues/q",
        "subject",
        "/queues/a%20b",
        "c-1",
        Symbol("text/plain"),
        Symbol("gzip"),
        Timestamp(5000),
        Timestamp(1_700_000_000_123),
        "group",
        UInt(7),
        "reply group",
    ]
    content = converted(
        harness,
        section(0x70, [True, UByte(9), UInt(60000)])
        + section(0x72, {Symbol("x-own"): "a", Symbol("other"): "b", Symbol("x-basic-type"): "t"})
        + section(0x73, fields)
        + section(
            0x74, {"s": "text", "i": UInt(5), "b": True, "f": 1.5, "raw": b"\0", "n": None, "big": ULong(2**64 - 1)}
        )
        + section(0x75, b"one ")
        + section(0x75, b"two"),
    )
    found = content.properties
    assert content.body == b"one two"
    assert (found.delivery_mode, found.priority, found.expiration) == (2, 9, "60000")
    assert (found.message_id, found.user_id, found.reply_to, found.correlation_id) == ("m-1", "guest", "a b", "c-1")
    assert (found.content_type, found.content_encoding, found.timestamp) == ("text/plain", "gzip", 1_700_000_000)
    assert (found.app_id, found.type) == ("group", "t")
    headers = decode_table(found.headers)
    assert {name: value for name, value in headers.items() if not name.startswith("x-")} == {
        "s": "text",
        "i": 5,
        "b": True,
        "f": 1.5,
        "raw": b"\0",
        "n": None,
        "big": str(2**64 - 1),
    }
    assert headers["x-own"] == "a" and headers["x-amqp10-subject"] == "subject"


def test_message_ids_of_other_types_are_kept(harness: Harness) -> None:
    for identifier, text in (
        (Uuid(bytes(range(16))), "urn:uuid:00010203-0405-0607-0809-0a0b0c0d0e0f"),
        (ULong(12), "12"),
    ):
        found = converted(harness, section(0x73, [identifier]) + section(0x75, b"")).properties
        assert found.message_id == text
    found = converted(
        harness, section(0x73, [b"\xff\x00", None, None, None, None, "x" * 400]) + section(0x75, b"")
    ).properties
    headers = decode_table(found.headers)
    assert found.message_id is None and headers["x-message-id"] == b"\xff\x00"
    assert headers["x-correlation-id"] == "x" * 400


def test_other_bodies_are_kept_as_they_are_encoded(harness: Harness) -> None:
    for sections in (section(0x77, "text"), section(0x76, [1, 2]) + section(0x76, [3]), section(0x77, {"a": 1})):
        content = converted(harness, section(0x70, [True]) + sections + section(0x78, {Symbol("f"): 1}))
        assert content.body == sections
        assert content.properties.type == "amqp-1.0"


def test_a_message_without_a_body_has_an_empty_one(harness: Harness) -> None:
    for payload in (b"", section(0x70, []), section(0x73, ["id"])):
        assert converted(harness, payload).body == b""


def test_copies_go_to_other_keys(harness: Harness) -> None:
    harness.channel().declare("copy")
    copies = section(0x72, {Symbol("x-cc"): ["copy"]})
    converted(harness, copies + section(0x75, b"x"))
    assert harness.queue("copy").ready_count == 1
    converted(harness, section(0x72, {Symbol("x-cc"): Array(0xA1, ["copy"])}) + section(0x75, b"x"))
    assert harness.queue("copy").ready_count == 2


def test_the_user_id_has_to_be_ones_own(harness: Harness) -> None:
    client = amqp10_client(harness)
    client.sender(0, "/queues/q")
    (detach,) = client.transfer(0, section(0x73, [None, b"somebody"]) + section(0x75, b""))
    assert error_of(detach) == "amqp:precondition-failed"


def test_publishers_wait_while_memory_is_short_and_lose_nothing(harness: Harness) -> None:
    client = amqp10_client(harness)
    client.sender(0, "/queues/q")
    harness.broker.set_alarm("memory", True)
    assert client.transfer(0, message(b"x")) == []
    assert harness.queue("q").ready_count == 0
    harness.broker.set_alarm("memory", False)
    harness.settle()
    assert outcomes(client.take()) == [(0, 0, ACCEPTED)]


def test_aborted_and_resumed_transfers_are_not_there(harness: Harness) -> None:
    client = amqp10_client(harness)
    for handle, flags in enumerate(([True, None], [None, True])):
        client.sender(handle, "/queues/q")
        fields = [UInt(handle), UInt(handle), b"t", None, None, None, None, None, *flags]
        (detach,) = client.send(0x14, fields)
        assert error_of(detach) == "amqp:not-implemented"


def test_a_state_that_a_sender_gives_is_passed_over(harness: Harness) -> None:
    client = amqp10_client(harness)
    client.sender(0, "/queues/q")
    client.transfer(0, message(b"x"))
    assert client.send(0x15, [False, UInt(0), UInt(0), True, described(MODIFIED, [])]) == []


@pytest.mark.parametrize("size", [0, 4, 32])
def test_a_delivery_tag_may_be_encoded_with_a_long_length(harness: Harness, size: int) -> None:
    """vbin32 is as legal as vbin8, whatever the length."""
    client = amqp10_client(harness)
    client.sender(0, "/queues/q")
    sent = client.transfer_frame(0, message(b"x"))
    short, long = b"\xa0\x04" + bytes(4), b"\xb0" + size.to_bytes(4, "big") + bytes(size)
    at = sent.index(b"\xc0") + 1  # the size of the list of fields, in one byte
    data = sent[4:at] + bytes([sent[at] + len(long) - len(short)]) + sent[at + 1 :].replace(short, long, 1)
    assert outcomes(client.feed((len(data) + 4).to_bytes(4, "big") + data)) == [(0, 0, ACCEPTED)]
    assert harness.queue("q").message_count == 1
