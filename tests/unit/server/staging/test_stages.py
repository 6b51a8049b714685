"""Stages and their commits over an engine on a simulated disk: limits, time, and crashes at every step. stages (1)-(6).

A crash ends everything at the nth time that the engine is settled or a file is touched, before or after that step. The
next life has what was written by then, as after kill -9.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest
import trio
from durable_harness import DurableHarness
from engine_harness import exchange_declare, publish_frames

from warren.amqp.errors import ChannelException, ConnectionException
from warren.channels.access import WRITE
from warren.channels.transaction import ROWS_AT_ONCE
from warren.msgstore.files.store import wall_time_ms
from warren.server.direct_clients import DirectClients
from warren.server.management import Management
from warren.server.settings import Settings, StoreSettings
from warren.server.shares import Quota
from warren.server.staging import commit_notes, staged_batch, stages
from warren.server.staging.commit_notes import CommitNotes, CommitPlan, Note
from warren.server.staging.stage_files import DamagedPart
from warren.server.staging.staged_batch import (
    Conflict,
    MissingBatches,
    NoRoom,
    NoStage,
    NotOwner,
    Order,
    OtherBatch,
    Outcome,
    QueueFull,
)
from warren.server.staging.stages import Stages
from warren.server.supervision import Supervision
from warren.vhosts.metadata import UserDelete

T = TypeVar("T")
USER = "guest"
PERSISTENT = {"delivery_mode": 2}


class Crash(BaseException):
    """The process is gone."""


class Life:
    """One process: an engine, stages, and when it dies. `steps` counts the moments at which it could."""

    def __init__(self, directory: Path, harness: DurableHarness, crash_at: int = 0, *, behind: bool = False) -> None:
        directory.mkdir(exist_ok=True)
        self.harness = harness
        self.steps = 0
        self._crash_at = crash_at
        self._behind = behind
        self.dead = False
        self._has_run = False
        self.clients = DirectClients(harness.broker, self.settle)
        settings = Settings(data_dir=directory, store=StoreSettings(disk_free_min_bytes=0))
        self.management: Any = SimpleNamespace(
            broker=harness.broker,
            settings=settings,
            messages=SimpleNamespace(deleted=self._synced),
            replication=None,
            clients=self.clients,
            settle=self.settle,
            commit=self._commit,
            tasks=Supervision(),
            clock_ms=wall_time_ms,
        )
        self.stages = Stages(cast(Management, self.management), directory)
        for name in ("write", "remove"):
            files: Any = self.stages._files
            setattr(files, name, self._stepping(getattr(files, name)))

    def _stepping(self, work: Callable[..., T]) -> Callable[..., T]:
        def step(*arguments: Any) -> T:
            self._die_if_due(behind=False)
            done = work(*arguments)
            self._die_if_due(behind=True)
            return done

        return step

    def _die_if_due(self, *, behind: bool) -> None:
        if not behind:
            self.steps += 1
        if self.dead or (self.steps == self._crash_at and self._behind == behind):
            self.dead = True
            raise Crash

    def settle(self) -> None:
        self._die_if_due(behind=False)
        self.harness.settle()
        self._die_if_due(behind=True)

    async def _synced(self) -> None:
        self.harness.broker.log.force()
        self.settle()
        await trio.lowlevel.checkpoint()

    async def _commit(self, ticket: int) -> None:
        await trio.lowlevel.checkpoint()

    def run(self, work: Callable[[Stages], Awaitable[T]]) -> T:
        """Do something with the stages, which run meanwhile. Once: at its start a process looks for what there is."""
        assert not self._has_run
        self._has_run = True

        async def main() -> T:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.stages.run)
                done = await work(self.stages)
                nursery.cancel_scope.cancel()
            return done

        return trio.run(main)

    def dies(self, work: Callable[[Stages], Awaitable[object]]) -> bool:
        """Do something; tell whether the process died of it."""
        try:
            self.run(work)
        except BaseExceptionGroup as group:
            if group.split(Crash)[1] is not None:
                raise
            return True
        except Crash:
            return True
        return False

    def after_a_crash(self, directory: Path, **more: Any) -> Life:
        return Life(directory, self.harness.restart(clean=False), **more)

    def bodies(self, queue: str = "q") -> list[bytes]:
        """Take everything out of a queue."""
        client = self.harness.channel()
        found: list[bytes] = []
        while (message := client.get(queue, no_ack=True)) is not None:
            assert message.content is not None
            found.append(message.content.body)
        return found


def with_queue(directory: Path, **more: Any) -> Life:
    harness = DurableHarness()
    harness.channel().declare("q", durable=True)
    return Life(directory, harness, **more)


def content(*bodies: bytes, queue: str = "q") -> bytes:
    return b"".join(publish_frames("", queue, body, properties=PERSISTENT) for body in bodies)


async def put(stages: Stages, name: str, *parts: bytes, user: str = USER) -> str:
    for number, part in enumerate(parts):
        await stages.put("/", name, number, user, part, lambda exchange: None)
    return name


async def commit(life: Life, batch: int, *names: str, query: str = "query", user: str = USER, **more: Any) -> Outcome:
    return await life.stages.commit(life.harness.vhost, user, Order(query, batch, list(names), **more))


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pieces of three messages."""
    monkeypatch.setattr(staged_batch, "PIECE_MESSAGES", 3)
    monkeypatch.setattr(stages, "PIECE_MESSAGES", 3)
    monkeypatch.setattr(stages, "CELL_MESSAGES", 2)


