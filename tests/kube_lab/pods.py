"""Pods of the rendered manifests as processes: commands, environment, volumes, user and probes as they are there.

    container   in the namespaces of its pod (network, host name, mounts): the root is read-only, the volumes are where
                the manifest mounts them; the user has the ids of the manifest and no capabilities
    image       of Warren: entry point and environment of the Dockerfile, the program from this checkout
    kubelet     a thread for each pod: startup probe first, then readiness and liveness; it starts a container again
                that has ended, or fails its liveness probe

1. A pod that is deleted leaves the Services, runs its preStop hook, gets SIGTERM, and SIGKILL after the grace period.
2. The volumes of a pod outlive it: the next pod of that name has them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from .network import Network

NAMESPACE: Final = "default"
ROOT: Final = Path(__file__).parents[2]
PERIOD_S: Final = 10  # defaults of Kubernetes
TIMEOUT_S: Final = 1
FAILURES: Final = 3
_LOOK_S: Final = 0.1


def until(condition: Callable[[], bool], what: str, seconds: float = 300.0) -> None:
    give_up_s = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up_s:
            raise AssertionError(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(_LOOK_S)


def image() -> tuple[list[str], dict[str, str]]:
    """Return command and environment of Warren's image, with the program of this checkout."""
    text = (ROOT / "packaging/container/Dockerfile").read_text()
    block = re.search(r"^ENV ((?:.*\\\n)*.*)$", text, re.MULTILINE)
    entry, command = (re.findall(rf"(?m)^{name} (\[.+\])$", text)[-1] for name in ("ENTRYPOINT", "CMD"))
    assert block is not None
    words = [*json.loads(entry), *json.loads(command)]
    assert words[0] == "warren"
    environment = dict(word.split("=", 1) for word in block[1].replace("\\\n", " ").split())
    return [sys.executable, "-P", "-m", *words], environment


def maybe_hidden() -> Path | None:
    """Return the directory of the interpreter below one that only root may enter; None if everybody reaches it."""
    ways = [*reversed(Path(sys.executable).resolve().parents)]
    closed = next((way for way in ways if not way.stat().st_mode & 0o001), None)
    return None if closed is None else ways[ways.index(closed) + 1]


