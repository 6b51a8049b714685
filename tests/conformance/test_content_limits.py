"""Limits for hostile peers: memory is bounded, whatever a peer announces or nests."""

from __future__ import annotations

import pytest
from engine_harness import (
    Client,
    Harness,
    Refusal,
    queue_declare,
)
from peer_frames import content_header

from warren.amqp import methods as m
from warren.amqp.codec import encode_method, frame, method_frame
from warren.amqp.field_table import encode_table
from warren.channels.shared import PAUSED_INBOUND, PAUSED_TURN

from .hostile_frames import PUBLISH, content_head, frame_head, silently_dropped
from .rules import rule

# --- announced sizes --------------------------------------------------------------------------------------------------


@rule("abuse.sizes", "After tuning, a frame larger than negotiated is refused at its first 7 octets.")
def test_a_frame_larger_than_negotiated_is_refused_at_its_head(client: Client) -> None:
    client.feed(frame_head(3, 1, 0xFFFFFFFF))
    refusal = client.refusal()
    text = "FRAME_ERROR - type 3, 4294967295 octets: {frame_too_large,4294967295,131064}"
    assert refusal == Refusal("connection", 501, text, None)


@rule("abuse.sizes", "What is announced is not allocated: only what has come is kept.")
def test_only_what_has_come_is_kept(client: Client, harness: Harness) -> None:
    client.feed(PUBLISH + content_head(128 << 20))
    assert harness.broker.shared.inbound.held_bytes < 100
    client.feed(frame(3, 1, bytes(1000)) + frame_head(3, 1, 131000) + bytes(10))
    assert 1000 <= harness.broker.shared.inbound.held_bytes < 1300
    assert client.connection.cut_missing == 8 + 131000 - 17
    assert client.connection.carry == b""


@rule("abuse.sizes", "A body larger than configured is refused at its header, and its frames are skipped.")
def test_a_large_body_is_refused_at_its_header(client: Client, harness: Harness) -> None:
    client.feed(PUBLISH + content_head((128 << 20) + 1))
    close = client.expect(m.ChannelClose)
    text = "PRECONDITION_FAILED - message size 134217729 is larger than configured max size 134217728"
    assert (close.reply_code, close.reply_text) == (406, text)
    for _ in range(10):
        client.feed(frame(3, 1, bytes(100_000)))
    assert harness.broker.shared.inbound.held_bytes == 0
    assert client.connection.carry == b""
    client.nothing()


@rule("abuse.sizes", "More than 16 empty body frames in a content are a framing error.")
def test_empty_body_frames_are_limited(client: Client) -> None:
    client.declare("q")
    client.feed(PUBLISH + content_head(1) + frame(3, 1, b"") * 16 + frame(3, 1, b"x"))
    assert client.declare("q").message_count == 1
    client.feed(PUBLISH + content_head(1) + frame(3, 1, b"") * 17)
    refusal = client.refusal()
    text = "FRAME_ERROR - too many empty content body frames"
    assert refusal == Refusal("connection", 501, text, m.BasicPublish)


@rule("abuse.inbound", "However much is received in part, whoever does not add to it publishes on.")
def test_half_received_bodies_stop_nobody_else() -> None:
    harness = Harness(inbound_max_bytes=100_000)
    hoarder, client = harness.channel(), harness.channel()
    client.declare("q")
    hoarder.feed(PUBLISH + content_head(200_000) + frame(3, 1, bytes(120_000)))
    client.publish("", "q", b"small")
    client.feed(PUBLISH + content_head(40_000) + frame(3, 1, bytes(20_000)))
    client.feed(frame(3, 1, bytes(20_000)))
    client.nothing()
    assert harness.queue("q").ready_count == 2


