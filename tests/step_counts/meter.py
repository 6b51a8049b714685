"""An engine whose turns are measured: how many steps (`step_counter`) each of them takes.

To be imported when the hook of `step_counter` is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from engine_harness import USER, Client, Harness

from step_counts.step_counter import COUNT
from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.channels import publisher, session
from warren.msgstore.log import batch, own_writes, reclamation
from warren.queues import delivery, delivery_timeout, expiry, held_messages, length_limit, long_work, timers
from warren.vhosts import dead_lettering, own_publishes

TURNS_MAX = 200000
# The limits of long work in a turn, set so low that a few hundred steps take several turns.
TURN_STEPS = 100
OWN_BYTES = 32 << 10
AT_ONCE_STEPS = 10
AT_ONCE_ACKS = 20
LEAVE_MAX = 20
QUEUES_AT_ONCE = 20
TARGETS_AT_ONCE = 20
GIVEN_MAX = 20
DUE_MAX = 20
TAKEN_MAX = 20
PORTION_ROWS = 20
FURTHER_PORTION_ROWS = 20
THINGS_PER_STEP = 1
ENTRIES_PER_STEP = 1
PAGE_ENTRIES = 16


class Measured(NamedTuple):
    """A request and all turns that followed: steps of the longest turn, of all, and how many turns.

    `written`: the most bytes that were entered into the log in one turn.
    """

    longest: int
    total: int
    turns: int
    written: int


class QuickClients(Harness):
    """Opens connections in two pieces: there are thousands, and each piece is run until the broker is at rest."""

    def client(self, user: str = USER, vhost: str = "/", **options: Any) -> Client:
        return self._opened(user, vhost, (), **options)

    def channel(self, user: str = USER) -> Client:
        return self._opened(user, "/", (method_frame(1, m.ChannelOpen("")),))

    def _opened(self, user: str, vhost: str, more: tuple[bytes, ...], **options: Any) -> Client:
        client = Client(self, **options)
        login = b"\0" + user.encode() + b"\0" + self.passwords.get(user, b"")
        start_ok = m.ConnectionStartOk(client.properties(), "PLAIN", login, "en_US")
        client.feed(m.PROTOCOL_HEADER + method_frame(0, start_ok))
        tune_ok = m.ConnectionTuneOk(client.channel_max, client.frame_max_bytes, client.heartbeat_s)
        opening = (method_frame(0, tune_ok), method_frame(0, m.ConnectionOpen(vhost, "", False)))
        client.take_bytes()
        client.feed(b"".join(opening + more))
        answers = client.take()
        assert [type(each.method) for each in answers] == [m.ConnectionOpenOk, *[m.ChannelOpenOk] * len(more)]
        return client


class Meter(QuickClients):
    """Turns are measured one by one: the input or call, and each turn until the broker is at rest."""

    def __init__(self, **limits: float) -> None:
        super().__init__(**limits)
        self.broker.work.turn_steps = TURN_STEPS
        self.broker.work.end_turn()
        setattr(long_work, "AT_ONCE_STEPS", AT_ONCE_STEPS)  # noqa: B010 - they are final to everybody else
        setattr(delivery, "AT_ONCE_ACKS", AT_ONCE_ACKS)  # noqa: B010
        for module in (expiry, length_limit, delivery_timeout):
            setattr(module, "LEAVE_MAX", LEAVE_MAX)  # noqa: B010
        setattr(timers, "DUE_MAX", DUE_MAX)  # noqa: B010
        setattr(held_messages, "TAKEN_MAX", TAKEN_MAX)  # noqa: B010
        for module in (session, publisher, own_publishes):
            setattr(module, "QUEUES_AT_ONCE", QUEUES_AT_ONCE)  # noqa: B010
        setattr(dead_lettering, "TARGETS_AT_ONCE", TARGETS_AT_ONCE)  # noqa: B010
        setattr(own_writes, "GIVEN_MAX", GIVEN_MAX)  # noqa: B010
        setattr(batch, "PORTION_ROWS", PORTION_ROWS)  # noqa: B010
        setattr(batch, "FURTHER_PORTION_ROWS", FURTHER_PORTION_ROWS)  # noqa: B010
        setattr(reclamation, "AT_ONCE_STEPS", AT_ONCE_STEPS)  # noqa: B010
        setattr(reclamation, "THINGS_PER_STEP", THINGS_PER_STEP)  # noqa: B010
        setattr(reclamation, "ENTRIES_PER_STEP", ENTRIES_PER_STEP)  # noqa: B010
        self.broker.log.page_entries = PAGE_ENTRIES
        self._turns: list[int] = []
        self._mark = 0
        self._written: list[int] = []
        self._entered = 0

    def pace(self) -> None:
        """Make the share of a batch that the broker may write by itself small."""
        self.broker.log.batch_bytes = 2 * OWN_BYTES

    def _turn(self, commit: bool) -> bool:
        busy = super()._turn(commit)
        self._record()
        return busy

    def settle(self, *, commit: bool = True) -> None:
        self._record()
        for _ in range(TURNS_MAX):
            if not self._turn(commit):
                return
        raise AssertionError(f"the broker is not at rest after {TURNS_MAX} turns")

    def _record(self) -> None:
        entered = self.store.written_bytes + int(self.broker.log.batch.row_bytes)
        self._written.append(entered - self._entered)
        self._entered = entered
        self._turns.append((COUNT.eighths - self._mark) // 8)
        self._mark = COUNT.eighths

    def measure(self, act: Callable[[], Any]) -> Measured:
        """Do `act`, which feeds or calls the engine once, and run the turns that follow."""
        self.settle()
        self._turns, self._written = [], []
        self._mark = COUNT.eighths
        act()
        self.settle()
        return Measured(max(self._turns), sum(self._turns), len(self._turns), max(self._written))


def sending(client: Client, number: int, *calls: Any) -> Callable[[], None]:
    """Return what feeds `calls` in one read."""
    data = b"".join(method_frame(number, call) for call in calls)
    return lambda: client.feed(data)
