"""The commands of `warren`, their options and help. Only started from `warren.server.cli`.

Typer reads options with pydantic and draws with rich: fine for a person who waits for an answer, too heavy for a
lasting process. `serve` is here for its help and for the mistakes in its options.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
import typer.main

from warren import __version__
from warren.ctl.command_table import ctl_app
from warren.ctl.help_pages import finish
from warren.server.cli import OtherCommand, run_broker
from warren.server.command_examples import EXAMPLES, finish_all
from warren.server.engine_build import engine_is_compiled
from warren.server.settings import KEYS, SERVE_OPTIONS, SERVE_SWITCHES, Settings
from warren.server.settings_reader import load_settings, shown_values
from warren.server.start_errors import SettingsError
from warren.server.store_commands import store_app

if TYPE_CHECKING:
    from warren.server.management import Plugin

app = typer.Typer(
    name="warren",
    help="Warren, an AMQP 0-9-1 message broker.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(store_app)
app.add_typer(ctl_app)

# Makes the plugins that run beside the broker. The program that is built on Warren passes it to `warren.server.cli`.
make_plugins: Callable[[], Sequence[Plugin]] = tuple

_Command = TypeVar("_Command", bound=Callable[..., None])


def _with_serve_options(command: _Command) -> _Command:
    """Give `command`, whose last parameter is ``**given``, an option ``--config`` and all of `SERVE_OPTIONS`."""
    about = typer.Option("--config", metavar="FILE", help="TOML file with settings")
    options = [_option("config", Annotated[Path | None, about], None)]
    for name, key in SERVE_OPTIONS.items():
        metavar = KEYS[key].option.partition(" ")[2]
        description = KEYS[key].description
        about = typer.Option(name, metavar=metavar or None, help=description[:1].upper() + description[1:])
        if name in SERVE_SWITCHES:
            options.append(_option(key, Annotated[bool, about], False))
        else:
            options.append(_option(key, Annotated[str | None, about], None))
    *own, _given = inspect.signature(command, eval_str=True).parameters.values()
    parameters = [*options, *(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own)]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _option(name: str, annotation: object, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"warren {__version__} (engine {'compiled' if engine_is_compiled() else 'interpreted'})")
        raise typer.Exit


@app.callback()
def _warren(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version")
    ] = False,
) -> None:
    pass


@app.command()
@_with_serve_options
def serve(**given: Any) -> None:
    """Run the broker in the foreground until Ctrl-C or SIGTERM."""
    read = _reader(given)
    raise typer.Exit(run_broker(read(), make_plugins(), partial(read, again=True)))


config_app = typer.Typer(
    invoke_without_command=True, help="Print every setting, write a file of them, or translate RabbitMQ's."
)
app.add_typer(config_app, name="config")


@config_app.callback()
@_with_serve_options
def show_config(
    context: typer.Context, as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False, **given: Any
) -> None:
    """Print every setting with its value and where that came from; flags as for `warren serve`."""
    read = _reader(given)
    context.obj = read
    if context.invoked_subcommand is not None:
        return
    from warren.server.setting_checks import deprecated

    settings = read()
    rows = list(shown_values(settings))
    for key, origin, advice in deprecated(settings):
        print(f"warren config: {key} ({origin}) is deprecated: {advice}", file=sys.stderr)
    if as_json:
        import json

        print(json.dumps({key: {"value": value, "origin": origin} for key, value, origin in rows}, indent=2))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("Setting", "Value", "Origin", box=None, header_style="bold")
    for key, value, origin in rows:
        table.add_row(Text(key), Text(value, overflow="fold"), Text(origin, overflow="fold"))
    console = Console()
    if not console.is_terminal:
        # A pipe does not have a width: write a line for each setting.
        console.width = max(80, Console(width=1_000_000).measure(table).maximum)
    console.print(table)


@config_app.command("example")
def example_config(context: typer.Context) -> None:
    """Print a file for `warren serve --config` with every setting explained; what is not set is commented out."""
    from warren.server.example_config import example

    print(example(context.obj()), end="")


@config_app.command("import-rabbitmq")
def import_rabbitmq(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="RabbitMQ's rabbitmq.conf")],
    lenient: Annotated[
        bool, typer.Option("--lenient", help="omit lines without a counterpart, with a comment")
    ] = False,
) -> None:
    """Print RabbitMQ's settings as a file for `warren serve --config`; fail if a line has no counterpart."""
    from warren.server.rabbitmq_conf import translate

    try:
        text = file.read_text()
    except OSError as error:
        raise SettingsError(f"{file}: {os.strerror(error.errno or 0)}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{file}: is not UTF-8") from None
    found = translate(text)
    if found.missing and not lenient:
        for line, remark in found.missing:
            print(f"{file}:{line.number}: {line.shown}: {remark}", file=sys.stderr)
        print(
            f"{len(found.missing)} lines have no counterpart: change or remove them, or omit them with --lenient",
            file=sys.stderr,
        )
        raise typer.Exit(1)
    print(found.toml(), end="")
    print(
        f"{len(found.values)} settings, {len(found.missing)} lines without a counterpart, "
        f"{len(found.needless)} not needed",
        file=sys.stderr,
    )


@app.command("hash-password")
def hash_password_command(
    algorithm: Annotated[str, typer.Option(help="scrypt, or sha256 or sha512 as RabbitMQ stores them")] = "scrypt",
) -> None:
    """Print the hash of a password, asked for or read from standard input."""
    from warren.server.logins.passwords import SCRYPT, hash_password, hash_password_for_rabbitmq

    if algorithm not in (SCRYPT, "sha256", "sha512"):
        raise typer.BadParameter("must be scrypt, sha256 or sha512", param_hint="--algorithm")
    if sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True).encode()
    else:
        password = sys.stdin.buffer.readline().rstrip(b"\r\n")
    if not password:
        raise typer.BadParameter("an empty password cannot log in", param_hint="password")
    if algorithm == SCRYPT:
        print(hash_password(password).text)
    else:
        print(hash_password_for_rabbitmq(password, f"rabbit_password_hashing_{algorithm}").text)


@app.command(
    "perf",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def perf_command(context: typer.Context) -> None:
    """Load any AMQP broker and report rates, latencies and what it cost (warren perf --help)."""
    from warren.perf.command import perf

    made = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    made.command()(perf)
    command = typer.main.get_command(made)
    finish(command, EXAMPLES["perf"])
    command(args=context.args, prog_name="warren perf")


def run() -> None:
    """Run the command line of this process and exit."""
    command = typer.main.get_command(app)
    finish_all(command)
    command()


def add_to_help(others: Sequence[OtherCommand]) -> None:
    """Make `warren --help` name commands that run without this module."""
    for other in others:
        app.command(other.name, help=other.help, add_help_option=False)(lambda: None)


def _reader(given: Mapping[str, Any]) -> Callable[..., Settings]:
    """Return what reads the settings, some of which are among the options of a command, by their names."""
    flags = {key: str(given[key]) if given[key] is not None else None for key in SERVE_OPTIONS.values()}
    for option in SERVE_SWITCHES:
        key = SERVE_OPTIONS[option]
        flags[key] = "true" if given[key] else None
    return partial(load_settings, flags, os.environ, given["config"], again=False)
