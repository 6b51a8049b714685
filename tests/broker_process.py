"""A `warren serve` of our own as a process: started on free ports, watched, stopped, killed.

Owns how tests start a broker and what they may know of the process. Speaks no AMQP.

1. Ports are chosen by the broker itself (port 0) and read from what it prints, so two of them never collide. A
   broker that is started again keeps its ports, as its clients expect.
2. `start` returns when the broker says where it listens and, with an HTTP listener, when GET /health answers.
3. Output is kept in two files below `directory`: ``warren.out`` (stdout) and ``warren.log`` (stderr), over all starts.
4. The process runs the installed package, compiled as it is; with PYTHONPATH, the source there.
5. WARREN_SELECTOR holds for it, too: a whole suite can be run with another selector.
6. It is forked from a process that has imported everything (`fork_server.py`), unless that would be something else than
   ``python -m warren``. Limits of resources and a disk of its own a fork can have, too. WARREN_TEST_FORK=0 executes all
   of them.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fork_server import Forked, fork

START_DEADLINE_S = 120.0
DEADLINE_S = 60.0
POLL_S = 0.02
# Under which names a broker says where it listens: those of the settings.
SCHEMES = [f"{name}{way}" for name in ("amqp", "mqtt", "stomp") for way in ("", "s", "_ws", "_wss")] + ["http", "https"]
SCHEMES += ["data", "datas"]
_PAGE_BYTES = resource.getpagesize()


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Poll `condition` until it holds; fail naming `what` when the deadline passes."""
    give_up_at = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > give_up_at:
            raise AssertionError(f"waited {deadline_s:.0f} s in vain for: {what}")
        time.sleep(POLL_S)


