"""The `warren` command as a process: exit codes, one-line errors, and what it imports."""

from __future__ import annotations

import inspect
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import typer.testing
from warren_command import run_warren

from warren import __version__
from warren.channels import fast_path
from warren.lake import commands as lake_commands
from warren.lake import sql_commands
from warren.lake.check_command import check
from warren.perf.command import perf
from warren.server import commands
from warren.server.cli import _maybe_start_error, maybe_serve_options
from warren.server.command_examples import EXAMPLES
from warren.server.commands import app
from warren.server.settings import SERVE_OPTIONS
from warren.server.start_errors import SettingsError, StartError
from warren.spark_bridge import commands as bridge


def warren(
    *arguments: str, stdin: str = "", python: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WARREN_")}
    if not (stdin or python):
        return run_warren(*arguments, environment={**clean, "COLUMNS": "200", **environment})
    return subprocess.run(
        [sys.executable, *python, "-m", "warren", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        env={**clean, "COLUMNS": "200", **environment},
    )


def test_the_version_is_printed() -> None:
    how = "compiled" if fast_path.__file__.endswith(".so") else "interpreted"
    assert warren("--version").stdout == f"warren {__version__} (engine {how})\n"


def test_an_example_of_a_file_of_settings_is_printed_with_what_is_set() -> None:
    done = warren("config", "--data-dir", "/var/lib/warren", "example")
    assert done.returncode == 0
    assert '\ndata_dir = "/var/lib/warren"\n' in done.stdout
    assert '\n#amqp = "127.0.0.1:5672"\n' in done.stdout


def test_rabbitmqs_settings_are_translated_whatever_ours_are(tmp_path: Path) -> None:
    file = tmp_path / "rabbitmq.conf"
    file.write_text("heartbeat = 7\n")
    done = warren("config", "import-rabbitmq", str(file), WARREN_DATADIR="x")
    assert "heartbeat_s = 7" in done.stdout


def test_a_line_of_rabbitmqs_without_a_counterpart_is_an_error_unless_it_may_be_left_out(tmp_path: Path) -> None:
    file = tmp_path / "rabbitmq.conf"
    file.write_text("heartbeat = 7\nauth_backends.1 = ldap\n")
    done = warren("config", "import-rabbitmq", str(file))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{file}:2: auth_backends.1 = ldap: users are kept in the broker" in done.stderr
    done = warren("config", "import-rabbitmq", "--lenient", str(file))
    assert done.returncode == 0
    assert "heartbeat_s = 7" in done.stdout and "#   auth_backends.1 = ldap" in done.stdout


def test_config_prints_every_value_with_its_origin(tmp_path: Path) -> None:
    file = tmp_path / "w.toml"
    file.write_text("[limits]\nchannel_max = 100\n")
    done = warren("config", "--config", str(file), "--amqp", "[::1]:1", "--json", WARREN_LOG_LEVEL="debug")
    shown = json.loads(done.stdout)
    assert shown["amqp"] == {"value": "[::1]:1", "origin": "flag --amqp"}
    assert shown["log_level"] == {"value": "debug", "origin": "environment WARREN_LOG_LEVEL"}
    assert shown["limits.channel_max"] == {"value": "100", "origin": f"file {file}"}
    assert shown["http"] == {"value": "127.0.0.1:15672", "origin": "default"}


def test_config_is_a_table_for_a_person_without_secrets() -> None:
    done = warren("config", "--metadata-url", "postgresql+psycopg://bob:hunter2@db/[bold]warren")
    assert done.returncode == 0
    row = next(line for line in done.stdout.splitlines() if "metadata_url" in line)
    assert "postgresql+psycopg://bob:***@db/[bold]warren" in row
    assert "flag --metadata-url" in row
    assert "hunter2" not in done.stdout


def test_a_pipe_gets_a_line_for_each_setting_however_narrow_the_terminal_is() -> None:
    done = warren("config", "--data-dir", "/" + "a" * 100, COLUMNS="40")
    (row,) = [line for line in done.stdout.splitlines() if line.split()[:1] == ["data_dir"]]
    assert row.split() == ["data_dir", "/" + "a" * 100, "flag", "--data-dir"]


@pytest.mark.parametrize("command", ["serve", "config"])
def test_a_setting_that_cannot_be_used_is_one_line_and_exit_code_2(command: str) -> None:
    done = warren(command, "--amqp", "nonsense:port")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "warren: amqp (flag --amqp): must be HOST:PORT (an IPv6 address in brackets) or \"off\", not 'nonsense:port'\n"
    )


def test_an_unknown_variable_stops_the_start() -> None:
    done = warren("serve", WARREN_DATADIR="x")
    assert done.returncode == 2
    assert done.stderr == "warren: environment WARREN_DATADIR: no such setting; did you mean WARREN_DATA_DIR?\n"


@pytest.mark.parametrize(("python", "environment"), [(("-O",), {}), (("-OO",), {}), ((), {"PYTHONOPTIMIZE": "1"})])
def test_it_refuses_to_run_without_assertions(python: tuple[str, ...], environment: dict[str, str]) -> None:
    done = warren("--version", python=python, **environment)
    assert done.returncode == 2
    assert done.stderr.startswith("warren: Python must not run with -O")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("algorithm", "stored"),
    [
        ("scrypt", "scrypt"),
        ("sha256", "rabbit_password_hashing_sha256"),
        ("sha512", "rabbit_password_hashing_sha512"),
    ],
)
def test_hash_password_prints_a_hash_that_fits(algorithm: str, stored: str) -> None:
    from warren.server.logins.passwords import PasswordHash, verify_password

    done = warren("hash-password", "--algorithm", algorithm, stdin="s e cret\n")
    assert verify_password(b"s e cret", PasswordHash(done.stdout.strip(), stored))


