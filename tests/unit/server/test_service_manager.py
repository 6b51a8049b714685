"""The service manager is told what systemd's protocol says, and cannot do the broker any harm."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from warren.server.service_manager import ServiceManager


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        yield sock


def environment(manager: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.getsockname(), **more}


def told(manager: socket.socket) -> list[list[str]]:
    """Return the lines of all messages that have arrived."""
    messages = []
    while True:
        try:
            messages.append(manager.recv(4096).decode().split("\n"))
        except BlockingIOError:
            return messages


def test_it_is_told_ready_reloading_and_stopping(manager: socket.socket) -> None:
    ours = ServiceManager.from_environment(environment(manager))
    ours.ready("listening on amqp://127.0.0.1:5672")
    with ours.reloading():
        pass
    ours.stopping()
    ready, reloading, again, stopping = told(manager)
    assert ready == again == ["READY=1", "STATUS=listening on amqp://127.0.0.1:5672"]
    # With Type=notify-reload the time has to be that of CLOCK_MONOTONIC: others are taken for an older reload.
    assert reloading[0] == "RELOADING=1"
    assert reloading[1].startswith("MONOTONIC_USEC=") and int(reloading[1].partition("=")[2]) > 0
    assert stopping[0] == "STOPPING=1"


def test_a_reload_before_the_broker_serves_does_not_say_that_it_does(manager: socket.socket) -> None:
    with ServiceManager.from_environment(environment(manager)).reloading():
        pass
    assert told(manager) == []


def test_a_reload_that_fails_ends_all_the_same(manager: socket.socket) -> None:
    ours = ServiceManager.from_environment(environment(manager))
    ours.ready("x")
    with pytest.raises(ZeroDivisionError), ours.reloading():
        raise ZeroDivisionError
    assert [message[0] for message in told(manager)] == ["READY=1", "RELOADING=1", "READY=1"]


def test_a_name_of_the_abstract_namespace_is_understood() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0warren-test-{os.getpid()}")
        sock.settimeout(10)
        ServiceManager.from_environment({"NOTIFY_SOCKET": f"@warren-test-{os.getpid()}"}).stopping()
        assert sock.recv(100).startswith(b"STOPPING=1")


@pytest.mark.parametrize("address", ["", "notify", "vsock:2:1234"])
def test_without_a_manager_that_we_can_talk_to_nothing_happens(address: str) -> None:
    ours = ServiceManager.from_environment({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"})
    ours.ready("x")
    assert ours.watchdog_s == 0


def test_a_manager_that_is_gone_is_no_fault_of_ours(tmp_path: Path, manager: socket.socket) -> None:
    assert ServiceManager.from_environment({"NOTIFY_SOCKET": str(tmp_path / "none")}).watchdog_s == 0
    ours = ServiceManager.from_environment(environment(manager))
    manager.close()
    ours.ready("x")


def test_a_manager_that_does_not_read_does_not_keep_us_waiting(manager: socket.socket) -> None:
    ours = ServiceManager.from_environment(environment(manager))
    for _ in range(10_000):
        ours.ready("x" * 1000)
    assert 0 < len(told(manager)) < 10_000


def test_the_watchdog_hears_from_the_loop_three_times_within_its_time(manager: socket.socket) -> None:
    ours = ServiceManager.from_environment(environment(manager, WATCHDOG_USEC="30000000"))

    async def run() -> None:
        with trio.move_on_after(95):
            await ours.keep_alive()

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    assert told(manager) == [["WATCHDOG=1"]] * 10


@pytest.mark.parametrize(
    "variables",
    [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}],
)
def test_without_a_watchdog_of_this_process_nothing_is_told(manager: socket.socket, variables: dict[str, str]) -> None:
    ours = ServiceManager.from_environment(environment(manager, **variables))
    trio.run(ours.keep_alive)
    assert told(manager) == []


def test_a_watchdog_of_this_process_is_obeyed(manager: socket.socket) -> None:
    variables = {"WATCHDOG_USEC": "1500000", "WATCHDOG_PID": str(os.getpid())}
    assert ServiceManager.from_environment(environment(manager, **variables)).watchdog_s == 1.5
