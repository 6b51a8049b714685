"""`make run` (scripts/run.py), with programs in the place of setup and broker that write down what happens to them."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "run.py"
SETUP = """#!/bin/sh
echo "setup $1" >> {log}
case $1 in
    is-built) [ -e {built} ] ;;
    run) while [ ! -e {permitted} ]; do sleep 0.05; done; [ ! -e {broken} ] || exit 1; touch {built} ;;
esac
"""
# It ends at SIGTERM, with 0, or when `end` is there, with 7.
BROKER = """#!/bin/sh
trap 'echo "{name} stopped" >> {log}; exit 0' TERM
trap 'echo "{name} reloads" >> {log}' HUP
echo "{name} $*" >> {log}
while [ ! -e {end} ]; do sleep 0.05; done
exit 7
"""


class Checkout:
    """A directory with the script and its surroundings."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log, self.built, self.permitted = root / "log", root / "built", root / "permitted"
        self.broken, self.end = root / "broken", root / "end"
        places = {name: str(getattr(self, name)) for name in ("log", "built", "permitted", "broken", "end")}
        self._program("scripts/setup", SETUP.format(**places))
        self._program(".venv/bin/python", BROKER.format(name="source", **places))
        self._program(".venv/bin/warren", BROKER.format(name="built", **places))
        shutil.copy(SCRIPT, root / "scripts/run.py")
        self.log.touch()

    def _program(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def replace_broker(self, text: str) -> None:
        """Put `text` in the place of the broker that runs from the sources."""
        self._program(".venv/bin/python", text)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(self.root / "scripts/run.py"), *arguments]
        # A compiler that is there on each machine: whether one is found decides between the two ways.
        environment = {"PATH": "/usr/bin:/bin", "CC": "sh"}
        # With nohup this process ignores SIGHUP, and a shell cannot trap what it was started to ignore.
        handled = signal.signal(signal.SIGHUP, signal.SIG_DFL)
        try:
            return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        finally:
            signal.signal(signal.SIGHUP, handled)

    def await_line(self, line: str) -> None:
        end_s = time.monotonic() + 60
        while line not in self.log.read_text().splitlines():
            assert time.monotonic() < end_s, self.log.read_text()
            time.sleep(0.02)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_a_first_start_serves_from_the_sources_at_once(checkout: Checkout) -> None:
    process = checkout.start("--amqp", "127.0.0.1:1")
    checkout.await_line("source -m warren serve --amqp 127.0.0.1:1")
    assert not checkout.built.exists()
    checkout.permitted.touch()
    assert process.stderr is not None
    while "the next `make run` takes it" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert checkout.log.read_text().splitlines()[-1] == "source stopped"


def test_what_is_built_is_started(checkout: Checkout) -> None:
    checkout.built.touch()
    checkout.end.touch()
    process = checkout.start("--http", "127.0.0.1:2")
    process.communicate(timeout=60)
    assert process.returncode == 7
    assert checkout.log.read_text().splitlines()[-1] == "built serve --http 127.0.0.1:2"


def test_the_broker_is_restarted_with_the_compiled_engine_when_that_is_asked_for(checkout: Checkout) -> None:
    process = checkout.start("--compiled-when-ready")
    checkout.await_line("source -m warren serve")
    checkout.permitted.touch()
    checkout.await_line("built serve")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    lines = [line for line in checkout.log.read_text().splitlines() if not line.startswith("setup")]
    assert lines == ["source -m warren serve", "source stopped", "built serve", "built stopped"]


def test_a_broker_that_has_no_handler_yet_is_restarted_as_well(checkout: Checkout) -> None:
    checkout.replace_broker(f'#!/bin/sh\necho "begins" >> {checkout.log}\nexec sleep 1000\n')
    process = checkout.start("--compiled-when-ready")
    checkout.await_line("begins")
    checkout.permitted.touch()
    checkout.await_line("built serve")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_broker_that_stops_during_the_build_tells_its_exit_code(checkout: Checkout) -> None:
    checkout.end.touch()
    process = checkout.start("--compiled-when-ready")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 7 and "the build continues in the background" in said
    checkout.permitted.touch()  # or it would wait for ever


def test_signals_reach_the_broker(checkout: Checkout) -> None:
    process = checkout.start()
    checkout.await_line("source -m warren serve")
    process.send_signal(signal.SIGHUP)
    checkout.await_line("source reloads")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    checkout.permitted.touch()


def test_a_build_that_fails_leaves_the_broker_as_it_is(checkout: Checkout) -> None:
    checkout.broken.touch()
    checkout.permitted.touch()
    process = checkout.start("--compiled-when-ready")
    checkout.await_line("source -m warren serve")
    assert process.stderr is not None
    while "could not be built" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert checkout.log.read_text().splitlines()[-1] == "source stopped"


def test_without_a_compiler_the_package_is_built_first(checkout: Checkout) -> None:
    checkout.permitted.touch()
    checkout.end.touch()
    command = [sys.executable, str(checkout.root / "scripts/run.py")]
    environment = {"PATH": "/usr/bin:/bin", "CC": "a-compiler-that-is-not-there"}
    code = subprocess.run(command, check=False, stderr=subprocess.DEVNULL, env=environment, timeout=60).returncode
    assert code == 7
    assert checkout.log.read_text().splitlines() == ["setup source", "setup is-built", "setup run", "built serve"]


def test_progress_is_told_also_before_a_build_has_named_its_phase(tmp_path: Path) -> None:
    setup = SCRIPT.with_name("setup").read_text()
    ticks = setup[setup.index("ticks() {") :].partition("\n}\n")[0] + "\n}\n"
    around = f'set -eu; say() {{ echo "$@"; }}; sleep() {{ command sleep 0.01; }}; stamps={tmp_path}\n'
    command = ["sh", "-c", f"{around}{ticks}ticks wheel | head -2"]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout
    assert told.splitlines() == ["setup: wheel: 5 s", "setup: wheel: 10 s"]
