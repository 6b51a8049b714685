"""Stages and commits whose vhost, disk or request ends at a bad moment. stages (1), (2), (6)."""

from __future__ import annotations

import threading
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from warren.amqp.declarations import QueueDeclaration
from warren.channels.direct_session import DirectSession
from warren.server.staging.commit_notes import CommitNotes
from warren.server.staging.stage_files import Cell, PartHead
from warren.server.staging.staged_batch import Conflict, NoRoom, NoStage
from warren.server.staging.stages import Stages
from warren.vhosts.metadata import PermissionPut, VhostDelete, VhostPut

from .stage_life import USER, Life, commit, content, names_of, put, with_queue


def declare_vhost_again(life: Life) -> None:
    broker = life.harness.broker
    broker.administer(VhostDelete("/"), "")
    life.harness.settle()
    broker.administer(VhostPut("/"), "")
    broker.administer(PermissionPut(USER, "/", ".*", ".*", ".*"), "")
    broker.vhosts["/"].declare_queue(QueueDeclaration("q", durable=True))
    life.harness.settle()


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(("messages", "at"), [(2, 1), (2, 2), *((9, at) for at in range(1, 10))])
def test_a_vhost_that_was_declared_again_gets_nothing_of_a_batch_of_the_earlier_one(
    tmp_path: Path, messages: int, at: int
) -> None:
    """At every session that the commit opens: neither messages nor a note reach the later vhost."""
    bodies = [b"%d" % number for number in range(messages)]
    life = with_queue(tmp_path)
    open_direct = life.harness.broker.open_direct
    opened = 0

    def opening(user: str, vhost: str) -> DirectSession:
        nonlocal opened
        opened += 1
        if opened == at:
            declare_vhost_again(life)
        return open_direct(user, vhost)

    life.clients._open_direct = opening

    async def write(found: Stages) -> None:
        await put(found, "a", content(*bodies))
        if at > (1 if messages == 2 else 8):
            assert (await commit(life, 0, "a")).committed
            return
        with pytest.raises(NoStage, match="was deleted"):
            await commit(life, 0, "a")
        assert await found.listed(["/"], None) == []

    life.run(write)
    life.harness.write()
    is_published = opened < at
    following = life.after_a_crash(tmp_path)
    note = CommitNotes(following.harness.vhost.records).maybe_note("query")
    assert (note is not None) == is_published
    assert following.bodies() == (bodies if is_published else [])


def test_a_vhost_that_was_declared_again_has_none_of_the_earlier_stages(tmp_path: Path) -> None:
    """Neither a commit nor a part that comes later uses them, whether they are removed yet or not. (6)"""
    life = with_queue(tmp_path)

    async def write(found: Stages) -> None:
        await put(found, "a", content(b"earlier"), content(b"earlier too"))
        declare_vhost_again(life)
        assert await found.listed(["/"], None) == []
        with pytest.raises(NoStage):
            await commit(life, 0, "a")
        await put(found, "a", content(b"later"))
        assert (await commit(life, 1, "a")).committed
        await trio.testing.wait_all_tasks_blocked()
        assert found._stages == {} and found._space.of_users == {}

    life.run(write)
    assert life.bodies() == [b"later"]


def test_a_vhost_that_was_declared_again_before_a_crash_has_none_of_the_earlier_stages(tmp_path: Path) -> None:
    """The files were still there, and the name of the vhost was all that they said. (6)"""
    life = with_queue(tmp_path)

    def stuck(vhost: str, stage: str) -> None:
        raise OSError(30, "Read-only file system")

    life.stages._files.remove = stuck  # type: ignore[method-assign]

    async def write(found: Stages) -> None:
        await put(found, "a", content(b"earlier"), content(b"earlier too"))
        await put(found, "b", content(b"earlier"))
        declare_vhost_again(life)
        await put(found, "c", content(b"of the later one"))

    life.run(write)
    life.harness.write()
    following = life.after_a_crash(tmp_path)

    async def commit_again(found: Stages) -> None:
        assert await names_of(found) == ["c"]
        with pytest.raises(NoStage):
            await commit(following, 0, "a")
        await put(found, "b", content(b"later"))
        assert (await commit(following, 0, "b", "c")).committed
        await trio.testing.wait_all_tasks_blocked()
        assert found._stages == {} and found._space.of_users == {}

    following.run(commit_again)
    assert following.bodies() == [b"later", b"of the later one"]
    assert not list((tmp_path / "stages").glob("*/*/*"))


