"""Machines of the lab: a namespace with a member of etcd and a node of Warren, whose disk and clock the lab changes."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cluster.etcd_processes import installed_etcd

from .switch import PREFIX, Switch

USER: Final = "lab"
SECRET: Final = "what the nodes of this lab share"
AMQP, HTTP, CLUSTER, MQTT = 5672, 15672, 25672, 1883
_SOURCE: Final = Path(__file__).with_name("lab_shim.c")
_SYNC_MS, _FULL, _FAILS, _AHEAD_S = range(4)
_NUMBERS: Final = 4


def compiled_shim(directory: Path) -> Path:
    """Compile the shim into `directory`."""
    library = directory / "lab_shim.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return library


class Machine:
    """Machine `number` of `switch`."""

    def __init__(self, switch: Switch, number: int, count: int, directory: Path, shim: Path) -> None:
        self.number = number
        self.name = f"rabbit@n{number}"
        self.host = f"{PREFIX}{number}"
        self.data = directory / f"n{number}"
        self.log_path = directory / f"n{number}.log"
        self.node: subprocess.Popen[bytes] | None = None
        self._switch = switch
        self._directory = directory
        self._numbers = range(1, count + 1)
        self._shim = shim
        self._etcd: subprocess.Popen[bytes] | None = None
        self._control_path = directory / f"n{number}.control"
        self._control_path.write_bytes(bytes(8 * _NUMBERS))
        with self._control_path.open("r+b") as file:
            self._control = memoryview(mmap.mmap(file.fileno(), 8 * _NUMBERS)).cast("q")
        secret = directory / "secret"
        secret.write_text(SECRET)
        self._secret = secret

    def _start(self, command: list[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        space = ["ip", "netns", "exec", self._switch.namespace(self.number)]
        with log.open("ab") as said:
            return subprocess.Popen([*space, *command], stdout=said, stderr=said, env=environment, cwd=self._directory)

    def start_etcd(self) -> None:
        peers = ",".join(f"m{number}=http://{PREFIX}{number}:2380" for number in self._numbers)
        flags = {
            "name": f"m{self.number}",
            "data-dir": str(self._directory / f"etcd{self.number}"),
            "listen-client-urls": f"http://{self.host}:2379",
            "advertise-client-urls": f"http://{self.host}:2379",
            "listen-peer-urls": f"http://{self.host}:2380",
            "initial-advertise-peer-urls": f"http://{self.host}:2380",
            "initial-cluster": peers,
        }
        command = [installed_etcd(), *(f"--{name}={value}" for name, value in flags.items())]
        self._etcd = self._start(command, self._directory / f"etcd{self.number}.log", dict(os.environ))

    def start_node(self) -> None:
        """Start the node, without waiting."""
        if self.is_running():
            return
        flags = {
            "node": self.name,
            "data-dir": str(self.data),
            "amqp": f"{self.host}:{AMQP}",
            "http": f"{self.host}:{HTTP}",
            "mqtt": f"{self.host}:{MQTT}",
            "prometheus": "off",
            "cluster-listen": f"{self.host}:{CLUSTER}",
            "cluster-secret-file": str(self._secret),
            "etcd": ",".join(f"http://{PREFIX}{number}:2379" for number in self._numbers),
            "replicas": str(len(self._numbers)),
        }
        environment = {name: text for name, text in os.environ.items() if not name.startswith("WARREN_")}
        environment |= {"WARREN_DEFAULT_USER": USER, "WARREN_DEFAULT_PASS": USER}
        preloaded = ["env", f"LD_PRELOAD={self._shim}", f"LAB_SHIM_CONTROL={self._control_path}"]
        command = [*preloaded, sys.executable, "-P", "-m", "warren", "serve"]
        for flag, value in flags.items():
            command += [f"--{flag}", value]
        self.node = self._start(command, self.log_path, environment)

    def is_running(self) -> bool:
        return self.node is not None and self.node.poll() is None

    def signal(self, number: signal.Signals) -> None:
        if self.node is not None and self.is_running():
            self.node.send_signal(number)

    def wait(self, seconds: float) -> int | None:
        """Wait for the end of the node; None: it did not come."""
        try:
            return None if self.node is None else self.node.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        for process in (self.node, self._etcd):
            if process is not None:
                process.kill()
                process.wait()

    # --- its disk and clock -------------------------------------------------------------------------------------------

    def disk(self, *, sync_ms: int = 0, full: bool = False, fails: bool = False) -> None:
        """Make syncs take longer, or fail, or writes find no space."""
        self._control[_SYNC_MS], self._control[_FULL], self._control[_FAILS] = sync_ms, full, fails

    def clock(self, ahead_s: int) -> None:
        """Set the wall clock ahead."""
        self._control[_AHEAD_S] = ahead_s

    def copy_data(self, to: Path) -> None:
        """Copy the directory of the node as it is."""
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(self.data, to)

    def restore_data(self, source: Path) -> None:
        """Put an older copy in place of the directory."""
        shutil.rmtree(self.data)
        shutil.copytree(source, self.data)

    # --- what it says -------------------------------------------------------------------------------------------------

    def ask(self, path: str, timeout_s: float = 2.0) -> Any:
        """Return what the API answers; None when it does not."""
        credentials = b64encode(f"{USER}:{USER}".encode()).decode()
        request = urllib.request.Request(f"http://{self.host}:{HTTP}{path}")
        request.add_header("Authorization", f"Basic {credentials}")
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return json.load(answer)
        except (OSError, ValueError):
            return None

    def leads(self) -> bool:
        """Tell whether the node leads and serves, as it says."""
        status = self.ask("/api/cluster/status")
        return isinstance(status, dict) and status.get("role") == "leader" and bool(status["election"]["leads"])

    def status(self) -> dict[str, Any]:
        found = self.ask("/api/cluster/status")
        return found if isinstance(found, dict) else {}

    def said(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def etcd_leads(self) -> bool:
        """Tell whether the member of etcd here leads etcd."""
        request = urllib.request.Request(f"http://{self.host}:2379/v3/maintenance/status", b"{}")
        try:
            with urllib.request.urlopen(request, timeout=2) as answer:
                status = json.load(answer)
        except (OSError, ValueError):
            return False
        return bool(status.get("leader") == status["header"]["member_id"])


def until(condition: Callable[[], bool], what: str, seconds: float) -> None:
    give_up_s = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up_s:
            raise AssertionError(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(0.1)
