"""docs/clients.md: its programs run, and leave what the page says.

Those for Java, Go, PHP and Ruby run with the clients that Debian has, which the set-up of `make test-long` installs.
Debian has no .NET SDK: the program in C# runs where one is, and where `dotnet` can get the client.
"""

from __future__ import annotations

import glob
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from broker_process import WarrenProcess

from .page import ROOT, Page, Reader, read_page, require
from .test_guides import NODE_MODULES, require_installed

PAGE = ROOT / "docs" / "clients.md"
LANGUAGES = ("Python", "JavaScript", "Java", "Go", "C#", "PHP", "Ruby")
WORDS = {"confirm", "mandatory", "x-dead-letter", "persisten", "reject", "ack"}
# A flag without a name there, or another name.
SAID_OTHERWISE = {"JavaScript": {"x-dead-letter"}, "Java": {"mandatory"}, "Go": {"mandatory"}, "PHP": {"mandatory"}}


def node_modules(directory: Path) -> dict[str, str]:
    require("node", "nodejs")
    require_installed(NODE_MODULES)
    (directory / "node_modules").symlink_to(NODE_MODULES)
    return {}


def java_libraries(directory: Path) -> dict[str, str]:
    require("javac", "default-jdk-headless")
    (directory / "lib").mkdir()
    for name in ("amqp-client", "slf4j-api", "slf4j-nop"):
        (directory / "lib" / f"{name}.jar").symlink_to(
            packaged(f"/usr/share/java/{name}.jar", "librabbitmq-client-java")
        )
    return {}


def go_packages(directory: Path) -> dict[str, str]:
    require("go", "golang-go")
    packages = "/usr/share/gocode"
    packaged(f"{packages}/src/github.com/rabbitmq/amqp091-go", "golang-github-rabbitmq-amqp091-go-dev")
    cache = str(directory / "compiled")
    return {"GO111MODULE": "off", "GOPATH": packages, "GOCACHE": cache, "GOFLAGS": ""}


def php_packages(directory: Path) -> dict[str, str]:
    require("php", "php-cli")
    loader = packaged("/usr/share/php/PhpAmqpLib/autoload.php", "php-amqplib")
    (directory / "vendor").mkdir()
    (directory / "vendor" / "autoload.php").symlink_to(loader)
    return {}


def ruby_gems(_directory: Path) -> dict[str, str]:
    require("ruby", "ruby")
    packaged("/usr/share/doc/ruby-bunny", "ruby-bunny")
    return {}


def dotnet_project(directory: Path) -> dict[str, str]:
    """Make the project as the page says."""
    if shutil.which("dotnet") is None:
        pytest.skip("`dotnet` is not on this machine, and Debian has no package of a .NET SDK")
    environment = {"DOTNET_NOLOGO": "1", "DOTNET_CLI_TELEMETRY_OPTOUT": "1"}
    commands = sections_of_page()["C#"].partition("\n    dotnet ")[2].partition("\n")[0]
    for command in f"dotnet {commands}".split(" && "):
        ended = subprocess.run(
            shlex.split(command), cwd=directory, env=os.environ | environment, capture_output=True, text=True
        )
        if ended.returncode:
            pytest.skip(f"`{command}` fails on this machine: {ended.stdout}{ended.stderr}")
    return environment


def packaged(path: str, package: str) -> Path:
    """Return what a package of Debian has at `path`."""
    if not glob.glob(path):
        text = f"{path} is not there; on Debian: apt-get install {package}"
        if os.environ.get("CI", "").lower() in {"1", "true", "yes"}:
            pytest.fail(text)
        pytest.skip(text)
    return Path(path)


def nothing(_directory: Path) -> dict[str, str]:
    return {}


# Puts what a program needs beside it, and returns its environment.
PREPARE: Mapping[str, Callable[[Path], dict[str, str]]] = {
    "Python": nothing,
    "JavaScript": node_modules,
    "Java": java_libraries,
    "Go": go_packages,
    "C#": dotnet_project,
    "PHP": php_packages,
    "Ruby": ruby_gems,
}
AT_ONCE = ("Python",)
HOW = dict.fromkeys(PREPARE, "by the long tests") | dict.fromkeys(AT_ONCE, "by the tests")
HOW["C#"] += ", where a .NET SDK is"


def sections_of_page() -> dict[str, str]:
    """Return the sections of the page by their names; what comes before them has none."""
    first, *others = PAGE.read_text().split("\n## ")
    return {"": first} | {section.partition("\n")[0]: f"## {section}" for section in others}


def page_of(language: str, path: Path) -> Page:
    """Return the page with one language only."""
    sections = sections_of_page()
    path.write_text("\n".join(sections[name] for name in ("", language, "Clean up")))
    return read_page(path)


@pytest.mark.parametrize(
    "language",
    [pytest.param(each, marks=() if each in AT_ONCE else pytest.mark.long) for each in PREPARE],
)
def test_a_program_does_what_the_page_says(language: str, tmp_path: Path) -> None:
    environment = PREPARE[language](tmp_path)
    page = page_of(language, tmp_path / "page.md")
    assert len(page.programs) == 1
    with WarrenProcess(tmp_path / "broker") as broker:
        Reader(page, tmp_path, broker, environment=environment, sees_errors=True).follow()


def test_the_page_says_which_programs_are_run() -> None:
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| [")]
    how = {language: row[2].strip("| ") for language, row in zip(LANGUAGES, rows, strict=True)}
    assert how == HOW


def test_each_language_does_the_same_three_things() -> None:
    sections = sections_of_page()
    assert tuple(sections) == ("", *LANGUAGES, "Clean up")
    for name in LANGUAGES:
        program = sections[name].split("```")[1].lower()
        assert {word for word in WORDS - SAID_OTHERWISE.get(name, set()) if word not in program} == set(), name