# --- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("messages", [2, 11])
@pytest.mark.usefixtures("small_pieces")
def test_a_batch_is_published_once_wherever_the_process_dies(tmp_path: Path, messages: int, behind: bool) -> None:
    bodies = [b"%d" % number for number in range(messages)]
    crash_at = 0
    while True:
        crash_at += 1
        directory = tmp_path / str(crash_at)
        life = with_queue(directory, crash_at=crash_at, behind=behind)

        async def write(stages: Stages, life: Life = life) -> Outcome:
            names = [await put(stages, "a", content(*bodies[:1])), await put(stages, "b", content(*bodies[1:]))]
            return await commit(life, 0, *names)

        died = life.dies(write)
        again = life.after_a_crash(directory)

        async def retry(stages: Stages, life: Life = again) -> Outcome:
            # Another attempt of the tasks: the same rows, in stages of their own.
            names = [await put(stages, "c", content(*bodies[:1])), await put(stages, "d", content(*bodies[1:]))]
            return await commit(life, 0, *names)

        outcome = again.run(retry)
        assert outcome.committed or outcome.duplicate
        assert again.bodies() == bodies, crash_at
        assert died or outcome.duplicate
        if not died:
            break
    assert crash_at > (15 if messages > 3 else 8)


@pytest.mark.usefixtures("small_pieces")
def test_a_process_that_dies_again_and_again_goes_on_where_it_was(tmp_path: Path) -> None:
    bodies = [b"%d" % number for number in range(200)]
    life = with_queue(tmp_path)

    async def stage(stages: Stages) -> None:
        await put(stages, "a", content(*bodies))

    life.run(stage)
    lives = 0
    while True:
        # The first life does little more than trial runs; the others continue what it began.
        life = life.after_a_crash(tmp_path, crash_at=350)
        lives += 1
        assert lives < 50

        async def go_on(stages: Stages, life: Life = life) -> Outcome:
            return await commit(life, 3, "a")

        if not life.dies(go_on):
            break
    assert lives > 2
    assert life.bodies() == bodies


def half_published(tmp_path: Path, bodies: list[bytes]) -> tuple[Path, DurableHarness]:
    """Have a process die when a part of a batch is on disk; return where its stages are, and the next process."""
    for crash_at in range(1, 60):
        directory = tmp_path / str(crash_at)
        life = with_queue(directory, crash_at=crash_at)

        async def write(stages: Stages, life: Life = life) -> Outcome:
            await put(stages, "a", content(*bodies))
            return await commit(life, 0, "a")

        assert life.dies(write), "no crash left a batch half done"
        following = life.harness.restart(clean=False)
        note = CommitNotes(following.vhost.records).maybe_note("query")
        if note is not None and 0 < note.messages < len(bodies):
            return directory, following
    raise AssertionError("no crash left a batch half done")


@pytest.mark.usefixtures("small_pieces")
def test_what_was_begun_is_finished_at_the_next_start_without_being_asked(tmp_path: Path) -> None:
    bodies = [b"%d" % number for number in range(9)]
    again = Life(*half_published(tmp_path, bodies))

    async def look(stages: Stages, life: Life = again) -> None:
        while not (await stages.notes(life.harness.vhost))["query"].done:
            await trio.lowlevel.checkpoint()

    again.run(look)
    assert again.bodies() == bodies


# --- several nodes ----------------------------------------------------------------------------------------------------


def in_cluster(life: Life, epoch: int) -> Life:
    """Have a life lead in `epoch`."""
    life.management.replication = object()
    life.harness.broker.log.epoch = epoch
    return life


async def names_of(stages: Stages) -> list[str]:
    return [each.name for each in await stages.listed(["/"], None)]


def test_who_leads_again_has_its_stages_unless_another_node_has_led(tmp_path: Path) -> None:
    async def write(stages: Stages) -> None:
        await put(stages, "a", content(b"old"))

    async def rewrite(stages: Stages) -> None:
        assert await names_of(stages) == []
        await put(stages, "a", content(b"new"))

    first = in_cluster(with_queue(tmp_path), 4)
    first.run(write)
    again = in_cluster(first.after_a_crash(tmp_path), 5)
    assert again.run(names_of) == ["a"]
    after_another = in_cluster(again.after_a_crash(tmp_path), 7)
    after_another.run(rewrite)
    last = in_cluster(after_another.after_a_crash(tmp_path), 8)
    last.run(lambda stages: commit(last, 0, "a"))
    assert last.bodies() == [b"new"]


