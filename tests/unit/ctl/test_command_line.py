"""The command line as a whole: names, help, completion, where options may stand, and what a start costs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.core
import typer.main

from warren.ctl.command_table import GROUPS, ctl_app
from warren.ctl.examples import EXAMPLES, examples_of
from warren.ctl.exit_codes import ExitCode
from warren.ctl.quick_parameters import make_quick

from .conftest import Ctl
from .fake_api import FakeApi

NAMES = [name for group in GROUPS for name in group.names.split()]


def group() -> Any:
    return typer.main.get_command(ctl_app)


def context_of(command: Any, *words: str) -> Any:
    return command.make_context("ctl", list(words), resilient_parsing=True)


def test_every_command_of_every_module_has_one_place_in_the_table() -> None:
    assert len(NAMES) == len(set(NAMES))
    assert list(EXAMPLES) and set(NAMES) == set(EXAMPLES)
    assert set(NAMES) == {name for one in GROUPS for name in one.load()}


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help_and_the_shared_options(ctl: Ctl, name: str) -> None:
    ended = ctl(name, "--help")
    assert ended.exit_code == 0
    text = " ".join(ended.out.split())
    assert f"Usage: warren ctl {name}" in text
    for option in ("--vhost", "--url", "--password-file", "--formatter", "--timeout"):
        assert option in text
    command = group().get_command(context_of(group()), name)
    assert command.help and command.help.strip().split("\n")[0].endswith((".", ")"))


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_examples_that_can_be_read(name: str) -> None:
    for line in examples_of(name):
        words = shlex.split(line.partition(" < ")[0].partition(" > ")[0])
        assert words[:2] == ["warren", "ctl"] and name in words
        context = group().make_context("ctl", words[2:])
        found, command, arguments = group().resolve_command(context, [*context._protected_args, *context.args])
        assert found == name
        made = command.make_context(name, arguments, parent=context)
        assert made.args == []
        assert line.replace("[", "\\[") in command.epilog
        assert not any(each.display_type_rich(made) for each in command.get_params(made) if is_flag(each))


def is_flag(parameter: Any) -> bool:
    return getattr(parameter, "is_bool_flag", False)


def test_help_ends_with_the_examples_and_flags_have_no_type(ctl: Ctl) -> None:
    out = ctl("declare_queue", "--help").out
    assert out.rstrip().endswith("-a x-max-age=7D") and "<bool>" not in out


def test_the_help_of_a_word_lists_the_commands_about_it(ctl: Ctl) -> None:
    names = [line.split()[0] for line in ctl("help", "topic").out.splitlines()]
    assert {name for name in NAMES if "topic" in name} <= set(names)
    assert "no such command 'nothing_like_it'" in ctl("help", "nothing_like_it").err


def test_help_shows_all_commands_in_their_groups(ctl: Ctl) -> None:
    out = ctl("--help").out
    assert [name for name in NAMES if f" {name} " not in out] == []
    assert [one.title for one in GROUPS if one.title not in out] == []
    assert "Exit codes" in out


def test_nothing_asked_for_is_help(ctl: Ctl) -> None:
    ended = ctl()
    assert ended.exit_code == 2 and "list_queues" in ended.out and ended.err == ""


def test_dashes_are_underscores(api: FakeApi, ctl: Ctl) -> None:
    api.answer("GET", "users", [])
    assert ctl("list-users") == ctl("list_users")


def test_a_mistyped_command_gets_a_suggestion(ctl: Ctl) -> None:
    assert "'list_queues'" in ctl("list_queue").err


def test_shared_options_stand_before_or_behind_and_the_later_wins(api: FakeApi, ctl: Ctl) -> None:
    api.answer("GET", "policies/b", [])
    assert ctl("-p", "a", "list_policies", "-p", "b").exit_code == 0
    assert ctl("--url", "http://127.0.0.1:1", "list_policies", "-p", "b", "--url", api.url).exit_code == 0


def test_the_environment_names_the_vhost(api: FakeApi, ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARREN_CTL_VHOST", "v")
    api.answer("GET", "policies/v", [])
    assert ctl("list_policies").exit_code == 0


def test_the_login_goes_with_every_request(api: FakeApi, ctl: Ctl, tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("pw\n")
    api.answer("GET", "users", [])
    ctl("list_users", "--username", "bob", "--password-file", str(tmp_path / "pw"))
    assert api.asked[0].headers["Authorization"] == "Basic Ym9iOnB3"


def test_fast_parameters_read_values_as_typer_does() -> None:
    def function(
        a: str, b: int = 3, c: float | None = None, d: list[str] | None = None, e: str | None = None, f: bool = False
    ) -> None: ...

    def command(*, quick: bool) -> Any:
        app = typer.Typer(add_completion=False)
        app.command()(function)
        made = typer.main.get_command(app)
        for parameter in made.params if quick else ():
            make_quick(parameter)
            assert "process_value" in vars(parameter)
        return made

    for line in (["x"], ["x", "--b", "4"], ["x", "--c", "1", "--d", "p", "--d", "q"], ["x", "--e", "7", "--f"]):
        slow, fast = (command(quick=quick).make_context("x", list(line)).params for quick in (False, True))
        # A list that was not given may be None or empty: that is the same to the commands.
        assert {**slow, "d": slow["d"] or []} == {**fast, "d": fast["d"] or []}
    for wrong in ([], ["x", "--b", "four"], ["x", "y"]):
        reasons = []
        for quick in (False, True):
            with pytest.raises(Exception) as caught:  # noqa: PT011
                command(quick=quick).make_context("x", list(wrong))
            reasons.append(str(caught.value))
        assert reasons[0] == reasons[1]


def test_the_exit_codes_are_those_of_the_document() -> None:
    text = (Path(__file__).parents[3] / "docs" / "ctl.md").read_text()
    table = text.partition("## Exit codes")[2].partition("\n## ")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.M)] == [int(code) for code in ExitCode]


# --- completion -----------------------------------------------------------------------------------------------------


def completed(api: FakeApi, *words: str) -> list[str]:
    """Return what the shell is offered for the last of `words`."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("WARREN_CTL_")}
    environment |= {
        "_WARREN_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["warren", "ctl", *words]),
        "COMP_CWORD": str(len(words) + 1),
        "WARREN_CTL_URL": api.url,
    }
    program = "import sys; sys.argv = ['warren']; from warren.server.cli import main; main()"
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert run.stderr == ""
    return run.stdout.split()


