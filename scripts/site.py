#!/usr/bin/env python3
"""Make a searchable site of the documentation, in build/site/: `make docs`.

The pages are the Markdown files of the checkout. They are copied to build/docs/ with the files that they link to, in
the same folders: so the links that work in a checkout work in the site. The search ranks what explains how to do
something before what explains why it was decided so, and before lists (`BOOSTS`): the copies say so at their top. The
page Conformance is made of the tests in tests/conformance/, and Python packages of the sources (scripts/python_api.py).
MkDocs (mkdocs.yml) is installed below .cache/docs/, with the versions and hashes of requirements/docs.txt. A link or an
anchor that leads nowhere, and a page that mkdocs.yml does not list, end it with exit code 1.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
TOOLS: Final = ROOT / ".cache/docs"
LOCKED: Final = ROOT / "requirements/docs.txt"
COPIES: Final = ROOT / "build/docs"
# By the beginning of a page's path: by how much the search ranks it higher (above 1) or lower.
BOOSTS: Final = {
    "docs/guides/": 1.2,
    "docs/tutorials/": 1.2,
    "docs/decisions/": 0.2,
    "docs/conformance.md": 0.2,
    "docs/amqp10-conformance.md": 0.2,
    "docs/mqtt-conformance.md": 0.2,
    "docs/stomp-conformance.md": 0.2,
    "docs/adding-a-protocol.md": 0.5,
    "docs/mechanisms.md": 0.5,
    "docs/python-api.md": 0.5,
    "docs/verification.md": 0.5,
    "benchmarks/": 0.3,
    "CHANGELOG.md": 0.3,
    "CONTRIBUTING.md": 0.3,
}
_LINK: Final = re.compile(r'(?:\]\(|src=")(?!\w+:|#)([^)#\s"]+)')


def pages(root: Path) -> list[Path]:
    """Return the Markdown files below `root` that are documentation."""
    return sorted([*root.glob("*.md"), *root.glob("benchmarks/*.md"), *root.glob("docs/**/*.md")])


def linked_files(page: Path) -> list[Path]:
    """Return the files that `page` links to, whatever they are."""
    targets = {(page.parent / link).resolve() for link in _LINK.findall(page.read_text())}
    return sorted(target for target in targets if target.is_file())


def copy_pages() -> None:
    """Fill build/docs/ from scratch."""
    shutil.rmtree(COPIES, ignore_errors=True)
    found = pages(ROOT)
    for path in {*found, *(file for page in found for file in linked_files(page))}:
        copy = COPIES / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def boosted(name: str, text: str) -> str:
    """Return the page `name` with the rank that the search gives it."""
    boost = next((boost for beginning, boost in BOOSTS.items() if name.startswith(beginning)), None)
    return text if boost is None else f"---\nsearch:\n  boost: {boost}\n---\n\n{text}"


def write_boosts() -> None:
    """Say at the top of the copies how the search ranks them."""
    for page in pages(COPIES):
        page.write_text(boosted(str(page.relative_to(COPIES)), page.read_text()))


def write_conformance() -> None:
    """Make the page of all rules, out of the tests that show them."""
    command = [str(ROOT / ".venv/bin/python"), "-m", "conformance", str(COPIES / "docs/conformance.md")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run(command, cwd=ROOT / "tests", env=environment, check=True)


def write_python_api() -> None:
    """Make the reference of the packages that users import."""
    script = str(ROOT / "scripts/python_api.py")
    subprocess.run([sys.executable, script, str(COPIES / "docs/python-api.md")], check=True)


def install() -> None:
    """Install what requirements/docs.txt names, unless that was done."""
    stamp = TOOLS / "installed"
    digest = hashlib.sha256(LOCKED.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return
    shutil.rmtree(TOOLS, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(TOOLS)], check=True)
    pip = [str(TOOLS / "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--require-hashes", "--no-deps", "-r", str(LOCKED)], check=True)
    stamp.write_text(digest)


def main() -> int:
    install()
    copy_pages()
    write_conformance()
    write_python_api()
    write_boosts()
    # Not --quiet: warnings that are not logged are not counted either, and --strict would let them pass.
    command = [str(TOOLS / "bin/python"), "-m", "mkdocs", "build", "--strict", "--clean"]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "true"}).returncode


if __name__ == "__main__":
    sys.exit(main())
