"""A confirm waits for the disk: the tests delay and fail syncs of the log, and watch the answers.

While a sync is held, the broker must not answer requests that depend on it; everything else continues. The tests check
that an answer is *not* there after a later request was answered: earlier answers have arrived by then.
"""

from __future__ import annotations

import errno
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from broker_process import WarrenProcess
from compat.pika_client.wire import Ended, WireClient
from integration.peers import next_body, open_wire
from pika import BasicProperties, frame, spec

from .held_disk import HeldDisk, compiled_shim

PERSISTENT: Literal[2] = 2
TRANSIENT: Literal[1] = 1


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled shim."""
    return compiled_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, shim: Path) -> Iterator[tuple[WarrenProcess, HeldDisk]]:
    """A broker for all tests that leave it running, and its disk."""
    directory = tmp_path_factory.mktemp("held")
    disk = HeldDisk(directory, shim)
    with WarrenProcess(directory, {"http": "off"}, wrapper=disk.wrapper) as process:
        with open_wire(process) as client:
            for queue in ("q", "r"):
                client.send(1, spec.Queue.Declare(queue=queue, durable=True))
                client.expect(spec.Queue.DeclareOk, 1)
        yield process, disk


@pytest.fixture
def broker(shared: tuple[WarrenProcess, HeldDisk]) -> Iterator[WarrenProcess]:
    """The shared broker; afterwards its disk is released in any case."""
    yield shared[0]
    shared[1].release()


@pytest.fixture
def disk(shared: tuple[WarrenProcess, HeldDisk]) -> HeldDisk:
    """The disk of the shared broker."""
    return shared[1]


def _confirming(process: WarrenProcess) -> WireClient:
    client = open_wire(process)
    client.send(1, spec.Confirm.Select())
    client.expect(spec.Confirm.SelectOk, 1)
    return client


def _publish(client: WireClient, body: bytes, queue: str = "q", delivery_mode: Literal[1, 2] = PERSISTENT) -> None:
    client.send(1, spec.Basic.Publish(exchange="", routing_key=queue))
    client.send_header(1, len(body), BasicProperties(delivery_mode=delivery_mode))
    client.send_body(1, body)


def _round_trip(client: WireClient) -> list[object]:
    """Ask for something and return the methods that came before the answer."""
    client.send(1, spec.Queue.Declare(queue="q", passive=True))
    before: list[object] = []
    while True:
        got = client.next_frame()
        assert isinstance(got, frame.Method), got
        if isinstance(got.method, spec.Queue.DeclareOk):
            return before
        before.append(got.method)


def _has_nothing_to_read(client: WireClient) -> bool:
    return not select.select([client.socket], [], [], 0)[0]


# --- the shim -------------------------------------------------------------------------------------------------------

_THREE_SYNCS = """
import os, sys
for name in ("other", "messages/log/0000000001", "messages/log/0000000001"):
    with open(name, "ab") as file:
        try:
            os.fdatasync(file.fileno())
            print("synced", flush=True)
        except OSError as error:
            print(error.errno, flush=True)
