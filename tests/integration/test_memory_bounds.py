"""Peers that do not read and publishers that do not stop: the broker's memory has bounds, and others do not suffer.

The tests measure the resident memory of the process. The bounds are generous: a failure would exceed them by far.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broker_process import WarrenProcess, wait_until
from compat.pika_client.wire import WireClient
from pika import spec

from warren.amqp import methods as m
from warren.amqp.codec import frame as encode_frame
from warren.amqp.codec import method_frame

from .peers import Traffic, broker_at, content_header, next_body, open_wire, publish_frames

MIB = 1 << 20


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    with WarrenProcess(tmp_path_factory.mktemp("bounds")) as broker:
        yield broker


def _small_receiver(process: WarrenProcess, channel_number: int = 1) -> WireClient:
    """Open a connection whose kernel buffers take little, so that it is the broker that has to hold what waits."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.settimeout(30)
    peer.connect(("127.0.0.1", process.amqp_port))
    client = WireClient(broker_at(process), peer)
    client.handshake()
    client.open_channel(channel_number)
    return client


class Sender:
    """Sends in a thread, for a peer that the broker stops reading."""

    def __init__(self, client: WireClient, pieces: list[bytes]) -> None:
        self.sent = 0
        self._client = client
        self._pieces = pieces
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        # Not the client's own timeout: this may be held up for as long as the test likes.
        self._client.socket.settimeout(60)
        for piece in self._pieces:
            try:
                self._client.send_bytes(piece)
            except OSError:
                return
            self.sent += 1

    def is_done(self) -> bool:
        return self.sent == len(self._pieces)

    def join(self) -> None:
        self._thread.join()


class Holder:
    """Takes `count` deliveries in a thread and acknowledges nothing until it is `released`: its deliveries cannot leave
    the broker's memory, while messages waiting in a queue can go to disk.
    """

    def __init__(self, client: WireClient, queue: str, count: int) -> None:
        self.bodies: list[bytes] = []
        self._client = client
        self._count = count
        self._released = threading.Event()
        client.send(1, spec.Basic.Consume(queue=queue))
        client.expect(spec.Basic.ConsumeOk, 1)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def release(self) -> None:
        self._acknowledge()
        self._released.set()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        self._client.socket.settimeout(60)
        while len(self.bodies) < self._count:
            self.bodies.append(next_body(self._client, spec.Basic.Deliver))
            if self._released.is_set():
                self._acknowledge()

    def _acknowledge(self) -> None:
        self._client.send(1, spec.Basic.Ack(delivery_tag=0, multiple=True))


def _settled(value: Callable[[], int]) -> Callable[[], bool]:
    """Return a condition that holds when `value` is the same as at the last twenty looks."""
    seen: list[int] = []

    def is_settled() -> bool:
        seen.append(value())
        return len(seen) > 20 and len(set(seen[-20:])) == 1

    return is_settled


def _queue(client: WireClient, name: str = "", channel_number: int = 1) -> str:
    client.send(channel_number, spec.Queue.Declare(queue=name, auto_delete=True))
    return str(client.expect(spec.Queue.DeclareOk, channel_number).queue)


def _consume(client: WireClient, queue: str, channel_number: int = 1) -> None:
    client.send(channel_number, spec.Basic.Consume(queue=queue, no_ack=True))
    client.expect(spec.Basic.ConsumeOk, channel_number)


# --- peers that do not read ------------------------------------------------------------------------------------------


def test_consumers_that_never_read_cost_an_outbox_each_and_hold_up_nobody(process: WarrenProcess) -> None:
    stalled, count, body = 30, 1200, b"x" * 65536
    before = process.resident_bytes()
    # Another channel number than the publisher's: the broker cannot send on what it received without a copy.
    clients = [_small_receiver(process, channel_number=2) for _ in range(stalled)]
    reader = open_wire(process)
    for client in clients:
        queue = _queue(client, channel_number=2)
        client.send(2, spec.Queue.Bind(queue=queue, exchange="amq.fanout"))
        client.expect(spec.Queue.BindOk, 2)
        _consume(client, queue, channel_number=2)
    queue = _queue(reader)
    reader.send(1, spec.Queue.Bind(queue=queue, exchange="amq.fanout"))
    reader.expect(spec.Queue.BindOk, 1)
    _consume(reader, queue)
    with open_wire(process) as publisher, reader:
        sender = Sender(publisher, [publish_frames("amq.fanout", "", body)] * count)
        for _ in range(count):
            assert next_body(reader, spec.Basic.Deliver) == body
        sender.join()
        grown = process.resident_bytes() - before
        # The messages themselves once, and for each that stalls at most two outboxes and what the kernel has not taken.
        bound = count * len(body) + stalled * 3 * MIB + 40 * MIB
        print(f"grown by {grown // MIB} MiB of {bound // MIB}; unbounded would be {stalled * count * len(body) // MIB}")
        assert grown < bound
    for client in clients:
        client.close()


