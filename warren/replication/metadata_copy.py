"""A follower's metadata: its SQL follows that of the leader, entry by entry, and is what a promotion begins with.

1. What the leader's SQL has is applied here before the entries that come behind it: the log forgets it there.
2. A copy of everything takes the place of what is here, in one transaction, when its last piece has come.
3. Changes that are here already are not applied again: a copy may be newer than those that come behind it.
"""

from __future__ import annotations

from collections.abc import Iterable

from warren.msgstore.files.errors import StoreFailedError
from warren.replication.entries import Catalogue as CatalogueEntry
from warren.replication.entries import CatalogueCopy
from warren.server.catalogue.catalogue import Catalogue
from warren.server.errors import CatalogueError
from warren.vhosts.metadata import MetadataChange, UserDelete, UserPut
from warren.vhosts.metadata_lane import decode_change


class MetadataCopy:
    """The metadata in `catalogue`."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.users: dict[str, UserPut] = {}  # replaced, never changed: the loop reads it
        self._catalogue = catalogue
        self._store_id = b""
        self._pieces: list[MetadataChange] = []
        self._note_users(catalogue.load())

    def get(self, name: str) -> UserPut | None:
        """Return a user."""
        return self.users.get(name)

    def applied(self, store_id: bytes) -> int:
        """Return the number below which all changes are here."""
        return self._catalogue.applied(store_id)

    def begin(self, store_id: bytes) -> None:
        """Begin a link with the leader of that store: pieces of a copy that came over another one are worth nothing."""
        self._store_id = store_id
        self._pieces = []

    def apply(self, entry: CatalogueEntry | CatalogueCopy) -> None:
        """Apply an entry, durably.

        Raises:
            StoreFailedError: the metadata store cannot be written.
        """
        try:
            if isinstance(entry, CatalogueCopy):
                self._take_copy(entry)
            else:
                self._take_changes(entry)
        except (CatalogueError, ValueError) as error:
            raise StoreFailedError(str(error)) from None

    def _take_copy(self, entry: CatalogueCopy) -> None:
        self._pieces += [decode_change(record) for record in entry.records]
        if entry.has_more:
            return
        changes, self._pieces = self._pieces, []
        self._catalogue.replace(changes, self._store_id, entry.applied)
        self.users = {}
        self._note_users(changes)

    def _take_changes(self, entry: CatalogueEntry) -> None:
        store_id = self._store_id
        applied = self._catalogue.applied(store_id)
        end = entry.first + len(entry.records)
        if end <= applied:
            return
        fresh = entry.records[max(0, applied - entry.first) :]
        changes = [decode_change(record) for record in fresh if record]
        self._catalogue.commit(changes, store_id, end)
        self._note_users(changes)

    def _note_users(self, changes: Iterable[MetadataChange]) -> None:
        users = dict(self.users)
        for change in changes:
            if isinstance(change, UserPut):
                users[change.name] = change
            elif isinstance(change, UserDelete):
                users.pop(change.name, None)
        self.users = users

    def close(self) -> None:
        """Give the metadata store free."""
        self._catalogue.close()
