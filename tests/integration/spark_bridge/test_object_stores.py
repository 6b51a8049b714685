"""Exports to S3 and imports from it: as to directories, and nothing is written where it cannot be."""

from __future__ import annotations

import io
import itertools
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pika
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from broker_process import WarrenProcess
from object_store import ObjectStore
from pika.adapters.blocking_connection import BlockingChannel

from .commands import command, run

_numbers = itertools.count(1)
PERSISTENT = pika.BasicProperties(delivery_mode=2, headers={"n": 1})


class Bucket:
    """A separate bucket for each test, and its contents."""

    def __init__(self, store: ObjectStore, name: str, patch: pytest.MonkeyPatch) -> None:
        for variable, text in store.environment.items():
            patch.setenv(variable, text)
        store.make_bucket(name)
        self.store = store
        self.name = name
        self.url = f"s3://{name}/lake/events"

    @property
    def fs(self) -> Any:
        from pyarrow import fs

        return fs.FileSystem.from_uri(f"s3://{self.name}")[0]

    def files(self) -> dict[str, int]:
        """Return the names of all objects, and their sizes."""
        from pyarrow import fs

        found = self.fs.get_file_info(fs.FileSelector(self.name, recursive=True))
        return {each.path.removeprefix(f"{self.name}/"): each.size for each in found if each.is_file}

    def content(self, name: str) -> bytes:
        with self.fs.open_input_stream(f"{self.name}/{name}") as stream:
            return bytes(stream.read())

    def numbers(self, prefix: str = "lake/events/") -> list[int]:
        """Return the bodies in the files that the manifest names, and check that other files do not exist."""
        latest = max(name for name in self.files() if name.startswith(f"{prefix}_manifest/export-"))
        document = json.loads(self.content(latest))
        names = [prefix + each["path"] for each in document["files"]]
        assert {name for name in self.files() if "part-" in name} == set(names)
        found: list[int] = []
        for name in names:
            table = pq.read_table(io.BytesIO(self.content(name)), columns=["body"])
            found += [int(body) for body in table.column("body").to_pylist()]
        return found


@pytest.fixture
def bucket(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    return Bucket(object_store, f"bucket-{next(_numbers)}", monkeypatch)


def fill(channel: BlockingChannel, queue: str, count: int, **arguments: Any) -> None:
    channel.queue_declare(queue, durable=True, arguments=arguments)
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number, PERSISTENT)


@pytest.mark.long
def test_a_stream_is_exported_gone_on_with_and_imported(
    broker: WarrenProcess, channel: BlockingChannel, bucket: Bucket
) -> None:
    fill(channel, "events", 30, **{"x-queue-type": "stream"})
    assert f"30 rows in 1 file in {bucket.url}\n" in run(broker, "export", "events", "--to", bucket.url)
    channel.basic_publish("", "events", b"30", PERSISTENT)
    told = run(broker, "export", "events", "--to", f"{bucket.url}/")
    assert f"31 rows in 2 files in {bucket.url}, 30 of them by earlier runs" in told
    assert bucket.numbers() == list(range(31))
    # A reader of a prefix sees the data only.
    rows = ds.dataset(f"{bucket.name}/lake/events", filesystem=bucket.fs, format="parquet").count_rows()
    assert rows == 31
    channel.queue_declare("back", durable=True)
    assert "31 messages published" in run(broker, "import", bucket.url, "--queue", "back")
    assert "31 messages published, 31 of them by earlier runs" in run(broker, "import", bucket.url, "--queue", "back")
    assert channel.queue_declare("back", passive=True).method.message_count == 31
    _, properties, body = channel.basic_get("back", auto_ack=True)
    assert properties is not None and properties.headers == {"n": 1} and body == b"0"
    own = {name for name in bucket.files() if "part-" not in name}
    assert all(name.startswith("lake/events/_manifest/") for name in own) and len(own) == 2


