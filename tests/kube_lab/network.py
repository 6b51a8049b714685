"""The network of pods: a bridge in a namespace of its own, and a namespace with an address for each start of a pod.

1. A pod gets an address that no pod had before, as on Kubernetes. The addresses of a pod that is gone do not answer.
2. Names are lines of one file, which every pod has as /etc/hosts: those of Services without a cluster address.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path
from typing import Final

_CLONE_NEWNET: Final = 0x40000000
_PODS_MAX: Final = 250


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


class Network:
    """The bridge, and the names that pods find each other by; needs ``ip`` and root."""

    def __init__(self, directory: Path) -> None:
        self.hosts = directory / "hosts"
        self._prefix = f"kube{os.getpid()}"
        self._count = 1
        self._names: dict[str, str] = {}
        self._write()
        self._node = f"{self._prefix}n"
        run("ip", "netns", "add", self._node)
        inside = ("ip", "-n", self._node)
        run(*inside, "link", "add", "br0", "type", "bridge")
        run(*inside, "link", "set", "br0", "up")
        run(*inside, "link", "set", "lo", "up")
        run(*inside, "addr", "add", "10.78.0.1/16", "dev", "br0")

    def enter(self) -> None:
        """Put this thread, and those that it starts, beside the pods, as the kubelet is."""
        with open(f"/var/run/netns/{self._node}") as space:
            if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")

    def add(self, names: list[str]) -> tuple[str, str]:
        """Make a namespace with a new address and `names`; return it, and the address."""
        self._count += 1
        assert self._count < _PODS_MAX, "too many starts of pods"
        space, address = f"{self._prefix}p{self._count}", f"10.78.0.{self._count}"
        device = f"v{self._count}"
        run("ip", "netns", "add", space)
        run("ip", "-n", self._node, "link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", space)
        run("ip", "-n", self._node, "link", "set", device, "master", "br0", "up")
        run("ip", "-n", space, "addr", "add", f"{address}/16", "dev", "eth0")
        run("ip", "-n", space, "link", "set", "eth0", "up")
        run("ip", "-n", space, "link", "set", "lo", "up")
        self._names |= dict.fromkeys(names, address)
        self._write()
        return space, address

    def remove(self, space: str, address: str) -> None:
        """Remove a namespace, and the names with its address. No process may be left in it."""
        self._names = {name: known for name, known in self._names.items() if known != address}
        self._write()
        subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)

    def close(self) -> None:
        subprocess.run(["ip", "netns", "del", self._node], check=False, capture_output=True)

    def _write(self) -> None:
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in sorted(self._names.items()))]
        # In place: pods have this very file.
        with self.hosts.open("r+" if self.hosts.exists() else "w") as file:
            file.write("\n".join(lines) + "\n")
            file.truncate()
