"""The guides: their examples run with the frameworks that requirements/guides.txt names, and print what pages say.

The set-up of `make test-long` installs the frameworks into .cache/guides, .cache/dbt and .cache/nestjs, apart from what
the tests need.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_process import WarrenProcess

from warren.ctl.client import Client, Target

from .page import ROOT, Reader, read_page, require

GUIDES = ROOT / "docs" / "guides"
PYTHON = ["celery", "celery-after-rabbitmq-4.3", "django", "dramatiq", "faststream", "fastapi", "taskiq"]
NOT_RUN = ["spring"]
FRAMEWORKS = ROOT / ".cache" / "guides" / "bin"
DBT = ROOT / ".cache" / "dbt" / "bin"
NODE_MODULES = ROOT / ".cache" / "nestjs" / "node_modules"


def require_installed(path: Path) -> None:
    if not path.exists():
        text = f"{path.relative_to(ROOT)} is not there: `make test-long` installs it"
        if os.environ.get("CI", "").lower() in {"1", "true", "yes"}:
            pytest.fail(text)
        pytest.skip(text)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    """One broker for all pages, one after the other, as a reader has it; the first lesson was read before."""
    directory = tmp_path_factory.mktemp("readers")
    with WarrenProcess(directory / "broker") as broker:
        lesson = ROOT / "docs" / "tutorials" / "1-first-message.md"
        Reader(read_page(lesson), directory, broker).follow()
        yield broker


@pytest.mark.long
@pytest.mark.parametrize("name", PYTHON)
def test_the_example_of_a_guide_does_what_the_page_says(name: str, tmp_path: Path, broker: WarrenProcess) -> None:
    require_installed(FRAMEWORKS)
    page = read_page(GUIDES / f"{name}.md")
    assert page.sections
    before = contents(broker)
    # Celery warns of being root, and takes the room of what is compared.
    environment = {"C_FORCE_ROOT": "1", "NO_COLOR": "1", "PYTHONWARNINGS": "ignore"}
    Reader(page, tmp_path, broker, [FRAMEWORKS], environment, sees_errors=True).follow()
    assert contents(broker) == before, "the page does not clean up"


def contents(broker: WarrenProcess) -> list[list[str]]:
    """Return the names of vhosts, queues and exchanges."""
    with client_of(broker) as client:
        return [
            sorted(f"{each.get('vhost')}/{each['name']}" for each in client.get_list(kind))
            for kind in ("vhosts", "queues", "exchanges")
        ]


def client_of(broker: WarrenProcess) -> Client:
    return Client(Target(f"http://127.0.0.1:{broker.http_port}", "guest", "guest"))


@pytest.mark.long
def test_the_example_for_dbt_does_what_the_page_says(tmp_path: Path) -> None:
    require_installed(DBT)
    with WarrenProcess(tmp_path / "broker") as broker:
        environment = {"NO_COLOR": "1", "DBT_SEND_ANONYMOUS_USAGE_STATS": "false", "PYTHONWARNINGS": "ignore"}
        Reader(read_page(GUIDES / "dbt.md"), tmp_path, broker, [DBT], environment, sees_errors=True).follow()


@pytest.mark.long
def test_the_example_for_nestjs_does_what_the_page_says(tmp_path: Path) -> None:
    require("node", "nodejs")
    require_installed(NODE_MODULES)
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    with WarrenProcess(tmp_path / "broker") as broker:
        paths = [NODE_MODULES / ".bin"]
        Reader(read_page(GUIDES / "nestjs.md"), tmp_path, broker, paths, sees_errors=True).follow()


def test_each_guide_is_run_or_says_that_it_was_not() -> None:
    pages = {path.stem for path in GUIDES.glob("*.md")} - {"README"}
    assert pages == {*PYTHON, "airflow", "dbt", "nestjs", *NOT_RUN}
    for name in pages:
        text = (GUIDES / f"{name}.md").read_text()
        assert ("**We have not run this page**" in text) == (name in NOT_RUN), name


@pytest.mark.parametrize("name", [*PYTHON, "airflow", "dbt", "nestjs"])
def test_each_guide_names_its_packages_and_has_a_vhost_that_it_deletes(name: str) -> None:
    text = (GUIDES / f"{name}.md").read_text()
    assert re.search(r"pip install\s'|npm install ", text)
    typed = [command.line for section in read_page(GUIDES / f"{name}.md").sections for command in section]
    vhost = typed[0].removeprefix("warren ctl add_vhost ")
    assert typed[0] != vhost and typed[-1] == f"warren ctl delete_vhost {vhost}"
    addresses = re.findall(r"amqp://guest:guest@127\.0\.0\.1:5672/?([^\s\"'?]*)", text)
    assert set(addresses) == {vhost}
