"""What a peer of bad will must not achieve: memory, time and names are bounded, whatever it announces."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from engine_harness import (
    Client,
    Harness,
    Refusal,
    basic_consume,
    body_of,
    exchange_declare,
    publish_frames,
    queue_declare,
)
from peer_frames import content_header

from warren.amqp import methods as m
from warren.amqp.codec import encode_method, frame, method_frame
from warren.amqp.field_table import EMPTY_TABLE, encode_table
from warren.amqp.methods import HEARTBEAT_FRAME
from warren.channels.fast_path import PAUSED_INBOUND, PAUSED_TURN
from warren.channels.topology_growth import (
    ALARM_BYTES,
    BINDING_BYTES,
    CONNECTION_BYTES,
    QUEUE_BYTES,
    GrowthShare,
    TopologyGrowth,
)
from warren.vhosts.metadata import (
    UserDelete,
    UserLimitsDelete,
    UserLimitsPut,
    UserPut,
    VhostDelete,
    VhostLimitsDelete,
    VhostLimitsPut,
    VhostPut,
)

from .rules import rule

PUBLISH = method_frame(1, m.BasicPublish(0, "", "q", False, False))


def frame_head(kind: int, number: int, size: int) -> bytes:
    return bytes([kind]) + number.to_bytes(2, "big") + size.to_bytes(4, "big")


def silently_dropped(client: Client) -> None:
    assert client.take_bytes() == b""
    assert client.ended
    assert client.connection.carry == b""


def content_head(size: int) -> bytes:
    return frame(2, 1, content_header({}, size))


# --- before the login -------------------------------------------------------------------------------------------------


@rule("abuse.pre-auth", "Before tune-ok a frame of more than 8 KiB is refused at its first 7 octets, without a word.")
@pytest.mark.parametrize("size", [8193, 131072, 0xFFFFFFFF])
def test_a_large_frame_is_refused_at_its_head(harness: Harness, size: int) -> None:
    client = harness.raw_client()
    client.start()
    client.feed(frame_head(1, 0, size)[:6])
    client.nothing()
    client.feed(frame_head(1, 0, size)[6:])
    silently_dropped(client)


@rule("abuse.pre-auth", "Before open-ok there are at most ten frames, heartbeats included.")
def test_the_handshake_has_at_most_ten_frames(harness: Harness) -> None:
    client = harness.raw_client()
    client.start()
    client.feed(HEARTBEAT_FRAME * 10)
    client.nothing()
    client.feed(HEARTBEAT_FRAME)
    silently_dropped(client)


@rule("abuse.pre-auth", "Before open-ok there are at most 64 KiB.")
def test_the_handshake_has_at_most_64_kib(harness: Harness) -> None:
    client = harness.raw_client()
    client.start()
    heartbeat = frame(8, 0, bytes(8192))
    client.feed(heartbeat * 7)
    client.nothing()
    client.feed(heartbeat)
    silently_dropped(client)


@rule("abuse.pre-auth", "Who has not opened a connection within 10 s is dropped, without a word.")
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_the_handshake_has_a_deadline(harness: Harness, steps: int) -> None:
    client = harness.raw_client()
    if steps >= 1:
        client.start()
    if steps == 2:
        client.start_ok()
        client.expect(m.ConnectionTune)
    harness.pass_time(9.9)
    assert not client.ended
    harness.pass_time(0.2)
    silently_dropped(client)


@rule("abuse.login", "An unknown user and a wrong password get the same answer, octet for octet.")
@pytest.mark.parametrize("capabilities", [(), ("authentication_failure_close",)])
def test_a_refused_login_does_not_tell_why(harness: Harness, capabilities: tuple[str, ...]) -> None:
    answers = []
    for user, password in (("guest", b"wrong"), ("nobody", b"guest"), ("", b""), ("guest", b"")):
        client = harness.raw_client(capabilities=capabilities)
        client.start()
        client.start_ok(user, password)
        answers.append((client.take_bytes(), client.ended))
    assert len(set(answers)) == 1


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
        begin = method_frame(number, m.BasicPublish(0, "", "q", False, False))
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
    harness.pass_time(1000)  # we were stopped: what it sent meanwhile is read now
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


# --- the outbox -------------------------------------------------------------------------------------------------------


@rule("abuse.outbox", "Deliveries to a client that does not read stop at the limit and go on when it has caught up.")
def test_a_slow_consumer_costs_a_limit() -> None:
    harness = Harness(outbox_soft_bytes=50_000)
    client, slow = harness.channel(), harness.channel()
    client.declare("q")
    slow.consume("q", no_ack=True)
    slow.peer.stalled = True
    for _ in range(40):
        client.publish("", "q", bytes(10_000))
    assert 50_000 < slow.connection.outbox.waiting_bytes() < 70_000
    assert harness.queue("q").ready_count >= 34
    harness.wake(slow.peer)
    assert len(slow.deliveries()) == 40
    harness.check()


@rule("abuse.outbox", "A queue goes on for its other consumers while one does not read.")
def test_a_slow_consumer_does_not_hold_up_others() -> None:
    harness = Harness(outbox_soft_bytes=50_000)
    client, slow, quick = harness.channel(), harness.channel(), harness.channel()
    client.declare("q")
    slow.consume("q", no_ack=True)
    quick.consume("q", no_ack=True)
    slow.peer.stalled = True
    for _ in range(100):
        client.publish("", "q", bytes(10_000))
    assert len(quick.deliveries()) > 90
    assert harness.queue("q").ready_count == 0


@rule("abuse.outbox", "Who sends requests and does not take the replies is not read beyond a limit, and then again.")
def test_who_does_not_take_replies_is_not_read() -> None:
    harness = Harness(outbox_soft_bytes=1000, outbox_hard_bytes=2000)
    client = harness.channel()
    client.peer.stalled = True
    for _ in range(500):
        client.connection.feed(method_frame(1, m.ConfirmSelect(False)))
    harness.settle()
    assert client.connection.outbox.waiting_bytes() < 2100
    assert client.connection.paused
    harness.wake(client.peer)
    assert len(client.take()) == 500
    assert not client.connection.paused


@rule("abuse.outbox", "Who publishes what comes back and does not take it is not read beyond a limit, and then again.")
@pytest.mark.parametrize("transactional", [False, True])
def test_returned_messages_are_bounded(transactional: bool) -> None:
    harness = Harness(outbox_soft_bytes=10_000, outbox_hard_bytes=20_000)
    client = harness.channel()
    client.peer.stalled = True
    end = method_frame(1, m.TxCommit()) if transactional else b""
    if transactional:
        client.connection.feed(method_frame(1, m.TxSelect()))
    for _ in range(100):
        client.connection.feed(publish_frames("", "nowhere", bytes(1000), mandatory=True) + end)
    harness.settle()
    assert client.connection.outbox.waiting_bytes() < 25_000
    harness.wake(client.peer)
    assert sum(isinstance(each.method, m.BasicReturn) for each in client.take()) == 100


@rule("abuse.outbox", "Acknowledgements are taken from a client whose replies wait: they need none.")
def test_acks_are_taken_while_replies_wait() -> None:
    harness = Harness(outbox_soft_bytes=1000, outbox_hard_bytes=2000)
    client, slow = harness.channel(), harness.channel()
    client.declare("q")
    client.publish("", "q", bytes(3000))
    slow.peer.stalled = True
    slow.connection.feed(method_frame(1, m.BasicGet(0, "q", False)))
    harness.settle()
    slow.send(1, m.BasicAck(1, False))
    assert harness.queue("q").unacked_count == 0


@rule("abuse.pipelining", "Not more than a thousand replies wait for commits; then the connection is not read.")
def test_replies_that_wait_for_a_commit_are_bounded(client: Client, harness: Harness) -> None:
    harness.hold_commits = True
    for number in range(1500):
        client.connection.feed(method_frame(1, queue_declare(f"q{number}", durable=True)))
    harness.settle()
    assert len(harness.vhost.queues) == 1000
    harness.hold_commits = False
    harness.settle()
    names = [each.method.queue for each in client.take()]
    assert names == [f"q{number}" for number in range(1500)]


# --- counts -----------------------------------------------------------------------------------------------------------


@rule("abuse.counts", "A channel has a limited number of consumers: 530.")
def test_consumers_of_a_channel_are_limited() -> None:
    harness = Harness(consumers_per_channel_max=3)
    client = harness.channel()
    client.declare("q")
    for _ in range(3):
        client.consume("q")
    refusal = client.refused(1, basic_consume("q"))
    text = "NOT_ALLOWED - reached maximum (3) of consumers per channel"
    assert refusal == Refusal("connection", 530, text, m.BasicConsume)


@rule("abuse.counts", "A channel owes a limited number of acks, whatever its prefetch; every ack makes room.")
def test_unacked_messages_of_a_channel_are_limited() -> None:
    harness = Harness(unacked_per_channel_max=4)
    client, other = harness.channel(), harness.channel()
    for name in ("p", "q"):
        client.declare(name)
        for _ in range(5):
            client.publish("", name)
    other.consume("p")
    other.consume("q")
    assert len(other.deliveries()) == 4
    for tag in range(1, 5):
        other.send(1, m.BasicAck(tag, False))
        harness.check()
    assert len(other.deliveries()) == 4
    other.send(1, m.BasicNack(8, True, False))
    harness.check()
    assert len(other.deliveries()) == 2


@rule("abuse.counts", "A vhost has a limited number of queues: 406; existing ones may be declared again.")
def test_queues_of_a_vhost_are_limited() -> None:
    harness = Harness(queues_per_vhost_max=2)
    client = harness.channel()
    client.declare("a")
    client.declare("b")
    client.declare("a")
    text = "PRECONDITION_FAILED - cannot declare queue 'c': queue limit in vhost '/' (2) is reached"
    assert client.refused(1, queue_declare("c")) == Refusal("channel", 406, text, m.QueueDeclare)
    client.call(1, m.QueueDelete(0, "a", False, False, False))
    client.declare("c")


@rule("abuse.counts", "A vhost has a limited number of exchanges: 406.")
def test_exchanges_of_a_vhost_are_limited(harness: Harness) -> None:
    limit = len(harness.vhost.exchanges) + 1
    harness = Harness(exchanges_per_vhost_max=limit)
    client = harness.channel()
    client.declare_exchange("a")
    client.declare_exchange("a")
    text = f"PRECONDITION_FAILED - cannot declare exchange 'b': exchange limit in vhost '/' ({limit}) is reached"
    assert client.refused(1, exchange_declare("b")) == Refusal("channel", 406, text, m.ExchangeDeclare)


@rule("abuse.counts", "An exchange has a limited number of bindings: 406; existing ones may be made again.")
def test_bindings_of_an_exchange_are_limited() -> None:
    harness = Harness(bindings_per_exchange_max=2)
    client = harness.channel()
    client.declare("q")
    client.bind("q", "amq.direct", "1")
    client.bind("q", "amq.direct", "2")
    client.bind("q", "amq.direct", "2")
    refusal = client.refused(1, m.QueueBind(0, "q", "amq.direct", "3", False, EMPTY_TABLE))
    assert (refusal.scope, refusal.code, refusal.method) == ("channel", 406, m.QueueBind)
    client.bind("q", "amq.topic", "3")


@rule("abuse.arguments", "Arguments have at most 128 KiB, those of all bindings of an exchange 64 MiB: 406.")
def test_arguments_are_bounded(harness: Harness, client: Client) -> None:
    client.declare("q")
    harness.broker.limits.arguments_max_bytes = 65536  # more would not fit into a frame
    table = encode_table({"a": "x" * 65536})
    text = "PRECONDITION_FAILED - the arguments have 65547 bytes, at most 65536 are allowed"
    for call in (
        queue_declare("another", arguments={"a": "x" * 65536}),
        exchange_declare("x", "direct", arguments={"a": "x" * 65536}),
        m.QueueBind(0, "q", "amq.direct", "k", False, table),
    ):
        assert client.refused(1, call) == Refusal("channel", 406, text, type(call))
    harness.broker.limits.binding_bytes_per_exchange_max = 1000
    full = m.QueueBind(0, "q", "amq.headers", "1", False, encode_table({"a": "x" * 500}))
    client.call(1, full)
    client.call(1, full)
    client.call(1, m.QueueUnbind(0, "q", "amq.headers", "1", full.arguments))
    client.call(1, full)
    refusal = client.refused(1, full._replace(routing_key="2"))
    assert refusal.text.endswith("its limit of 1000 bytes of arguments is reached")
    client.call(1, m.QueueDelete(0, "q", False, False, False))
    assert harness.vhost.exchange("amq.headers").binding_bytes == 0


@rule("abuse.topology", "While memory is short a connection adds a little to the topology, then waits as a publisher.")
def test_topology_waits_while_memory_is_short(harness: Harness, client: Client, other: Client) -> None:
    client.declare("q")
    harness.broker.set_alarm("memory", True)
    arguments = {"number": 0, "text": "x" * 200}
    added = 0
    while True:
        arguments["number"] = added
        client.send(1, m.QueueBind(0, "q", "amq.headers", "", False, encode_table(arguments)))
        answers = [received.method for received in client.take()]
        if m.QueueBindOk() not in answers:
            break
        added += 1
    assert 1 < added < CONNECTION_BYTES // BINDING_BYTES
    assert answers == [m.ConnectionBlocked("low on memory")]
    assert len(harness.vhost.exchange("amq.headers").bindings) == added
    # What is there can be declared again, and taken away, and consumers may come.
    other.declare("q")
    other.bind("q", "amq.headers", "", {"number": 0, "text": "x" * 200})
    other.consume("q")
    other.declare("its own")
    other.call(1, m.QueueDelete(0, "its own", False, False, False))
    harness.broker.set_alarm("memory", False)
    harness.settle()
    assert [received.method for received in client.take()] == [m.ConnectionUnblocked(), m.QueueBindOk()]
    assert len(harness.vhost.exchange("amq.headers").bindings) == added + 1


@rule("abuse.topology", "All connections together add 16 MiB during one alarm.")
def test_topology_of_all_is_bounded_while_memory_is_short(harness: Harness) -> None:
    growth = TopologyGrowth()
    for _ in range(2):
        growth.alarm_set()
        added = sum(growth.allows(GrowthShare(), CONNECTION_BYTES) for _ in range(1000))
        assert added * CONNECTION_BYTES == ALARM_BYTES


@rule("abuse.topology", "Over HTTP the answer says why, at once.")
def test_a_direct_connection_is_refused_while_memory_is_short(harness: Harness) -> None:
    direct = harness.broker.connect_direct("guest", "/")
    direct.feed(method_frame(1, m.ChannelOpen("")))
    harness.broker.set_alarm("memory", True)
    for number in range(CONNECTION_BYTES // QUEUE_BYTES + 1):
        direct.feed(method_frame(1, queue_declare(f"q{number}")))
    harness.settle()
    assert b"memory is short: nothing can be declared or bound until the memory alarm is over" in b"".join(
        direct.outbox.take()
    )
    assert len(harness.vhost.queues) < CONNECTION_BYTES // QUEUE_BYTES + 1


# --- routing ----------------------------------------------------------------------------------------------------------


@rule("abuse.topic", "A topic binding key has at most two #, and 128 words: 406.")
@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("#.#.#", "binding key '#.#.#' has 3 '#' words, at most 2 are allowed"),
        ("#.a.#.b.#", "binding key '#.a.#.b.#' has 3 '#' words, at most 2 are allowed"),
        ("." * 128, "binding key has 129 words, at most 128 are allowed"),
    ],
)
def test_topic_patterns_are_bounded(client: Client, key: str, text: str) -> None:
    client.declare("q")
    refusal = client.refused(1, m.QueueBind(0, "q", "amq.topic", key, False, EMPTY_TABLE))
    assert refusal == Refusal("channel", 406, "PRECONDITION_FAILED - " + text, m.QueueBind)


@rule("abuse.routing", "A message whose routing is too much work is refused, 406, and goes nowhere.")
def test_routing_is_bounded(harness: Harness, client: Client) -> None:
    client.declare("q")
    depth = 9
    for number in range(1 << depth):
        pattern = ["a" if number >> bit & 1 else "*" for bit in range(depth)]
        client.bind("q", "amq.topic", ".".join(["#", *pattern, "#"]))
    copies: list[object] = [f"{number}." + "a." * 120 for number in range(40)]
    client.publish("amq.topic", "k", headers=encode_table({"CC": copies}))
    assert client.refusal()[:2] == ("channel", 406)
    assert harness.queue("q").ready_count == 0
    client.open(1)
    client.publish("amq.topic", str(copies[0]))
    assert harness.queue("q").ready_count == 1


@rule("abuse.routing", "A key that CC names again and again is one key.")
def test_the_same_copy_is_one(harness: Harness, client: Client) -> None:
    for number in range(50):
        client.declare(f"q{number}")
        client.bind(f"q{number}", "amq.direct", "k")
    client.publish("amq.direct", "k", headers=encode_table({"CC": ["k"] * 2000, "BCC": ["k"] * 2000}))
    assert [harness.queue(f"q{number}").ready_count for number in range(50)] == [1] * 50


@rule("abuse.topic", "Patterns made to match in many ways are matched in one.")
def test_ambiguous_patterns_match_once(client: Client) -> None:
    client.declare("q")
    for count in range(1, 40):
        client.bind("q", "amq.topic", "#." + "*." * count + "#.a")
    client.publish("amq.topic", ".".join("a" * 120))
    assert client.declare("q").message_count == 1


@rule("abuse.headers", "A headers binding has at most 256 arguments: 406.")
def test_headers_bindings_are_bounded(client: Client) -> None:
    client.declare("q")
    arguments = encode_table({f"h{number}": None for number in range(257)})
    refusal = client.refused(1, m.QueueBind(0, "q", "amq.headers", "", False, arguments))
    text = "PRECONDITION_FAILED - binding has 257 arguments, at most 256 are allowed"
    assert refusal == Refusal("channel", 406, text, m.QueueBind)


# --- limits of vhosts and users ---------------------------------------------------------------------------------------


def limit_vhost(harness: Harness, vhost: str = "/", **limits: int) -> None:
    definition = json.dumps({key.replace("_", "-"): value for key, value in limits.items()})
    harness.broker.administer(VhostLimitsPut(vhost, definition))
    harness.settle()


def limit_user(harness: Harness, user: str, **limits: int) -> None:
    definition = json.dumps({key.replace("_", "-"): value for key, value in limits.items()})
    harness.broker.administer(UserLimitsPut(user, definition))
    harness.settle()


def refused_open(harness: Harness, user: str, vhost: str = "/") -> str:
    """Try to open a connection; return the text that refuses it, ``""`` when it is open."""
    client = harness.raw_client()
    client.start()
    client.start_ok(user)
    client.expect(m.ConnectionTune)
    client.send(
        0, m.ConnectionTuneOk(client.channel_max, client.frame_max_bytes, 0), m.ConnectionOpen(vhost, "", False)
    )
    (answer,) = client.take()
    if isinstance(answer.method, m.ConnectionOpenOk):
        return ""
    assert isinstance(answer.method, m.ConnectionClose)
    assert (answer.method.reply_code, answer.method.class_id, answer.method.method_id) == (530, 10, 40)
    client.send(0, m.ConnectionCloseOk())
    assert client.ended
    text: str = answer.method.reply_text
    return text


def vhost_full(user: str, limit: int, vhost: str = "/") -> str:
    return f"NOT_ALLOWED - access to vhost '{vhost}' refused for user '{user}': connection limit ({limit}) is reached"


@rule("rabbitmq.limits.vhost", "max-connections of a vhost counts all that are open in it: 530 at connection.open.")
def test_a_vhost_limits_its_connections(harness: Harness) -> None:
    harness.add_user("bob")
    harness.broker.administer(VhostPut("v"))
    harness.permit("bob", vhost="v")
    limit_vhost(harness, max_connections=2)
    clients = [harness.client("guest"), harness.client("bob")]
    assert refused_open(harness, "bob") == vhost_full("bob", 2)
    assert refused_open(harness, "bob", "v") == ""
    clients[0].hang_up()
    clients[0] = harness.client("bob")
    assert refused_open(harness, "guest") == vhost_full("guest", 2)
    clients[1].send(0, m.ConnectionClose(200, "", 0, 0))
    harness.client("guest")
    assert refused_open(harness, "guest") == vhost_full("guest", 2)


@rule("rabbitmq.limits.vhost", "0 connections are none, -1 as many as one likes; what is open stays; changes hold.")
def test_limits_of_connections_change_live(harness: Harness) -> None:
    client = harness.client()
    for limit, text in ((0, vhost_full("guest", 0)), (-1, ""), (2, vhost_full("guest", 2)), (3, "")):
        limit_vhost(harness, max_connections=limit)
        assert refused_open(harness, "guest") == text
    assert refused_open(harness, "guest") == vhost_full("guest", 3)
    harness.broker.administer(VhostLimitsDelete("/"))
    assert refused_open(harness, "guest") == ""
    limit_vhost(harness, max_connections=0)
    client.open(1)
    client.nothing()


@rule("rabbitmq.limits.vhost", "The limit is looked at before the right to enter; connections that fail do not count.")
def test_refused_connections_do_not_count(harness: Harness) -> None:
    harness.broker.administer(UserPut("eve", "", ""))
    harness.passwords["eve"] = b"eve"
    limit_vhost(harness, max_connections=1)
    for _ in range(3):
        assert refused_open(harness, "eve") == "NOT_ALLOWED - access to vhost '/' refused for user 'eve'"
    assert refused_open(harness, "guest") == ""
    assert refused_open(harness, "eve") == vhost_full("eve", 1)
    assert refused_open(harness, "guest", "nowhere") == "NOT_ALLOWED - vhost nowhere not found"


@rule("rabbitmq.limits.user", "max-connections of a user counts those in all vhosts: 530 at connection.open.")
def test_a_user_has_limited_connections(harness: Harness) -> None:
    harness.add_user("bob")
    harness.broker.administer(VhostPut("v"))
    harness.permit("bob", vhost="v")
    limit_user(harness, "bob", max_connections=2)
    first = harness.client("bob")
    harness.client("bob", "v")
    text = "NOT_ALLOWED - connection refused for user 'bob': user connection limit (2) is reached"
    assert refused_open(harness, "bob") == text
    assert refused_open(harness, "bob", "v") == text
    assert refused_open(harness, "guest") == ""
    first.hang_up()
    harness.client("bob", "v")
    assert refused_open(harness, "bob") == text
    for limit, refused in ((0, True), (-1, False), (3, True), (4, False)):
        limit_user(harness, "bob", max_connections=limit)
        assert (refused_open(harness, "bob") != "") == refused
    harness.broker.administer(UserLimitsDelete("bob"))
    assert refused_open(harness, "bob") == ""


@rule("rabbitmq.limits.user", "max-channels of a user counts those of all connections: 530.")
def test_a_user_has_limited_channels(harness: Harness) -> None:
    harness.add_user("bob")
    limit_user(harness, "bob", max_channels=2)
    one, two = harness.client("bob"), harness.client("bob")
    one.open(1)
    two.open(1)
    text = "NOT_ALLOWED - number of channels opened for user 'bob' has reached the maximum allowed user limit of (2)"
    assert one.refused(2, m.ChannelOpen("")) == Refusal("connection", 530, text, m.ChannelOpen)
    two.open(2)
    guest = harness.client()
    guest.open(1)
    guest.open(2)
    guest.open(3)


@rule("rabbitmq.limits.user", "A channel no longer counts once it is closed, whoever closed it and however.")
def test_closed_channels_do_not_count(harness: Harness) -> None:
    harness.add_user("bob")
    limit_user(harness, "bob", max_channels=2)
    bob = harness.client("bob")
    bob.open(1)
    bob.open(2)
    assert bob.call(1, m.ChannelClose(200, "", 0, 0)) == m.ChannelCloseOk()
    bob.open(1)
    assert bob.refused(2, m.BasicGet(0, "nowhere", True)).code == 404  # answers the close and opens 2 again
    bob.hang_up()
    bob = harness.client("bob")
    bob.open(1)
    bob.open(2)
    bob.send(0, m.ConnectionClose(200, "", 0, 0))
    bob = harness.client("bob")
    bob.open(7)
    bob.open(8)
    assert bob.refused(9, m.ChannelOpen("")).code == 530
    bob = harness.client("bob")
    bob.open(1)
    bob.open(2)
    limit_user(harness, "bob", max_channels=0)
    bob.declare("q")
    assert bob.refused(3, m.ChannelOpen("")).code == 530
    limit_user(harness, "bob", max_channels=-1)
    bob = harness.client("bob")
    for number in range(1, 10):
        bob.open(number)


@rule("rabbitmq.limits.vhost", "max-queues of a vhost counts all queues, exclusive ones too: 406.")
def test_a_vhost_limits_its_queues(client: Client, harness: Harness) -> None:
    client.declare("one", exclusive=True)
    limit_vhost(harness, max_queues=2)
    client.declare("two", durable=True)
    for call in (queue_declare("three"), queue_declare("three", exclusive=True)):
        text = "PRECONDITION_FAILED - cannot declare queue 'three': queue limit in vhost '/' (2) is reached"
        assert client.refused(1, call) == Refusal("channel", 406, text, m.QueueDeclare)
    assert "queue 'amq.gen-" in client.refused(1, queue_declare("")).text
    client.declare("one", exclusive=True)
    client.declare("two", passive=True)
    client.call(1, m.QueueDelete(0, "one", False, False, False))
    client.declare("three")


@rule("rabbitmq.limits.vhost", "0 queues are none, -1 as many as one likes; the broker's own limit holds beside it.")
def test_limits_of_queues_change_live() -> None:
    harness = Harness(queues_per_vhost_max=3)
    client = harness.channel()
    limit_vhost(harness, max_queues=0)
    text = "PRECONDITION_FAILED - cannot declare queue 'q': queue limit in vhost '/' (0) is reached"
    assert client.refused(1, queue_declare("q")).text == text
    for limit in (-1, 10):
        limit_vhost(harness, max_queues=limit)
        client.declare(f"q{limit}")
    harness.broker.administer(VhostLimitsDelete("/"))
    client.declare("last")
    for limit, reached in ((-1, 3), (10, 3), (2, 2)):
        limit_vhost(harness, max_queues=limit)
        assert f"({reached}) is reached" in client.refused(1, queue_declare("q")).text


@rule("rabbitmq.limits.vhost", "Limits go with their vhost and their user, and hold after a start.")
def test_limits_come_and_go_with_what_they_are_of(harness: Harness) -> None:
    harness.add_user("bob")
    limit_user(harness, "bob", max_connections=0)
    harness.broker.administer(UserDelete("bob"))
    harness.add_user("bob")
    assert refused_open(harness, "bob") == ""
    harness.broker.administer(VhostPut("v"))
    limit_vhost(harness, "v", max_connections=0)
    harness.broker.administer(VhostDelete("v"))
    harness.broker.administer(VhostPut("v"))
    harness.permit("bob", vhost="v")
    assert refused_open(harness, "bob", "v") == ""
    harness.broker.restore(VhostLimitsPut("/", '{"max-connections":0}'))
    assert refused_open(harness, "bob") == vhost_full("bob", 0)
    harness.broker.restore(VhostLimitsPut("/", "{}"))
    harness.broker.restore(UserLimitsPut("bob", '{"max-connections":0}'))
    assert "user connection limit (0)" in refused_open(harness, "bob")


@rule("rabbitmq.limits.vhost", "Limits that are not valid, or of nobody, are refused and change nothing.")
def test_invalid_limits_change_nothing(harness: Harness) -> None:
    limit_vhost(harness, max_connections=0)
    limit_user(harness, "guest", max_connections=0)
    tickets = harness.broker.journal.last_ticket
    for change, text in (
        (VhostLimitsPut("/", '{"max-channels":5}'), 'Unrecognised terms [{<<"max-channels">>,5}] in limits'),
        (UserLimitsPut("guest", '{"max-queues":5}'), 'Unrecognised terms [{<<"max-queues">>,5}] in user-limits'),
        (VhostLimitsPut("/", '{"max-queues":"x"}'), 'max-queues should be a number, actually was <<"x">>'),
        (VhostLimitsPut("v", "{}"), "vhost 'v' does not exist"),
        (VhostLimitsDelete("v"), "vhost 'v' does not exist"),
        (UserLimitsPut("eve", "{}"), "user 'eve' does not exist"),
        (UserLimitsDelete("eve"), "user 'eve' does not exist"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
            harness.broker.administer(change)
    assert harness.broker.journal.last_ticket == tickets
    assert refused_open(harness, "guest") == vhost_full("guest", 0)
    harness.broker.administer(VhostLimitsDelete("/"))
    assert "user connection limit (0)" in refused_open(harness, "guest")


# --- names ------------------------------------------------------------------------------------------------------------


@rule("abuse.names", "Names with NUL, which no database keeps, are refused.")
@pytest.mark.parametrize("name", ["a\x00", "\x00", "\x1b[2J\x00"])
@pytest.mark.parametrize("make", [queue_declare, exchange_declare])
def test_nul_in_names_is_refused(client: Client, make: Any, name: str) -> None:
    refusal = client.refused(1, make(name))
    assert (refusal.scope, refusal.code) == ("channel", 406)
    assert refusal.text.isprintable()


@rule("abuse.names", "What the broker remembers of names it was asked for is bounded.")
def test_caches_are_bounded(client: Client, harness: Harness) -> None:
    principal = harness.broker.access.maybe_principal("guest", "/")
    assert principal is not None
    for number in range(5000):
        client.connection.feed(publish_frames("", f"nowhere {number}"))
        principal.may(1, f"name {number}")
    assert len(principal.routes) <= 4096
    assert len(principal._answers) <= 4096


# --- reply addresses --------------------------------------------------------------------------------------------------


@rule("abuse.reply-to", "A reply address can be sent to and nothing else: no get, purge, delete, consume, bind.")
def test_a_reply_address_is_only_an_address(client: Client, other: Client) -> None:
    client.consume("amq.rabbitmq.reply-to", no_ack=True)
    other.declare("service")
    client.publish("", "service", reply_to="amq.rabbitmq.reply-to")
    got = other.get("service", no_ack=True)
    assert got is not None and got.content is not None
    address = got.content.properties.reply_to
    assert address is not None
    assert other.refused(1, m.BasicGet(0, address, True)).code == 404
    assert other.refused(1, m.QueuePurge(0, address, False)).code == 404
    assert other.refused(1, basic_consume(address, no_ack=True)).code == 404
    assert other.refused(1, m.QueueBind(0, address, "amq.fanout", "", False, EMPTY_TABLE)).code == 403
    assert other.call(1, m.QueueDelete(0, address, False, False, False)) == m.QueueDeleteOk(0)
    other.publish("", address, b"reply")
    (reply,) = client.take()
    assert body_of(reply) == b"reply"


@rule("abuse.reply-to", "Names made by the broker hold 128 bits that nobody can guess, new ones each.")
def test_made_names_are_unguessable(client: Client, harness: Harness) -> None:
    before = harness._names_given
    names = [client.declare("").queue[-22:], client.consume("")[-22:]]
    client.consume("amq.rabbitmq.reply-to", no_ack=True)
    names += [name[-22:] for name in harness.vhost.reply_queues]
    assert harness._names_given == before + 4, "two tags, a queue and a reply address"
    assert len(set(names)) == 3


# --- peers that do not take what is sent to them ----------------------------------------------------------------------


def stalled_consumer(harness: Harness, heartbeat_s: int = 10) -> Client:
    """Return a client that has a message unacknowledged and takes nothing more, though something waits for it."""
    client = harness.client(heartbeat_s=heartbeat_s)
    client.open(1)
    client.declare("q")
    client.consume("q")
    client.publish("", "q", b"one")
    assert client.bodies() == [b"one"]
    client.peer.stalled = True
    client.publish("", "q", b"two")
    return client


def beat(harness: Harness, client: Client, seconds: float) -> None:
    """Let so much time pass, in which `client` sends its heartbeats."""
    for _ in range(int(seconds)):
        client.feed(HEARTBEAT_FRAME)
        harness.pass_time(1.0)


@rule("abuse.unread", "A peer that takes nothing for limits.send_timeout_s is dropped, heartbeats or not.")
def test_who_takes_nothing_is_dropped(harness: Harness) -> None:
    client = stalled_consumer(harness)
    beat(harness, client, 29)
    assert not client.ended
    assert harness.queue("q").unacked_count == 2
    beat(harness, client, 2)
    assert client.ended
    assert client.connection.is_unreachable
    assert harness.notices[-1].event == "connection.lost"
    assert harness.notices[-1].fields["reason"] == "it took nothing of what waits for it, timeout: 30s"
    assert (harness.queue("q").ready_count, harness.queue("q").unacked_count) == (2, 0)


@rule("abuse.unread", "Whoever takes a little now and then stays, and who has nothing to take.")
def test_who_takes_a_little_stays(harness: Harness) -> None:
    client, idle = stalled_consumer(harness), harness.client()
    outbox = client.connection.outbox
    outbox.take()
    for _ in range(4):
        beat(harness, client, 20)
        outbox.sent(1)
    beat(harness, client, 20)
    assert not client.ended
    assert not idle.ended


@rule("abuse.unread", "The time in which the broker was stopped does not count; with a timeout of 0 none does.")
def test_only_time_in_which_it_could_take_something_counts(harness: Harness) -> None:
    client = stalled_consumer(harness, heartbeat_s=0)
    harness.pass_time(1.0)  # the first tick sees what was sent before
    harness.pass_time(10.0)
    harness.pass_time(1000.0)  # it may have taken something meanwhile, which we have not noticed
    harness.pass_time(4.0)
    assert not client.ended
    harness.pass_time(2.0)
    assert client.ended
    patient = Harness(send_timeout_s=0)
    client = stalled_consumer(patient)
    beat(patient, client, 1000)
    assert not client.ended


@rule("abuse.arguments", "Long arguments of a consumer are not kept: there may be 10,000 on a channel.")
def test_long_arguments_of_consumers_are_not_kept(harness: Harness, client: Client) -> None:
    client.declare("q")
    for tag, size in (("short", 100), ("long", 100_000)):
        client.call(1, basic_consume("q", tag, arguments={"x-priority": 7, "x": "y" * size}))
    short, long = harness.queue("q").consumers
    assert len(short.arguments) > 100
    assert long.arguments == EMPTY_TABLE
    assert (short.priority, long.priority) == (7, 7)
