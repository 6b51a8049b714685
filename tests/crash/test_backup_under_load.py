"""Backups of a broker under load: a start on one finds what was promised before it was begun, and nothing invented.

For the history a backup is a crash at an unknown moment: requests answered since its start may be in it or not. Seeds
are those of ``test_kill_9.py``.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from broker_process import WarrenProcess

from warren.perf.client import Address

from .history import History, Message, Place, Transaction
from .life import small_store
from .load import TRANSIENT_QUEUES, Inspector, Load, set_up
from .test_kill_9 import SEED

ROUNDS = 2
# So slow that segments are removed and streams are sealed meanwhile.
RATE = "30MB"


class HistoryOfBackup(History):
    """A history that ignores all answers once a backup is `begun`."""

    begun = False

    def confirmed(self, message: Message) -> None:
        if not self.begun:
            super().confirmed(message)

    def committed(self, transaction: Transaction) -> None:
        if not self.begun:
            super().committed(transaction)

    def processed(self, places: Iterable[Place]) -> None:
        if not self.begun:
            super().processed(places)

    def purge(self, queue: str) -> None:
        self._sweep_again(queue)

    def purged(self, queue: str) -> None:
        if not self.begun:
            super().purged(queue)

    def delete(self, queue: str) -> None:
        self._sweep_again(queue)

    def deleted(self, queue: str) -> None:
        if not self.begun:
            super().deleted(queue)

    def declared(self, queue: str) -> None:
        if not self.begun:
            super().declared(queue)

    def _sweep_again(self, queue: str) -> None:
        """Note that what is in a queue may go, of which that may be so already."""
        before = self._unstable.pop(queue, [])
        self._sweep(queue)
        self._unstable[queue] += before


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-P", "-m", "warren", *map(str, arguments)]


def back_up(broker: WarrenProcess, to: Path, load: Load) -> None:
    """Make a backup while the load continues."""
    url = f"http://127.0.0.1:{broker.http_port}"
    asked = command("ctl", "--url", url, "backup", to, "--incremental", "--rate", RATE)
    with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        load.run_until(lambda: running.poll() is not None)
        assert running.stdout is not None
        told = running.stdout.read()
    assert running.returncode == 0, told + broker.log_tail()


@pytest.mark.long
@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_backup_has_what_was_promised_before_it_was_begun(tmp_path: Path, number: int) -> None:
    chooser = random.Random(SEED + 5_000_000 + number)
    settings = small_store(chooser)
    print(f"seed {SEED + 5_000_000 + number}, {settings}")
    history = HistoryOfBackup(TRANSIENT_QUEUES)
    with WarrenProcess(tmp_path / "first", settings=settings) as broker:
        address = Address(port=broker.amqp_port)
        set_up(address)
        load = Load(address, history, chooser)
        load.run_until(lambda: load.confirms >= 500)
        back_up(broker, tmp_path / "backups", load)
        so_far = load.confirms
        load.run_until(lambda: load.confirms >= so_far + 500)
        history.begun = True
        back_up(broker, tmp_path / "backups", load)
        broker.kill()
        load.run_out()
    restored = WarrenProcess(tmp_path / "second", settings=settings)
    asked = command("store", "restore", tmp_path / "backups", "--data-dir", restored.data_directory)
    done = subprocess.run(asked, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    verified = subprocess.run(command("store", "verify", restored.data_directory), capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout
    with restored:
        set_up(Address(port=restored.amqp_port))
        inspector = Inspector(Address(port=restored.amqp_port))
        places = history.restarted(inspector.found, clean=False)
        assert not history.violations, "\n".join(map(str, history.violations[:20])) + restored.log_tail()
        assert "Traceback" not in restored.log()
    assert any(places.values())