def test_stages_that_cannot_be_removed_are_there_for_nobody_until_they_can_be(tmp_path: Path) -> None:
    async def write(stages: Stages) -> None:
        await put(stages, "a", content(b"old"))

    first = in_cluster(with_queue(tmp_path), 4)
    first.run(write)

    def remove(vhost: str, stage: str) -> None:
        raise OSError(5, "Input/output error")

    broken = in_cluster(first.after_a_crash(tmp_path), 6)
    broken.stages._files.remove = remove  # type: ignore[method-assign]
    assert broken.run(names_of) == []
    # The stage left from epoch 4 does not come back in later epochs.
    assert in_cluster(broken.after_a_crash(tmp_path), 7).run(names_of) == []
    assert in_cluster(broken.after_a_crash(tmp_path), 8).run(names_of) == []


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("is_same", [False, True])
def test_a_batch_that_has_begun_goes_on_with_the_parts_that_it_began_with(tmp_path: Path, is_same: bool) -> None:
    """The parts are on another node. Here a task, which was asked to, has written them again."""
    bodies = [b"%d" % number for number in range(9)]
    _, following = half_published(tmp_path, bodies)
    other_node = Life(tmp_path / "other", following)

    async def rewrite(stages: Stages) -> Outcome:
        await put(stages, "a", content(*(bodies if is_same else reversed(bodies))))
        return await commit(other_node, 0, "a")

    if is_same:
        assert other_node.run(rewrite).committed
        assert other_node.bodies() == bodies
    else:
        with pytest.raises(BaseExceptionGroup) as failure:
            other_node.run(rewrite)
        assert "was written anew after batch 0 had begun" in str(failure.value.exceptions[0])
        published = other_node.bodies()
        assert published == bodies[: len(published)]


# --- very many places -------------------------------------------------------------------------------------------------


def with_fanout(directory: Path, queues: int, **arguments: object) -> Life:
    """Return a life with exchange ``x`` to `queues` durable queues, the first of which has these arguments."""
    life = with_queue(directory)
    client = life.harness.channel()
    client.call(1, exchange_declare("x", "fanout", durable=True))
    for number in range(queues):
        client.declare(f"q{number}", durable=True, arguments=arguments if number == 0 else None)
        client.bind(f"q{number}", "x", "")
    return life


def rows_of_turns(life: Life, queues: int) -> list[int]:
    """Record the number of messages after each turn."""
    harness = life.harness
    turn = harness._turn
    seen: list[int] = []

    def noting(commit: bool) -> bool:
        is_busy = turn(commit)
        there = harness.vhost.queues
        seen.append(sum([int(there[f"q{number}"].message_count) for number in range(queues)]))
        return is_busy

    cast(Any, harness)._turn = noting
    return seen


def test_a_batch_for_very_many_places_takes_turns_and_is_whole(tmp_path: Path) -> None:
    queues, count = 100, ROWS_AT_ONCE // 100 + 10
    life = with_fanout(tmp_path, queues)
    seen = rows_of_turns(life, queues)
    frames = b"".join(publish_frames("x", "", b"%d" % number, properties=PERSISTENT) for number in range(count))

    async def write(stages: Stages, life: Life = life) -> Outcome:
        return await commit(life, 0, await put(stages, "a", frames))

    outcome = life.run(write)
    assert (outcome.messages, outcome.unroutable) == (count, 0)
    assert seen[-1] == queues * count
    assert max(after - before for before, after in pairwise(seen)) < ROWS_AT_ONCE
    again = life.after_a_crash(tmp_path)

    async def retry(stages: Stages) -> Outcome:
        return await commit(again, 0, await put(stages, "b", frames))

    assert again.run(retry).duplicate
    assert again.bodies("q0") == again.bodies(f"q{queues - 1}") == [b"%d" % number for number in range(count)]


def test_what_a_queue_may_refuse_takes_turns_too_and_fits_or_is_not_published(tmp_path: Path) -> None:
    queues, count = 100, ROWS_AT_ONCE // 100 + 10
    life = with_fanout(tmp_path, queues, **{"x-max-length": count + 5, "x-overflow": "reject-publish"})
    seen = rows_of_turns(life, queues)
    frames = b"".join(publish_frames("x", "", b"x", properties=PERSISTENT) for _ in range(count))

    async def write(stages: Stages) -> Outcome:
        outcome = await commit(life, 0, await put(stages, "a", frames))
        with pytest.raises(QueueFull, match="'q0'"):
            await commit(life, 1, await put(stages, "b", frames))
        return outcome

    assert life.run(write).messages == count
    assert seen[-1] == queues * count
    assert max(after - before for before, after in pairwise(seen)) < ROWS_AT_ONCE


def test_a_batch_with_a_part_that_is_unusable_after_a_restart_is_refused_until_it_is_written_again(
    tmp_path: Path,
) -> None:
    life = with_queue(tmp_path)

    async def stage(stages: Stages) -> None:
        await put(stages, "s", content(b"one"), content(b"other"))

    life.run(stage)
    damaged = max(tmp_path.rglob("0000000001"))
    damaged.write_bytes(damaged.read_bytes()[:40])
    again = life.after_a_crash(tmp_path)

    async def retry(stages: Stages) -> Outcome:
        with pytest.raises(DamagedPart, match="'s'"):
            await commit(again, 0, "s")
        return await commit(again, 0, await put(stages, "s", content(b"one"), content(b"other")))

    assert again.run(retry).messages == 2
    assert again.bodies() == [b"one", b"other"]


