"""Celery with a real worker: results over rpc, retries, ETA, canvas, inspect, revoke, autoscale, events, queues."""

from __future__ import annotations

import datetime
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import TaskRevokedError

from ..broker import DEADLINE_S, Broker, wait_until
from .conftest import PROCESSES, Worker
from .tasks import IMPATIENT_MS


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """A file tasks wait for; it appears at the end of the test at the latest."""
    path = tmp_path / "gate"
    yield path
    path.touch()


def result(pending: Any) -> Any:
    """Wait for a result."""
    return pending.get(timeout=DEADLINE_S)


# tasks and results


def test_a_task_runs_and_its_result_comes_back(worker: Worker) -> None:
    assert result(worker.task("add").delay(2, 3)) == 5


def test_two_hundred_tasks_all_come_back(worker: Worker) -> None:
    pending = [worker.task("add").delay(number, number) for number in range(200)]
    assert [result(each) for each in pending] == [2 * number for number in range(200)]


def test_an_exception_comes_back_as_itself(worker: Worker) -> None:
    with pytest.raises(ValueError, match="for a reason"):
        result(worker.task("fail").delay("for a reason"))


@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}, {"priority": 3}, {"delivery_mode": 1}])
def test_large_arguments_and_results_travel_with_any_option(worker: Worker, options: dict[str, Any]) -> None:
    value = {"text": "✓" * 100_000, "list": list(range(1000)), "none": None}
    assert result(worker.task("echo").apply_async([value], **options)) == value


def test_a_task_that_retries_succeeds_at_last(worker: Worker) -> None:
    assert result(worker.task("succeed_at_last").delay(3)) == 3


def test_a_task_that_gives_up_fails_with_its_reason(worker: Worker) -> None:
    with pytest.raises(ValueError, match="not yet"):
        result(worker.task("always_retry").delay())


# countdown and ETA


def test_a_countdown_holds_a_task_back(worker: Worker) -> None:
    begin = time.time()
    pending = worker.task("executed_at").apply_async(countdown=1)
    assert result(pending) >= begin + 1


def test_an_eta_holds_a_task_back_while_others_overtake_it(worker: Worker) -> None:
    eta = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    later = worker.task("executed_at").apply_async(eta=eta)
    sooner = [worker.task("executed_at").delay() for _ in range(10)]
    assert all(result(each) < eta.timestamp() for each in sooner)
    assert not later.ready()
    worker.app.control.revoke(later.id)
    wait_until(lambda: later.id in worker.ask("revoked"), "the revocation")


def test_more_scheduled_tasks_than_the_prefetch_do_not_block_the_worker(worker: Worker) -> None:
    scheduled = [worker.task("add").apply_async([number, 0], countdown=3600) for number in range(40)]
    ids = {each.id for each in scheduled}
    # One that was revoked stays there until its time.
    wait_until(lambda: {each["request"]["id"] for each in worker.ask("scheduled")} >= ids, "forty scheduled tasks")
    assert result(worker.task("add").delay(1, 1)) == 2
    assert worker.ask("stats")["prefetch_count"] >= 40
    worker.app.control.revoke([each.id for each in scheduled])
    wait_until(lambda: set(worker.ask("revoked")) >= ids, "the revocations")


# canvas


def test_a_group_runs_side_by_side_and_keeps_the_order_of_results(worker: Worker) -> None:
    add = worker.task("add")
    assert result(group(add.s(number, 1) for number in range(20))()) == list(range(1, 21))


def test_a_chain_hands_each_result_on(worker: Worker) -> None:
    add = worker.task("add")
    assert result(chain(add.s(1, 1), add.s(10), add.s(100))()) == 112


def test_a_chain_of_many_links(worker: Worker) -> None:
    add = worker.task("add")
    assert result(chain(add.s(0, 1), *(add.s(1) for _ in range(15)))()) == 16


