"""Tables that the broker itself keeps up to date: which of them should run, how they are kept running, their state.

    state        a table                                             becomes
    starting     will begin                                          running, failing, terminated
    running      follows                                             failing, terminated, starting (the process ended)
    failing      has met an error, and tries again by itself         running, terminated, starting
    terminated   has ended with an error that somebody has to        starting, when its parameter is changed or
                 correct                                             when somebody restarts it
    held         must not run until links are released               starting
                 (``server/held_links.py``)

1. All tables of a broker run in one process beside it (``lake_process.py``), which exists while any table has to run.
   If it ends for any other reason it is started again, after a pause that doubles up to `PAUSE_MAX_S`.
2. Tables do not depend on the state here: a table's own commits record how far it is. So killing the process at any
   moment loses nothing, and writes nothing twice.
3. A table never runs twice: a changed table starts when the previous one has ended. If that one does not end within
   `STOP_S`, the process is ended, with all tables.
4. At most `JOBS_MAX` tables run; each has up to ``max_bytes`` in memory.
5. States, logs and reasons hold no credentials.
6. Counts continue when a table or the process restarts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

import trio

from warren.links.host import Parameter
from warren.links.lake_process import LakeProcess, ProcessFailed, command, number_of, start, text_of

STARTING: Final = "starting"
RUNNING: Final = "running"
FAILING: Final = "failing"
TERMINATED: Final = "terminated"
HELD: Final = "held"
ENDED: Final = "ended"  # as reported by the process
STATES: Final = (STARTING, RUNNING, FAILING, TERMINATED, HELD)
IDLE: Final = (TERMINATED, HELD)  # a table stays like this until somebody changes something
JOBS_MAX: Final = 100
LOOK_S: Final = 1.0
STOP_S: Final = 60.0
PAUSE_S: Final = 1.0
AGAIN_S: Final = 5.0
PAUSE_MAX_S: Final = 60.0
SETTLED_S: Final = 60.0
COUNTS: Final = ("rows", "bytes", "refused", "lost", "commits", "failures", "files_rewritten")

Key = tuple[str, str]


class Host(Protocol):
    """The broker around the tables."""

    places: str  # the setting: where tables may be
    descriptors_below: int

    @property
    def node_name(self) -> str:
        """The name in status objects."""

    @property
    def held_reason(self) -> str:
        """The reason why tables may not run, ``""`` when they may. A change is reported like that of a parameter."""

    def now(self) -> float:
        """Return seconds since the epoch."""

    def is_stopping(self) -> bool:
        """Tell whether the broker ends."""

    def parameters(self) -> Sequence[Parameter]:
        """Return the parameters of tables, of all vhosts."""

    def described(self, value: object) -> dict[str, str]:
        """Return the content of a parameter: ``source``, ``source_type``, ``table``, ``format``, or the error in it.

        Raises:
            ValueError: it is not valid, for the reason said.
        """

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` when a parameter has changed."""

    async def url(self) -> str:
        """Return where the process reaches this broker."""

    def admit(self, vhost: str) -> str:
        """Return a token with which the process may use `vhost` of this broker."""

    def dismiss(self, token: str) -> None:
        """Revoke the token."""

    def log(self, level: str, event: str, **details: object) -> None:
        """Write a log line; details hold no credentials."""


@dataclass
class _Job:
    """One table that should run, or has to end. `number`: its number in the process; 0 while it is not in it."""

    vhost: str
    name: str
    value: Any
    spec: str
    about: dict[str, str] = field(default_factory=dict)
    state: str = STARTING
    reason: str = ""
    since: float = 0.0
    number: int = 0
    token: str = ""
    removed: bool = False
    stop_at: float | None = None  # when it must have ended, by trio's clock
    begin_at: float = 0.0  # not earlier, by trio's clock
    pause_s: float = 0.0  # before the next try
    before: dict[str, int] = field(default_factory=dict)  # the counts before its last start
    counts: dict[str, int] = field(default_factory=dict)  # the counts since its last start
    waiting: int = 0
    committed_at: float = 0.0
    caught_up_at: float = 0.0
    step_s: float = 0.0
    problem: str = ""  # the reason that was logged last

    def total(self, name: str) -> int:
        """Return the total of the count called `name`."""
        return self.before.get(name, 0) + self.counts.get(name, 0)


