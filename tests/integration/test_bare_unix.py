"""A broker does everything on a Unix that has nothing of Linux's; and with each selector that can be had here."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pika
import pytest
from broker_process import WarrenProcess

from warren.server.network.readiness import kinds

from .peers import connect

BARE_UNIX = Path(__file__).parent / "bare_unix.py"
IN_A_SUITE = """
import pika
from warren.testing import Broker

with Broker() as broker:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        channel.basic_publish("", "q", b"body", pika.BasicProperties(delivery_mode=2))
    broker.restart()
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        print(connection.channel().basic_get("q", auto_ack=True)[2].decode())
"""


def publish(process: WarrenProcess, count: int) -> None:
    with connect(process) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        for number in range(count):
            channel.basic_publish("", "q", str(number).encode(), pika.BasicProperties(delivery_mode=2))


def bodies(process: WarrenProcess, count: int) -> list[bytes | None]:
    with connect(process) as connection:
        channel = connection.channel()
        return [channel.basic_get("q", auto_ack=True)[2] for _ in range(count)]


def asked(process: WarrenProcess, path: str) -> Any:
    """Return the answer of the API; None: none without parameters, or in this state."""
    request = urllib.request.Request(f"http://127.0.0.1:{process.http_port}{path}")
    request.add_header("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
    try:
        with urllib.request.urlopen(request) as answer:
            body = answer.read()
            return json.loads(body) if answer.headers["Content-Type"] == "application/json" else body
    except urllib.error.HTTPError as error:
        if error.code == 500:
            raise
        return None


@pytest.mark.long
def test_a_broker_confirms_and_keeps_messages_where_there_is_nothing_of_linux(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path, wrapper=[sys.executable, str(BARE_UNIX)]) as process:
        publish(process, 20)
        (node,) = asked(process, "/api/nodes")
        assert node["fd_used"] > 10
        assert node["mem_used"] > 1 << 20
        for path, operations in asked(process, "/api/openapi.json")["paths"].items():
            if "get" in operations and "{" not in path:
                asked(process, path)
        process.kill()
        process.start()
        assert bodies(process, 20) == [str(number).encode() for number in range(20)]
        process.stop()
        assert "Traceback" not in process.log()


def test_a_broker_in_a_test_suite_runs_there_too(tmp_path: Path) -> None:
    script = tmp_path / "suite.py"
    script.write_text(IN_A_SUITE)
    done = subprocess.run([sys.executable, str(BARE_UNIX), str(script)], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr, done.returncode) == ("body\n", "", 0)


@pytest.mark.parametrize("selector", kinds())
def test_a_broker_serves_with_the_selector_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, selector: str
) -> None:
    monkeypatch.setenv("WARREN_SELECTOR", selector)
    with WarrenProcess(tmp_path) as process:
        publish(process, 20)
        assert bodies(process, 20) == [str(number).encode() for number in range(20)]
        process.stop()


def test_a_selector_that_is_not_there_is_a_mistake_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARREN_SELECTOR", "kqueue")
    process = WarrenProcess(tmp_path)
    process.spawn()
    assert process.wait() == 1
    assert process.log().count("\n") == 1
    assert "WARREN_SELECTOR=kqueue: this system has epoll, poll" in process.log()
