"""The process in which a broker's own tables follow: ``python -m warren.lake.served``, started by the broker.

Its orders, a line of JSON on standard input each:

    {"places": "/srv/lake"}                                             first
    {"start": 7, "vhost": "/", "url": "http://…", "token": "…", "value": {…}}
    {"stop": 7}                                                         after the commit that is under way

Its reports, likewise on standard output:

    {"alive": true, "memory_bytes": 200000000}                          each second
    {"id": 7, "state": "running", "reason": "", "rows": 12, …}          when that changes, once a second at most
    {"id": 7, "state": "ended", "reason": "…", "again": false, …}       the last one of this number

1. Each table has a thread. An error ends the thread of its own table only.
2. The end of the input ends the process: after the death of a broker it does not run for long. It may be killed at any
   moment, like every process that follows (``follower.py``).
3. Nothing but these lines is written to standard output, whatever a library prints.
4. When memory is short this process is killed before the broker; it gets processor time after the broker.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import IO, Any, Final

from warren.lake.commands import INSTALL, follower_of
from warren.lake.metrics import Meter
from warren.lake.parameter import check_links, job_of_parameter
from warren.lake.places import Places, places_of
from warren.lake.runner import REASON_MAX, Runner
from warren.lake.table_errors import NotOurs, Overtaken
from warren.spark_bridge.bridge_errors import BridgeError, DamagedChunk, DataLoss, Fenced, UsageError

STARTING: Final = "starting"
RUNNING: Final = "running"
FAILING: Final = "failing"
ENDED: Final = "ended"
REPORT_S: Final = 1.0
GRACE_S: Final = 2.0  # for the commits that are under way when the broker goes
OOM_SCORE: Final = 500  # of 1000: how early this process is killed when memory is short
NICENESS: Final = 5
NUMBERS: Final = ("rows", "bytes", "refused", "lost", "commits", "failures", "files_rewritten", "waiting")
TIMES: Final = ("committed_at_s", "caught_up_at_s", "step_s")
# Errors that a repetition does not solve: a person has to change something.
_FOR_GOOD: Final = (UsageError, NotOurs, Overtaken, Fenced, DataLoss, DamagedChunk, ModuleNotFoundError)


class Followed:
    """One table, in a thread of its own. `run` makes it follow until its event is set."""

    def __init__(self, run: Callable[[Meter, threading.Event], None]) -> None:
        self.meter = Meter("", "")
        self.stop = threading.Event()
        self._run = run
        self._state = STARTING
        self._reason = ""
        self._again = False
        self._told: dict[str, Any] = {}
        self.thread = threading.Thread(target=self._live, name="warren-lake", daemon=True)

    def begin(self) -> None:
        """Start the thread; a table that gets none has ended, and may be tried again."""
        try:
            self.thread.start()
        except RuntimeError as error:
            self._reason, self._again, self._state = str(error), True, ENDED

    def join(self, within_s: float) -> None:
        """Wait for the end of the thread, if there is one."""
        if self.thread.ident is not None:
            self.thread.join(within_s)

    def _live(self) -> None:
        reason, again = "", False
        try:
            self._run(self.meter, self.stop)
        except ModuleNotFoundError as error:
            reason = f"{str(error.name).partition('.')[0]} is not installed: {INSTALL}"
        except BaseException as error:  # a panic in a library in Rust is not an Exception
            reason = str(error) if isinstance(error, BridgeError) else f"{type(error).__name__}: {error}"
            again = not isinstance(error, _FOR_GOOD)
        self._reason = reason.partition("\n")[0][:REASON_MAX]
        self._again = again
        self._state = ENDED  # the last, as others look at it first

    def maybe_news(self) -> dict[str, Any] | None:
        """Return the state, if it differs from the one returned last."""
        state, meter = self._state, self.meter
        if state != ENDED and meter.up:
            state = FAILING if meter.problem else RUNNING
        elif state != ENDED and meter.problem:
            state = FAILING
        found: dict[str, Any] = {"state": state, "reason": self._reason if state == ENDED else meter.problem}
        found |= {name: getattr(meter, name) for name in (*NUMBERS, *TIMES)}
        if state == ENDED:
            found["again"] = self._again
        if found == self._told:
            return None
        self._told = found
        return found

    @property
    def has_ended(self) -> bool:
        """Whether that was reported."""
        return self._told.get("state") == ENDED


def follow(order: Mapping[str, Any], places: Places, meter: Meter, stop: threading.Event) -> None:
    """Follow with a table as `order` says, until it is stopped.

    Raises:
        Exception: the error that ends it.
    """
    from warren.spark_bridge.control import BrokerClient

    job = job_of_parameter(order["value"], places)
    check_links(job, places)
    client = BrokerClient(order["url"], token=order["token"], vhost=order["vhost"])
    Runner(job, partial(follower_of, job, client), meter, stop, lambda _: None).run(once=False)


class Service:
    """All tables of a broker. `say` writes a line; `follow`: of tests."""

    def __init__(
        self,
        say: Callable[[Mapping[str, Any]], None],
        follow: Callable[[Mapping[str, Any], Places, Meter, threading.Event], None] = follow,
    ) -> None:
        self._say = say
        self._follow = follow
        self._places = Places()
        self._tables: dict[int, Followed] = {}
        self._lock = threading.Lock()

    def take(self, order: Mapping[str, Any]) -> None:
        """Carry out the order in a line."""
        if "places" in order:
            self._places = places_of(str(order["places"]))
        elif "start" in order:
            places = self._places
            made = Followed(lambda meter, stop: self._follow(order, places, meter, stop))
            with self._lock:
                self._tables[int(order["start"])] = made
            made.begin()
        else:
            with self._lock:
                found = self._tables.get(int(order["stop"]))
            if found is not None:
                found.stop.set()

    def report(self) -> None:
        """Report changes."""
        with self._lock:
            tables = list(self._tables.items())
        for number, each in tables:
            news = each.maybe_news()
            if news is not None:
                self._say({"id": number, **news})
            if each.has_ended:
                with self._lock:
                    del self._tables[number]
        self._say({"alive": True, "memory_bytes": _memory_bytes()})

    def end(self, grace_s: float) -> None:
        """Stop all, and wait for them as long as that takes, `grace_s` at most."""
        with self._lock:
            tables = list(self._tables.values())
        for each in tables:
            each.stop.set()
        until_s = time.monotonic() + grace_s
        for each in tables:
            each.join(max(0.0, until_s - time.monotonic()))


def serve(orders: IO[bytes], answers: IO[bytes]) -> None:
    """Carry out the lines of `orders` until they end."""

    def say(news: Mapping[str, Any]) -> None:
        answers.write(json.dumps(news).encode() + b"\n")
        answers.flush()

    service = Service(say)

    def report() -> None:
        while True:
            try:
                service.report()
            except OSError:
                return  # the broker no longer listens, and the orders end as well
            time.sleep(REPORT_S)

    threading.Thread(target=report, name="warren-lake-report", daemon=True).start()
    for line in orders:
        service.take(json.loads(line))
    service.end(GRACE_S)


def _memory_bytes() -> int:
    """Return how much memory this process has, or has had at most where the system says no more."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _step_back() -> None:
    """Give the broker precedence (4): lower this process's priority, and let the kernel kill it first."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(OOM_SCORE))
    except OSError:
        pass  # a system without, or one that allows less
    os.nice(NICENESS)


def main() -> None:
    """Run until the standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the broker says when this ends
    _step_back()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)
    os._exit(0)  # threads of libraries that are in the middle of something are not waited for


if __name__ == "__main__":
    main()
