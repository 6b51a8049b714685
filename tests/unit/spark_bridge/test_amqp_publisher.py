"""The publisher of the writer against a broker that breaks the protocol. amqp_publisher.py (2) and (4)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from warren.amqp import methods
from warren.amqp.codec import method_frame
from warren.spark_bridge.amqp_publisher import Publisher, Unconfirmed
from warren.spark_bridge.bridge_errors import BrokerError, Unreachable
from warren.spark_bridge.frames import encode_publishes
from warren.spark_bridge.properties import encode_properties

START = methods.ConnectionStart(0, 9, {}, b"PLAIN", b"en_US")


@contextmanager
def broker(answers: bytes = b"", frame_max: int = 0) -> Iterator[int]:
    """Play a broker that sends `answers` once the client has published; yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(8)
                handshake: list[tuple[int, Any]] = [
                    (0, START),
                    (0, methods.ConnectionTune(0, frame_max, 0)),
                    (0, methods.ConnectionOpenOk("")),
                    (1, methods.ChannelOpenOk(b"")),
                    (1, methods.ConfirmSelectOk()),
                ]
                for channel, method in handshake:
                    sock.sendall(method_frame(channel, method))
                    if not sock.recv(1 << 16):
                        return
                try:
                    sock.sendall(answers)
                    while sock.recv(1 << 16):
                        pass
                except OSError:
                    pass  # the publisher has given up, which is what the test looks at

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def publish(port: int, count: int = 2) -> Publisher:
    """Publish so many messages, and wait for their confirms."""
    messages = encode_publishes("", "q", encode_properties({}, count), pa.array([b"x"] * count, pa.binary()))
    with Publisher("127.0.0.1", port, "/", "guest", "guest", confirm_timeout_s=30) as made:
        made.publish(messages)
        made.finish()
    return made


def ack(tag: int, *, multiple: bool = False) -> bytes:
    return method_frame(1, methods.BasicAck(tag, multiple))


RETURNED = method_frame(1, methods.BasicReturn(312, "NO_ROUTE", "", "q"))


@pytest.mark.parametrize(
    "answers",
    [ack(2, multiple=True), ack(2) + ack(1), ack(1) + ack(1) + ack(2)],
    ids=["at once", "from behind", "twice"],
)
def test_confirms_are_counted_in_any_order(answers: bytes) -> None:
    with broker(answers) as port:
        made = publish(port)
    assert made.confirmed == made.sent == 2


@pytest.mark.parametrize(
    "answers",
    [ack(3), ack(3, multiple=True), ack((1 << 64) - 1, multiple=True)],
    ids=["one", "up to it", "the largest"],
)
def test_a_confirm_of_what_was_not_sent_is_an_error_and_confirms_nothing(answers: bytes) -> None:
    with broker(answers) as port, pytest.raises(BrokerError, match=r"confirmed message \d+ of 2"):
        publish(port)


def test_more_returns_than_messages_are_an_error() -> None:
    with broker(RETURNED * 3) as port, pytest.raises(BrokerError, match="returned more than the 2 messages"):
        publish(port)


def test_of_many_returned_messages_three_are_named() -> None:
    with broker(RETURNED * 9 + ack(9, multiple=True)) as port, pytest.raises(Unconfirmed) as found:
        publish(port, 9)
    assert "9 messages were routed to no queue" in str(found.value)
    assert str(found.value).count("routing key 'q'") == 3


def test_a_frame_larger_than_agreed_on_is_refused_before_it_has_come() -> None:
    with (
        broker(b"\x01\x00\x01\xff\xff\xff\xff") as port,
        pytest.raises(Unreachable, match="a frame of 4294967295 bytes"),
    ):
        publish(port)


def test_a_broker_that_takes_tiny_frames_only_is_refused() -> None:
    with broker(frame_max=23) as port, pytest.raises(Unreachable, match="takes frames of 23 bytes; 4096 are the least"):
        publish(port)