def test_hash_password_refuses_an_empty_one_and_an_unknown_algorithm() -> None:
    assert warren("hash-password", stdin="\n").returncode == 2
    assert warren("hash-password", "--algorithm", "md5", stdin="x\n").returncode == 2


def test_perf_has_its_own_options() -> None:
    done = warren("perf", "--help")
    assert done.returncode == 0
    assert "--publishers" in done.stdout


_IMPORTED_BY_SERVE = """
import sys
import warren.server.cli, warren.server.application, warren.mgmt_plugin.plugin, warren.server.catalogue.catalogue
assert warren.server.cli.maybe_serve_options(["serve", "--amqp", "127.0.0.1:0"])
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_serving_imports_nothing_that_only_draws_or_loads() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORTED_BY_SERVE], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert {"trio", "sqlalchemy", "h11"} <= imported
    heavy = {
        "typer",
        "click",
        "rich",
        "pygments",
        "pydantic",
        "pydantic_core",
        "structlog",
        "construct",
        "psycopg",
    }
    assert not imported & heavy


ARGUMENTS = [
    ["serve"],
    ["serve", "--amqp", "127.0.0.1:1"],
    ["serve", "--amqp=127.0.0.1:1", "--config=a=b"],
    ["serve", "--amqp", "127.0.0.1:1", "--amqp", "127.0.0.1:2"],
    ["serve", "--data-dir", "", "--http", "off", "--amqps", "off", "--metadata-url", "sqlite:////x"],
    ["serve", "--log-level", "debug", "--log-format", "json", "--config", "c.toml"],
    ["serve", "--https", "127.0.0.1:3", "--prometheus", "off"],
    ["serve", "--amqp", "--http"],
    ["serve", "--with-links", "--amqp", "127.0.0.1:1"],
    ["serve", "--http", "off", "--with-links"],
]


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_options_read_without_typer_are_what_typer_reads(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("warren.server.commands.run_broker", lambda settings, plugins, read_again: 0)
    monkeypatch.setattr(
        "warren.server.commands.load_settings",
        lambda flags, environment, config, again: seen.append((flags, config)),
    )
    done = typer.testing.CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    ((flags, config),) = seen
    read = maybe_serve_options(arguments)
    assert read is not None
    assert (str(config) if config is not None else None) == read.pop("--config", None)
    given = {key: value for key, value in flags.items() if value is not None}
    assert given == {SERVE_OPTIONS[name]: value for name, value in read.items()}


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["config"],
        ["--version"],
        ["serve", "--help"],
        ["serve", "extra"],
        ["serve", "--amqp"],
        ["serve", "--with-links=true"],
        ["serve", "--with-links", "true"],
        ["serve", "--amqp", "x", "--ampqs", "y"],
        ["serve", "--am", "x"],
        ["serve", "--", "--amqp"],
        ["serve", "--data_dir", "x"],
    ],
)
def test_what_is_not_plain_is_left_to_typer(arguments: list[str]) -> None:
    assert maybe_serve_options(arguments) is None


def test_every_option_of_serve_is_read_without_typer() -> None:
    assert set(inspect.signature(commands.serve).parameters) == {"config", *SERVE_OPTIONS.values()}


def test_a_mistyped_option_of_serve_is_explained() -> None:
    done = warren("serve", "--ampq", "x")
    assert done.returncode == 2
    assert "No such option" in done.stderr


def test_only_a_group_of_nothing_but_reasons_for_not_starting_is_one_line() -> None:
    reason = SettingsError("no")
    nested = BaseExceptionGroup("outer", [ExceptionGroup("inner", [reason]), StartError("second")])
    assert _maybe_start_error(nested) is reason
    assert _maybe_start_error(BaseExceptionGroup("outer", [reason, ValueError("a fault")])) is None
    assert _maybe_start_error(BaseExceptionGroup("outer", [KeyboardInterrupt()])) is None


def commands_below(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        if name != "ctl":
            yield from commands_below(below, f"{path} {name}".strip())


def test_the_help_of_every_command_has_examples_that_can_be_read() -> None:
    group = typer.main.get_command(app)
    own = dict(commands_below(group))
    assert {path for path in own if own[path].params and path != "perf"} | {
        "",
        "store",
        "perf",
        "config example",
    } == set(EXAMPLES)
    alone: dict[str, Callable[..., Any]] = {
        "perf": perf,
        "lake": lake_commands.lake,
        "lake check": check,
        "sql": sql_commands.sql,
        **bridge.COMMANDS,
    }
    found = {**EXAMPLES, **bridge.EXAMPLES, "lake check": lake_commands.CHECK_EXAMPLES}
    found |= {"lake": lake_commands.EXAMPLES, "sql": sql_commands.EXAMPLES}
    for path, examples in found.items():
        if path in ("", "store"):
            continue  # examples of the commands below
        command = own.get(path)
        if path in alone:
            made = typer.Typer()
            made.command()(alone[path])
            command = typer.main.get_command(made)
        for line in examples:
            words = shlex.split(line.partition(" < ")[0].partition(" > ")[0])
            start = ["warren", *path.split()]
            if words[: len(start)] != start:
                continue  # of `warren lake`, that of `warren lake check`
            assert command is not None
            if words[: len(start) + 1] != ["warren", "lake", "check"] or path == "lake check":
                command.make_context(path, words[len(start) :])
    assert "<bool>" not in warren("serve", "--help").stdout


def test_the_help_of_the_store_names_the_directory_in_one_way() -> None:
    shown = warren("store", "verify", "--help").stdout
    assert "--data-dir" in shown and "[DIR]" not in shown
