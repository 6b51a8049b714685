"""docs/clients.md: the programs for Python and JavaScript run, and leave what the page says."""

from __future__ import annotations

from pathlib import Path

from broker_process import WarrenProcess

from .page import ROOT, Reader, read_page, require
from .test_guides import NODE_MODULES, require_installed

PAGE = ROOT / "docs" / "clients.md"
LANGUAGES = ("Python", "JavaScript", "Java", "Go", "C#", "PHP", "Ruby")
WORDS = ("confirm", "mandatory", "x-dead-letter", "persisten", "reject", "ack")
# A flag without a name there, or another name.
SAID_OTHERWISE = {"JavaScript": {"x-dead-letter"}, "Java": {"mandatory"}, "Go": {"mandatory"}, "PHP": {"mandatory"}}


def test_the_programs_that_can_be_run_here_do_what_the_page_says(tmp_path: Path) -> None:
    require("node", "nodejs")
    require_installed(NODE_MODULES)
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    with WarrenProcess(tmp_path / "broker") as broker:
        Reader(read_page(PAGE), tmp_path, broker, sees_errors=True).follow()


def test_each_language_does_the_same_three_things() -> None:
    sections = PAGE.read_text().split("\n## ")[1:]
    assert tuple(section.partition("\n")[0] for section in sections) == LANGUAGES
    for section in sections:
        name, program = section.partition("\n")[0], section.split("```")[1].lower()
        words = {"confirm", "mandatory", "x-dead-letter", "persisten", "reject", "ack"} - SAID_OTHERWISE.get(
            name, set()
        )
        assert {word for word in words if word not in program} == set(), name