def _stands_still(pid: int) -> bool:
    """Tell whether all threads have stopped.

    SIGSTOP reaches one thread when that has a processor; until then the others continue. After that they stop, too. A
    thread that waits for a disk (D) stops when the disk has answered.
    """
    stats = (path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat"))
    states = {stat.rpartition(")")[2].split()[0] for stat in stats}
    return "T" in states and states <= {"T", "D"}


def _maybe_instead(wrapper: Sequence[str]) -> dict[str, Any] | None:
    """Return what a fork does instead of running under `wrapper`, as `fork` takes it; None if it cannot do the same."""
    match list(wrapper):
        case []:
            return {}
        case ["prlimit", limit]:
            name, _, most = limit.removeprefix("--").partition("=")
            return {"limits": {f"RLIMIT_{name.upper()}": int(most)}}
        case ["nsenter", target, "--mount", _]:
            return {"mounts_of": int(target.removeprefix("--target="))}
    return None


# How long nothing must have been added to a log before it is taken for whole.
LOG_SETTLES_S = 0.02


class WarrenProcess:
    """One broker, with its data in ``directory/data``.

    `flags` replace the listeners of the command line (``{"amqp": "off"}``) and add others; `settings` are dotted
    keys (``limits.channel_max``) and go in as environment variables; `wrapper` is a command to run it under.
    """

    def __init__(
        self,
        directory: Path,
        flags: Mapping[str, str] | None = None,
        settings: Mapping[str, object] | None = None,
        wrapper: Sequence[str] = (),
    ) -> None:
        self.data_directory = directory / "data"
        self.out_path = directory / "warren.out"
        self.log_path = directory / "warren.log"
        self.amqp_port = 0
        self.amqps_port = 0
        self.mqtt_port = 0
        self.mqtts_port = 0
        self.stomp_port = 0
        self.stomps_port = 0
        self.amqp_ws_port = 0
        self.amqp_wss_port = 0
        self.mqtt_ws_port = 0
        self.mqtt_wss_port = 0
        self.stomp_ws_port = 0
        self.stomp_wss_port = 0
        self.data_port = 0
        self.datas_port = 0
        self.http_port = 0
        self.https_port = 0
        self._health_url = ""
        self.flags = {"amqp": "127.0.0.1:0", "http": "127.0.0.1:0", "prometheus": "off"} | dict(flags or {})
        self._settings = dict(settings or {})
        self._wrapper = list(wrapper)
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._announced_from = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            sys.stderr.write(self.log_tail())
        if self.is_running():
            # A test that fails leaves connections behind, which a clean stop would wait for.
            self.stop() if error is None else self.kill()

    # --- life ---------------------------------------------------------------------------------------------------

    def spawn(self) -> None:
        """Start the process, without waiting."""
        assert not self.is_running()
        self.data_directory.parent.mkdir(parents=True, exist_ok=True)
        arguments = ["serve", "--data-dir", str(self.data_directory)]
        for flag, value in self.flags.items():
            arguments += [f"--{flag.replace('_', '-')}", value]
        environment = {
            name: text
            for name, text in os.environ.items()
            if name == "WARREN_SELECTOR" or not name.startswith("WARREN_")
        }
        for key, setting in self._settings.items():
            environment["WARREN_" + key.upper().replace(".", "_")] = str(setting)
        self._announced_from = self.out_path.stat().st_size if self.out_path.exists() else 0
        instead = None if os.environ.get("WARREN_TEST_FORK") == "0" else _maybe_instead(self._wrapper)
        with self.out_path.open("ab") as out, self.log_path.open("ab") as log:
            self._process = None if instead is None else fork(arguments, environment, out, log, **instead)
            if self._process is None:
                # -P: a checkout in the working directory is not what runs.
                command = [*self._wrapper, sys.executable, "-P", "-m", "warren", *arguments]
                self._process = subprocess.Popen(command, stdout=out, stderr=log, env=environment)

    def start(self) -> None:
        """Start the broker and wait until it serves."""
        self.spawn()
        try:
            wait_until(self._is_serving, "the broker to say that it listens", START_DEADLINE_S)
        except BaseException:
            sys.stderr.write(self.log_tail())
            self.kill()
            raise

    def _is_serving(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"warren serve ended with status {self._process.returncode}")
        announced = self.out_path.read_bytes()[self._announced_from :].decode()
        if "\n  stop " not in announced:
            return False
        for scheme in SCHEMES:
            place = re.search(rf"\b{scheme}://(\S+):(\d+)", announced)
            if place is not None:
                # From now on this port is ours: a second start gets the same one.
                setattr(self, f"{scheme}_port", int(place[2]))
                host = self.flags[scheme].rpartition(":")[0]
                self.flags[scheme] = f"{host}:{place[2]}"
                if scheme == "http":
                    self._health_url = f"http://{place[1]}:{place[2]}/health"
        return self.http_port == 0 or self.health() == 200

    def health(self) -> int:
        """Return the status that GET /health answers with; 0 when nothing answers."""
        return self.health_of("")

    def health_of(self, part: str) -> int:
        """Return the status that GET /health/`part` answers with; 0 when nothing answers."""
        try:
            with urllib.request.urlopen(f"{self._health_url}/{part}", timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refusal:
            return refusal.code
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return 0

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal. After SIGSTOP the process has stopped when this returns."""
        assert self._process is not None
        self._process.send_signal(number)
        if number is signal.SIGSTOP:
            pid = self._process.pid
            wait_until(lambda: _stands_still(pid), "all threads of a process that was stopped to stand still")

    def wait(self, deadline_s: float = START_DEADLINE_S) -> int:
        """Wait for the end and return the exit code, negative for a signal."""
        assert self._process is not None
        return self._process.wait(deadline_s)

    def stop(self) -> None:
        """Ask for a clean stop; kill, and fail, when the broker does not end in time."""
        if not self.is_running():
            return
        self.signal(signal.SIGTERM)
        try:
            assert self.wait() == 0, f"warren serve ended badly\n{self.log_tail()}"
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError("warren serve did not stop on SIGTERM") from None

    def kill(self) -> None:
        """End it at once, as a power failure would."""
        if self.is_running():
            self.signal(signal.SIGKILL)
            self.wait()

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # --- what can be seen from outside --------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def resident_bytes(self) -> int:
        """Return the resident memory of the process."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE_BYTES

    def out(self) -> str:
        """Return what was written to stdout."""
        return self.out_path.read_text() if self.out_path.exists() else ""

    def log(self) -> str:
        """Return what was written to stderr, by a thread of the broker that may still have some of it.

        A broker that never stops writing is waited for, too, but not for ever: it is what a failing test looks at.
        """
        before, text = "", self._log_now()
        give_up_at = time.monotonic() + DEADLINE_S
        while text != before and time.monotonic() < give_up_at:
            time.sleep(LOG_SETTLES_S)
            before, text = text, self._log_now()
        return text

    def _log_now(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self, lines: int = 200) -> str:
        """Return the last log lines, for a failing test."""
        return "\n".join(["--- warren serve ---", *self.log().splitlines()[-lines:], ""])
