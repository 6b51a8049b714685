"""`make bench`: the matrix of cases.py against Warren and RabbitMQ in alternation, written to RESULTS.md.

1. In every round every load runs against every broker, the order turning from round to round: what disturbs
   the machine disturbs all of them.
2. The brokers of the loads run all the time, each with fresh data; what is not under load is idle. Memory,
   start-up and declarations get brokers of their own, fresh for each measurement.
3. Where two cores are there, every broker runs in two placements: confined to one core, the load tool to the other;
   and neither confined. A comparison takes the better figure of each broker.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, only its own folder is on the path

from benchmarks import cases, rabbitmq, results
from benchmarks.brokers import Broker, RabbitBroker, WarrenBroker, confinement
from warren.perf.footprint import settled_sample

ROOT: Final = Path(__file__).resolve().parent.parent
_BROKER_CORE: Final = 0
_TOOL_CORE: Final = 1
_TOOL_S: Final = 600.0


class ToolError(Exception):
    """The load tool failed; the text is its last line."""


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

    # -- what stands still, and declarations

    def run_standing(self, wanted: list[str]) -> None:
        """Run memory, start-up and declarations, each against fresh brokers."""
        measures: dict[str, Callable[[Broker], dict[str, float]]] = {
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


@contextmanager
def started(broker: Broker) -> Iterator[Broker]:
    """Run a broker while the block runs."""
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


def tool_command(broker: Broker, arguments: list[str]) -> list[str]:
    """Return the command line of the load tool against ``broker``; the tool gets a core of its own when the
    broker has one.
    """
    confined = confinement(_TOOL_CORE if broker.core is not None else None)
    return [
        *confined,
        sys.executable,
        "-m",
        "warren.perf",
        *arguments,
        "--json",
        "--uri",
        broker.uri,
        "--pid",
        str(broker.pid),
    ]


def perf(broker: Broker, arguments: list[str]) -> dict[str, Any]:
    """Run the load tool and return what it printed. Raises ToolError."""
    done = subprocess.run(
        tool_command(broker, arguments),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_TOOL_S,
        check=False,
    )
    if done.returncode:
        raise ToolError((done.stderr.strip() or "no output").splitlines()[-1])
    found: dict[str, Any] = json.loads(done.stdout)
    if found.get("missing"):
        raise ToolError(f"{found['missing']} messages or confirms are missing")
    return found


def say(line: str) -> None:
    """Print one line of progress."""
    print(line, flush=True)


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
    with tempfile.TemporaryDirectory(prefix="warren-bench-") as directory:
        run = Bench(rounds, seconds, Path(directory), checkouts, program)
        run.run_loads([case for case in cases.LOADS if case.name in wanted])
        run.run_standing([name for name in cases.STANDING_CASES if name in wanted])
    text = results.markdown(run.measured, machine, rounds=rounds, seconds=seconds)
    target = output or (None if only else ROOT / "benchmarks" / "RESULTS.md")
    if target is None:
        print(text)
    else:
        target.write_text(text)
        say(f"written to {os.path.relpath(target)}")
    if run.measured.failures:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(bench)