# --- in the way -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_pieces")
def test_a_batch_that_has_begun_stops_at_an_obstacle_and_goes_on_when_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = with_queue(tmp_path)
    other = life.harness.channel()
    other.declare("other", durable=True)
    harness = life.harness

    async def scenario(stages: Stages) -> None:
        await put(stages, "a", content(b"1", b"2"), content(b"3", b"4", queue="other"))
        begin = CommitNotes.begin

        def begin_and_lose_a_queue(notes: CommitNotes, query: str, note: Note, plan: CommitPlan) -> None:
            begin(notes, query, note, plan)
            harness.broker.delete_queue(harness.vhost, harness.queue("other"))

        monkeypatch.setattr(CommitNotes, "begin", begin_and_lose_a_queue)
        assert await commit(life, 0, "a") == Outcome(committed=False, unroutable=2)
        monkeypatch.undo()
        small(monkeypatch)
        note = (await stages.notes(harness.vhost))["query"]
        assert (note.done, note.messages) == (False, 2)
        with pytest.raises(Conflict):
            await stages.remove("/", "a", USER)
        with pytest.raises(Conflict, match="batch 0"):
            await commit(life, 1)
        other.declare("other", durable=True)
        await put(stages, "another attempt", content(b"1", b"2"), content(b"3", b"4", queue="other"))
        assert await commit(life, 0, "another attempt") == Outcome(committed=True, messages=4)
        assert await stages.listed(["/"], None) == []

    life.run(scenario)
    assert life.bodies() == [b"1", b"2"]
    assert life.bodies("other") == [b"3", b"4"]


@pytest.mark.usefixtures("small_pieces")
def test_an_operator_may_give_up_a_batch_that_cannot_go_on(tmp_path: Path) -> None:
    life = with_queue(tmp_path)
    harness = life.harness

    async def scenario(stages: Stages) -> None:
        await put(stages, "a", content(*[b"x"] * 7))
        harness.vhost.records.store("commit:query", b'{"batch":4,"user":"guest","done":false}')
        harness.vhost.records.store("plan:query", b'{"batch":4,"parts":[["a",0],["gone",0]]}')
        with pytest.raises(NoStage):
            await commit(life, 4, "a")
        assert await stages.forget(harness.vhost, "query")
        assert not await stages.forget(harness.vhost, "query")
        assert (await commit(life, 4, "a")).messages == 7

    life.run(scenario)


def test_whoever_asks_again_waits_for_the_same_commit(tmp_path: Path) -> None:
    life = with_queue(tmp_path)
    outcomes: list[Outcome] = []

    async def scenario(stages: Stages) -> None:
        await put(stages, "a", content(b"1"))
        await put(stages, "b", content(b"1"))

        async def ask(name: str) -> None:
            outcomes.append(await commit(life, 0, name))

        async with trio.open_nursery() as asking:
            life.harness.store.hold = True
            asking.start_soon(ask, "a")
            while not stages._commits:
                await trio.lowlevel.checkpoint()
            asking.cancel_scope.cancel()
        with pytest.raises(Conflict):
            await commit(life, 1, "b")
        async with trio.open_nursery() as asking:
            asking.start_soon(ask, "b")
            await trio.lowlevel.checkpoint()
            life.harness.store.hold = False
            life.settle()
        assert await stages.listed(["/"], None) == []

    life.run(scenario)
    assert outcomes == [Outcome(committed=True, messages=1)]
    assert life.bodies() == [b"1"]


def test_a_full_queue_and_a_forbidden_message_leave_everything_as_it_was(tmp_path: Path) -> None:
    life = with_queue(tmp_path)
    life.harness.channel().declare("full", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})

    async def scenario(stages: Stages) -> None:
        await put(stages, "full", content(b"1") + content(b"2", b"3", queue="full"))
        with pytest.raises(QueueFull, match="'full'"):
            await commit(life, 0, "full")
        forged = publish_frames("", "q", b"x", properties={"user_id": "somebody"})
        await put(stages, "forged", content(b"1") + forged)
        with pytest.raises(ChannelException, match="user_id"):
            await commit(life, 0, "forged")
        assert await stages.notes(life.harness.vhost) == {}
        assert len(await stages.listed(["/"], None)) == 2

    life.run(scenario)
    assert life.bodies() == []


def test_nobody_has_a_batch_of_another_taken_for_published(tmp_path: Path) -> None:
    life = with_queue(tmp_path)
    life.harness.add_user("other")

    async def work(stages: Stages) -> Outcome:
        assert (await commit(life, 1, await put(stages, "a", content(b"1")))).committed
        for later in (3, 10**18):
            with pytest.raises(MissingBatches):
                await commit(life, later, user="other")
        await commit(life, 2, user="other")
        await put(stages, "b", content(b"2"))
        with pytest.raises(Conflict, match="user 'other' has committed batch"):
            await commit(life, 2, "b")
        assert await names_of(stages) == ["b"], "it is not dropped"
        assert await stages.forget(life.harness.vhost, "query")
        return await commit(life, 2, "b")

    assert life.run(work).committed
    assert life.harness.queue("q").ready_count == 2


def test_a_batch_that_leaves_out_others_is_refused_until_its_query_is_forgotten(tmp_path: Path) -> None:
    """As after the restore of a backup in which batch 4 was the last one: 5 to 8 are in no queue."""
    life = with_queue(tmp_path)

    async def work(stages: Stages) -> list[Outcome]:
        assert (await commit(life, 4, await put(stages, "a", content(b"4")))).committed
        await put(stages, "b", content(b"9"))
        for batch in (6, 9, 10**18):
            with pytest.raises(MissingBatches, match=rf"from 5 to {batch - 1} are missing.*older backup"):
                await commit(life, batch, "b")
        assert await names_of(stages) == ["b"], "it is not dropped"
        again = await commit(life, 4, "nothing")
        following = await commit(life, 5)  # an empty one counts
        with pytest.raises(MissingBatches):
            await commit(life, 9, "b")
        assert await stages.forget(life.harness.vhost, "query")
        return [again, following, await commit(life, 9, "b")]

    again, following, last = life.run(work)
    assert again.duplicate and following.committed and last.committed
    assert sorted(life.bodies()) == [b"4", b"9"]


