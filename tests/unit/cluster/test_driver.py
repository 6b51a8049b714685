"""The driver's work for a member (driver.py): a store that answers as a test wants, a node that writes down."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import trio
import trio.testing

from warren.cluster.candidacy import Founding
from warren.cluster.driver import Driver, ToldPosition
from warren.cluster.etcd import EtcdError, OutcomeUnknown
from warren.cluster.events import BeaconAnswered, BeaconReceived, LinkLost, LinkRefused, Position, Recovered
from warren.cluster.member import Member
from warren.cluster.record import Record, RecordError, Replica, Versioned, added, first, taken_over
from warren.cluster.timers import Timers

A, B = Replica("a", "a1"), Replica("b", "b1")


@dataclass
class Store:
    """One key. `reads_fail` and `swaps_fail` are raised in place of an answer, `loses` when the swap has been done."""

    found: Versioned | None = None
    reads_fail: list[Exception] = field(default_factory=list)
    swaps_fail: list[Exception] = field(default_factory=list)
    loses: list[Exception] = field(default_factory=list)
    swaps: int = 0

    def __post_init__(self) -> None:
        self._news, self._heard = trio.open_memory_channel[Versioned](math.inf)

    def put(self, record: Record) -> None:
        self.found = Versioned(1 if self.found is None else self.found.revision + 1, record)
        self._news.send_nowait(self.found)

    async def read(self) -> Versioned | None:
        await trio.lowlevel.checkpoint()
        if self.reads_fail:
            raise self.reads_fail.pop(0)
        return self.found

    async def swap(self, revision: int, record: Record) -> int | None:
        await trio.lowlevel.checkpoint()
        self.swaps += 1
        if self.swaps_fail:
            raise self.swaps_fail.pop(0)
        if revision != (0 if self.found is None else self.found.revision):
            return None
        self.put(record)
        assert self.found is not None
        if self.loses:
            raise self.loses.pop(0)
        return self.found.revision

    async def changes(self) -> AsyncIterator[Versioned]:
        async for found in self._heard:
            yield found


class Paper:
    """A node that records its instructions; for each it does what the test has prescribed."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.then: dict[str, Callable[[], None]] = {}

    def _note(self, text: str) -> None:
        self.done.append(text)
        self.then.get(text.partition(" ")[0], lambda: None)()

    async def ask_positions(self, nodes: frozenset[str], told: ToldPosition) -> None:
        await trio.lowlevel.checkpoint()
        self._note(f"ask {''.join(sorted(nodes))}")
        for node in nodes:
            told(node, None, None)

    def send_beacon(self, epoch: int, number: int) -> None:
        self._note(f"beacon {epoch} {number}")

    def answer_beacon(self, leader: Replica, epoch: int, number: int) -> None:
        self._note(f"answer {leader.node} {epoch} {number}")

    def hand_over(self, target: Replica) -> None:
        self._note(f"hand over {target.node}")

    def give_way(self, target: Replica, reason: str) -> None:
        self._note(f"give way {target.node}")

    def refuse_command(self, reason: str) -> None:
        self._note(f"no command {reason}")

    def refuse_epoch(self, leader: Replica, epoch: int) -> None:
        self._note(f"refuse {leader.node} {epoch}")

    def acknowledge(self, leader: Replica, epoch: int) -> None:
        self._note(f"acknowledge {leader.node} {epoch}")

    def keep_lives(self, lives: tuple[str, ...]) -> None:
        self._note(f"keep {' '.join(lives)}")

    def stop_acknowledging(self) -> None:
        self._note("silence")

    def lead(self, epoch: int) -> None:
        self._note(f"lead {epoch}")

    def require_acks(self, replicas: frozenset[Replica]) -> None:
        self._note(f"require {''.join(sorted(replica.node for replica in replicas))}")

    def serve(self) -> None:
        self._note("serve")

    def stop_serving(self) -> None:
        self._note("stop")

    def restart(self, reason: str) -> None:
        self._note(f"restart {reason}")

    def report(self, text: str) -> None:
        self._note(f"report {text}")


def drive(
    store: Store,
    test: Callable[[Driver, Paper], Awaitable[None]],
    *,
    me: Replica = A,
    founding: Founding | None = None,
    epoch: int = 0,
) -> Paper:
    """Drive a member while `test` runs; time passes when all wait."""
    paper = Paper()

    async def main() -> None:
        position = Position(epoch, 100 if epoch else 0)
        member = Member(me, trio.current_time(), position=position, founding=founding)
        driver = Driver(member, store, paper, trio.current_time)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(driver.run)
            await test(driver, paper)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return paper


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not condition():
            await trio.sleep(0.01)


def pair() -> Record:
    """Return the record of two in sync, of epoch 1."""
    record = first("s", A, 1)
    both = added(record, A, 1, B, 3)
    assert isinstance(both, Record)
    return both


def test_a_node_alone_founds_a_store_leads_and_serves() -> None:
    store = Store()

    async def test(driver: Driver, paper: Paper) -> None:
        await until(lambda: "lead 1" in paper.done)
        assert not driver.serves()
        driver.tell(Recovered())
        assert driver.serves()

    done = drive(store, test, founding=Founding("s", 2)).done
    assert store.found is not None and store.found.record == first("s", A, 2)
    assert done[:3] == ["lead 1", "require a", "beacon 1 1"]
    assert done[3] == "serve"


