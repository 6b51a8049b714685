"""Import the file that the setting `load_definitions` names, before a client can connect.

1. A file that cannot be read or imported keeps the broker from starting; then none of it is imported.
2. All of the file is committed at once, with its hash. After a crash either the broker has all of it, or the next start
   imports it again.
3. Nobody can connect before it is durable. A start waits for that without a limit, and the log shows the progress.
4. The import may take away access of any user: an operator who sets this may do everything.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from warren.channels.broker import Broker
from warren.server.catalogue.schema import DEFINITIONS_HASH
from warren.server.definitions.apply import apply_plan
from warren.server.definitions.plan import ImportPlan, PlannedChange, make_plan
from warren.server.definitions.schema import DefinitionsRefused, read_definitions
from warren.server.logs import get_logger
from warren.server.management import CommitTimeout, Management
from warren.server.regular_files import read_regular
from warren.server.start_errors import StartError
from warren.vhosts.metadata import GlobalParameterPut

_FILE_BYTES_MAX: Final = 1 << 30
_PROBLEMS_SHOWN: Final = 3
_CONFLICTS_LOGGED: Final = 20
_PROGRESS_S: Final = 5.0

log = get_logger("definitions")


async def load_definitions(path: Path, broker: Broker, *, skip_if_unchanged: bool) -> int:
    """Import the file at `path` and return the ticket to wait for; 0 if it was imported last time and may be skipped.

    Raises:
        StartError: the file cannot be read, or is refused; one line with the first reasons.
    """
    try:
        data = read_regular(path, _FILE_BYTES_MAX)
    except OSError as error:
        raise StartError(f"load_definitions {path}: {error.strerror or error}") from None
    digest = hashlib.sha256(data).hexdigest()
    imported = broker.parameters.maybe_global(DEFINITIONS_HASH)
    if skip_if_unchanged and imported is not None and imported.value == digest:
        log.info("definitions are unchanged, and skipped", file=str(path))
        return 0
    try:
        definitions = await read_definitions(data, None, _no_pause)
        plan = await make_plan(broker, definitions, _no_pause)
    except DefinitionsRefused as refused:
        raise StartError(f"load_definitions {path}: {'; '.join(_one_line(refused))}") from None
    plan.changes.append(PlannedChange("", "", "", "", step=GlobalParameterPut(DEFINITIONS_HASH, json.dumps(digest))))
    ticket = await apply_plan(broker, plan, _no_pause, _nothing_to_settle, whole=True)
    plan.changes.pop()
    _tell(path, plan)
    return ticket


async def wait_until_durable(path: Path, management: Management, ticket: int, is_stopping: Callable[[], bool]) -> None:
    """Return when the change with that ticket is durable, or the broker has to stop. The file at `path` is imported."""
    journal = management.broker.journal
    while not is_stopping():
        try:
            await management.commit(ticket, _PROGRESS_S)
        except CommitTimeout:
            left = ticket - journal.committed_ticket
            log.warning("the start waits until definitions are on disk", file=str(path), changes=left)
        else:
            return


def _tell(path: Path, plan: ImportPlan) -> None:
    for change in plan.conflicts()[:_CONFLICTS_LOGGED]:
        log.warning(
            "definition not imported", kind=change.kind, vhost=change.vhost, name=change.name, reason=change.detail
        )
    log.info("definitions imported", file=str(path), **Counter(change.action for change in plan.changes))


def _one_line(refused: DefinitionsRefused) -> list[str]:
    return [" ".join(problem.split()) for problem in refused.shown(_PROBLEMS_SHOWN)]


async def _no_pause() -> None:
    """Continue at once: no other task waits yet."""


def _nothing_to_settle() -> None:
    """Do nothing: no client is connected."""
