"""The process that follows for a broker: its orders and its reports. Numbers: served.py."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from warren.lake.metrics import Meter
from warren.lake.places import Places
from warren.lake.served import Service
from warren.lake.table_errors import Overtaken
from warren.spark_bridge.bridge_errors import NotFound, UsageError

Follow = Callable[[Mapping[str, Any], Places, Meter, threading.Event], None]


class Panic(BaseException):
    """Stands for the panic of a library in Rust."""


def service(follow: Follow) -> tuple[Service, list[Mapping[str, Any]]]:
    said: list[Mapping[str, Any]] = []
    return Service(said.append, follow), said


def of(said: list[Mapping[str, Any]], number: int) -> list[str]:
    return [each["state"] for each in said if each.get("id") == number]


def ended(made: Service, said: list[Mapping[str, Any]], number: int) -> Mapping[str, Any]:
    made.end(60.0)
    made.report()
    return [each for each in said if each.get("id") == number][-1]


def test_a_table_is_told_of_when_something_changes() -> None:
    going, gone = threading.Event(), threading.Event()

    def follow(order: Mapping[str, Any], places: Places, meter: Meter, stop: threading.Event) -> None:
        meter.up = True
        meter.rows = 5
        going.set()
        stop.wait()
        gone.set()

    made, said = service(follow)
    made.take({"start": 3})
    assert going.wait(60)
    made.report()
    made.report()
    assert of(said, 3) == ["running"], "the second time there was nothing new"
    assert said[0]["rows"] == 5
    assert [each["alive"] for each in said if "alive" in each] == [True, True]
    made.take({"stop": 3})
    assert gone.wait(60)
    last = ended(made, said, 3)
    assert (last["state"], last["reason"], last["again"]) == ("ended", "", False)


def test_a_step_that_fails_is_told_with_its_reason() -> None:
    going = threading.Event()

    def follow(order: Mapping[str, Any], places: Places, meter: Meter, stop: threading.Event) -> None:
        meter.up, meter.problem = True, "no catalogue"
        going.set()
        stop.wait()

    made, said = service(follow)
    made.take({"start": 1})
    assert going.wait(60)
    made.report()
    assert (said[0]["state"], said[0]["reason"]) == ("failing", "no catalogue")
    made.end(60.0)


@pytest.mark.parametrize(
    ("error", "reason", "again"),
    [
        (UsageError("does not fit"), "does not fit", False),
        (Overtaken("another process follows"), "another process follows", False),
        (NotFound("there is no queue", 404, "not_found"), "there is no queue", True),
        (ModuleNotFoundError("x", name="pyiceberg.catalog"), "pyiceberg is not installed", False),
        (RuntimeError("a\nb"), "RuntimeError: a", True),
        (MemoryError(), "MemoryError: ", True),
        (Panic("called unwrap() on a None"), "Panic: called unwrap() on a None", True),
    ],
)
def test_a_table_that_ends_badly_says_why_and_whether_to_try_again(
    error: BaseException, reason: str, again: bool
) -> None:
    """(1)."""

    def follow(order: Mapping[str, Any], places: Places, meter: Meter, stop: threading.Event) -> None:
        raise error

    made, said = service(follow)
    made.take({"start": 1})
    last = ended(made, said, 1)
    assert last["state"] == "ended"
    assert last["reason"].startswith(reason)
    assert last["again"] is again


def test_a_table_that_gets_no_thread_has_ended_and_the_others_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """(1)."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    made, said = service(lambda order, places, meter, stop: None)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        made.take({"start": 1})
    made.take({"start": 2})
    last = ended(made, said, 1)
    assert (last["state"], last["reason"], last["again"]) == ("ended", "can't start new thread", True)
    assert of(said, 2) == ["ended"]


def test_nothing_is_opened_that_the_places_do_not_allow() -> None:
    said: list[Mapping[str, Any]] = []
    made = Service(said.append)
    made.take({"places": "/srv/lake"})
    value = {"stream": "orders", "to": "/etc/shop.orders"}
    made.take({"start": 1, "vhost": "/", "url": "http://127.0.0.1:1", "token": "t", "value": value})
    last = ended(made, said, 1)
    assert last["reason"] == "to /etc: the setting lake_places allows directories below /srv/lake"
    assert last["again"] is False


def test_the_process_ends_with_its_input_and_says_lines_of_json_only() -> None:
    """(2), (3)."""
    orders = [{"places": ""}, {"start": 1, "vhost": "/", "url": "http://127.0.0.1:1", "token": "t", "value": {}}]
    text = "".join(json.dumps(each) + "\n" for each in orders)
    with subprocess.Popen(
        [sys.executable, "-m", "warren.lake.served"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(text.encode())
        process.stdin.flush()
        lines: list[dict[str, Any]] = []
        while not any(each.get("state") == "ended" for each in lines):
            lines.append(json.loads(process.stdout.readline()))
        process.stdin.close()
        assert process.wait(60) == 0
        rest = process.stdout.read()
    assert all(isinstance(json.loads(line), dict) for line in io.BytesIO(rest))
    assert any(each.get("memory_bytes", 0) > 1 << 20 for each in lines)
    last = next(each for each in lines if each.get("state") == "ended")
    assert last["reason"] == 'missing "to": the target table'