def test_the_shell_completes_commands_and_names_of_the_broker(api: FakeApi) -> None:
    api.answer("GET", "queues/v", {"items": [{"name": "orders"}, {"name": "ordered"}], "page_count": 1})
    api.answer("GET", "users", [{"name": "bob"}, {"name": "eve"}])
    api.answer("GET", "vhosts", [{"name": "v"}, {"name": "w"}])
    assert completed(api, "list_user_") == [
        "list_user_permissions",
        "list_user_topic_permissions",
        "list_user_limits",
    ]
    assert completed(api, "purge_queue", "-p", "v", "ord") == ["orders", "ordered"]
    assert completed(api, "delete_user", "b") == ["bob"]
    assert completed(api, "list_queues", "--vhost", "w") == ["w"]
    assert "name=%5Eord" in api.asked[0].path


def test_without_an_answer_nothing_is_completed(api: FakeApi) -> None:
    assert completed(api, "purge_queue", "ord") == []
    api.answer("GET", "users", b"<html>")
    assert completed(api, "delete_user", "b") == []


# --- start ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [["list_queues", "name", "-p", "/"], ["get", "q"], ["ping"]], ids=" ".join)
def test_a_command_imports_neither_the_broker_nor_what_only_some_need(api: FakeApi, line: list[str]) -> None:
    api.answer("GET", "queues/%2F", [])
    api.answer("GET", "whoami", {})
    api.answer("POST", "queues/%2F/q/get", [])
    program = (
        "import sys; sys.argv[0] = 'warren'\n"
        "from warren.server.cli import main\n"
        "try: main()\n"
        "except SystemExit as ended: assert not ended.code, ended.code\n"
        "print(*sys.modules, sep='\\n', file=sys.stderr)\n"
    )
    environment = dict(os.environ) | {"WARREN_CTL_URL": api.url}
    run = subprocess.run(
        [sys.executable, "-c", program, "ctl", *line], env=environment, capture_output=True, text=True, check=True
    )
    modules = set(run.stderr.split())
    assert "warren.ctl.client" in modules
    assert not modules & {"trio", "sqlalchemy", "rich", "pydantic", "warren.server.commands", "warren.channels.broker"}


