"""`warren export` and `warren import` as commands: their output and their exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from warren.spark_bridge import commands
from warren.spark_bridge.bridge_errors import NotAllowed, Unreachable
from warren.spark_bridge.commands import BrokerLogin, size_of

from .export_broker import ExportBroker


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> ExportBroker:
    made = ExportBroker()
    made.stream(count=6)
    monkeypatch.setattr(commands, "client_of", lambda: made)
    return made


def connect(flags: Mapping[str, Any]) -> BrokerLogin:
    raise AssertionError("nobody is to be reached")


def run(name: str, *arguments: object) -> int:
    return commands.main(name, [str(argument) for argument in arguments], connect)


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_an_export_and_an_import_say_what_they_did(
    broker: ExportBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("export", "orders", "--to", tmp_path) == 0
    assert capsys.readouterr() == (f"orders: 6 rows in 1 file in {tmp_path}\n", "")
    broker.queues["orders"].add(2)
    assert run("export", "orders", "--to", tmp_path) == 0
    assert capsys.readouterr().out == f"orders: 8 rows in 2 files in {tmp_path}, 6 of them by earlier runs\n"
    assert run("import", tmp_path, "--queue", "back") == 0
    assert capsys.readouterr() == (f"{tmp_path}: 8 messages published\n", "")
    assert {(each.exchange, each.routing_key) for each in broker.published} == {("", "back")}
    assert run("import", tmp_path, "--queue", "back") == 0
    assert capsys.readouterr().out == f"{tmp_path}: 8 messages published, 8 of them by earlier runs\n"


def test_with_json_every_line_is_an_event(
    broker: ExportBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "out"
    assert run("export", "orders", "--to", directory, "--json", "--where", "offset > 1") == 0
    planned, committed, done = events(capsys.readouterr().out)
    assert planned == {"event": "planned", "rows": 6, "bytes": 600}
    assert committed == {"event": "committed", "rows": 4, "files": 1}
    assert {key: done[key] for key in ("event", "rows", "read", "filtered")} == {
        "event": "done",
        "rows": 4,
        "read": 6,
        "filtered": 2,
    }
    assert run("import", directory, "--json") == 0
    planned, committed, done = events(capsys.readouterr().out)
    assert (planned["rows"], committed) == (4, {"event": "committed", "rows": 4, "files": 1})
    assert done == {
        "event": "done",
        "rows": 4,
        "published": 4,
        "published_before": 0,
        "unroutable": 0,
    }
    broker.queues.clear()
    assert run("export", "orders", "--to", tmp_path / "other", "--json") == 1
    assert events(capsys.readouterr().out) == [
        {"event": "failed", "reason": "orders: Object not found", "exit_code": 1}
    ]


@pytest.mark.parametrize(("given", "pool"), [(None, "system"), ("mimalloc", "mimalloc")])
def test_arrow_takes_memory_from_the_system_unless_something_else_is_said(given: str | None, pool: str) -> None:
    """Its own pools keep the most that they ever had: 13 to 37 MB more of a table with commits of 8 MiB."""
    script = (
        "from warren.spark_bridge import commands\n"
        "commands.main('export', ['--help'], None)\n"
        "import pyarrow\n"
        "print(pyarrow.default_memory_pool().backend_name)"
    )
    environment = {name: value for name, value in os.environ.items() if name != commands.ARROW_POOL}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    if given is not None:
        environment[commands.ARROW_POOL] = given
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == pool


def test_a_dry_run_does_nothing(broker: ExportBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "out"
    assert run("export", "orders", "--to", directory, "--from", "2", "--dry-run") == 0
    assert capsys.readouterr().out == f"orders: offsets 2 to 6\nlog: about 4 rows, 0.0 MB, to {directory}\n"
    assert run("export", "orders", "--to", directory, "--dry-run", "--json") == 0
    assert events(capsys.readouterr().out) == [
        {"event": "plan", "mode": "log", "rows": 6, "bytes": 600, "sources": [{"name": "orders", "from": 0, "to": 6}]}
    ]
    assert not directory.exists()
    assert run("export", "orders", "--to", directory) == 0
    capsys.readouterr()
    assert run("import", directory, "--dry-run") == 0
    assert capsys.readouterr().out == f"{directory}: 1 file, 6 rows, 0 of them published\n"
    assert broker.published == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["orders"], "missing option '--to'"),
        (["orders", "--to", "x", "--formt", "csv"], "no such option: --formt"),
        (["orders", "--to", "x", "--max-file-size", "lots"], "not a size"),
        (["orders", "--to", "x", "--format", "orc"], "format 'orc'"),
        (["orders", "--to", "x", "--columns", "bodi"], "did you mean 'body'"),
        (["orders", "--to", "x", "--engine", "flink"], "engine 'flink'"),
        (["orders", "--to", "x", "--sql", "SELECT 1"], "for --engine spark"),
    ],
)
def test_what_cannot_be_meant_ends_with_2(
    broker: ExportBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    assert run("export", *(str(tmp_path / "x") if word == "x" else word for word in arguments)) == 2
    out, err = capsys.readouterr()
    assert (out, reason in err, err.startswith("warren export: "), err.count("\n")) == ("", True, True, 1)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--unroutable", "ignore"], "must be fail or drop"),
        (["--queue", "q", "--exchange", "e"], "--queue excludes --exchange"),
        (["--without", "body"], "'body' is not a property"),
    ],
)
def test_likewise_for_imports(
    broker: ExportBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    assert run("import", tmp_path, *arguments) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [(Unreachable("nobody"), 4), (NotAllowed("not you"), 1), (OSError(28, "No space left on device", "/disk"), 1)],
)
def test_each_kind_of_failure_has_its_code(
    broker: ExportBroker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    code: int,
) -> None:
    def describe(self: ExportBroker, queue: str) -> Any:
        raise error

    monkeypatch.setattr(ExportBroker, "describe", describe)
    assert run("export", "orders", "--to", tmp_path) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err in (
        "warren export: nobody\n",
        "warren export: not you\n",
        "warren export: /disk: No space left on device\n",
    )


def test_a_peer_does_not_write_to_the_terminal(
    broker: ExportBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(broker, "describe", Mock(side_effect=Unreachable("\x1b]0;title\x07\n\x9b31m")))
    assert run("export", "orders", "--to", tmp_path / "out") == commands.ExitCode.UNREACHABLE
    assert capsys.readouterr().err == "warren export: \\x1b]0;title\\x07\\n\\x9b31m\n"


def test_lost_messages_end_with_3_unless_they_may_be_skipped(
    broker: ExportBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("export", "orders", "--to", tmp_path, "--to-offset", "2") == 0
    broker.queues["orders"].trim(4)
    assert run("export", "orders", "--to", tmp_path) == 3
    assert "the offsets from 2 to 4 of orders are gone" in capsys.readouterr().err
    assert run("export", "orders", "--to", tmp_path, "--skip-lost") == 0
    assert capsys.readouterr().out.endswith(", 2 of them by earlier runs, 2 lost\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_with_130_and_the_same_command_goes_on(
    broker: ExportBroker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
) -> None:
    arguments = ("export", "orders", "--to", tmp_path, "--max-file-size", "1B", "--columns", "body")
    # A process started in the background, or by nohup, may ignore the signal.
    before = signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(commands._Progress, "committed", lambda self, state: os.kill(os.getpid(), number))
            assert run(*arguments) == 130
    finally:
        signal.signal(number, before)
    assert capsys.readouterr().err == "warren export: interrupted: the same command continues where it stopped\n"
    assert run(*arguments) == 0
    assert capsys.readouterr().out == f"orders: 6 rows in 2 files in {tmp_path}, 4 of them by earlier runs\n"


def test_who_ignores_a_closed_terminal_goes_on(
    broker: ExportBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        monkeypatch.setattr(commands._Progress, "committed", lambda self, state: os.kill(os.getpid(), signal.SIGHUP))
        assert run("export", "orders", "--to", tmp_path) == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_fault_of_ours_is_not_hidden(broker: ExportBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExportBroker, "describe", lambda self, queue: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        run("export", "orders", "--to", tmp_path)


@pytest.mark.parametrize(
    ("text", "bytes"), [("1", 1), ("7B", 7), ("256MB", 256_000_000), ("64MiB", 64 << 20), ("1 gb", 10**9), ("2k", 2000)]
)
def test_sizes_have_units(text: str, bytes: int) -> None:
    assert size_of(text) == bytes


def test_without_pyarrow_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['pyarrow'] = None; sys.argv = ['warren', 'export', 'q', '--to', 'x']\n"
    program += "from warren.__main__ import main; main()"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (
        2,
        "warren export: pyarrow is not installed: pip install './warren[spark]'\n",
    )


def test_a_broker_does_not_import_any_of_it() -> None:
    program = "import sys; import warren.__main__, warren.server.application, warren.mgmt_plugin.plugin\n"
    program += "print([name for name in sys.modules if name.startswith(('pyarrow', 'numpy', 'warren.spark_bridge'))])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
