"""How bytes become frames: cut anywhere, held back, changed at random, never ending."""

from __future__ import annotations

import random

import pytest
from amqp10_harness import Amqp10Client, Frame, amqp10_client, message, section, split_frames
from engine_harness import PASSWORD, USER, Harness

from warren.amqp10.performatives import (
    ACCEPTED,
    AMQP_HEADER,
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    FRAME_SASL,
    HEARTBEAT,
    MODIFIED,
    OPEN,
    REJECTED,
    SASL_HEADER,
    SASL_INIT,
    SOURCE,
    TARGET,
    TRANSFER,
    described,
    frame,
)
from warren.amqp10.values import Symbol, UByte, UInt, UShort

LOGIN = SASL_HEADER + frame(0, SASL_INIT, [Symbol("PLAIN"), f"\0{USER}\0{PASSWORD}".encode()], frame_type=FRAME_SASL)
PAIRED = {Symbol("paired"): True}


def transfer(handle: int, number: int, payload: bytes, *, more: bool = False, settled: bool = False) -> bytes:
    head = frame(0, TRANSFER, [UInt(handle), UInt(number), b"t", UInt(0), settled, more])
    return (len(head) + len(payload)).to_bytes(4, "big") + head[4:] + payload


def attach(handle: int, role: bool, address: str | None, properties: object = None) -> bytes:
    terminus = [described(SOURCE, [address]), described(TARGET, [address])]
    return frame(
        0,
        ATTACH,
        [
            f"link-{handle}",
            UInt(handle),
            role,
            UByte(2),
            UByte(0),
            *terminus,
            None,
            None,
            UInt(0),
            *[None] * 3,
            properties,
        ],
    )


REQUEST = section(0x73, ["id", None, "/queues/made", "PUT", "$me"]) + section(0x77, {"durable": False})
FRAMES = [
    AMQP_HEADER,
    frame(0, OPEN, ["c", "vhost:/", UInt(4096), UShort(10), UInt(60000), None, None, None, None, {Symbol("p"): "v"}]),
    frame(0, BEGIN, [None, UInt(0), UInt(100), UInt(100)]),
    attach(0, False, "/queues/q"),
    attach(1, True, "/queues/q"),
    attach(2, False, "/management", PAIRED),
    attach(3, True, "/management", PAIRED),
    attach(4, False, None),
    frame(0, FLOW, [UInt(0), UInt(100), UInt(0), UInt(100), UInt(3), UInt(0), UInt(5)]),
    HEARTBEAT,
    frame(0, FLOW, [UInt(0), UInt(100), UInt(0), UInt(100), UInt(1), UInt(0), UInt(10)]),
    transfer(0, 0, message(b"one", durable=True)),
    transfer(0, 1, message(b"two")[:20], more=True),
    transfer(0, 1, message(b"two")[20:]),
    transfer(4, 2, section(0x73, [None, None, "/queues/q"]) + section(0x77, "three"), settled=True),
    transfer(2, 3, REQUEST, settled=True),
    frame(0, DISPOSITION, [True, UInt(0), UInt(0), True, described(ACCEPTED, [])]),
    frame(0, DISPOSITION, [True, UInt(1), UInt(1), False, described(MODIFIED, [True, False])]),
    frame(0, DISPOSITION, [True, UInt(2), UInt(3), True, described(REJECTED, [])]),
    frame(0, FLOW, [UInt(4), UInt(100), UInt(4), UInt(100), UInt(1), UInt(5), UInt(10), None, True]),
    frame(0, DETACH, [UInt(1), True]),
    frame(0, END, []),
    frame(0, CLOSE, []),
]
SESSION = b"".join(FRAMES)


def play(pieces: list[bytes]) -> list[Frame]:
    """Return what comes back when that is received in `pieces`, and check what is left."""
    harness = Harness()
    harness.channel().declare("q", durable=True)
    client = Amqp10Client(harness)
    client.raw(LOGIN)
    answer = b"".join(client.raw(piece) for piece in pieces)
    assert answer[:8] == AMQP_HEADER
    assert client.ended and harness.broker.shared.inbound.held_bytes == 0
    harness.check()
    return split_frames(answer)