def test_a_read_that_fails_is_made_again() -> None:
    store = Store(reads_fail=[EtcdError("no"), EtcdError("no")])

    async def test(driver: Driver, paper: Paper) -> None:
        await until(lambda: "lead 1" in paper.done)
        assert trio.current_time() >= 0.5

    drive(store, test, founding=Founding("s", 1))


def test_a_record_that_cannot_be_understood_is_reported_once_and_decides_nothing() -> None:
    store = Store(Versioned(3, first("s", A, 1)), reads_fail=[RecordError("of the future")] * 3)

    async def test(driver: Driver, paper: Paper) -> None:
        await until(lambda: len(store.reads_fail) == 0)
        assert driver.member.record is None
        await until(lambda: driver.member.record is not None)

    done = drive(store, test, me=B).done
    assert done == ["report of the future"]


def test_a_swap_that_could_not_be_sent_is_unknown_and_read_again_before_the_next() -> None:
    store = Store(swaps_fail=[EtcdError("nobody is there")])

    async def test(driver: Driver, paper: Paper) -> None:
        await until(lambda: "lead 1" in paper.done)

    drive(store, test, founding=Founding("s", 1))
    assert store.swaps == 2


def test_a_swap_that_was_done_without_an_answer_is_not_done_twice() -> None:
    store = Store(loses=[OutcomeUnknown("timeout")])

    async def test(driver: Driver, paper: Paper) -> None:
        await until(lambda: "lead 1" in paper.done)

    drive(store, test, founding=Founding("s", 1))
    assert store.swaps == 1


def test_news_of_the_record_reaches_the_member() -> None:
    store = Store(Versioned(1, pair()))

    async def test(driver: Driver, paper: Paper) -> None:
        await until(lambda: driver.member.record is not None)
        change = taken_over(pair(), B, 1)
        assert isinstance(change, Record)
        store.put(change)
        await until(lambda: driver.member.record == change)

    drive(store, test, me=Replica("c", "c1"), epoch=1)


def test_what_waits_for_one_leader_is_told_when_the_record_names_another() -> None:
    store = Store(Versioned(1, pair()))

    async def test(driver: Driver, paper: Paper) -> None:
        await driver.another_leads(None)
        with trio.move_on_after(10) as scope:
            await driver.another_leads(A)
        assert scope.cancelled_caught
        change = taken_over(pair(), B, 1)
        assert isinstance(change, Record)
        store.put(change)
        await driver.another_leads(A)
        assert driver.member.record == change

    drive(store, test, me=Replica("c", "c1"), epoch=1)


def test_a_follower_answers_and_stands_when_its_leader_is_silent() -> None:
    store = Store(Versioned(1, pair()))

    async def test(driver: Driver, paper: Paper) -> None:
        await until(lambda: driver.member.record is not None)
        driver.tell(BeaconReceived(A, 1, 7))
        heard_s = trio.current_time()
        assert paper.done == ["acknowledge a 1", "answer a 1 7"]
        await until(lambda: "lead 2" in paper.done)
        assert heard_s + Timers().grace_s <= trio.current_time() < heard_s + 4.0

    done = drive(store, test, me=B, epoch=1).done
    assert done.index("silence") < done.index("lead 2")
    assert store.found is not None and store.found.record.in_sync == {B}


def test_a_follower_stands_at_once_when_the_process_of_its_leader_is_gone() -> None:
    store = Store(Versioned(1, pair()))

    async def test(driver: Driver, paper: Paper) -> None:
        await until(lambda: driver.member.record is not None)
        driver.tell(BeaconReceived(A, 1, 7))
        driver.tell(LinkLost(A))
        driver.tell(LinkRefused(A))
        lost_s = trio.current_time()
        await until(lambda: "lead 2" in paper.done)
        assert trio.current_time() < lost_s + 1.0

    drive(store, test, me=B, epoch=1)


def test_a_leader_beacons_and_removes_who_does_not_answer_before_it_has_to_stop() -> None:
    store = Store(Versioned(1, pair()))

    async def test(driver: Driver, paper: Paper) -> None:
        numbers: list[int] = []
        is_answering = True

        def answer() -> None:
            epoch, number = (int(word) for word in paper.done[-1].split()[1:])
            numbers.append(number)
            if is_answering:
                driver.tell(BeaconAnswered(B, epoch, number))

        paper.then["beacon"] = answer
        paper.then["lead"] = lambda: driver.tell(Recovered())
        await until(lambda: "serve" in paper.done)
        is_answering = False
        await until(lambda: store.found is not None and store.found.record.in_sync == {A})
        await trio.sleep(3.0)
        assert driver.serves()
        assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) > 12

    done = drive(store, test, me=A, epoch=1).done
    assert "stop" not in done


def test_an_event_that_an_action_causes_is_handled_behind_all_actions_of_its_event() -> None:
    store = Store()

    async def test(driver: Driver, paper: Paper) -> None:
        paper.then["lead"] = lambda: driver.tell(Recovered())
        await until(lambda: "serve" in paper.done)

    done = drive(store, test, founding=Founding("s", 1)).done
    assert done[:4] == ["lead 1", "require a", "beacon 1 1", "serve"]


def test_what_happens_earlier_than_the_member_wanted_to_wake_is_not_waited_for() -> None:
    """A follower sleeps until its grace time is over; a beacon in between moves that."""
    store = Store(Versioned(1, pair()))

    async def test(driver: Driver, paper: Paper) -> None:
        await until(lambda: driver.member.record is not None)
        for number in range(20):
            driver.tell(BeaconReceived(A, 1, number))
            await trio.sleep(1.0)
        assert "lead 2" not in paper.done

    drive(store, test, me=B, epoch=1)
