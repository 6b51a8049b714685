"""What Kubernetes does with the manifests, as far as the trial needs it: StatefulSets and Services, by their fields.

1. Pods start and stop all at once when the number of replicas changes (`podManagementPolicy: Parallel`).
2. An update replaces one pod after the other, from the last to the first, and waits until the new one is ready.
3. A Service has the addresses of ready pods that are not being deleted.
"""

from __future__ import annotations

import copy
import random
import threading
from pathlib import Path
from typing import Any

import yaml

from .network import Network
from .pods import NAMESPACE, Pod, until


class StatefulSet:
    """The pods of one StatefulSet."""

    def __init__(self, spec: dict[str, Any], name: str, network: Network, directory: Path, secrets: Path) -> None:
        self.name = name
        self.spec = spec
        self.pods: dict[int, Pod] = {}
        self._network = network
        self._directory = directory
        self._secrets = secrets
        assert spec["podManagementPolicy"] == "Parallel"

    def pod(self, number: int) -> Pod:
        name = f"{self.name}-{number}"
        names = [f"{name}.{self.spec['serviceName']}.{NAMESPACE}.svc"]
        template = copy.deepcopy(self.spec["template"])
        return Pod(name, names, template, self._network, self._directory, self._secrets)

    def scale(self, replicas: int) -> None:
        """Set the number of pods: start those that are missing, or delete the last ones."""
        self.spec["replicas"] = replicas
        gone = [self.pods.pop(number) for number in sorted(self.pods) if number >= replicas]
        ends = [threading.Thread(target=pod.delete) for pod in gone]
        for end in ends:
            end.start()
        for number in range(replicas):
            if number not in self.pods:
                self.pods[number] = self.pod(number)
        for end in ends:
            end.join()

    def update(self, template: dict[str, Any]) -> list[float]:
        """Replace all pods with another template; return how long each took to stop."""
        self.spec["template"] = template
        took = []
        for number in sorted(self.pods, reverse=True):
            if self.pods[number].template == template:
                continue
            took.append(self.pods[number].delete())
            self.pods[number] = self.pod(number)
            self.until_ready(number)
        return took

    def replace(self, number: int) -> None:
        """Replace a pod whose machine is gone by a new one."""
        self.pods[number].lose()
        self.pods[number] = self.pod(number)

    def until_ready(self, *numbers: int) -> None:
        for number in numbers or sorted(self.pods):
            pod = self.pods[number]
            until(lambda pod=pod: pod.is_ready, f"{pod.name} to be ready")  # type: ignore[misc]

    def addresses(self) -> list[str]:
        """Return the addresses of its Service."""
        return [pod.address for pod in list(self.pods.values()) if pod.is_in_service()]

    def close(self) -> None:
        for pod in self.pods.values():
            pod.lose()


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


def stateful_set(found: list[Any], name: str) -> Any:
    (one,) = (each for each in found if each["kind"] == "StatefulSet" and each["metadata"]["name"] == name)
    return one["spec"]


def one_of(stateful: StatefulSet, chooser: random.Random) -> str | None:
    """Return where a new connection to the Service goes; None: nowhere."""
    addresses = stateful.addresses()
    return chooser.choice(addresses) if addresses else None
