"""A follower's own service for readers: sealed chunks, by the streams and rights that its metadata have.

1. Sealed chunks are committed (``streams.sealer`` (2)), so every later leader has them, however it cuts its log.
2. Metadata are those of the leader as far as they have come here: a right that was taken away, or a stream that was
   deleted, may still exist here for as long as the follower is behind.
"""

from __future__ import annotations

from warren.msgstore.files.sealed_copy import SealedCopy
from warren.replication.metadata_copy import MetadataCopy
from warren.replication.replica_store import ReplicaStore


class ReplicaCopy:
    """That of a follower; see ``server.management.ReadableCopy``."""

    def __init__(self, replica: ReplicaStore, metadata: MetadataCopy) -> None:
        self.served_bytes = 0
        self._replica = replica
        self._metadata = metadata
        self.sealed = SealedCopy(replica.file_system)

    @property
    def store_id(self) -> bytes:
        """Of which store the directory is."""
        return self._replica.store_id

    def maybe_stream(self, vhost: str, name: str) -> int | None:
        return self._metadata.streams.get((vhost, name))

    def maybe_pattern(self, user: str, vhost: str) -> str | None:
        permission = self._metadata.permissions.get((user, vhost))
        return None if permission is None else permission.read

    def read(self, stream_id: int, first: int, end: int, most_bytes: int) -> tuple[list[bytes], int]:
        return self.sealed.read(self.store_id, stream_id, first, end, most_bytes)
