"""Tables that the broker keeps, with a process that does what a test lays down: lake_jobs (1) to (6), lake_process."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio
import trio.testing

from warren.links import lake_jobs, lake_process
from warren.links.host import Parameter
from warren.links.lake_jobs import JOBS_MAX, LakeJobs
from warren.links.lake_process import LINE_MAX

# The parameter of a table says what its process does.
PROCESS = r"""
import json, os, sys, time

def say(**news):
    sys.stdout.write(json.dumps(news) + "\n")
    sys.stdout.flush()

say(alive=True, memory_bytes=1234)
tables = {}
for line in sys.stdin:
    order = json.loads(line)
    if "places" in order:
        assert order["places"] == "/srv/lake"
    elif "start" in order:
        id, do = order["start"], order["value"]["do"]
        tables[id] = do
        assert order["url"] == "http://broker" and order["token"] == f"token of {order['vhost']}"
        if do == "die":
            print("what it died of: amqp://me:hidden@host/", file=sys.stderr)
            sys.exit(3)
        if do == "mute":
            time.sleep(1000)
        if do == "long":
            sys.stdout.write("x" * 10_000_000)
        if do == "nonsense":
            sys.stdout.write("[" * 10_000 + "\n" + "nonsense\n")
        if do == "list":
            sys.stdout.write("[1]\n")
        if do == "flood":
            while True:
                os.write(2, b"an error\n" * 1000)
        if do == "again":
            say(id=id, state="ended", reason="not there", again=True)
        elif do == "end":
            say(id=id, state="ended", reason="it does not fit", again=False)
        elif do == "absurd":
            say(id=id, state="running", rows=1e400, bytes=-1, waiting=[], commits=True, reason={}, step_s="x")
            say(id=[], state="running")
            say(id=99, state="running")
            say(id=id, state=[], reason="x" * 5000)
        else:
            say(id=id, state="running", rows=5, waiting=2, caught_up_at_s=time.time() - 30, committed_at_s=7)
        sys.stdout.flush()
    elif "stop" in order and tables[order["stop"]] != "stay":
        say(id=order["stop"], state="ended", reason="", again=False)
