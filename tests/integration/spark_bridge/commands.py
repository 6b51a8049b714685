"""The commands of the bridge, asked of a broker."""

from __future__ import annotations

import sys

from broker_process import WarrenProcess
from warren_command import run_warren


def words(broker: WarrenProcess, *arguments: object) -> list[str]:
    return [*map(str, arguments), "--url", f"http://127.0.0.1:{broker.http_port}"]


def command(broker: WarrenProcess, *arguments: object) -> list[str]:
    return [sys.executable, "-P", "-m", "warren", *words(broker, *arguments)]


def run(broker: WarrenProcess, *arguments: object, code: int = 0) -> str:
    """Run a command to its end and return what it printed."""
    ended = run_warren(*words(broker, *arguments))
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout if code == 0 else ended.stderr
