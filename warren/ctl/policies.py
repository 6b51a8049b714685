"""Commands for policies and runtime parameters: JSON under a name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Final

import typer

from warren.ctl.exit_codes import CtlError
from warren.ctl.session import CommandSession, session
from warren.ctl.words import JsonText, Policy, json_object, json_value

_Pattern = Annotated[str, typer.Argument(metavar="PATTERN", help="A regex for names, not anchored")]
_Definition = Annotated[str, typer.Argument(metavar="DEFINITION", help='JSON, such as {"max-length": 1000}')]
_Priority = Annotated[int, typer.Option("--priority", metavar="N", help="The highest matching priority applies")]
_ApplyTo = Annotated[
    str,
    typer.Option("--apply-to", metavar="KIND", help="all, queues, exchanges, classic_queues, quorum_queues or streams"),
]
_REFUSED: Final = "Validation failed "
_UNKNOWN_KEYS: Final = re.compile(r"\[(.*)\] are not recognised policy settings")
_ERLANG_KEY: Final = re.compile(r'\{<<"([^"]*)">>,')
_ERLANG_TEXT: Final = re.compile(r'<<"([^"]*)">>')

_Component = Annotated[str, typer.Argument(metavar="COMPONENT", help="shovel, federation-upstream, …")]
_Name = Annotated[str, typer.Argument(metavar="NAME")]


def set_policy(
    context: typer.Context,
    name: Policy,
    pattern: _Pattern,
    definition: _Definition,
    priority: _Priority = 0,
    apply_to: _ApplyTo = "all",
) -> None:
    """Create or replace a policy."""
    _set_policy(session(context), "policies", name, pattern, definition, priority, apply_to)


def clear_policy(context: typer.Context, name: Policy) -> None:
    """Remove a policy."""
    _clear_policy(session(context), "policies", name)


def set_operator_policy(
    context: typer.Context,
    name: _Name,
    pattern: _Pattern,
    definition: _Definition,
    priority: _Priority = 0,
    apply_to: _ApplyTo = "queues",
) -> None:
    """Create or replace an operator policy: limits that users cannot lift."""
    _set_policy(session(context), "operator-policies", name, pattern, definition, priority, apply_to)


def clear_operator_policy(context: typer.Context, name: _Name) -> None:
    """Remove an operator policy."""
    _clear_policy(session(context), "operator-policies", name)


def set_parameter(context: typer.Context, component: _Component, name: _Name, value: JsonText) -> None:
    """Create or replace a runtime parameter."""
    current = session(context)
    body = {"vhost": current.vhost, "component": component, "name": name, "value": json_value(value, "value")}
    current.client.put("parameters", component, current.vhost, name, body=body)
    current.out.say(f'Parameter "{name}" of component "{component}" in vhost "{current.vhost}" is set')


def clear_parameter(context: typer.Context, component: _Component, name: _Name) -> None:
    """Remove a runtime parameter."""
    current = session(context)
    current.client.delete("parameters", component, current.vhost, name)
    current.out.say(f'Parameter "{name}" of component "{component}" in vhost "{current.vhost}" is cleared')


def set_global_parameter(context: typer.Context, name: _Name, value: JsonText) -> None:
    """Create or replace a global parameter."""
    current = session(context)
    body = {"name": name, "value": json_value(value, "value")}
    current.client.put("global-parameters", name, body=body)
    current.out.say(f'Global parameter "{name}" is set')


def clear_global_parameter(context: typer.Context, name: _Name) -> None:
    """Remove a global parameter."""
    current = session(context)
    current.client.delete("global-parameters", name)
    current.out.say(f'Global parameter "{name}" is cleared')


def _set_policy(
    current: CommandSession, kind: str, name: str, pattern: str, definition: str, priority: int, apply_to: str
) -> None:
    body = {
        "pattern": pattern,
        "definition": json_object(definition, "definition"),
        "priority": priority,
        "apply-to": apply_to,
    }
    try:
        current.client.put(kind, current.vhost, name, body=body)
    except CtlError as error:
        raise CtlError(_plain(name, error.reason), error.exit_code) from None
    current.out.say(f'Policy "{name}" in vhost "{current.vhost}" is set')


def _plain(name: str, reason: str) -> str:
    """Return why a policy is refused, without Erlang's way to write terms."""
    unknown = _UNKNOWN_KEYS.search(reason)
    if unknown is not None:
        keys = ", ".join(_ERLANG_KEY.findall(unknown[1]))
        reason = f"{reason[: unknown.start()]}no such key: {keys}{reason[unknown.end() :]}"
    if not reason.startswith(_REFUSED):
        return reason
    return f'policy "{name}": ' + _ERLANG_TEXT.sub(r'"\1"', reason.removeprefix(_REFUSED))


def _clear_policy(current: CommandSession, kind: str, name: str) -> None:
    current.client.delete(kind, current.vhost, name)
    current.out.say(f'Policy "{name}" in vhost "{current.vhost}" is cleared')


COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "set_policy": set_policy,
    "clear_policy": clear_policy,
    "set_operator_policy": set_operator_policy,
    "clear_operator_policy": clear_operator_policy,
    "set_parameter": set_parameter,
    "clear_parameter": clear_parameter,
    "set_global_parameter": set_global_parameter,
    "clear_global_parameter": clear_global_parameter,
}
