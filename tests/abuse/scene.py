"""One attack beside an innocent client: the broker, the two of them, and what is measured."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from broker_process import WarrenProcess, wait_until
from integration.certificates import Authority
from integration.management.client import EVERYTHING, Api

from .attacks import VHOST
from .bystander import QUEUE, Bystander

ATTACK_DEADLINE_S = 150.0
REST_DEADLINE_S = 150.0
SETTINGS = {
    "limits.memory_high_watermark": "2 GiB",
    "store.disk_free_min_bytes": 0,
    "link_networks": "127.0.0.0/8",
}


class Outcome(NamedTuple):
    """The effect of an attack on others: longest waits in s, failures, and the state of the process."""

    name: str
    worst_s: dict[str, float]
    times: dict[str, int]
    failures: list[str]
    peak_bytes: int
    rest_bytes: int
    lasted_s: float


def broker(directory: Path, *, is_executed: bool = True) -> WarrenProcess:
    """Return a broker, not yet started, whose users are made by `admit`.

    `is_executed`: it is a process as anybody starts it, in which passwords cost what they do in earnest; else it may be
    a fork (`fork_server.py`).
    """
    certificate = Authority(directory / "certificates", "Abuse").issue("/CN=localhost", "DNS:localhost,IP:127.0.0.1")
    settings = SETTINGS | {"tls.certificate": certificate.certificate, "tls.private_key": certificate.key}
    wrapper = ["env"] if is_executed else []
    return WarrenProcess(
        directory, flags={"amqps": "127.0.0.1:0", "https": "127.0.0.1:0"}, settings=settings, wrapper=wrapper
    )


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


def run(process: WarrenProcess, name: str) -> Outcome:
    """Make one attack, and wait until the broker is at rest."""
    forget_peak(process)
    began_s = time.monotonic()
    with Bystander(process) as bystander:
        command = [sys.executable, "-m", "abuse.attacks", name]
        ports = [str(process.amqp_port), str(process.http_port), str(process.amqps_port), str(process.https_port)]
        attacker = subprocess.run(
            command + ports, timeout=ATTACK_DEADLINE_S, check=False, capture_output=True, cwd=Path(__file__).parents[1]
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
        lasted_s,
    )