def test_a_stalled_consumer_that_reads_again_gets_everything_in_order(process: WarrenProcess) -> None:
    count = 400
    with _small_receiver(process, channel_number=2) as consumer, open_wire(process) as publisher:
        queue = _queue(consumer, channel_number=2)
        _consume(consumer, queue, channel_number=2)
        publisher.send(1, spec.Confirm.Select())
        publisher.expect(spec.Confirm.SelectOk, 1)
        for number in range(count):
            publisher.send_bytes(publish_frames("", queue, b"%d" % number + b"-" * 30000))
        confirmed = 0
        while confirmed < count:
            confirmed = publisher.expect(spec.Basic.Ack, 1).delivery_tag
        for number in range(count):
            assert next_body(consumer, spec.Basic.Deliver).startswith(b"%d-" % number)


@pytest.mark.long
def test_a_peer_that_does_not_read_its_get_oks_is_not_asked_for_more(process: WarrenProcess) -> None:
    rounds, body = 300, b"y" * MIB
    with open_wire(process) as publisher, _small_receiver(process, channel_number=2) as getter:
        queue = _queue(publisher)
        publisher.send(1, spec.Confirm.Select())
        publisher.expect(spec.Confirm.SelectOk, 1)
        publisher.send_bytes(publish_frames("", queue, body))
        publisher.expect(spec.Basic.Ack, 1)
        before = process.resident_bytes()
        requests = [
            method_frame(2, m.BasicGet(0, queue, False)) + method_frame(2, m.BasicReject(tag, True))
            for tag in range(1, rounds + 1)
        ]
        sender = Sender(getter, [b"".join(requests)])
        with Traffic(process) as others:
            wait_until(_settled(process.resident_bytes), "the broker to stop asking")
            seen = others.count
            wait_until(lambda: others.count > seen + 50, "messages of others to flow")
        grown = process.resident_bytes() - before
        print(f"grown by {grown // MIB} MiB")
        assert grown < 100 * MIB
        # The answers were delayed, not lost: a client that reads again gets the rest.
        for _ in range(rounds):
            assert next_body(getter, spec.Basic.GetOk) == body
        sender.join()


@pytest.mark.long
def test_a_peer_that_does_not_read_small_replies_is_held_up_and_then_answered(process: WarrenProcess) -> None:
    rounds = 400_000  # the kernel and the broker hold some 150,000
    name = "r" * 250
    with _small_receiver(process) as asker:
        _queue(asker, name)
        before = process.resident_bytes()
        request = method_frame(1, m.QueueDeclare(0, name, True, False, False, False, False, bytes(4)))
        sender = Sender(asker, [request * 1000] * (rounds // 1000))
        wait_until(_settled(lambda: sender.sent), "the broker to stop asking", 60)
        assert not sender.is_done(), "nothing held the asker up"
        grown = process.resident_bytes() - before
        print(f"grown by {grown // MIB} MiB after {sender.sent}000 requests")
        assert grown < 120 * MIB
        reply = method_frame(1, m.QueueDeclareOk(name, 0, 0))
        left = rounds * len(reply)
        asker.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MIB)
        while left:
            left -= len(asker.socket.recv(min(left, MIB)))
        sender.join()
        asker.open_channel(2)


@pytest.mark.long
def test_a_publisher_that_does_not_read_its_returns_is_held_up_and_then_answered(process: WarrenProcess) -> None:
    rounds, body = 300, b"z" * MIB
    with _small_receiver(process) as publisher:
        before = process.resident_bytes()
        sender = Sender(publisher, [publish_frames("", "nowhere", body, mandatory=True)] * rounds)
        wait_until(_settled(lambda: sender.sent), "the broker to stop reading", 60)
        grown = process.resident_bytes() - before
        print(f"grown by {grown // MIB} MiB after {sender.sent} returns")
        assert grown < 100 * MIB
        assert not sender.is_done(), "nothing held the publisher up"
        publisher.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MIB)
        for _ in range(rounds):
            assert next_body(publisher, spec.Basic.Return) == body
        sender.join()
        publisher.open_channel(2)


# --- bodies announced and not sent -----------------------------------------------------------------------------------


def _begin_publish(channel_number: int, body_bytes: int) -> bytes:
    publish = method_frame(channel_number, m.BasicPublish(0, "", "nowhere", mandatory=False, immediate=False))
    return publish + content_header(channel_number, body_bytes)


