"""All settings and messages for users have a line in the documentation, and all names in it exist."""

from __future__ import annotations

import ast
import re
import runpy
from functools import cache
from pathlib import Path

import pytest

import warren.lake
import warren.spark_bridge
import warren.testing
from warren.amqp.errors import REPLY_NAMES
from warren.backup import directory as backups
from warren.cluster import record
from warren.ctl.exit_codes import ExitCode
from warren.exchanges.registry import EXCHANGE_TYPES
from warren.mgmt_plugin.plugin import all_routes
from warren.msgstore.files import sealed_files
from warren.msgstore.log import checkpoint
from warren.msgstore.log.records import FORMAT_MAJOR
from warren.queues.arguments import ARGUMENTS
from warren.replication import cluster_state, handshake
from warren.replication.format_level import LEVEL
from warren.server.catalogue.schema import SCHEMA_VERSION
from warren.server.settings import KEYS
from warren.server.staging import stage_files
from warren.spark_bridge import offsets
from warren.vhosts import metadata_lane

ROOT = Path(__file__).parents[2]
# The formats of docs/versions.md with their numbers. A release that makes one larger says so under *Formats*.
FORMATS = {
    "tables of the metadata store": f"schema {SCHEMA_VERSION}",
    "segments of the log, and their records": str(FORMAT_MAJOR),
    "checkpoint": f"{checkpoint.MAJOR}.{checkpoint.MINOR}",
    "sealed segments of streams": str(sealed_files.MAJOR),
    "changes of the metadata in the log": str(metadata_lane.VERSION),
    "`cluster.json` of a node": str(cluster_state.FORMAT),
    "record of a cluster in etcd": str(record.FORMAT),
    "parts of stages": str(stage_files.MAJOR),
    "backup directories": str(backups.FORMAT),
    "offsets in checkpoints of Spark": str(offsets.VERSION),
}
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
LINKED_PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("benchmarks/*.md"), *DOCS.rglob("*.md")])


def text_of(name: str) -> str:
    path = DOCS / name
    assert path.exists(), f"docs/{name} is missing"
    return path.read_text()


@cache
def subjects_of(*names: str) -> frozenset[str]:
    """Return what the tables of these pages have rows for: each `code` in the first cell of a row."""
    rows = [line for name in names for line in text_of(name).splitlines() if line.startswith("|")]
    return frozenset(subject for row in rows for subject in re.findall("`([^`]+)`", row.split("|")[1]))


@cache
def lines_of_pages() -> list[str]:
    """Return the lines of all pages below docs."""
    return [line for path in sorted(DOCS.rglob("*.md")) for line in path.read_text().splitlines()]


def endings(path: str) -> set[str]:
    """Return a path without its first folders, each time with one less."""
    parts = path.split("/")
    return {"/".join(parts[at:]) for at in range(len(parts))}


@cache
def modules() -> frozenset[str]:
    """Return all modules of this repository, by every end of their paths."""
    folders = ("warren", "tests", "benchmarks", "examples", "scripts")
    files = [str(path) for folder in folders for path in (ROOT / folder).rglob("*.py")]
    files += [path.name for path in ROOT.glob("*.py")]
    return frozenset(ending for file in files for ending in endings(file))


@pytest.mark.parametrize("key", KEYS)
def test_every_setting_is_documented(key: str) -> None:
    assert key in subjects_of("configuration.md"), f"{key} has no row in docs/configuration.md"


@pytest.mark.parametrize("name", EXCHANGE_TYPES)
def test_every_exchange_type_is_documented(name: str) -> None:
    assert name in subjects_of("exchanges.md"), f"{name} has no row in docs/exchanges.md"


@pytest.mark.parametrize("name", [row.name for row in ARGUMENTS])
def test_every_queue_argument_is_documented(name: str) -> None:
    """Where it does something, or among those that are taken and do nothing (`compatibility.md`)."""
    pages = ("queues.md", "streams.md", "compatibility.md")
    assert name in subjects_of(*pages), f"{name} has no row in any of docs/{', '.join(pages)}"


