"""Write the manual pages: of `warren` and its commands from what ``--help`` says, of its file from the settings.

python scripts/man_pages.py DIRECTORY      writes DIRECTORY/man1/warren.1, …, and DIRECTORY/man5/warren.toml.5

Runs with the Python that Warren is installed for.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import typer
import typer.main

from warren import __version__
from warren.ctl.help_pages import finish
from warren.lake.commands import EXAMPLES as LAKE_EXAMPLES
from warren.lake.commands import lake
from warren.lake.sql_commands import EXAMPLES as SQL_EXAMPLES
from warren.lake.sql_commands import sql
from warren.perf.command import perf
from warren.server import commands
from warren.server.command_examples import EXAMPLES, finish_all
from warren.server.example_config import default_text
from warren.server.settings import KEYS
from warren.spark_bridge.commands import COMMANDS as BRIDGE
from warren.spark_bridge.commands import EXAMPLES as BRIDGE_EXAMPLES

ABOUT: Final = "AMQP 0-9-1 message broker"
EXIT_CODES: Final = {
    "serve": (
        ("0", "It was told to stop."),
        ("1", "It cannot start, for the reason that it gives."),
        ("2", "A setting or an option cannot be used."),
        ("3", "The disk under the message store has failed."),
    ),
}


def pages() -> dict[str, str]:
    """Return the pages by their names, such as ``warren.1``."""
    group = typer.main.get_command(commands.app)
    finish_all(group)
    own = {"perf": perf, "lake": lake, "sql": sql, **BRIDGE}
    # Commands with options of their own, of which `warren` itself knows the names only.
    found = dict(group.commands) | {name: _command_of(name, function) for name, function in own.items()}  # type: ignore[attr-defined]
    names = [f"warren-{name}" for name in found]
    made = {"warren.1": _program(group, found)}
    made |= {f"warren-{name}.1": _command(name, command, names) for name, command in found.items()}
    return made | {"warren.toml.5": _settings()}


def _command_of(name: str, function: Any) -> Any:
    app = typer.Typer(add_completion=False)
    app.command()(function)
    command = typer.main.get_command(app)
    finish(command, {**EXAMPLES, **BRIDGE_EXAMPLES, "lake": LAKE_EXAMPLES, "sql": SQL_EXAMPLES}[name])
    return command


def _program(group: Any, found: Mapping[str, Any]) -> str:
    context = group.context_class(group, info_name="warren")
    lines = [*_head("warren", 1, ABOUT), ".SH SYNOPSIS", _usage(group, context)]
    lines += [".SH DESCRIPTION", *_text(group.help), *_options(group, context), ".SH COMMANDS"]
    for name, command in sorted(found.items()):
        lines += [".TP", f".BR warren\\-{_escaped(name)} (1)", *_text(_summary(command))]
    return _page(lines, [f"warren-{name}" for name in found])


def _command(name: str, command: Any, others: Iterable[str]) -> str:
    context = command.context_class(command, info_name=f"warren {name}")
    lines = [*_head(f"warren-{name}", 1, _summary(command).rstrip(".")), ".SH SYNOPSIS", _usage(command, context)]
    lines += [".SH DESCRIPTION", *_text(command.help or ""), *_options(command, context)]
    names = command.list_commands(context) if hasattr(command, "list_commands") else []
    if names:
        lines.append(".SH COMMANDS")
    told = {*_names(command.params), "--help"}
    for inner in names:
        each = command.get_command(context, inner)
        within = each.context_class(each, info_name=inner, parent=context)
        lines += [f".SS {_escaped(inner)}", _usage(each, within), ".PP", *_text(each.help or "")]
        lines += [*_records(each, within, told), *_examples(each, ".PP")]
    lines += _examples(command, ".SH EXAMPLES")
    if command.notes:
        lines += [".SH NOTES", *_text(command.notes)]
    if name in EXIT_CODES:
        lines.append(".SH EXIT STATUS")
        for code, meaning in EXIT_CODES[name]:
            lines += [".TP", f".B {code}", _escaped(meaning)]
    return _page(lines, [other for other in others if other != f"warren-{name}"])


def _settings() -> str:
    lines = [*_head("warren.toml", 5, "settings of the Warren message broker")]
    lines += [".SH DESCRIPTION"]
    lines += _text(
        "A TOML file that warren serve --config reads; keys with a dot are those of a table, limits.heartbeat_s is "
        "heartbeat_s under [limits]. Each setting is also a variable of the environment, WARREN_LIMITS_HEARTBEAT_S, "
        "which takes precedence; with _FILE behind its name the variable names a file whose first line is the value. "
        "warren config example prints a file with all of them, warren config what is in force."
    )
    lines.append(".SH SETTINGS")
    for key in KEYS.values():
        word = "For example" if key.example else "Default"
        lines += [".TP", f".B {_escaped(key.key)}", *_text(f"{key.description[:1].upper()}{key.description[1:]}.")]
        lines += [".br", *_text(f"Values: {key.values}. {word}: {default_text(key)}")]
    return _page(lines, ["warren-serve", "warren-config"])


# --- parts of a page --------------------------------------------------------------------------------------------------


def _head(name: str, section: int, about: str) -> list[str]:
    title = f'.TH "{_escaped(name.upper())}" "{section}" "" "Warren {__version__}" "Warren"'
    if about[1:2].islower():
        about = about[:1].lower() + about[1:]
    return [title, ".SH NAME", f"{_escaped(name)} \\- {_escaped(about)}"]


def _usage(command: Any, context: Any) -> str:
    pieces = " ".join(command.collect_usage_pieces(context))
    return f".B {_escaped(context.command_path)}\n{_escaped(pieces)}"


def _examples(command: Any, before: str) -> list[str]:
    return [before, ".nf", *map(_escaped, command.examples), ".fi"] if command.examples else []


def _options(command: Any, context: Any) -> list[str]:
    records = list(_records(command, context, set()))
    return [".SH OPTIONS", *records] if records else []


def _records(command: Any, context: Any, but: set[str]) -> Iterator[str]:
    """Yield the options and arguments of a command, without those called as in `but`."""
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and not but & {*_names([parameter])}:
            yield from (".TP", f".B {_escaped(_plain(record[0]))}", *(_text(record[1]) or [".br"]))


def _names(parameters: Iterable[Any]) -> Iterator[str]:
    for parameter in parameters:
        yield from (name for name in parameter.opts if name.startswith("-"))


def _summary(command: Any) -> str:
    return str(command.get_short_help_str(200))


def _page(lines: list[str], others: Iterable[str]) -> str:
    also = [("warren", 1), ("warren.toml", 5), *((name, 1) for name in sorted(set(others)))]
    references = [f".BR {_escaped(name)} ({section})," for name, section in also]
    return "\n".join([*lines, ".SH SEE ALSO", *references[:-1], references[-1].rstrip(",")]) + "\n"


def _text(text: str) -> list[str]:
    """Return paragraphs of running text as lines of a page."""
    paragraphs = [" ".join(_plain(part).split()) for part in re.split(r"\n\s*\n|\f", text)]
    lines: list[str] = []
    for paragraph in paragraphs:
        if paragraph:
            lines += [*([".PP"] if lines else []), _escaped(paragraph)]
    return lines


def _plain(text: str) -> str:
    """Return a text of the help without marks of `rich`."""
    return re.sub(r"\[/?(?:bold|dim|italic|green|red|yellow|cyan)\]", "", text)


def _escaped(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"(?m)^(?=[.'])", r"\\&", text)


def main(directory: Path) -> None:
    """Write all pages below `directory`."""
    for name, text in pages().items():
        path = directory / f"man{name[-1]}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the manual pages below a directory.")
    parser.add_argument("directory", type=Path)
    main(parser.parse_args().directory)
