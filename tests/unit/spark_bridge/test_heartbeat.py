"""Signs of life against a broker in memory; heartbeat.py (1) to (3)."""

from __future__ import annotations

import io
import sys

import pytest

from unit.spark_bridge.broker_in_memory import MemoryBroker
from warren.spark_bridge.bridge_errors import Unreachable
from warren.spark_bridge.control import BrokerClient
from warren.spark_bridge.heartbeat import Heartbeat


def broker_with(*queues: str) -> MemoryBroker:
    broker = MemoryBroker()
    for queue in queues:
        broker.queue(queue, 1)
        broker.open_drain(queue, "lake")
    broker.asked.clear()
    return broker


def test_every_session_is_marked_three_times_in_its_lease() -> None:
    broker = broker_with("a", "b")
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        return len(waited) > 2

    heartbeat = Heartbeat(lambda: broker, "lake", 60, wait=wait)
    heartbeat._epochs = {"a": 1, "b": 1}
    heartbeat.run()
    assert waited == [20, 20, 20]
    assert broker.asked == ["mark a 1", "mark b 1"] * 2 + ["close"]


def test_what_somebody_else_has_opened_is_not_marked_any_more() -> None:
    broker = broker_with("a", "b")
    heartbeat = Heartbeat(lambda: broker, "lake", 60, wait=lambda seconds: True)
    heartbeat.keep("a", 1)
    heartbeat.keep("b", 1)
    broker.open_drain("a", "lake")
    heartbeat.beat(broker)
    broker.asked.clear()
    heartbeat.beat(broker)
    assert broker.asked == ["mark b 1"]


def test_a_broker_that_does_not_answer_is_asked_again(capsys: pytest.CaptureFixture[str]) -> None:
    broker = broker_with("a", "b")
    heartbeat = Heartbeat(lambda: broker, "lake", 60, wait=lambda seconds: True)
    heartbeat.keep("a", 1)
    heartbeat.keep("b", 1)
    mark = broker.mark

    def fail(queue: str, name: str, epoch: int) -> int:
        raise Unreachable("away")

    broker.mark = fail  # type: ignore[method-assign]
    heartbeat.beat(broker)
    assert capsys.readouterr().err.count("away") == 2
    broker.mark = mark  # type: ignore[method-assign]
    broker.asked.clear()
    heartbeat.beat(broker)
    assert broker.asked == ["mark a 1", "mark b 1"]


@pytest.mark.parametrize("fault", [ConnectionResetError("reset"), RuntimeError("can't start new thread"), KeyError(1)])
def test_no_error_ends_the_signs_and_each_is_told(fault: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    broker = broker_with("a", "b")
    mark, faults, pauses = broker.mark, [fault], [False, False, True]

    def mark_or_fail(queue: str, name: str, epoch: int) -> int:
        if faults:
            raise faults.pop()
        return mark(queue, name, epoch)

    broker.mark = mark_or_fail  # type: ignore[method-assign]
    heartbeat = Heartbeat(lambda: broker, "lake", 60, wait=lambda seconds: pauses.pop(0))
    heartbeat._epochs = {"a": 1, "b": 1}
    heartbeat.run()
    assert broker.asked == ["mark b 1", "mark a 1", "mark b 1", "close"]
    assert type(fault).__name__ in capsys.readouterr().err


def test_signs_go_on_when_nothing_can_be_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = broker_with("a", "b")
    heartbeat = Heartbeat(lambda: broker, "lake", 60, wait=lambda seconds: True)
    heartbeat._epochs = {"missing": 1, "b": 1}
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    broker.mark = lambda queue, name, epoch: 1 // (queue == "b")  # type: ignore[method-assign]
    heartbeat.beat(broker)
    heartbeat.beat(broker)
    assert list(heartbeat._epochs) == ["missing", "b"]


def test_an_answer_is_not_waited_for_until_the_lease_has_ended() -> None:
    used: list[BrokerClient] = []
    pauses = [False, True]
    heartbeat = Heartbeat(BrokerClient, "lake", 60, wait=lambda seconds: pauses.pop(0))
    heartbeat.beat = used.append  # type: ignore[assignment, method-assign]
    heartbeat.run()
    (client,) = used
    assert (client._timeout_s, client._connect_timeout_s) == (10, 10)
    assert BrokerClient(timeout_s=3).impatient(10)._timeout_s == 3
