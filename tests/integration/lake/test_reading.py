"""Streams of a real broker by SQL and as datasets: from its files, over the data port, and only what is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from broker_process import WarrenProcess, wait_until

import warren.lake
from warren.spark_bridge.control import BrokerClient, SealedFiles
from warren.spark_bridge.frames import encode_publishes
from warren.spark_bridge.properties import encode_properties

from ..management.client import Api

STREAM = "events"
ROWS = 40_000  # two chunks and some
STEP = 10_000


class Watched(BrokerClient):
    """Counts, with all of its copies, the answers with messages over the data port; `is_near`: it is told of files."""

    def __init__(self, url: str, *, is_near: bool) -> None:
        super().__init__(url)
        self.answers: list[int] = []
        self._is_near = is_near

    def chunks(self, queue: str, first: int, *args: Any, **named: Any) -> tuple[pa.Buffer, int]:
        self.answers.append(first)
        return super().chunks(queue, first, *args, **named)

    def files(self, queue: str, first: int, end: int, id: str) -> SealedFiles:
        found = super().files(queue, first, end, id)
        return found if self._is_near else found._replace(boot="another machine")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    with WarrenProcess(tmp_path_factory.mktemp("warren")) as process:
        api = Api(process.http_port)
        api.put(f"/queues/%2F/{STREAM}", {"durable": True, "arguments": {"x-queue-type": "stream"}})
        api.close()
        with client_of(process) as client:
            for start in range(0, ROWS, STEP):
                bodies = pa.array([b'{"n": %d}' % number for number in range(start, start + STEP)])
                properties = encode_properties({"message_id": pa.array([f"m{n % 7}" for n in range(STEP)])}, STEP)
                frames = encode_publishes("", STREAM, properties, bodies)
                client.put_stage(f"s{start}", 0, b"".join(frames.to_pylist()))
                client.commit_stages("fill", start // STEP, [f"s{start}"])
            wait_until(lambda: sealed_end(client) > 0, "something to be sealed")
        yield process


def client_of(process: WarrenProcess, *, is_near: bool = True) -> Watched:
    return Watched(f"http://127.0.0.1:{process.http_port}", is_near=is_near)


def sealed_end(client: BrokerClient) -> int:
    found = client.describe(STREAM)
    chunks = client.files(STREAM, found.first, found.end, found.id).chunks
    return chunks[-1].end if chunks else 0


def test_what_is_sealed_is_read_from_files_and_is_the_same_over_the_data_port(broker: WarrenProcess) -> None:
    near, far = client_of(broker), client_of(broker, is_near=False)
    end = str(sealed_end(near))
    here, there = (warren.lake.read(STREAM, until=end, client=client).read_all() for client in (near, far))
    assert here.equals(there) and here.num_rows == int(end)
    assert near.answers == [] and far.answers != []
    assert warren.lake.dataset(STREAM, client=near).count_rows() == ROWS


def test_only_what_is_not_older_than_a_time_is_fetched(broker: WarrenProcess) -> None:
    client = client_of(broker, is_near=False)
    whole = warren.lake.read(STREAM, columns=["offset", "timestamp"], client=client).read_all()
    dataset = warren.lake.dataset(STREAM, client=client)
    for offset in (0, STEP - 1, STEP, 3 * STEP):
        time = whole.column("timestamp")[offset]
        expected = whole.filter(pc.greater_equal(whole.column("timestamp"), time)).column("offset")
        client.answers.clear()
        found = dataset.to_table(columns=["offset"], filter=pc.field("timestamp") >= time).column("offset")
        assert found.to_pylist() == expected.to_pylist()
        assert client.answers[0] >= min(expected[0].as_py(), sealed_end(client))


def test_a_query_is_answered_by_the_command(broker: WarrenProcess) -> None:
    pytest.importorskip("duckdb")
    query = f"""SELECT count(*) AS n, sum(n) AS total, max(message_id) AS last
                FROM stream('{STREAM}', json => true) WHERE "offset" >= {ROWS - 10}"""
    command = [sys.executable, "-P", "-m", "warren", "sql", query, "--format", "csv"]
    command += ["--url", f"http://127.0.0.1:{broker.http_port}"]
    environment = {name: text for name, text in os.environ.items() if not name.startswith("WARREN_")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"n,total,last\n10,{sum(range(ROWS - 10, ROWS))},m6\n"