"""


class FakeHost:
    """A broker with parameters; a value with ``wrong`` is not valid."""

    places = "/srv/lake"
    descriptors_below = 1 << 20
    node_name = "rabbit@test"
    held_reason = ""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], dict[str, Any]] = {}
        self.listeners: list[Callable[[], None]] = []
        self.tokens = 0
        self.stopping = False
        self.logged: list[tuple[str, str, dict[str, object]]] = []

    def set(self, name: str, vhost: str = "/", **value: Any) -> None:
        self.values[(vhost, name)] = value
        self.tell()

    def remove(self, name: str) -> None:
        del self.values[("/", name)]
        self.tell()

    def tell(self) -> None:
        for listener in self.listeners:
            listener()

    def now(self) -> float:
        return time.time()

    def is_stopping(self) -> bool:
        return self.stopping

    def parameters(self) -> Sequence[Parameter]:
        return [Parameter("lake", *key, value) for key, value in sorted(self.values.items())]

    def described(self, value: object) -> dict[str, str]:
        assert isinstance(value, dict)
        if "wrong" in value:
            raise ValueError("not allowed any more")
        return {"source": "orders", "table": "shop.orders"}

    def subscribe(self, listener: Callable[[], None]) -> None:
        self.listeners.append(listener)

    async def url(self) -> str:
        await trio.lowlevel.checkpoint()
        return "http://broker"

    def admit(self, vhost: str) -> str:
        self.tokens += 1
        return f"token of {vhost}"

    def dismiss(self, token: str) -> None:
        self.tokens -= bool(token)

    def log(self, level: str, event: str, **details: object) -> None:
        self.logged.append((level, event, details))


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_S", "PAUSE_S", "AGAIN_S", "PAUSE_MAX_S"):
        monkeypatch.setattr(lake_jobs, name, 0.01)


def run(
    test: Callable[[FakeHost, LakeJobs], Awaitable[None]], arguments: Sequence[str] = (sys.executable, "-c", PROCESS)
) -> FakeHost:
    host = FakeHost()

    async def main() -> None:
        jobs = LakeJobs(host, arguments)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(jobs.run)
                await test(host, jobs)
                nursery.cancel_scope.cancel()
        assert host.tokens == 0, "no token outlives its table"

    trio.run(main)
    return host


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.sleep(0.01)


def state(jobs: LakeJobs, name: str = "t") -> str:
    return next((str(row["state"]) for row in jobs.status() if row["name"] == name), "")


def reason(jobs: LakeJobs, name: str = "t") -> str:
    return next((str(row.get("reason", "")) for row in jobs.status() if row["name"] == name), "")


def test_a_table_follows_and_tells_how_far_it_is() -> None:
    async def test(host: FakeHost, jobs: LakeJobs) -> None:
        host.set("t", do="run")
        await until(lambda: state(jobs) == "running")
        (row,) = jobs.status("/")
        assert (row["rows"], row["waiting"], row["committed_at"], row["table"]) == (5, 2, 7000, "shop.orders")
        assert 30 <= row["lag_s"] < 100
        assert jobs.memory_bytes == 1234
        assert jobs.status("other") == []

    host = run(test)
    assert [event for _, event, _ in host.logged] == ["a table follows"]


def test_there_is_a_process_only_while_there_are_tables() -> None:
    """(1)."""

    async def test(host: FakeHost, jobs: LakeJobs) -> None:
        await trio.testing.wait_all_tasks_blocked()
        assert jobs.processes == 0
        host.set("t", do="run")
        await until(lambda: state(jobs) == "running")
        host.remove("t")
        await until(lambda: jobs.memory_bytes == 0)
        assert jobs.status() == []
        await trio.testing.wait_all_tasks_blocked()
        assert jobs.processes == 1

    assert [level for level, _, _ in run(test).logged] == ["info"]


def test_held_tables_need_no_process_and_follow_when_they_are_released() -> None:
    async def test(host: FakeHost, jobs: LakeJobs) -> None:
        host.held_reason = "restored from backup 2"
        host.set("t", do="run")
        await until(lambda: state(jobs) == "held")
        assert jobs.restart("/", "t")
        await trio.testing.wait_all_tasks_blocked()
        assert (state(jobs), reason(jobs), jobs.processes) == ("held", "restored from backup 2", 0)
        host.held_reason = ""
        host.tell()
        await until(lambda: state(jobs) == "running")
        host.held_reason = "held again"
        host.tell()
        await until(lambda: state(jobs) == "held")
        await until(lambda: jobs.memory_bytes == 0)

    events = [event for _, event, _ in run(test).logged]
    assert events == ["a table is held", "a table is held", "a table follows", "a table is held"]


def test_a_process_that_dies_is_started_again_and_counts_go_on() -> None:
    """(1), (6)."""

    async def test(host: FakeHost, jobs: LakeJobs) -> None:
        host.set("t", do="run")
        await until(lambda: state(jobs) == "running")
        os.kill(jobs.pid, signal.SIGKILL)
        await until(lambda: jobs.processes == 2 and state(jobs) == "running")
        assert jobs.status()[0]["rows"] == 10, "5 of either"

    host = run(test)
    assert ("error", "the process of tables has ended", {"reason": "was ended by signal 9"}) in host.logged


def test_what_it_died_of_is_said_once_and_without_credentials() -> None:
    """(5)."""

    async def test(host: FakeHost, jobs: LakeJobs) -> None:
        host.set("t", do="die")
        await until(lambda: jobs.processes >= 3)
        await until(lambda: bool(reason(jobs)))
        assert reason(jobs) == "the process of tables ended with code 3: what it died of: amqp://host/"

    assert len(run(test).logged) == 1


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("long", "writes lines that are too long"),
        ("nonsense", "writes malformed lines"),
        ("list", "writes malformed lines"),
        ("mute", "has been silent for 0.5 s"),
    ],
)
def test_a_process_that_does_wrong_is_ended(does: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """lake_process (1), (2)."""
    monkeypatch.setattr(lake_process, "GRACE_S", 0.1)
    if does == "mute":
        monkeypatch.setattr(lake_process, "SILENCE_MAX_S", 0.5)

    async def test(host: FakeHost, jobs: LakeJobs) -> None:
        host.set("t", do=does)
        await until(lambda: jobs.processes >= 2)
        await until(lambda: said in reason(jobs))

    run(test)


def test_errors_without_end_are_read_at_a_pace_and_cost_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """lake_process (2)."""
    monkeypatch.setattr(lake_process, "GRACE_S", 0.1)
    read: list[int] = []

    async def test(host: FakeHost, jobs: LakeJobs) -> None:
        host.set("t", do="flood")
        host.set("u", do="run")
        await until(lambda: jobs.memory_bytes > 0)
        process = jobs._process
        assert process is not None
        before = trio.current_time()
        for _ in range(20):
            await trio.sleep(0.01)
            read.append(len(process._stderr))
        assert trio.current_time() - before < 30, "the broker goes on"
        assert process.last_words()

    run(test)
    assert max(read) <= lake_process.TAIL_MAX


def test_absurd_news_are_taken_for_nothing() -> None:
    async def test(host: FakeHost, jobs: LakeJobs) -> None:
        host.set("t", do="absurd")
        await until(lambda: state(jobs) == "running")
        (row,) = jobs.status()
        assert (row["rows"], row["bytes"], row["waiting"], row["commits"], row["step_s"]) == (0, 0, 0, 0, 0)
        assert len(reason(jobs)) < LINE_MAX

    run(test)


def test_a_program_that_is_not_there_is_told_and_tried_again() -> None:
    async def test(host: FakeHost, jobs: LakeJobs) -> None:
        host.set("t", do="run")
        await until(lambda: "cannot be started" in reason(jobs))
        assert state(jobs) == "starting"

    run(test, ("/nowhere/python",))


def test_no_descriptors_are_taken_that_others_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeHost, "descriptors_below", 3)

    async def test(host: FakeHost, jobs: LakeJobs) -> None:
        host.set("t", do="run")
        await until(lambda: reason(jobs).endswith("too many descriptors are in use"))

    run(test)


def test_a_table_that_may_be_there_later_is_tried_again_and_one_that_does_not_fit_is_not() -> None:
    async def test(host: FakeHost, jobs: LakeJobs) -> None:
        host.set("again", do="again")
        host.set("end", do="end")
        await until(lambda: state(jobs, "end") == "terminated" and state(jobs, "again") == "failing")
        assert (reason(jobs, "end"), reason(jobs, "again")) == ("it does not fit", "not there")
        number = jobs._last_number
        await until(lambda: jobs._last_number >= number + 3)
        assert state(jobs, "end") == "terminated"
        assert jobs.restart("/", "end")
        await until(lambda: state(jobs, "end") == "terminated")
        assert not jobs.restart("/", "nobody")

    warnings = [details["name"] for level, _, details in run(test).logged if level == "warning"]
    assert warnings.count("again") == 1, "the same reason is said once"


def test_a_changed_table_begins_when_the_former_has_ended() -> None:
    """(3), (6)."""

    async def test(host: FakeHost, jobs: LakeJobs) -> None:
        host.set("t", do="run")
        await until(lambda: state(jobs) == "running")
        host.set("t", do="run", more=1)
        # It says that it runs again before it says how far it is; rows of both are counted.
        await until(lambda: jobs._last_number == 2 and jobs.status()[0]["rows"] == 10)
        assert state(jobs) == "running"
        assert jobs.processes == 1

    run(test)


def test_a_removed_table_that_ends_while_tables_are_gone_through_does_not_begin_again() -> None:
    """(3). The end is heard between the look at parameters and the turn of the table."""

    async def test(host: FakeHost, jobs: LakeJobs) -> None:
        host.set("t", do="run")
        await until(lambda: state(jobs) == "running")
        hear, ended = jobs._hear, trio.Event()

        async def url() -> str:
            if any(job.removed for job in jobs._jobs.values()):
                hear({"id": 1, "state": "ended", "reason": ""})
                ended.set()
            return "http://broker"

        host.url = url  # type: ignore[method-assign]
        host.set("t", do="run", more=1)
        await ended.wait()
        await until(lambda: jobs._last_number >= 2 and state(jobs) == "running")
        assert jobs._last_number == 2, "one start of either"
        assert jobs._by_number[2].value == {"do": "run", "more": 1}

    run(test)


def test_a_table_that_does_not_end_takes_the_process_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """(3)."""
    monkeypatch.setattr(lake_jobs, "STOP_S", 0.1)

    async def test(host: FakeHost, jobs: LakeJobs) -> None:
        host.set("t", do="stay")
        host.set("u", do="run")
        await until(lambda: state(jobs) == state(jobs, "u") == "running")
        host.remove("t")
        await until(lambda: jobs.processes == 2 and state(jobs, "u") == "running")
        assert state(jobs) == ""

    run(test)


def test_what_is_not_allowed_any_more_is_told_and_starts_nothing() -> None:
    async def test(host: FakeHost, jobs: LakeJobs) -> None:
        host.set("t", wrong=True)
        await until(lambda: state(jobs) == "terminated")
        assert reason(jobs) == "not allowed any more"
        assert jobs.processes == 0
        host.set("t", do="run")
        await until(lambda: state(jobs) == "running")

    run(test)


def test_more_tables_than_there_may_be_wait_until_others_are_gone() -> None:
    """(4)."""

    async def test(host: FakeHost, jobs: LakeJobs) -> None:
        for at in range(JOBS_MAX + 1):
            host.values[("/", f"{at:03}")] = {"do": "run"}
        host.tell()
        last = f"{JOBS_MAX:03}"
        await until(lambda: state(jobs, last) == "terminated")
        assert reason(jobs, last) == f"a broker has {JOBS_MAX} tables at most"
        host.remove("000")
        await until(lambda: state(jobs, last) == "running")

    run(test)


def test_a_broker_that_stops_has_the_process_end() -> None:
    async def test(host: FakeHost, jobs: LakeJobs) -> None:
        host.set("t", do="run")
        await until(lambda: state(jobs) == "running")
        host.stopping = True
        await until(lambda: jobs.memory_bytes == 0)

    assert [level for level, _, _ in run(test).logged] == ["info"]


def test_a_process_that_ignores_the_end_of_its_input_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """lake_process (3)."""
    monkeypatch.setattr(lake_process, "GRACE_S", 0.1)
    pids: list[int] = []

    async def test(host: FakeHost, jobs: LakeJobs) -> None:
        host.set("t", do="mute")
        await until(lambda: jobs.memory_bytes > 0)
        pids.append(jobs.pid)

    run(test)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("postgresql+psycopg://me:hidden@db/c?password=hidden is away", "postgresql+psycopg://db/c is away"),
        ("401: 'https://me:hid/d@en@registry.example/x'", "401: 'https://registry.example/x'"),
        ("https://host/x?X-Amz-Signature=hidden&y=hidden: 403", "https://host/x 403"),
        ("abfss://lake@account.dfs.core.windows.net/orders", "abfss://lake@account.dfs.core.windows.net/orders"),
        ("two\nlines \x1b[2J", "two lines  [2J"),
    ],
)
def test_reasons_hold_no_credentials(said: str, shown: str) -> None:
    """(5)."""
    assert lake_process.redact(said) == shown


def test_the_process_of_tables_takes_memory_from_the_system_unless_something_else_is_said() -> None:
    assert lake_process.environment({})["ARROW_DEFAULT_MEMORY_POOL"] == "system"
    given = {"ARROW_DEFAULT_MEMORY_POOL": "mimalloc", "HOME": "/root"}
    assert given.items() <= lake_process.environment(given).items()
