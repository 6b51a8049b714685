"""Kill the broker in the middle of an attack, and start it again: what was confirmed is there, and it is soon ready.

    python -m abuse --kill [NAME ...]      each attack, killed 0.5, 1, 2, 4, ... s after its beginning, until it ends

A start is measured from the call to the moment at which the broker says that it listens and GET /health answers 200.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from broker_process import WarrenProcess
from integration.management.client import Api

from . import scene
from .bystander import QUEUE, Bystander

FIRST_S = 0.5
# The longest that a start may take on a quiet machine, with the compiled engine.
START_S = 5.0


class Restart(NamedTuple):
    """The start after a kill `after_s` into an attack: its duration, and the sizes and counts at the kill.

    `fresh_s`: the duration of the start before, with an empty directory. It says how busy the machine was.
    `confirmed` counts the messages of the innocent client that were confirmed, `found` those that the start has found.
    """

    name: str
    after_s: float
    ready_s: float
    fresh_s: float
    store_bytes: int
    confirmed: int
    found: int

    def lost(self) -> int:
        """Return how many confirmed messages are missing."""
        return max(0, self.confirmed - self.found)


def restarts(name: str) -> Iterator[Restart]:
    """Make an attack again and again, each time with a broker of its own that is killed twice as late."""
    after_s = FIRST_S
    while True:
        with tempfile.TemporaryDirectory(prefix="warren-abuse-") as directory:
            restart = killed(Path(directory), name, after_s)
        if restart is None:
            return
        yield restart
        after_s *= 2


def killed(directory: Path, name: str, after_s: float, *, is_executed: bool = True) -> Restart | None:
    """Kill a broker in `directory` `after_s` into an attack; None: the attack was over before, and nothing is killed.

    The attack may have been refused by then. Its process ends with the broker.
    """
    process = scene.broker(directory, name, is_executed=is_executed)
    began_s = time.monotonic()
    process.start()
    fresh_s = time.monotonic() - began_s
    try:
        scene.admit(process)
        with Bystander(process) as bystander, _attack(process, name) as attacker:
            with contextlib.suppress(subprocess.TimeoutExpired):
                attacker.wait(after_s)
                return None
            process.kill()
        confirmed = bystander.count.get("confirm", 0)
        store_bytes = sum(path.stat().st_blocks * 512 for path in process.data_directory.rglob("*"))
        began_s = time.monotonic()
        process.start()
        ready_s = time.monotonic() - began_s
        api = Api(process.http_port)
        found = int(api.get(f"/queues/%2F/{QUEUE}")["messages"])
        api.close()
        return Restart(name, after_s, ready_s, fresh_s, store_bytes, confirmed, found)
    finally:
        process.kill()


@contextlib.contextmanager
def _attack(process: WarrenProcess, name: str) -> Iterator[subprocess.Popen[bytes]]:
    command = scene.attacker_command(process, name)
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=Path(__file__).parents[1]
    ) as attacker:
        try:
            yield attacker
        finally:
            attacker.kill()