@pytest.mark.long
def test_an_export_that_is_killed_is_gone_on_with_and_each_message_is_there_once(
    broker: WarrenProcess, channel: BlockingChannel, bucket: Bucket
) -> None:
    fill(channel, "work", 1500)
    options = ("--mode", "drain", "--max-file-size", "300", "--columns", "offset,body", "--compression", "none")
    for commits in (1, 3):
        process = subprocess.Popen(
            command(broker, "export", "work", "--to", bucket.url, *options, "--json"), stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for line in process.stdout:
            commits -= json.loads(line)["event"] == "committed"
            if not commits:
                process.send_signal(signal.SIGKILL)
                break
        process.stdout.close()
        assert process.wait() in (0, -signal.SIGKILL)  # it may have been faster
    run(broker, "export", "work", "--to", bucket.url, *options)
    assert bucket.numbers() == list(range(1500))
    assert channel.queue_declare("work", passive=True).method.message_count == 0


@pytest.mark.long
def test_files_are_divided_into_prefixes_and_text_is_compressed(
    broker: WarrenProcess, channel: BlockingChannel, bucket: Bucket
) -> None:
    fill(channel, "keys", 5)
    options = ("--format", "json", "--compression", "gzip", "--partition-by", "routing_key")
    run(broker, "export", "keys", "--to", bucket.url, *options)
    (name,) = (name for name in bucket.files() if "part-" in name)
    assert name.startswith("lake/events/routing_key=keys/part-00000-") and name.endswith(".json.gz")
    channel.queue_declare("keys-back", durable=True)
    assert "5 messages published" in run(broker, "import", bucket.url, "--queue", "keys-back")


@pytest.mark.long
def test_files_of_others_are_imported(broker: WarrenProcess, channel: BlockingChannel, bucket: Bucket) -> None:
    with bucket.fs.open_output_stream(f"{bucket.name}/lake/events/rows.json") as stream:
        stream.write(b'{"body": "1"}\n{"body": "2"}\n')
    channel.queue_declare("others", durable=True)
    assert "2 messages published" in run(broker, "import", bucket.url, "--queue", "others")


@pytest.mark.long
@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s3://no-such-bucket/lake", "there is no bucket 'no-such-bucket'"),
        ("ftp://somewhere/lake", "s3://, gs://, abfss:// or file://"),
    ],
)
def test_a_url_that_cannot_be_is_refused_before_anything_is_written(
    broker: WarrenProcess, channel: BlockingChannel, bucket: Bucket, tmp_path: Path, url: str, reason: str
) -> None:
    fill(channel, "left-alone", 3)
    told = run(broker, "export", "left-alone", "--to", url, "--mode", "drain", code=2)
    assert reason in told and len(told.splitlines()) == 1
    assert reason in run(broker, "import", url, "--queue", "left-alone", code=2)
    assert channel.queue_declare("left-alone", passive=True).method.message_count >= 3
    assert bucket.files() == {}
    assert list(tmp_path.iterdir()) == [] and not Path(url.partition(":")[0] + ":").exists()


def test_what_is_there_already_is_left_alone(broker: WarrenProcess, channel: BlockingChannel, bucket: Bucket) -> None:
    with bucket.fs.open_output_stream(f"{bucket.name}/lake/events/precious.csv") as stream:
        stream.write(b"x")
    fill(channel, "q", 1)
    assert "is not empty" in run(broker, "export", "q", "--to", bucket.url, code=2)
    assert list(bucket.files()) == ["lake/events/precious.csv"]


def test_a_file_url_is_a_directory(broker: WarrenProcess, channel: BlockingChannel, tmp_path: Path) -> None:
    fill(channel, "local", 2)
    told = run(broker, "export", "local", "--to", f"file://{tmp_path}/a%20b")
    assert f"2 rows in 1 file in {tmp_path}/a b\n" in told
    assert (tmp_path / "a b" / "_manifest" / "export.json").exists()
    assert os.listdir(tmp_path) == ["a b"]