def test_after_a_note_of_an_earlier_version_batches_may_be_missing(tmp_path: Path) -> None:
    """Empty batches were not committed then."""
    life = with_queue(tmp_path)

    async def work(stages: Stages) -> Outcome:
        CommitNotes(life.harness.vhost.records).store("query", note(4, 0))
        assert (await commit(life, 9)).committed
        with pytest.raises(MissingBatches):
            await commit(life, 11)
        return await commit(life, 10)

    assert life.run(work).committed


def test_a_query_goes_on_under_another_user(tmp_path: Path) -> None:
    life = with_queue(tmp_path)
    life.harness.add_user("other")

    async def work(stages: Stages) -> list[Outcome]:
        first = await commit(life, 1, await put(stages, "a", content(b"1")))
        second = await commit(life, 2, user="other")
        return [first, second, await commit(life, 2, user="other")]

    first, second, again = life.run(work)
    assert first.committed and second.committed and again.duplicate


@pytest.mark.parametrize("write", ["", "^elsewhere$"])
def test_a_user_without_the_rights_of_a_query_takes_it_from_nobody(tmp_path: Path, write: str) -> None:
    """Neither with an empty batch, which needs no right, nor with one to an exchange of its own."""
    life = with_queue(tmp_path)
    harness = life.harness
    client = harness.channel()
    client.call(1, exchange_declare("elsewhere", "fanout"))
    client.call(1, exchange_declare("here", "fanout"))
    client.bind("q", "here")
    client.bind("q", "elsewhere")
    harness.add_user("other", write=write)

    async def work(stages: Stages) -> None:
        await put(stages, "a", publish_frames("here", "", b"1"))
        assert (await commit(life, 1, "a")).committed
        for batch in (2, 3):
            with pytest.raises(NotOwner, match="may not write to exchange 'here'"):
                await commit(life, batch, user="other")
        if write:
            await put(stages, "x", publish_frames("elsewhere", "", b"x"), user="other")
            with pytest.raises(NotOwner, match="may not write to exchange 'here'"):
                await commit(life, 2, "x", user="other")
        assert (await commit(life, 2)).committed, "an empty one, of its own user"
        await put(stages, "b", publish_frames("here", "", b"3"))
        assert (await commit(life, 3, "b")).committed

    life.run(work)
    assert life.bodies() == [b"1", b"3"]


@pytest.mark.parametrize("write", ["", "^$"])
def test_a_user_without_any_right_neither_begins_nor_continues_a_query_of_empty_batches(
    tmp_path: Path, write: str
) -> None:
    life = with_queue(tmp_path)
    life.harness.add_user("other", write=write)

    async def work(stages: Stages) -> list[Outcome]:
        async def note() -> Note | None:
            return (await stages.notes(life.harness.vhost)).get("query")

        for batch in (0, 10**18):
            with pytest.raises(NotOwner, match="may not begin query 'query': it may not write to any exchange"):
                await commit(life, batch, user="other")
        assert await note() is None
        found = [await commit(life, 0), await commit(life, 1)]
        before = await note()
        for batch in (0, 1, 2, 10**18):
            with pytest.raises(NotOwner, match="may not continue it: it may not write to any exchange"):
                await commit(life, batch, user="other")
        assert await note() == before
        await put(stages, "a", content(b"1"))
        return [*found, await commit(life, 2, "a"), await commit(life, 2, "a"), await commit(life, 3)]

    first, second, third, again, last = life.run(work)
    assert first.committed and second.committed and third.committed and again.duplicate and last.committed
    assert life.bodies() == [b"1"]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_query_of_empty_batches_is_its_users_alone_until_that_user_is_gone(tmp_path: Path, restarted: bool) -> None:
    """As after a rotation of users: the new user, which may write, continues when the former one is deleted."""
    life = with_queue(tmp_path)
    life.harness.add_user("former", write="^amq.default$")
    life.harness.add_user("other")

    async def begin(stages: Stages) -> None:
        assert (await commit(life, 0, user="former")).committed

    async def work(stages: Stages) -> list[Outcome]:
        if not restarted:
            await begin(stages)
        before = await stages.notes(life.harness.vhost)
        await put(stages, "a", content(b"1"), user="other")
        for names in ([], ["a"]):
            with pytest.raises(NotOwner, match="belongs to user 'former' alone"):
                await commit(life, 1, *names, user="other")
        assert await stages.notes(life.harness.vhost) == before
        assert (await commit(life, 1, user="former")).committed
        life.harness.broker.administer(UserDelete("former"))
        return [await commit(life, 2, "a", user="other"), await commit(life, 3, user="other")]

    if restarted:
        life.run(begin)
        life = life.after_a_crash(tmp_path)
        life.harness.add_user("former", write="^amq.default$")
        life.harness.add_user("other")
    assert all(outcome.committed for outcome in life.run(work))
    assert life.bodies() == [b"1"]


