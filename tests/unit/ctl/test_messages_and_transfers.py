"""Messages that are taken, looked at, moved; definitions that are written and read."""

from __future__ import annotations

import base64
import io
import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from warren.ctl import transfers
from warren.ctl.command_table import main

from .conftest import Ctl
from .fake_api import FakeApi

MESSAGE = {
    "payload_bytes": 2,
    "redelivered": False,
    "exchange": "x",
    "routing_key": "k",
    "properties": {},
    "payload": "hi",
    "payload_encoding": "string",
}
BINARY = MESSAGE | {"payload": base64.b64encode(b"\xff\n\0").decode(), "payload_encoding": "base64"}
TRANSFER = {"id": "7", "state": "running", "total": 10, "transferred": 4, "error": None}


def test_taken_messages_go_back_unless_they_are_acknowledged(api: FakeApi, ctl: Ctl) -> None:
    api.answer("POST", "queues/%2F/q/get", [MESSAGE])
    assert ctl("get", "q").out == "routing_key\texchange\tredelivered\tpayload_bytes\tpayload\nk\tx\tfalse\t2\thi\n"
    ctl("get", "q", "-c", "5", "--ack-mode", "ack_requeue_false", "--truncate", "9")
    assert [body for _, _, body in api.changes()] == [
        {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"},
        {"count": 5, "ackmode": "ack_requeue_false", "encoding": "auto", "truncate": 9},
    ]


def test_json_of_messages_is_what_the_api_gave(api: FakeApi, ctl: Ctl) -> None:
    api.answer("POST", "queues/%2F/q/get", [MESSAGE, BINARY])
    assert json.loads(ctl("get", "q", "--formatter", "json").out) == [MESSAGE, BINARY]


def test_raw_payloads_are_bytes(api: FakeApi, ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    api.answer("POST", "queues/%2F/q/get", [MESSAGE, BINARY])
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="utf-8"))
    assert main(["get", "q", "--raw"]) == 0
    assert written.getvalue() == b"hi\n\xff\n\0\n"


