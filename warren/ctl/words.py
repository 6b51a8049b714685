"""Arguments that many commands take, and how their texts are read."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, Final

import typer

from warren.ctl.completion import exchange_names, policy_names, queue_names, user_names, vhost_names
from warren.ctl.exit_codes import usage_error

User = Annotated[str, typer.Argument(metavar="USER", autocompletion=user_names, show_default=False)]
Vhost = Annotated[str, typer.Argument(metavar="VHOST", autocompletion=vhost_names, show_default=False)]
Queue = Annotated[str, typer.Argument(metavar="QUEUE", autocompletion=queue_names, show_default=False)]
Exchange = Annotated[str, typer.Argument(metavar="EXCHANGE", autocompletion=exchange_names, show_default=False)]
Policy = Annotated[str, typer.Argument(metavar="NAME", autocompletion=policy_names, show_default=False)]
NewPassword = Annotated[
    str | None,
    typer.Argument(metavar="PASSWORD", help="Prefer to omit it: read from the prompt or standard input"),
]
JsonText = Annotated[str, typer.Argument(metavar="JSON", show_default=False)]
ArgumentTexts = Annotated[
    list[str] | None,
    typer.Option("--argument", "-a", metavar="KEY=VALUE", help="x-max-length=1000; JSON or text; may be repeated"),
]

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_LIMIT_INTEGER: Final = 1 << 63


def json_object(text: str, what: str) -> dict[str, Any]:
    """Return the JSON object that a text holds; `what` names it in the error."""
    value = json_value(text, what)
    if not isinstance(value, dict):
        raise usage_error(f'{what}: must be a JSON object such as {{"key": 1}}')
    return value


def json_value(text: str, what: str) -> Any:
    """Return the JSON value that a text holds."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise usage_error(f"{what}: not JSON: {error}") from None


def key_values(texts: list[str] | None, option: str) -> dict[str, Any]:
    """Return what ``KEY=VALUE`` texts mean: a number, true, false, a list or an object as in JSON, else text."""
    found: dict[str, Any] = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise usage_error(f"{option} {text}: not of the form KEY=VALUE")
        found[key] = _plain_value(value)
        if isinstance(found[key], int) and not -_LIMIT_INTEGER <= found[key] < _LIMIT_INTEGER:
            raise usage_error(f"{option} {text}: an integer has at most 64 bits")
    return found


def texts_by_key(texts: list[str] | None, option: str) -> dict[str, str]:
    """Return ``KEY=VALUE`` texts with their values as they are."""
    found = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise usage_error(f"{option} {text}: not of the form KEY=VALUE")
        found[key] = value
    return found


def new_password(given: str | None) -> str:
    """Return the password given, asked for on a terminal, or read as a line of standard input."""
    if given is not None:
        return given
    if sys.stdin.isatty():
        text: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
        return text
    text = sys.stdin.readline().rstrip("\r\n")
    if not text:
        raise usage_error("no password: standard input is empty")
    return text


def counted(number: int, noun: str) -> str:
    """Return how many of something there are, in words."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def size_text(value: int) -> str:
    """Return a number of bytes in the unit that fits."""
    amount = float(value)
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def _plain_value(text: str) -> Any:
    if text in ("true", "false") or text[:1] in ("[", "{", '"') or text[:1].isdigit() or text[:1] == "-":
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text