"""


def test_the_shim_holds_counts_and_fails_syncs_of_the_log_and_of_nothing_else(tmp_path: Path, shim: Path) -> None:
    disk = HeldDisk(tmp_path, shim)
    (tmp_path / "messages" / "log").mkdir(parents=True)
    disk.hold()
    command = [*disk.wrapper, sys.executable, "-c", _THREE_SYNCS]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"synced\n"
        assert disk.await_sync() == 1
        assert (disk.asked, disk.done) == (1, 0)
        disk.fail(2)
        disk.release()
        assert process.stdout.read() == b"synced\n%d\n" % errno.EIO
    assert (disk.asked, disk.done) == (2, 1)


# --- answers that wait ----------------------------------------------------------------------------------------------


def test_between_a_publish_and_its_confirm_there_is_a_sync_of_the_log(broker: WarrenProcess, disk: HeldDisk) -> None:
    with _confirming(broker) as client:
        for number in range(1, 21):
            before = disk.done
            _publish(client, b"body")
            assert client.expect(spec.Basic.Ack, 1).delivery_tag == number
            assert disk.done > before


def test_a_confirm_of_a_persistent_message_waits_for_the_sync(broker: WarrenProcess, disk: HeldDisk) -> None:
    with _confirming(broker) as client:
        disk.hold()
        _publish(client, b"body")
        disk.await_sync()
        assert _round_trip(client) == []
        disk.release()
        assert client.expect(spec.Basic.Ack, 1).delivery_tag == 1


def test_a_commit_is_answered_after_the_sync(broker: WarrenProcess, disk: HeldDisk) -> None:
    with open_wire(broker) as client, open_wire(broker) as other:
        client.send(1, spec.Tx.Select())
        client.expect(spec.Tx.SelectOk, 1)
        _publish(client, b"one")
        _publish(client, b"two", "r")
        assert _round_trip(client) == []
        disk.hold()
        client.send(1, spec.Tx.Commit())
        disk.await_sync()
        assert _round_trip(other) == []
        assert _has_nothing_to_read(client)
        disk.release()
        client.expect(spec.Tx.CommitOk, 1)


def test_a_commit_of_acks_alone_is_answered_after_the_sync(broker: WarrenProcess, disk: HeldDisk) -> None:
    with _confirming(broker) as publisher, open_wire(broker) as client:
        publisher.send(1, spec.Queue.Declare(queue="acks", durable=True))
        publisher.expect(spec.Queue.DeclareOk, 1)
        _publish(publisher, b"body", "acks")
        publisher.expect(spec.Basic.Ack, 1)
        client.send(1, spec.Tx.Select())
        client.expect(spec.Tx.SelectOk, 1)
        client.send(1, spec.Basic.Get(queue="acks"))
        assert next_body(client, spec.Basic.GetOk) == b"body"
        client.send(1, spec.Basic.Ack(delivery_tag=1))
        assert _round_trip(client) == []
        disk.hold()
        client.send(1, spec.Tx.Commit())
        disk.await_sync()
        assert _round_trip(publisher) == []
        assert _has_nothing_to_read(client)
        disk.release()
        client.expect(spec.Tx.CommitOk, 1)


def test_what_needs_no_disk_goes_on_while_the_disk_hangs(broker: WarrenProcess, disk: HeldDisk) -> None:
    with _confirming(broker) as waiting, _confirming(broker) as client:
        client.send(1, spec.Queue.Declare(queue="fleeting", exclusive=True))
        client.expect(spec.Queue.DeclareOk, 1)
        client.send(1, spec.Basic.Consume(queue="fleeting", no_ack=True))
        client.expect(spec.Basic.ConsumeOk, 1)
        disk.hold()
        _publish(waiting, b"waits")
        disk.await_sync()
        _publish(client, b"transient", delivery_mode=TRANSIENT)
        assert client.expect(spec.Basic.Ack, 1).delivery_tag == 1
        _publish(client, b"persistent, but its queue is not", "fleeting")
        got = [client.next_frame() for _ in range(4)]
        bodies = [one.fragment for one in got if isinstance(one, frame.Body)]
        assert bodies == [b"persistent, but its queue is not"]
        assert any(isinstance(one, frame.Method) and isinstance(one.method, spec.Basic.Ack) for one in got)
        assert _round_trip(waiting) == []
        disk.release()
        waiting.expect(spec.Basic.Ack, 1)


def test_publishes_of_many_connections_share_a_sync(broker: WarrenProcess, disk: HeldDisk) -> None:
    clients = [_confirming(broker) for _ in range(20)]
    disk.hold()
    before = disk.done
    for client in clients:
        for _ in range(10):
            _publish(client, b"body")
    disk.await_sync()
    for client in clients:
        assert _round_trip(client) == []
    disk.release()
    for client in clients:
        confirmed = 0
        while confirmed < 10:
            confirmed = client.expect(spec.Basic.Ack, 1).delivery_tag
        client.close()
    # The one that was held, one for all that gathered meanwhile, and room for a housekeeping one.
    assert disk.done - before <= 4


@pytest.mark.long
def test_confirms_of_a_broker_told_not_to_wait_do_not_wait(tmp_path: Path, shim: Path) -> None:
    disk = HeldDisk(tmp_path, shim)
    settings = {"store.confirm": "os"}
    with WarrenProcess(tmp_path, {"http": "off"}, settings, disk.wrapper) as process:
        with _confirming(process) as client:
            client.send(1, spec.Queue.Declare(queue="q", durable=True))
            client.expect(spec.Queue.DeclareOk, 1)
            disk.hold()
            for number in range(1, 11):
                _publish(client, b"body")
                assert client.expect(spec.Basic.Ack, 1).delivery_tag == number
            disk.release()
        process.kill()
        process.start()
        with open_wire(process) as client:
            client.send(1, spec.Queue.Declare(queue="q", passive=True))
            assert client.expect(spec.Queue.DeclareOk, 1).message_count == 10


# --- a sync that fails ----------------------------------------------------------------------------------------------


def _acks_until_the_end(client: WireClient) -> int:
    """Return how many acks came before the broker hung up."""
    acks = 0
    try:
        while True:
            got = client.next_frame()
            if isinstance(got, frame.Method) and isinstance(got.method, spec.Basic.Ack):
                acks += 1
    except Ended:
        return acks
    finally:
        client.close()


def test_a_sync_that_fails_ends_the_broker_and_nothing_is_confirmed_any_more(tmp_path: Path, shim: Path) -> None:
    disk = HeldDisk(tmp_path, shim)
    process = WarrenProcess(tmp_path, {"http": "off"}, wrapper=disk.wrapper)
    process.start()
    try:
        clients = [_confirming(process) for _ in range(5)]
        clients[0].send(1, spec.Queue.Declare(queue="q", durable=True))
        clients[0].expect(spec.Queue.DeclareOk, 1)
        for number in range(10):
            _publish(clients[0], b"confirmed %d" % number)
            clients[0].expect(spec.Basic.Ack, 1)
        disk.hold()
        for client in clients:
            _publish(client, b"never confirmed")
        number = disk.await_sync()
        for client in clients:
            assert _round_trip(client) == []
        # Once only: the next sync would report success, and nothing of what was lost.
        disk.fail(number)
        disk.release()
        assert [_acks_until_the_end(client) for client in clients] == [0] * 5
        assert process.wait() > 0
        assert "Input/output error" in process.log()
    finally:
        disk.release()
        process.kill()

    again = WarrenProcess(tmp_path, {"http": "off"})
    with again, open_wire(again) as client:
        client.send(1, spec.Queue.Declare(queue="q", passive=True))
        count = client.expect(spec.Queue.DeclareOk, 1).message_count
        bodies = []
        for _ in range(count):
            client.send(1, spec.Basic.Get(queue="q", no_ack=True))
            bodies.append(next_body(client, spec.Basic.GetOk))
        assert bodies[:10] == [b"confirmed %d" % number for number in range(10)]
        assert set(bodies[10:]) <= {b"never confirmed"}
