"""`python -m warren.perf`: the load tool without the rest of Warren."""

import typer

from warren.perf.command import perf

typer.run(perf)
