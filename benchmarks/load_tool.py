"""The load tool as the benchmarks run it: a process of its own that prints JSON."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, Protocol

from benchmarks.brokers import confinement

ROOT: Final = Path(__file__).resolve().parent.parent
TOOL_CORE: Final = 1
_TOOL_S: Final = 600.0


class ToolError(Exception):
    """The load tool failed; the text is its last line."""


class Target(Protocol):
    """What is loaded: where it is, the root of the process tree that is measured, and its core, None for none."""

    @property
    def uri(self) -> str: ...

    @property
    def pid(self) -> int: ...

    @property
    def core(self) -> int | None: ...


def tool_command(broker: Target, arguments: list[str]) -> list[str]:
    """Return the command line of the load tool against ``broker``; the tool gets a core of its own when the
    broker has one.
    """
    confined = confinement(TOOL_CORE if broker.core is not None else None)
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


def perf(broker: Target, arguments: list[str], *, most_s: float = _TOOL_S) -> dict[str, Any]:
    """Run the load tool and return what it printed. Raises ToolError."""
    try:
        done = subprocess.run(
            tool_command(broker, arguments), cwd=ROOT, capture_output=True, text=True, timeout=most_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise ToolError(f"not done after {most_s:g} s") from None
    if done.returncode:
        raise ToolError((done.stderr.strip() or "no output").splitlines()[-1])
    found: dict[str, Any] = json.loads(done.stdout)
    if found.get("missing"):
        raise ToolError(f"{found['missing']} messages or confirms are missing")
    return found


def say(line: str) -> None:
    """Print one line of progress."""
    print(line, flush=True)


def stop_when_told() -> None:
    """Have SIGTERM end this process as Ctrl-C does: with all brokers stopped, those that are frozen too."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
