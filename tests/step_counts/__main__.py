"""Measure all cases, or those whose name contains the argument, and print a line of JSON for each.

cd tests && PYTHONPATH=.. ../.venv/bin/python -m step_counts [NAME]
"""

from __future__ import annotations

import json
import sys

from step_counts import step_counter

step_counter.install()

from step_counts.cases.case import SIZE, Case  # noqa: E402
from step_counts.meter import Measured, Meter  # noqa: E402 - the engine must be imported with the hook
from step_counts.method_cases import CASES  # noqa: E402


def measured(case: Case, n: int) -> Measured:
    """Measure a case with n things."""
    meter = Meter()
    act = case.prepare(meter, n)
    if case.is_paced:
        meter.pace()
    return meter.measure(act)


def main() -> None:
    """Measure."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for case in CASES:
        if wanted in case.name:
            try:
                figures = [measured(case, n) for n in (1, SIZE, 2 * SIZE)]
            except Exception as error:
                print(json.dumps({"name": case.name, "failed": repr(error)}), flush=True)
                continue
            print(json.dumps({"name": case.name, "growth": case.growth, "figures": figures}), flush=True)


main()
