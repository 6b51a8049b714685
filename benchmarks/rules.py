"""`make bench-rules`: what the rules of a queue cost, as broker CPU per message in that of a queue without any.

Warren alone. In every round each load of ``cases.RULES`` runs once against the same broker, beginning with another one
each time. A ratio is taken within one round, and the median over the rounds is shown: whatever disturbs the machine
disturbs both sides of it. Where two cores are there the broker has one of them and the load tool the other.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any, Final

import typer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, only its own folder is on the path

from benchmarks import cases, results
from benchmarks.brokers import Broker, WarrenBroker, started
from benchmarks.load_tool import ROOT, ToolError, perf, say, stop_when_told
from warren.perf.client import BrokerError

_BROKER_CORE: Final = 0

# What each case showed, by round; None where it failed.
Rounds = dict[str, list[dict[str, Any] | None]]


def cpu_us(found: dict[str, Any]) -> float:
    """Return the broker's CPU per message received."""
    return float(found["broker_cpu_us_per_received"])


def ratios(case: cases.RuleCase, rounds: Rounds) -> list[float]:
    """Return for each round the case's CPU per message in that of what it is compared with."""
    pairs = zip(rounds[case.name], rounds[case.against], strict=True)
    return [cpu_us(ours) / max(cpu_us(theirs), 1e-9) for ours, theirs in pairs if ours and theirs]


def measure(broker: Broker, *, rounds: int, seconds: float) -> tuple[Rounds, list[str]]:
    """Run all loads; return what they showed, and how those ended that failed."""
    found: Rounds = {case.name: [] for case in cases.RULES}
    failures: list[str] = []
    for turn in range(rounds):
        shift = turn % len(cases.RULES)
        for case in cases.RULES[shift:] + cases.RULES[:shift]:
            try:
                shown = perf(broker, [*case.arguments, "--duration", f"{seconds:g}"])
            except ToolError as error:
                failures.append(f"{case.name}: {broker.maybe_death() or error}")
                say(f"round {turn + 1}  {case.name:12} FAILED: {failures[-1]}")
                found[case.name].append(None)
                if broker.maybe_death():
                    broker.start()
                continue
            found[case.name].append(shown)
            say(f"round {turn + 1}  {case.name:12} {shown['received_per_s']:>12,.0f}/s  {cpu_us(shown):>7.3f} µs")
    return found, failures


def markdown(
    found: Rounds, failures: list[str], machine: results.Machine, product: str, *, rounds: int, seconds: float
) -> str:
    """Return the text of RULES.md."""
    page = results.Page()
    rows = []
    for case in cases.RULES:
        shown = [one for one in found[case.name] if one]
        row = [f"{case.name}: {case.title}"]
        if shown:
            row += [f"{results.median([one['received_per_s'] for one in shown]):,.0f}"]
            row += [f"{results.median([cpu_us(one) for one in shown]):.3f}"]
        against = ratios(case, found)
        if against and case.against != case.name:
            row += [f"{results.median(against):.2f} of {case.against}"]
        if case.at_most is not None:
            row += [""] * (4 - len(row))
            reached = bool(against) and results.median(against) <= case.at_most
            row += [f"at most {case.at_most:g}", page.verdict(reached=reached)]
        rows.append(row)
    page.table(["", "received per s", "broker CPU per message, µs", "ratio", "target", ""], rows)
    if failures:
        page.text("Failed:", "\n".join(f"- {failure}" for failure in failures))
    top = [
        "# What rules cost",
        "Written by `make bench-rules`; do not edit.",
        f"**{sum(page.verdicts)} of {len(page.verdicts)} targets met.**",
        f"- Machine: {machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB; {machine.system}; "
        f"load before the start {machine.load:.2f}.\n"
        f"- {product} at {results.revision()}, Python {machine.python}.\n"
        f"- {rounds} rounds of {seconds:g} s for each load, the median over them. All loads: 16 B, transient, "
        "acknowledged, prefetch 1000, at most 20,000 on their way. A ratio is that of the broker's CPU per message in "
        "the same round.",
    ]
    return "\n\n".join([*top, *page.parts]) + "\n"


def rules(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; ratios are medians over them")] = 5,
    seconds: Annotated[float, typer.Option(min=0.5, help="Seconds measured of each load")] = 5.0,
    checkout: Annotated[Path, typer.Option(help="The checkout of Warren, built")] = ROOT,
    directory: Annotated[
        Path | None, typer.Option(help="Where the broker keeps its data meanwhile; default: the temporary directory")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Where to write; default benchmarks/RULES.md, with other options nowhere")
    ] = None,
) -> None:
    """Measure what rules of queues cost."""
    machine = results.Machine.look()
    if machine.load > 0.5:
        say(f"the machine is not quiet (load {machine.load:.1f}): the figures will be worse than they are")
    core = _BROKER_CORE if machine.cores > 1 else None
    with tempfile.TemporaryDirectory(prefix="warren-rules-", dir=directory) as below:
        try:
            with started(WarrenBroker(results.WARREN, Path(below), checkout.resolve(), core=core)) as broker:
                found, failures = measure(broker, rounds=rounds, seconds=seconds)
                product = broker.product
        except BrokerError as error:
            say(f"the broker does not start: {error}")
            raise typer.Exit(1) from None
    text = markdown(found, failures, machine, product, rounds=rounds, seconds=seconds)
    usual = (rounds, seconds, checkout) == (5, 5.0, ROOT)
    target = output or (ROOT / "benchmarks" / "RULES.md" if usual else None)
    if target is None:
        print(text)
    else:
        target.write_text(text)
        say(f"written to {os.path.relpath(target)}")
    if failures:
        raise typer.Exit(1)


if __name__ == "__main__":
    stop_when_told()
    typer.run(rules)
