"""Input accepted as encoded publishes, and where it is cut. publishes.py (1) and (2)."""

from __future__ import annotations

import random

import pytest
from engine_harness import Harness, content_frames, publish_frames

from warren.amqp import methods as m
from warren.amqp.codec import frame, method_frame
from warren.amqp.errors import AmqpError
from warren.amqp.field_table import encode_table
from warren.amqp.publishes import FRAME_BYTES_MAX, PublishScan, scan_publishes

ALL = 1 << 40
GOOD = publish_frames("e", "k", b"body", properties={"type": "t", "delivery_mode": 2})


def scanned(data: bytes) -> PublishScan:
    scan = PublishScan(1 << 24)
    scan_publishes(scan, data, ALL, ALL)
    return scan


def test_messages_are_counted_and_their_exchanges_named() -> None:
    data = publish_frames("one", "k", b"1") + publish_frames("two", "k", b"") * 2 + publish_frames("one", "l", b"3")
    scan = scanned(data)
    assert (scan.messages, scan.pos, list(scan.exchanges)) == (4, len(data), ["one", "two"])


def test_nothing_is_no_message() -> None:
    assert scanned(b"").messages == 0


def test_a_scan_ends_behind_a_message_however_it_is_bounded() -> None:
    sizes = [0, 1, 100, FRAME_BYTES_MAX - 8, FRAME_BYTES_MAX - 7, 300_000, 5]
    messages = [publish_frames("", "q", bytes(size)) for size in sizes]
    data = b"".join(messages)
    ends = [sum(map(len, messages[: count + 1])) for count in range(len(messages))]
    for most_bytes, most_messages in [(1, 100), (1000, 100), (ALL, 2), (150_000, 3)]:
        scan = PublishScan(1 << 24)
        before = 0
        while count := scan_publishes(scan, data, most_bytes, most_messages):
            assert scan.pos in ends
            assert count <= most_messages
            assert count == 1 or scan.pos - before <= most_bytes
            before = int(scan.pos)
        assert before == len(data)
        assert scan.messages == len(messages)


@pytest.mark.parametrize("size", [1, FRAME_BYTES_MAX - 8, FRAME_BYTES_MAX - 7, 2 * FRAME_BYTES_MAX])
def test_a_body_is_in_frames_of_a_usual_size(size: int) -> None:
    assert scanned(publish_frames("", "q", bytes(size))).messages == 1


@pytest.mark.parametrize(
    "data",
    [
        method_frame(1, m.BasicPublish(0, "", "q", mandatory=True, immediate=False)) + content_frames(1, b""),
        method_frame(1, m.BasicPublish(0, "", "q", mandatory=False, immediate=True)) + content_frames(1, b""),
        method_frame(1, m.BasicPublish(1, "", "q", mandatory=False, immediate=False)) + content_frames(1, b""),
        method_frame(2, m.BasicPublish(0, "", "q", mandatory=False, immediate=False)) + content_frames(2, b""),
        method_frame(1, m.TxCommit()),
        method_frame(1, m.BasicPublish(0, "", "q", mandatory=False, immediate=False))
        + content_frames(1, bytes((1 << 24) + 1)),
        content_frames(1, b"x"),
        GOOD + frame(8, 0, b""),
        GOOD + frame(3, 1, b"x"),
        method_frame(1, m.BasicPublish(0, "", "q", mandatory=False, immediate=False))
        + frame(2, 1, b"\x00\x3c\x00\x00" + (1 << 17).to_bytes(8, "big") + b"\x00\x00")
        + frame(3, 1, bytes(1 << 17)),
    ],
)
def test_what_is_not_a_plain_publish_is_refused(data: bytes) -> None:
    with pytest.raises(AmqpError):
        scanned(data)
    with pytest.raises(AmqpError):
        scanned(GOOD + data)


def test_every_beginning_of_a_message_is_refused() -> None:
    for end in range(1, len(GOOD)):
        with pytest.raises(AmqpError):
            scanned(GOOD[:end])


def test_what_is_accepted_is_what_a_channel_accepts() -> None:
    """Each octet changed in many ways: nothing that passes is refused for its form when it is published."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chooser = random.Random(seed)
    good = publish_frames("", "q", b"body", properties={"headers": encode_table({"h": "v"}), "type": "t"})
    harness = Harness()
    harness.channel().declare("q")
    passed = 0
    for _ in range(3000):
        changed = bytearray(good)
        for _ in range(chooser.choice([1, 1, 2])):
            changed[chooser.randrange(len(changed))] = chooser.randrange(256)
        try:
            scan = scanned(bytes(changed))
        except AmqpError:
            continue
        passed += 1
        assert scan.messages == 1
        client = harness.channel()
        client.feed(bytes(changed))
        assert [each for each in client.take() if isinstance(each.method, m.ConnectionClose)] == [], bytes(changed)
        client.hang_up()
    assert passed > 100
