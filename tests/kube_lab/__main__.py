"""The manifests of Kubernetes as processes: from one broker to three nodes, to five, and back, under load, and faults.

    make kubernetes                        everything
    make kubernetes ARGS="--seed 7"        the same choices again
    make kubernetes ARGS=three-machines    the example of cloud-init instead, see ``three_machines.py``

Needs root, Debian's iproute2 and etcd-server. It reads packaging/kubernetes/warren.yaml and warren-cluster.yaml: each
pod is a process in namespaces of its own with the command, environment, volumes, user and probes that are written
there, and gets other addresses with every start (``pods.py``, ``api_server.py``). Meanwhile clients of the Service have
messages confirmed. After each step the pods that are ready must be the nodes in sync, and every new connection to the
Service has to be served. In the end nothing that was confirmed is missing. The exit code is 1 otherwise.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from . import three_machines
from .api_server import StatefulSet, documents, one_of, stateful_set
from .load import Load
from .network import Network
from .pods import ROOT, Pod, until

MANIFESTS: Final = ROOT / "packaging/kubernetes"
USER: Final = "admin"
PASSWORD: Final = "correct horse"
LOGIN: Final = b64encode(f"{USER}:{PASSWORD}".encode()).decode()
WORK_S: Final = 3.0  # under load after each step
CTL: Final = ("warren", "ctl", "--username", USER, "--password-file", "/run/secrets/warren/password")
FORGET_AGAIN_S: Final = 1.0


class Trial:
    """A cluster of pods, and what is done with it."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.chooser = random.Random(seed)
        secrets = directory / "secrets"
        for name, key, text in (("warren-password", "password", PASSWORD), ("warren-cluster", "secret", "x" * 32)):
            (secrets / name).mkdir(parents=True)
            (secrets / name / key).write_text(text)
        # The user of a pod goes through it.
        directory.chmod(0o755)
        self.network = Network(directory)
        self.network.enter()
        self.single = documents(MANIFESTS / "warren.yaml")
        self.cluster = documents(MANIFESTS / "warren-cluster.yaml")
        spec = stateful_set(self.single, "warren")
        self.nodes = StatefulSet(spec, "warren", self.network, directory, secrets)
        spec = stateful_set(self.cluster, "warren-etcd")
        self.etcd = StatefulSet(spec, "warren-etcd", self.network, directory, secrets)
        self.load = Load(lambda: one_of(self.nodes, self.chooser), USER, PASSWORD)

    def close(self) -> None:
        self.nodes.close()
        self.etcd.close()
        self.network.close()

    # --- what is there ----------------------------------------------------------------------------------------------

    def leader(self) -> Pod | None:
        for pod in self.nodes.pods.values():
            status = pod.ask("/api/cluster/status", LOGIN) if pod.is_ready else None
            if status is not None and status["role"] == "leader" and status["election"]["leads"]:
                return pod
        return None

    def until_led(self) -> Pod:
        until(lambda: self.leader() is not None, "a leader")
        found = self.leader()
        return found if found is not None else self.until_led()

    def status(self) -> dict[str, Any]:
        status = self.until_led().ask("/api/cluster/status", LOGIN)
        return status if isinstance(status, dict) else self.status()

    def until_settled(self, count: int, least: int) -> None:
        """Wait until so many pods are ready, all of them nodes in sync, and the record requires `least` of them."""

        def is_settled() -> bool:
            ready = {f"rabbit@{pod.name}" for pod in self.nodes.pods.values() if pod.is_in_service()}
            status = self.status()
            return len(ready) == count and set(status["in_sync"]) == ready and status["min_in_sync"] == least

        until(is_settled, f"{count} nodes in sync and ready, of which {least} are required")

    def until_confirmed(self) -> None:
        before = len(self.load.confirmed)
        until(lambda: len(self.load.confirmed) > before + 20, "confirms")

    def every_address_serves(self) -> None:
        for address in self.nodes.addresses():
            Load(lambda address=address: address, USER, PASSWORD).connect().close()  # type: ignore[misc]

    def step(self, what: str, work: Callable[[], object], count: int, least: int) -> None:
        """Do something under load, and see that all is well after it."""
        began_s = time.monotonic()
        confirmed = len(self.load.confirmed)
        done = work()
        self.until_settled(count, least)
        self.until_confirmed()
        self.every_address_serves()
        time.sleep(WORK_S)
        gap_s = self.load.worst_gap_s(began_s)
        took_s = time.monotonic() - began_s
        more = f"; {done}" if isinstance(done, str) else ""
        count_s = len(self.load.confirmed) - confirmed
        print(f"{what:34} {took_s:6.1f} s, {count_s:6} confirmed, worst gap {gap_s:5.2f} s{more}", flush=True)

    def exec(self, pod: Pod, *words: str) -> str:
        ended = pod.exec(*words)
        assert ended.returncode == 0, f"{' '.join(words)}: {ended.stdout}{ended.stderr}"
        return ended.stdout.strip()

    # --- the steps --------------------------------------------------------------------------------------------------

    def one_broker(self) -> None:
        self.nodes.scale(1)
        self.nodes.until_ready()
        self.load.declare()

    def cluster_of_one(self) -> str:
        """As docs/kubernetes.md has it: etcd, another template, and one command where the messages are."""
        self.etcd.scale(stateful_set(self.cluster, "warren-etcd")["replicas"])
        self.etcd.until_ready()
        self.nodes.spec = stateful_set(self.cluster, "warren")
        # The manifests are of three nodes. A pod without messages does not begin a store, also when it is there first.
        early = self.nodes.pods[1] = self.nodes.pod(1)
        until(lambda: "cluster_first_node" in early.log_path.read_text(), "a pod without messages to wait")
        assert not early.is_ready
        self.nodes.scale(1)
        self.nodes.pods.pop(0).delete()
        pod = self.nodes.pods[0] = self.nodes.pod(0)
        until(lambda: "cluster recover" in pod.log_path.read_text(), "the node to find no record")
        assert not pod.is_ready
        return self.exec(pod, *CTL, "cluster", "recover", "--accept-loss").splitlines()[-1]

    def kill_leader(self) -> str:
        pod = self.until_led()
        pod.signal(signal.SIGKILL)
        until(lambda: pod.restarts > 0 and not pod.is_ready, "the container to start again")
        return f"{pod.name} was killed"

    def lose_machine(self) -> str:
        pod = self.until_led()
        self.nodes.replace(int(pod.name.rpartition("-")[2]))
        return f"the machine of {pod.name} was lost"

    def rolling_update(self) -> str:
        template = self.nodes.spec["template"]
        stamp = {"annotations": {"kubectl.kubernetes.io/restartedAt": str(time.time())}}
        refused = self.load.refused
        changed = template | {"metadata": template["metadata"] | stamp}
        took = self.nodes.update(changed)
        return f"stops {', '.join(f'{each:.1f}' for each in took)} s, {self.load.refused - refused} refused connections"

    def scale(self, replicas: int) -> None:
        self.nodes.scale(replicas)

    def scale_down(self, replicas: int) -> str:
        """As docs/kubernetes.md has it: fewer pods, and one command for each that is gone; their volumes go, too."""
        gone = [pod for number, pod in self.nodes.pods.items() if number >= replicas]
        self.nodes.scale(replicas)
        said = []
        for pod in gone:
            until(lambda: self._forgets(pod.name), f"{pod.name} to be forgotten")  # noqa: B023
            said.append(pod.name)
            shutil.rmtree(pod.volumes)
        return f"forgotten: {', '.join(said)}"

    def _forgets(self, name: str) -> bool:
        ended = self.until_led().exec(*CTL, "cluster", "forget", f"rabbit@{name}")
        if ended.returncode:
            time.sleep(FORGET_AGAIN_S)
        return ended.returncode == 0

    def run(self) -> None:
        self.one_broker()
        self.load.start()
        try:
            self.until_confirmed()
            self.step("one broker becomes a cluster", self.cluster_of_one, 1, 1)
            self.step("three nodes", lambda: self.scale(3), 3, 2)
            self.step("kill -9", self.kill_leader, 3, 2)
            self.step("rolling update", self.rolling_update, 3, 2)
            self.step("five nodes", lambda: self.scale(5), 5, 3)
            self.step("a machine is lost", self.lose_machine, 5, 3)
            self.step("three nodes again", lambda: self.scale_down(3), 3, 2)
            self.step("rolling update", self.rolling_update, 3, 2)
        finally:
            self.load.stop()
        lost, invented = self.load.missing()
        assert not lost, f"{len(lost)} messages were confirmed and are gone: {sorted(lost)[:5]}"
        assert not invented, f"{len(invented)} messages were never sent: {sorted(invented)[:5]}"
        print(f"{len(self.load.confirmed)} messages were confirmed, and none of them is missing", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="kube_lab", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=("pods", "three-machines"), default="pods")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--keep", metavar="DIR", type=Path, help="a directory to work in, which is kept with its logs")
    given = parser.parse_args()
    missing = [program for program in ("ip", "etcd", "setpriv", "unshare", "nsenter") if shutil.which(program) is None]
    if os.geteuid() != 0 or missing:
        print(f"this needs root, iproute2, util-linux and etcd-server; missing: {missing or 'root'}", file=sys.stderr)
        return 2
    if Path(sys.executable).is_relative_to("/tmp"):
        print("pods have a /tmp of their own, which hides this checkout: run this in one elsewhere", file=sys.stderr)
        return 2
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="warren-kube-") as name:
        directory = given.keep if given.keep is not None else Path(name)
        directory.mkdir(parents=True, exist_ok=True)
        if given.what == "three-machines":
            three_machines.run(directory)
            return 0
        trial = Trial(directory, given.seed)
        try:
            trial.run()
        except AssertionError as failure:
            print(f"seed {given.seed}: {failure}", flush=True)
            for pod in trial.nodes.pods.values():
                print(f"--- {pod.name}: {'ready' if pod.is_ready else 'not ready'}, {pod.restarts} restarts")
                print("\n".join(pod.log_path.read_text().splitlines()[-30:]), flush=True)
            return 1
        finally:
            trial.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
