"""Attacks on memory: contents that do not end, and bindings with large arguments."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from itertools import islice

from peer_frames import content_header

from warren.amqp import methods as m
from warren.amqp.codec import frame, method_frame

from .attack_words import LOAD_S, Ports, attack, bind, exchange, hostile, queue, until_closed


@attack
def unfinished_bodies(ports: Ports) -> None:
    """A connection with 700 MB of contents, none of which ends."""
    client = hostile(ports)
    channels = range(2, 102)
    client.open(*channels)
    piece = b"x" * 130_000

    def parts() -> Iterator[bytes]:
        for channel in channels:
            yield method_frame(channel, m.BasicPublish(0, "", "q", mandatory=False, immediate=False))
            yield frame(m.FRAME_HEADER, channel, content_header({}, 16_000_000))
        for _ in range(54):
            for channel in channels:
                yield frame(m.FRAME_BODY, channel, piece)

    with contextlib.suppress(OSError, AssertionError):
        client.sock.settimeout(LOAD_S)
        for part in parts():
            client.sock.sendall(part)
    time.sleep(LOAD_S / 2)
    client.close()


@attack
def announced_bodies(ports: Ports) -> None:
    """Two thousand contents of which nothing but the size has come."""
    client = hostile(ports)
    channels = range(2, 2_000)
    client.open(*channels)
    for channel in channels:
        client.send(method_frame(channel, m.BasicPublish(0, "", "q", mandatory=False, immediate=False)))
        client.send(frame(m.FRAME_HEADER, channel, content_header({}, 16_000_000)))
    time.sleep(LOAD_S / 4)
    client.close()


@attack
def headers_bindings(ports: Ports) -> None:
    """Bindings with large arguments, as many as fit into the load."""
    client = hostile(ports)
    client.pump([exchange("headers", "headers"), queue("h")])
    numbers = iter(range(1_000_000))

    def some() -> None:
        large = [bind("h", "headers", "", {"n": number, "large": "x" * 10_000}) for number in islice(numbers, 500)]
        client.pump(large)

    until_closed(some)
    with contextlib.suppress(OSError):
        client.pump([method_frame(1, m.ExchangeDelete(0, "headers", if_unused=False, no_wait=True))])
        client.barrier()
