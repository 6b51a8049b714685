"""A broker in a process of its own: there when `start` returns, with its log where it fails, and gone in the end."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pika
import pika.exceptions
import pytest

from warren.testing import ProcessFailed, WarrenProcess

from .test_plugin import run


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary directories are made."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(path))
    return path


def overview(warren: WarrenProcess) -> dict[str, object]:
    login = base64.b64encode(f"{warren.user}:{warren.password}".encode()).decode()
    url = f"{warren.management_url}/api/overview"
    request = urllib.request.Request(url, headers={"Authorization": f"Basic {login}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return dict(json.load(answer))


@pytest.mark.long
def test_it_serves_at_ports_of_its_own_and_keeps_what_it_confirmed(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARREN_LIMITS_HEARTBEAT_S", "no number")  # in the environment of the tests
    settings = {"limits.channel_max": 7, "log_level": "debug"}
    with WarrenProcess(user="app", password="s/cret", settings=settings) as warren:
        with pika.BlockingConnection(pika.URLParameters(warren.url)) as connection:
            channel = connection.channel()
            for _ in range(6):
                connection.channel()
            with pytest.raises(pika.exceptions.NoFreeChannels):
                connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True)
            channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
        assert overview(warren)["cluster_name"]
        first = warren.pid
        warren.kill()
        assert not warren.is_up and warren.pid is None
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", warren.port))
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", warren.port))
        warren.start()
        assert warren.pid != first
        with pika.BlockingConnection(pika.URLParameters(warren.url)) as connection:
            assert connection.channel().basic_get("q", auto_ack=True)[2] == b"x"
        with pytest.raises(RuntimeError, match="runs already"):
            warren.start()
        assert warren.logs().count("listening") == 2
        assert warren.stop() == 0
        with pytest.raises(RuntimeError, match="not running"):
            warren.stop()
    with pytest.raises(RuntimeError, match="closed"):
        warren.start()
    assert list(temporary.iterdir()) == []


def test_a_start_that_fails_says_why(temporary: Path) -> None:
    warren = WarrenProcess(settings={"limits.chanel_max": 7})
    with pytest.raises(ProcessFailed, match=r"ended with code 2\.\nIts log:\n(.*\n)*.*CHANEL_MAX"), warren:
        pass
    assert list(temporary.iterdir()) == []


def test_a_start_that_takes_too_long_is_given_up(temporary: Path) -> None:
    with pytest.raises(ProcessFailed, match="did not listen within 0 s"), WarrenProcess(start_within_s=0):
        pass
    assert list(temporary.iterdir()) == []


def test_what_it_sets_itself_cannot_be_set() -> None:
    with pytest.raises(ValueError, match="amqp, data_dir: WarrenProcess sets that itself"):
        WarrenProcess(settings={"amqp": "127.0.0.1:5672", "data_dir": "/nowhere"})


SUITE = """
def test_it(warren_process_factory, tmp_path):
    warren = warren_process_factory(data_dir=tmp_path / "data")
    print("pid", warren.pid)
    assert (tmp_path / "data" / "warren.lock").exists()
    assert not warren.is_up, "on purpose"
"""


@pytest.mark.long
def test_the_log_is_with_a_test_that_fails(tmp_path: Path) -> None:
    output = run(tmp_path, test_suite_py=SUITE)
    assert "1 failed" in output, output
    assert "on purpose" in output
    assert "listening   amqp://127.0.0.1:" in output
    (pid,) = (line.removeprefix("pid ") for line in output.splitlines() if line.startswith("pid "))
    assert not Path(f"/proc/{pid}").exists()


FORGETS = """
import os
from warren.testing import WarrenProcess
warren = WarrenProcess().start()
print(warren.pid, warren.log_path.parent, flush=True)
"""


@pytest.mark.long
def test_one_that_is_forgotten_ends_with_who_started_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORGETS],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    pid, directory = done.stdout.split()
    assert not Path(f"/proc/{pid}").exists()
    assert Path(directory).parent == tmp_path and not Path(directory).exists()


def test_it_is_imported_without_the_broker() -> None:
    code = "import sys; from warren.testing import WarrenProcess; print('trio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
