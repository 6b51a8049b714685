"""The durable changes of the metadata for SQL, read from the log as `CatalogueWriter` reads them."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from warren.channels.broker import Broker
from warren.msgstore.log.jobs import Errand
from warren.vhosts.metadata import MetadataChange
from warren.vhosts.metadata_lane import decode_change


class Disk(Protocol):
    """Carries out the jobs of the log. `told`: the changes that are being read, once they are here."""

    told: list[tuple[int, list[bytes | None]]] | None
    unread: list[Errand]

    def run(self) -> bool: ...


def take_durable_changes(broker: Broker, disk: Disk) -> list[MetadataChange]:
    """Return the durable changes that SQL does not have, as far as the disk gives them. Now it has them."""
    lane = broker.journal.lane
    found: list[MetadataChange] = []
    while lane.is_behind():
        told = disk.told
        if told is None:
            told = disk.told = []
            lane.read(partial(_tell, told))
        while not told:
            if not disk.run():
                assert disk.unread, "the changes are not read"
                return found
        disk.told = None
        ((first, bodies),) = told
        assert None not in bodies, "a durable change is lost"
        found += [decode_change(body) for body in bodies if body is not None]
        lane.applied_to(first + len(bodies))
    return found


def _tell(told: list[tuple[int, list[bytes | None]]], first: int, bodies: list[bytes | None]) -> None:
    told.append((first, bodies))
