"""The options that every command has, before or after its name; the later one wins.

They are parameters of one function so that typer reads them like any others. `command_table` adds them to each
command; what is given lands in the flags of the session, not in the arguments of the command.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from warren.ctl import config
from warren.ctl.completion import vhost_names
from warren.ctl.output import Format
from warren.ctl.session import FLAGS

_CONNECTION: Final = "Connection"
_OUTPUT: Final = "Output"


def _note(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    """Remember a shared option that was given; the same option behind the command's name comes later."""
    if value is not None and value is not False:
        assert parameter.name is not None
        context.meta.setdefault(FLAGS, {})[parameter.name.removeprefix("shared_")] = value
    return value


def _option(*names: str, panel: str, help: str, **others: Any) -> Any:
    return typer.Option(*names, help=help, callback=_note, expose_value=False, rich_help_panel=panel, **others)


def shared_options(
    shared_vhost: Annotated[
        str | None,
        _option(
            "--vhost",
            "-p",
            metavar="VHOST",
            panel=_CONNECTION,
            help="Default: the profile's, or /",
            autocompletion=vhost_names,
        ),
    ] = None,
    shared_url: Annotated[
        str | None,
        _option("--url", "-u", metavar="URL", panel=_CONNECTION, help=f"Default: {config.DEFAULT_URL}"),
    ] = None,
    shared_username: Annotated[
        str | None, _option("--username", metavar="NAME", panel=_CONNECTION, help="Default: guest")
    ] = None,
    shared_password: Annotated[
        str | None,
        _option(
            "--password",
            metavar="TEXT",
            panel=_CONNECTION,
            help="Visible in the process list; prefer a file or the prompt",
        ),
    ] = None,
    shared_password_file: Annotated[
        str | None,
        _option("--password-file", metavar="FILE", panel=_CONNECTION, help="Its first line is the password"),
    ] = None,
    shared_profile: Annotated[
        str | None, _option("--profile", metavar="NAME", panel=_CONNECTION, help="A profile of the configuration file")
    ] = None,
    shared_config: Annotated[
        str | None, _option("--config", metavar="FILE", panel=_CONNECTION, help="Default: ~/.config/warren/ctl.toml")
    ] = None,
    shared_cacert: Annotated[
        str | None, _option("--cacert", metavar="FILE", panel=_CONNECTION, help="Trust these CAs for https")
    ] = None,
    shared_insecure: Annotated[
        bool, _option("--insecure", panel=_CONNECTION, help="Accept any certificate for https")
    ] = False,
    shared_timeout: Annotated[
        float | None,
        _option("--timeout", "-t", metavar="SECONDS", panel=_CONNECTION, help="For each answer"),
    ] = None,
    shared_formatter: Annotated[Format | None, _option("--formatter", panel=_OUTPUT, help="Default: table")] = None,
    shared_quiet: Annotated[bool, _option("--quiet", "-q", panel=_OUTPUT, help="Print only the result")] = False,
    shared_silent: Annotated[bool, _option("--silent", "-s", panel=_OUTPUT, help="And no headers")] = False,
    shared_no_table_headers: Annotated[
        bool, _option("--no-table-headers", panel=_OUTPUT, help="Omit the header line")
    ] = False,
) -> None:
    """Hold the options of all commands; never called."""