def test_chunks_and_maps(worker: Worker) -> None:
    add = worker.task("add")
    assert result(add.chunks(zip(range(10), range(10), strict=True), 3)()) == [
        [0, 2, 4],
        [6, 8, 10],
        [12, 14, 16],
        [18],
    ]
    assert result(worker.task("total").map([[1, 2], [3, 4]]).apply_async()) == [3, 7]


def test_chords_are_not_supported_by_the_rpc_backend(worker: Worker) -> None:
    add = worker.task("add")
    with pytest.raises(NotImplementedError, match="chord"):
        chord([add.s(1, 1), add.s(2, 2)])(worker.task("total").s())


# inspect and control


def test_inspect_ping_registered_stats_and_queues(worker: Worker) -> None:
    assert worker.ask("ping") == {"ok": "pong"}
    assert {"add", "echo", "fail", "wait_for"} <= set(worker.ask("registered"))
    stats = worker.ask("stats")
    assert stats["broker"]["transport"] == "amqp"
    assert (stats["autoscaler"]["min"], stats["autoscaler"]["max"]) == PROCESSES
    queues = {queue["name"]: queue["exchange"]["type"] for queue in worker.ask("active_queues")}
    assert queues[worker.namespace] == "direct"
    assert queues[f"{worker.namespace}.topic"] == "topic"
    assert "fanout" in queues.values()


def test_inspect_active_and_query_task_see_what_runs(worker: Worker, gate: Path) -> None:
    running = worker.task("wait_for").delay(str(gate))
    wait_until(lambda: [task["id"] for task in worker.ask("active")] == [running.id], "the task to be active")
    state, info = worker.ask("query_task", running.id)[running.id]
    assert (state, info["name"]) == ("active", "wait_for")
    gate.touch()
    assert result(running) == "released"
    wait_until(lambda: worker.ask("active") == [], "the task to be done")


def test_every_worker_of_a_broadcast_ping_answers(worker: Worker) -> None:
    assert worker.app.control.ping(timeout=DEADLINE_S, limit=1) == [{worker.hostname: {"ok": "pong"}}]


def test_a_rate_limit_is_acknowledged(worker: Worker) -> None:
    answers = worker.app.control.rate_limit("echo", "100/s", reply=True, timeout=DEADLINE_S, limit=1)
    assert "ok" in answers[0][worker.hostname]


