"""`warren ctl help`, as rabbitmqctl has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import typer


def help_of(
    context: typer.Context,
    command: Annotated[str | None, typer.Argument(metavar="COMMAND", help="Without one: all commands")] = None,
) -> None:
    """Explain a command, or name all of them."""
    from warren.ctl.command_table import main

    raise typer.Exit(main(["--help"] if command is None else [command, "--help"]))


COMMANDS: Final[dict[str, Callable[..., None]]] = {"help": help_of}