def test_a_user_that_lost_its_right_to_write_keeps_no_query_of_empty_batches(tmp_path: Path) -> None:
    """Version 0.1 let a user without any right begin one."""
    life = with_queue(tmp_path)
    life.harness.add_user("other")

    async def work(stages: Stages) -> Outcome:
        assert (await commit(life, 10**18, user="other")).committed
        life.harness.permit("other", write="^$")
        await put(stages, "a", content(b"1"))
        return await commit(life, 0, "a")

    assert life.run(work).committed
    assert life.bodies() == [b"1"]


@pytest.mark.parametrize("gone", [False, True])
def test_the_last_batch_is_a_duplicate_for_another_user_when_its_user_is_gone(tmp_path: Path, gone: bool) -> None:
    """A writer whose user was replaced retries it, if its answer was lost; forgetting the query would double it."""
    life = with_queue(tmp_path)
    life.harness.add_user("former")
    life.harness.add_user("other")

    async def work(stages: Stages) -> None:
        await put(stages, "a", content(b"1", b"2"), user="former")
        assert (await commit(life, 1, "a", user="former")).committed
        await put(stages, "b", content(b"1", b"2"), user="other")
        await put(stages, "c", content(b"other"), user="other")
        if not gone:
            with pytest.raises(Conflict, match="nobody else is told"):
                await commit(life, 1, "b", user="other")
            return
        life.harness.broker.administer(UserDelete("former"))
        with pytest.raises(OtherBatch):
            await commit(life, 1, "c", user="other")
        assert (await commit(life, 1, "b", user="other")).duplicate
        assert await names_of(stages) == ["c"]
        assert (await commit(life, 2, "c", user="other")).committed

    life.run(work)
    assert life.bodies() == ([b"1", b"2", b"other"] if gone else [b"1", b"2"])


def test_of_a_note_of_an_earlier_version_an_empty_batch_of_another_takes_nothing(tmp_path: Path) -> None:
    life = with_queue(tmp_path)
    life.harness.add_user("other")

    async def work(stages: Stages) -> Outcome:
        CommitNotes(life.harness.vhost.records).store("query", note(1, 0))
        with pytest.raises(NotOwner, match="its batch is empty"):
            await commit(life, 2, user="other")
        await put(stages, "a", content(b"2"), user="other")
        return await commit(life, 2, "a", user="other")

    assert life.run(work).committed


def test_a_note_names_few_exchanges(tmp_path: Path) -> None:
    life = with_queue(tmp_path)
    client = life.harness.channel()
    for number in range(6):
        client.call(1, exchange_declare(f"x{number}", "fanout"))
        client.bind("q", f"x{number}")

    async def work(stages: Stages) -> list[str] | None:
        await put(stages, "a", b"".join(publish_frames(f"x{number}", "", b"") for number in (0, 0, 1)))
        await commit(life, 1, "a")
        await put(stages, "b", b"".join(publish_frames(f"x{number}", "", b"") for number in range(6)))
        await commit(life, 2, "b")
        found = (await stages.notes(life.harness.vhost))["query"]
        return found.exchanges

    assert life.run(work) == ["x0", "x1", "x2", "x3"]


def test_nobody_waits_for_the_commit_of_another(tmp_path: Path) -> None:
    life = with_queue(tmp_path)
    life.harness.add_user("other")
    refused: list[str] = []

    async def work(stages: Stages) -> None:
        await put(stages, "a", content(b"1"))

        async def of_another() -> None:
            while not stages._commits and CommitNotes(life.harness.vhost.records).maybe_note("query") is None:
                await trio.lowlevel.checkpoint()
            with pytest.raises(Conflict, match=f"is being committed by user '{USER}'|user '{USER}' has committed"):
                await commit(life, 1, user="other")
            refused.append("other")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit, life, 1, "a")
            nursery.start_soon(of_another)

    life.run(work)
    assert refused == ["other"] and life.harness.queue("q").ready_count == 1


def test_nobody_commits_what_another_has_staged(tmp_path: Path) -> None:
    life = with_queue(tmp_path)
    life.harness.add_user("other")

    async def scenario(stages: Stages) -> None:
        await put(stages, "a", content(b"1"))
        with pytest.raises(NoStage):
            await commit(life, 0, "a", user="other")
        with pytest.raises(Conflict):
            await put(stages, "a", content(b"2"), user="other")
        with pytest.raises(NoStage):
            await stages.remove("/", "a", "other")

    life.run(scenario)


def test_a_part_is_checked_before_it_is_stored(tmp_path: Path) -> None:
    life = with_queue(tmp_path)
    asked: list[str] = []

    def refuse(exchange: str) -> None:
        asked.append(exchange)
        raise ConnectionException(WRITE, "no")

    async def scenario(stages: Stages) -> None:
        with pytest.raises(ConnectionException):
            await put(stages, "a", content(b"1")[:-1])
        with pytest.raises(ConnectionException):
            await stages.put("/", "a", 0, USER, publish_frames("e", "k", b"x"), refuse)
        assert await stages.listed(["/"], None) == []

    life.run(scenario)
    assert asked == ["e"]
    assert not (tmp_path / "stages").exists()