class Probe:
    """A probe, and what it has found in a row."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self.period_s = float(spec.get("periodSeconds", PERIOD_S))
        self.failures_max = int(spec.get("failureThreshold", FAILURES))
        self.failures = 0
        self.due_s = time.monotonic() + float(spec.get("initialDelaySeconds", 0))

    def is_due(self) -> bool:
        return time.monotonic() >= self.due_s

    def passes(self, address: str, ports: dict[str, int]) -> bool:
        """Ask once."""
        self.due_s = time.monotonic() + self.period_s
        timeout_s = float(self._spec.get("timeoutSeconds", TIMEOUT_S))
        found = self._asked(address, ports, timeout_s)
        self.failures = 0 if found else self.failures + 1
        return found

    def _asked(self, address: str, ports: dict[str, int], timeout_s: float) -> bool:
        try:
            if "tcpSocket" in self._spec:
                socket.create_connection((address, ports[self._spec["tcpSocket"]["port"]]), timeout_s).close()
                return True
            get = self._spec["httpGet"]
            with urllib.request.urlopen(f"http://{address}:{ports[get['port']]}{get['path']}", timeout=timeout_s):
                return True
        except (OSError, ValueError):
            return False


class Pod:
    """One pod of a StatefulSet: `template` is its pod template, `volumes` the directory of its volumes and secrets."""

    def __init__(
        self, name: str, names: list[str], template: dict[str, Any], network: Network, directory: Path, secrets: Path
    ) -> None:
        self.name = name
        self.template = template
        self.restarts = 0
        self.is_ready = False
        self.is_leaving = False
        self.log_path = directory / f"{name}.log"
        self._network = network
        self._directory = directory
        self._secrets = secrets
        self._spec = template["spec"]
        self._fields = {"metadata.name": name, "metadata.namespace": NAMESPACE}
        (self._container,) = self._spec["containers"]
        self._ports = {each["name"]: each["containerPort"] for each in self._container["ports"]}
        self.space, self.address = network.add([name, *names])
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._start()
        self._kubelet = threading.Thread(target=self._watch, daemon=True)
        self._kubelet.start()

    # --- the container --------------------------------------------------------------------------------------------

    def _environment(self) -> dict[str, str]:
        _, environment = image()
        if "command" in self._container:
            environment = {}
        for each in self._container["env"]:
            if "valueFrom" in each:
                environment[each["name"]] = self._fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            else:
                environment[each["name"]] = self._expanded(each["value"], environment)
        passed = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        return passed | environment

    def _expanded(self, text: str, environment: dict[str, str]) -> str:
        return re.sub(r"\$\((\w+)\)", lambda found: environment.get(found[1], found[0]), text)

    def _command(self) -> list[str]:
        environment = self._environment()
        if "command" in self._container:
            return [self._expanded(word, environment) for word in self._container["command"]]
        return image()[0]

    def _mounts(self) -> list[tuple[Path, str]]:
        """Return what is mounted where; directories are made."""
        secrets = {each["name"]: each["secret"] for each in self._spec.get("volumes", ()) if "secret" in each}
        found = []
        for mount in self._container["volumeMounts"]:
            name = mount["name"]
            if name in secrets:
                source = self._secrets / secrets[name]["secretName"]
                assert all((source / item["key"]).exists() for item in secrets[name].get("items", ()))
            else:
                source = self.volumes / name
                source.mkdir(parents=True, exist_ok=True)
                os.chown(source, self._user, self._user)
            found.append((source, mount["mountPath"]))
        return found

    @property
    def volumes(self) -> Path:
        return self._directory / self.name

    @property
    def _user(self) -> int:
        return int(self._spec["securityContext"]["runAsUser"])

    def _inside(self, command: list[str]) -> list[str]:
        ids = f"--reuid={self._user} --regid={self._user} --clear-groups --no-new-privs --bounding-set=-all"
        return ["sh", "-c", f"exec setpriv {ids} -- {shlex.join(command)}"]

    def _start(self) -> None:
        """Start the container: a script prepares its mounts and becomes its command."""
        mounts = self._mounts()
        # The root may have no directory for them: empty ones are in its place.
        below = sorted({"/run" if target.startswith("/run/") else str(Path(target).parent) for _, target in mounts})
        below = [place for place in below if place != "/"]
        lines = ["set -e", "mount --make-rprivate /"]
        # A volume lies beside all others that are there: on this machine they may be in the same directory.
        lines += [f"mount --bind {source} {self._stage(number)}" for number, (source, _) in enumerate(mounts)]
        lines += [f"mount --bind {self._network.hosts} /etc/hosts"]
        hidden = maybe_hidden()
        if hidden is not None:
            place = self._stage(len(mounts))
            lines += [f"mount --bind {hidden} {place}", f"mount -t tmpfs -o mode=755 tmpfs {hidden.parent}"]
            lines += [f"mkdir {hidden}", f"mount --move {place} {hidden}"]
        lines += [f"mount -t tmpfs tmpfs {place}" for place in below]
        # What is staged may be below /tmp.
        for number, (_, target) in sorted(enumerate(mounts), key=lambda each: each[1][1] == "/tmp"):
            if target != "/tmp":
                lines.append(f"mkdir -p {target}")
            lines.append(f"mount --move {self._stage(number)} {target}")
            if self._container["volumeMounts"][number].get("readOnly"):
                lines.append(f"mount -o remount,bind,ro {target}")
        if self._container["securityContext"]["readOnlyRootFilesystem"]:
            lines += ["mount -o remount,bind,ro /", *(f"mount -o remount,ro {at}" for at in below)]
        lines += [f"hostname {self.name}", f"exec {shlex.join(self._inside(self._command()))}"]
        command = ["ip", "netns", "exec", self.space, "unshare", "--mount", "--uts", "sh", "-c", "\n".join(lines)]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment(), cwd="/")

    def _stage(self, number: int) -> Path:
        place = self.volumes / f"mount{number}"
        place.mkdir(parents=True, exist_ok=True)
        return place

    def exec(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the container, as `kubectl exec` does; `warren` is the program of this checkout."""
        assert self._process is not None
        command = [*image()[0][:-2], *words] if words[0] == "warren" else list(words)
        enter = ["nsenter", f"--target={self._process.pid}", "--mount", "--uts", "--net", "--"]
        return subprocess.run(
            [*enter, *self._inside(command)], env=self._environment(), cwd="/", capture_output=True, text=True
        )

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    # --- the kubelet ----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        startup, readiness, liveness = self._probes()
        while not self._is_over.wait(_LOOK_S):
            with self._lock:
                if self._is_over.is_set():
                    return
                process = self._process
                if process is None or process.poll() is not None:
                    self.is_ready = False
                    self.restarts += 1
                    self._start()
                    startup, readiness, liveness = self._probes()
                    continue
            if startup is not None:
                if startup.is_due() and startup.passes(self.address, self._ports):
                    startup = None
                elif startup.failures >= startup.failures_max:
                    process.kill()
                continue
            if readiness.is_due():
                if readiness.passes(self.address, self._ports):
                    self.is_ready = True
                elif readiness.failures >= readiness.failures_max:
                    self.is_ready = False
            is_failing = liveness.is_due() and not liveness.passes(self.address, self._ports)
            if is_failing and liveness.failures >= liveness.failures_max:
                print(f"{self.name} fails its liveness probe", flush=True)
                process.kill()

    def _probes(self) -> tuple[Probe | None, Probe, Probe]:
        container = self._container
        startup = Probe(container["startupProbe"]) if "startupProbe" in container else None
        return startup, Probe(container["readinessProbe"]), Probe(container["livenessProbe"])

    def is_in_service(self) -> bool:
        return self.is_ready and not self.is_leaving

    # --- its end --------------------------------------------------------------------------------------------------

    def delete(self) -> float:
        """End it as the API server asks the kubelet to; return how long the container took after its hook."""
        self.is_leaving = True
        give_up_s = time.monotonic() + self._spec["terminationGracePeriodSeconds"]
        hook = self._container.get("lifecycle", {}).get("preStop")
        if hook is not None:
            ended = self.exec(*hook["exec"]["command"])
            assert ended.returncode == 0, ended.stderr
        with self._lock:
            self._is_over.set()
        began_s = time.monotonic()
        self.signal(signal.SIGTERM)
        assert self._process is not None
        try:
            self._process.wait(max(0.1, give_up_s - began_s))
        except subprocess.TimeoutExpired:
            print(f"{self.name} is killed: its grace period is over", flush=True)
        took_s = time.monotonic() - began_s
        self.lose()
        return took_s

    def lose(self) -> None:
        """Remove it at once, with its machine."""
        self.is_leaving = True
        with self._lock:
            self._is_over.set()
        # Its process, and others that this one has left behind.
        pids = subprocess.run(["ip", "netns", "pids", self.space], check=True, capture_output=True, text=True).stdout
        for pid in pids.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        self._network.remove(self.space, self.address)

    # --- what it says ---------------------------------------------------------------------------------------------

    def ask(self, path: str, login: str) -> Any:
        """Return what the management API answers; None when it does not."""
        request = urllib.request.Request(f"http://{self.address}:{self._ports['http']}{path}")
        request.add_header("Authorization", f"Basic {login}")
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return json.load(answer)
        except (OSError, ValueError):
            return None
