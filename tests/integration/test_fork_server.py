"""What a fork of `fork_server.py` has in common with ``python -m warren``: nearly all brokers of tests are forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import fork_server
import pytest
from broker_process import WarrenProcess


def ended(started: fork_server.Forked | subprocess.Popen[bytes], directory: Path) -> tuple[int, str, str]:
    return started.wait(60), (directory / "out").read_text(), (directory / "log").read_text()


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--amqp", "nonsense"],
        ["serve", "--config", "none.toml"],
        ["serve", "--no-such-option"],
        ["version"],
    ],
)
def test_a_command_ends_and_prints_as_when_it_is_executed(arguments: list[str], tmp_path: Path) -> None:
    if arguments[0] == "serve":
        arguments = [*arguments, "--data-dir", str(tmp_path / "data")]
    outcomes = []
    for is_forked in (True, False):
        directory = tmp_path / str(is_forked)
        directory.mkdir()
        with (directory / "out").open("wb") as out, (directory / "log").open("wb") as log:
            started: fork_server.Forked | subprocess.Popen[bytes] | None
            if is_forked:
                started = fork_server.fork(arguments, os.environ, out, log)
            else:
                started = subprocess.Popen([sys.executable, "-P", "-m", "warren", *arguments], stdout=out, stderr=log)
        assert started is not None
        outcomes.append(ended(started, directory))
    assert outcomes[0] == outcomes[1]
    assert "".join(outcomes[0][1:]) != ""


def test_directory_umask_and_environment_are_those_of_the_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WARREN_LIMITS_CHANNEL_MAX", "nonsense")
    before = os.umask(0o027)
    try:
        with Path("out").open("wb") as out, Path("log").open("wb") as log:
            started = fork_server.fork(["serve", "--data-dir", "here"], os.environ, out, log)
    finally:
        os.umask(before)
    assert started is not None
    assert started.wait(60) != 0
    assert "nonsense" in Path("log").read_text()


def test_whoever_wants_another_environment_for_the_interpreter_gets_no_fork(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        assert fork_server.fork(["version"], dict(os.environ) | {"PYTHONMALLOC": "debug"}, out, out) is None
        assert fork_server.fork(["version"], dict(os.environ) | {"WARREN_LOG_LEVEL": "debug"}, out, out) is not None


@pytest.mark.long
def test_a_first_fork_from_a_changed_environment_leaves_later_ones_their_server(tmp_path: Path) -> None:
    """In a process of its own, where nothing has been forked yet."""
    program = """
import os, sys
import fork_server

with open(os.devnull, "wb") as out:
    os.environ["NEW"] = "for one test"
    assert fork_server.fork(["--version"], os.environ, out, out) is None
    del os.environ["NEW"]
    started = fork_server.fork(["--version"], os.environ, out, out)
assert started is not None
sys.exit(started.wait(60))
"""
    path = os.pathsep.join([str(Path(fork_server.__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = dict(os.environ) | {"PYTHONPATH": path}
    subprocess.run([sys.executable, "-P", "-c", program], env=environment, check=True, timeout=120)


def test_signals_reach_it_and_its_end_is_told_as_subprocess_tells_it(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path) as process:
        assert process.is_running()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process.signal(signal.SIGTERM)  # which is nothing to one that has ended
        assert not process.is_running()
        assert not Path(f"/proc/{process.pid}").exists()
        process.start()
        process.stop()
        assert process.wait() == 0