# --- limits and time --------------------------------------------------------------------------------------------------


def test_what_is_staged_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = with_queue(tmp_path)
    one = content(b"x")
    monkeypatch.setattr(stages, "STAGES_QUOTA", Quota(2, 2))
    monkeypatch.setattr(stages, "PARTS_QUOTA", Quota(4, 4))
    monkeypatch.setattr(stages, "BYTES_QUOTA", Quota(6 * len(one), 6 * len(one)))

    async def scenario(found: Stages) -> None:
        await put(found, "a", one, one)
        await put(found, "b", one)
        with pytest.raises(NoRoom, match="2 stages"):
            await put(found, "c", one)
        with pytest.raises(NoRoom, match="bytes"):
            await put(found, "b", one * 6)
        await put(found, "b", one, one)
        with pytest.raises(NoRoom, match="4 parts"):
            await found.put("/", "b", 2, USER, one, lambda exchange: None)
        await found.remove("/", "a", USER)
        await put(found, "c", one)
        life.management.settings = Settings(data_dir=tmp_path, store=StoreSettings(disk_free_min_bytes=1 << 62))
        with pytest.raises(NoRoom, match="disk"):
            await put(found, "c", one)

    life.run(scenario)


def test_a_user_stages_a_share_and_leaves_room_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = with_queue(tmp_path)
    one = content(b"x")
    monkeypatch.setattr(stages, "STAGES_QUOTA", Quota(4, 2))
    monkeypatch.setattr(stages, "PARTS_QUOTA", Quota(6, 4))
    monkeypatch.setattr(stages, "BYTES_QUOTA", Quota(100 * len(one), 4 * len(one)))

    async def scenario(found: Stages) -> None:
        def put_by(user: str, name: str, part: int = 0, what: bytes = one) -> Awaitable[int]:
            return found.put("/", name, part, user, what, lambda exchange: None)

        await put_by("greedy", "a")
        await put_by("greedy", "b")
        with pytest.raises(NoRoom, match="user 'greedy' has 2 stages"):
            await put_by("greedy", "c")
        with pytest.raises(NoRoom, match="bytes"):
            await put_by("greedy", "a", 1, one * 3)
        await put_by("greedy", "a", 1)
        await put_by("greedy", "a", 2)
        with pytest.raises(NoRoom, match="user 'greedy' has 4 parts"):
            await put_by("greedy", "a", 3, content())
        await put_by("other", "d", 0, one * 4)
        await found.remove("/", "a", "greedy")
        await put_by("greedy", "c", 0, one * 3)

    life.run(scenario)


def test_a_stage_that_nobody_commits_goes_after_its_time_and_another_stays(tmp_path: Path) -> None:
    life = with_queue(tmp_path)
    now_ms = 1_000_000_000_000
    life.management.clock_ms = lambda: now_ms

    async def scenario(found: Stages) -> None:
        nonlocal now_ms
        await put(found, "old", content(b"1"))
        now_ms += stages.STAGE_TTL_S * 1000
        await put(found, "new", content(b"1"))
        await found._sweep()
        assert {each.name for each in await found.listed(["/"], None)} == {"old", "new"}
        now_ms += 1
        await found._sweep()
        assert {each.name for each in await found.listed(["/"], None)} == {"new"}

    life.run(scenario)
    again = life.after_a_crash(tmp_path)
    now_ms += 2 * stages.STAGE_TTL_S * 1000

    async def look(found: Stages) -> None:
        while await found.listed(["/"], None):
            await trio.lowlevel.checkpoint()

    again.run(look)


def test_a_stage_that_a_begun_batch_needs_stays_although_another_is_lost(tmp_path: Path) -> None:
    life = with_queue(tmp_path)

    async def stage(found: Stages) -> None:
        await put(found, "a", content(b"x"))
        await put(found, "b", content(b"x"))

    life.run(stage)
    life.harness.vhost.records.store("commit:query", b'{"batch":4,"user":"guest","done":false}')
    life.harness.vhost.records.store("plan:query", b'{"batch":4,"parts":[["a",0],["gone",0]]}')
    life.harness.write()
    later_ms = wall_time_ms() + 2 * stages.STAGE_TTL_S * 1000

    async def look(found: Stages) -> None:
        while len(left := await found.listed(["/"], None)) > 1:
            await trio.lowlevel.checkpoint()
        assert [(each.name, each.needed_by) for each in left] == [("a", "query")]

    next_life = life.after_a_crash(tmp_path)
    next_life.management.clock_ms = lambda: later_ms
    next_life.run(look)


@pytest.mark.parametrize("messages", [0, 1])
def test_a_commit_is_synced_when_it_is_answered_whatever_a_confirm_means_here(tmp_path: Path, messages: int) -> None:
    life = with_queue(tmp_path)
    life.harness.vhost.sync_confirms = False
    log = life.harness.broker.log

    async def scenario(found: Stages) -> None:
        names = [await put(found, "a", content(b"x"))] * messages
        before = int(log.next_lsn)
        assert (await commit(life, 0, *names)).committed
        assert log.durable_lsn == log.next_lsn > before

    life.run(scenario)


def note(batch: int, at_ms: int, until_ms: int | None = None, *, done: bool = True) -> Note:
    return Note(batch, USER, done=done, at_ms=at_ms, until_ms=until_ms)


