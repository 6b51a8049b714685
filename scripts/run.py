#!/usr/bin/env python3
"""Start the broker: `make run`.

    scripts/run.py [--compiled-when-ready] [OPTION OF `warren serve`]...

The compiled engine takes minutes to build. So when it is missing, the broker starts at once from the sources,
interpreted, and the engine is built meanwhile with low priority. The next start takes it. With --compiled-when-ready
the broker is restarted as soon as it is built: clients see one close with 320 and connect again.

The build continues when the broker stops. A start during the build does not begin another one: `scripts/setup` waits
for the one that runs.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SETUP: Final = str(ROOT / "scripts/setup")
LOG: Final = ROOT / ".cache/build.log"
SOURCE: Final = [str(ROOT / ".venv/bin/python"), "-m", "warren", "serve"]
BUILT: Final = [str(ROOT / ".venv/bin/warren"), "serve"]
PASSED_ON: Final = (signal.SIGTERM, signal.SIGHUP)
ENDED_BY_SIGTERM: Final = (0, 128 + signal.SIGTERM)  # the second: it was told before it had a handler for it
POLL_S: Final = 0.5
TOLD_EVERY_S: Final = 30.0


def say(text: str) -> None:
    print(f"run: {text}", file=sys.stderr, flush=True)


def setup(what: str) -> bool:
    """Run `scripts/setup`, and return whether it ended well."""
    return subprocess.run([SETUP, what], check=False).returncode == 0


def has_compiler() -> bool:
    """Return whether an engine would be compiled, as `scripts/setup` decides it."""
    return os.environ.get("WARREN_COMPILE", "1") != "0" and shutil.which(os.environ.get("CC", "cc")) is not None


def started_build() -> subprocess.Popen[bytes]:
    """Begin to build the engine. Ctrl-C and the end of the broker do not reach the build."""
    LOG.parent.mkdir(exist_ok=True)
    LOG.unlink(missing_ok=True)  # a build that is under way continues to write into the old file
    with LOG.open("wb") as log:
        command = ["nice", "-n", "19", SETUP, "run"]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


class Broker:
    """The broker as a child. Signals to this process are passed on to it."""

    def __init__(self, command: list[str], arguments: list[str]) -> None:
        environment = dict(os.environ)
        if command is SOURCE:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
        self.is_asked_to_stop = False
        self.process = subprocess.Popen([*command, *arguments], env=environment)
        signal.signal(signal.SIGINT, self._interrupted)
        for number in PASSED_ON:
            signal.signal(number, self._pass_on)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        self.is_asked_to_stop = True  # the terminal has told the broker, too

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.is_asked_to_stop = self.is_asked_to_stop or number == signal.SIGTERM
        self.process.send_signal(number)

    def ended(self, within_s: float) -> bool:
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def code(self) -> int:
        """Wait for its end, and return the exit code as a shell has it."""
        code = self.process.wait()
        return 128 - code if code < 0 else code


def from_source(arguments: list[str], *, restart: bool) -> int:
    """Serve interpreted while the engine is built; return the exit code of the last broker."""
    build = started_build()
    say("this is the first start, or the sources have changed: the compiled engine is being built, which takes minutes")
    say("the broker runs interpreted meanwhile, with several times the CPU for each message")
    broker = Broker(SOURCE, arguments)
    began_s = told_s = time.monotonic()
    while build.poll() is None:
        if broker.ended(POLL_S):
            say(f"the build continues in the background: {LOG.relative_to(ROOT)}")
            return broker.code()
        now_s = time.monotonic()
        if now_s - told_s >= TOLD_EVERY_S:
            told_s = now_s
            say(f"building the compiled engine: {now_s - began_s:.0f} s")
    if build.returncode != 0:
        say(f"the engine could not be built, and the broker continues interpreted: see {LOG.relative_to(ROOT)}")
    elif not restart:
        say("the compiled engine is ready: the next `make run` takes it")
    elif not broker.is_asked_to_stop:
        say("the compiled engine is ready: restarting the broker")
        broker.process.terminate()
        code = broker.code()
        if code not in ENDED_BY_SIGTERM or broker.is_asked_to_stop:
            return code
        broker = Broker(BUILT, arguments)
    return broker.code()


def main() -> int:
    arguments = sys.argv[1:]
    restart = "--compiled-when-ready" in arguments
    if restart:
        arguments.remove("--compiled-when-ready")
    if not setup("source"):
        return 1
    if subprocess.run([SETUP, "is-built"], check=False, stderr=subprocess.DEVNULL).returncode != 0:
        if has_compiler():
            return from_source(arguments, restart=restart)
        if not setup("run"):
            return 1
    os.execv(BUILT[0], [*BUILT, *arguments])


if __name__ == "__main__":
    sys.exit(main())