@pytest.mark.parametrize("lost", ["record", "vhost"])
def test_a_stage_stays_on_disk_if_damage_has_taken_what_it_belongs_to(tmp_path: Path, lost: str) -> None:
    life = with_queue(tmp_path)

    async def write(found: Stages) -> None:
        await put(found, "a", content(b"x"), content(b"y"))

    life.run(write)
    files = {path.name: path.read_bytes() for path in (tmp_path / "stages").glob("*/*/*")}
    if lost == "record":
        assert life.harness.vhost.records.forget("stages:life")
        life.harness.write()
    following = life.after_a_crash(tmp_path)
    if lost == "vhost":
        following.harness.broker.administer(VhostDelete("/"), "")
        following.harness.settle()

    async def look(found: Stages) -> None:
        assert await names_of(found) == []
        await found._sweep()
        if lost == "record":
            with pytest.raises(NoStage):
                await commit(following, 0, "a")
            assert (await commit(following, 0, await put(found, "a", content(b"z")))).committed
        assert found._stages == {} and found._space.of_users == {}

    following.run(look)
    if lost == "record":
        assert following.bodies() == [b"z"]
    (aside,) = (tmp_path / "stages" / "aside").iterdir()
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == files


def test_nothing_is_added_to_a_stage_that_cannot_be_set_aside(tmp_path: Path) -> None:
    """A start would have taken the old parts and the new ones for one stage."""
    life = with_queue(tmp_path)

    async def write(found: Stages) -> None:
        await put(found, "a", content(b"x"), content(b"y"))

    life.run(write)
    assert life.harness.vhost.records.forget("stages:life")
    life.harness.write()
    following = life.after_a_crash(tmp_path)
    files = following.stages._files
    set_aside = files.set_aside

    def stuck(vhost: str, stage: str) -> str:
        raise OSError(30, "Read-only file system")

    files.set_aside = stuck  # type: ignore[method-assign]

    async def add(found: Stages) -> None:
        assert await names_of(found) == []
        with pytest.raises(Conflict):
            await put(found, "a", content(b"z"))
        files.set_aside = set_aside  # type: ignore[method-assign]
        assert (await commit(following, 0, await put(found, "a", content(b"z")))).committed

    following.run(add)
    assert following.bodies() == [b"z"]
    (aside,) = (tmp_path / "stages" / "aside").iterdir()
    assert sorted(path.name for path in aside.iterdir()) == ["0000000000", "0000000001"]


def test_a_part_of_an_earlier_version_stays_usable(tmp_path: Path) -> None:
    life = with_queue(tmp_path)

    async def write(found: Stages) -> None:
        await put(found, "new", content(b"new"))
        publishes = content(b"old")
        cells = [Cell(len(publishes), 1, zlib.crc32(publishes))]
        found._files.write(PartHead("/", "old", 0, USER, life.management.clock_ms(), cells), publishes)

    life.run(write)
    again = life.after_a_crash(tmp_path)

    async def commit_both(found: Stages) -> None:
        assert (await commit(again, 0, "old", "new")).messages == 2

    again.run(commit_both)
    assert again.bodies() == [b"old", b"new"]


def test_a_part_is_refused_when_its_vhost_is_deleted_while_its_life_is_written(tmp_path: Path) -> None:
    life = with_queue(tmp_path)
    synced = life.management.messages.deleted

    async def slowly() -> None:
        await synced()
        declare_vhost_again(life)

    life.management.messages.deleted = slowly

    async def write(found: Stages) -> None:
        with pytest.raises(NoStage, match="was deleted"):
            await put(found, "a", content(b"x"))
        assert await names_of(found) == [] and found._stages == {}
        life.management.messages.deleted = synced
        await put(found, "a", content(b"y"))
        assert (await commit(life, 0, "a")).committed

    life.run(write)
    assert life.bodies() == [b"y"]


