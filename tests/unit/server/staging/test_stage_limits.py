"""Limits of what is staged and noted, and the time after which it goes. stages (1)-(6)."""

from __future__ import annotations

import threading
from collections.abc import Awaitable
from pathlib import Path

import pytest
import trio
from durable_harness import DurableHarness
from engine_harness import publish_frames

from warren.msgstore.files.store import wall_time_ms
from warren.server.settings import Settings, StoreSettings
from warren.server.shares import Quota
from warren.server.staging import commit_notes, staged_space, stages
from warren.server.staging.commit_notes import CommitNotes, Note
from warren.server.staging.staged_batch import (
    NoRoom,
    Order,
    OtherBatch,
    Outcome,
)
from warren.server.staging.stages import Stages

from .stage_life import USER, commit, content, note, put, with_queue


def test_what_is_staged_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = with_queue(tmp_path)
    one = content(b"x")
    monkeypatch.setattr(staged_space, "STAGES_QUOTA", Quota(2, 2))
    monkeypatch.setattr(staged_space, "PARTS_QUOTA", Quota(4, 4))
    monkeypatch.setattr(staged_space, "BYTES_QUOTA", Quota(6 * len(one), 6 * len(one)))

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
    monkeypatch.setattr(staged_space, "STAGES_QUOTA", Quota(4, 2))
    monkeypatch.setattr(staged_space, "PARTS_QUOTA", Quota(6, 4))
    monkeypatch.setattr(staged_space, "BYTES_QUOTA", Quota(100 * len(one), 4 * len(one)))

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
            await found.commit("/", USER, Order(f"query {number}", 0, [], True, None))
            left = await found.notes("/")
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
            with pytest.raises(OtherBatch, match="its writer was reset"):
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


def test_old_notes_are_sought_in_a_thread_and_one_that_is_stored_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred thousand notes take 100 ms, in which nothing else would have its turn."""
    life = with_queue(tmp_path)
    notes = CommitNotes(life.harness.vhost.records)
    notes.store("old", note(1, 1, until_ms=1))
    notes.store("continued", note(1, 1, until_ms=1))
    loop = threading.get_ident()

    def due(found: dict[str, Note], now_ms: int) -> list[str]:
        assert threading.get_ident() != loop
        trio.from_thread.run_sync(notes.store, "continued", note(2, 1, until_ms=1 << 62))
        return commit_notes.due(found, now_ms)

    monkeypatch.setattr(stages, "due", due)

    async def sweep(found: Stages) -> None:
        while set(await found.notes("/")) != {"continued"}:
            await found._sweep()

    life.run(sweep)
