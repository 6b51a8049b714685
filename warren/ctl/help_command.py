"""`warren ctl help`, as rabbitmqctl has it; of a word that is not a command it lists the commands about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

import typer


def help_of(
    context: typer.Context,
    command: Annotated[
        str | None, typer.Argument(metavar="COMMAND|WORD", help="A command or a search word; default: all commands")
    ] = None,
) -> None:
    """Explain a command, list the commands about a word, or name all of them."""
    from warren.ctl.command_table import main

    if command is not None:
        found = _about(context.parent.command, context, command) if context.parent is not None else []
        if found:
            for name, line in found:
                print(f"{name:<32}  {line}")
            return
    raise typer.Exit(main(["--help"] if command is None else [command, "--help"]))


def _about(group: Any, context: typer.Context, word: str) -> list[tuple[str, str]]:
    """Return the commands with `word` in the name or the help, each with a line; none if it is a command itself."""
    wanted = word.lower().replace("-", "_")
    if group.get_command(context, wanted) is not None:
        return []
    found = []
    for name in group.list_commands(context):
        line = (group.get_command(context, name).help or "").strip().partition("\n")[0]
        if wanted in name or word.lower() in line.lower():
            found.append((name, line))
    return found


COMMANDS: Final[dict[str, Callable[..., None]]] = {"help": help_of}
