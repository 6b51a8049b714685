"""No request makes a stretch of work long: the cost of each route with n and with 2n objects, in steps.

The API runs from its source, with its steps counted, in a process of its own (`step_counts.measure_routes`).
`route_cases` gives the limits of routes.
"""

from __future__ import annotations

import pytest

from step_counts.measured import measured
from step_counts.route_cases import CASES, LINEAR, LISTED, ONE, SIZE, SOUGHT, Case
from warren.mgmt_plugin.plugin import all_routes

GROWTH_MAX = 2.3
SLACK = 60  # steps
# How many steps a stretch may grow by for each n; of queues, channels and connections there are two or more for each.
STRETCH = {ONE: 0.25, SOUGHT: 6.5, LISTED: 14}
WHOLE = {ONE: 0.25, SOUGHT: 6.5}

Figures = dict[str, list[tuple[int, int, int, str]]]


@pytest.fixture(scope="module")
def figures() -> Figures:
    return measured("step_counts.measure_routes")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_work_grows_no_faster_than_what_there_is(case: Case, figures: Figures) -> None:
    base, one, two = figures[case.name]
    for _, _, status, text in (base, one, two):
        assert status < 300, text
    # With one of everything another stretch may be the longest.
    assert two[0] <= GROWTH_MAX * one[0] + SLACK, "the longest stretch grows faster than linear"
    assert two[1] - base[1] <= GROWTH_MAX * max(0, one[1] - base[1]) + SLACK, "all of it grows faster than linear"
    if case.growth == LINEAR:
        assert case.reason
        return
    assert two[0] - one[0] <= STRETCH[case.growth] * SIZE, "the longest stretch grows"
    if case.growth in WHOLE:
        assert two[1] - one[1] <= WHOLE[case.growth] * SIZE, "it depends on how many others there are"


def test_every_route_is_measured() -> None:
    routes = {f"{route.method} {route.template}" for route in all_routes()}
    assert routes == {case.route for case in CASES}


def test_cases_have_names_of_their_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
