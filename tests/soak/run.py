"""A soak: the broker, everything that uses it, and the periods of load, rest and judgement.

    load     clients and visitors do what they do, and faults come when the plan says
    rest     publishers and visitors pause, consumers take what is left, until every queue is empty
    judge    the books say what is missing; memory, descriptors, disk and objects are sampled

1. `run` returns violations and never raises for what the broker did.
2. A line of the series is written after each period, so that whatever ends a soak leaves what was measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker_process import WarrenProcess, wait_until
from crash.link import turn
from crash.small_disk import SmallDisk
from integration.management.client import Api

from warren.perf.client import Address, BrokerError
from warren.perf.process_stats import sample

from .books import Books, Offsets, Rule, Violation, maybe_number
from .clients import Client, Consumer, Mover, Publisher, Seat, StreamReader
from .growth import FIGURES, MIB, samples_of, trends
from .plan import Fault, Period, periods
from .topology import FLOWS, PARTITIONS, SHOVEL, TAKEN, declare
from .visitors import Comer, Drainer, Manager, Presence, Visitor

CONSUMED = {"plain": 2, "keyed": 3, "single": 2} | dict.fromkeys(
    ("urgent", "later", "fan-1", "fan-2", "fan-3", "expired", "work", "dead", "once", "tx-out", "shovel-out"), 1
)
# No message has come for this time, and some are missing: they are lost.
REST_DEADLINE_S = 90.0
# Segments of the log that may be there when every queue is empty: some for streams, keys and what is being written.
SEGMENT_BYTES = 4 * MIB
EMPTY_DISK_BYTES = 24 * SEGMENT_BYTES
FREE_MIN_BYTES = 16 * MIB
SETTINGS: dict[str, object] = {
    "store.segment_bytes": SEGMENT_BYTES,
    "store.checkpoint_bytes": 16 * MIB,
    "store.memory_bytes": 8 * MIB,
    "store.disk_free_min_bytes": FREE_MIN_BYTES,
    "link_networks": "127.0.0.0/8",
}
_STOPPED_S = 1.0
_FULL_S = 2.0


@dataclass(frozen=True)
class Choices:
    """The options of a soak. `disk_bytes`: the size of a small disk of its own, 0 for the file system as it is."""

    seed: int
    total_s: float
    directory: Path
    series: Path
    disk_bytes: int = 0


@dataclass
class Result:
    """How a soak ended. `periods` are the lines of the series."""

    seed: int
    periods: list[dict[str, Any]]
    violations: list[Violation]
    violation_count: int
    counts: dict[str, int]


class Innocent:
    """The client that is measured, a process: how long it waited since the last look, in s, by what for."""

    def __init__(self, port: int) -> None:
        self._waits: dict[str, list[float]] = {}
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "soak.innocent", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, seconds = line.split()
            with self._lock:
                self._waits.setdefault(what, []).append(float(seconds))

    def look(self) -> dict[str, float]:
        """Return percentiles in ms of what there was since the last look."""
        with self._lock:
            waits, self._waits = self._waits, {}
        found: dict[str, float] = {}
        for what, seconds in waits.items():
            cuts = statistics.quantiles(seconds, n=100, method="inclusive") if len(seconds) > 1 else seconds * 99
            found |= {f"{what}_count": len(seconds), f"{what}_max_ms": 1000 * max(seconds)}
            found |= {f"{what}_p{percent}_ms": 1000 * cuts[percent - 1] for percent in (50, 99)}
        return found

    def has_begun(self) -> bool:
        with self._lock:
            return bool(self._waits)

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Soak:
    """Everything of one soak; the broker runs."""

    def __init__(self, process: WarrenProcess, disk: SmallDisk | None, seed: int) -> None:
        self.books = Books()
        self.process = process
        self._disk = disk
        self._chooser = random.Random(seed)
        self._presence = Presence()
        self._address = Address(port=process.amqp_port)
        declare(self._address)
        api = Api(process.http_port)
        api.put("/parameters/shovel/%2F/soak", {"value": SHOVEL})
        api.close()
        self._offsets = {stream: Offsets(self.books, stream) for stream in ("events", *PARTITIONS)}
        self._deep_seat = Seat("deep", lambda name: Consumer(*self._of(name), "deep"))
        self._deep_seat.is_taken = False
        self._seats = [self._deep_seat, *self._all_seats()]
        context = (self._presence, random.Random(seed + 1))
        self._drainer = Drainer(self._presence, random.Random(seed + 2), process.http_port)
        self._visitors: list[Visitor] = [
            self._drainer,
            Manager(*context, process.http_port),
            *(Comer(self._presence, random.Random(seed + at), self._address, f"comer {at}") for at in (3, 4)),
        ]
        for visitor in self._visitors:
            visitor.start()
        self.innocent = Innocent(process.amqp_port)
        wait_until(self.innocent.has_begun, "the innocent client to begin")
        self._timers: list[threading.Timer] = []

    # --- seats ------------------------------------------------------------------------------------------------------

    def _of(self, name: str) -> tuple[Address, str, Books, random.Random]:
        return self._address, name, self.books, random.Random(self._chooser.getrandbits(32))

    def _all_seats(self) -> Iterator[Seat]:
        for flow in FLOWS.values():
            unconfirmed: dict[int, int] = {}
            yield Seat(
                f"to {flow.promise.name}",
                lambda name, flow=flow, unconfirmed=unconfirmed: Publisher(  # type: ignore[misc]
                    *self._of(name), flow, unconfirmed
                ),
            )
        for queue, count in CONSUMED.items():
            for number in range(count):
                yield Seat(
                    f"from {queue} {number}",
                    lambda name, queue=queue: Consumer(*self._of(name), queue),  # type: ignore[misc]
                )
        yield Seat("from fleeting", lambda name: Consumer(*self._of(name), "fleeting"))
        yield Seat("mover", lambda name: Mover(*self._of(name)))
        for kind, count in {"next": 1, "again": 1, "group": 2}.items():
            for number in range(count):
                yield Seat(
                    f"{kind} {number}",
                    lambda name, kind=kind: StreamReader(*self._of(name), kind, self._offsets),  # type: ignore[misc]
                )

    def _clients(self) -> list[Client]:
        """Return the connected clients; closed ones are replaced."""
        found = []
        for seat in self._seats:
            client = seat.client
            if client is not None and client.ended:
                self.books.gone(client.name)
                self.books.violated(Rule.CLOSED, f"{client.name}: {client.close_code} {client.close_text}")
                client = seat.client = None
            if client is None and seat.is_taken:
                try:
                    client = seat.sit()
                except BrokerError as error:
                    self.books.violated(Rule.CLOSED, f"nobody can connect to be {seat.title}: {error}")
                    time.sleep(0.1)
                    continue
            if client is not None:
                found.append(client)
        return found

    def _tear(self, seat: Seat) -> None:
        if seat.client is not None and not seat.client.ended:
            seat.client.tear()
            self.books.gone(seat.client.name)
        seat.client = None

    # --- a period ---------------------------------------------------------------------------------------------------

    def load(self, period: Period) -> None:
        """Run all clients while faults come."""
        began_s = time.monotonic()
        faults = list(period.faults)
        for client in self._clients():
            _resume(client)
        for visitor in self._visitors:
            visitor.resume()
        while faults or time.monotonic() - began_s < period.load_s:
            if faults and time.monotonic() - began_s >= faults[0][0]:
                self._cause(faults.pop(0)[1])
            self._step(self._clients())
        for timer in self._timers:
            timer.join()
        self._timers.clear()

    def _step(self, clients: list[Client]) -> None:
        did = [client.step() for client in clients if not client.ended]
        turn(clients, 0 if any(did) else 2)
        self._hear()

    def _hear(self) -> None:
        """Take over what the threads have seen."""
        while not self._drainer.rows.empty():
            body = self._drainer.rows.get()
            number = maybe_number(body)
            self.books.taken("drained", -1 if number is None else number, body)
        for visitor in self._visitors:
            while not visitor.failures.empty():
                self.books.violated(Rule.FAILED, visitor.failures.get())

    def rest(self, *, drains_all: bool) -> None:
        """Make consumers take everything that waits, and judge what is missing."""
        self._deep_seat.is_taken = drains_all
        for visitor in self._visitors:
            if visitor is not self._drainer:
                visitor.rest()
        progress = -1
        give_up_at = 0.0
        while True:
            clients = self._clients()
            for client in clients:
                client.pause()
            self._step(clients)
            so_far = self.books.counts["delivered"] + self.books.counts["read"] + self.books.counts["confirmed"]
            if so_far != progress:
                progress, give_up_at = so_far, time.monotonic() + REST_DEADLINE_S
            is_quiet = not any(client.is_busy() for client in clients) and self.books.due_count() == 0
            if is_quiet and self._is_empty(drains_all=drains_all):
                break
            if time.monotonic() > give_up_at:
                self.books.violated(Rule.KEPT, f"after {REST_DEADLINE_S:.0f} s there is still: {self._left()}")
                break
        self._drainer.rest()
        self._hear()
        self.books.end_period(lasting=drains_all)
        self._tear(self._deep_seat)
        self._deep_seat.is_taken = False

    def _is_empty(self, *, drains_all: bool) -> bool:
        return all(row["name"] == "deep" and not drains_all for row in self._left())

    def _left(self) -> list[dict[str, Any]]:
        """Return which queues hold something, and what."""
        api = Api(self.process.http_port)
        try:
            keys = ("name", "messages_ready", "messages_unacknowledged", "messages_delayed", "messages_dlx")
            rows = [{key: row.get(key, 0) for key in keys} for row in api.get("/queues/%2F")]
        finally:
            api.close()
        return [row for row in rows if row["name"] in TAKEN and any(row[key] for key in keys[1:])]

    # --- faults -----------------------------------------------------------------------------------------------------

    def _cause(self, fault: Fault) -> None:
        self.books.counts[fault] += 1
        taken = [seat for seat in self._seats if seat.client is not None]
        match fault:
            case Fault.TEAR:
                self._tear(self._chooser.choice(taken))
            case Fault.TEAR_MANY:
                for seat in self._chooser.sample(taken, len(taken) // 2):
                    self._tear(seat)
            case Fault.STOP:
                self.process.signal(signal.SIGSTOP)
                pid = self.process.pid
                self._later(
                    _STOPPED_S, lambda: self.process.signal(signal.SIGCONT) if self.process.pid == pid else None
                )
            case Fault.FULL_DISK:
                assert self._disk is not None
                self._disk.fill(but=FREE_MIN_BYTES // 2)
                self._later(_FULL_S, self._disk.empty)
            case Fault.KILL | Fault.RESTART:
                self._restart(clean=fault is Fault.RESTART)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, act)
        self._timers.append(timer)
        timer.start()

    def _restart(self, *, clean: bool) -> None:
        for timer in self._timers:
            timer.join()
        self._timers.clear()
        self._presence.leave()
        if clean:
            self._stop()
        else:
            self.process.kill()
        for seat in self._seats:
            if seat.client is not None:
                seat.client.tear()
                seat.client = None
        self.books.restarted(clean=clean)
        self.process.start()
        declare(self._address)  # transient queues
        self._presence.come()

    def _stop(self) -> None:
        self.process.signal(signal.SIGTERM)
        try:
            code = self.process.wait()
        except subprocess.TimeoutExpired:
            self.books.violated(Rule.FAILED, "SIGTERM did not stop the broker")
            self.process.kill()
            return
        if code != 0:
            self.books.violated(Rule.FAILED, f"the broker stopped with exit code {code}: {self.process.log_tail(20)}")

    # --- what is measured -------------------------------------------------------------------------------------------

    def measure(self, *, drains_all: bool) -> dict[str, float]:
        """Return the sample of a period that is over."""
        _wait_for(lambda: all(visitor.is_at_rest() for visitor in self._visitors), 30)
        if drains_all:
            _wait_for(lambda: self._disk_bytes() <= EMPTY_DISK_BYTES, 60)
            left = self._disk_bytes()
            if left > EMPTY_DISK_BYTES:
                self.books.violated(Rule.KEPT, f"{left >> 20} MiB on disk, and every queue is empty")
        time.sleep(0.5)  # the last connections go, and the last pages of memory
        resident = statistics.median(self._resident_bytes() for _ in range(3))
        api = Api(self.process.http_port)
        try:
            totals = api.get("/overview")["object_totals"]
        finally:
            api.close()
        keys = ("queues", "exchanges", "connections", "channels")
        found: dict[str, float] = {
            "rss_bytes": resident,
            "cpu_s": sample(self.process.pid).cpu_us / 1e6,
            "descriptors": self._descriptors(),
            "threads": len(list(Path(f"/proc/{self.process.pid}/task").iterdir())),
            "objects": sum(totals[key] for key in keys),
        }
        found |= {f"of_{key}": totals[key] for key in keys}
        if drains_all:
            found["disk_bytes"] = self._disk_bytes()
        return found

    def _descriptors(self) -> int:
        """Return how many descriptors are open; not those of data, which go up and down with what waits on disk."""
        count = 0
        for link in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                count += not os.readlink(link).startswith(str(self.process.data_directory))
        return count

    def _resident_bytes(self) -> int:
        time.sleep(0.1)
        return self.process.resident_bytes()

    def _disk_bytes(self) -> int:
        """Return what the data takes on disk; a file that is preallocated has its whole size."""
        total = 0
        root = self.process.data_directory if self._disk is None else self._disk.view
        for path in root.rglob("*"):
            if path.name != "filler":
                with contextlib.suppress(OSError):
                    total += path.stat().st_size if path.is_file() else 0
        return total

    def end(self) -> None:
        """Stop all clients."""
        for visitor in self._visitors:
            visitor.end()
        self._hear()
        self.innocent.end()
        for seat in self._seats:
            self._tear(seat)


def _resume(client: Client) -> None:
    if isinstance(client, Publisher | Consumer | Mover):
        client.resume()


def _wait_for(condition: Callable[[], bool], seconds: float) -> None:
    give_up_at = time.monotonic() + seconds
    while not condition() and time.monotonic() < give_up_at:
        time.sleep(0.1)


def run(choices: Choices, say: Callable[[str], None] = print) -> Result:
    """Soak until the time is over and everything was drained, or a promise is broken."""
    lines: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        disk = None
        if choices.disk_bytes:
            disk = stack.enter_context(SmallDisk(choices.directory / "data", choices.disk_bytes))
        process = WarrenProcess(choices.directory, settings=SETTINGS, wrapper=disk.wrapper if disk else ())
        process.start()
        stack.callback(process.kill)
        soak = Soak(process, disk, choices.seed)
        books = soak.books
        series = stack.enter_context(choices.series.open("w"))
        began_s = time.monotonic()
        before: dict[str, float] = {}
        try:
            for period in periods(choices.seed, choices.total_s, full_disk=disk is not None):
                soak.load(period)
                waits = soak.innocent.look()
                soak.rest(drains_all=period.drains_all)
                line: dict[str, Any] = {
                    "period": period.number,
                    "at_s": round(time.monotonic() - began_s, 1),
                    "life": books.life,
                    "faults": [kind.name for _, kind in period.faults],
                    **soak.measure(drains_all=period.drains_all),
                    **waits,
                }
                totals = {key: books.counts[key] for key in ("sent", "confirmed", "delivered", "read")}
                line |= {key: total - before.get(key, 0) for key, total in totals.items()}
                line |= {"in_books": books.size(), "violations": books.violation_count}
                before = dict(totals)
                lines.append(line)
                series.write(json.dumps(line) + "\n")
                series.flush()
                soak.innocent.look()
                say(_told(line))
                is_over = time.monotonic() - began_s >= choices.total_s and period.drains_all
                if books.violation_count or is_over:
                    break
        except Exception as error:
            # The broker should have prevented any such end. Together with the measurements so far it is a result.
            books.violated(Rule.FAILED, f"{type(error).__name__}: {str(error)[:2000]}")
        finally:
            if not process.is_running():
                books.violated(Rule.FAILED, f"the broker ended: {process.log_tail(30)}")
            soak.end()
        _judge_log(process, books)
        judge_growth(lines, books)
    return Result(choices.seed, lines, books.violations, books.violation_count, dict(books.counts))


def _judge_log(process: WarrenProcess, books: Books) -> None:
    log = process.log()
    for sign in ("Traceback", "a task has failed"):
        if sign in log:
            at = log.index(sign)
            books.violated(Rule.FAILED, f"the log says: {log[max(0, at - 300) : at + 1500]}")


def judge_growth(lines: list[dict[str, Any]], books: Books) -> None:
    """Judge every figure of a series (`growth`)."""
    for figure in FIGURES:
        for trend in trends(samples_of(lines, figure), figure):
            if trend.is_growing():
                books.violated(
                    Rule.GROWING,
                    f"{figure.title} rose by {trend.rise:,.0f} in {trend.samples} periods of life {trend.life}, "
                    f"{trend.per_hour:,.0f} an hour, and {trend.allowed:,.0f} are allowed",
                )


def _told(line: dict[str, Any]) -> str:
    return (
        f"period {line['period']:4}, life {line['life']:2}, {line['at_s']:7.0f} s: {line['sent']:7,} sent, "
        f"{line['rss_bytes'] / MIB:6.1f} MiB, {line['descriptors']:3} descriptors, confirm p50 "
        f"{line.get('confirm_p50_ms', 0):5.1f} p99 {line.get('confirm_p99_ms', 0):6.1f} ms, "
        f"login p99 {line.get('login_p99_ms', 0):6.1f} ms  {' '.join(line['faults']).lower()}"
    )