@pytest.mark.parametrize("route", [f"{route.method} {route.template}" for route in all_routes()])
def test_every_route_is_documented(route: str) -> None:
    assert route in subjects_of("api.md"), f"{route} has no row in docs/api.md: it is written by scripts/api_page.py"


def test_the_page_of_routes_says_what_the_table_of_routes_says() -> None:
    script = runpy.run_path(str(DOCS.parent / "scripts" / "api_page.py"))
    assert text_of("api.md") == script["page"](all_routes()), f"write it again: {script['COMMAND']}"


def test_no_setting_is_documented_that_does_not_exist() -> None:
    sections = {key.partition(".")[0] for key in KEYS if "." in key}
    named = re.findall(r"`([a-z_]+\.[a-z_]+)`", text_of("configuration.md"))
    assert [name for name in named if name.partition(".")[0] in sections and name not in KEYS] == []


@pytest.mark.parametrize("code", sorted(REPLY_NAMES))
def test_every_reply_code_is_documented(code: int) -> None:
    """In any page: a line with the number, and its name as it stands in reply texts."""
    lines = [line for line in lines_of_pages() if re.search(rf"\b{code}\b", line)]
    assert any(REPLY_NAMES[code] in line for line in lines), f"no page has a line for {code} {REPLY_NAMES[code]}"


def test_the_page_of_versions_has_the_number_of_each_format() -> None:
    rows = [line.split(" | ")[:2] for line in text_of("versions.md").splitlines() if line.startswith("| ")]
    numbers = {subject.removeprefix("| "): number for subject, number in rows}
    assert {name: numbers[name] for name in FORMATS} == FORMATS
    words = " ".join(text_of("versions.md").split())
    assert f"understands (now {LEVEL})" in words and f"a number, too (now {handshake.VERSION})" in words