def test_a_published_stage_that_cannot_be_removed_is_removed_later(tmp_path: Path) -> None:
    life = with_queue(tmp_path)
    remove = life.stages._files.remove
    broken = True

    def maybe_remove(vhost: str, stage: str) -> None:
        if broken:
            raise OSError(30, "Read-only file system")
        remove(vhost, stage)

    life.stages._files.remove = maybe_remove  # type: ignore[method-assign]

    async def scenario(found: Stages) -> None:
        nonlocal broken
        assert (await commit(life, 0, await put(found, "a", content(b"x")))).committed
        assert (await commit(life, 1, await put(found, "b", content(b"y")))).committed
        assert await names_of(found) == ["a", "b"]
        broken = False
        await found.remove("/", "a", USER)
        await found._sweep()
        assert await names_of(found) == []
        await put(found, "b", content(b"z"))
        assert (await commit(life, 2, "b")).messages == 1

    life.run(scenario)
    assert life.bodies() == [b"x", b"y", b"z"]


def test_stages_of_a_begun_batch_are_removed_when_its_vhost_was_declared_again(tmp_path: Path) -> None:
    life = with_queue(tmp_path)

    async def stage(found: Stages) -> None:
        await put(found, "a", content(b"x"))

    life.run(stage)
    life.harness.vhost.records.store("commit:query", b'{"batch":4,"user":"guest","done":false}')
    life.harness.vhost.records.store("plan:query", b'{"batch":4,"parts":[["a",0],["gone",0]]}')
    life.harness.write()
    again = life.after_a_crash(tmp_path)

    async def scenario(found: Stages) -> None:
        assert [each.needed_by for each in await found.listed(["/"], None)] == ["query"]
        await found._sweep()
        assert await names_of(found) == ["a"]
        declare_vhost_again(again)
        await found._sweep()
        assert await names_of(found) == []

    again.run(scenario)


def test_nothing_is_swept_before_it_is_known_what_begun_batches_need(tmp_path: Path) -> None:
    life = with_queue(tmp_path)

    async def stage(found: Stages) -> None:
        await put(found, "a", content(b"x"))

    life.run(stage)
    again = life.after_a_crash(tmp_path)
    again.management.clock_ms = lambda: 1 << 50

    async def sweep() -> None:
        await again.stages._find()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(again.stages._sweep)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert [name for _, name in again.stages._stages] == ["a"]
            nursery.cancel_scope.cancel()

    trio.run(sweep)


def test_stages_that_are_looked_for_twice_count_once(tmp_path: Path) -> None:
    life = with_queue(tmp_path)

    async def scenario(found: Stages) -> None:
        await put(found, "a", content(b"x"))
        before = replace(found._space.of_users[USER])
        await found._find()
        assert found._space.of_users == {USER: before} and found._space.all == before

    life.run(scenario)


def test_a_stage_that_was_removed_while_it_was_written_is_not_published_without_its_beginning(tmp_path: Path) -> None:
    life = with_queue(tmp_path)

    async def scenario(found: Stages) -> None:
        await put(found, "a", content(b"0"))
        await found.remove("/", "a", USER)
        for part in (1, 2):
            await found.put("/", "a", part, USER, content(b"%d" % part), lambda exchange: None)
        with pytest.raises(NoStage, match="part 0 of stage 'a'"):
            await commit(life, 0, "a")
        await put(found, "a", content(b"0"))
        assert (await commit(life, 0, "a")).messages == 3

    life.run(scenario)
    assert life.bodies() == [b"0", b"1", b"2"]


def test_a_part_whose_request_is_cancelled_before_its_turn_leaves_no_stage(tmp_path: Path) -> None:
    life = with_queue(tmp_path)

    async def scenario(found: Stages) -> None:
        await names_of(found)
        with trio.CancelScope() as scope:
            await found.put("/", "a", 0, "other", content(b"x"), lambda exchange: scope.cancel())
        assert scope.cancelled_caught
        assert not found._space.of_users and await names_of(found) == []
        await put(found, "a", content(b"x"))

    life.run(scenario)