@rule("abuse.inbound", "Beyond the budget for bodies received in part, those with more than their share take turns.")
def test_whoever_holds_more_than_its_share_waits() -> None:
    harness = Harness(inbound_max_bytes=1_000_000)
    first, second = harness.channel(), harness.channel()
    first.declare("q")
    chunk = frame(3, 1, bytes(100_000))
    for client in (first, second):
        client.feed(PUBLISH + content_head(900_000) + chunk * 6)
    assert first.connection.paused | second.connection.paused == 0  # one added when it was too much: it has the floor
    first.feed(chunk)
    assert first.connection.paused == PAUSED_INBOUND
    second.feed(chunk)
    harness.pass_time(0.5)
    harness.settle()
    blocked = first.expect(m.ConnectionBlocked)
    assert blocked.reason == "too much is held for messages received in part"
    second.feed(chunk * 2)
    assert first.connection.paused == 0
    first.expect(m.ConnectionUnblocked)
    first.feed(chunk * 2)
    assert harness.queue("q").ready_count == 2
    assert harness.broker.shared.inbound.held_bytes == 0


@rule("abuse.inbound", "Who has its turn and sends nothing lets others go first.")
def test_who_does_not_use_its_turn_loses_it() -> None:
    harness = Harness(inbound_max_bytes=1_000_000)
    slow, client = harness.channel(), harness.channel()
    client.declare("q")
    chunk = frame(3, 1, bytes(100_000))
    client.feed(PUBLISH + content_head(900_000) + chunk * 6)
    slow.feed(PUBLISH + content_head(900_000) + chunk * 6)
    client.feed(chunk)
    assert client.connection.paused == PAUSED_INBOUND
    harness.pass_time(0.5)
    harness.settle()
    client.feed(chunk * 2)
    client.nothing()
    assert harness.queue("q").ready_count == 1
    slow.feed(chunk * 3)
    assert harness.queue("q").ready_count == 2


@rule("abuse.inbound", "A hundred connections with an unfinished body each: small messages of others are not held up.")
def test_many_connections_with_an_unfinished_body_each() -> None:
    harness = Harness(inbound_max_bytes=1_000_000)
    client = harness.channel()
    client.declare("q")
    hoarders = [harness.channel() for _ in range(100)]
    for count in range(1, 31):
        for hoarder in hoarders:
            if hoarder.connection.running and not hoarder.connection.paused:
                begin = PUBLISH + content_head(100_000) if count == 1 else b""
                hoarder.connection.feed(begin + frame(3, 1, bytes(1000)))
        client.publish("", "q", b"small")
        client.nothing()
        assert harness.queue("q").ready_count == count
        assert harness.broker.shared.inbound.held_bytes <= 2_000_000
    share = harness.broker.shared.inbound.share_bytes()
    waiting = [each for each in hoarders if each.connection.paused]
    assert len(waiting) > 90
    assert all(share < each.connection.inbound_bytes < share + 2200 for each in waiting)


@rule("abuse.inbound", "At twice the budget the connection that holds most is closed with 506, whoever adds to it.")
def test_who_holds_most_is_closed_at_twice_the_budget() -> None:
    harness = Harness(inbound_max_bytes=100_000)
    hoarder, client = harness.channel(), harness.channel()
    client.declare("q")
    hoarder.feed(PUBLISH + content_head(200_000) + frame(3, 1, bytes(120_000)))
    hoarder.feed(frame(3, 1, bytes(50_000)))
    client.feed(PUBLISH + content_head(60_000) + frame(3, 1, bytes(40_000)))
    text = "RESOURCE_ERROR - too much is held for messages received in part"
    assert hoarder.refusal() == Refusal("connection", 506, text, None)
    client.feed(frame(3, 1, bytes(20_000)))
    client.nothing()
    assert harness.queue("q").ready_count == 1
    assert harness.broker.shared.inbound.held_bytes == 0


