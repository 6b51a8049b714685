"""`warren ctl top`: once into a pipe, and drawn on a terminal of our own. Numbers: ``ctl/top.py``."""

from __future__ import annotations

import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from typing import Self

import pytest

from .conftest import Ctl
from .fake_api import FakeApi, Reply
from .test_looking_commands import NODE, OVERVIEW

DEADLINE_S = 60.0
LONG = "a-queue-with-a-name-that-no-terminal-is-wide-enough-for-" + "x" * 150
QUEUES = [
    {"vhost": "/", "name": LONG, "messages": 9, "messages_ready": 8, "messages_unacknowledged": 1, "consumers": 2},
    {"vhost": "/", "name": "red\x1b[31m", "messages": 3, "message_stats": {"publish_details": {"rate": 7.5}}},
]
CONNECTIONS = [
    {"user": "bob", "name": "1.2.3.4:5 -> 6.7.8.9:5672", "state": "running", "recv_oct_details": {"rate": 5}},
    {"user": "bob", "name": "1.2.3.4:6 -> 6.7.8.9:5672", "user_provided_name": "billing\x1b", "state": "running"},
]


@pytest.fixture
def broker(api: FakeApi) -> FakeApi:
    api.answer("GET", "overview", OVERVIEW)
    api.answer("GET", "nodes/n%40h", NODE)
    api.answer("GET", "queues", {"items": QUEUES, "page_count": 5})
    api.answer("GET", "connections", {"items": CONNECTIONS, "page_count": 1})
    return api


