#!/usr/bin/env python3
"""Make what a release consists of, in dist/: `make dist`, or some PARTS of it.

    sdist   the sources, as committed or changed in the work tree
    wheels  out of the sdist, one for the Python that runs this, or for those of `--python`, checked and tried each;
            for any Linux that is new enough (auditwheel), where that can be had
    debian  the Debian package, with the wheel for this system's /usr/bin/python3
    image   what `docker build` needs, with one of the wheels: docker build - < dist/warren-VERSION-image.tar.gz
    chart   the Helm chart
    sbom    what a broker is made of besides Warren, from the locked requirements, in CycloneDX
    notes   the release notes, out of CHANGELOG.md

SHA256SUMS comes last, over all that is there. Whatever is left out is said at the end; a part that fails ends it. The
engine is compiled once for each Python; the Debian package and the image take it from the wheel, and a wheel takes it
from an earlier build of the same sources (`engine_build.py`, 2). Tools and what is built with are installed below
.cache/dist/, with the versions and hashes of requirements/*.txt. Besides, `scripts/dist.py manifests` writes
the version of warren/__init__.py wherever else it stands, and rewrites packaging/kubernetes/*.yaml.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
DIST: Final = ROOT / "dist"
CACHE: Final = ROOT / ".cache/dist"
SERIES: Final = ("3.11", "3.12", "3.13", "3.14")
DOCKERFILE: Final = ROOT / "packaging/container/Dockerfile"
CHART: Final = ROOT / "packaging/helm/warren"
CANNOT_TRY: Final = 77  # of packaging/debian/try
SYSTEM_PYTHON: Final = Path("/usr/bin/python3")
# Where the version stands besides warren/__init__.py: in each file expressions, and what stands in place of each match.
# Helm wants a version of SemVer (1.0.0-rc1), and Debian sorts 1.0.0~rc1 before 1.0.0.
PLACES: Final[dict[str, dict[str, str]]] = {
    "packaging/helm/warren/Chart.yaml": {
        r"(?m)^version: .*$": "version: {semver}",
        r"(?m)^appVersion: .*$": 'appVersion: "{version}"',
    },
    "packaging/container/compose.yaml": {r"image: warren:[\w.]+": "image: warren:{version}"},
    "packaging/cloud-init/three-machines.yaml": {r"warren_[\w.~]+_amd64": "warren_{debian}_amd64"},
    "docs/clustering.md": {r"warren_[\w.~]+_amd64": "warren_{debian}_amd64"},
    "docs/kubernetes.md": {r"warren:\d[\w.]*": "warren:{version}"},
    "docs/comparison.md": {r"This is version [\w.]+\w": "This is version {version}"},
    "docs/releases.md": {
        r"-t warren:\d[\w.]*": "-t warren:{version}",
        r"warren-\d[\w.]*-image": "warren-{version}-image",
    },
}
# The C library of the image's Debian: a wheel for a newer one cannot be its engine.
IMAGE_LIBC: Final = (2, 36)
# Prints what is wrong with the metadata of a wheel, as an index would find it.
_CHECK_METADATA: Final = """
import sys
from packaging.metadata import Metadata
Metadata.from_email(sys.stdin.buffer.read(), validate=True)
"""
# Prints the kind of an interpreter; nothing unless it is a CPython with the interpreter's lock.
_ASK: Final = """
import platform, sys, sysconfig
if platform.python_implementation() == "CPython" and not sysconfig.get_config_var("Py_GIL_DISABLED"):
    print(platform.python_version(), sys.executable)
