"""The installed packages are those that the repository names: exact versions, with the hashes of their files.

`scripts/lock` makes requirements/*.txt from pyproject.toml; run it after each change there.
"""

from __future__ import annotations

import re
import runpy
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
GROUPS: dict[str, list[str]] = runpy.run_path(str(ROOT / "scripts" / "requirements.py"))["groups"]()
# Which groups each file is resolved from (scripts/lock).
FILES = {
    "run": ["broker"],
    "build": ["build"],
    "test": ["broker", "build", "dev", "lake", "schemas", "sql", "postgresql", "spark", "demo", "pipeline"],
    "demo": ["demo"],
    "lake": ["lake", "schemas", "sql"],
    "pipeline": ["postgresql", "spark", "pipeline"],
    "postgresql": ["postgresql"],
    "dist": ["dist"],
    "docs": ["docs"],
    "guides": ["guides"],
    "objects": ["objects"],
    "connect": ["connect"],
    "airflow": ["airflow"],
    "dbt": ["dbt"],
    "records": ["records"],
}


# Those that are installed into environments of their own.
APART = ("airflow", "connect", "dbt", "dist", "docs", "guides", "objects")


def pins_of(name: str, *, here: bool = False) -> dict[str, list[tuple[Version, int]]]:
    """Return the pinned versions of each package in a file, each with how many hashes it has.

    `here`: of those that are installed on this machine only.
    """
    pins: dict[str, list[tuple[Version, int]]] = {}
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    for entry in text.replace("\\\n", "").splitlines():
        if entry.startswith("#"):
            continue
        pinned = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==(\S+)", entry)
        assert pinned is not None, f"requirements/{name}.txt: not an exact version: {entry[:80]}"
        package, version = pinned.groups()
        marker = re.search(r"; ([^\\]*?)\s*(?:--hash|$)", entry)
        if here and marker is not None and not Marker(marker[1]).evaluate():
            continue
        found = pins.setdefault(canonicalize_name(package), [])
        found.append((Version(version), len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", entry))))
    return pins


def test_every_file_of_requirements_is_one_that_is_resolved_here() -> None:
    assert {path.stem for path in (ROOT / "requirements").iterdir()} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_every_pinned_version_has_hashes(name: str) -> None:
    pins = pins_of(name)
    assert pins
    assert [package for package, found in pins.items() if any(hashes == 0 for _, hashes in found)] == []


@pytest.mark.parametrize("name", FILES)
def test_the_pinned_versions_are_what_is_asked_for(name: str) -> None:
    pins = pins_of(name)
    for text in (text for group in FILES[name] for text in GROUPS[group]):
        wanted = Requirement(text)
        found = pins.get(canonicalize_name(wanted.name), [])
        assert found, f"requirements/{name}.txt lacks {text}: run scripts/lock"
        assert all(wanted.specifier.contains(version, prereleases=True) for version, _ in found), text


@pytest.mark.parametrize("name", [name for name in FILES if name not in ("test", "records", *APART)])
def test_what_is_tested_is_what_is_installed_to_run(name: str) -> None:
    tested = pins_of("test")
    for package, found in pins_of(name).items():
        assert {version for version, _ in found} <= {version for version, _ in tested[package]}, package


def test_no_file_names_where_packages_come_from() -> None:
    assert [path.name for path in (ROOT / "requirements").iterdir() if "://" in path.read_text()] == []


def test_setup_installs_locked_versions_only() -> None:
    script = (ROOT / "scripts" / "setup").read_text()
    installs = [line.strip() for line in script.splitlines() if re.match(r" *pip(_in)? .*\binstall\b", line)]
    ours = "pip install --no-deps $builder/wheel/*.whl"
    assert installs.count(ours) == 1
    assert len(installs) == 4, "our package, what is locked, into the builder, into environments of their own"
    assert [line for line in installs if "--require-hashes" not in line and line != ours] == []


def test_warren_is_built_with_what_its_build_system_asks_for_and_nothing_else() -> None:
    """So the build of `scripts/setup` shows that an isolated one finds what it needs."""
    script = (ROOT / "scripts" / "setup").read_text()
    into_builder = [line.strip() for line in script.splitlines() if "pip_in $builder" in line]
    assert len(into_builder) == 2 and "install" in into_builder[0] and "wheel" in into_builder[1]
    assert into_builder[0].endswith("-r requirements/build.txt")
    needed: set[str] = set()
    waiting = [Requirement(text) for text in GROUPS["build"]]
    while waiting:
        wanted = waiting.pop()
        needed.add(canonicalize_name(wanted.name))
        for text in requires(wanted.name) or ():
            further = Requirement(text)
            if canonicalize_name(further.name) not in needed and applies(further, wanted.extras):
                waiting.append(further)
    assert set(pins_of("build", here=True)) == needed


def applies(requirement: Requirement, extras: set[str]) -> bool:
    """Tell whether it is needed on this machine, by a package of which these extras are wanted."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))
