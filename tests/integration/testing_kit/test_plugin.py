"""The pytest plugin, in sessions of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from warren.testing import pytest_plugin

SUITE = """
import pika
import pytest


def publish(broker, queue):
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.queue_declare(queue)
    channel.basic_publish("", queue, b"x")
    connection.close()


@pytest.fixture(scope="session")
def port(warren_session_broker):
    return warren_session_broker.port


@pytest.mark.parametrize("n", [1, 2])
def test_each_test_finds_it_empty(warren_broker, port, n):
    assert warren_broker.port == port
    assert not warren_broker.queue("q").exists
    assert warren_broker.published == []
    publish(warren_broker, "q")
    warren_broker.assert_published(routing_key="q", count=1)


def test_a_test_may_have_its_own(warren_broker_factory, warren_broker, tmp_path):
    one, other = warren_broker_factory(data_dir=tmp_path), warren_broker_factory(users={"u": "p"})
    assert len({one.port, other.port, warren_broker.port}) == 3
    publish(other, "q")
    assert not one.queue("q").exists


def test_options(warren_broker):
    assert warren_broker.users == {"app": "s:cret"}
    assert warren_broker.vhosts == ("/", "billing")
    assert warren_broker.management_url.startswith("http://127.0.0.1:")
"""


INI = """
[pytest]
warren_users =
    app:s:cret
warren_vhosts =
    /
    billing
warren_management = true
filterwarnings = error
"""


def run(directory: Path, *arguments: str, **files: str) -> str:
    for name, text in files.items():
        (directory / name.replace("_ini", ".ini").replace("_py", ".py")).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, str(directory)]
    root = Path(pytest_plugin.__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    # By its name and not by the entry point: the package need not be installed.
    environment |= {"PYTEST_PLUGINS": "warren.testing.pytest_plugin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=directory, env=environment, timeout=120)
    return done.stdout + done.stderr


def test_its_fixtures_and_options(tmp_path: Path) -> None:
    output = run(tmp_path, pytest_ini=INI, test_suite_py=SUITE)
    assert "4 passed" in output, output


@pytest.mark.long
def test_a_user_without_password_is_a_usage_error(tmp_path: Path) -> None:
    suite = "def test_it(warren_broker):\n    pass\n"
    output = run(tmp_path, pytest_ini="[pytest]\nwarren_users = nobody\n", test_suite_py=suite)
    assert "warren_users: 'nobody' is not name:password" in output


def test_a_suite_that_does_not_use_it_imports_nothing_of_it(tmp_path: Path) -> None:
    suite = "import sys\n\ndef test_it():\n    assert not {'trio', 'warren.testing.broker'} & set(sys.modules)\n"
    assert "1 passed" in run(tmp_path, test_suite_py=suite)


def test_the_entry_point_is_the_plugin() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"warren": "warren.testing.pytest_plugin"}