"""


class DistError(Exception):
    """A part cannot be made, for a reason that a person can put right."""


@dataclass
class Release:
    """What is being made: the version, the time that its files have, and what had to be left out, with the reasons.

    `series` are the Pythons that wheels are made for, such as "3.11"; None: all that are installed.
    """

    version: str
    epoch: int
    series: Sequence[str] | None = None
    left_out: list[str] = field(default_factory=list)


# --- what there is ----------------------------------------------------------------------------------------------------


def version() -> str:
    """Return the version of the sources."""
    found = re.search(r'^__version__ = "([^"]+)"$', (ROOT / "warren/__init__.py").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def with_version(text: str, places: Mapping[str, str], version: str) -> str:
    """Return a text of `PLACES` with this version in it. Raises DistError when a place is not there."""
    semver = re.sub(r"^(\d+\.\d+\.\d+)(?=[a-z])", r"\1-", version)
    for pattern, stands in places.items():
        text, count = re.subn(
            pattern, stands.format(version=version, semver=semver, debian=semver.replace("-", "~")), text
        )
        if not count:
            raise DistError(f"there is nothing like {pattern}")
    return text


def write_version() -> None:
    """Write the version wherever it stands. Raises DistError."""
    for name, places in PLACES.items():
        path = ROOT / name
        path.write_text(with_version(path.read_text(), places, version()))


def release_notes(changelog: str, version: str) -> str:
    """Return what the changelog has for a version: its section, and before its release what is not released yet.

    Raises:
        DistError: it has no section.
    """
    sections: dict[str, tuple[str, str]] = {}
    for part in re.split(r"(?m)^(?=## \[)", changelog)[1:]:
        head, _, text = part.partition("\n")
        name, _, date = head.removeprefix("## [").partition("]")
        sections[name] = (date.strip(" -"), text.strip())
    if version not in sections:
        raise DistError(f"CHANGELOG.md has no section [{version}]")
    date, text = sections[version]
    texts = [text] if date != "unreleased" else [sections.get("Unreleased", ("", ""))[1], text]
    title = f"# Warren {version}" + (f", {date}" if date != "unreleased" else "")
    return "\n\n".join([title, *(each for each in texts if each)]) + "\n"


def installed_series(candidates: Sequence[str]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the newest CPython of each series among commands: its version, and where it is."""
    found: dict[str, tuple[tuple[int, ...], str]] = {}
    for command in candidates:
        try:
            asked = subprocess.run([command, "-c", _ASK], capture_output=True, text=True, check=False, timeout=60)
        except OSError:
            continue
        release, _, path = asked.stdout.strip().partition(" ")
        series = ".".join(release.split(".")[:2])
        numbers = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", release)
        if asked.returncode == 0 and numbers is not None and series in SERIES:
            found[series] = max(found.get(series, ((), "")), (tuple(map(int, numbers.groups())), path))
    return found


