"""One client declares thousands of durable queues: commits are grouped, and the broker keeps delivering meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from broker_process import WarrenProcess
from pika import spec

from warren.amqp import methods as m
from warren.amqp.codec import method_frame

from .peers import Traffic, open_wire

PIPELINED = 10_000
ONE_BY_ONE = 2_000


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    with WarrenProcess(tmp_path_factory.mktemp("many")) as broker:
        yield broker


def _declare(name: str) -> bytes:
    return method_frame(1, m.QueueDeclare(0, name, False, True, False, False, False, bytes(4)))


def test_10_000_durable_queues_declared_pipelined_while_messages_flow(process: WarrenProcess) -> None:
    names = [f"pipelined {number}" for number in range(PIPELINED)]
    with Traffic(process) as traffic, open_wire(process) as client:
        sender = threading.Thread(target=client.send_bytes, args=(b"".join(map(_declare, names)),))
        sender.start()
        delivered = []
        for name in names:
            assert client.expect(spec.Queue.DeclareOk, 1).queue == name
            delivered.append(traffic.count)
        sender.join()
    # Replies come in groups, one per commit; between the groups there were deliveries.
    assert len(set(delivered)) >= 5, f"deliveries seen at declare-ok: {sorted(set(delivered))}"


def test_2_000_durable_queues_declared_one_by_one_while_messages_flow(process: WarrenProcess) -> None:
    with Traffic(process) as traffic, open_wire(process) as client:
        delivered = []
        for number in range(ONE_BY_ONE):
            client.send_bytes(_declare(f"one by one {number}"))
            client.expect(spec.Queue.DeclareOk, 1)
            delivered.append(traffic.count)
    assert len(set(delivered)) >= ONE_BY_ONE // 100


def test_all_of_them_are_there_after_kill_9(process: WarrenProcess) -> None:
    process.kill()
    process.start()
    with open_wire(process) as client:
        for kind, count in (("pipelined", PIPELINED), ("one by one", ONE_BY_ONE)):
            passive = b"".join(
                method_frame(1, m.QueueDeclare(0, f"{kind} {n}", True, False, False, False, False, bytes(4)))
                for n in range(count)
            )
            sender = threading.Thread(target=client.send_bytes, args=(passive,))
            sender.start()
            for number in range(count):
                assert client.expect(spec.Queue.DeclareOk, 1).queue == f"{kind} {number}"
            sender.join()
