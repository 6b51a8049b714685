"""One attack beside an innocent client: the broker, the two of them, and what is measured."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from broker_process import WarrenProcess, wait_until
from integration.certificates import Authority
from integration.management.client import EVERYTHING, Api

from .attack_words import VHOST
from .bystander import QUEUE, Bystander

ATTACK_DEADLINE_S = 150.0
REST_DEADLINE_S = 150.0
SETTINGS = {
    "limits.memory_high_watermark": "2 GiB",
    "store.disk_free_min_bytes": 0,
    "link_networks": "127.0.0.0/8",
}


class Limits(NamedTuple):
    """The memory at which publishers wait, and the number of bytes that the store may take before they wait."""

    memory_bytes: int
    disk_bytes: int


# Above the memory by what is under way, and above the disk by what is written when it is noticed: a batch, a segment.
MEMORY_SLACK = 1.25
DISK_SLACK_BYTES = 256 << 20
# The attacks that have the broker write or hold things itself; the others have the limits of `SETTINGS`.
NARROW: dict[str, Limits] = {
    "commit-of-large-messages": Limits(800 << 20, 1 << 30),
    "commit-of-many-messages": Limits(800 << 20, 1 << 30),
    "commit-for-many-queues": Limits(800 << 20, 1 << 30),
    "commit-of-many-acks": Limits(800 << 20, 1 << 30),
    "commit-of-requeues": Limits(800 << 20, 1 << 30),
    "transactions-without-end": Limits(800 << 20, 1 << 30),
    "filters-of-everything": Limits(400 << 20, 512 << 20),
    "many-filters-of-everything": Limits(400 << 20, 512 << 20),
}


class Outcome(NamedTuple):
    """The effect of an attack on others: longest waits in s, failures, and the state of the process.

    `store_bytes`: the most that the data directory ever took.
    """

    name: str
    worst_s: dict[str, float]
    times: dict[str, int]
    failures: list[str]
    peak_bytes: int
    rest_bytes: int
    store_bytes: int
    lasted_s: float


class StoreSize:
    """The largest size of a data directory inside its ``with`` block, in bytes on the disk."""

    def __init__(self, directory: Path) -> None:
        self.peak_bytes = 0
        self._directory = directory
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            size = 0
            for directory, _, names in os.walk(self._directory):  # which passes over what is gone
                for name in names:
                    with contextlib.suppress(FileNotFoundError):
                        size += os.stat(os.path.join(directory, name)).st_blocks * 512
            self.peak_bytes = max(self.peak_bytes, size)


def broker(directory: Path, name: str = "", *, is_executed: bool = True) -> WarrenProcess:
    """Return a broker for the attack `name`, not yet started, whose users are made by `admit`.

    `is_executed`: it is a process as anybody starts it, in which passwords cost what they do in earnest; else it may be
    a fork (`fork_server.py`).
    """
    certificate = Authority(directory / "certificates", "Abuse").issue("/CN=localhost", "DNS:localhost,IP:127.0.0.1")
    settings = SETTINGS | {"tls.certificate": certificate.certificate, "tls.private_key": certificate.key}
    limits = NARROW.get(name)
    if limits is not None:
        free = os.statvfs(directory)
        floor = max(0, free.f_bavail * free.f_frsize - limits.disk_bytes)
        settings |= {"limits.memory_high_watermark": limits.memory_bytes, "store.disk_free_min_bytes": floor}
    wrapper = ["env"] if is_executed else []
    flags = dict.fromkeys(("amqps", "https", "mqtt"), "127.0.0.1:0")
    return WarrenProcess(directory, flags=flags, settings=settings, wrapper=wrapper)


def admit(process: WarrenProcess) -> None:
    """Make the vhost and the users of the attacks."""
    api = Api(process.http_port)
    api.put(f"/vhosts/{VHOST}")
    for user, tags in (("mallory", ""), ("mallet", "policymaker")):
        api.put(f"/users/{user}", {"password": user, "tags": tags})
        api.put(f"/permissions/{VHOST}/{user}", EVERYTHING)
    api.close()


def peak_bytes(process: WarrenProcess) -> int:
    """Return the most memory that was ever resident."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def forget_peak(process: WarrenProcess) -> None:
    """Reset `peak_bytes`."""
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def attacker_command(process: WarrenProcess, name: str) -> list[str]:
    """Return the command that makes one attack, to be run in tests/."""
    ports = [process.amqp_port, process.http_port, process.amqps_port, process.https_port, process.mqtt_port]
    return [sys.executable, "-m", "abuse.attacks", name, *map(str, ports)]


def run(process: WarrenProcess, name: str) -> Outcome:
    """Make one attack, and wait until the broker is at rest."""
    forget_peak(process)
    began_s = time.monotonic()
    with StoreSize(process.data_directory) as store, Bystander(process) as bystander:
        command = attacker_command(process, name)
        attacker = subprocess.run(
            command, timeout=ATTACK_DEADLINE_S, check=False, capture_output=True, cwd=Path(__file__).parents[1]
        )
        time.sleep(0.5)  # what the end of the attacker's connections causes is seen by the bystander, too
    assert attacker.returncode == 0, attacker.stderr.decode()
    lasted_s = time.monotonic() - began_s
    api = Api(process.http_port)
    wait_until(
        lambda: all(each["user"] == "guest" for each in api.get("/connections")),
        "the attackers to be gone",
        REST_DEADLINE_S,
    )
    # The remains of the attack go with its vhost.
    api.delete(f"/vhosts/{VHOST}")
    api.ask("DELETE", f"/queues/%2F/{QUEUE}/contents")
    api.close()
    admit(process)
    return Outcome(
        name,
        bystander.worst_s,
        bystander.count,
        bystander.failures,
        peak_bytes(process),
        process.resident_bytes(),
        store.peak_bytes,
        lasted_s,
    )
