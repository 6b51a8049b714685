"""Cause faults in a cluster under load, and judge the result: three electing nodes, an etcd, and links to cut.

1. After each fault comes `judge`. It heals and starts everything and waits for a leader. Then it compares the contents
   of the queues with the history of what the clients did and saw (`crash.history`).
2. For clients every end of a leader is a crash: confirmed messages are there, once, whole and in order. A leader that
   was stopped or cut off may answer late; messages read from it count as well.
3. The tests wait for a leader and never assume one. A fault has a fixed duration; it does not wait for an event.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from broker_process import WarrenProcess
from cluster.etcd_processes import EtcdCluster
from crash.history import History
from crash.life import small_store
from crash.link import turn
from crash.load import TRANSIENT_QUEUES, Inspector, Load, set_up

from warren.perf.client import Address

from .network import Link, Network, wrapper
from .nodes import AnsweringProcess, Node
from .test_election import ElectingNode

NAMES: Final = ("one", "two", "three")
_DEADLINE_S: Final = 90.0
_LOOK_S: Final = 0.1
_USUAL: Final = (" connection.", " audit ")


class FaultyNode(ElectingNode):
    """A node whose connections to others, and to etcd, go through links."""

    def __init__(self, directory: Path, name: str, etcd: EtcdCluster, settings: dict[str, object]) -> None:
        self.etcd_link: Link | None = None
        super().__init__(directory, name, etcd)
        self.settings = settings

    def _process(self, kind: type[WarrenProcess], follow: Node | None = None) -> WarrenProcess:
        process = super()._process(kind, follow)
        if self.etcd_link is not None:
            process.flags["etcd"] = f"http://127.0.0.1:{self.etcd_link.port}"
        return process

    def address(self) -> Address:
        """Return where clients find it."""
        return Address(port=self.process.amqp_port)

    def in_sync(self) -> list[str] | None:
        """Return the nodes in sync if this node leads and serves; None if not."""
        assert isinstance(self.process, AnsweringProcess)
        if not self.process.is_running() or not self.process.is_leading():
            return None
        status, _ = self.ask("GET", "/api/cluster/status")
        return self._in_sync() if status == 200 else None


class FaultCluster:
    """The cluster on an empty `directory`; `chooser` decides settings, clients and moments."""

    def __init__(self, directory: Path, etcd: EtcdCluster, shim: Path, chooser: random.Random) -> None:
        self.chooser = chooser
        self.etcd = etcd
        self.history = History(TRANSIENT_QUEUES)
        self.network = Network()
        self.load: Load | None = None
        self._loaded: FaultyNode | None = None
        settings = small_store(chooser)
        self.nodes = [FaultyNode(directory, name, etcd, settings) for name in NAMES]
        self.links: dict[tuple[FaultyNode, FaultyNode], Link] = {}
        (etcd_port,) = (int(endpoint.rpartition(":")[2]) for endpoint in etcd.endpoints)
        for node in self.nodes:
            node.etcd_link = self.network.link(etcd_port)
            routes = {}
            for other in self.nodes:
                if other is not node:
                    link = self.links[node, other] = self.network.link(other.cluster_port)
                    routes[other.cluster_port] = link.port
            node.wrapper = wrapper(shim, routes)
        self.network.start()
        for node in self.nodes:
            node.take_part()
        set_up(self.complete().address())

    def close(self) -> None:
        """End everything."""
        for node in self.nodes:
            node.process.kill()
        self.network.close()

    # --- who leads ----------------------------------------------------------------------------------------------------

    def leader(self) -> FaultyNode:
        """Wait until one node leads, and return it."""
        return self._leader_with(1, "one of the nodes to lead")

    def followers(self) -> list[FaultyNode]:
        """Return the nodes that do not lead, in random order."""
        leader = self.leader()
        others = [node for node in self.nodes if node is not leader]
        self.chooser.shuffle(others)
        return others

    def complete(self) -> FaultyNode:
        """Wait until all nodes are in sync, and return the leader."""
        return self._leader_with(len(self.nodes), "all nodes to be in sync")

    def _leader_with(self, count: int, what: str) -> FaultyNode:
        give_up_s = time.monotonic() + _DEADLINE_S
        while time.monotonic() < give_up_s:
            self.endure(_LOOK_S)
            found = {node: members for node in self.nodes if (members := self._members(node)) is not None}
            if len(found) == 1:
                ((leader, members),) = found.items()
                if len(members) >= count:
                    return leader
        raise AssertionError(f"waited {_DEADLINE_S:.0f} s in vain for {what}")

    def _members(self, node: FaultyNode) -> list[str] | None:
        try:
            return node.in_sync()
        except (OSError, AssertionError):
            return None  # between two roles nobody answers

    # --- clients ------------------------------------------------------------------------------------------------------

    def begin_load(self) -> None:
        """Make clients work with the leader."""
        self._loaded = self.leader()
        self.load = Load(self._loaded.address(), self.history, self.chooser)

    def work(self, seconds: float) -> None:
        """Make the clients work for a while; none of them loses its connection."""
        assert self.load is not None
        end_s = time.monotonic() + seconds
        self.load.run_until(lambda: time.monotonic() > end_s)

    def work_on(self, confirms: int) -> None:
        """Make the clients work until `confirms` more publishes and commits were answered."""
        assert self.load is not None
        enough = self.load.confirms + confirms
        give_up_s = time.monotonic() + 60
        self.load.run_until(lambda: self.load.confirms >= enough or time.monotonic() > give_up_s)  # type: ignore[union-attr]
        assert self.load.confirms >= enough, f"nothing more is confirmed\n{self.tails()}"

    def endure(self, seconds: float) -> None:
        """Make the clients do what they can for a while."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self._turn()

    def _turn(self) -> None:
        if self.load is None:
            return
        clients = [client for client in self.load.clients if not client.ended]
        if not clients:
            time.sleep(0.01)
            return
        did = self.chooser.choice(clients).step()
        turn(clients, 0 if did else 5)

    def _are_gone(self) -> bool:
        return self.load is None or all(client.ended for client in self.load.clients)

    # --- the judge ----------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """End whatever fails, and have all nodes run."""
        self.network.heal()
        for node in self.nodes:
            if node.process.is_running():
                node.process.signal(signal.SIGCONT)
            else:
                node.take_part()
        self.etcd.heal()

    def judge(self) -> None:
        """Heal, have the leader end if it is the one that the clients know, and judge what the next one has."""
        self.heal()
        leader = self.leader()
        if self.load is not None:
            if self._loaded is leader and not self._are_gone():
                leader.process.kill()
                self.load.run_out()
                leader.take_part()
            else:
                give_up_s = time.monotonic() + _DEADLINE_S
                while not self._are_gone():
                    assert time.monotonic() < give_up_s, "the old leader does not close its connections"
                    self._turn()
            self.load = None
            leader = self.leader()
        address = leader.address()
        set_up(address)
        inspector = Inspector(address)
        places = self.history.restarted(inspector.found, clean=False)
        assert not self.history.violations, self._judgement()
        inspector.take(self.history, places, self.chooser, self.chooser.choice([0.5, 0.9]))
        for node in self.nodes:
            said = node.process.log()
            assert "Traceback" not in said and "internal error" not in said, f"{node.name}\n{node.process.log_tail()}"

    def _judgement(self) -> str:
        violations = self.history.violations
        rules = sorted({violation.rule.name for violation in violations})
        shown = "\n".join(f"  {violation}" for violation in violations[:20])
        return f"{len(violations)} violations, {rules}:\n{shown}\n{self.tails()}"

    def tails(self) -> str:
        """Return the last that each node said."""
        return "\n".join(f"{node.name}\n{_tail(node.process.log())}" for node in self.nodes)

    # --- faults -------------------------------------------------------------------------------------------------------

    def isolate(self, node: FaultyNode, *, hears: bool = False, is_heard: bool = False, etcd: bool = True) -> None:
        """Cut a node off from the others, but for what it `hears` or is heard of; and from `etcd`, or not."""
        for (source, target), link in self.links.items():
            if source is node:
                self.network.cut(link, there=not is_heard, back=not hears)
            elif target is node:
                self.network.cut(link, there=not hears, back=not is_heard)
        if etcd:
            assert node.etcd_link is not None
            self.network.cut(node.etcd_link)

    def pause(self, node: FaultyNode) -> None:
        """Stop a process where it is."""
        node.process.signal(signal.SIGSTOP)


