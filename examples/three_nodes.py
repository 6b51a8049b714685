"""Three nodes and three members of etcd on this machine, clients that work, and commands that break things.

    make cluster                                      commands from the terminal
    make cluster ARGS="'kill leader' 'go 1' wait"     these, one after the other
    echo "stop 2" | make cluster                      or those that are piped in

After each command that breaks or mends something it says who leads and what the clients have seen: how many messages
were confirmed, and for how long each of them had no confirm at most. At the end it waits until the consumer has
everything that was confirmed; the exit code is 1 when something is missing.

1. Three publishers, of which each connects to another node at first, have one message confirmed at a time; a consumer
   takes them. They know all three addresses, and connect to the next one when a connection is lost.
2. All data are in a temporary directory, which is removed at the end; no process is left behind.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, only its own folder is on the path

from benchmarks.cluster_clients import Books, Client, Consumer, Publisher, declare
from benchmarks.clusters import ClusterError, Node, Process, WarrenCluster
from benchmarks.load_tool import say, stop_when_told
from warren.perf.client import BrokerError

QUEUE: Final = "orders"
PAUSE_S: Final = 0.002
# How long a command is watched: at least, and until every publisher has had a confirm that recently, but not for ever.
WATCHED_S: Final = 2.0
RECENT_S: Final = 0.5
WATCHED_MOST_S: Final = 20.0
DRAINED_S: Final = 60.0
IN_SYNC_S: Final = 60.0
LOOK_S: Final = 0.05

HELP: Final = """\
  status                       who leads, who is in sync, what the clients have seen
  kill WHO                     kill -9; WHO is leader, follower (the first that is in sync), or 1 to 3
  stop WHO                     stop the process where it is: to the others a node that is silent
  go WHO                       let it go on, or start it again
  transfer [WHO]               have the leader hand over
  etcd kill|stop|go 1..3|all   the same with members of etcd
  wait                         until all nodes that run are in sync
  wait SECONDS                 let the clients work
  quit                         end, and see whether anything that was confirmed is missing"""


class CommandError(Exception):
    """A command cannot be carried out; the text says why."""


class Walk:
    """A cluster with clients, and the commands on it."""

    def __init__(self, cluster: WarrenCluster) -> None:
        self.cluster = cluster
        self.books = Books()
        self._clients: list[Client] = []
        self._commands: dict[str, Callable[..., None]] = {
            "status": self._status,
            "kill": self._kill,
            "stop": self._stop,
            "go": self._go,
            "transfer": self._transfer,
            "etcd": self._etcd,
            "wait": self._wait,
            "help": lambda: say(HELP),
        }

    def begin(self) -> None:
        """Start the cluster, and the clients. Raises ClusterError, BrokerError."""
        self.cluster.start()
        addresses = self.cluster.addresses()
        declare(addresses[0], QUEUE)
        for number in range(len(addresses)):
            others = addresses[number:] + addresses[:number]
            self._clients.append(Publisher(number, others, QUEUE, self.books, PAUSE_S))
        self._clients.append(Consumer(addresses, QUEUE, self.books))
        for client in self._clients:
            client.start()
        self._wait("1")
        self._status()

    def carry_out(self, line: str) -> None:
        """Carry out one command. Raises CommandError."""
        name, *words = line.split()
        command = self._commands.get(name)
        if command is None:
            raise CommandError(f"there is no command {name}; these are:\n{HELP}")
        try:
            inspect.signature(command).bind(*words)
        except TypeError:
            raise CommandError(f"{line}: too few words, or too many:\n{HELP}") from None
        command(*words)

    def finish(self) -> bool:
        """End publishing, wait for messages under way, and tell whether all confirmed ones have arrived."""
        for client in self._clients[:-1]:
            client.end()
        give_up_at = time.monotonic() + DRAINED_S
        while self.books.missing() and time.monotonic() < give_up_at:
            time.sleep(LOOK_S)
        self._clients[-1].end()
        confirmed, received = self.books.counts()
        missing = self.books.missing()
        say(f"{confirmed:,} messages were confirmed, {received:,} arrived; confirmed and missing: {missing or 'none'}")
        if missing and self.cluster.maybe_leader() is None:
            say("nobody leads: what is missing cannot be read at the moment, and may well be there")
        return not missing

    # --- commands ---------------------------------------------------------------------------------------------------

    def _status(self) -> None:
        leader = self.cluster.maybe_leader()
        in_sync = self.cluster.in_sync()
        for node in self.cluster.nodes:
            role = "leads" if node is leader else "in sync" if node.name in in_sync else "not in sync"
            say(f"  {node.name:13} {node.state:8} {role if leader is not None else '?':12} {node.address}")
        if leader is None:
            say("  nobody leads")
        members = ", ".join(f"{member.name} {member.state}" for member in self.cluster.etcd.members)
        say(f"  {members}")
        self._report()

    def _report(self) -> None:
        """Say what the clients have seen since the last report."""
        confirmed, received = self.books.counts()
        gaps = ", ".join(f"{gap_s:.2f}" for gap_s in self.books.gaps_s(time.monotonic()))
        say(f"  clients: {confirmed:,} confirmed, {received:,} received, {self.books.reconnections} reconnections")
        say(f"  the longest time without a confirm, of each publisher: {gaps} s")
        self.books.forget_gaps()

    def _kill(self, who: str) -> None:
        node = self._node(who)
        say(f"  {node.name} is killed")
        self._watch(node.kill)

    def _stop(self, who: str) -> None:
        node = self._node(who)
        say(f"  {node.name} is stopped")
        self._watch(node.stop)

    def _go(self, who: str) -> None:
        node = self._node(who)
        say(f"  {node.name} goes on")
        self._watch(node.go)

    def _transfer(self, who: str = "") -> None:
        name = self._node(who).name if who else ""

        def act() -> None:
            for line in self.cluster.transfer(name).splitlines():
                say(f"  {line}")

        self._watch(act)

    def _etcd(self, action: str, who: str) -> None:
        acts: dict[str, Callable[[Process], None]] = {"kill": Process.kill, "stop": Process.stop, "go": Process.go}
        members = self.cluster.etcd.members
        if action not in acts:
            raise CommandError("etcd kill, etcd stop or etcd go")
        chosen = members if who == "all" else [members[_number(who, len(members)) - 1]]

        def act() -> None:
            for member in chosen:
                acts[action](member)

        self._watch(act)

    def _wait(self, seconds: str = "") -> None:
        if not seconds:
            self._wait_for_all()
            return
        try:
            time.sleep(float(seconds))
        except ValueError:
            raise CommandError(f"{seconds} is no number of seconds") from None

    def _wait_for_all(self) -> None:
        running = {node.name for node in self.cluster.nodes if node.state == "running"}
        give_up_at = time.monotonic() + IN_SYNC_S
        while not running <= self.cluster.in_sync():
            if time.monotonic() > give_up_at:
                raise CommandError(f"after {IN_SYNC_S:g} s not all of them are in sync")
            time.sleep(LOOK_S)
        self._status()

    def _watch(self, act: Callable[[], None]) -> None:
        """Do something to the processes, and say what came of it when the clients have got over it."""
        self.books.forget_gaps()
        act()
        begin_s = now_s = time.monotonic()
        while now_s - begin_s < WATCHED_MOST_S:
            time.sleep(LOOK_S)
            now_s = time.monotonic()
            if now_s - begin_s >= WATCHED_S and self.books.silence_s(now_s) < RECENT_S:
                break
        self._status()

    def _node(self, who: str) -> Node:
        """Return a node: the leader, a follower that runs, or by its number."""
        nodes = self.cluster.nodes
        if who not in ("leader", "follower"):
            return nodes[_number(who, len(nodes)) - 1]
        leader = self.cluster.maybe_leader()
        if leader is None:
            raise CommandError("nobody leads at the moment")
        if who == "leader":
            return leader
        in_sync = self.cluster.in_sync()
        followers = [node for node in nodes if node is not leader and node.name in in_sync]
        if not followers:
            raise CommandError("no follower is in sync")
        return followers[0]


def _number(text: str, most: int) -> int:
    if text.isdecimal() and 1 <= int(text) <= most:
        return int(text)
    raise CommandError(f"{text}: a number from 1 to {most} belongs here")


def lines_of(commands: Sequence[str]) -> Iterator[str]:
    """Yield the commands that were given, or else those that are typed or piped in, up to ``quit``."""
    typed: Iterable[str] = commands or (_asked() if sys.stdin.isatty() else sys.stdin)
    stripped = (line.strip() for line in typed)
    yield from itertools.takewhile(lambda line: line != "quit", filter(None, stripped))


def _asked() -> Iterator[str]:
    say(HELP)
    with suppress(EOFError):
        while True:
            yield input("> ")


def main() -> int:
    """Run the commands; return the exit code."""
    parser = argparse.ArgumentParser(description="Three nodes that elect their leader, clients, and faults.")
    parser.add_argument("command", nargs="*", help="such as 'kill leader'; without any they are read from stdin")
    arguments = parser.parse_args()
    stop_when_told()
    with tempfile.TemporaryDirectory(prefix="warren-cluster-") as directory:
        cluster: WarrenCluster | None = None
        try:
            cluster = WarrenCluster(Path(directory), [sys.executable, "-m", "warren"])
            say("three members of etcd and three nodes are being started ...")
            walk = Walk(cluster)
            walk.begin()
            for line in lines_of(arguments.command):
                if arguments.command or not sys.stdin.isatty():
                    say(f"> {line}")
                try:
                    walk.carry_out(line)
                except (CommandError, ClusterError) as error:
                    say(f"  {error}")
            return 0 if walk.finish() else 1
        except (ClusterError, BrokerError) as error:
            print(f"three_nodes: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
        finally:
            if cluster is not None:
                cluster.close()


if __name__ == "__main__":
    sys.exit(main())
