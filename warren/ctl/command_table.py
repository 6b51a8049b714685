"""All commands by group, and the typer application made of them.

1. A command's module is imported, and its options read, when that command is wanted: `warren ctl list_queues` pays
   for one of more than ninety. Help and completion of names pay for all.
2. Names are rabbitmqctl's, with underscores; dashes mean the same.
3. Every command has the options of `shared_options`.
4. Errors end in one place, as one line on standard error with the exit code of their kind. Output that cannot be
   written is one of them; a closed pipe is the exception: nothing is said.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import typer
import typer.core
import typer.main

from warren.ctl.examples import GENERAL, examples_of
from warren.ctl.exit_codes import CtlError, ExitCode
from warren.ctl.help_pages import finish
from warren.ctl.output import shown
from warren.ctl.quick_parameters import make_quick
from warren.ctl.session import session


class Group(NamedTuple):
    """Commands that are shown together in the help."""

    title: str
    names: str  # in this order
    module: str  # of this package, with the functions in its `COMMANDS`

    def load(self) -> Mapping[str, Callable[..., None]]:
        """Import the module, and return its commands by their names."""
        match self.module:
            case "backup":
                from warren.ctl.backup import COMMANDS
            case "checks":
                from warren.ctl.checks import COMMANDS
            case "cluster":
                from warren.ctl.cluster import COMMANDS
            case "connections":
                from warren.ctl.connections import COMMANDS
            case "damage":
                from warren.ctl.damage import COMMANDS
            case "definitions":
                from warren.ctl.definitions import COMMANDS
            case "drains":
                from warren.ctl.drains import COMMANDS
            case "help_command":
                from warren.ctl.help_command import COMMANDS
            case "links":
                from warren.ctl.links import COMMANDS
            case "listings":
                from warren.ctl.listings import COMMANDS
            case "messages":
                from warren.ctl.messages import COMMANDS
            case "mqtt":
                from warren.ctl.mqtt import COMMANDS
            case "node":
                from warren.ctl.node import COMMANDS
            case "permissions":
                from warren.ctl.permissions import COMMANDS
            case "policies":
                from warren.ctl.policies import COMMANDS
            case "streams":
                from warren.ctl.streams import COMMANDS
            case "top":
                from warren.ctl.top import COMMANDS
            case "topology":
                from warren.ctl.topology import COMMANDS
            case "transfers":
                from warren.ctl.transfers import COMMANDS
            case "users":
                from warren.ctl.users import COMMANDS
            case "vhosts":
                from warren.ctl.vhosts import COMMANDS
            case _:
                raise AssertionError(self.module)
        return COMMANDS


GROUPS: Final = (
    Group(
        "Broker",
        "status overview cluster_status memory_breakdown version listeners environment report search store reactor "
        "set_cluster_name set_log_level",
        "node",
    ),
    Group("Broker", "cluster forget_cluster_node await_online_nodes drain revive", "cluster"),
    Group("Broker", "top", "top"),
    Group("Broker", "list_nodes list_feature_flags list_damage", "listings"),
    Group("Broker", "give_up_damage", "damage"),
    Group("Broker", "help", "help_command"),
    Group(
        "Health checks",
        "ping await_startup check_running check_local_alarms check_alarms check_port_connectivity "
        "check_port_listener check_protocol_listener check_certificate_expiration check_virtual_hosts is_in_service "
        "check_ready_to_serve_clients check_below_node_connection_limit check_if_node_is_quorum_critical "
        "check_quorum_leaders check_aliveness",
        "checks",
    ),
    Group("Users", "list_users", "listings"),
    Group(
        "Users",
        "add_user delete_user change_password clear_password set_user_tags authenticate_user whoami",
        "users",
    ),
    Group("Vhosts", "list_vhosts", "listings"),
    Group("Vhosts", "add_vhost delete_vhost trace_on trace_off", "vhosts"),
    Group(
        "Permissions",
        "list_permissions list_user_permissions list_topic_permissions list_user_topic_permissions",
        "listings",
    ),
    Group(
        "Permissions",
        "set_permissions clear_permissions set_topic_permissions clear_topic_permissions",
        "permissions",
    ),
    Group("Limits", "list_vhost_limits list_user_limits", "listings"),
    Group("Limits", "set_vhost_limits clear_vhost_limits set_user_limits clear_user_limits", "vhosts"),
    Group(
        "Policies and parameters",
        "list_policies list_operator_policies list_parameters list_global_parameters",
        "listings",
    ),
    Group(
        "Policies and parameters",
        "set_policy clear_policy set_operator_policy clear_operator_policy set_parameter clear_parameter "
        "set_global_parameter clear_global_parameter",
        "policies",
    ),
    Group("Queues, exchanges and bindings", "list_queues list_exchanges list_bindings", "listings"),
    Group(
        "Queues, exchanges and bindings",
        "declare_queue delete_queue purge_queue pause_queue resume_queue declare_exchange delete_exchange bind unbind "
        "route",
        "topology",
    ),
    Group("Messages", "publish get peek", "messages"),
    Group("Messages", "move copy redrive", "transfers"),
    Group("Messages", "list_transfers list_drains", "listings"),
    Group("Messages", "release_drain delete_drain", "drains"),
    Group("Streams", "list_super_streams list_stream_groups", "listings"),
    Group(
        "Streams",
        "add_super_stream delete_super_stream reset_stream_group delete_stream_group stream_offset",
        "streams",
    ),
    Group("MQTT", "list_mqtt_sessions list_retained", "listings"),
    Group("MQTT", "end_mqtt_session clear_retained", "mqtt"),
    Group("Connections", "list_connections list_channels list_consumers", "listings"),
    Group(
        "Connections",
        "cancel_consumer close_connection close_all_connections close_all_user_connections",
        "connections",
    ),
    Group("Definitions", "export_definitions import_definitions", "definitions"),
    Group("Backup", "backup", "backup"),
    Group("Shovels and federation", "list_shovels federation_status", "listings"),
    Group("Shovels and federation", "delete_shovel restart_shovel restart_federation_link release_links", "links"),
    Group("Lake", "list_lake_tables", "listings"),
    Group("Lake", "delete_lake_table restart_lake_table", "links"),
)
_GROUP_OF: Final = {name: group for group in GROUPS for name in group.names.split()}


@cache
def _shared_parameters() -> list[Any]:
    from warren.ctl.shared_options import shared_options

    return list(_click_command("shared", shared_options, "").params)


def _click_command(name: str, function: Callable[..., None], panel: str) -> Any:
    """Return what typer makes of one function."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name, rich_help_panel=panel)(function)
    command = typer.main.get_command(app)
    for parameter in command.params:
        make_quick(parameter)
    return command


