"""Every mutant of the cluster is a change of the sources as they are, and still Python."""

from __future__ import annotations

import pytest
from simulation.mutants import SOURCES, Mutant

from cluster.mutants import MUTANTS


@pytest.mark.parametrize("broken", MUTANTS, ids=lambda broken: broken.name)
def test_it_fits(broken: Mutant) -> None:
    texts: dict[str, str] = {}
    for change in broken.changes:
        text = texts.get(change.path) or (SOURCES / change.path).read_text()
        assert text.count(change.old) == 1, f"{change.path} has not once:\n{change.old}"
        texts[change.path] = text.replace(change.old, change.new)
    for path, text in texts.items():
        compile(text, path, "exec")