@rule("abuse.inbound", "An unfinished body on each of 2,047 channels: the connection is closed, the others go on.")
def test_a_connection_of_unfinished_bodies_is_closed() -> None:
    harness = Harness(inbound_max_bytes=1_000_000)
    hoarder, client = harness.client(), harness.channel()
    client.declare("q")
    for number in range(1, 2048):
        hoarder.open(number)
        if not hoarder.connection.running:
            break
        begin = method_frame(number, m.BasicPublish(0, "", "q", mandatory=False, immediate=False))
        begin += frame(2, number, content_header({}, 10_000)) + frame(3, number, bytes(2000))
        hoarder.connection.feed(begin)
        client.publish("", "q", b"small")
        if number % 100 == 0:
            harness.settle()
        if not hoarder.connection.running:
            break
    assert hoarder.refusal().code == 506
    client.nothing()
    assert harness.queue("q").ready_count == number
    assert harness.broker.shared.inbound.held_bytes == 0


@rule("abuse.inbound", "Header frames of unfinished contents count as well.")
def test_headers_without_bodies_count(client: Client, harness: Harness) -> None:
    client.feed(PUBLISH + frame(2, 1, content_header({"headers": encode_table({"k": "x" * 50_000})}, 1)))
    assert harness.broker.shared.inbound.held_bytes > 50_000


@rule("abuse.inbound", "A content that does not grow for limits.content_timeout_s closes its channel with 406.")
def test_a_content_without_progress_closes_its_channel(harness: Harness) -> None:
    client = harness.channel()
    client.open(2)
    client.feed(PUBLISH + content_head(5) + frame(3, 1, b"ab"))
    harness.pass_time(1)
    for _ in range(2):
        harness.pass_time(20)
        harness.pass_time(20)
        client.feed(frame(3, 1, b"c"))
        client.nothing()
    harness.pass_time(1000)  # we were stopped: its input of that time is read now
    client.nothing()
    harness.pass_time(29)
    client.nothing()
    harness.pass_time(2)
    harness.settle()
    client.feed(frame(3, 1, b"cde"))  # on its way when the channel was closed
    text = "PRECONDITION_FAILED - publish on channel 1 timed out: no more of its content came within 60 s"
    assert client.refusal() == Refusal("channel", 406, text, m.BasicPublish)
    assert harness.broker.shared.inbound.held_bytes == 0
    assert client.declare("q", number=2).message_count == 0


@rule("abuse.inbound", "A connection that always has more to handle than its turn allows does not put that off.")
def test_a_busy_connection_does_not_keep_its_unfinished_content(harness: Harness) -> None:
    client = harness.channel()
    client.open(2)
    client.feed(PUBLISH + content_head(5) + frame(3, 1, b"ab"))
    burst = method_frame(2, m.BasicQos(0, 0, False)) * 1000
    for _ in range(5):
        client.connection.feed(burst)
        assert client.connection.paused == PAUSED_TURN
        harness.advance(20)
        harness.settle()
    assert any(isinstance(each.method, m.ChannelClose) for each in client.take())


@rule("abuse.inbound", "While publishers have to wait for memory, unfinished contents wait too, and do not time out.")
def test_unfinished_contents_wait_while_memory_is_short(harness: Harness) -> None:
    client, silent = harness.channel(), harness.channel()
    client.declare("q")
    silent.feed(PUBLISH + content_head(100) + frame(3, 1, b"ab"))
    chunk = frame(3, 1, bytes(100_000))
    client.feed(PUBLISH + content_head(2_000_000) + chunk)
    harness.broker.set_alarm("memory", True)
    sent = 1
    while not client.connection.paused:
        client.feed(chunk)
        sent += 1
    assert 1 << 20 <= 100_000 * sent < (1 << 20) + 200_000
    client.expect(m.ConnectionBlocked)
    for _ in range(4):
        harness.pass_time(30)
    harness.settle()
    client.nothing()
    assert silent.refusal().code == 406  # nothing kept it from sending
    harness.broker.set_alarm("memory", False)
    harness.settle()
    client.expect(m.ConnectionUnblocked)
    client.feed(chunk * (20 - sent))
    assert harness.queue("q").ready_count == 1


