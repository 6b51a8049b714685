"""Faults that fuzzing has found, each as the shortest dialogue that shows it: absurd fields, and frames too large."""

from __future__ import annotations

from decimal import Decimal as Number
from typing import Any

import pytest
from amqp10_harness import Amqp10Client, amqp10_client, section, sections
from engine_harness import Harness

from warren.amqp.field_table import Timestamp as Seconds
from warren.amqp.field_table import encode_table
from warren.amqp10.performatives import ACCEPTED, ATTACH, MODIFIED, SOURCE, TARGET, described, error_value, frame
from warren.amqp10.values import Decimal, Described, Symbol, UByte, UInt, ULong

from .test_publishing import error_of, outcomes

FRAME_BYTES = 512  # that a client takes at least
HUGE = (1 << 64) - 1


@pytest.fixture
def harness() -> Harness:
    made = Harness()
    made.channel().declare("q")
    return made


def received(harness: Harness) -> dict[int, Any]:
    """Return the sections of the only message in the queue, as a client of 1.0 is sent them."""
    client = amqp10_client(harness)
    client.receiver(0, "/queues/q", mode=1)
    (transfer,) = client.credit(0, 10)
    return sections(transfer.payload)


@pytest.mark.parametrize("at", [8, 11], ids=["absolute-expiry-time", "group-sequence"])
def test_a_time_or_sequence_larger_than_there_can_be_is_passed_on(harness: Harness, at: int) -> None:
    client = amqp10_client(harness)
    client.sender(0, "/queues/q")
    fields: list[Any] = [None] * at + [ULong(HUGE)]
    assert outcomes(client.transfer(0, section(0x73, fields) + section(0x75, b"x"))) == [(0, 0, ACCEPTED)]
    assert received(harness)[0x73] == fields


@pytest.mark.parametrize("copies", [Decimal(bytes(4)), Described(ULong(1), "k"), [Decimal(bytes(4))]])
def test_copies_that_are_no_texts_are_not_kept(harness: Harness, copies: Any) -> None:
    client = amqp10_client(harness)
    client.sender(0, "/queues/q")
    found = client.transfer(0, section(0x72, {Symbol("x-cc"): copies}) + section(0x75, b"x"))
    assert outcomes(found) == [(0, 0, ACCEPTED)]
    assert received(harness)[0x75] == b"x"


@pytest.mark.parametrize(
    "headers",
    [
        {"x-amqp10-expiry": Seconds(HUGE)},
        {"x-creation-time-ms": Seconds(HUGE)},
        {"x-amqp10-group-sequence": Seconds(HUGE)},
        {"x-death": [{"time": Seconds(HUGE), "reason": None, "count": -1}]},
        {"x-death": [{"time": (1 << 63) - 1, "queue": Number("0.1"), "exchange": Seconds(HUGE)}]},
        {"x-death": [{"time": -1, "queue": [Number(1)], "exchange": {"n": Seconds(HUGE)}}]},
    ],
    ids=["expiry", "creation", "sequence", "time of death", "where it died", "what it died of"],
)
def test_headers_of_0_9_1_that_look_like_ours_may_be_anything(harness: Harness, headers: dict[str, Any]) -> None:
    harness.channel().publish("", "q", b"x", headers=encode_table(headers))
    assert received(harness)[0x75] == b"x"


def test_a_footer_that_0_9_1_made_up_is_one_or_none(harness: Harness) -> None:
    footer = section(0x78, {Symbol("checksum"): b"1"})
    for made_up in (footer * 2, footer[:-1], footer + b"\x40", section(0x77, None)):
        harness.channel().publish("", "q", b"x", headers=encode_table({"x-amqp10-footer": made_up}))
    harness.channel().publish("", "q", b"x", headers=encode_table({"x-amqp10-footer": footer}))
    client = amqp10_client(harness)
    client.receiver(0, "/queues/q", mode=1)
    ends = [each.payload.partition(section(0x75, b"x"))[2] for each in client.credit(0, 10)]
    assert ends == [b"", b"", b"", b"", footer]


