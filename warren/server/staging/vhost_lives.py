"""The life of a vhost, by which its stages are told from those of an earlier vhost of its name.

It is a random id among the records of the vhost: it comes with the first stage, and goes with the vhost.
"""

from __future__ import annotations

from secrets import token_hex
from typing import Final

from warren.server.management import Management
from warren.server.staging.staged_batch import NoStage

_LIFE: Final = "stages:life"


class VhostLives:
    """The lives of the vhosts of one broker."""

    def __init__(self, management: Management) -> None:
        self._management = management
        self._view = management.view
        self._on_disk: dict[str, bytes] = {}  # as far as this process knows

    def maybe_current(self, vhost: str, life: str) -> bool | None:
        """Tell whether a stage with this life belongs to the current vhost of the name; None: that is not known.

        Damage may have taken the vhost or its record.
        """
        if vhost not in self._view.vhosts:
            return None
        current = self._view.records.of(vhost).maybe_value(_LIFE)
        if not life:
            return True
        return None if current is None else current == life.encode()

    async def need(self, vhost: str) -> str:
        """Return the life of a vhost, which is on disk and is current when this returns.

        Raises:
            NoStage: the vhost is deleted.
        """
        if vhost not in self._view.vhosts:
            raise NoStage(f"vhost '{vhost}' was deleted")
        records = self._view.records.of(vhost)
        life = records.maybe_value(_LIFE)
        if life is None:
            life = token_hex(8).encode()
            records.store(_LIFE, life)
        if self._on_disk.get(vhost) != life:
            # Else a crash would leave a part of a life that nobody knows.
            self._management.settle()
            await self._management.messages.deleted()
            if not self._view.records.are_of(records, vhost):
                raise NoStage(f"vhost '{vhost}' was deleted")
            self._on_disk[vhost] = life
        return life.decode()

    def forget(self, vhost: str) -> None:
        """Forget the life of a deleted vhost."""
        self._on_disk.pop(vhost, None)