def test_the_output_may_be_closed_early(api: FakeApi) -> None:
    items = [{"name": f"queue-{n}", "messages": n} for n in range(20_000)]
    api.answer("GET", "queues/%2F", items)
    environment = dict(os.environ) | {"WARREN_CTL_URL": api.url}
    for options, first in (([], b"name\tmessages\n"), (["--formatter", "csv"], b"name,messages\n")):
        command = [sys.executable, "-m", "warren.ctl", "list_queues", *options]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
            assert run.stdout is not None and run.stderr is not None
            assert run.stdout.readline() == first
            run.stdout.close()
            assert run.stderr.read() == b""
        assert run.returncode == ExitCode.UNREAD


@pytest.mark.parametrize("line", [["--help"], ["list_users"], ["list_users", "--formatter", "pretty_table"]])
def test_nobody_reading_is_no_failure_of_the_command(api: FakeApi, line: list[str]) -> None:
    api.answer("GET", "users", [{"name": "u", "tags": []}])
    environment = dict(os.environ) | {"WARREN_CTL_URL": api.url}
    command = [sys.executable, "-m", "warren.ctl", *line]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None and run.stderr is not None
        run.stdout.close()
        assert run.stderr.read() == b""
    assert run.returncode == ExitCode.UNREAD


@pytest.mark.parametrize("count", [1, 20_000], ids=["buffered", "too much to be buffered"])
@pytest.mark.parametrize(
    ("redirection", "reason"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")]
)
def test_output_that_cannot_be_written_is_an_error_of_one_line(
    api: FakeApi, count: int, redirection: str, reason: str
) -> None:
    api.answer("GET", "queues/%2F", [{"name": f"queue-{n}", "messages": n} for n in range(count)])
    run = in_a_shell(api, "list_queues", redirection)
    assert (run.returncode, run.stderr) == (1, f"warren ctl: cannot read or write: {reason}\n".encode())


def test_what_says_nothing_needs_no_streams(api: FakeApi) -> None:
    api.answer("DELETE", "queues/%2F/q")
    run = in_a_shell(api, "-q delete_queue q", "<&- >&- 2>&-")
    assert (run.returncode, api.changes()) == (0, [("DELETE", "/api/queues/%2F/q", None)])
    assert in_a_shell(api, "add_user u", "<&-").stderr == b"warren ctl: no password: standard input is empty\n"


def test_what_an_encoding_cannot_show_is_escaped(api: FakeApi) -> None:
    api.answer("GET", "vhosts", [{"name": "a"}, {"name": "🐇"}, {"name": "z"}])
    run = in_a_shell(api, "-s list_vhosts name", "", PYTHONIOENCODING="ascii")
    assert (run.returncode, run.stdout) == (0, b"a\n\\U0001f407\nz\n")


def in_a_shell(api: FakeApi, line: str, redirections: str, **more: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command line with streams as a shell redirects them."""
    environment = dict(os.environ) | {"WARREN_CTL_URL": api.url, **more}
    script = f"{shlex.quote(sys.executable)} -m warren.ctl {line} {redirections}"
    return subprocess.run(["sh", "-c", script], env=environment, capture_output=True, check=False)


# --- help as a command ------------------------------------------------------------------------------------------------


def test_help_of_a_command_is_what_its_option_prints(ctl: Ctl) -> None:
    assert ctl("help", "list_queues") == ctl("list_queues", "--help")
    assert ctl("help", "list-queues").exit_code == 0
    assert ctl("help") == ctl("--help")


def test_help_of_a_command_that_there_is_not_suggests_one(ctl: Ctl) -> None:
    ended = ctl("help", "lst_queues")
    assert ended.exit_code == 2 and "'list_queues'" in ended.err and ended.out == ""
    assert ctl("help", "list_queue").out.startswith("list_queues "), "a word lists the commands about it"
