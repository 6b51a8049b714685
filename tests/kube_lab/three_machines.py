"""The cloud-init example as processes: three machines with the same user data, which become a cluster.

    make kubernetes ARGS=three-machines

packaging/cloud-init/three-machines.yaml is read as it is: its drop-ins of systemd give the environment of etcd and of
Warren, whose commands are those of their units; %H is the name of the machine, %d the directory of credentials. A
machine is a pod here (``pods.py``): namespaces with a name and an address.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any, Final

import yaml

from .load import Load
from .network import Network
from .pods import ROOT, Pod, image, until

USER_DATA: Final = ROOT / "packaging/cloud-init/three-machines.yaml"
UNIT: Final = ROOT / "packaging/debian/warren.service"
CREDENTIALS: Final = "/run/credentials/warren.service"
CONFIG: Final = "/run/config"
NAMES: Final = ("one", "two", "three")


def files() -> dict[str, str]:
    """Return what the user data writes, by path."""
    found = yaml.safe_load(USER_DATA.read_text())
    return {each["path"]: each["content"] for each in found["write_files"]}


def environment_of(drop_in: str, machine: str) -> dict[str, str]:
    """Return the variables that a drop-in of systemd sets on a machine."""
    words = [word for line in re.findall(r"(?m)^Environment=(.+)$", drop_in) for word in shlex.split(line)]
    found = dict(word.split("=", 1) for word in words)
    return {name: value.replace("%H", machine).replace("%d", CREDENTIALS) for name, value in found.items()}


def credentials_of(drop_in: str) -> dict[str, str]:
    """Return the files that a service gets as credentials: their paths, by name."""
    return dict(line.split(":", 1) for line in re.findall(r"(?m)^LoadCredential=(.+)$", drop_in))


def template(machine: str) -> dict[str, Any]:
    """Return a machine as the template of a pod."""
    written = files()
    etcd = environment_of(written["/etc/systemd/system/etcd.service.d/cluster.conf"], machine)
    warren = environment_of(written["/etc/systemd/system/warren.service.d/cluster.conf"], machine)
    environment = {"ETCD_DATA_DIR": "/var/lib/etcd/default"} | etcd | warren
    (start,) = re.findall(r"(?m)^ExecStart=/usr/bin/warren (.+)$", UNIT.read_text())
    words = [*image()[0][:-1], *start.replace("/etc/warren", CONFIG).split()]
    ready, live = ({"httpGet": {"path": f"/health/{kind}", "port": "http"}} for kind in ("ready", "live"))
    container = {
        "command": ["sh", "-c", f"etcd & exec {shlex.join(words)}"],
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "ports": [{"name": "http", "containerPort": 15672}],
        "securityContext": {"readOnlyRootFilesystem": True},
        "readinessProbe": ready | {"periodSeconds": 1},
        "livenessProbe": live | {"failureThreshold": 1000},
        "volumeMounts": [
            {"name": "etcd", "mountPath": "/var/lib/etcd"},
            {"name": "warren", "mountPath": "/var/lib/warren"},
            {"name": "credentials", "mountPath": CREDENTIALS, "readOnly": True},
            {"name": "config", "mountPath": CONFIG, "readOnly": True},
        ],
    }
    secrets = [{"name": name, "secret": {"secretName": name}} for name in ("credentials", "config")]
    return {
        "spec": {
            "containers": [container],
            "volumes": secrets,
            "securityContext": {"runAsUser": 10001},
            "terminationGracePeriodSeconds": 30,
        }
    }


def run(directory: Path) -> None:
    """Start the machines, use them, and kill the leader."""
    written = files()
    secrets = directory / "secrets"
    for name in ("credentials", "config"):
        (secrets / name).mkdir(parents=True)
    for name, path in credentials_of(written["/etc/systemd/system/warren.service.d/cluster.conf"]).items():
        (secrets / "credentials" / name).write_text(written[path])
    example = [*image()[0][:-1], "config", "--data-dir", "/var/lib/warren", "example"]
    (secrets / "config" / "warren.toml").write_bytes(subprocess.run(example, check=True, capture_output=True).stdout)
    directory.chmod(0o755)
    network = Network(directory)
    network.enter()
    # cloud-init starts the machines at about the same time.
    machines = [Pod(name, [], template(name), network, directory, secrets) for name in NAMES]
    password = (secrets / "credentials/password").read_text()
    load = Load(lambda: next((each.address for each in machines if each.is_ready), None), "admin", password)
    ctl = ("warren", "ctl", "--username", "admin", "--password-file", f"{CREDENTIALS}/password", "cluster", "status")
    try:
        until(lambda: all(machine.is_ready for machine in machines), "three nodes in sync")
        said = machines[0].exec(*ctl)
        print(said.stdout, flush=True)
        assert said.returncode == 0, said.stderr
        assert all(f"rabbit@{name}" in said.stdout for name in NAMES), said.stdout
        load.declare()
        load.start()
        until(lambda: len(load.confirmed) > 50, "confirms")
        login = b64encode(f"admin:{password}".encode()).decode()
        leads = [each for each in machines if (each.ask("/api/cluster/status", login) or {}).get("role") == "leader"]
        leads[0].signal(signal.SIGKILL)
        until(lambda: leads[0].restarts > 0, "the service to start again")
        before = len(load.confirmed)
        until(lambda: len(load.confirmed) > before + 50, "confirms by another leader")
        until(lambda: all(machine.is_ready for machine in machines), "three nodes in sync again")
        load.stop()
        lost, invented = load.missing()
        assert not lost and not invented, (lost, invented)
        print(f"{leads[0].name} was killed; {len(load.confirmed)} messages confirmed, none is missing", flush=True)
    except AssertionError:
        for machine in machines:
            print("\n".join(machine.log_path.read_text().splitlines()[-30:]), file=sys.stderr)
        raise
    finally:
        for machine in machines:
            machine.lose()
        network.close()
