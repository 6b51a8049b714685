"""What every help page of `warren` has in common: examples at its end, flags without a type, nothing that is hidden.

1. An example is a whole line for the shell. The tests read each with the command that it explains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def finish(command: Any, examples: Sequence[str]) -> None:
    """Show `examples` at the end of the help of one command of typer, and its flags without `<bool>`."""
    get_params = command.get_params

    def params(context: Any) -> Any:
        found = get_params(context)
        for parameter in found:
            if getattr(parameter, "is_bool_flag", False):
                parameter.metavar = ""
        return found

    command.get_params = params
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            # An old way to say the same: it is read, and not shown as another one.
            parameter.get_usage_pieces = lambda _context: []
    command.notes, command.examples = command.epilog, tuple(examples)  # apart, for manual pages
    if examples:
        title = "Example:" if len(examples) == 1 else "Examples:"
        # Brackets are markup to rich.
        lines = "\n".join(line.replace("[", "\\[") for line in examples)
        command.epilog = "\n\n".join(part for part in (f"{title}\n{lines}", command.epilog) if part)
