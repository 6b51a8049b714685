"""Chunks read from the broker's own files: the same rows as over the data port; local_files.py (1), (2), (3)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from broker_process import WarrenProcess, wait_until

from warren.spark_bridge import local_files
from warren.spark_bridge.control import BrokerClient, SealedFiles
from warren.spark_bridge.frames import encode_publishes
from warren.spark_bridge.options import ReadOptions, read_options
from warren.spark_bridge.pieces import Range, read
from warren.spark_bridge.properties import encode_properties
from warren.spark_bridge.schema import arrow_schema

from .management.client import Api

STREAM = "events"
ROWS = 40_000  # two chunks and some
DEADLINE_S = 60.0


class Watched(BrokerClient):
    """Counts the answers with messages over the data port, and may change what is said of files."""

    answers = 0
    listed: SealedFiles | None = None

    def chunks(self, *args: Any, **named: Any) -> tuple[pa.Buffer, int]:
        self.answers += 1
        return super().chunks(*args, **named)

    def files(self, queue: str, first: int, end: int, id: str) -> SealedFiles:
        return self.listed or super().files(queue, first, end, id)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    with WarrenProcess(tmp_path_factory.mktemp("warren")) as process:
        api = Api(process.http_port)
        arguments = {"x-queue-type": "stream"}
        api.put(f"/queues/%2F/{STREAM}", {"durable": True, "arguments": arguments})
        api.close()
        with client_of(process) as client:
            for start in range(0, ROWS, 10_000):
                bodies = pa.array([b"body %d" % number for number in range(start, start + 10_000)])
                properties = encode_properties({"message_id": pa.array([f"m{n % 7}" for n in range(10_000)])}, 10_000)
                frames = encode_publishes("", STREAM, properties, bodies)
                client.put_stage(f"s{start}", 0, b"".join(frames.to_pylist()))
                client.commit_stages("fill", start // 10_000, [f"s{start}"])
            wait_until(lambda: sealed(client).chunks[-1:] != (), "something to be sealed", DEADLINE_S)
        yield process


def client_of(process: WarrenProcess) -> Watched:
    return Watched(f"http://127.0.0.1:{process.http_port}")


def sealed(client: Watched) -> SealedFiles:
    found = client.describe(STREAM)
    return client.files(STREAM, found.first, found.end, found.id)


def rows(client: Watched, which: str, first: int = 0, end: int = ROWS) -> pa.Table:
    options: ReadOptions = read_options({"subscribe": STREAM, "localFiles": which}, environment={})
    piece = Range(STREAM, 0, STREAM, client.describe(STREAM).id, first, end)
    schema = arrow_schema()
    return pa.Table.from_batches(list(read(client, options, piece, schema)), schema)


@pytest.mark.parametrize(("first", "end"), [(0, ROWS), (5, ROWS - 5), (16_000, 17_000), (7, 8), (ROWS - 3, ROWS)])
def test_the_rows_are_the_same_both_ways(broker: WarrenProcess, first: int, end: int) -> None:
    over_the_port, here = client_of(broker), client_of(broker)
    expected = rows(over_the_port, "never", first, end)
    assert expected.num_rows == end - first
    assert rows(here, "auto", first, end).equals(expected)
    assert rows(here, "always", first, end).equals(expected)


def test_what_is_sealed_needs_no_data_port(broker: WarrenProcess) -> None:
    client = client_of(broker)
    end = sealed(client).chunks[-1].end
    assert end > 16_000
    assert rows(client, "auto", 0, end).num_rows == end
    assert client.answers == 0
    assert rows(client, "never", 0, end).num_rows == end
    assert client.answers > 0


def test_another_brokers_file_under_the_same_path_is_not_read(broker: WarrenProcess, tmp_path: Path) -> None:
    client = client_of(broker)
    listed = sealed(client)
    end = listed.chunks[-1].end
    expected = rows(client, "never", 0, end)
    shutil.copytree(Path(listed.directory) / "streams", tmp_path / "streams")
    for other in (
        listed._replace(directory=str(tmp_path)),  # the same bytes in another file
        listed._replace(boot="another machine"),
        listed._replace(boot=""),
        listed._replace(inodes={}),
    ):
        client.listed, client.answers = other, 0
        assert rows(client, "auto", 0, end).equals(expected)
        assert client.answers > 0
    client.listed, client.answers = listed._replace(directory=str(tmp_path), boot="another"), 0
    assert rows(client, "always", 0, end).equals(expected)
    assert client.answers == 0


@pytest.mark.parametrize(
    "change", ["corruption", "cut", "gone", "fifo", "directory", "elsewhere", "other offsets", "unreadable", "outside"]
)
def test_what_is_not_as_it_was_said_is_read_over_the_data_port(
    broker: WarrenProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    client = client_of(broker)
    listed = sealed(client)
    end = listed.chunks[-1].end
    expected = rows(client, "never", 0, end)
    shutil.copytree(Path(listed.directory) / "streams", tmp_path / "streams")
    first = listed.chunks[0]
    file = tmp_path / first.file
    listed = listed._replace(directory=str(tmp_path))
    if change == "corruption":
        data = bytearray(file.read_bytes())
        data[first.position + first.bytes // 2] ^= 1
        file.write_bytes(data)
    elif change == "cut":
        os.truncate(file, first.position + first.bytes - 1)
    elif change in ("gone", "fifo", "directory"):
        file.unlink()
        if change == "fifo":
            os.mkfifo(file)
        elif change == "directory":
            file.mkdir()
    elif change == "elsewhere":
        listed = listed._replace(chunks=(first._replace(position=first.position + 64), *listed.chunks[1:]))
    elif change == "other offsets":
        moved = first._replace(first=first.first, end=first.end - 1)
        listed = listed._replace(chunks=(moved, *listed.chunks[1:]))
    elif change == "unreadable":
        monkeypatch.setattr(local_files.os, "preadv", _fails)  # type: ignore[attr-defined]
    else:
        outside = first._replace(file=f"../{tmp_path.name}/{first.file}")
        listed = listed._replace(chunks=(outside, *listed.chunks[1:]))
    client.listed, client.answers = listed, 0
    assert rows(client, "always", 0, end).equals(expected)
    assert client.answers > 0


def _fails(*_: object) -> int:
    raise OSError("bad sector")


def test_no_file_stays_open(broker: WarrenProcess) -> None:
    client = client_of(broker)
    options = read_options({"subscribe": STREAM}, environment={})
    piece = Range(STREAM, 0, STREAM, client.describe(STREAM).id, 0, ROWS)
    before = len(os.listdir("/proc/self/fd"))
    batches = read(client, options, piece, arrow_schema())
    next(batches)
    assert len(os.listdir("/proc/self/fd")) > before
    batches.close()  # type: ignore[attr-defined]
    assert len(os.listdir("/proc/self/fd")) <= before
    assert replace(options, local_files="never").local_files == "never"
