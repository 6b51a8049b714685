"""Count what a message costs the broker by its flow: so many queues, connections, and messages for each turn.

    clients: socket pairs  <->  Reactor.turn: reads, engine, sends  <->  commits, each done before the next turn

All of it runs in one process and in one order, so a count is repeated exactly. Valgrind's callgrind counts the
instructions of `Reactor.turn` and of the frame that the committer makes; clients, the disk and the kernel are left out.
The counts of reads, sends, batches and changes of the queue are the broker's own. A model is fitted to both.

    python -m benchmarks.flows [--only NAME ...] [--functions N] [--cache] [--write]

It needs valgrind, its headers and a C compiler. Copies are counted as loops over vectors: callgrind counts one
instruction for each byte of `rep movsb`, which no processor takes for it.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "benchmarks" / "FLOWS.md"
COUNTED: Final = ("CPyPy_*Reactor___turn", "CPyPy_*frame_header")
WARM_UP_TURNS: Final = 6
MESSAGES_MIN: Final = 4000  # of a case, when it is counted

SWITCH: Final = """
#include <valgrind/callgrind.h>
void begin_count(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void end_count(const char *name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""


@dataclass(frozen=True)
class Flow:
    """One case: `burst` messages of each publisher in a turn, to its queues one after the other.

    `durable`: persistent messages of 1 KiB in durable queues, with confirms; else 16 B, transient. A consumer
    acknowledges what a turn has brought it with one basic.ack.
    """

    queues: int
    publishers: int
    consumers: int
    burst: int
    durable: bool

    @property
    def name(self) -> str:
        kind = "durable" if self.durable else "plain"
        return f"{kind}-{self.queues}-{self.publishers}-{self.consumers}-{self.burst}"


SHAPES: Final = (
    (1, 1, 1, 100),
    (1, 1, 1, 10),
    (10, 1, 1, 100),
    (100, 1, 1, 100),
    (10, 10, 10, 100),
    (100, 2, 100, 1000),
    (100, 100, 100, 20),
    (100, 100, 100, 2),
    (1000, 2, 1000, 1000),
    (1000, 1000, 1000, 2),
    (10000, 100, 100, 100),
    (10000, 1000, 1000, 10),
)
FLOWS: Final = tuple(Flow(*shape, durable=durable) for durable in (False, True) for shape in SHAPES)

# --- in the process that valgrind watches -----------------------------------------------------------------------------


class Place:
    """A broker whose turns are run one by one, its clients, and a disk that has done a commit before the next turn."""

    def __init__(self, flow: Flow) -> None:
        from engine_harness import Harness, publish_frames, queue_declare

        from warren.amqp import methods as m
        from warren.amqp.codec import method_frame
        from warren.server.network.admission import Admission
        from warren.server.network.reactor import Reactor

        self.flow = flow
        self.turns = 0
        self._ack: Callable[[int], bytes] = lambda tag: method_frame(1, m.BasicAck(tag, True))
        harness = Harness()
        self.broker = harness.broker
        self.broker.log.segment_bytes = 64 << 20
        self._harness = harness
        self._jobs: list[Any] = []
        self.crashes: list[BaseException] = []
        self.reactor = Reactor(
            self.broker,
            Admission(10000, 10000, 10000),
            certificate_user=lambda _: None,
            on_crash=self.crashes.append,
            on_settled=self._settled,
            is_alone=lambda: False,
            dispatch=self._dispatch,
            on_wake=self._committed,
            tls_handshake_timeout_s=5.0,
            clock=repeat(0.0).__next__,  # turns end when their work is done: below valgrind their time is soon over
        )
        names = [f"q{number:04}" for number in range(flow.queues)]
        declaring = harness.channel()
        # In one go: the disk of the harness copies its segment in each commit.
        declaring.feed(b"".join([method_frame(1, queue_declare(name, durable=flow.durable)) for name in names]))
        assert len(declaring.take()) == flow.queues
        self.publishers = [self._connect() for _ in range(flow.publishers)]
        self.consumers = [self._connect() for _ in range(flow.consumers)]
        for at, name in enumerate(names):
            consume = m.BasicConsume(0, name, name, False, False, False, False, b"\0\0\0\0")
            self._ask(self.consumers[at % flow.consumers], method_frame(1, consume))
        properties = {"delivery_mode": 2} if flow.durable else {}
        body = bytes(1024 if flow.durable else 16)
        frames = [publish_frames("", name, body, properties=properties) for name in names]
        self._own: list[list[bytes]] = []
        for at, publisher in enumerate(self.publishers):
            if flow.durable:
                self._ask(publisher, method_frame(1, m.ConfirmSelect(False)))
            self._own.append([frames[each] for each in range(at % flow.queues, flow.queues, flow.publishers)])
        self._sent = [0] * flow.publishers
        self._acked = [0] * flow.consumers
        # A delivery is longer than the publish by consumer tag and delivery tag, without the two reserved bytes.
        self._delivery_bytes = len(frames[0]) + len(names[0]) + 1 + 8 - 2

    def _connect(self) -> socket.socket:
        from reactor_harness import LOGIN

        mine, theirs = socket.socketpair()
        for sock in (mine, theirs):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        self.reactor.acceptor.adopt(theirs, "127.0.0.1")
        mine.setblocking(False)
        self._ask(mine, LOGIN)
        return mine

    def _ask(self, sock: socket.socket, data: bytes) -> None:
        """Send, and throw the answer away."""
        sock.sendall(data)
        self.turn()
        while not self._take(sock):
            self.turn()

    def _take(self, sock: socket.socket) -> int:
        size = 0
        while True:
            try:
                size += len(sock.recv(1 << 20))
            except BlockingIOError:
                return size

    def _settled(self) -> None:
        requests = self.broker.logins[:]
        self.broker.logins.clear()
        self.broker.notices.clear()
        for request in requests:
            request.accept(request.user)

    def _dispatch(self) -> None:
        log = self.broker.log
        self._jobs += log.commit_jobs
        log.commit_jobs = []
        log.checkpoint_jobs = []

    def _commit(self) -> None:
        """Do the part of the committer that is not the disk's."""
        from warren.msgstore.log.records import frame_header

        log = self.broker.log
        for job in self._jobs:
            frame_header(
                log.checksum, job.chunks, job.payload_bytes, job.lsn, 0, 0, 1, 0, job.record_count, log.store_tag
            )
            job.committed_lsn = job.end_lsn()
            self.reactor.poller.wake()

    def _committed(self) -> None:
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            self.broker.stored(job)

    def turn(self) -> None:
        """Run turns until the sockets have been read, and commit."""
        while events := self.reactor._selector.poll(0):
            self.turns += 1
            self.reactor.turn(events)
            self._commit()
        assert self.crashes == []

    def round(self) -> int:
        """Have each publisher send its burst, each consumer answer; return the number of deliveries."""
        burst = self.flow.burst
        for at, publisher in enumerate(self.publishers):
            own = self._own[at]
            first = self._sent[at]
            self._sent[at] = first + burst
            publisher.sendall(b"".join([own[number % len(own)] for number in range(first, first + burst)]))
        self.turn()
        for publisher in self.publishers:
            self._take(publisher)
        count = 0
        for at, consumer in enumerate(self.consumers):
            delivered, rest = divmod(self._take(consumer), self._delivery_bytes)
            assert rest == 0
            if delivered:
                count += delivered
                self._acked[at] += delivered
                consumer.sendall(self._ack(self._acked[at]))
        return count

    def counts(self) -> dict[str, int]:
        """Return the broker's counters, and those of this place."""
        connections = list(self.broker.connections.values())
        return {
            "turns": self.turns,
            "reads": sum(int(each.received_reads) for each in connections),
            "sends": sum(int(each.outbox.sent_writes) for each in connections),
            "batches": int(self.broker.log.done_batch),
        }

    def close(self) -> None:
        """Hang up all clients: the next case needs the descriptors."""
        for sock in self.publishers + self.consumers:
            sock.close()
        self.turn()


def count(directory: str, names: list[str]) -> None:
    """Run the cases, each between two requests to valgrind; write the counters beside its dumps."""
    sys.path.insert(0, str(ROOT / "tests"))
    import warren.queues.queue as compiled

    assert compiled.__file__.endswith(".so"), f"the engine is not compiled: {compiled.__file__}"
    switch = ctypes.CDLL(f"{directory}/switch.so")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.disable()
    told: dict[str, dict[str, int]] = {}
    for flow in FLOWS:
        if names and flow.name not in names:
            continue
        place = Place(flow)
        for _ in range(WARM_UP_TURNS):
            place.round()
        before = place.counts()
        rounds = max(4, -(-MESSAGES_MIN // (flow.burst * flow.publishers)))
        messages = 0
        switch.begin_count()
        for _ in range(rounds):
            messages += place.round()
        switch.end_count(flow.name.encode())
        told[flow.name] = {key: value - before[key] for key, value in place.counts().items()} | {"messages": messages}
        assert messages == rounds * flow.burst * flow.publishers, told[flow.name]
        place.close()
        Path(directory, "counts.json").write_text(json.dumps(told))


# --- callgrind's files ------------------------------------------------------------------------------------------------


@dataclass
class Dump:
    """One case as callgrind counted it. `own` and `inclusive`: by function, an event after the other."""

    events: list[str]
    own: dict[str, list[int]]
    inclusive: dict[str, list[int]]

    def total(self, event: str = "Ir") -> int:
        return sum(costs[self.events.index(event)] for costs in self.own.values())


def read_dump(path: Path) -> tuple[str, Dump]:
    """Return the name that the dump was asked for with, and its counts."""
    events: list[str] = []
    names: dict[str, str] = {}
    asked = ""
    own: dict[str, list[int]] = {}
    inclusive: dict[str, list[int]] = {}
    function = called = ""
    for line in path.read_text().splitlines():
        if line.startswith("desc: Trigger: Client Request: "):
            asked = line.removeprefix("desc: Trigger: Client Request: ").strip()
        elif line.startswith("events: "):
            events = line.split()[1:]
        elif line.startswith(("fn=", "cfn=")):
            kind, _, value = line.partition("=")
            number, _, name = value.partition(" ")
            if name:
                names[number] = name
            if kind == "fn":
                function = names[number]
            else:
                called = names[number]
        elif line and (line[0].isdigit() or line[0] in "+-*"):
            costs = [int(cost) for cost in line.split()[1:]] + [0] * len(events)
            where = inclusive.setdefault(function, [0] * len(events))
            if called:
                # The cost of a call: in the caller's inclusive one.
                called = ""
            else:
                mine = own.setdefault(function, [0] * len(events))
                for at in range(len(events)):
                    mine[at] += costs[at]
            for at in range(len(events)):
                where[at] += costs[at]
        elif line.startswith("calls="):
            continue
    return asked, Dump(events, own, inclusive)


def run(names: list[str], *, cache: bool, keep: Path | None) -> tuple[dict[str, Dump], dict[str, dict[str, int]]]:
    """Count the cases; return their dumps and the broker's counters."""
    for program in ("valgrind", "cc"):
        if shutil.which(program) is None:
            raise SystemExit(f"{program} is not installed: on Debian, install valgrind and gcc")
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary) if keep is None else keep
        directory.mkdir(exist_ok=True)
        source = directory / "switch.c"
        source.write_text(SWITCH)
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", directory / "switch.so", source], check=True)
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={directory}/out"]
        command += [f"--toggle-collect={pattern}" for pattern in COUNTED]
        if cache:
            command += ["--cache-sim=yes", "--branch-sim=yes"]
        command += [
            f"--log-file={directory}/log",
            sys.executable,
            __file__,
            "--count",
            str(directory),
            "--only",
            *names,
        ]
        environment = os.environ | {
            "PYTHONHASHSEED": "0",
            "GLIBC_TUNABLES": ":".join(f"glibc.cpu.x86_rep_{name}_threshold=0x40000000" for name in ("movsb", "stosb")),
        }
        subprocess.run(command, check=True, env=environment)
        dumps = dict(read_dump(path) for path in sorted(directory.glob("out.*")))
        dumps.pop("", None)
        return dumps, json.loads((directory / "counts.json").read_text())


# --- the model --------------------------------------------------------------------------------------------------------

TERMS: Final = {
    "message": "a message",
    "change": "a message for another queue than the one before it on the channel",
    "queues": "a queue in a turn in which it has messages",
    "reads": "a read",
    "sends": "a send",
    "turns": "a turn, with its part of a batch",
}


def terms(flow: Flow, counts: dict[str, int]) -> list[float]:
    """Return how often each of `TERMS` comes for a message."""
    messages = counts["messages"]
    in_a_turn = flow.burst * flow.publishers
    return [
        1.0,
        1.0 if flow.queues > flow.publishers else 0.0,
        min(flow.queues, in_a_turn) / in_a_turn,
        *(counts[name] / messages for name in ("reads", "sends", "turns")),
    ]


def fitted(rows: list[list[float]], costs: list[float]) -> list[float]:
    """Return the coefficients that fit best, relative to each cost; none is negative."""
    kept = list(range(len(rows[0])))
    while True:
        scaled = [[row[at] / cost for at in kept] for row, cost in zip(rows, costs, strict=True)]
        size = len(kept)
        normal = [[sum(row[i] * row[j] for row in scaled) for j in range(size)] for i in range(size)]
        right = [sum(row[i] for row in scaled) for i in range(size)]
        for i in range(size):
            normal[i][i] *= 1 + 1e-9  # two terms may always come together
        found = _solved(normal, right)
        least = min(range(size), key=lambda at: found[at])
        if found[least] >= 0:
            result = [0.0] * len(rows[0])
            for at, value in zip(kept, found, strict=True):
                result[at] = value
            return result
        del kept[least]


def _solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    size = len(right)
    work = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for at in range(size):
        pivot = max(range(at, size), key=lambda row: abs(work[row][at]))
        work[at], work[pivot] = work[pivot], work[at]
        for row in range(size):
            if row != at:
                factor = work[row][at] / work[at][at]
                work[row] = [value - factor * above for value, above in zip(work[row], work[at], strict=True)]
    return [work[at][size] / work[at][at] for at in range(size)]


# --- tables -----------------------------------------------------------------------------------------------------------


def table(flows: list[Flow], dumps: dict[str, Dump], counts: dict[str, dict[str, int]]) -> str:
    """Return the table of the cases, with what the model says, and the model."""
    lines: list[str] = []
    for durable in (False, True):
        mine = [flow for flow in flows if flow.durable == durable]
        if not mine:
            continue
        costs = [dumps[flow.name].total() / counts[flow.name]["messages"] for flow in mine]
        rows = [terms(flow, counts[flow.name]) for flow in mine]
        model = fitted(rows, costs) if len(mine) > len(TERMS) else None
        lines += ["", "### " + ("Durable, 1 KiB, confirms, acks" if durable else "Transient, 16 B, acks"), ""]
        lines.append(
            "| Queues | Publishers | Consumers | Messages/turn | a read | a send | a queue's turn | Instructions |"
        )
        lines[-1] += " the model |"
        lines.append("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for flow, cost, row in zip(mine, costs, rows, strict=True):
            told = counts[flow.name]
            shown = [flow.queues, flow.publishers, flow.consumers, told["messages"] / told["turns"]]
            shown += [told["messages"] / told["reads"], told["messages"] / told["sends"], 1 / row[2], cost]
            said = "" if model is None else f"{sum(a * b for a, b in zip(model, row, strict=True)):,.0f}"
            lines.append("| " + " | ".join(f"{value:,.0f}" for value in shown) + f" | {said} |")
        if model is not None:
            lines += ["", "| Instructions | for |", "| --- | --- |"]
            for value, text in zip(model, TERMS.values(), strict=True):
                lines.append(f"| {value:,.0f} | {text} |")
    return "\n".join(lines[1:]) + "\n"


def functions(dump: Dump, messages: int, most: int) -> str:
    """Return the functions that cost most, for each message: own cost, and with what they call."""
    lines = []
    for name in sorted(dump.own, key=lambda name: -dump.own[name][0])[:most]:
        lines.append(f"{dump.own[name][0] / messages:10,.1f} {dump.inclusive[name][0] / messages:10,.1f}  {name}")
    return "\n".join(lines)


def caches(flows: list[Flow], dumps: dict[str, Dump], counts: dict[str, dict[str, int]]) -> str:
    """Return the misses of the simulated caches and branches for each message."""
    lines = []
    for flow in flows:
        dump = dumps[flow.name]
        totals = {event: dump.total(event) / counts[flow.name]["messages"] for event in dump.events}
        lines.append(f"{flow.name:26} " + " ".join(f"{event} {value:,.1f}" for event, value in totals.items()))
    return "\n".join(lines)


def main() -> None:
    """Count, print the tables, and write the page if asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="cases, all without; --list names them")
    parser.add_argument("--list", action="store_true", help="name the cases")
    parser.add_argument("--functions", type=int, default=0, metavar="N", help="the N functions that cost most")
    parser.add_argument("--cache", action="store_true", help="simulate caches and branches as well; takes longer")
    parser.add_argument("--keep", type=Path, help="a directory for callgrind's files")
    parser.add_argument("--write", action="store_true", help="put the tables into FLOWS.md")
    parser.add_argument("--count", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.list:
        print("\n".join(flow.name for flow in FLOWS))
        return
    if asked.count:
        count(asked.count, asked.only)
        return
    dumps, counts = run(asked.only, cache=asked.cache, keep=asked.keep)
    flows = [flow for flow in FLOWS if flow.name in counts]
    told = table(flows, dumps, counts)
    print(told)
    if asked.cache:
        print(caches(flows, dumps, counts))
    for flow in flows:
        if asked.functions:
            print(f"\n{flow.name}\n" + functions(dumps[flow.name], counts[flow.name]["messages"], asked.functions))
    if asked.write:
        page = PAGE.read_text()
        start, end = (page.index(f"<!-- {word} -->") for word in ("tables", "end of tables"))
        PAGE.write_text(page[:start] + "<!-- tables -->\n\n" + told + "\n" + page[end:])


if __name__ == "__main__":
    main()
