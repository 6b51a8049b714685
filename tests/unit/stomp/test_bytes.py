"""How bytes become frames: cut anywhere, held back, too long, never ending, and no frames at all."""

from __future__ import annotations

import random

import pytest
from engine_harness import Harness
from stomp_harness import StompClient, frame, split_frames, stomp_client

from warren.stomp.frames import HEADERS_MAX
from warren.stomp.peer import EARLY_BYTES, HEAD_BYTES

CONNECT = frame("CONNECT", {"accept-version": "1.2", "host": "/", "login": "guest", "passcode": "guest"})
SENDS = b"".join(
    (
        frame("SUBSCRIBE", {"destination": "/queue/q", "id": "0"}),
        frame("SEND", {"destination": "/queue/q", "content-length": 6}, b"a\0b\n\nc"),
        b"\n\r\n\n",
        b"SEND\r\ndestination:/queue/q\r\n\r\nwith returns\0",
        frame("SEND", {"destination": "/queue/q"}, b""),
        frame("SEND", {"destination": "/queue/q", "receipt": "r"}, b"x" * 300),
        frame("DISCONNECT", {"receipt": "bye"}),
    )
)
BODIES = [b"a\0b\n\nc", b"with returns", b"", b"x" * 300]


def run(pieces: list[bytes]) -> list[bytes]:
    """Return the bodies that come back when that is received in `pieces`, and check what else does."""
    harness = Harness()
    client = StompClient(harness)
    found = [reply for piece in pieces for reply in client.feed(piece)]
    assert [reply.command for reply in found if reply.command != "MESSAGE"] == ["CONNECTED", "RECEIPT", "RECEIPT"]
    assert client.ended and harness.broker.shared.inbound.held_bytes == 0
    return [reply.body for reply in found if reply.command == "MESSAGE"]


def test_frames_may_be_cut_anywhere() -> None:
    for at in range(1, len(SENDS)):
        assert run([CONNECT, SENDS[:at], SENDS[at:]]) == BODIES, at


def test_frames_may_come_byte_by_byte_and_in_random_pieces() -> None:
    whole = CONNECT + SENDS
    assert run([whole[at : at + 1] for at in range(len(whole))]) == BODIES
    for seed in range(50):
        dice = random.Random(seed)
        cuts = sorted(dice.sample(range(len(CONNECT), len(whole)), 12))
        assert run([whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]) == BODIES, seed


def test_what_is_left_of_a_turn_is_handled_in_the_next() -> None:
    harness = Harness()
    client = stomp_client(harness)
    harness.broker.shared.feed_units = 3
    replies = client.feed(frame("SUBSCRIBE", {"destination": "/queue/q", "id": "0"}))
    for number in range(20):
        client.peer.feed(frame("SEND", {"destination": "/queue/q"}, b"%d" % number))
    harness.settle()
    replies += client.take()
    assert [reply.body for reply in replies] == [b"%d" % number for number in range(20)]


def test_a_large_body_is_kept_in_pieces_that_are_counted() -> None:
    harness = Harness()
    client = stomp_client(harness)
    client.feed(b"SEND\ndestination:/queue/q\ncontent-length:600000\n\n")
    for _ in range(599):
        client.feed(b"y" * 1000)
    held = int(harness.broker.shared.inbound.held_bytes)
    assert 599_000 <= held < 610_000
    client.feed(b"y" * 1000 + b"\0")
    assert harness.broker.shared.inbound.held_bytes == 0
    assert int(harness.queue("q").ready_bytes) == 600_000


@pytest.mark.parametrize(
    "data",
    [
        b"x" * (HEAD_BYTES + 1),
        b"SEND\n" + b"a:b\n" * (HEADERS_MAX + 2),
        b"SEND\ndestination:/queue/q\ncontent-length:99999999999\n\n",
        b"SEND\ndestination:/queue/q\ncontent-length:3\n\nabcd\0",
        b"SUBSCRIBE\ndestination:/queue/q\nid:0\n\nbody\0",
        b"SUBSCRIBE\ndestination:/queue/q\nid:0\n\nbody without an end",
        b"GET / HTTP/1.1\nHost: a\n\n\0",
        b"AMQP\0\0\x09\x01\n\n\0",
    ],
    ids=lambda data: repr(data[:24]),
)
def test_what_is_no_frame_ends_the_connection_with_an_error(data: bytes) -> None:
    client = stomp_client(Harness())
    (reply,) = client.feed(data)
    assert reply.command == "ERROR" and client.ended