def test_a_revoked_task_never_runs(worker: Worker, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    pending = worker.task("append").apply_async([str(journal), "ran"], countdown=3)
    worker.app.control.revoke(pending.id)
    with pytest.raises(TaskRevokedError):
        result(pending)
    assert not journal.exists()


def test_a_queue_is_added_and_removed_while_the_worker_runs(worker: Worker) -> None:
    queue = f"{worker.namespace}.late"
    add = worker.task("add")
    options = {"exchange": queue, "routing_key": queue, "reply": True, "timeout": DEADLINE_S, "limit": 1}
    (answer,) = worker.app.control.add_consumer(queue, destination=[worker.hostname], **options)
    assert "ok" in answer[worker.hostname]
    assert result(add.apply_async([20, 22], queue=queue)) == 42
    (answer,) = worker.app.control.cancel_consumer(queue, reply=True, timeout=DEADLINE_S, limit=1)
    assert "ok" in answer[worker.hostname]
    wait_until(lambda: queue not in {q["name"] for q in worker.ask("active_queues")}, "the queue to be left")
    stays = add.apply_async([1, 1], queue=queue)
    assert result(add.delay(2, 2)) == 4
    assert not stays.ready()


@pytest.mark.long
def test_two_queues_of_one_worker_are_served_in_turn(worker: Worker, gate: Path, tmp_path: Path) -> None:
    """The queue that was declared first has no advantage: the worker has one prefetch for both."""
    journal = tmp_path / "journal"
    names = ["one", "other"]
    queues = {name: f"{worker.namespace}.{name}" for name in names}
    # Enough tasks that neither queue has room in the prefetch before both have a consumer.
    full = PROCESSES[1] * 4
    blocking = [worker.task("wait_for").delay(str(gate)) for _ in range(full)]
    wait_until(lambda: len(worker.ask("active")) + len(worker.ask("reserved")) >= full, "a full prefetch")
    append = worker.task("append")
    pending = [append.apply_async([str(journal), name], queue=queues[name]) for name in names for _ in range(150)]
    for queue in queues.values():
        options = {"exchange": queue, "routing_key": queue, "reply": True, "timeout": DEADLINE_S, "limit": 1}
        (answer,) = worker.app.control.add_consumer(queue, destination=[worker.hostname], **options)
        assert "ok" in answer[worker.hostname]
    gate.touch()
    for each in [*blocking, *pending]:
        result(each)
    for queue in queues.values():
        worker.app.control.cancel_consumer(queue, reply=True, timeout=DEADLINE_S, limit=1)
    order = journal.read_text().split()
    assert sorted(order) == ["one"] * 150 + ["other"] * 150
    assert set(order[: 3 * full]) == set(names)


def test_autoscale_adds_processes_under_load_and_takes_them_away(worker: Worker, gate: Path) -> None:
    pending = [worker.task("wait_for").delay(str(gate)) for _ in range(12)]

    def processes() -> int:
        return len(worker.ask("stats")["pool"]["processes"])

    wait_until(lambda: processes() == PROCESSES[1], "the pool to grow")
    wait_until(lambda: len(worker.ask("active")) == PROCESSES[1], "four tasks at once")
    gate.touch()
    assert [result(each) for each in pending] == ["released"] * 12
    wait_until(lambda: processes() == PROCESSES[0], "the pool to shrink")


@pytest.mark.long
def test_new_limits_of_autoscale_change_the_prefetch(worker: Worker, gate: Path) -> None:
    (least, most), per_process = PROCESSES, 4

    def set_limits(new_most: int, new_least: int) -> None:
        (answer,) = worker.app.control.autoscale(new_most, new_least, reply=True, timeout=DEADLINE_S, limit=1)
        assert "ok" in answer[worker.hostname]

    def room() -> int:
        # every scheduled task adds one to the prefetch and keeps its message
        return int(worker.ask("stats")["prefetch_count"]) - len(worker.ask("scheduled"))

    def in_hand() -> int:
        return len(worker.ask("active")) + len(worker.ask("reserved"))

    pending = [worker.task("wait_for_late").delay(str(gate)) for _ in range(8 * per_process)]
    wait_until(lambda: room() == in_hand() == most * per_process, "as many tasks as the prefetch allows")
    set_limits(most + 2, least + 1)
    wait_until(lambda: room() == in_hand() == (most + 2) * per_process, "as many as the new prefetch allows")
    gate.touch()
    assert [result(each) for each in pending] == ["released"] * len(pending)
    set_limits(most, least)
    wait_until(lambda: room() == most * per_process, "the old prefetch")


# routing and delivery


def test_tasks_route_through_a_topic_exchange(worker: Worker) -> None:
    options = {"exchange": f"{worker.namespace}.topic", "routing_key": "work.of.any.kind"}
    assert result(worker.task("add").apply_async([3, 4], **options)) == 7


def test_a_broadcast_task_reaches_the_worker(worker: Worker, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    options = {"exchange": f"{worker.namespace}.broadcast", "ignore_result": True}
    worker.task("append").apply_async([str(journal), "heard"], **options)
    wait_until(lambda: journal.exists() and journal.read_text() == "heard\n", "the broadcast to be heard")


def test_a_rejected_task_is_redelivered(worker: Worker, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    worker.task("give_back_once").delay(str(journal))
    expected = "redelivered=False\nredelivered=True\n"
    wait_until(lambda: journal.exists() and journal.read_text() == expected, "the second delivery")


def test_a_late_acknowledged_task_is_acknowledged_after_it_ran(worker: Worker, gate: Path) -> None:
    running = worker.task("wait_for_late").delay(str(gate))

    def acknowledged() -> list[bool]:
        return [task["acknowledged"] for task in worker.ask("active") if task["id"] == running.id]

    wait_until(lambda: acknowledged() == [False], "the task to run unacknowledged")
    gate.touch()
    assert result(running) == "released"


def test_events_tell_the_life_of_a_task(worker: Worker) -> None:
    task_id = str(uuid.uuid4())
    heard: list[str] = []
    listening = threading.Event()

    def on_event(event: dict[str, Any]) -> None:
        if event.get("uuid") == task_id:
            heard.append(event["type"])

    def listen() -> None:
        with worker.app.connection() as connection:
            receiver = worker.app.events.Receiver(connection, handlers={"*": on_event})
            # the receiver drains a clone of the connection
            with receiver.consumer_context() as (listener_connection, _, _):
                listening.set()
                while "task-succeeded" not in heard:
                    listener_connection.drain_events(timeout=DEADLINE_S)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    assert listening.wait(DEADLINE_S)
    assert result(worker.task("add").apply_async([1, 1], task_id=task_id)) == 2
    listener.join(DEADLINE_S)
    assert heard == ["task-received", "task-started", "task-succeeded"]


# priorities, and tasks that are due later than a worker may keep them


def test_tasks_of_higher_priority_run_first(worker: Worker, tmp_path: Path) -> None:
    queue = f"{worker.namespace}.priority"
    journal = tmp_path / "journal"
    options = {"destination": [worker.hostname], "reply": True, "timeout": DEADLINE_S, "limit": 1}

    def counts() -> tuple[int, int]:
        with worker.app.connection_for_write() as connection:
            declared = connection.default_channel.queue_declare(queue, passive=True)
            return declared.message_count, declared.consumer_count

    worker.app.control.cancel_consumer(queue, **options)
    wait_until(lambda: counts() == (0, 0), "the end of the consumer, which Celery reports before")
    pending = [
        worker.task("append").apply_async([str(journal), f"{number % 10}"], queue=queue, priority=number % 10)
        for number in range(30)
    ]
    wait_until(lambda: counts() == (30, 0), "all tasks in the queue")
    worker.app.control.add_consumer(queue, **options)
    for each in pending:
        result(each)
    ran = [int(line) for line in journal.read_text().split()]
    # One may be overtaken while its process waits for the processor; the first third as a whole is not.
    assert sum(ran[:10]) > sum(ran[10:20]) > sum(ran[20:]), ran


def test_a_task_due_later_than_the_consumer_timeout_is_held_by_the_broker(
    worker: Worker, tmp_path: Path, broker: Broker
) -> None:
    if not broker.is_warren:
        pytest.skip("queues do not hold messages")
    journal = tmp_path / "journal"
    due_s = time.time() + 2 * IMPATIENT_MS / 1000
    eta = datetime.datetime.fromtimestamp(due_s, datetime.UTC)
    pending = worker.task("append").apply_async(
        [str(journal), "ran"],
        eta=eta,
        queue=f"{worker.namespace}.impatient",
        headers={"x-deliver-at": int(due_s * 1000)},
    )
    result(pending)
    assert time.time() >= due_s
    assert journal.read_text() == "ran\n", "once, and the worker was not cut off"


# at the end, because the pool takes seconds to replace the process that dies


def test_a_running_task_is_terminated(worker: Worker, gate: Path) -> None:
    running = worker.task("wait_for").delay(str(gate))
    wait_until(lambda: [task["id"] for task in worker.ask("active")] == [running.id], "the task to be active")
    worker.app.control.revoke(running.id, terminate=True)
    with pytest.raises(TaskRevokedError):
        result(running)
