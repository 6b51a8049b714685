"""`make bench`: the matrix of cases.py against Warren and RabbitMQ in alternation, written to RESULTS.md.

1. In every round every load runs against every broker, the order turning from round to round: what disturbs
   the machine disturbs all of them.
2. The brokers of the loads run all the time, each with fresh data; what is not under load is idle. Memory,
   start-up and declarations get brokers of their own, fresh for each measurement.
3. Where two cores are there, every broker runs in two placements: confined to one core, the load tool to the other;
   and neither confined. A comparison takes the better figure of each broker.
4. The disk's limit is measured next to the load that is compared with it, in every round, below the same
   directory as the brokers' data; and so is what it takes to pass on the bytes of large messages (relay.py).
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, only its own folder is on the path

from benchmarks import cases, disk, rabbitmq, relay, results
from benchmarks.brokers import Broker, RabbitBroker, WarrenBroker, started
from benchmarks.load_tool import ROOT, ToolError, perf, say, stop_when_told, tool_command
from warren.perf.footprint import settled_sample
from warren.perf.process_stats import written_bytes

_BROKER_CORE: Final = 0


@dataclass
class Bench:
    """The settings of one run and everything it measured."""

    rounds: int
    seconds: float
    directory: Path
    warren_checkouts: dict[str, Path]
    rabbit_program: Path | None
    measured: results.Measured = field(default_factory=results.Measured)

    # -- loads

    def run_loads(self, wanted: list[cases.Case]) -> None:
        """Run the wanted loads in rounds against all brokers."""
        if not wanted:
            return
        with ExitStack() as stack:
            brokers = [stack.enter_context(started(broker)) for broker in self._load_brokers()]
            for broker in brokers:
                self.measured.products[broker.name.split(",")[0]] = broker.product
                broker.pause()
            for turn in range(self.rounds):
                for case in wanted:
                    shift = turn % len(brokers)
                    for broker in brokers[shift:] + brokers[:shift]:
                        self._run_load(case, broker, turn)
                    if case.synced_window:
                        self._run_disk(case, turn)
                    if case.relayed_bytes:
                        self._run_relay(case, turn)

    def _load_brokers(self) -> list[Broker]:
        placements = {"one core": _BROKER_CORE, "all cores": None} if results.cores() > 1 else {"one core": None}
        found: list[Broker] = []
        for placement, core in placements.items():
            for product, checkout in self.warren_checkouts.items():
                name = f"{product}, {placement}"
                found.append(WarrenBroker(name, self._fresh_directory(), checkout, core=core))
            if self.rabbit_program is not None:
                name = f"{results.RABBIT}, {placement}"
                found.append(RabbitBroker(name, self._fresh_directory(), self.rabbit_program, core=core))
        return found

    def _fresh_directory(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.directory))

    def _run_load(self, case: cases.Case, broker: Broker, turn: int) -> None:
        arguments = [*case.arguments, "--duration", f"{self.seconds:g}"]
        broker.resume()
        try:
            found = perf(broker, arguments)
        except ToolError as error:
            death = broker.maybe_death()
            self.measured.failures.append(f"{case.name} against {broker.name}: {death or error}")
            say(f"round {turn + 1}  {case.name:16} {broker.name:20} FAILED: {death or error}")
            if death:
                broker.start()
            return
        finally:
            broker.pause()
        self.measured.loads.setdefault(case.name, {}).setdefault(broker.name, []).append(found)
        say(f"round {turn + 1}  {case.name:16} {broker.name:20} {results.one_line(case, found)}")

    def _run_disk(self, case: cases.Case, turn: int) -> None:
        """Write and sync the bytes of the last runs of this load, in batches of its window."""
        rates = [rounds[-1]["published_per_s"] for rounds in self.measured.loads.get(case.name, {}).values()]
        try:
            found = disk.measure(
                self.directory,
                message_bytes=int(case.arguments[case.arguments.index("--size") + 1]),
                batch_messages=case.synced_window,
                messages=int(max(rates, default=0) * self.seconds),
                most_s=self.seconds,
            )
        except OSError as error:
            self.measured.failures.append(f"{case.name} against the disk alone: {error}")
            return
        self.measured.disk.setdefault(case.name, []).append(found)
        say(
            f"round {turn + 1}  {case.name:16} {'the disk alone':20} {found.messages_per_s:>12,.0f}/s"
            f"  {found.bytes_per_s / 1e6:,.0f} MB/s  {found.batch_ms:.2f} ms a batch"
        )

    def _run_relay(self, case: cases.Case, turn: int) -> None:
        """Pass on bytes from the broker's core, the load tool's part on the other."""
        try:
            found = relay.measure(self.seconds, core=_BROKER_CORE if results.cores() > 1 else None)
        except (OSError, RuntimeError) as error:
            self.measured.failures.append(f"{case.name} against passing on alone: {error}")
            return
        self.measured.relayed.setdefault(case.name, []).append(found)
        say(f"round {turn + 1}  {case.name:16} {'passing on alone':20} {found.cpu_us(case.relayed_bytes):25.3f} µs")

    # -- what stands still, and declarations

    def run_standing(self, wanted: list[str]) -> None:
        """Run the fan-out to disk, memory, start-up and declarations, each against fresh brokers."""
        measures: dict[str, Callable[[Broker], dict[str, float]]] = {
            "durable-fanout": self._durable_fanout,
            "memory": self._memory,
            "startup": self._startup,
            "declare-pipelined": partial(self._declare, "--pipelined"),
            "declare-one-by-one": partial(self._declare, "--one-by-one"),
        }
        for name in wanted:
            for broker in self._standing_brokers():
                try:
                    found = measures[name](broker)
                except ToolError as error:
                    self.measured.failures.append(f"{name} against {broker.name}: {error}")
                    say(f"{name:25} {broker.name:20} FAILED: {error}")
                    continue
                self.measured.standing.setdefault(name, {})[broker.name] = found
                say(f"{name:25} {broker.name:20} " + "  ".join(f"{key} {value:,.2f}" for key, value in found.items()))

    def _standing_brokers(self) -> list[Broker]:
        found: list[Broker] = [
            WarrenBroker(name, self._fresh_directory(), checkout, core=None)
            for name, checkout in self.warren_checkouts.items()
        ]
        if self.rabbit_program is not None:
            found.append(RabbitBroker(results.RABBIT, self._fresh_directory(), self.rabbit_program, core=None))
        return found

    def _durable_fanout(self, broker: Broker) -> dict[str, float]:
        """Publish to many queues nobody consumes, and look at what was written, in bodies."""
        with started(broker):
            self.measured.products.setdefault(broker.name, broker.product)
            on_disk, written = disk.data_bytes(broker.directory), written_bytes(broker.pid)
            perf(broker, [*cases.FANOUT_LOAD])
            written = written_bytes(broker.pid) - written
        on_disk = disk.data_bytes(broker.directory) - on_disk
        bodies = cases.FANOUT_MESSAGES * cases.FANOUT_BODY_BYTES
        return {"bodies_written": written / bodies, "bodies_on_disk": on_disk / bodies}

    def _memory(self, broker: Broker) -> dict[str, float]:
        with started(broker):
            self.measured.products.setdefault(broker.name, broker.product)
            idle = settled_sample(broker.pid).rss_bytes
            connections = perf(broker, ["connections", "--count", str(cases.IDLE_CONNECTIONS)])
        with started(broker):
            queues = perf(broker, ["declare", "--count", str(cases.EMPTY_QUEUES)])
        return {
            "idle_bytes": idle,
            "connection_bytes": connections["broker_rss_bytes_each"],
            "queue_bytes": queues["broker_rss_bytes_each"],
        }

    def _startup(self, broker: Broker) -> dict[str, float]:
        with started(broker):
            self.measured.products.setdefault(broker.name, broker.product)
            perf(broker, ["declare", "--durable", "--keep", "--count", str(cases.DURABLE_QUEUES_AT_START)])
        times = []
        for _ in range(self.rounds):
            times.append(broker.start())
            broker.stop()
        return {"start_s": results.median(times)}

    def _declare(self, how: str, broker: Broker) -> dict[str, float]:
        """Declare many durable queues while one consumer receives a steady 1,000 messages a second."""
        with started(broker):
            self.measured.products.setdefault(broker.name, broker.product)
            alone = perf(broker, ["--rate", "1000", "--duration", "3"])
            steady = subprocess.Popen(
                tool_command(broker, ["--rate", "1000", "--duration", "3600", "--prefix", "steady"]),
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            time.sleep(2)  # its warm-up; it measures from here on
            try:
                declared = perf(
                    broker,
                    [
                        "declare",
                        "--durable",
                        how,
                        "--count",
                        str(cases.DECLARED_QUEUES),
                        "--prefix",
                        "declared",
                    ],
                )
            finally:
                steady.terminate()
                output, errors = steady.communicate()
            if not output:
                raise ToolError(f"the steady consumer failed: {errors.strip()}")
            latency = json.loads(output)["delivery_latency_us"]
        return {
            "declare_s": declared["seconds"],
            "alone_p99_ms": alone["delivery_latency_us"]["p99"] / 1000,
            "meanwhile_p99_ms": latency["p99"] / 1000,
            "meanwhile_max_ms": latency["max"] / 1000,
        }


def bench(
    only: Annotated[
        list[str] | None, typer.Option(help=f"Run only these cases, of: {', '.join(cases.CASE_NAMES)}")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; ratios are medians over them")] = 3,
    seconds: Annotated[float, typer.Option(min=0.5, help="Seconds measured of each load")] = 5.0,
    warren_only: Annotated[bool, typer.Option("--warren-only", help="Leave RabbitMQ out")] = False,
    baseline_dir: Annotated[
        Path | None, typer.Option(help="A second checkout of Warren, built, to compare with")
    ] = None,
    directory: Annotated[
        Path | None, typer.Option(help="Where the brokers keep their data meanwhile; default: the temporary directory")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Where to write; default benchmarks/RESULTS.md, with --only nowhere")
    ] = None,
) -> None:
    """Measure Warren and RabbitMQ under the same loads."""
    unknown = [name for name in only or [] if name not in cases.CASE_NAMES]
    if unknown:
        raise typer.BadParameter(f"no case is called {', '.join(unknown)}", param_hint="--only")
    wanted = only or list(cases.CASE_NAMES)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    program = None if warren_only else rabbitmq.maybe_install()
    if program is None and not warren_only:
        say("rabbitmq-server is not here and could not be installed: Warren is measured alone, without ratios")
    checkouts = {results.WARREN: ROOT}
    if baseline_dir is not None:
        checkouts[results.BASELINE] = baseline_dir.resolve()
    machine = results.Machine.look()
    if machine.load > 0.5:
        say(f"the machine is not quiet (load {machine.load:.1f}): the figures will be worse than they are")
    with tempfile.TemporaryDirectory(prefix="warren-bench-", dir=directory) as below:
        run = Bench(rounds, seconds, Path(below), checkouts, program)
        run.measured.file_system = disk.file_system(Path(below))
        run.run_loads([case for case in cases.LOADS if case.name in wanted])
        run.run_standing([name for name in cases.STANDING_CASES if name in wanted])
    text = results.markdown(run.measured, machine, rounds=rounds, seconds=seconds)
    if output is not None:
        output.write_text(text)
        say(f"written to {os.path.relpath(output)}")
    elif only:
        print(text)
    else:
        results.write_page(ROOT / "benchmarks", results.RESULTS, text)
        say(f"written to {results.RESULTS}")
    if run.measured.failures:
        raise typer.Exit(1)


if __name__ == "__main__":
    stop_when_told()
    typer.run(bench)
