"""Backups that are restored: with `warren store restore`, from what a broker under test has held still.

The numbers in parentheses are those in the headers of ``server/copies/restoring.py`` and ``msgstore/tools/cutting.py``.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer.testing
from image_copies import back_up

from warren.backup.directory import BackupDirectory
from warren.server.catalogue.catalogue import Catalogue
from warren.server.data_dir import UNFINISHED_RESTORE, DataDir
from warren.server.start_errors import StartError
from warren.server.store_commands import store_app
from warren.testing.broker import Broker
from warren.vhosts.metadata import QueuePut


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(data_dir=tmp_path / "data") as broker:
        # Nothing takes a checkpoint by itself: the log goes back to its beginning.
        broker.on_loop(lambda: setattr(broker.engine.log.checkpoints, "take", None))
        yield broker
        broker.crash()


def run(*arguments: object) -> tuple[int, list[dict[str, Any]], str]:
    done = typer.testing.CliRunner().invoke(store_app, [str(argument) for argument in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def restored(source: Path, target: Path, *options: object) -> list[dict[str, Any]]:
    code, lines, told = run("restore", source, "--data-dir", target, *options)
    assert code == 0, (lines, told)
    return lines


def lsn_of(broker: Broker) -> int:
    return broker.on_loop(lambda: int(broker.engine.log.durable_lsn))


def bodies(broker: Broker, queue: str) -> list[bytes]:
    return [message.body for message in broker.queue(queue).messages()]


def test_what_was_backed_up_is_served_and_all_fits_together(broker: Broker, tmp_path: Path) -> None:
    broker.declare_queue("orders", durable=True)
    for number in range(20):
        broker.publish("", "orders", b"%d" % number)
    manifest = back_up(broker, tmp_path / "backups")
    (summary,) = restored(tmp_path / "backups", tmp_path / "new")
    assert (summary["type"], summary["lsn"], summary["backup"]) == ("summary", manifest.lsn, 1)
    assert run("verify", tmp_path / "new")[1][-1]["problems"] == 0
    with Broker(data_dir=tmp_path / "new") as again:
        assert bodies(again, "orders") == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("by_time", [False, True])
def test_messages_come_back_as_they_were_at_an_earlier_place_or_time(
    broker: Broker, tmp_path: Path, by_time: bool
) -> None:
    broker.declare_queue("orders", durable=True)
    for number in range(5):
        broker.publish("", "orders", b"%d" % number)
    lsn = lsn_of(broker)
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    broker.wait_until(lambda: int(datetime.now(UTC).timestamp() * 1000) > now_ms + 1)
    broker.publish("", "orders", b"mistake")
    broker.queue("orders").purge()
    broker.declare_queue("later", durable=True)
    broker.publish("", "later", b"later")
    lane = broker.engine.journal.lane
    broker.wait_until(lambda: not broker.on_loop(lane.is_behind))
    back_up(broker, tmp_path / "backups")
    place = (
        ("--until-time", datetime.fromtimestamp(now_ms / 1000, UTC).isoformat()) if by_time else ("--until-lsn", lsn)
    )
    summary = restored(tmp_path / "backups", tmp_path / "new", *place)[-1]
    assert summary["lsn"] == lsn
    with Broker(data_dir=tmp_path / "new") as again:
        assert bodies(again, "orders") == [b"%d" % number for number in range(5)]
        assert bodies(again, "later") == []
        # Messages stored from now on are not mistaken for those that were cut off.
        again.publish("", "later", b"new")
        again.crash()
        again.start()
        assert bodies(again, "later") == [b"new"]
        assert bodies(again, "orders") == [b"%d" % number for number in range(5)]


def test_a_stream_ends_where_it_ended_then_although_later_messages_are_sealed(broker: Broker, tmp_path: Path) -> None:
    """cutting (2)"""
    broker.on_loop(lambda: setattr(broker.engine.log.sealed, "chunk_messages", 16))
    broker.declare_queue("s", durable=True, arguments={"x-queue-type": "stream"})

    def publish(count: int) -> None:
        for _ in range(count):
            broker.publish("", "s", b"x" * 100)

    def sealed(broker: Broker) -> int:
        stream: Any = broker.on_loop(lambda: broker.engine.vhosts["/"].queues["s"])
        return int(broker.on_loop(lambda: stream.messages.sealer.table.count))

    publish(40)
    broker.wait_until(lambda: sealed(broker) == 32)
    lsn = lsn_of(broker)
    publish(60)
    broker.wait_until(lambda: sealed(broker) == 96)
    back_up(broker, tmp_path / "backups")
    restored(tmp_path / "backups", tmp_path / "new", "--until-lsn", lsn)
    with Broker(data_dir=tmp_path / "new") as again:
        assert again.on_loop(lambda: int(again.engine.vhosts["/"].queues["s"].message_count)) == 40
        assert sealed(again) == 32
    restored(tmp_path / "backups", tmp_path / "all")
    with Broker(data_dir=tmp_path / "all") as again:
        assert again.on_loop(lambda: int(again.engine.vhosts["/"].queues["s"].message_count)) == 100


def test_a_place_before_the_checkpoint_is_refused_and_said(tmp_path: Path) -> None:
    """cutting (1)"""
    with Broker(data_dir=tmp_path / "data") as broker:
        broker.declare_queue("orders", durable=True)
        early = lsn_of(broker)
        broker.publish("", "orders", b"x")
        broker.restart()
        broker.publish("", "orders", b"y")
        back_up(broker, tmp_path / "backups")
    code, _, told = run("restore", tmp_path / "backups", "--data-dir", tmp_path / "new", "--until-lsn", early)
    assert code == 2
    assert "the log of this backup goes back to LSN" in told


def test_the_next_backup_behind_a_place_is_taken_unless_one_is_named(broker: Broker, tmp_path: Path) -> None:
    broker.declare_queue("orders", durable=True)
    first = back_up(broker, tmp_path / "backups")
    broker.publish("", "orders", b"x")
    second = back_up(broker, tmp_path / "backups")
    source = tmp_path / "backups"
    assert restored(source, tmp_path / "a", "--until-lsn", first.lsn)[-1]["backup"] == 1
    assert restored(source, tmp_path / "b", "--until-lsn", second.lsn)[-1]["backup"] == 2
    assert restored(source, tmp_path / "c")[-1]["backup"] == 2
    assert restored(source, tmp_path / "d", "--backup", 1)[-1]["lsn"] == first.lsn
    manifests = [source / "0000000001.json", source / "0000000002.json"]
    contents = [path.read_bytes() for path in manifests]
    manifests[0].write_bytes(b"?")
    assert restored(source, tmp_path / "g", "--until-lsn", first.lsn)[-1]["backup"] == 2
    manifests[0].write_bytes(contents[0])
    manifests[1].write_bytes(b"?")
    code, _, told = run("restore", source, "--data-dir", tmp_path / "h", "--until-lsn", second.lsn)
    assert (code, "0000000002.json: the manifest is damaged" in told) == (2, True)
    manifests[1].write_bytes(contents[1])
    code, _, told = run("restore", source, "--data-dir", tmp_path / "e", "--backup", 7)
    assert (code, "there is no backup 7" in told) == (2, True)
    assert run("restore", source, "--data-dir", tmp_path / "f", "--until-time", "yesterday")[0] == 2
    both = ("--until-time", "2026-01-01", "--until-lsn", 5)
    assert run("restore", source, "--data-dir", tmp_path / "f", *both)[0] == 2


def test_a_damaged_file_is_named_and_half_a_restore_never_serves(broker: Broker, tmp_path: Path) -> None:
    """restoring (1) (2)"""
    broker.declare_queue("orders", durable=True)
    manifest = back_up(broker, tmp_path / "backups")
    hurt = next(file for file in manifest.files if file.name.startswith("messages/log/"))
    path = tmp_path / "backups" / "files" / hurt.sha256
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"?" + content[101:])
    code, lines, _ = run("backups", tmp_path / "backups")
    assert (code, [line["type"] for line in lines]) == (0, ["backup"])
    code, lines, _ = run("backups", tmp_path / "backups", "--verify")
    assert (code, lines[0]["type"], lines[0]["file"]) == (1, "problem", hurt.name)
    code, _, told = run("restore", tmp_path / "backups", "--data-dir", tmp_path / "new")
    assert code == 2
    assert f"{hurt.sha256} is damaged: it is {hurt.name}; nothing is restored" in told
    with pytest.raises(StartError, match="incomplete restore of a backup"):
        DataDir.open(tmp_path / "new")
    path.write_bytes(content)
    code, _, told = run("restore", tmp_path / "backups", "--data-dir", tmp_path / "new")
    assert (code, "an earlier restore was not finished" in told) == (2, True)
    restored(tmp_path / "backups", tmp_path / "newer")
    assert UNFINISHED_RESTORE not in os.listdir(tmp_path / "newer")


def test_a_directory_with_anything_in_it_is_left_alone(broker: Broker, tmp_path: Path) -> None:
    back_up(broker, tmp_path / "backups")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear")
    code, _, told = run("restore", tmp_path / "backups", "--data-dir", tmp_path / "mine")
    assert (code, "not empty (letter)" in told) == (2, True)
    assert os.listdir(tmp_path / "mine") == ["letter"]
    code, _, told = run("restore", tmp_path / "mine", "--data-dir", tmp_path / "new")
    assert (code, "there are no backups here" in told) == (2, True)
    assert not (tmp_path / "new").exists()


def test_metadata_that_no_broker_would_start_with_are_not_restored(broker: Broker, tmp_path: Path) -> None:
    """restoring (1) (2)"""
    manifest = back_up(broker, tmp_path / "backups")
    restored(tmp_path / "backups", tmp_path / "old")
    with closing(sqlite3.connect(tmp_path / "old" / "catalogue.db")) as database:
        database.execute("UPDATE warren_schema SET version = 99")
        database.commit()
    newer = (tmp_path / "old" / "catalogue.db").read_bytes()
    contents = {
        "written by a newer Warren": newer,
        "malformed": newer[: len(newer) // 2],
    }
    with BackupDirectory.writing(tmp_path / "backups", manifest.store_id) as directory:
        for number, content in enumerate(contents.values(), start=2):
            stored = directory.put("catalogue.db", len(content), "", [content])
            others = [file for file in manifest.files if file.name != stored.name]
            directory.add(replace(manifest, number=number, files=(stored, *others)))
    for number, reason in enumerate(contents, start=2):
        new = tmp_path / f"new{number}"
        code, lines, told = run("restore", tmp_path / "backups", "--data-dir", new, "--backup", number)
        assert (code, lines) == (2, [])
        assert "a broker would not start with this backup: metadata store" in told
        assert reason in told
        with pytest.raises(StartError, match="incomplete restore of a backup"):
            DataDir.open(new)


def test_a_database_that_cannot_be_used_is_told_before_anything_is_copied(broker: Broker, tmp_path: Path) -> None:
    back_up(broker, tmp_path / "backups")
    url = f"sqlite:///{tmp_path / 'missing' / 'elsewhere.db'}"
    code, lines, _ = run("restore", tmp_path / "backups", "--data-dir", tmp_path / "new", "--database", url)
    assert (code, lines) == (2, [])
    assert not (tmp_path / "new").exists()


def test_the_metadata_of_a_directory_with_any_name_go_into_another_database(broker: Broker, tmp_path: Path) -> None:
    """Beside one that is meant when the name is taken for a URL."""
    broker.declare_queue("orders", durable=True)
    lane = broker.engine.journal.lane
    broker.wait_until(lambda: not broker.on_loop(lane.is_behind))
    back_up(broker, tmp_path / "backups")
    (tmp_path / "newB").mkdir()
    for number, name in enumerate(("new%42", "new?x=1", "new#%zz")):
        url = f"sqlite:///{tmp_path / f'elsewhere{number}.db'}"
        restored(tmp_path / "backups", tmp_path / name, "--database", url)
        with closing(Catalogue.open(url)) as catalogue:
            assert [change.name for change in catalogue.load() if isinstance(change, QueuePut)] == ["orders"]
    assert os.listdir(tmp_path / "newB") == []


def test_the_metadata_go_into_another_database_that_is_empty(broker: Broker, tmp_path: Path) -> None:
    broker.declare_queue("orders", durable=True)
    lane = broker.engine.journal.lane
    broker.wait_until(lambda: not broker.on_loop(lane.is_behind))
    manifest = back_up(broker, tmp_path / "backups")
    url = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    restored(tmp_path / "backups", tmp_path / "new", "--database", url)
    assert "catalogue.db" not in os.listdir(tmp_path / "new")
    with closing(Catalogue.open(url)) as catalogue:
        assert [change.name for change in catalogue.load() if isinstance(change, QueuePut)] == ["orders"]
        assert catalogue.applied(bytes.fromhex(manifest.store_id)) > 0
    code, _, told = run("restore", tmp_path / "backups", "--data-dir", tmp_path / "other", "--database", url)
    assert (code, "the database is not empty" in told) == (2, True)
    assert not (tmp_path / "other").exists()
