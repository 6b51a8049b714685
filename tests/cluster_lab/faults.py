"""Faults of the lab: the action, the machine and the duration of each."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .history import History
from .load import Load
from .machines import Machine, until
from .switch import DROP, DROP_ETCD, DROP_NODES, Switch

READY_S: Final = 90.0
CLOCK_AHEAD_S: Final = 5 * 3600
_NOT_SERVED: Final = "nobody leads and serves"


class Lab:
    """Three machines and the network between them; the clients are on the last one, which has no node."""

    def __init__(self, switch: Switch, machines: list[Machine], history: History, directory: Path) -> None:
        self.switch = switch
        self.machines = machines
        self.history = history
        self.directory = directory
        self.clients = len(machines) + 1
        self.load: Load | None = None
        self.notes: list[str] = []

    def leader(self) -> Machine:
        """Wait until one node leads, and return it."""
        found: list[Machine] = []

        def one_leads() -> bool:
            found[:] = [machine for machine in self.machines if machine.leads()]
            return len(found) == 1

        until(one_leads, _NOT_SERVED, READY_S)
        return found[0]

    def others(self, machine: Machine) -> list[Machine]:
        return [other for other in self.machines if other is not machine]

    def numbers(self) -> list[int]:
        """Return the numbers of all machines, and of that of the clients."""
        return [*(machine.number for machine in self.machines), self.clients]

    def complete(self) -> Machine:
        """Wait until all nodes are in sync, and return the leader."""
        for machine in self.machines:
            machine.start_node()

        def all_follow() -> bool:
            leads = [machine for machine in self.machines if machine.leads()]
            return len(leads) == 1 and len(leads[0].status().get("in_sync", ())) == len(self.machines)

        until(all_follow, "all nodes to be in sync", READY_S)
        return self.leader()

    def heal(self) -> None:
        """End whatever fails, and have all nodes run."""
        self.switch.heal()
        for machine in self.machines:
            machine.disk()
            machine.clock(0)
            machine.signal(signal.SIGCONT)
            machine.start_node()


Begin = Callable[[Lab, Machine, random.Random], None]


@dataclass(frozen=True)
class Fault:
    """What `begin` does, for `seconds`. `limit_s`: the longest time without a confirm, None if that does not count."""

    name: str
    begin: Begin
    seconds: float = 9.0
    limit_s: float | None = 6.0


def _silent(lab: Lab, machine: Machine) -> None:
    lab.switch.cut([machine.number], lab.numbers())


def leader_silent(lab: Lab, leader: Machine, chooser: random.Random) -> None:
    _silent(lab, leader)


def follower_silent(lab: Lab, leader: Machine, chooser: random.Random) -> None:
    _silent(lab, chooser.choice(lab.others(leader)))


def etcd_leader_silent(lab: Lab, leader: Machine, chooser: random.Random) -> None:
    _silent(lab, next(machine for machine in lab.machines if machine.etcd_leads()))


def leader_cut(lab: Lab, leader: Machine, chooser: random.Random) -> None:
    """Clients reach all nodes."""
    lab.switch.cut([leader.number], [other.number for other in lab.others(leader)])


def leader_not_heard(lab: Lab, leader: Machine, chooser: random.Random) -> None:
    lab.switch.cut([leader.number], [other.number for other in lab.others(leader)], back=False)


def leader_hears_nothing(lab: Lab, leader: Machine, chooser: random.Random) -> None:
    for other in lab.others(leader):
        lab.switch.cut([other.number], [leader.number], back=False)


def leader_cut_from_etcd(lab: Lab, leader: Machine, chooser: random.Random) -> None:
    """Its own member serves it, and reaches no other."""
    lab.switch.cut([leader.number], [other.number for other in lab.others(leader)], DROP_ETCD)


def leader_cut_from_nodes(lab: Lab, leader: Machine, chooser: random.Random) -> None:
    """etcd is whole."""
    lab.switch.cut([leader.number], [other.number for other in lab.others(leader)], DROP_NODES)


def follower_cut_from_leader(lab: Lab, leader: Machine, chooser: random.Random) -> None:
    lab.switch.cut([leader.number], [chooser.choice(lab.others(leader)).number])


def follower_cut_from_nodes(lab: Lab, leader: Machine, chooser: random.Random) -> None:
    """It reaches etcd only."""
    follower = chooser.choice(lab.others(leader))
    lab.switch.cut([follower.number], [other.number for other in lab.others(follower)], DROP_NODES)


def follower_late(lab: Lab, leader: Machine, chooser: random.Random) -> None:
    follower = chooser.choice(lab.others(leader))
    for number in lab.numbers():
        if number != follower.number:
            lab.switch.rule(number, follower.number, delay_ms=150)
            lab.switch.rule(follower.number, number, delay_ms=150)


def all_lossy(lab: Lab, leader: Machine, chooser: random.Random) -> None:
    for source in lab.numbers():
        for target in lab.numbers():
            if source != target:
                lab.switch.rule(source, target, delay_ms=5, loss_permille=50)


def leader_flaps(lab: Lab, leader: Machine, chooser: random.Random) -> None:
    end_s = time.monotonic() + 15.0
    others = [other.number for other in lab.others(leader)]
    while time.monotonic() < end_s:
        lab.switch.cut([leader.number], others, DROP)
        time.sleep(chooser.choice((0.3, 0.8, 1.5)))  # how long the fault lasts
        lab.switch.heal()
        time.sleep(chooser.choice((0.3, 0.8, 1.5)))


def leader_disk_slow(lab: Lab, leader: Machine, chooser: random.Random) -> None:
    leader.disk(sync_ms=2000)


def leader_disk_full(lab: Lab, leader: Machine, chooser: random.Random) -> None:
    leader.disk(full=True)


def leader_disk_fails(lab: Lab, leader: Machine, chooser: random.Random) -> None:
    leader.disk(fails=True)


def follower_disk_slow(lab: Lab, leader: Machine, chooser: random.Random) -> None:
    chooser.choice(lab.others(leader)).disk(sync_ms=2000)


def clock_ahead(lab: Lab, leader: Machine, chooser: random.Random) -> None:
    """The node that leads next is five hours ahead."""
    for other in lab.others(leader):
        other.clock(CLOCK_AHEAD_S)
    leader.signal(signal.SIGKILL)


def leader_killed(lab: Lab, leader: Machine, chooser: random.Random) -> None:
    leader.signal(signal.SIGKILL)


def all_stopped(lab: Lab, leader: Machine, chooser: random.Random) -> None:
    """Send SIGTERM to all: each has to end within 5 s."""
    began_s = time.monotonic()
    for machine in lab.machines:
        machine.signal(signal.SIGTERM)
    for machine in lab.machines:
        code = machine.wait(15.0)
        took_s = time.monotonic() - began_s
        lab.notes.append(f"{machine.name} ended with {code} by {took_s:.1f} s")
        if code is None or took_s > 5.0:
            lab.history.violations.append(f"{machine.name} took {took_s:.1f} s to stop")


def _old_disk(lab: Lab, machine: Machine, first: bool) -> None:
    """Stop a node, copy its directory, start it again, kill all, and start it with the copy, before the others or
    after."""
    copy = lab.directory / "older"
    machine.signal(signal.SIGTERM)
    until(lambda: not machine.is_running(), "the node to stop", 20.0)
    machine.copy_data(copy)
    machine.start_node()
    lab.complete()
    enough = lab.history.confirms() + 200
    until(lambda: lab.history.confirms() > enough, "more confirms", 30.0)
    for each in lab.machines:
        each.signal(signal.SIGKILL)
    for each in lab.machines:
        each.wait(10.0)
    machine.restore_data(copy)
    shutil.rmtree(copy)
    if first:
        machine.start_node()
        time.sleep(7.0)  # the others are away for this time
    for each in lab.machines:
        each.start_node()


def old_disk_of_a_follower(lab: Lab, leader: Machine, chooser: random.Random) -> None:
    _old_disk(lab, chooser.choice(lab.others(leader)), first=True)


def old_disk_of_the_leader(lab: Lab, leader: Machine, chooser: random.Random) -> None:
    _old_disk(lab, leader, first=chooser.random() < 0.5)


FAULTS: Final = (
    Fault("leader-silent", leader_silent),
    Fault("follower-silent", follower_silent),
    Fault("etcd-leader-silent", etcd_leader_silent),
    Fault("leader-cut", leader_cut),
    Fault("leader-not-heard", leader_not_heard),
    Fault("leader-hears-nothing", leader_hears_nothing),
    Fault("leader-cut-from-etcd", leader_cut_from_etcd),
    Fault("leader-cut-from-nodes", leader_cut_from_nodes),
    Fault("follower-cut-from-leader", follower_cut_from_leader),
    Fault("follower-cut-from-nodes", follower_cut_from_nodes),
    Fault("follower-late", follower_late),
    Fault("all-lossy", all_lossy),
    Fault("leader-flaps", leader_flaps, 0.0),
    Fault("leader-killed", leader_killed, 8.0),
    Fault("leader-disk-slow", leader_disk_slow, 15.0),
    Fault("leader-disk-full", leader_disk_full, 15.0),
    Fault("leader-disk-fails", leader_disk_fails, 10.0),
    Fault("follower-disk-slow", follower_disk_slow, 12.0),
    Fault("clock-ahead", clock_ahead, 8.0, None),
    Fault("all-stopped", all_stopped, 0.0, None),
    Fault("old-disk-of-a-follower", old_disk_of_a_follower, 0.0, None),
    Fault("old-disk-of-the-leader", old_disk_of_the_leader, 0.0, None),
)
