"""`make bench-cluster`: three nodes of Warren, three of RabbitMQ with quorum queues, and one of Warren; CLUSTER.md.

  loads        as in cases.py, with persistent messages: rate; CPU per message of the leader, and of all nodes
  memory       resident, of a leader and of a follower, with nothing in them
  kill         `kill -9` of the leader while one publisher has one message confirmed at a time: to its next confirm
  transfer     the leader is told to hand over: the longest gap between confirms
  stop         SIGSTOP of a follower, for some seconds: the longest gap between confirms
  etcd         all its members are killed, for a minute: the longest gap between confirms, beside that of as long before
  replica      a node comes back with an empty disk while publishers continue: how fast it catches up

1. In every round each of the three is started on fresh data, is under every load, and ends: nothing else runs
   meanwhile. Ratios are within a round.
2. The nodes share one machine, its disk included: rates say little about three machines. CPU per message does.
3. CPU of all nodes is that of the leader times what all have used in a run to what the leader has. etcd is among them.
4. A figure that could not be had is a miss.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, only its own folder is on the path

from benchmarks import cases, disk, rabbitmq, results
from benchmarks.brokers import WarrenBroker, started
from benchmarks.cluster_clients import Books, Publisher, declare
from benchmarks.cluster_results import (
    CLUSTER,
    CONNECTIONS,
    FLOW,
    ONE,
    QUORUM,
    SINGLE,
    STOPPED_S,
    Load,
    Measured,
    Settings,
    markdown,
)
from benchmarks.clusters import Cluster, ClusterError, Process, RabbitCluster, WarrenCluster, wait_for
from benchmarks.load_tool import ROOT, Target, ToolError, perf, say, stop_when_told, tool_command
from warren.perf.client import Address, BrokerError, PerfConnection
from warren.perf.footprint import settled_sample
from warren.perf.process_stats import sample

# The loads, by their names in cases.py.
LOADS: Final = {FLOW: cases.DURABLE_ONE, ONE: "durable-connection", CONNECTIONS: "durable-connections"}
OTHERS: Final = ("memory", "kill", "transfer", "stop", "etcd", "replica")
NAMES: Final = (*LOADS, *OTHERS)
QUEUE: Final = "measured"
_BEFORE_S: Final = 1.0  # a publisher is at work that long before something happens
_CONFIRMED_AGAIN_S: Final = 60.0
_REPLICA_MOST_S: Final = 300.0
_MIB: Final = 1 << 20
_CONFIRMED: Final = ("--size", "1024", "--confirms", "2000", "--persistent", "--durable")


@dataclass(frozen=True)
class _Loaded:
    """A node as the load tool knows it."""

    address: Address
    pid: int
    core: int | None = None

    @property
    def uri(self) -> str:
        return f"amqp://guest:guest@{self.address}/"


@dataclass
class Bench:
    """The settings of one run, and what it measured."""

    settings: Settings
    checkout: Path
    directory: Path
    rabbit_program: Path | None
    measured: Measured = field(default_factory=Measured)

    def run(self) -> None:
        """Measure everything that is wanted."""
        for turn in range(self.settings.rounds if self._wants(*LOADS, "memory") else 0):
            say(f"round {turn + 1}")
            self._attempt(CLUSTER, self._round_of_cluster, CLUSTER)
            if self.rabbit_program is not None:
                self._attempt(QUORUM, self._round_of_cluster, QUORUM)
            self._attempt(SINGLE, self._round_of_single)
        self._attempt(CLUSTER, self._faults, CLUSTER)
        if self.rabbit_program is not None:
            self._attempt(QUORUM, self._faults, QUORUM)

    def _attempt(self, kind: str, run: Callable[..., None], *arguments: object) -> None:
        try:
            run(*arguments)
        except (ClusterError, ToolError, BrokerError, OSError) as error:
            self._failed(f"{kind}: {error}")

    def _failed(self, text: str) -> None:
        self.measured.failures.append(text)
        say(f"FAILED: {text}")

    def _wants(self, *names: str) -> bool:
        return any(name in self.settings.only for name in names)

    # --- loads and memory -------------------------------------------------------------------------------------------

    def _round_of_cluster(self, kind: str) -> None:
        with self._cluster(kind) as cluster:
            leader = cluster.wait_until_complete()
            if self._wants("memory"):
                self._memory(kind, cluster, leader)
            pids = [node.pid for node in cluster.nodes]
            if isinstance(cluster, WarrenCluster):
                pids += [member.pid for member in cluster.etcd.members]
            self._run_loads(kind, _Loaded(cluster.address_of(leader), leader.pid), pids)

    def _round_of_single(self) -> None:
        broker = WarrenBroker(SINGLE, self._fresh(), self.checkout, core=None)
        with started(broker):
            self.measured.products[SINGLE] = broker.product
            if self._wants("memory"):
                self.measured.memory.setdefault(SINGLE, []).append(settled_sample(broker.pid).rss_bytes)
            self._run_loads(SINGLE, broker, [broker.pid])
        shutil.rmtree(broker.directory, ignore_errors=True)

    def _memory(self, kind: str, cluster: Cluster, leader: Process) -> None:
        memory = self.measured.memory
        memory.setdefault(f"{kind}, leader", []).append(settled_sample(leader.pid).rss_bytes)
        for node in cluster.nodes:
            if node is not leader:
                memory.setdefault(f"{kind}, follower", []).append(settled_sample(node.pid).rss_bytes)

    def _run_loads(self, kind: str, target: Target, pids: Sequence[int]) -> None:
        for name, case_name in LOADS.items():
            if not self._wants(name):
                continue
            case = next(case for case in cases.LOADS if case.name == case_name)
            arguments = [*case.arguments, "--duration", f"{self.settings.seconds:g}"]
            if kind == QUORUM:
                arguments += ["--queue-argument", "x-queue-type=quorum"]
            before = {pid: sample(pid).cpu_us for pid in pids}
            try:
                found = perf(target, arguments)
            except ToolError as error:
                self._failed(f"{name} of {kind}: {error}")
                continue
            spent = {pid: sample(pid).cpu_us - before[pid] for pid in pids}
            leader_us = results.cpu_us(case, found)
            latency = found[case.latency]
            load = Load(
                results.rate(case, found),
                leader_us,
                leader_us * sum(spent.values()) / max(1, spent[target.pid]),
                latency["p50"] / 1000,
                latency["p99"] / 1000,
            )
            self.measured.loads.setdefault(name, {}).setdefault(kind, []).append(load)
            say(
                f"  {name:12} {kind:14} {load.per_s:>10,.0f}/s  leader {load.leader_us:8.2f} µs  all {load.all_us:8.2f}"
                f" µs  p50 {load.p50_ms:8.2f} ms  p99 {load.p99_ms:8.2f} ms"
            )

    # --- faults -----------------------------------------------------------------------------------------------------

    def _faults(self, kind: str) -> None:
        ours = kind == CLUSTER
        wanted = [name for name in OTHERS[1:] if self._wants(name) and (ours or name in ("kill", "stop"))]
        if not wanted:
            return
        with self._cluster(kind) as cluster:
            for name in wanted:
                measure: dict[str, Callable[[str, Any], None]] = {
                    "kill": self._kill,
                    "transfer": self._transfer,
                    "stop": self._stop,
                    "etcd": self._etcd,
                    "replica": self._replica,
                }
                self._attempt(f"{name} of {kind}", measure[name], kind, cluster)

    def _kill(self, kind: str, cluster: Cluster) -> None:
        for _ in range(self.settings.kills):
            leader = cluster.wait_until_complete()
            with self._publishing(kind, cluster, leader) as books:
                leader.kill()
                before, _ = books.counts()
                wait_for(lambda: books.counts()[0] > before, "a confirm after the kill", _CONFIRMED_AGAIN_S)  # noqa: B023
                self._note("kill", kind, max(books.gaps_s(time.monotonic())))
            leader.start()

    def _transfer(self, kind: str, cluster: WarrenCluster) -> None:
        for _ in range(self.settings.rounds):
            leader = cluster.wait_until_complete()
            with self._publishing(kind, cluster, leader) as books:
                said = cluster.transfer()
                if leader.leads():
                    raise ClusterError(f"the leader has not handed over: {said}")
                before, _ = books.counts()
                wait_for(lambda: books.counts()[0] > before, "a confirm after the transfer", _CONFIRMED_AGAIN_S)  # noqa: B023
                self._note("transfer", kind, max(books.gaps_s(time.monotonic())))

    def _stop(self, kind: str, cluster: Cluster) -> None:
        for _ in range(self.settings.rounds):
            leader = cluster.wait_until_complete()
            follower = next(node for node in cluster.nodes if node is not leader)
            with self._publishing(kind, cluster, leader) as books:
                follower.stop()
                time.sleep(STOPPED_S)
                self._note("stop", kind, max(books.gaps_s(time.monotonic())))
            follower.go()

    def _etcd(self, kind: str, cluster: WarrenCluster) -> None:
        leader = cluster.wait_until_complete()
        with self._publishing(kind, cluster, leader) as books:
            time.sleep(self.settings.etcd_s)
            self._note("etcd before", kind, max(books.gaps_s(time.monotonic())))
            books.forget_gaps()
            cluster.etcd.kill()
            time.sleep(self.settings.etcd_s)
            self._note("etcd", kind, max(books.gaps_s(time.monotonic())))
        cluster.etcd.start()

    def _replica(self, kind: str, cluster: WarrenCluster) -> None:
        """Take the disk of a follower away, and see how fast it catches up while publishers continue."""
        leader = cluster.wait_until_complete()
        follower = next(node for node in cluster.nodes if node is not leader)
        target = _Loaded(leader.address, leader.pid)
        perf(target, ["fill", *_CONFIRMED, "--messages", str(self.settings.replica_mib * 1024), "--prefix", "backlog"])
        follower.kill()
        shutil.rmtree(follower.directory / "data")
        flow = ["flow", *_CONFIRMED, "--ack", "--prefetch", "1000", "--ack-batch", "100"]
        alone = perf(target, [*flow, "--duration", f"{self.settings.seconds:g}"])["confirmed_per_s"]
        stored = disk.data_bytes(leader.directory / "data")
        publishers = subprocess.Popen(
            tool_command(target, [*flow, "--duration", "3600", "--warmup", "0.5"]),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            begin_s = time.monotonic()
            follower.start()
            wait_for(lambda: follower.name in cluster.in_sync(), "the empty node to be in sync", _REPLICA_MOST_S)
            seconds = time.monotonic() - begin_s
        finally:
            publishers.terminate()
            output, errors = publishers.communicate()
        if not output:
            raise ToolError(f"the publishers failed: {errors.strip()}")
        meanwhile = json.loads(output)["confirmed_per_s"]
        found = self.measured.replica
        found["mib"], found["seconds"] = stored / _MIB, seconds
        found["mb_per_s"], found["kept"] = stored / 1e6 / seconds, meanwhile / alone
        say(f"  replica      {kind:14} " + "  ".join(f"{key} {value:,.2f}" for key, value in found.items()))

    def _note(self, name: str, kind: str, seconds: float) -> None:
        self.measured.gaps_s.setdefault(name, {}).setdefault(kind, []).append(seconds)
        say(f"  {name:12} {kind:14} {seconds:6.3f} s")

    @contextmanager
    def _publishing(self, kind: str, cluster: Cluster, leader: Process) -> Iterator[Books]:
        """Have a publisher at work, the gaps of which count from now on."""
        first = cluster.address_of(leader)
        arguments: dict[str, object] = {"x-queue-type": "quorum"} if kind == QUORUM else {}
        # A queue of its own for each: that of RabbitMQ is led by the node at which it is declared.
        queue = f"{QUEUE}-{time.monotonic_ns()}"
        declare(first, queue, arguments)
        books = Books()
        addresses = [first, *(address for address in cluster.addresses() if address != first)]
        publisher = Publisher(0, addresses, queue, books, 0.0)
        publisher.start()
        try:
            wait_for(lambda: books.counts()[0] > 0, "the first confirm", _CONFIRMED_AGAIN_S)
            time.sleep(_BEFORE_S)
            books.forget_gaps()
            yield books
        finally:
            publisher.end()

    # --- who is measured --------------------------------------------------------------------------------------------

    @contextmanager
    def _cluster(self, kind: str) -> Iterator[Cluster]:
        directory = self._fresh()
        cluster: Cluster
        if kind == CLUSTER:
            program = str(self.checkout / ".venv" / "bin" / "warren")
            cluster = WarrenCluster(directory, [program])
            told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
            self.measured.products[kind] = told.stdout.strip()
        else:
            assert self.rabbit_program is not None
            cluster = RabbitCluster(directory, self.rabbit_program)
        try:
            cluster.start()
            if kind == QUORUM:
                with PerfConnection.open(cluster.addresses()[0]) as connection:
                    properties = connection.server_properties
                self.measured.products[kind] = f"{properties.get('product')} {properties.get('version')}"
            yield cluster
        finally:
            cluster.close()
            shutil.rmtree(directory, ignore_errors=True)

    def _fresh(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.directory))


# --- the run ------------------------------------------------------------------------------------------------------


def bench(
    only: Annotated[list[str] | None, typer.Option(help=f"Only these, of: {', '.join(NAMES)}")] = None,
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds of loads, transfers, and how often a follower is stopped")
    ] = 3,
    seconds: Annotated[float, typer.Option(min=0.5, help="Seconds measured of each load")] = 5.0,
    kills: Annotated[int, typer.Option(min=1, help="How often the leader is killed")] = 10,
    etcd_seconds: Annotated[float, typer.Option(min=1, help="How long etcd is away")] = 60.0,
    replica_mib: Annotated[int, typer.Option(min=1, help="What a new replica has to get")] = 1024,
    warren_only: Annotated[bool, typer.Option("--warren-only", help="Leave RabbitMQ out")] = False,
    checkout: Annotated[Path, typer.Option(help="The checkout of Warren, built")] = ROOT,
    directory: Annotated[
        Path | None, typer.Option(help="Where the nodes keep their data meanwhile; default: the temporary directory")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Where to write; default benchmarks/CLUSTER.md, with --only nowhere")
    ] = None,
) -> None:
    """Measure three nodes of Warren beside three of RabbitMQ, and beside one."""
    unknown = [name for name in only or [] if name not in NAMES]
    if unknown:
        raise typer.BadParameter(f"nothing is called {', '.join(unknown)}", param_hint="--only")
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    machine = results.Machine.look()
    program = None if warren_only else rabbitmq.maybe_install()
    with tempfile.TemporaryDirectory(prefix="warren-cluster-", dir=directory) as below:
        settings = Settings(only or NAMES, rounds, seconds, kills, etcd_seconds, replica_mib)
        run = Bench(settings, checkout.resolve(), Path(below), program)
        run.run()
        text = markdown(run.measured, settings, machine, disk.file_system(Path(below)))
    target = output if output is not None or only else ROOT / "benchmarks" / "CLUSTER.md"
    if target is None:
        print(text)
    else:
        target.write_text(text)
        say(f"written to {os.path.relpath(target)}")
    if run.measured.failures:
        raise typer.Exit(1)


if __name__ == "__main__":
    stop_when_told()
    typer.run(bench)
