"""The durable changes of the metadata for SQL, read from the log as `CatalogueWriter` reads them."""

from __future__ import annotations

from typing import Protocol

from warren.channels.broker import Broker
from warren.vhosts.metadata import MetadataChange
from warren.vhosts.metadata_lane import decode_change


class Disk(Protocol):
    """Carries out the jobs of the log."""

    def run(self) -> bool: ...


def take_durable_changes(broker: Broker, disk: Disk) -> list[MetadataChange]:
    """Return the changes that are durable and that SQL does not have. Now it has them."""
    lane = broker.journal.lane
    found: list[MetadataChange] = []
    while lane.is_behind():
        told: list[tuple[int, list[bytes | None]]] = []

        def take(first: int, bodies: list[bytes | None], told: list[tuple[int, list[bytes | None]]] = told) -> None:
            told.append((first, bodies))

        lane.read(take)
        while not told:
            assert disk.run(), "the changes are not read"
        ((first, bodies),) = told
        assert None not in bodies, "a durable change is lost"
        found += [decode_change(body) for body in bodies if body is not None]
        lane.applied_to(first + len(bodies))
    return found