def test_once_is_whole_in_a_pipe(broker: FakeApi, ctl: Ctl) -> None:
    """(1) (2)"""
    ended = ctl("top", "--once", "--limit", "7", "--sort", "publish")
    assert (ended.exit_code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert [line.split() for line in lines[:4]][1:] == [["node", "n@h"], ["memory", "5.0", "MiB"], ["alarms", "memory"]]
    assert f"/\t{LONG}\t8\t1\t9\t0\t0\t2" in lines
    assert "/\tred\\x1b[31m\t0\t0\t3\t7.5\t0\t0" in lines
    assert "bob\t1.2.3.4:5 -> 6.7.8.9:5672\t\trunning\t0\t5\t0" in lines
    assert "bob\tbilling\\x1b (1.2.3.4:6 -> 6.7.8.9:5672)\t\trunning\t0\t0\t0" in lines
    (queues,) = [asked.path for asked in broker.asked if asked.path.startswith("/api/queues")]
    assert "sort=message_stats.publish_details.rate&sort_reverse=true" in queues and "page_size=7" in queues
    (connections,) = [asked.path for asked in broker.asked if asked.path.startswith("/api/connections")]
    assert "user_provided_name" in connections
    whole = json.loads(ctl("top", "--once", "--formatter", "json").out)
    assert (whole["queues"], whole["connections"]) == (QUEUES, CONNECTIONS)
    assert (whole["overview"], whole["node"]) == (OVERVIEW, NODE)


def test_a_list_of_a_broker_that_knows_no_pages_is_cut_to_the_limit(broker: FakeApi, ctl: Ctl) -> None:
    del broker.answers["GET", "queues"]
    broker.answer("GET", "queues", QUEUES * 10)
    assert len(json.loads(ctl("top", "--once", "--limit", "3", "--formatter", "json").out)["queues"]) == 3


def test_one_vhost_alone_is_looked_at(broker: FakeApi, ctl: Ctl) -> None:
    broker.answer("GET", "queues/v", [])
    broker.answer("GET", "vhosts/v/connections", [])
    assert json.loads(ctl("-p", "v", "top", "--once", "--formatter", "json").out)["queues"] == []


def test_who_may_not_see_the_node_sees_the_rest(broker: FakeApi, ctl: Ctl) -> None:
    del broker.answers["GET", "nodes/n%40h"]
    broker.answer("GET", "nodes/n%40h", {"error": "not_authorised", "reason": "Not monitor user"}, 401)
    ended = ctl("top", "--once")
    assert ended.exit_code == 0 and "alarms" not in ended.out and "\tred" in ended.out


def test_a_pipe_without_once_is_wrong_usage(broker: FakeApi, ctl: Ctl) -> None:
    """(2)"""
    assert ctl("top") == (2, "", "warren ctl: top: standard output is not a terminal: use --once\n")
    assert broker.asked == []


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e9", "soon"])
def test_an_interval_that_cannot_be_is_wrong_usage(broker: FakeApi, ctl: Ctl, value: str) -> None:
    assert ctl("top", "--once", "--interval", value).exit_code == 2


def test_a_broker_that_is_away_is_exit_code_3(ctl: Ctl) -> None:
    ended = ctl("-u", "http://127.0.0.1:1", "top", "--once")
    assert ended.exit_code == 3 and ended.out == ""


class Terminal:
    """The command on a terminal of a given size; `screen` is all that it has drawn."""

    def __init__(self, api: FakeApi, *arguments: str, rows: int = 30, columns: int = 100, term: str = "xterm") -> None:
        self._ours, theirs = pty.openpty()
        self._theirs = theirs
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._mode = termios.tcgetattr(theirs)
        environment = {name: text for name, text in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        environment |= {"WARREN_CTL_URL": api.url, "TERM": term}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "warren.ctl", "top", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
        )
        self.screen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    def await_text(self, text: str) -> None:
        """Read the output until `text` comes, after all earlier awaited texts."""
        give_up_at = time.monotonic() + DEADLINE_S
        while text not in self.screen:
            assert time.monotonic() < give_up_at, f"no {text!r} in {self.screen[-2000:]!r}"
            self._read(0.1)
        self.screen = self.screen.partition(text)[2]

    def _read(self, seconds: float) -> None:
        if select.select([self._ours], [], [], seconds)[0]:
            self.screen += os.read(self._ours, 65536).decode(errors="replace")

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def end(self) -> int:
        """Read on until the command has ended; return its exit code."""
        give_up_at = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:
            assert time.monotonic() < give_up_at, "it does not end"
            self._read(0.05)
        self._read(0.05)
        return self.process.returncode

    def is_as_before(self) -> bool:
        return termios.tcgetattr(self._theirs) == self._mode


def test_the_screen_is_drawn_sorted_by_keys_and_left_with_q(broker: FakeApi) -> None:
    """(1) (4)"""
    with Terminal(broker, "--interval", "0.5") as terminal:
        terminal.await_text("a-queue-with-a-name")
        terminal.await_text("red\\x1b[31m")
        terminal.await_text("bob")
        terminal.await_text("sorted by messages")
        terminal.press(b"d")
        terminal.await_text("sorted by deliver")
        assert any("deliver_get_details.rate&sort_reverse" in asked.path for asked in list(broker.asked))
        terminal.press(b"q")
        assert terminal.end() == 0
        assert terminal.is_as_before()
        assert "\x1b[?1049l" in terminal.screen  # back from the screen of its own


def test_ctrl_c_ends_it_with_130_and_leaves_the_terminal_as_it_was(broker: FakeApi) -> None:
    """(4)"""
    with Terminal(broker) as terminal:
        terminal.await_text("sorted by messages")
        os.kill(terminal.process.pid, 2)
        assert terminal.end() == 130
        assert terminal.is_as_before()


def test_a_broker_that_goes_away_leaves_its_last_figures_and_is_asked_again(broker: FakeApi) -> None:
    """(3)"""
    with Terminal(broker, "--interval", "0.5") as terminal:
        terminal.await_text("sorted by messages")
        before = broker.answers.pop(("GET", "overview"))
        assert isinstance(before, Reply)
        broker.answer("GET", "overview", None, silence=True)
        terminal.await_text("cannot reach")
        terminal.await_text("a-queue-with-a-name")
        broker.answers["GET", "overview"] = before
        broker.answers["GET", "queues"] = before._replace(value=[{"vhost": "/", "name": "back-again"}])
        terminal.await_text("back-again")
        terminal.press(b"q")
        assert terminal.end() == 0


def test_credentials_that_are_refused_meanwhile_end_it(broker: FakeApi) -> None:
    """(3)"""
    with Terminal(broker, "--interval", "0.5") as terminal:
        terminal.await_text("sorted by messages")
        broker.answers.pop(("GET", "overview"))
        broker.answer("GET", "overview", {"error": "not_authorised", "reason": "Login failed"}, 401)
        terminal.await_text("warren ctl: refused: Login failed")
        assert terminal.end() == 4
        assert terminal.is_as_before()


def test_a_tiny_terminal_shows_what_fits(broker: FakeApi) -> None:
    with Terminal(broker, rows=3, columns=20) as terminal:
        terminal.await_text("node")
        terminal.press(b"q")
        assert terminal.end() == 0


def test_a_terminal_that_cannot_draw_is_wrong_usage(broker: FakeApi) -> None:
    with Terminal(broker, term="dumb") as terminal:
        terminal.await_text("use --once")
        assert terminal.end() == 2
