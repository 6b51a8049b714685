"""Commits that meet an obstacle, and queries of several users. stages (1)-(6)."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from engine_harness import exchange_declare, publish_frames

from warren.amqp.errors import ChannelException, ConnectionException
from warren.channels.access import WRITE
from warren.server.staging.commit_notes import CommitNotes, CommitPlan, Note
from warren.server.staging.staged_batch import (
    Conflict,
    MissingBatches,
    NoStage,
    NotOwner,
    OtherBatch,
    Outcome,
    QueueFull,
)
from warren.server.staging.stages import Stages
from warren.vhosts.metadata import UserDelete

from .stage_life import USER, commit, content, names_of, note, put, small, with_queue


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
        note = (await stages.notes("/"))["query"]
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
        assert await stages.forget("/", "query")
        assert not await stages.forget("/", "query")
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
            asking.start_soon(ask, "a")
            asking.start_soon(ask, "b")
            await trio.lowlevel.checkpoint()
            life.harness.store.hold = False
            life.settle()
        assert await stages.listed(["/"], None) == []

    life.run(scenario)
    assert sorted(outcomes, key=lambda outcome: outcome.duplicate) == [
        Outcome(committed=True, messages=1),
        Outcome(committed=False, duplicate=True),
    ]
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
        assert await stages.notes("/") == {}
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
        assert await stages.forget("/", "query")
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
        assert await stages.forget("/", "query")
        return [again, following, await commit(life, 9, "b")]

    again, following, last = life.run(work)
    assert again.duplicate and following.committed and last.committed
    assert sorted(life.bodies()) == [b"4", b"9"]


def test_a_batch_that_follows_others_is_refused_when_none_is_known(tmp_path: Path) -> None:
    """As after the restore of a backup from before the query began."""
    life = with_queue(tmp_path)

    async def work(stages: Stages) -> Outcome:
        await put(stages, "a", content(b"3"))
        with pytest.raises(MissingBatches, match="older backup"):
            await commit(life, 3, "a", follows=True)
        assert await names_of(stages) == ["a"], "it is not dropped"
        assert (await commit(life, 2)).committed
        return await commit(life, 3, "a", follows=True)

    assert life.run(work).committed
    assert life.bodies() == [b"3"]


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
            return (await stages.notes("/")).get("query")

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
        before = await stages.notes("/")
        await put(stages, "a", content(b"1"), user="other")
        for names in ([], ["a"]):
            with pytest.raises(NotOwner, match="belongs to user 'former' alone"):
                await commit(life, 1, *names, user="other")
        assert await stages.notes("/") == before
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
            with pytest.raises(Conflict, match="other users are not told"):
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
        found = (await stages.notes("/"))["query"]
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
