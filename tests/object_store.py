"""An S3 for tests: moto's server, in a process and an environment of its own."""

from __future__ import annotations

import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from broker_process import wait_until
from free_ports import free_port

SERVER = Path(__file__).parents[1] / ".cache" / "objects" / "bin" / "moto_server"


class ObjectStore:
    """Where it is; `environment` is what its users are told by."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.environment = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.url, timeout=5):
                return True
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def make_bucket(self, name: str) -> None:
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/{name}", method="PUT")):
            pass


@contextmanager
def running_object_store(directory: Path) -> Iterator[ObjectStore]:
    """Run one; its contents are in memory. Its log is in `directory`."""
    port = free_port()
    command = [str(SERVER), "-H", "127.0.0.1", "-p", str(port)]
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("AWS_", "PYTHON"))}
    with (directory / "moto.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        store = ObjectStore(f"http://127.0.0.1:{port}")
        wait_until(store.answers, "the object store to answer")
        yield store
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    if not SERVER.exists():
        pytest.skip("moto is not in .cache/objects: make setup-test installs it")
    with running_object_store(tmp_path_factory.mktemp("objects")) as store:
        yield store
