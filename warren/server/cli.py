"""Start the `warren` command.

1. `warren serve` imports only what it serves with: reading its options with typer would cost the broker 8 MB for its
   whole life and a quarter of a second of its start. Every other command goes to `warren.server.commands`, and so does
   a `serve` whose options are not plainly right. That module also explains mistakes.
2. An error that a person can fix (a setting, a port, a directory) is one line on stderr. Mistakes in the settings are
   one line each. The exit code is 2 for settings, 1 for the rest. A traceback always means a fault of ours.
3. The command refuses to run with assertions off: they stop the broker before it loses messages.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple

from warren.server import standard_streams
from warren.server.settings import SERVE_OPTIONS, SERVE_SWITCHES, Settings
from warren.server.settings_reader import load_settings
from warren.server.start_errors import StartError

if TYPE_CHECKING:
    from warren.server.management import Plugin

_CONFIG_OPTION: Final = "--config"


class OtherCommand(NamedTuple):
    """A command beside the broker: it gets the arguments after its name, and returns the exit code."""

    name: str
    help: str
    run: Callable[[Sequence[str]], int]


def main(make_plugins: Callable[[], Sequence[Plugin]] = tuple, others: Sequence[OtherCommand] = ()) -> None:
    """Run the command line of this process and exit. `make_plugins` imports and makes the plugins beside the broker."""
    standard_streams.open_missing()
    if sys.flags.optimize:
        _fail("Python must not run with -O or PYTHONOPTIMIZE: Warren relies on its assertions", 2)
    if sys.argv[1:2] == ["ctl"]:
        # These commands do not run a broker, so the modules of one are not imported.
        from warren.ctl.command_table import main as ctl

        sys.exit(ctl(sys.argv[2:]))
    for other in others:
        if sys.argv[1:2] == [other.name]:
            sys.exit(other.run(sys.argv[2:]))
    try:
        options = maybe_serve_options(sys.argv[1:])
        if options is None:
            from warren.server import commands

            commands.make_plugins = make_plugins
            commands.add_to_help(others)
            commands.run()
        else:
            gc.disable()  # see `pause_collector`: imports leave almost no garbage
            config = options.pop(_CONFIG_OPTION, None)
            flags = {SERVE_OPTIONS[name]: value for name, value in options.items()}
            read = partial(load_settings, flags, os.environ, None if config is None else Path(config))
            sys.exit(run_broker(read(), make_plugins(), partial(read, again=True)))
    except StartError as error:
        _fail(str(error), error.exit_code)
    except BaseExceptionGroup as group:
        reason = _maybe_start_error(group)
        if reason is None:
            raise
        _fail(str(reason), reason.exit_code)


def maybe_serve_options(arguments: Sequence[str]) -> dict[str, str] | None:
    """Return the options of a plain ``serve --name value … --switch`` (or ``--name=value``); None for all else."""
    words = iter(arguments)
    if next(words, None) != "serve":
        return None
    options: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in SERVE_OPTIONS and name != _CONFIG_OPTION:
            return None
        if name in SERVE_SWITCHES:
            if equals:
                return None
            value = "true"
        elif not equals:
            following = next(words, None)
            if following is None:
                return None
            value = following
        options[name] = value
    return options


def run_broker(settings: Settings, plugins: Sequence[Plugin], read_again: Callable[[], Settings]) -> int:
    """Serve with `settings` and `plugins`; return the exit code. `read_again`: see `process.serve`."""
    import trio

    from warren.server import logs, process, process_memory, setting_checks

    logs.configure(settings.log_level, settings.log_format)
    sys.excepthook = _tell_fault
    try:
        setting_checks.check(settings)
        process_memory.keep_little_free()
        process_memory.note_start()
        if settings.cluster_listen is None and settings.follow is None:
            return trio.run(process.serve, settings, plugins, read_again)
        from warren.replication import node

        gc.enable()  # a follower serves without a start of the broker
        return trio.run(node.serve, settings, plugins, read_again)
    finally:
        standard_streams.finish()


def _tell_fault(kind: type[BaseException], fault: BaseException, traceback: TracebackType | None) -> None:
    """Write the traceback of a fault of ours, which ends the process, without waiting for stderr."""
    import traceback as tracebacks

    standard_streams.ERRORS.put("".join(tracebacks.format_exception(kind, fault, traceback)))
    standard_streams.finish()


def _maybe_start_error(group: BaseExceptionGroup[BaseException]) -> StartError | None:
    """Return the reason if a group holds only start errors: any other group must be shown completely."""
    matching, rest = group.split(StartError)
    if matching is None or rest is not None:
        return None
    error: BaseException = matching
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, StartError)
    return error


def _fail(reason: str, exit_code: int) -> None:
    standard_streams.ERRORS.put("warren: " + reason.replace("\n", "\n        ") + "\n")
    standard_streams.finish()
    sys.exit(exit_code)