def test_notes_go_with_their_time_or_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = DurableHarness()
    notes = CommitNotes(harness.vhost.records)
    monkeypatch.setattr(commit_notes, "NOTES_MAX", 2)
    notes.store("short", note(0, 5, until_ms=10))
    notes.store("begun", note(0, 0, until_ms=1, done=False))
    for at_ms in (3, 1, 2):
        notes.store(f"at {at_ms}", note(0, at_ms))
    assert set(commit_notes.due(dict(notes.each()), 9)) == {"at 1", "at 2"}
    for query in ("at 1", "at 2"):
        notes.expire(query, note(0, int(query[-1])))
    assert set(dict(notes.each())) == {"short", "begun", "at 3"}
    assert commit_notes.due(dict(notes.each()), 10) == ["short"]


def test_notes_of_a_user_leave_room_for_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_notes, "NOTES_MAX", 5)
    monkeypatch.setattr(commit_notes, "NOTES_OF_USER_MAX", 3)
    notes = {f"mine {at_ms}": note(1, at_ms) for at_ms in (10, 11, 12, 13)}
    others = {f"another's {at_ms}": Note(1, "other", done=True, at_ms=at_ms) for at_ms in (1, 2)}
    assert commit_notes.due(notes | others, 20) == ["mine 10"]


def test_a_note_that_is_another_one_by_now_stays() -> None:
    harness = DurableHarness()
    notes = CommitNotes(harness.vhost.records)
    notes.store("query", note(1, 5, until_ms=10))
    notes.expire("query", note(0, 1, until_ms=2))
    assert notes.maybe_note("query") is not None
    notes.expire("query", note(1, 5, until_ms=10))
    assert notes.maybe_note("query") is None


def test_notes_of_very_many_queries_go_before_the_hour_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "SWEEP_AFTER", 5)
    monkeypatch.setattr(stages, "AT_ONCE", 2)
    monkeypatch.setattr(commit_notes, "NOTES_MAX", 3)
    life = with_queue(tmp_path)

    async def scenario(found: Stages) -> None:
        for number in range(100):
            await found.commit(life.harness.vhost, USER, Order(f"query {number}", 0, [], True, None))
            left = await found.notes(life.harness.vhost)
            assert f"query {number}" in left
            if "query 0" not in left:
                return
        raise AssertionError("none has gone")

    life.run(scenario)


def test_a_part_for_very_many_exchanges_is_checked_in_pieces(tmp_path: Path) -> None:
    life = with_queue(tmp_path)
    publishes = b"".join(publish_frames(f"e{number}", "") for number in range(8 * stages.AT_ONCE))
    turns = 0
    asked: dict[int, int] = {}

    def authorize(exchange: str) -> None:
        asked[turns] = asked.get(turns, 0) + 1

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async def scenario(found: Stages) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            await found.put("/", "wide", 0, USER, publishes, authorize)
            nursery.cancel_scope.cancel()

    life.run(scenario)
    assert sum(asked.values()) == 8 * stages.AT_ONCE
    assert max(asked.values()) <= 2 * stages.AT_ONCE  # trio may run one task last in a round and first in the next


def test_a_batch_whose_number_was_used_is_a_repetition_only_if_it_has_as_many_messages(tmp_path: Path) -> None:
    """commit_notes (2): a writer that was taken back counts from an earlier number on."""
    life = with_queue(tmp_path)

    async def work(stages: Stages) -> None:
        async def staged(batch: int, *bodies: bytes, compares: bool = True) -> Outcome:
            name = f"stage-{next(names)}"
            return await commit(life, batch, await put(stages, name, content(*bodies)), compares=compares)

        names = iter(range(100))
        for batch in (1, 2, 3):
            assert (await staged(batch, *[b"x"] * batch)).committed
        for batch in (1, 2, 3):  # another order of rows, or other texts, are no other batch
            assert (await staged(batch, *[b"y"] * batch)).duplicate
        for batch, count in ((3, 5), (2, 1), (1, 2)):
            with pytest.raises(OtherBatch, match="its writer was taken back"):
                await staged(batch, *[b"new"] * count)
        assert (await staged(3, *[b"new"] * 5, compares=False)).duplicate
        assert (await commit(life, 3, "gone", compares=True)).duplicate, "only its answer was lost"
        for batch in range(4, 4 + commit_notes.EARLIER_MAX):
            assert (await staged(batch, b"x")).committed
        with pytest.raises(OtherBatch, match="not remembered"):
            await staged(2, b"x", b"x")

    life.run(work)
    assert life.harness.queue("q").ready_count == 1 + 2 + 3 + commit_notes.EARLIER_MAX


def test_how_many_messages_a_batch_had_is_known_after_a_restart(tmp_path: Path) -> None:
    life = with_queue(tmp_path)

    async def publish(stages: Stages) -> Outcome:
        return await commit(life, 1, await put(stages, "a", content(b"1", b"2")), compares=True)

    assert life.run(publish).committed
    life = life.after_a_crash(tmp_path)

    async def again(stages: Stages) -> Outcome:
        with pytest.raises(OtherBatch):
            await commit(life, 1, await put(stages, "b", content(b"1")), compares=True)
        return await commit(life, 1, await put(stages, "c", content(b"1", b"2")), compares=True)

    assert life.run(again).duplicate