def test_announced_bodies_cost_nothing_before_they_come(process: WarrenProcess) -> None:
    channels, announced = 1500, 16 * MIB
    with open_wire(process) as client:
        for number in range(2, channels + 1):
            client.open_channel(number)
        before = process.resident_bytes()
        client.send_bytes(b"".join(_begin_publish(number, announced) for number in range(1, channels + 1)))
        # Bodies on some of them, so that all of the above has been read when something comes back.
        _poke(client, process)
        grown = process.resident_bytes() - before
        print(f"grown by {grown / MIB:.1f} MiB for {channels * announced // MIB} MiB announced")
        assert grown < 8 * MIB


def _poke(client: WireClient, process: WarrenProcess) -> None:
    """Wait until the broker has handled everything sent before."""
    client.open_channel(2000)
    client.send(2000, spec.Channel.Close(200, "", 0, 0))
    client.expect(spec.Channel.CloseOk, 2000)


def test_bodies_sent_in_part_cost_what_was_sent_and_go_with_their_connection(process: WarrenProcess) -> None:
    channels, part = 400, b"p" * 100_000
    before = process.resident_bytes()
    with open_wire(process) as client:
        for number in range(2, channels + 1):
            client.open_channel(number)
        for number in range(1, channels + 1):
            client.send_bytes(_begin_publish(number, 16 * MIB) + encode_frame(m.FRAME_BODY, number, part))
        _poke(client, process)
        grown = process.resident_bytes() - before
        print(f"grown by {grown // MIB} MiB for {channels * len(part) // MIB} MiB sent")
        assert grown < 2 * channels * len(part) + 20 * MIB
    wait_until(lambda: process.resident_bytes() - before < 25 * MIB, "the memory of the bodies to be given back")


# --- the watermark ---------------------------------------------------------------------------------------------------


def _has_input(client: WireClient) -> bool:
    return bool(select.select([client.socket], [], [], 0)[0])


@pytest.mark.long
def test_above_the_watermark_publishers_wait_consumers_drain_and_nothing_is_lost(tmp_path: Path) -> None:
    watermark, size, count = 128 * MIB, 20_000, 12_000
    settings = {"limits.memory_high_watermark": watermark}
    with (
        WarrenProcess(tmp_path, settings=settings) as process,
        open_wire(process, capabilities={"connection.blocked": True}) as told,
        open_wire(process) as untold,
        open_wire(process, capabilities={"connection.blocked": True}) as consumer,
    ):
        queue = _queue(consumer)
        holder = Holder(consumer, queue, 2 * count)
        told.send(1, spec.Confirm.Select())
        told.expect(spec.Confirm.SelectOk, 1)
        filler = b"-" * size
        by_told = Sender(told, [publish_frames("", queue, b"told %d" % n + filler) for n in range(count)])
        by_untold = Sender(untold, [publish_frames("", queue, b"untold %d" % n + filler) for n in range(count)])

        confirmed = 0
        while True:
            got = told.next_frame()
            method = getattr(got, "method", None)
            if isinstance(method, spec.Connection.Blocked):
                assert method.reason == "low on memory"
                break
            assert isinstance(method, spec.Basic.Ack)
            confirmed = method.delivery_tag
        wait_until(_settled(lambda: by_told.sent + by_untold.sent), "both publishers to be held up")
        assert not by_told.is_done()
        assert not by_untold.is_done()
        assert not _has_input(untold), "a client without the capability was told"
        assert process.resident_bytes() < watermark + 64 * MIB
        assert process.health() == 200

        # The broker serves clients that do not publish: they declare and acknowledge.
        with open_wire(process) as other:
            other.send(1, spec.Queue.Declare(exclusive=True))
            other.expect(spec.Queue.DeclareOk, 1)
        holder.release()
        by_told.join()
        by_untold.join()
        unblocked = 0
        while confirmed < count or not unblocked:
            method = getattr(told.next_frame(), "method", None)
            if isinstance(method, spec.Basic.Ack):
                confirmed = method.delivery_tag
            else:
                unblocked += isinstance(method, spec.Connection.Unblocked)
        assert confirmed == count
        holder.join()
        assert not _has_input(consumer), "a client that does not publish was told"
        next_number = {b"told": 0, b"untold": 0}
        for body in holder.bodies:
            name, number = body.split(b"-", 1)[0].split(b" ")
            assert int(number) == next_number[name], "lost, doubled or out of order"
            next_number[name] += 1
        assert set(next_number.values()) == {count}
        process.kill()
