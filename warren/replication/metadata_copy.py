"""A follower's metadata: its SQL follows that of the leader, entry by entry; a promotion begins with it.

1. The content of the leader's SQL is applied here before later entries: the leader's log forgets it then.
2. A copy of everything replaces the content here, in one transaction, when its last piece has come.
3. Known changes are not applied again: a copy may be newer than the changes that follow it.
4. The follower's own needs are in memory: users, their rights to read, and the list of streams. The loop looks single
   things up in it while the thread of the link changes it.
5. Changes that leave out others are refused, and the link ends: over the next one the leader sends a copy, since the
   follower says what it has. Otherwise nobody would notice that something is missing before this node leads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from warren.msgstore.files.store_errors import StoreFailedError
from warren.replication.entries import Catalogue as CatalogueEntry
from warren.replication.entries import CatalogueCopy
from warren.replication.replica_store import EntryRefusedError
from warren.server.catalogue.catalogue import Catalogue
from warren.server.start_errors import CatalogueError
from warren.vhosts.metadata import (
    MetadataChange,
    PermissionDelete,
    PermissionPut,
    QueueDelete,
    QueuePut,
    UserDelete,
    UserPut,
    VhostDelete,
)
from warren.vhosts.metadata_lane import decode_change

_STREAM: Final = b"stream"  # in the arguments of every stream: x-queue-type


class MetadataCopy:
    """The metadata in `catalogue`."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.users: dict[str, UserPut] = {}  # replaced, never changed: the loop reads it
        self.permissions: dict[tuple[str, str], PermissionPut] = {}  # by user and vhost
        self.streams: dict[tuple[str, str], int] = {}  # ids of queues that may be streams, by vhost and name
        self._catalogue = catalogue
        self._store_id = b""
        self._pieces: list[MetadataChange] = []
        self._note(catalogue.load())

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
            EntryRefusedError: changes before these are missing; end the link.
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
        self.users, self.permissions, self.streams = {}, {}, {}
        self._note(changes)

    def _take_changes(self, entry: CatalogueEntry) -> None:
        store_id = self._store_id
        applied = self._catalogue.applied(store_id)
        end = entry.first + len(entry.records)
        if end <= applied:
            return
        if entry.first > applied:
            raise EntryRefusedError(
                f"the leader sends its metadata's changes from {entry.first} on, and here are those below {applied}"
            )
        fresh = entry.records[max(0, applied - entry.first) :]
        changes = [decode_change(record) for record in fresh if record]
        self._catalogue.commit(changes, store_id, end)
        self._note(changes)

    def _note(self, changes: Iterable[MetadataChange]) -> None:
        users = dict(self.users)
        permissions, streams = self.permissions, self.streams
        for change in changes:
            match change:
                case UserPut():
                    users[change.name] = change
                case UserDelete():
                    users.pop(change.name, None)
                    for of_user in [key for key in permissions if key[0] == change.name]:
                        del permissions[of_user]
                case PermissionPut():
                    permissions[change.user, change.vhost] = change
                case PermissionDelete():
                    permissions.pop((change.user, change.vhost), None)
                case QueuePut() if _STREAM in change.arguments:
                    streams[change.vhost, change.name] = change.queue_id
                case QueueDelete():
                    streams.pop((change.vhost, change.name), None)
                case VhostDelete():
                    for key in [key for key in permissions if key[1] == change.name]:
                        del permissions[key]
                    for key in [key for key in streams if key[0] == change.name]:
                        del streams[key]
        self.users = users

    def close(self) -> None:
        """Give the metadata store free."""
        self._catalogue.close()