def _tail(said: str) -> str:
    lines = [line for line in said.splitlines() if not any(word in line for word in _USUAL)]
    return "\n".join(lines[-60:])


Fault = Callable[[FaultCluster, float], None]


def leader_is_killed(cluster: FaultCluster, seconds: float) -> None:
    leader = cluster.leader()
    cluster.work_on(20)
    cluster.work(min(seconds, 0.5))
    leader.process.kill()
    assert cluster.load is not None
    cluster.load.run_out()
    if seconds > 2:
        cluster.leader()  # another one, before it is back


def follower_is_killed(cluster: FaultCluster, seconds: float) -> None:
    follower = cluster.followers()[0]
    cluster.work_on(20)
    follower.process.kill()
    cluster.work(min(seconds, 2))
    cluster.work_on(50)


def leader_is_stopped(cluster: FaultCluster, seconds: float) -> None:
    leader = cluster.leader()
    cluster.work_on(20)
    cluster.pause(leader)
    cluster.endure(seconds)
    leader.process.signal(signal.SIGCONT)


def follower_is_stopped(cluster: FaultCluster, seconds: float) -> None:
    follower = cluster.followers()[0]
    cluster.work_on(20)
    cluster.pause(follower)
    cluster.work(seconds)
    cluster.work_on(50)


