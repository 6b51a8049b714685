"""Every mutant is a change of the sources as they are, and still Python; the tests that have to find it exist."""

from __future__ import annotations

import pytest
from cluster import mutants as of_clusters
from simulation import mutants as of_the_store
from source_mutants import SOURCES, TESTS, Mutant

MUTANTS = (*of_the_store.MUTANTS, *of_clusters.MUTANTS)


@pytest.mark.parametrize("broken", MUTANTS, ids=lambda broken: broken.name)
def test_it_fits(broken: Mutant) -> None:
    texts: dict[str, str] = {}
    for change in broken.changes:
        text = texts.get(change.path) or (SOURCES / change.path).read_text()
        assert text.count(change.old) == 1, f"{change.path} has not once:\n{change.old}"
        texts[change.path] = text.replace(change.old, change.new)
    for path, text in texts.items():
        assert text != (SOURCES / path).read_text()
        compile(text, path, "exec")


def test_it_has_a_name_of_its_own() -> None:
    for mutants in (of_the_store.MUTANTS, of_clusters.MUTANTS):
        assert len({broken.name for broken in mutants}) == len(mutants)


def test_the_tests_that_have_to_find_it_exist() -> None:
    chosen = {test for broken in of_the_store.MUTANTS for test in of_the_store.tests_of(broken)} | set(
        of_clusters.FINDERS
    )
    assert [test for test in sorted(chosen) if not (TESTS / test).exists()] == []
