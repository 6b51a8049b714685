"""`warren store dump-queue` and `export`: the live messages, in order, with nothing lost."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path

import pytest
from store_directory import (
    message,
    queue,
    queue_deleted,
)

from warren.amqp.specification import ContentHeader

from .stores import HEADERS, bodies, checkpointed_store, dumped, of_type, run, small_store


def test_dump_queue_prints_the_live_messages_in_order(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    code, lines = run("dump-queue", store.path, "--queue", "orders")
    assert code == 0
    assert bodies(lines) == ["one", "two" * 1000, "three", "four"]
    assert [line["sequence_number"] for line in lines] == [1, 2, 3, 4]
    assert lines[1] == {
        "type": "message",
        "vhost": "/",
        "queue": "orders",
        "sequence_number": 2,
        "redelivered": None,
        "exchange": "",
        "routing_key": "q",
        "properties": {"delivery_mode": 2},
        "body_bytes": 3000,
        "body": "two" * 1000,
    }
    (binary,) = run("dump-queue", store.path, "--queue", "käse", "--vhost", "/tests")[1]
    assert b64decode(binary["body_base64"]) == bytes(range(256))


def test_a_message_is_where_its_last_copy_is(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    store.begin_segment()
    store.frame(message((1, 1), body=b"one", flags=4), message((1, 2), body=b"two", flags=4))
    store.flip(65 + 56 * 2 + 100)  # where they were
    assert dumped(store.path, "orders") == ["one", "two", "three", "four"]


def test_what_a_deleted_queue_held_is_gone(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    store.frame(queue_deleted(1), queue(3, "orders"))
    store.frame(message((3, 0), body=b"new"))
    assert dumped(store.path, "orders") == ["new"]


def test_what_means_nothing_after_a_restart_is_not_dumped(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    store.frame(queue(5, "amq.gen-1", transient=True), message((5, 0), (1, 5), body=b"both"))
    store.frame(message((1, 6), body=b"paged out", flags=2))
    assert dumped(store.path, "orders")[-1] == "both"
    assert run("dump-queue", store.path, "--queue", "amq.gen-1") == (2, [])


@pytest.mark.parametrize("options", [("--queue", "nope"), ("--queue", "orders", "--vhost", "/tests"), ()])
def test_dump_queue_of_a_queue_that_is_not_there_has_exit_code_2(tmp_path: Path, options: tuple[str, ...]) -> None:
    store = small_store(tmp_path / "data")
    assert run("dump-queue", store.path, *options) == (2, [])


def test_a_message_that_is_rotten_is_told_and_the_others_follow(tmp_path: Path) -> None:
    store = checkpointed_store(tmp_path / "data")
    lsn = store.file(1).read_bytes().index(b"first")
    store.flip(lsn)
    code, lines = run("dump-queue", store.path, "--queue", "orders")
    assert code == 1
    assert bodies(lines) == ["second", "third", "fourth"]
    (problem,) = of_type(lines, "problem")
    assert (problem["what"], problem["sequence_number"]) == ("no intact message", 0)


def test_what_is_live_is_what_the_checkpoint_and_the_frames_behind_it_say(tmp_path: Path) -> None:
    store = checkpointed_store(tmp_path / "data")
    assert run("verify", store.path)[0] == 0
    assert dumped(store.path, "orders") == ["first", "second", "third", "fourth"]
    _, lines = run("inspect", store.path)
    (shown,) = of_type(lines, "checkpoint")
    assert (shown["clean"], shown["queues"]) == (False, 1)
    assert shown["segments"] == [{"segment": 1, "live_refs": 1}, {"segment": 2, "live_refs": 2}]
    (line,) = of_type(lines, "queue")
    assert (line["messages"], line["body_bytes"], line["next_sequence_number"]) == (4, 22, 260)


def test_export_writes_all_live_messages_so_that_nothing_of_them_is_lost(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    properties = {"headers": HEADERS, "delivery_mode": 2}
    store.frame(message((2, 2), body=b"last", properties=properties))
    output = tmp_path / "messages.ndjson"
    code, lines = run("export", store.path, "--output", output)
    assert (code, lines) == (0, [{"type": "summary", "queues": 2, "messages": 6, "problems": 0}])
    exported = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(line["vhost"], line["queue"], line["sequence_number"]) for line in exported] == [
        *(("/", "orders", number) for number in (1, 2, 3, 4)),
        *(("/tests", "käse", number) for number in (1, 2)),
    ]
    header = ContentHeader.parse(b64decode(exported[-1]["content_header"]))
    assert header.properties["headers"] == HEADERS
    assert output.stat().st_mode & 0o777 == 0o600
    assert run("export", store.path, "--output", output) == (2, [])
    only = tmp_path / "only.ndjson"
    assert run("export", store.path, "--output", only, "--vhost", "/tests")[1][0]["messages"] == 2
    assert run("export", store.path, "--output", tmp_path / "none", "--queue", "nope") == (2, [])
    assert not (tmp_path / "none").exists()