class LakeJobs:
    """All tables of one broker. `arguments`: how the process is started."""

    def __init__(self, host: Host, arguments: Sequence[str] | None = None) -> None:
        self._host = host
        self._arguments = command() if arguments is None else list(arguments)
        self._jobs: dict[Key, _Job] = {}
        self._by_number: dict[int, _Job] = {}
        self._last_number = 0
        self._changed = trio.Event()
        self._is_stale = True  # whether the parameters may have changed since the last `_look`
        self._told = ""  # why the process ended the last time, as it was logged
        self._former: dict[Key, _Job] = {}  # previous jobs of tables that restart
        self._process: LakeProcess | None = None
        self.processes = 0  # how many were started
        self.memory_bytes = 0
        host.subscribe(self._note_change)

    def _note_change(self) -> None:
        self._is_stale = True
        self._changed.set()

    # --- life ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the tables as the parameters require, until cancelled."""
        pause_s = PAUSE_S
        while True:
            self._changed = trio.Event()
            self._look()
            if self._host.is_stopping() or not self._is_needed():
                await self._changed.wait()
                continue
            began_s = trio.current_time()
            reason = await self._in_process()
            if not reason:
                continue
            if trio.current_time() - began_s >= SETTLED_S:
                pause_s, self._told = PAUSE_S, ""
            if reason != self._told:  # the same reason again and again would fill the log
                self._told = reason
                self._host.log("error", "the process of tables has ended", reason=reason)
            for job in self._jobs.values():
                if job.state not in IDLE:
                    self._set(job, STARTING, f"the process of tables {reason}")
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _is_needed(self) -> bool:
        return any(job.number or job.state not in IDLE for job in self._jobs.values())

    async def _in_process(self) -> str:
        """Run the tables in a process; return why it ended, ``""`` when no table needs it."""
        url = await self._host.url()
        try:
            process = await start(self._arguments, self._host.descriptors_below)
        except ProcessFailed as error:
            return str(error)
        self.processes += 1
        self._process = process
        ends: list[str | None] = []  # the first says why it ends; ``""``: it is not needed; None: it ended by itself

        async def until_it_ends(nursery: trio.Nursery, work: Callable[[], Awaitable[None]], end: str | None) -> None:
            try:
                await work()
                ends.append(end)
            except ProcessFailed as error:
                ends.append(str(error))
            nursery.cancel_scope.cancel()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(process.listen_to_errors)
                nursery.start_soon(until_it_ends, nursery, partial(process.listen, self._hear), None)
                nursery.start_soon(until_it_ends, nursery, partial(self._direct, process, url), "")
        finally:
            how = await process.end()
            self._process, self.memory_bytes = None, 0
            for job in list(self._by_number.values()):
                self._is_out(job)
            self._is_stale = True  # tables that were told to end have ended with it, without a report
        reason = how if ends[0] is None else ends[0]
        words = process.last_words() if reason else ""
        return f"{reason}: {words}" if words else reason

    # --- which there should be ------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Find out which tables there should be, and mark all others for removal."""
        if not self._is_stale:
            return
        self._is_stale = False
        is_held = self._host.held_reason != ""
        wanted: dict[Key, tuple[object, bool, str]] = {}
        for at, each in enumerate(self._host.parameters()):
            crowded = at >= JOBS_MAX
            wanted[(each.vhost, each.name)] = (each.value, crowded, repr((each.value, crowded, is_held)))
        for key, job in list(self._jobs.items()):
            if key in wanted and wanted[key][2] == job.spec and not job.removed:
                continue
            if job.number:
                job.removed = True
            else:
                del self._jobs[key]
                self._former[key] = job
        for key, (value, crowded, spec) in wanted.items():
            if key not in self._jobs:
                self._jobs[key] = self._made(key, value, spec, crowded=crowded)
        self._former.clear()

    def _made(self, key: Key, value: object, spec: str, *, crowded: bool) -> _Job:
        made = _Job(*key, value, spec, since=self._host.now(), pause_s=AGAIN_S)
        former = self._former.get(key)
        if former is not None:
            made.before = {name: former.total(name) for name in COUNTS}
            made.committed_at = former.committed_at
        try:
            made.about = self._host.described(value)
        except ValueError as error:
            self._set(made, TERMINATED, str(error))
            return made
        if crowded:
            self._set(made, TERMINATED, f"a broker has {JOBS_MAX} tables at most")
        elif reason := self._host.held_reason:
            self._set(made, HELD, reason)
        return made

    async def _direct(self, process: LakeProcess, url: str) -> None:
        """Direct the process until it has nothing left to do."""
        await process.tell({"places": self._host.places})
        while True:
            self._changed = trio.Event()
            self._look()
            if self._host.is_stopping() or not self._is_needed():
                return
            if await self._host.url() != url:
                raise ProcessFailed("must reach this broker at another address")
            for key, job in list(self._jobs.items()):
                if self._jobs.get(key) is job:  # it may have been replaced during the calls before
                    await self._direct_one(process, url, job)
            with trio.move_on_after(LOOK_S):
                await self._changed.wait()

    async def _direct_one(self, process: LakeProcess, url: str, job: _Job) -> None:
        now_s = trio.current_time()
        if job.removed:
            if not job.number:
                return  # it ended after the last look; the next one drops it
            if job.stop_at is None:
                job.stop_at = now_s + STOP_S
                await process.tell({"stop": job.number})
            elif now_s > job.stop_at:
                raise ProcessFailed(f"has not ended a table within {STOP_S:g} s")
        elif not job.number and job.state not in IDLE and now_s >= job.begin_at:
            self._last_number += 1
            job.number = self._last_number
            job.token = self._host.admit(job.vhost)
            self._by_number[job.number] = job
            order = {"start": job.number, "vhost": job.vhost, "url": url, "token": job.token, "value": job.value}
            await process.tell(order)

    # --- reports of the process ----------------------------------------------------------------------------------

    def _hear(self, news: Mapping[str, Any]) -> None:
        if "alive" in news:
            self.memory_bytes = int(number_of(news, "memory_bytes"))
            return
        number = news.get("id")
        job = self._by_number.get(number) if isinstance(number, int) else None
        if job is None:
            return
        for name in COUNTS:
            job.counts[name] = max(job.counts.get(name, 0), int(number_of(news, name)))
        job.waiting = int(number_of(news, "waiting"))
        job.committed_at = max(job.committed_at, number_of(news, "committed_at_s"))
        job.caught_up_at = max(job.caught_up_at, number_of(news, "caught_up_at_s"))
        job.step_s = number_of(news, "step_s")
        state, reason = news.get("state"), text_of(news, "reason")
        if state == ENDED:
            self._has_ended(job, reason, again=news.get("again") is True)
        elif state == RUNNING:
            job.pause_s = AGAIN_S
            self._set(job, RUNNING, "")
        elif state == FAILING:
            self._set(job, FAILING, reason)

    def _has_ended(self, job: _Job, reason: str, *, again: bool) -> None:
        self._is_out(job)
        if job.removed:
            self._note_change()  # drop it, and make it again if a new one is wanted
        elif again or not reason:
            job.begin_at = trio.current_time() + job.pause_s
            job.pause_s = min(2 * job.pause_s, PAUSE_MAX_S)
            self._set(job, FAILING, reason or "has ended without a reason")
        else:
            self._set(job, TERMINATED, reason)

    def _is_out(self, job: _Job) -> None:
        """Note that the table has left the process."""
        self._host.dismiss(job.token)
        self._by_number.pop(job.number, None)
        job.before = {name: job.total(name) for name in COUNTS}
        job.counts = {}
        job.number, job.token, job.stop_at = 0, "", None

    def _set(self, job: _Job, state: str, reason: str) -> None:
        if (state, reason) == (job.state, job.reason):
            return
        if state != job.state:
            job.since = self._host.now()
        job.state, job.reason = state, reason
        about = {"vhost": job.vhost, "name": job.name}
        if state == RUNNING:
            job.problem = ""
            self._host.log("info", "a table follows", **about, **job.about)
        elif state in (FAILING, *IDLE) and reason != job.problem:
            job.problem = reason
            self._host.log("warning", f"a table is {state}", **about, reason=reason)

    # --- for the management API ---------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The process id; 0 when it does not run."""
        return 0 if self._process is None else self._process.pid

    def restart(self, vhost: str, name: str) -> bool:
        """Restart a table; return False when the name is unknown."""
        job = self._jobs.get((vhost, name))
        if job is None:
            return False
        job.removed = True
        self._note_change()
        return True

    def status(self, vhost: str | None = None) -> list[dict[str, Any]]:
        """Return the objects of GET /api/lake, or /api/lake/{vhost}. Times are in ms since the epoch."""
        there = {(each.vhost, each.name) for each in self._host.parameters()}
        return [
            self._status(job) for key, job in sorted(self._jobs.items()) if vhost in (None, key[0]) and key in there
        ]

    def _status(self, job: _Job) -> dict[str, Any]:
        found: dict[str, Any] = {
            "node": self._host.node_name,
            "vhost": job.vhost,
            "name": job.name,
            "state": job.state,
            "os_pid": self.pid or None,
            "since": int(job.since * 1000),
            **job.about,
            **{name: job.total(name) for name in COUNTS},
            "waiting": job.waiting,
            "lag_s": self._lag_s(job),
            "committed_at": int(job.committed_at * 1000) or None,
            "step_s": round(job.step_s, 3),
        }
        if job.reason:
            found["reason"] = job.reason
        return found

    def _lag_s(self, job: _Job) -> float | None:
        """Return for how long the table has lacked something; None: that is not known."""
        if job.caught_up_at == 0:
            return None
        return round(max(0.0, self._host.now() - job.caught_up_at), 3) if job.waiting else 0.0
