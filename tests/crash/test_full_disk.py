"""A disk that fills up: publishers wait, consumers continue, no confirmed message is lost, and everything resumes by
itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker_process import WarrenProcess, wait_until
from compat.pika_client.wire import WireClient
from integration.peers import broker_at, next_body, open_wire
from pika import BasicProperties, frame, spec

from .small_disk import SmallDisk

MIB = 1 << 20
BODY_BYTES = 16_000
FREE_MIN_BYTES = 8 * MIB
# Less than the kernel buffers between us and a broker that does not read.
IN_FLIGHT_MAX = 20


def _broker(directory: Path, disk: SmallDisk, free_min_bytes: int) -> WarrenProcess:
    settings = {
        "store.segment_bytes": MIB,
        "store.checkpoint_bytes": MIB,
        "store.disk_free_min_bytes": free_min_bytes,
    }
    return WarrenProcess(directory, {"http": "off"}, settings, disk.wrapper)


def _body(number: int) -> bytes:
    return b"%08d" % number + bytes([number & 0xFF]) * BODY_BYTES


class Publisher:
    """Publishes numbered persistent messages to queue ``q`` with confirms, and listens to connection.blocked."""

    def __init__(self, process: WarrenProcess, last: int = 0) -> None:
        self.confirmed: list[int] = []
        self.reason = ""
        self.last = last
        self._first_tag_is = last + 1
        self._waiting: list[int] = []
        self.client = WireClient(broker_at(process))
        self.client.handshake({"connection.blocked": True, "publisher_confirms": True, "basic.nack": True})
        self.client.open_channel()
        self.client.send(1, spec.Queue.Declare(queue="q", durable=True))
        self.client.expect(spec.Queue.DeclareOk, 1)
        self.client.send(1, spec.Confirm.Select())
        self.client.expect(spec.Confirm.SelectOk, 1)

    def publish(self) -> None:
        """Send one message."""
        self.last += 1
        self._waiting.append(self.last)
        body = _body(self.last)
        self.client.send(1, spec.Basic.Publish(exchange="", routing_key="q"))
        self.client.send_header(1, len(body), BasicProperties(delivery_mode=2))
        self.client.send_body(1, body)

    def listen(self) -> None:
        """Take what comes next: confirms, blocked, unblocked."""
        got = self.client.next_frame()
        assert isinstance(got, frame.Method), got
        method = got.method
        if isinstance(method, spec.Connection.Blocked):
            self.reason = str(method.reason)
        elif isinstance(method, spec.Connection.Unblocked):
            self.reason = ""
        else:
            assert isinstance(method, spec.Basic.Ack | spec.Basic.Nack), method
            number = self._first_tag_is - 1 + method.delivery_tag
            settled = [waiting for waiting in self._waiting if waiting <= number] if method.multiple else [number]
            self._waiting = [waiting for waiting in self._waiting if waiting not in settled]
            if isinstance(method, spec.Basic.Ack):
                self.confirmed += settled

    def publish_until_blocked(self, most: int) -> None:
        """Publish until the broker says that it is blocked, at most `most` messages."""
        end = self.last + most
        while not self.reason:
            while len(self._waiting) < IN_FLIGHT_MAX and self.last < end:
                self.publish()
            assert self._waiting, f"{most} messages of {BODY_BYTES} bytes were confirmed and nobody was blocked"
            self.listen()

    def await_confirms(self) -> None:
        """Wait until nothing is in flight and nobody is blocked."""
        while self._waiting or self.reason:
            self.listen()

    def publish_again(self) -> None:
        """Publish some more, one at a time, all of which must be confirmed."""
        for _ in range(IN_FLIGHT_MAX):
            self.publish()
            self.await_confirms()
            assert self.confirmed[-1] == self.last


def _drain(client: WireClient, *, ack: bool = True) -> list[int]:
    """Consume everything that is ready in queue ``q``, in order, and hang up; return the numbers."""
    client.send(1, spec.Queue.Declare(queue="q", passive=True))
    count = client.expect(spec.Queue.DeclareOk, 1).message_count
    client.send(1, spec.Basic.Consume(queue="q", consumer_tag="c"))
    numbers = []
    for tag in range(1, count + 1):
        body = next_body(client, spec.Basic.Deliver)
        numbers.append(int(body[:8]))
        assert body == _body(numbers[-1])
        if ack and (tag % 10 == 0 or tag == count):
            client.send(1, spec.Basic.Ack(delivery_tag=tag, multiple=True))
    # Answered when the acks are processed and what was not acked is back in the queue.
    client.end()
    assert numbers == sorted(set(numbers))
    return numbers


def test_publishers_are_blocked_before_the_disk_is_full_and_go_on_when_consumers_have_made_room(
    tmp_path: Path,
) -> None:
    with SmallDisk(tmp_path / "data", 32 * MIB) as disk, _broker(tmp_path, disk, FREE_MIN_BYTES) as process:
        publisher = Publisher(process)
        publisher.publish_until_blocked(32 * MIB // BODY_BYTES)
        assert "disk" in publisher.reason
        assert disk.free_bytes() > 0
        with open_wire(process) as consumer:
            taken = _drain(consumer)
        assert set(publisher.confirmed) <= set(taken)
        # The rest of what is in flight is read when the space of what was acked is free again.
        publisher.await_confirms()
        publisher.publish_again()
        with open_wire(process) as consumer:
            taken += _drain(consumer)
        assert taken == list(range(1, publisher.last + 1))
        publisher.client.close()


def test_a_broker_killed_while_publishers_are_blocked_starts_again_and_has_all_that_was_confirmed(
    tmp_path: Path,
) -> None:
    with SmallDisk(tmp_path / "data", 32 * MIB) as disk, _broker(tmp_path, disk, FREE_MIN_BYTES) as process:
        publisher = Publisher(process)
        publisher.publish_until_blocked(32 * MIB // BODY_BYTES)
        process.kill()
        publisher.client.close()
        process.start()
        with open_wire(process) as consumer:
            held = _drain(consumer, ack=False)
        assert set(publisher.confirmed) <= set(held)
        assert held[-1] <= publisher.last
        with open_wire(process) as consumer:
            assert _drain(consumer) == held
        again = Publisher(process, publisher.last)
        again.publish_again()
        again.client.close()


def test_a_disk_that_somebody_else_fills_to_the_last_byte_loses_nothing_that_was_confirmed(tmp_path: Path) -> None:
    with SmallDisk(tmp_path / "data", 32 * MIB) as disk, _broker(tmp_path, disk, 0) as process:
        publisher = Publisher(process)
        publisher.publish_again()
        disk.fill()
        publisher.publish_until_blocked(16 * MIB // BODY_BYTES)
        assert "disk" in publisher.reason
        with open_wire(process) as consumer:
            assert set(publisher.confirmed) <= set(_drain(consumer, ack=False))
        disk.empty()
        publisher.await_confirms()
        publisher.publish_again()
        process.kill()
        publisher.client.close()
        process.start()
        with open_wire(process) as consumer:
            assert set(publisher.confirmed) <= set(_drain(consumer))


@pytest.mark.long
def test_a_start_with_less_space_than_a_segment_takes_the_acks_that_make_some(tmp_path: Path) -> None:
    with SmallDisk(tmp_path / "data", 32 * MIB) as disk, _broker(tmp_path, disk, FREE_MIN_BYTES) as process:
        publisher = Publisher(process)
        for _ in range(16 * MIB // BODY_BYTES // IN_FLIGHT_MAX):
            publisher.publish_again()
        process.kill()
        publisher.client.close()
        disk.fill(but=MIB // 2)
        process.start()
        with open_wire(process) as consumer:
            assert _drain(consumer) == publisher.confirmed
        again = Publisher(process, publisher.last)
        again.publish()
        again.await_confirms()
        again.client.close()


def test_a_start_on_a_disk_without_a_free_byte_harms_nothing(tmp_path: Path) -> None:
    with SmallDisk(tmp_path / "data", 32 * MIB) as disk, _broker(tmp_path, disk, 0) as process:
        publisher = Publisher(process)
        publisher.publish_again()
        process.kill()
        publisher.client.close()
        disk.fill()
        announced = len(process.out())
        # Whether it serves what is there or says that it cannot.
        process.spawn()
        wait_until(lambda: "\n  stop " in process.out()[announced:] or not process.is_running(), "a decision", 30)
        if not process.is_running():
            assert process.wait() > 0
            assert "Traceback" not in process.log()
        process.kill()
        disk.empty()
        process.start()
        with open_wire(process) as consumer:
            assert _drain(consumer) == publisher.confirmed