@rule("abuse.inbound", "Bodies that are never completed are forgotten with their channel or connection.")
@pytest.mark.parametrize("how", ["error", "hang up", "forced"])
def test_half_received_bodies_are_forgotten(client: Client, harness: Harness, how: str) -> None:
    client.open(2)
    client.feed(PUBLISH + content_head(2000) + frame(3, 1, bytes(1999)))
    assert harness.broker.shared.inbound.held_bytes >= 1999
    if how == "error":
        client.feed(method_frame(2, m.BasicQos(1, 0, False)))
    elif how == "hang up":
        client.hang_up()
    else:
        harness.broker.shut_down("shutdown")
    assert harness.broker.shared.inbound.held_bytes == 0


# --- field tables -----------------------------------------------------------------------------------------------------


def nested(depth: int, kind: bytes = b"F") -> bytes:
    """A table of `depth` levels, itself included; the inner ones are of `kind`."""
    content = b""
    for _ in range(depth - 1):
        entry = kind + len(content).to_bytes(4, "big") + content
        content = b"\x01k" + entry if kind == b"F" else entry
    if kind == b"A" and content:
        content = b"\x01k" + content
    return len(content).to_bytes(4, "big") + content


def many(count: int) -> bytes:
    return (3 * count).to_bytes(4, "big") + b"\x01kV" * count


MALFORMED = {
    "too deep": nested(17),
    "far too deep": nested(18_000),
    "too deep in arrays": nested(17, b"A"),
    "far too deep in arrays": nested(20_000, b"A"),
    "too many entries": many(4097),
    "too many in an array": (4 + 4 + 3 + 5000 - 4).to_bytes(4, "big")
    + b"\x01kA"
    + (5000).to_bytes(4, "big")
    + b"V" * 5000,
    "a length behind the end": b"\x00\x00\x00\x0a\x01kS\xff\xff\xff\xffabc",
    "a key behind the end": b"\x00\x00\x00\x03\xffkV",
    "an unknown tag": b"\x00\x00\x00\x04\x01k?\x00",
    "an empty array element": b"\x00\x00\x00\x03\x01kA",
    "a cut integer": b"\x00\x00\x00\x05\x01kI\x00\x00",
    "an inner table behind the end": b"\x00\x00\x00\x07\x01kF\x00\x00\x00\x09",
}


@rule("abuse.tables", "Tables deeper than 16, of more than 4096 entries, or with lengths that do not add up are 502.")
@pytest.mark.parametrize("case", MALFORMED)
@pytest.mark.parametrize("place", ["arguments", "headers", "client properties"])
def test_malformed_tables_are_refused(harness: Harness, case: str, place: str) -> None:
    table = MALFORMED[case]
    if case == "too many in an array":
        table = (len(table) - 4).to_bytes(4, "big") + table[4:]
    if place == "client properties":
        client = harness.raw_client()
        client.start()
        rest = encode_method(m.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US"))
        client.feed(frame(1, 0, rest[:4] + table + rest[8:]))
        silently_dropped(client)
        return
    client = harness.channel()
    if place == "arguments":
        payload = encode_method(queue_declare("q"))
        client.feed(frame(1, 1, payload[:-4] + table))
    else:
        client.feed(PUBLISH + frame(2, 1, content_header({"headers": table}, 0)))
    refusal = client.refusal()
    assert (refusal.scope, refusal.code) == ("connection", 502)
    assert refusal.text.startswith("SYNTAX_ERROR - malformed ")


@rule("abuse.tables", "Tables of 16 levels and of 4096 entries are taken.")
@pytest.mark.parametrize("table", [nested(16), nested(16, b"A"), many(4096)])
def test_tables_within_the_limits_are_taken(client: Client, table: bytes) -> None:
    payload = encode_method(queue_declare("q"))
    client.feed(frame(1, 1, payload[:-4] + table))
    client.expect(m.QueueDeclareOk)
    client.publish("", "q", headers=table)
    got = client.get("q")
    assert got is not None and got.content is not None
    assert got.content.properties.headers == table