def candidates(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield what may be an interpreter: this one, `python3.X` of each directory of the path, and those of pyenv."""
    yield sys.executable
    for directory in environment.get("PATH", "").split(os.pathsep):
        # Pyenv's stand for whatever version it is told to use.
        if not directory.rstrip("/").endswith("/shims"):
            yield from (str(Path(directory) / f"python{series}") for series in SERIES)
    pyenv = Path(environment.get("PYENV_ROOT") or Path(environment.get("HOME", "/")) / ".pyenv")
    yield from (str(path) for path in sorted(pyenv.glob("versions/*/bin/python3")))


def context_members(dockerfile: str, wheel: str = "compiled") -> list[str]:
    """Return what a Dockerfile copies out of its context, without the stage that makes the other wheel."""
    unused = {"compiled": "released", "released": "compiled"}[wheel]
    found: list[str] = []
    stage = ""
    for words in map(str.split, dockerfile.splitlines()):
        if words[:1] == ["FROM"]:
            stage = words[-1]
        elif words[:1] == ["COPY"] and stage != unused and not words[1].startswith("--from"):
            found += words[1:-1]
    return found


def with_wheel(dockerfile: str, series: str) -> str:
    """Return the Dockerfile of an image that takes a wheel for `series`, and compiles nothing."""
    for name, value in (("WHEEL", "released"), ("PYTHON", series)):
        dockerfile, count = re.subn(rf"(?m)^ARG {name}=.+$", f"ARG {name}={value}", dockerfile)
        assert count == 1, name
    return dockerfile


def fits_image(wheel: str) -> bool:
    """Whether a wheel of this name runs in the image: for a C library that is old enough."""
    libcs = [(int(major), int(minor)) for major, minor in re.findall(r"manylinux_(\d+)_(\d+)_", wheel)]
    return bool(libcs) and min(libcs) <= IMAGE_LIBC


def strangers(names: Sequence[str]) -> list[str]:
    """Return those of the names in a wheel that do not belong there: tests, C code, bytecode, other modules."""
    found = []
    for name in names:
        if name.endswith("/"):  # auditwheel lists directories as well
            continue
        top, _, rest = name.partition("/")
        is_ours = (
            (top == "warren" and rest and not rest.startswith("tests/"))
            or name == "pyspark_warren.py"
            or (top.startswith("warren_engine__mypyc.") and name.endswith(".so"))
            or (top.startswith("warren_broker-") and top.endswith(".dist-info"))
        )
        hidden = any(part.startswith(".") or part == "__pycache__" for part in PurePosixPath(name).parts)
        if not is_ours or hidden or PurePosixPath(name).suffix in {".c", ".h", ".o", ".pyc"}:
            found.append(name)
    return found


def completed_sbom(document: dict[str, Any], version: str) -> dict[str, Any]:
    """Return a list of components with what cannot be known from requirements: whose they are, and of which version."""
    root = document["metadata"]["component"]
    root |= {"version": version, "purl": f"pkg:pypi/{root['name']}@{version}"}
    refs = sorted(component["bom-ref"] for component in document["components"])
    others = [each for each in document.get("dependencies", []) if each["ref"] != root["bom-ref"]]
    return document | {"dependencies": [{"ref": root["bom-ref"], "dependsOn": refs}, *others]}


# --- tools ------------------------------------------------------------------------------------------------------------


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    """Run a command and return what it prints; what it says besides goes where ours goes.

    Raises:
        DistError: it failed.
    """
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=os.environ | environment, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise DistError(f"{Path(command[0]).name} {command[1]} failed:\n{done.stdout[-2000:]}")
    return done.stdout


def environment_of(name: str, python: str, *requirements: str) -> Path:
    """Return an environment of `python` with exactly the locked requirements of these files."""
    path = CACHE / name
    files = [ROOT / "requirements" / f"{each}.txt" for each in requirements]
    stamp = hashlib.sha256(b"".join(file.read_bytes() for file in files) + python.encode()).hexdigest()
    if not (path / "stamp").exists() or (path / "stamp").read_text() != stamp:
        shutil.rmtree(path, ignore_errors=True)
        run(python, "-m", "venv", path)
        for file in files:
            pip(path, "install", "--require-hashes", "--no-deps", "-r", file)
        (path / "stamp").write_text(stamp)
    return path


def pip(environment: Path, *words: str | Path, **variables: str) -> None:
    """Run the pip of an environment."""
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
    run(environment / "bin/python", "-m", "pip", *quiet, *words, cwd=ROOT, **variables)


def tools() -> Path:
    """Return the environment with auditwheel and the like."""
    return environment_of("tools", sys.executable, "dist")


def copy_of_sources(directory: Path, epoch: int) -> None:
    """Copy the tracked files, as they are in the work tree; of an unpacked sdist everything."""
    if (ROOT / ".git").exists():
        names = run("git", "ls-files", "-z").split("\0")
        paths = [Path(name) for name in names if name and (ROOT / name).exists()]
    else:
        paths = [path.relative_to(ROOT) for path in ROOT.rglob("*") if not path.is_dir()]
        paths = [path for path in paths if not {".venv", ".cache", "dist", "__pycache__"} & set(path.parts)]
    for path in paths:
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, target, follow_symlinks=False)
        os.utime(target, (epoch, epoch), follow_symlinks=False)


def write_tar(path: Path, members: Mapping[str, Path], epoch: int) -> None:
    """Write files under the given names; the same files make the same bytes."""
    with gzip.GzipFile(path, "wb", mtime=epoch) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for name, source in sorted(members.items()):
            data = source.read_bytes()
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), epoch
            member.mode = 0o755 if os.access(source, os.X_OK) else 0o644
            tar.addfile(member, io.BytesIO(data))


def files_below(path: Path) -> Iterator[Path]:
    """Yield the files of a directory, or the file itself, but nothing that was compiled or is hidden."""
    if path.is_file():
        yield path
    elif path.is_dir():
        for each in sorted(path.rglob("*")):
            if each.is_file() and "__pycache__" not in each.parts and each.suffix != ".so":
                yield each
    else:
        raise DistError(f"{path} is missing")


# --- the parts --------------------------------------------------------------------------------------------------------


def make_sdist(release: Release) -> None:
    """Have setuptools make it: nothing is compiled for that."""
    if (ROOT / ".git").exists() and run("git", "status", "--porcelain"):
        release.left_out.append("a commit to point at: the work tree has changes that are not committed")
    builder = environment_of(f"build-{series_of(sys.version_info)}", sys.executable, "build")
    with tempfile.TemporaryDirectory() as directory:
        copy_of_sources(Path(directory), release.epoch)
        hook = f"from setuptools import build_meta; build_meta.build_sdist({str(DIST)!r})"
        run(builder / "bin/python", "-c", hook, cwd=Path(directory), WARREN_COMPILE="0")


def make_wheels(release: Release) -> None:
    """Build and try one for each interpreter."""
    sdist = the_file(f"warren_broker-{release.version}.tar.gz", "sdist")
    if shutil.which(os.environ.get("CC", "cc")) is None:
        raise DistError("there is no C compiler: the wheels would be interpreted")
    interpreters = installed_series(list(candidates(os.environ)))
    if release.series is None:
        missing = [series for series in SERIES if series not in interpreters]
        release.left_out += [f"a wheel for CPython {series}: it is not installed" for series in missing]
    for series in sorted(interpreters, key=SERIES.index) if release.series is None else release.series:
        if series not in interpreters:
            there = ", ".join(interpreters) or "none"
            raise DistError(
                f"CPython {series} is not installed, or not supported (of {', '.join(SERIES)} there is {there})"
            )
        python = interpreters[series][1]
        builder = environment_of(f"build-{series}", python, "build")
        say(f"wheel for {python}")
        with tempfile.TemporaryDirectory() as directory:
            isolated = ("--no-build-isolation", "--check-build-dependencies", "--no-deps")
            kept = str(ROOT / ".cache/engine")
            pip(builder, "wheel", *isolated, "--wheel-dir", directory, sdist, WARREN_ENGINE_CACHE=kept)
            (built,) = Path(directory).glob("*.whl")
            for old in wheels_of(series):
                old.unlink()
            repair(built, release)
        (wheel,) = wheels_of(series)
        check_wheel(wheel)
        try_wheel(wheel, python, series)


def wheels_of(series: str) -> list[Path]:
    """Return the wheels in dist/ for a series of CPython."""
    return list(DIST.glob(f"*-cp{series.replace('.', '')}-*.whl"))


def repair(built: Path, release: Release) -> None:
    """Put a wheel into dist/, named for all the systems that it runs on."""
    bin_directory = tools() / "bin"
    path = f"{bin_directory}{os.pathsep}{os.environ.get('PATH', '')}"
    try:
        run(bin_directory / "auditwheel", "repair", "--wheel-dir", DIST, built, PATH=path)
    except DistError as error:
        shutil.copy2(built, DIST)
        release.left_out.append(f"the tag manylinux of {built.name}: {error}")


def check_wheel(wheel: Path) -> None:
    """See that a wheel has nothing but Warren in it, and metadata that an index takes."""
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        text = opened.read(metadata)
    found = strangers(names)
    if found:
        raise DistError(f"{wheel.name} has files that are not of the package: {', '.join(found[:5])}")
    checked = subprocess.run([tools() / "bin/python", "-c", _CHECK_METADATA], input=text, capture_output=True)
    if checked.returncode:
        raise DistError(f"{wheel.name} has metadata that no index takes:\n{checked.stderr.decode()[-2000:]}")


def try_wheel(wheel: Path, python: str, series: str) -> None:
    """Install a wheel as its user would, and see that its engine is the compiled one."""
    tried = environment_of(f"try-{series}", python, "run")
    pip(tried, "install", "--force-reinstall", "--no-deps", wheel)
    said = run(tried / "bin/warren", "--version", cwd=CACHE).strip()
    if "engine compiled" not in said:
        raise DistError(f"{wheel.name} says: {said}")


def make_debian(release: Release) -> None:
    """Have packaging/debian/build make it."""
    if shutil.which("dpkg-deb") is None:
        release.left_out.append("the Debian package: there is no dpkg-deb")
        return
    here = installed_series([str(SYSTEM_PYTHON)])
    wheels = [wheel for series in here for wheel in wheels_of(series)]
    if not wheels:
        asked = "".join(f" (--python {series})" for series in here)
        release.left_out.append(f"the Debian package: there is no wheel for {SYSTEM_PYTHON}{asked}")
        return
    build = ROOT / "packaging/debian/build"
    package = run(build, wheels[0], DIST, PIP_PYTHON=str(tools() / "bin/python")).strip()
    say("trying the Debian package")
    tried = subprocess.run([build.with_name("try"), package], check=False)
    if tried.returncode == CANNOT_TRY:
        release.left_out.append("trying the Debian package: that needs root and an overlay file system")
    elif tried.returncode:
        raise DistError(f"{package} does not do what it should")


def make_image(release: Release) -> None:
    """Write what the Dockerfile copies, and itself: with a wheel if one runs in the image, else with the sources."""
    text = DOCKERFILE.read_text()
    wheels = {series: wheel for series in SERIES for wheel in wheels_of(series) if fits_image(wheel.name)}
    members: dict[str, Path] = {}
    if wheels:
        # The Python that the image has by default, or the newest one.
        (usual,) = re.findall(r"(?m)^ARG PYTHON=(.+)$", text)
        series = usual if usual in wheels else max(wheels, key=SERIES.index)
        text = with_wheel(text, series)
        members[wheels[series].name] = wheels[series]
    else:
        release.left_out.append("the wheel of the image, which compiles the engine: no compiler runs in it")
    for name in context_members(text, "released" if wheels else "compiled"):
        if name != "*.whl":
            members |= {str(path.relative_to(ROOT)): path for path in files_below(ROOT / name)}
    with tempfile.NamedTemporaryFile("w") as dockerfile:
        dockerfile.write(text)
        dockerfile.flush()
        members["Dockerfile"] = Path(dockerfile.name)
        write_tar(DIST / f"warren-{release.version}-image.tar.gz", members, release.epoch)


def make_chart(release: Release) -> None:
    """Check it, and write what `helm package` writes; links, such as to the dashboard, become files."""
    print(run(tools() / "bin/python", ROOT / "scripts/manifests.py", "--check").strip())
    members = {f"warren/{path.relative_to(CHART)}": path for path in files_below(CHART)}
    write_tar(DIST / f"warren-{release.version}.tgz", members, release.epoch)


def make_sbom(release: Release) -> None:
    """Have cyclonedx-py write it, and say which version of Warren needs these."""
    options = ["--of", "JSON", "--output-reproducible", "--mc-type", "application", "--pyproject", "pyproject.toml"]
    out = DIST / f"warren-{release.version}.cdx.json"
    # It warns about files that are completed below.
    options += ["-o", str(out), "requirements/run.txt"]
    run(tools() / "bin/cyclonedx-py", "requirements", *options, PYTHONWARNINGS="ignore")
    out.write_text(json.dumps(completed_sbom(json.loads(out.read_text()), release.version), indent=2) + "\n")


def make_notes(release: Release) -> None:
    """Cut them out of the changelog."""
    notes = release_notes((ROOT / "CHANGELOG.md").read_text(), release.version)
    (DIST / f"warren-{release.version}-notes.md").write_text(notes)


PARTS: Final[dict[str, Callable[[Release], None]]] = {
    "sdist": make_sdist,
    "wheels": make_wheels,
    "debian": make_debian,
    "image": make_image,
    "chart": make_chart,
    "sbom": make_sbom,
    "notes": make_notes,
}


def write_sums(directory: Path) -> None:
    """Write SHA256SUMS of everything else in a directory, as `sha256sum --check` reads it."""
    files = sorted(path for path in directory.iterdir() if path.is_file() and path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (directory / "SHA256SUMS").write_text("".join(lines))


def the_file(name: str, part: str) -> Path:
    """Return a file that another part makes."""
    if not (DIST / name).exists():
        raise DistError(f"dist/{name} is missing: make the part {part!r} first")
    return DIST / name


def series_of(numbers: Sequence[object]) -> str:
    return f"{numbers[0]}.{numbers[1]}"


def say(text: str) -> None:
    print(f"dist: {text}", file=sys.stderr, flush=True)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    here = series_of(sys.version_info)
    reader = argparse.ArgumentParser(prog="dist.py", description="Make what a release consists of, in dist/.")
    reader.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}, or manifests (default: all)")
    reader.add_argument(
        "--python",
        action="append",
        choices=[*SERIES, "all"],
        help=f"CPython that a wheel is made for, several times or 'all' (default: {here}, which runs this)",
    )
    return reader.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Make the wanted parts, or all of them from scratch."""
    options = parsed(arguments)
    wanted: list[str] = options.parts
    if wanted == ["manifests"]:
        write_version()
        return subprocess.run([tools() / "bin/python", ROOT / "scripts/manifests.py"], check=False).returncode
    unknown = [part for part in wanted if part not in PARTS]
    if unknown:
        say(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
        return 2
    pythons: list[str] = options.python or [series_of(sys.version_info)]
    if not wanted:
        shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir(exist_ok=True)
    committed = run("git", "log", "-1", "--format=%ct").strip() if (ROOT / ".git").exists() else ""
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or committed or (ROOT / "CHANGELOG.md").stat().st_mtime)
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch)  # for everything that is run
    release = Release(version(), epoch, None if "all" in pythons else pythons)
    try:
        for part, make in PARTS.items():
            if not wanted or part in wanted:
                say(part)
                make(release)
    except DistError as error:
        say(f"{part} failed: {error}")
        return 1
    write_sums(DIST)
    for path in sorted(DIST.iterdir()):
        print(f"{path.stat().st_size:12,}  dist/{path.name}")
    for what in release.left_out:
        say(f"left out: {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
