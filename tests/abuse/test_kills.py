"""A broker that is killed in the middle of an attack starts again with all that was confirmed.

``python -m abuse --kill`` does it for every attack and at several moments, and judges how long a start takes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .attacks import ATTACKS
from .kills import killed

# The attacks of which a start finds most; each of the others is started after as well, with the mark `long`.
CHOSEN = ("commit-of-many-messages", "filters-of-everything")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in CHOSEN else [pytest.mark.long]) for name in ATTACKS]
)
def test_a_kill_in_the_middle_loses_nothing_that_was_confirmed(name: str, tmp_path: Path) -> None:
    restart = killed(tmp_path, name, 0.5, is_executed=name == "wrong-passwords")
    print(restart)
    if restart is not None:
        assert restart.lost() == 0
