"""The demo: that it passes against a broker, that it would notice if it did not, and that it cleans up."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from broker_process import WarrenProcess

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "demo.py"
DEADLINE_S = 120


def _loaded() -> Any:
    spec = importlib.util.spec_from_file_location("warren_demo", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["warren_demo"] = module
    spec.loader.exec_module(module)
    return module


demo = _loaded()


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


@pytest.mark.long
def test_every_consumer_receives_exactly_what_was_sent_to_it_and_the_output_is_plain(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path) as broker:
        result = run_demo("--url", f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/%2F")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Everybody received exactly what was sent to them." in result.stdout
    assert "\x1b" not in result.stdout
    for subscription in demo.SUBSCRIPTIONS:
        assert f" {subscription.name} " in result.stdout


def test_nobody_listening_at_the_given_url_is_said_in_one_line(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path) as broker:
        port = broker.amqp_port
    result = run_demo("--url", f"amqp://127.0.0.1:{port}/%2F")
    assert result.returncode == 2
    assert result.stderr == f"demo: nothing listens on 127.0.0.1:{port}\n"


@pytest.mark.long
def test_a_broker_started_by_the_demo_listens_and_is_gone_afterwards() -> None:
    with demo.broker_of_our_own() as url:
        parameters = demo.parameters_of(url)
        assert demo.is_listening(parameters)
    assert not demo.is_listening(parameters)


def test_the_queues_want_different_records_and_none_wants_nothing() -> None:
    days = demo.load_days()
    wanted = [demo.expected_of(subscription, days) for subscription in demo.SUBSCRIPTIONS]
    assert all(wanted)
    assert demo.returns_of(days, "topic"), "some record is returned, or returns are not shown"
    assert not demo.returns_of(days, "fanout")


@pytest.mark.parametrize(
    ("received", "problem"),
    [
        ([[1, 2, 3]], ""),
        ([[1, 3]], "1 missing, 0 not expected, 0 twice"),
        ([[1, 2, 3, 4]], "0 missing, 1 not expected, 0 twice"),
        ([[1, 2, 2, 3]], "0 missing, 0 not expected, 1 twice"),
        ([[2, 1, 3]], "not in the order of publishing"),
        ([[2], [1, 3]], ""),
        ([[2], [1, 2, 3]], "0 missing, 0 not expected, 1 twice"),
    ],
)
def test_what_differs_from_what_was_sent_is_named(received: list[list[int]], problem: str) -> None:
    subscription = demo.SUBSCRIPTIONS[0]
    consumptions = [demo.Consumption(subscription, numbers) for numbers in received]
    assert demo.problem_of([1, 2, 3], consumptions) == problem


def test_a_consumer_that_failed_is_a_difference_even_if_it_received_everything() -> None:
    consumption = demo.Consumption(demo.SUBSCRIPTIONS[0], [1], failure="ConnectionClosed")
    assert demo.problem_of([1], [consumption]) == "ConnectionClosed"
