"""Commands for definitions: everything that is configured, as one JSON file.

A file with password hashes is readable by its owner only. It takes the place of an earlier one when it is whole: an
export that fails leaves that. Files are in UTF-8, whatever the locale says.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from warren.ctl.exit_codes import CtlError, ExitCode, usage_error
from warren.ctl.output import json_text
from warren.ctl.session import CommandSession, session
from warren.ctl.words import counted, json_object

_Out = Annotated[str, typer.Argument(metavar="FILE", help="- is standard output")]
_In = Annotated[str, typer.Argument(metavar="FILE", help="- is standard input")]
# What a file of one vhost may hold: there the items do not name it.
_OF_VHOST: Final = ("exchanges", "queues", "bindings", "policies", "parameters", "permissions", "topic_permissions")


def export_definitions(context: typer.Context, file: _Out = "-") -> None:
    """Export definitions to a file: of everything, or of the vhost named with --vhost."""
    current = session(context)
    vhost = current.maybe_vhost
    found = current.client.get_object("definitions", *(() if vhost is None else (vhost,)))
    if file == "-":
        current.out.document(found)
        return
    try:
        _write(file, json_text(found, indent=2).encode() + b"\n")
    except OSError as error:
        raise CtlError(f"{file}: {error.strerror}") from None
    current.out.say(f"Exported definitions to {file}")


def _write(file: str, content: bytes) -> None:
    """Write a file in one step. Raises OSError."""
    if os.path.exists(file) and not os.path.isfile(file):
        Path(file).write_bytes(content)  # a pipe, a terminal
        return
    path = os.path.realpath(file)  # a link stays one
    new = f"{path}.{os.getpid()}.new"
    target = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(target, "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(target)
        os.replace(new, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(new)
        raise


def import_definitions(
    context: typer.Context,
    file: _In = "-",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would change; exit code 6: conflicts (Warren)")
    ] = False,
) -> None:
    """Import definitions from a file: of everything, or for the vhost of --vhost. Exit code 6: imported in part."""
    current = session(context)
    document = _read(file)
    vhost = current.maybe_vhost
    if not dry_run:
        imported = current.client.post("definitions", *(() if vhost is None else (vhost,)), body=document).value
        current.out.say(f"Imported definitions from {'standard input' if file == '-' else file}")
        conflicts = imported.get("conflicts", []) if isinstance(imported, dict) else []
        if conflicts:
            _show(current, conflicts)
            raise _conflict(len(conflicts))
        return
    if vhost is not None:
        document = _within(document, vhost)
    found = current.client.post("warren", "definitions", "dry-run", body=document).value
    _show(current, found["changes"])
    if found["conflicts"]:
        raise _conflict(found["conflicts"])


def _show(current: CommandSession, changes: list[dict[str, Any]]) -> None:
    columns = ("action", "kind", "vhost", "name", "detail")
    current.out.rows(columns, ([change.get(column) for column in columns] for change in changes))


def _conflict(count: int) -> CtlError:
    return CtlError(f"{counted(count, 'conflict')} with what is there", ExitCode.CHECK_FAILED)


def _read(file: str) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise usage_error(f"{file}: {error.strerror if isinstance(error, OSError) else error}") from None
    return json_object(text, "standard input" if file == "-" else file)


def _within(document: dict[str, Any], vhost: str) -> dict[str, Any]:
    """Return the definitions of one vhost in the form of a file of all."""
    kept = {key: document[key] for key in _OF_VHOST if isinstance(document.get(key), list)}
    return {key: [{**item, "vhost": vhost} for item in items] for key, items in kept.items()}


COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "export_definitions": export_definitions,
    "import_definitions": import_definitions,
}