class CommandGroup(typer.core.TyperGroup):
    """The group `warren ctl`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.params = [*self.params, *_shared_parameters()]
        finish(self, GENERAL)
        # typer suggests names from the keys.
        made: dict[str, Any] = dict.fromkeys(_GROUP_OF)
        self.commands = made

    def list_commands(self, ctx: Any) -> list[str]:
        """Return all names, group by group."""
        return list(_GROUP_OF)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name with underscores or dashes, None when there is no such."""
        name = cmd_name.replace("-", "_")
        if name in _GROUP_OF and self.commands[name] is None:
            group = _GROUP_OF[name]
            command = _click_command(name, group.load()[name], group.title)
            command.params = [*command.params, *_shared_parameters()]
            make_quick(command.get_help_option(ctx))
            finish(command, examples_of(name))
            self.commands[name] = command
        return self.commands.get(name)

    def get_help_option(self, ctx: Any) -> Any:
        """Return ``--help``."""
        option = super().get_help_option(ctx)
        make_quick(option)
        return option

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an error becomes one line and an exit code."""
        try:
            return super().invoke(ctx)
        except CtlError as error:
            session(ctx).out.flush()
            print(f"warren ctl: {shown(error.reason)}", file=sys.stderr)
            raise typer.Exit(error.exit_code) from None


ctl_app = typer.Typer(
    name="ctl",
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 cannot connect, 4 refused, 5 not found, 6 a check failed. "
    "Options of the connection may also stand in WARREN_CTL_URL, WARREN_CTL_USERNAME, … or in a profile of "
    "~/.config/warren/ctl.toml.",
)


@ctl_app.callback()
def ctl() -> None:
    """Manage a running broker, Warren or RabbitMQ, over its HTTP API."""


def main(arguments: Sequence[str]) -> int:
    """Run one command and return the exit code; mistakes on the command line are one line, too."""
    _have_streams()
    group: Any = typer.main.get_command(ctl_app)
    # SIGTERM acts as Ctrl-C: the broker releases what the command holds there, and the terminal is restored.
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        ended = _run(group, list(arguments))
        # At exit it would be too late to say that this fails.
        sys.stdout.flush()
    except (typer.Abort, EOFError, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except OSError as error:
        _drop_output()
        if isinstance(error, BrokenPipeError):
            return ExitCode.UNREAD
        print(f"warren ctl: cannot read or write: {error.strerror or error}", file=sys.stderr)
        return ExitCode.FAILED
    except Exception as error:
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        # Empty: help was printed because nothing was asked for.
        if reason := " ".join(message().split()):
            print(f"warren ctl: {shown(reason[:1].lower() + reason[1:])}", file=sys.stderr)
        return ExitCode.USAGE
    finally:
        signal.signal(signal.SIGTERM, previous)
    return ended


def _run(group: Any, arguments: list[str]) -> int:
    # Not `group.main`: that ends the process when a pipe is closed, with the code of a command that failed.
    try:
        with group.make_context("warren ctl", arguments) as context:
            group.invoke(context)
    except typer.Exit as ended:
        return int(ended.exit_code)
    except SystemExit:
        # So rich ends a process whose pipe is closed, for a help or a table.
        raise BrokenPipeError from None
    return ExitCode.OK


def _have_streams() -> None:
    """Open the three standard streams, also those that were closed for us, and escape what an encoding cannot show.

    Input is empty then, and output cannot be written. In this order: each takes the lowest descriptor that is free,
    so that no socket is taken for output.
    """
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Discard what is buffered: at exit Python would try to write it once more, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