@pytest.mark.parametrize("mode", [UByte(3), UByte(255), ULong(HUGE)])
@pytest.mark.parametrize("role", [False, True])
def test_a_settle_mode_that_there_is_not_is_refused(harness: Harness, mode: int, role: bool) -> None:
    client = amqp10_client(harness)
    source, target = described(SOURCE, ["/queues/q"]), described(TARGET, ["/queues/q"])
    attach, detach = client.send(ATTACH, ["link", UInt(0), role, mode, None, source, target])
    assert attach.name == "attach" and error_of(detach) == "amqp:invalid-field"
    assert not harness.queue("q").consumers


@pytest.mark.parametrize("settled", [False, True])
def test_an_answer_whose_range_runs_backwards_ends_the_session_and_answers_nothing(
    harness: Harness, settled: bool
) -> None:
    for _ in range(3):
        harness.channel().publish("", "q", b"x")
    client = amqp10_client(harness)
    client.receiver(0, "/queues/q")
    assert len(client.credit(0, 3)) == 3
    (end,) = client.settle(2, 1, ACCEPTED, settled=settled)
    assert end.name == "end" and error_of(end) == "amqp:invalid-field"
    assert harness.queue("q").ready_count == 3


def small(harness: Harness) -> Amqp10Client:
    """Return a client that takes no larger frames than everybody has to."""
    return amqp10_client(harness, max_frame=FRAME_BYTES)


@pytest.mark.parametrize("role", [False, True])
def test_an_attach_whose_answer_is_larger_than_the_client_takes_ends_the_session(harness: Harness, role: bool) -> None:
    client = small(harness)
    source, target = described(SOURCE, ["/queues/q"]), described(TARGET, ["/queues/q"])
    if role:
        target = described(TARGET, ["x" * FRAME_BYTES])
    else:
        source = described(SOURCE, ["x" * FRAME_BYTES])
    (end,) = client.send(ATTACH, ["link", UInt(0), role, None, None, source, target])
    assert end.name == "end" and error_of(end) == "amqp:resource-limit-exceeded"
    assert not harness.queue("q").consumers
    assert client.send(0x17, []) == []
    client.begin()
    assert [each.name for each in client.receiver(0, "/queues/q")] == ["attach"]


def test_a_link_that_is_refused_is_named_in_a_frame_that_the_client_takes(harness: Harness) -> None:
    (end,) = small(harness).sender(0, "/queues/q", has_target=False, name="n" * 600)
    assert end.name == "end" and error_of(end) == "amqp:resource-limit-exceeded"


def test_an_error_is_told_in_a_frame_that_the_client_takes(harness: Harness) -> None:
    client = small(harness)
    target = described(TARGET, ["/queues/" + "\u00e9" * 125 + "/" + "\U0001f407" * 60])
    data = client.raw(frame(0, ATTACH, ["link", UInt(0), False, None, None, None, target]))
    sizes = []
    while data:
        sizes.append(int.from_bytes(data[:4], "big"))
        data = data[sizes[-1] :]
    assert len(sizes) == 2 and max(sizes) <= FRAME_BYTES
    fields: Any = error_value("amqp:not-found", "\U0001f407" * 400).value
    assert fields[1] == "\U0001f407" * 96


def test_a_state_that_is_told_back_fits_into_a_frame_that_the_client_takes(harness: Harness) -> None:
    harness.channel().publish("", "q", b"x")
    client = small(harness)
    client.receiver(0, "/queues/q")
    client.credit(0, 1)
    annotations = {Symbol(f"x-{at}"): "y" * 20 for at in range(40)}
    (told,) = client.settle(0, 0, MODIFIED, settled=False, fields=[True, False, annotations])
    state: Any = told.field(4)
    assert told.name == "disposition" and state == Described(ULong(MODIFIED), [])


def test_nothing_is_sent_between_a_message_that_is_too_large_and_the_end_of_its_session(harness: Harness) -> None:
    """A flow resumed deliveries, and the next one left out an id."""
    publisher = harness.channel()
    client = amqp10_client(harness)
    client.receiver(0, "/queues/q", mode=1, message_max=ULong(300))
    client.credit(0, 1)
    publisher.publish("", "q", b"x" * 400)
    publisher.publish("", "q", b"small")
    assert [each.name for each in client.take()] == []
    assert [each.name for each in client.credit(0, 10, count=1)] == []
    harness.pass_time(0)
    (end,) = client.take()
    assert (end.name, error_of(end)) == ("end", "amqp:link:message-size-exceeded")
    assert harness.queue("q").ready_count == 2