def test_a_payload_that_is_no_text_is_published_as_base64(api: FakeApi, ctl: Ctl, tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(b"\xff\0")
    api.answer("POST", "exchanges/%2F/amq.default/publish", {"routed": True})
    assert ctl("publish", "-k", "q", "--file", str(tmp_path / "p")).exit_code == 0
    assert ctl("publish", "-k", "q", "--file", "-", stdin=b"\xff\0").exit_code == 0
    for _, _, body in api.changes():
        assert (body["payload"], body["payload_encoding"]) == ("/wA=", "base64")


def test_a_message_that_no_queue_took_is_a_failure(api: FakeApi, ctl: Ctl) -> None:
    api.answer("POST", "exchanges/%2F/x/publish", {"routed": False})
    ended = ctl("publish", "-x", "x", "-k", "q", "hi")
    assert ended == (1, "", 'warren ctl: published to exchange "x", but no queue took it\n')


def test_peeking_asks_with_every_filter(api: FakeApi, ctl: Ctl) -> None:
    items = [MESSAGE | {"position": 3}]
    api.answer("GET", "warren/queues/%2F/q/messages", {"items": items, "total": 9, "more": True})
    line = ["peek", "q", "--state", "parked", "--offset", "3", "-c", "1", "-k", "a b", "-H", "n=1", "--body", "x"]
    ended = ctl(*line)
    assert ended.exit_code == 0
    assert api.asked[0].path.partition("?")[2] == ("state=parked&offset=3&count=1&routing_key=a+b&header=n%3D1&body=x")
    assert ended.out.splitlines()[1:] == ["3\tk\tx\tfalse\t2\thi", "9 parked in all; more with --offset"]
    assert api.changes() == []


# --- transfers ------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "_POLL_S", 0.0)


def begin(api: FakeApi, *states: dict[str, Any], header: str = "Location") -> None:
    location = ((header, "/api/warren/transfers/%2F/7"),)
    api.answer("POST", "warren/queues/%2F/dead/transfers", None, 201, headers=location)
    for state in states:
        api.answer("GET", "warren/transfers/%2F/7", TRANSFER | state)


@pytest.mark.parametrize(
    ("line", "body"),
    [
        (
            ["move", "dead", "--to-queue", "q"],
            {"mode": "move", "state": "ready", "destination": {"queue": "q"}, "count": None, "filter": {}},
        ),
        (
            ["copy", "dead", "--to-exchange", "x", "--state", "parked", "-c", "5", "-k", "k", "-H", "n=1"],
            {
                "mode": "copy",
                "state": "parked",
                "destination": {"exchange": "x", "routing_key": None},
                "count": 5,
                "filter": {"routing_key": "k", "header": "n=1"},
            },
        ),
        (
            ["redrive", "dead", "--body", "t"],
            {"mode": "move", "state": "ready", "destination": {"origin": True}, "count": None, "filter": {"body": "t"}},
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_transfer_is_watched_to_its_end(api: FakeApi, ctl: Ctl, line: list[str], body: dict[str, Any]) -> None:
    begin(api, {}, {"transferred": 8}, {"state": "done", "transferred": 10})
    done = "copied" if line[0] == "copy" else "moved"
    assert ctl(*line) == (0, f"10 messages {done}\n", "")
    assert api.changes() == [("POST", "/api/warren/queues/%2F/dead/transfers", body)]
    assert len([asked for asked in api.asked if asked.method == "GET"]) == 3


def test_a_follower_writes_headers_in_small_letters_and_a_transfer_is_found_all_the_same(
    api: FakeApi, ctl: Ctl
) -> None:
    begin(api, {"state": "done", "transferred": 10}, header="location")
    assert ctl("move", "dead", "--to-queue", "q") == (0, "10 messages moved\n", "")


def test_a_transfer_that_fails_says_why_and_how_far_it_came(api: FakeApi, ctl: Ctl) -> None:
    begin(api, {"state": "failed", "error": "queue q is full"})
    assert ctl("move", "dead", "--to-queue", "q") == (1, "", "warren ctl: queue q is full: 4 messages moved\n")


def test_ctrl_c_stops_the_transfer_in_the_broker(api: FakeApi, ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("warren.ctl.transfers.time.sleep", interrupt)
    begin(api, {}, {"state": "stopped", "transferred": 6})
    api.answer("DELETE", "warren/transfers/%2F/7", None, 204)
    assert ctl("redrive", "dead") == (130, "", "warren ctl: stopped: 6 messages moved\n")
    assert [asked.method for asked in api.asked] == ["POST", "GET", "DELETE", "GET"]


def test_a_bar_is_drawn_for_a_terminal_only(api: FakeApi, ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(api, {}, {"state": "done", "transferred": 10})
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    ended = ctl("redrive", "dead")
    assert ended.exit_code == 0 and ended.out == "10 messages moved\n"


# --- definitions ----------------------------------------------------------------------------------------------------


def test_exported_hashes_are_for_their_owner_only(api: FakeApi, ctl: Ctl, tmp_path: Path) -> None:
    api.answer("GET", "definitions", {"users": [{"name": "é"}]})
    file = tmp_path / "d.json"
    for _ in range(2):
        assert ctl("export_definitions", str(file)).out == f"Exported definitions to {file}\n"
        assert json.loads(file.read_text(encoding="utf-8")) == {"users": [{"name": "é"}]}
        assert os.stat(file).st_mode & 0o777 == 0o600
        file.chmod(0o644)  # as of a file that was there before
    assert os.listdir(tmp_path) == ["d.json"]


def test_an_export_that_fails_leaves_the_one_before(api: FakeApi, ctl: Ctl, tmp_path: Path) -> None:
    api.answer("GET", "definitions", {"users": [{"name": "x" * 100_000}]})
    file = tmp_path / "d.json"
    file.write_text("before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        ended = ctl("export_definitions", str(file))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert ended == (1, "", f"warren ctl: {file}: File too large\n")
    assert (os.listdir(tmp_path), file.read_text()) == (["d.json"], "before")


def test_a_pipe_and_a_link_stay_what_they_are(api: FakeApi, ctl: Ctl, tmp_path: Path) -> None:
    api.answer("GET", "definitions", {})
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert ctl("export_definitions", str(tmp_path / "pipe")).exit_code == 0
    assert os.read(reading, 100) == b"{}\n"
    os.close(reading)
    (tmp_path / "link").symlink_to(tmp_path / "there")
    assert ctl("export_definitions", str(tmp_path / "link")).exit_code == 0
    assert ((tmp_path / "link").is_symlink(), (tmp_path / "there").read_text()) == (True, "{}\n")


def test_definitions_of_one_vhost_go_to_standard_output(api: FakeApi, ctl: Ctl) -> None:
    api.answer("GET", "definitions/v", {"queues": []})
    assert json.loads(ctl("export_definitions", "-p", "v").out) == {"queues": []}


def test_a_file_that_cannot_be_written_is_a_failure(api: FakeApi, ctl: Ctl, tmp_path: Path) -> None:
    api.answer("GET", "definitions", {})
    ended = ctl("export_definitions", str(tmp_path / "none" / "d"))
    assert ended == (1, "", f"warren ctl: {tmp_path / 'none' / 'd'}: No such file or directory\n")


def test_a_dry_run_shows_changes_and_changes_nothing(api: FakeApi, ctl: Ctl, tmp_path: Path) -> None:
    change = {"action": "create", "kind": "queue", "vhost": "v", "name": "q", "detail": ""}
    api.answer("POST", "warren/definitions/dry-run", {"changes": [change], "conflicts": 0})
    (tmp_path / "d").write_text('{"queues": [{"name": "q"}], "users": [{"name": "u"}]}')
    ended = ctl("-s", "-p", "v", "import_definitions", str(tmp_path / "d"), "--dry-run")
    assert ended == (0, "create\tqueue\tv\tq\t\n", "")
    assert api.changes() == [
        ("POST", "/api/warren/definitions/dry-run", {"queues": [{"name": "q", "vhost": "v"}]}),
    ]


def test_what_an_import_left_out_is_shown_and_a_failed_check(api: FakeApi, ctl: Ctl) -> None:
    conflict = {"action": "conflict", "kind": "queue", "vhost": "v", "name": "q", "detail": "differs"}
    api.answer("POST", "definitions", {"conflicts": [conflict]})
    ended = ctl("-s", "import_definitions", stdin="{}")
    assert (ended.exit_code, ended.err) == (6, "warren ctl: 1 conflict with what is there\n")
    assert ended.out.endswith("conflict\tqueue\tv\tq\tdiffers\n")


def test_conflicts_of_a_dry_run_are_a_failed_check(api: FakeApi, ctl: Ctl) -> None:
    api.answer("POST", "warren/definitions/dry-run", {"changes": [], "conflicts": 2})
    ended = ctl("import_definitions", "--dry-run", stdin="{}")
    assert (ended.exit_code, ended.err) == (6, "warren ctl: 2 conflicts with what is there\n")
