"""The life of one data directory: load, an end that the broker did not choose (or did), a start, a look at everything.

The seed decides settings, clients, sizes and moments; the broker's progress at the end depends on the machine, so a
seed finds the same kind of case again, not the same bytes.
"""

from __future__ import annotations

import random
import signal
import time

from broker_process import WarrenProcess

from warren.perf.client import Address

from .history import History
from .load import TRANSIENT_QUEUES, Inspector, Load, set_up

# Kept after a look while there are fewer, so that a backlog lives through several restarts.
_BACKLOG_MAX = 4000
# A start takes about this long; a broker that is killed while it recovers is killed within it.
_START_S = 0.5


def small_store(chooser: random.Random) -> dict[str, object]:
    """Return settings that make the store change files, write checkpoints, read back, page and compact all the time."""
    return {
        "store.segment_bytes": chooser.choice([64 << 10, 1 << 20, 4 << 20]),
        "store.checkpoint_bytes": chooser.choice([64 << 10, 2 << 20, 128 << 20]),
        "store.memory_bytes": chooser.choice([0, 256 << 10, 64 << 20]),
        "store.paging_watermark": chooser.choice(["0.2", "0.001"]),
        "store.compaction_bytes_per_s": 1 << 30,
        "store.disk_free_min_bytes": 0,
    }


class Life:
    """One broker, one data directory, one history; `process` is not started yet."""

    def __init__(self, process: WarrenProcess, chooser: random.Random) -> None:
        self.history = History(TRANSIENT_QUEUES)
        self.process = process
        self._chooser = chooser
        self.process.start()
        set_up(self._address())

    def _address(self) -> Address:
        return Address(port=self.process.amqp_port)

    def crash(self, *, crashes_in_recovery: int = 0) -> None:
        """Load, kill -9 at a random moment, start, judge. Some kills hit a broker that is just stopping."""
        load = Load(self._address(), self.history, self._chooser)
        self._run(load)
        if self._chooser.random() < 0.15:
            self.process.signal(signal.SIGTERM)
            time.sleep(self._chooser.uniform(0, 0.05))  # a random moment, without waiting for an event
        self.process.kill()
        load.run_out()
        for _ in range(crashes_in_recovery):
            self.process.spawn()
            time.sleep(self._chooser.uniform(0, _START_S))  # as above
            self.process.kill()
        self._start_and_judge(clean=False)

    def stop(self) -> None:
        """Load, stop with SIGTERM, start, judge."""
        load = Load(self._address(), self.history, self._chooser)
        self._run(load)
        self.process.signal(signal.SIGTERM)
        load.run_until_closed()
        assert self.process.wait() == 0, self.process.log_tail()
        self._start_and_judge(clean=True)

    def _run(self, load: Load) -> None:
        if self._chooser.random() < 0.5:
            end_at = time.monotonic() + self._chooser.uniform(0.02, 0.6)
            load.run_until(lambda: time.monotonic() > end_at)
        else:
            # Just after a confirm was read is when a broker that confirms too early is caught.
            enough = int(self._chooser.expovariate(1 / 400)) + 1
            load.run_until(lambda: load.confirms >= enough)

    def _start_and_judge(self, *, clean: bool) -> None:
        self.process.start()
        set_up(self._address())
        inspector = Inspector(self._address())
        places = self.history.restarted(inspector.found, clean=clean)
        self._check()
        count = sum(len(in_queue) for in_queue in places.values())
        share = self._chooser.choice([0.0, 0.5, 0.9, 1.0]) if count < _BACKLOG_MAX else 0.95
        inspector.take(self.history, places, self._chooser, share)

    def _check(self) -> None:
        violations = self.history.violations
        if violations:
            rules = sorted({violation.rule.name for violation in violations})
            shown = "\n".join(f"  {violation}" for violation in violations[:20])
            raise AssertionError(f"{len(violations)} violations, {rules}:\n{shown}\n{self.process.log_tail()}")
        # Nothing here damages synced bytes: a report of damage means that the end of a log was misread.
        quarantine = self.process.data_directory / "messages" / "quarantine"
        assert not quarantine.exists() or not list(quarantine.iterdir()), "a crash was taken for damage"
        assert "Traceback" not in self.process.log(), self.process.log_tail()

    def summary(self) -> str:
        """Return a summary for the reader of the output."""
        return ", ".join(f"{count} {what}" for what, count in self.history.counts.items())