def test_a_body_without_an_end_is_bounded() -> None:
    harness = Harness(message_max_bytes=100_000)
    client = stomp_client(harness)
    client.feed(b"SEND\ndestination:/queue/q\n\n")
    replies = [reply for _ in range(110) for reply in client.feed(b"z" * 1000)]
    assert [reply.command for reply in replies] == ["ERROR"]
    assert harness.broker.shared.inbound.held_bytes == 0


@pytest.mark.parametrize("data", [b"CONNECT\n" + b"a" * EARLY_BYTES, b"CONNECT\n\nbody\0", b"CONNECT\n\nbody"])
def test_little_is_taken_before_the_login(data: bytes) -> None:
    client = StompClient(Harness())
    assert [reply.command for reply in client.feed(data)] == ["ERROR"] and client.ended


def test_who_does_not_log_in_is_dropped() -> None:
    harness = Harness()
    client = StompClient(harness)
    client.feed(b"CONNECT\n")
    harness.pass_time(harness.broker.limits.handshake_timeout_s + 1)
    assert client.ended


def test_a_head_in_many_pieces_is_looked_at_a_bounded_number_of_times() -> None:
    client = stomp_client(Harness())
    client.feed(b"SEND\n")
    for _ in range(HEADERS_MAX - 1):
        for piece in (b"a" * 100, b":", b"b" * 100, b"\n"):
            assert client.feed(piece) == []
    client.feed(b"destination:/queue/q\n")
    assert client.feed(b"\n\0") == []
    assert int(client.harness.vhost.queues["q"].ready_count) == 1


def test_who_reads_nothing_costs_an_outbox() -> None:
    harness = Harness()
    reader, writer = stomp_client(harness), stomp_client(harness)
    reader.send("SUBSCRIBE", destination="/queue/q", id="0")
    harness.clients[reader.peer.key].stalled = True
    for _ in range(100):
        writer.send("SEND", b"x" * 100_000, destination="/queue/q")
    assert reader.peer.outbox.waiting_bytes() < 2 * harness.broker.limits.outbox_soft_bytes
    assert int(harness.queue("q").ready_count) > 80


def test_random_changes_of_frames_break_nothing_but_their_connection() -> None:
    harness = Harness()
    whole = CONNECT + SENDS
    other = stomp_client(harness)
    for seed in range(400):
        dice = random.Random(seed)
        data = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(data))
            data[at : at + dice.randint(0, 3)] = dice.choice((b"\0", b"\n", b":", b"\\", b"\xff", dice.randbytes(3)))
        client = StompClient(harness)
        cut = dice.randrange(len(data))
        for piece in (bytes(data[:cut]), bytes(data[cut:])):
            if not client.ended:
                client.peer.feed(piece)
                harness.settle()
        split_frames(harness.clients[client.peer.key].take())
        harness.hang_up(harness.clients[client.peer.key])
        harness.check()
    assert harness.broker.shared.inbound.held_bytes == 0
    assert harness.broker.open_connections == 1
    assert other.send("BEGIN", transaction="t", receipt="r")[0].command == "RECEIPT"


@pytest.mark.parametrize("end", ["DISCONNECT", "a refused message", "an error"])
def test_what_follows_the_end_in_the_same_read_leaves_nothing_behind(end: str) -> None:
    harness = Harness()
    client = stomp_client(harness)
    queues = {"x-max-length": 1, "x-overflow": "reject-publish", "durable": "false"}
    client.send("SEND", b"1", destination="/queue/full", **queues)
    ends = {
        "DISCONNECT": frame("DISCONNECT"),
        "a refused message": frame("SEND", {"destination": "/amq/queue/full", "receipt": "r"}, b"2"),
        "an error": frame("ACK", {"id": "nothing"}),
    }
    rest = frame("SUBSCRIBE", {"destination": "/topic/t", "id": "0"}) + frame("SEND", {"destination": "/queue/q"}, b"x")
    client.feed(ends[end] + rest)
    assert client.ended
    assert list(harness.vhost.queues) == ["full"]
    assert not harness.broker.connections