def leader_is_cut_off(cluster: FaultCluster, seconds: float) -> None:
    leader = cluster.leader()
    cluster.work_on(20)
    cluster.isolate(leader)
    cluster.endure(seconds)


def leader_is_not_heard(cluster: FaultCluster, seconds: float) -> None:
    leader = cluster.leader()
    cluster.work_on(20)
    cluster.isolate(leader, hears=True)
    cluster.endure(seconds)


def leader_does_not_hear(cluster: FaultCluster, seconds: float) -> None:
    leader = cluster.leader()
    cluster.work_on(20)
    cluster.isolate(leader, is_heard=True, etcd=cluster.chooser.random() < 0.5)
    cluster.endure(seconds)


def follower_is_cut_off(cluster: FaultCluster, seconds: float) -> None:
    follower = cluster.followers()[0]
    cluster.work_on(20)
    cluster.isolate(follower, etcd=cluster.chooser.random() < 0.5)
    cluster.work(min(seconds, 3))
    cluster.work_on(50)


def etcd_is_away(cluster: FaultCluster, seconds: float) -> None:
    cluster.work_on(20)
    cluster.etcd.kill_all()
    cluster.work(seconds)
    cluster.work_on(50)


def leader_is_killed_while_etcd_is_away(cluster: FaultCluster, seconds: float) -> None:
    leader = cluster.leader()
    cluster.work_on(20)
    cluster.etcd.kill_all()
    leader.process.kill()
    assert cluster.load is not None
    cluster.load.run_out()
    time.sleep(min(seconds, 4))  # how long the fault lasts


def disk_is_lost(cluster: FaultCluster, seconds: float) -> None:
    follower = cluster.followers()[0]
    cluster.work_on(20)
    follower.lose()
    cluster.work(min(seconds, 2))
    follower.take_part()
    cluster.work_on(50)
    cluster.complete()


def all_are_killed(cluster: FaultCluster, seconds: float) -> None:
    cluster.work_on(20)
    cluster.work(min(seconds, 0.5))
    for node in cluster.nodes:
        node.process.kill()
    assert cluster.load is not None
    cluster.load.run_out()


FAULTS: Final[tuple[Fault, ...]] = (
    leader_is_killed,
    follower_is_killed,
    leader_is_stopped,
    follower_is_stopped,
    leader_is_cut_off,
    leader_is_not_heard,
    leader_does_not_hear,
    follower_is_cut_off,
    etcd_is_away,
    leader_is_killed_while_etcd_is_away,
    disk_is_lost,
    all_are_killed,
)


def suffer(cluster: FaultCluster, fault: Fault, seconds: float) -> None:
    """Load, the fault, the judge."""
    cluster.complete()
    cluster.begin_load()
    fault(cluster, seconds)
    cluster.judge()