def test_every_suite_has_a_line() -> None:
    suites = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    text = text_of("testing.md")
    assert [suite for suite in sorted(suites) if f"| `tests/{suite}/` |" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_modules_that_a_page_names_exist(page: Path) -> None:
    """By the end of their path: ``log/jobs.py`` and ``jobs.py`` are both right; or as programs that the page has."""
    text = page.read_text()
    named = set(re.findall(r"`((?:[\w.]+/)*\w+\.py)(?:::\w+)?`", text))
    programs = re.findall(r"(?m)^```python\n# ((?:\w+/)*\w+\.py)\b", text)
    assert sorted(named - modules() - {ending for program in programs for ending in endings(program)}) == []


def anchors_of(text: str) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them: a repeated one gets a number."""
    anchors: set[str] = set()
    repeated: dict[str, int] = {}
    for heading in re.findall(r"(?m)^#{1,6} (.+)", without_code_blocks(text)):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = repeated.get(anchor, 0)
        repeated[anchor] = number + 1
        anchors.add(f"{anchor}-{number}" if number else anchor)
    return anchors


def without_code_blocks(text: str) -> str:
    return re.sub(r"(?ms)^```.*?^```", "", text)


def broken_links(page: Path) -> list[str]:
    """Return the links of a page to files that are not there, or to headings that those pages do not have."""
    broken = []
    for link in re.findall(r"\]\((?!\w+:)([^)\s]+)", without_code_blocks(page.read_text())):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors_of(target.read_text())):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", LINKED_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_pages_and_headings_that_a_page_links_to_exist(page: Path) -> None:
    assert broken_links(page) == []


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    """`make docs` ends at one that is not, and is run less often."""
    listed = set(re.findall(r"^ +- ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {str(page.relative_to(ROOT)) for page in LINKED_PAGES if not page.match("docs/decisions/0*")}
    assert pages | {"docs/conformance.md", "docs/python-api.md"} == listed  # made by `make docs` itself


def test_the_search_ranks_pages_that_exist_and_guides_before_decisions() -> None:
    site = runpy.run_path(str(ROOT / "scripts" / "site.py"))
    pages = [str(page.relative_to(ROOT)) for page in LINKED_PAGES] + ["docs/conformance.md", "docs/python-api.md"]
    boosts = site["BOOSTS"]
    assert [name for name in boosts if not any(page.startswith(name) for page in pages)] == []
    assert boosts["docs/guides/"] > 1 > boosts["docs/decisions/"]
    assert site["boosted"]("docs/decisions/0001.md", "# A\n").startswith("---\nsearch:\n  boost: 0.2\n---\n\n# A")
    assert site["boosted"]("docs/queues.md", "# A\n") == "# A\n"


def test_the_reference_of_python_packages_describes_everything_that_they_offer() -> None:
    text = runpy.run_path(str(ROOT / "scripts" / "python_api.py"))["page"]()
    for package in (warren.lake, warren.spark_bridge, warren.testing):
        section = text.split(f"## {package.__name__}\n")[1].split("\n## ")[0]
        assert re.findall(r"(?m)^### (\w+)$", section) == list(package.__all__)
        for entry in re.split(r"(?m)^#### ", section)[1:]:
            assert entry.split("```")[2].strip(), f"no docstring: {entry}"


def test_a_link_to_a_page_or_a_heading_that_is_not_there_is_found(tmp_path: Path) -> None:
    other = tmp_path / "other.md"
    other.write_text("# Twice\n## Twice\n```\n# Code\n```\n## `a.b` & [more](other.md)\n")
    page = tmp_path / "page.md"
    good = ["other.md", "other.md#twice", "other.md#twice-1", "other.md#ab--more", "#here", "https://example.org/x#y"]
    bad = ["none.md", "other.md#code", "other.md#twice-2", "#nowhere"]
    page.write_text("# Here\n" + "".join(f"[x]({link})\n" for link in good + bad))
    assert broken_links(page) == bad


@cache
def error_lines() -> frozenset[str]:
    """Return what the broker logs as errors, wherever that is a constant."""
    lines = set()
    texts = [path.read_text() for path in (ROOT / "warren").rglob("*.py")]
    for text in texts:
        if "log.error(" not in text and '"error"' not in text:
            continue
        for call in ast.walk(ast.parse(text)):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            values = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
            if call.func.attr == "error" and isinstance(call.func.value, ast.Name) and call.func.value.id == "log":
                lines.add(str(values[0]))
            elif call.func.attr in ("note", "tell") and values[:1] == ["error"]:
                lines.add(str(values[1]))
    return frozenset(lines)


def test_the_runbook_has_each_error_of_the_log() -> None:
    # Some are named by their beginning, with … for the rest.
    named = {subject.removesuffix("…").rstrip(" :") for subject in subjects_of("runbook.md", "storage.md")}
    lines = error_lines()
    assert {"accept.failed", "a segment cannot be used", "a task has failed"} <= lines
    assert sorted(line for line in lines if line not in named and line.split(":")[0] not in named) == []


def test_the_runbook_names_no_error_that_is_not_logged() -> None:
    section = text_of("runbook.md").split("## Error lines in the log")[1].split("\n## ")[0]
    named = re.findall(r"(?m)^\| `([^`]+)`", section)
    assert named
    assert sorted(set(named) - error_lines()) == []


def test_the_runbook_has_each_alert_and_exit_code() -> None:
    alerts = re.findall(r"alert: (\w+)", (DOCS / "grafana" / "warren-alerts.yml").read_text())
    assert sorted(set(alerts) - subjects_of("runbook.md")) == []
    section = text_of("runbook.md").split("`warren ctl`:")[1].split("`warren store`")[0]
    assert [int(code) for code in re.findall(r"(?m)^\| (\d+) \|", section)] == [int(code) for code in ExitCode]


def test_the_list_of_decisions_has_each_of_them() -> None:
    decisions = DOCS / "decisions"
    listed = re.findall(r"\]\(([^)]+)\)", (decisions / "README.md").read_text())
    assert listed == sorted(path.name for path in decisions.glob("[0-9]*.md"))


@pytest.mark.parametrize("package", sorted(path.parent.name for path in (ROOT / "warren").glob("*/__init__.py")))
def test_every_package_says_what_is_in_it_and_is_in_the_tour(package: str) -> None:
    assert ast.get_docstring(ast.parse((ROOT / "warren" / package / "__init__.py").read_text()))
    assert f"`{package}/" in text_of("architecture.md")