def test_frames_may_be_cut_anywhere() -> None:
    whole = [each.name for each in play([SESSION])]
    assert whole[0] == "open" and whole[-2:] == ["end", "close"]
    assert sorted(whole) == sorted(each.name for each in play([SESSION]))
    for at in range(1, len(SESSION), 3):
        found = play([SESSION[:at], SESSION[at:]])
        assert found[-1].name == "close" and found[-1].fields == []


def test_frames_may_come_byte_by_byte() -> None:
    found = play([SESSION[at : at + 1] for at in range(len(SESSION))])
    assert found[-1].name == "close" and found[-1].fields == []


def test_a_frame_that_trickles_is_not_copied_with_each_byte() -> None:
    harness = Harness()
    harness.channel().declare("q")
    client = amqp10_client(harness)
    client.sender(0, "/queues/q")
    data = client.transfer_frame(0, message(b"x" * 100_000))
    for at in range(0, len(data), 10):
        client.feed(data[at : at + 10], settle=False)
        assert len(client.peer._input.rest) < 64 and len(client.peer._input._pieces) <= 10
    harness.settle()
    assert harness.queue("q").ready_count == 1


def test_work_is_done_in_turns() -> None:
    harness = Harness()
    harness.channel().declare("q")
    client = amqp10_client(harness)
    client.sender(0, "/queues/q")
    harness.broker.shared.feed_units = 50
    client.feed(b"".join(client.transfer_frame(0, message(b"x")) for _ in range(500)), settle=False)
    assert 0 < harness.queue("q").ready_count < 200
    harness.settle()
    assert harness.queue("q").ready_count == 500


def changed(data: bytes, chance: random.Random) -> bytes:
    """Change a few bytes of a frame, its length, or what it has at all."""
    found = bytearray(data)
    kind = chance.randrange(6)
    if kind == 0:
        return data * chance.randrange(3)
    if kind == 1 and len(found) > 8:
        del found[chance.randrange(8, len(found)) :]
        found[:4] = len(found).to_bytes(4, "big")  # cut, and says so
        return bytes(found)
    if kind == 2:
        at = chance.randrange(len(found))
        found[at:at] = chance.randbytes(chance.randrange(1, 9))
        found[:4] = len(found).to_bytes(4, "big")
        return bytes(found)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(4 if kind == 3 else 0, len(found))
        found[at] = chance.choice((0, 1, 0x40, 0x45, 0x53, 0x70, 0xC0, 0xD0, 0xFF, chance.randrange(256)))
    return bytes(found)


@pytest.mark.parametrize("seed", range(8))
def test_changed_frames_end_what_they_have_to_and_nothing_is_left(seed: int) -> None:
    chance = random.Random(seed)
    harness = Harness()
    for _ in range(60):
        harness.channel().declare("q", durable=True)
        client = Amqp10Client(harness)
        client.raw(LOGIN)
        frames = [changed(each, chance) if chance.random() < 0.15 else each for each in FRAMES[1:]]
        data = FRAMES[0] + b"".join(frames)
        while data and not client.ended:
            size = chance.randrange(1, len(data) + 1)
            client.raw(data[:size])  # the answer has whole frames only
            data = data[size:]
        harness.check()
        client.hang_up()
        harness.pass_time(40)
    for other in list(harness.clients.values()):
        harness.hang_up(other)
    harness.check_idle()


@pytest.mark.parametrize("seed", range(4))
def test_arbitrary_bytes_behind_a_login_end_the_connection(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(50):
        harness = Harness()
        client = Amqp10Client(harness)
        client.raw(LOGIN)
        client.raw(AMQP_HEADER + chance.randbytes(chance.randrange(200)))
        harness.pass_time(40)
        assert client.ended