def test_a_part_that_waits_for_one_that_cannot_be_stored_is_stored(tmp_path: Path) -> None:
    life = with_queue(tmp_path)
    write = life.stages._files.write
    broken = True

    def maybe_write(head: PartHead, content: bytes) -> None:
        nonlocal broken
        if broken:
            broken = False
            raise OSError(28, "No space left on device")
        write(head, content)

    life.stages._files.write = maybe_write  # type: ignore[method-assign]

    async def scenario(found: Stages) -> None:
        refused = 0

        async def store(part: int) -> None:
            nonlocal refused
            try:
                await found.put("/", "a", part, USER, content(b"x"), lambda exchange: None)
            except NoRoom:
                refused += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(store, 0)
            nursery.start_soon(store, 0)
        assert refused == 1 and await names_of(found) == ["a"]

    life.run(scenario)


@pytest.mark.parametrize("late", [1, 2])
def test_a_part_that_is_written_while_its_commit_begins_counts(tmp_path: Path, late: int) -> None:
    """It is published, so the note counts it; and it may leave a gap."""
    life = with_queue(tmp_path)
    write = life.stages._files.write
    is_written = threading.Event()

    def slowly(head: PartHead, content: bytes) -> None:
        if head.part == late:
            assert is_written.wait(30)
        write(head, content)

    life.stages._files.write = slowly  # type: ignore[method-assign]

    async def scenario(found: Stages) -> None:
        await put(found, "a", content(b"0"))
        outcomes: list[int] = []

        async def begin() -> None:
            if late == 1:
                outcomes.append((await commit(life, 0, "a")).messages)
                return
            with pytest.raises(NoStage, match="part 1 of stage 'a'"):
                await commit(life, 0, "a")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.put, "/", "a", late, USER, content(b"1", b"2"), lambda exchange: None)
            while not found._stages["/", "a"].lock.locked():
                await trio.sleep(0.001)
            nursery.start_soon(begin)
            while found._stages["/", "a"].needed_by is None:
                await trio.sleep(0.001)
            is_written.set()
        assert outcomes == ([3] if late == 1 else [])

    life.run(scenario)
    noted = CommitNotes(life.harness.vhost.records).maybe_note("query")
    assert (None if noted is None else noted.staged) == (3 if late == 1 else None)
    assert life.bodies() == ([b"0", b"1", b"2"] if late == 1 else [])


def test_a_stage_whose_only_part_cannot_be_stored_is_not_published(tmp_path: Path) -> None:
    """Its commit began while the part was written."""
    life = with_queue(tmp_path)
    has_begun = threading.Event()

    def refuse(head: PartHead, content: bytes) -> None:
        assert has_begun.wait(30)
        raise OSError(28, "No space left on device")

    life.stages._files.write = refuse  # type: ignore[method-assign]

    async def scenario(found: Stages) -> None:
        await names_of(found)

        async def write() -> None:
            with pytest.raises(NoRoom):
                await put(found, "a", content(b"0"))

        async def begin() -> None:
            with pytest.raises(NoStage, match="stage 'a' in vhost '/' has no part"):
                await commit(life, 0, "a")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            while ("/", "a") not in found._stages or not found._stages["/", "a"].lock.locked():
                await trio.sleep(0.001)
            nursery.start_soon(begin)
            while found._stages["/", "a"].needed_by is None:
                await trio.sleep(0.001)
            has_begun.set()
        assert await names_of(found) == [] and not found._space.of_users

    life.run(scenario)
    assert CommitNotes(life.harness.vhost.records).maybe_note("query") is None


def test_a_commit_whose_stage_cannot_be_removed_by_our_fault_is_answered_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each further request for the query would wait for a commit that is over."""
    life = with_queue(tmp_path)

    async def go(stages: Stages) -> None:
        await put(stages, "a", content(b"one"))
        remove = stages._files.remove

        def fail_once(vhost: str, stage: str) -> None:
            monkeypatch.setattr(stages._files, "remove", remove)
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(stages._files, "remove", fail_once)
        with trio.fail_after(10):
            outcome = await commit(life, 0, "a")
            assert outcome.committed and outcome.messages == 1
            assert (await commit(life, 0, "a")).duplicate

    life.run(go)
    assert life.bodies() == [b"one"]
