"""Stages and their commits: crashes at every step, other nodes, very many places. stages (1)-(6)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing
from durable_harness import DurableHarness
from engine_harness import exchange_declare, publish_frames

from warren.amqp.errors import AmqpError
from warren.channels.transaction import ROWS_AT_ONCE
from warren.server.staging.commit_notes import CommitNotes
from warren.server.staging.stage_files import DamagedPart
from warren.server.staging.staged_batch import Conflict, NoStage, OtherBatch, Outcome, QueueFull
from warren.server.staging.stages import Stages
from warren.vhosts.metadata import VhostDelete, VhostPut

from .stage_life import PERSISTENT, Life, commit, content, names_of, put, with_queue

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


def with_old(directory: Path, old: list[bytes], **more: Any) -> Life:
    """Return a process with a queue that is full: it has messages, and room for no more than replace them."""
    harness = DurableHarness()
    channel = harness.channel()
    channel.declare("q", durable=True, arguments={"x-max-length": 11, "x-overflow": "reject-publish"})
    channel.feed(content(*old))
    harness.broker.log.force()
    harness.settle()
    return Life(directory, harness, **more)


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("messages", [0, 2, 11])
@pytest.mark.usefixtures("small_pieces")
def test_a_batch_that_replaces_messages_leaves_the_old_or_the_new_wherever_the_process_dies(
    tmp_path: Path, messages: int, behind: bool
) -> None:
    old = [b"old %d" % number for number in range(9)]
    new = [b"new %d" % number for number in range(messages)]
    crash_at = 0
    found: set[bool] = set()
    while True:
        crash_at += 1
        directory = tmp_path / str(crash_at)
        life = with_old(directory, old, crash_at=crash_at, behind=behind)

        async def write(stages: Stages, life: Life = life) -> Outcome:
            names = [await put(stages, "a", content(*new))] if new else []
            return await commit(life, 0, *names, purged="q")

        died = life.dies(write)
        again = life.after_a_crash(directory)

        async def resumed(stages: Stages) -> None:
            while not all(note.done for note in (await stages.notes("/")).values()):
                await trio.lowlevel.checkpoint()

        again.run(resumed)
        bodies = again.bodies()
        assert bodies in (old, new), crash_at
        found.add(bodies == new)
        if not died:
            break
    assert found == {False, True}


@pytest.mark.parametrize("messages", [2, 12])
def test_a_batch_that_is_refused_replaces_nothing(tmp_path: Path, messages: int) -> None:
    old = [b"old"]
    life = with_old(tmp_path, old)
    life.harness.channel().declare("s", durable=True, arguments={"x-queue-type": "stream"})

    async def write(stages: Stages) -> None:
        bodies = [b"%d" % number for number in range(messages)]
        await put(stages, "none", content(*bodies[:-1]) + content(b"last", queue="nobody"))
        assert not (await commit(life, 0, "none", purged="q")).committed
        await put(stages, "all", content(*bodies))
        for refused in ("s", "nobody"):
            with pytest.raises(AmqpError):
                await commit(life, 0, "all", purged=refused)
        if messages > 11:
            with pytest.raises(QueueFull):
                await commit(life, 0, "all", purged="q")
        else:
            assert (await commit(life, 0, "all", purged="q")).committed
            assert (await commit(life, 0, "all", purged="q")).duplicate

    life.run(write)
    assert life.bodies() == (old if messages > 11 else [b"0", b"1"])


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

        async def resume(stages: Stages, life: Life = life) -> Outcome:
            return await commit(life, 3, "a")

        if not life.dies(resume):
            break
    assert lives > 2
    assert life.bodies() == bodies


def half_published(tmp_path: Path, bodies: list[bytes]) -> tuple[Path, DurableHarness]:
    """Make a process die when a part of a batch is on disk; return where its stages are, and the next process."""
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
        while not (await stages.notes("/"))["query"].done:
            await trio.lowlevel.checkpoint()

    again.run(look)
    assert again.bodies() == bodies


# --- several nodes ----------------------------------------------------------------------------------------------------


def in_cluster(life: Life, epoch: int) -> Life:
    """Make a life lead in `epoch`."""
    life.management.replication = object()
    life.harness.broker.log.epoch = epoch
    return life


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


def test_a_stage_is_not_set_aside_whose_vhost_another_leader_has_deleted(tmp_path: Path) -> None:
    async def write(stages: Stages) -> None:
        await put(stages, "a", content(b"old"))

    first = in_cluster(with_queue(tmp_path), 4)
    first.run(write)
    after_another = in_cluster(first.after_a_crash(tmp_path), 7)
    after_another.harness.broker.administer(VhostDelete("/"), "")
    after_another.harness.settle()
    assert after_another.run(names_of) == []
    assert not list((tmp_path / "stages").glob("*/*/*"))


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


def test_a_stage_is_not_added_to_one_that_is_superseded_and_cannot_be_removed(tmp_path: Path) -> None:
    """A start would have taken the old parts and the new ones for one stage."""

    async def write(stages: Stages) -> None:
        await put(stages, "a", content(b"old 0"), content(b"old 1"))

    async def rewrite(stages: Stages) -> None:
        assert await names_of(stages) == []
        with pytest.raises(Conflict):
            await put(stages, "a", content(b"new 0"))
        stages._files.remove = remove  # type: ignore[method-assign]
        await put(stages, "a", content(b"new 0"))
        await stages._sweep()

    def stuck(vhost: str, stage: str) -> None:
        raise OSError(5, "Input/output error")

    first = in_cluster(with_queue(tmp_path), 4)
    first.run(write)
    broken = in_cluster(first.after_a_crash(tmp_path), 6)
    remove = broken.stages._files.remove
    broken.stages._files.remove = stuck  # type: ignore[method-assign]
    broken.run(rewrite)
    last = in_cluster(broken.after_a_crash(tmp_path), 7)
    last.run(lambda stages: commit(last, 0, "a"))
    assert last.bodies() == [b"new 0"]


@pytest.mark.parametrize("damage", ["bit", "empty", "unreadable"])
def test_stages_are_set_aside_when_it_is_not_known_whether_another_node_has_led(tmp_path: Path, damage: str) -> None:
    async def write(stages: Stages) -> None:
        await put(stages, "a", content(b"old"))

    async def rewrite(stages: Stages) -> None:
        assert await names_of(stages) == []
        await put(stages, "a", content(b"new"))
        await stages._sweep()

    first = in_cluster(with_queue(tmp_path), 4)
    first.run(write)
    note = tmp_path / "stages" / "epoch"
    if damage == "unreadable":
        note.unlink()
        note.mkdir()
    else:
        note.write_bytes(b"5 " + note.read_bytes()[2:] if damage == "bit" else b"")
    again = in_cluster(first.after_a_crash(tmp_path), 6)
    again.run(rewrite)
    (aside,) = (tmp_path / "stages" / "aside").iterdir()
    assert [path.name for path in aside.iterdir()] == ["0000000000"]
    if damage != "unreadable":  # that note cannot be written either
        last = in_cluster(again.after_a_crash(tmp_path), 7)
        last.run(lambda stages: commit(last, 0, "a"))
        assert last.bodies() == [b"new"]


def test_a_commit_that_joins_one_with_other_stages_is_compared_with_it(tmp_path: Path) -> None:
    """It was told "committed", and its messages were removed."""
    life = with_queue(tmp_path)
    may_sync = trio.Event()

    async def scenario(stages: Stages) -> None:
        await put(stages, "a", content(b"1"))
        await put(stages, "b", content(b"1", b"2"))
        await put(stages, "c", content(b"1"))
        commit_ticket = life.management.commit

        async def slowly(ticket: int) -> None:
            await may_sync.wait()
            await commit_ticket(ticket)

        life.management.commit = slowly
        outcomes: dict[str, Outcome | Exception] = {}

        async def request(*names: str) -> None:
            try:
                outcomes["".join(names)] = await commit(life, 0, *names, compares=True)
            except OtherBatch as error:
                outcomes["".join(names)] = error

        async with trio.open_nursery() as nursery:
            nursery.start_soon(request, "a")
            await trio.testing.wait_all_tasks_blocked()
            for names in (["a", "a"], ["b"], ["c"]):
                nursery.start_soon(request, *names)
            await trio.testing.wait_all_tasks_blocked()
            assert not outcomes
            may_sync.set()
        assert outcomes["a"] == outcomes["aa"] == Outcome(committed=True, messages=1)
        assert isinstance(outcomes["b"], OtherBatch)
        assert outcomes["c"] == Outcome(committed=False, duplicate=True)
        assert await names_of(stages) == ["b"]

    life.run(scenario)
    assert life.bodies() == [b"1"]


def test_a_commit_that_joins_one_that_fails_begins_its_own(tmp_path: Path) -> None:
    life = with_queue(tmp_path)

    async def scenario(stages: Stages) -> None:
        await put(stages, "a", content(b"1", queue="nowhere"))
        await put(stages, "b", content(b"2"))
        outcomes: list[Outcome] = []

        async def request(name: str) -> None:
            outcomes.append(await commit(life, 0, name))

        async with stages._stages["/", "a"].lock, trio.open_nursery() as nursery:
            nursery.start_soon(request, "a")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(request, "b")
            await trio.testing.wait_all_tasks_blocked()
            stages._stages["/", "a"].lock.release()
            await trio.testing.wait_all_tasks_blocked()
            await stages._stages["/", "a"].lock.acquire()
        assert sorted(outcomes, key=lambda outcome: outcome.committed) == [
            Outcome(committed=False, unroutable=1),
            Outcome(committed=True, messages=1),
        ]

    life.run(scenario)
    assert life.bodies() == [b"2"]


def test_a_vhost_that_is_deleted_while_its_stages_are_looked_at_has_none(tmp_path: Path) -> None:
    life = with_queue(tmp_path)

    async def scenario(stages: Stages) -> None:
        assert (await commit(life, 0, await put(stages, "a", content(b"x")))).committed
        life.harness.broker.administer(VhostPut("other"), "")
        await put(stages, "b", content(b"y"))
        ready = stages._ready

        class Deleting:
            async def wait(self) -> None:
                await ready.wait()
                if "/" in life.harness.broker.vhosts:
                    life.harness.broker.administer(VhostDelete("/"), "")
                    life.harness.settle()

        stages._ready = Deleting()  # type: ignore[assignment]
        assert await stages.notes("/") == {}
        assert not await stages.forget("/", "query")
        with pytest.raises(NoStage, match="was deleted"):
            await commit(life, 1, "b")
        await stages._sweep()
        assert not stages._stages

    life.run(scenario)


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
        assert "was written again after batch 0 had begun" in str(failure.value.exceptions[0])
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
