"""Compare, at a start, whether the message store and the metadata store are of the same broker and the same time.

    the metadata store knows                   and the message store                      a start is
    a position of this message store           ends before it: it is older                refused
    a position of this message store           has it in another life: another history    refused
    a position of another message store only   is another one                             refused
    a position, or durable queues              is empty: the directory is missing         refused
    less than the message store                                                           served, and changes are told
                                                                                          that are lost (``writer.py``)

1. The comparison uses the number of metadata changes in the log, its last LSN, and the life that had written the log up
   to there (`Catalogue.positions`). The metadata store learns the LSN with each change, every minute, and at a clean
   stop: the loss of later frames is not noticed.
2. With `accept_loss` the broker starts with what is here. The metadata store notes that: the next start is a normal
   one.
3. Positions are compared without their lives if an earlier version has written one of them, or if the log has forgotten
   what was before its oldest segment. The first case is told, once: the metadata store learns the life soon after.
4. A node that was promoted or elected skips this: positions were compared before, and its metadata are in the same
   directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from warren.msgstore.log.epoch_table import NO_LIFE
from warren.queues.lanes import METADATA
from warren.server.catalogue.catalogue import Position
from warren.server.logs import get_logger
from warren.server.recovered_messages import Recovered
from warren.server.start_errors import StartError
from warren.vhosts.metadata import MetadataChange

ADVICE: Final = "put the newer one back; to start without the missing confirmed messages: warren serve --accept-loss"

log = get_logger("server")


class Metadata(Protocol):
    """The part of a metadata store that is needed here."""

    def positions(self) -> dict[bytes, Position]:
        """Return the positions of message stores, by their ids. Raises CatalogueError."""

    def commit(
        self,
        changes: Sequence[MetadataChange],
        store_id: bytes = b"",
        applied: int = 0,
        lsn: int = 0,
        life_id: bytes = NO_LIFE,
    ) -> None:
        """Note the position of a message store. Raises CatalogueError."""

    def queue_count(self) -> int:
        """Return the number of durable queues. Raises CatalogueError."""


def compare(metadata: Metadata, messages: Recovered, directory: Path, *, accept_loss: bool) -> None:
    """Compare the message store in `directory` with the metadata.

    Raises:
        StartError: messages are missing, and loss is not accepted.
    """
    reason = _why_messages_are_missing(metadata, messages)
    if not reason:
        if accept_loss:
            log.warning("accept_loss is set, but nothing is missing: remove it, or it also accepts later losses")
        return
    if not accept_loss:
        raise StartError(f"message store {directory}: {reason}; {ADVICE}")
    log.warning("messages are missing, and loss is accepted", reason=reason)
    end = _end_of(messages)
    metadata.commit([], messages.log.store_id, end.changes, end.lsn, end.life_id)


def _why_messages_are_missing(metadata: Metadata, messages: Recovered) -> str:
    known = metadata.positions()
    store_id = messages.log.store_id
    here = known.get(store_id)
    if here is not None:
        end = _end_of(messages)
        if end.changes >= here.changes and end.lsn >= here.lsn:
            return _why_they_diverge(messages, here)
        return (
            f"it is older than the metadata store: it ends at LSN {end.lsn}, with {end.changes} changes of the "
            f"metadata, and the metadata store knows of LSN {here.lsn} and {here.changes} changes. An earlier copy or "
            "snapshot has taken its place"
        )
    if messages.recovery.is_new:
        if known:
            return f"it is empty, and the metadata store is that of {_shown(known)}"
        count = metadata.queue_count()
        return f"it is empty, and the metadata store has {count} durable queues" if count else ""
    return f"it is {store_id.hex()}, and the metadata store is that of {_shown(known)}" if known else ""


def _why_they_diverge(messages: Recovered, here: Position) -> str:
    """Return why the log is not the one that the metadata store has followed up to its position; empty if it is."""
    life_id = messages.log.epochs.life_at(here.lsn) if here.lsn else NO_LIFE
    if here.lsn and here.life_id == NO_LIFE:
        log.info("the metadata store does not know yet which life its position is of: only positions are compared")
    if NO_LIFE in (life_id, here.life_id) or life_id == here.life_id:
        return ""
    return (
        f"it is of another history than the metadata store: life {life_id.hex()} has written it up to LSN {here.lsn}, "
        f"and the metadata store has followed life {here.life_id.hex()} up to there. A copy that was started elsewhere "
        "has taken its place"
    )


def _end_of(messages: Recovered) -> Position:
    numbers = [int(index.next_number) for index in messages.log.indexes.values() if index.lane == METADATA]
    lsn = int(messages.log.recovered_lsn)
    return Position(max(numbers, default=0), lsn, messages.log.epochs.life_at(lsn))


def _shown(known: dict[bytes, Position]) -> str:
    return ", ".join(f"message store {store_id.hex()} up to LSN {place.lsn}" for store_id, place in known.items())
