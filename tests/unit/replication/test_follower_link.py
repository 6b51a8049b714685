"""What a follower has received and not carried out is counted, so that it can be bounded."""

from __future__ import annotations

import socket
from pathlib import Path

import trio

from warren.msgstore.files.file_system import OsFileSystem
from warren.replication.entries import Committed
from warren.replication.follower import _Worker
from warren.replication.replica_store import ReplicaStore
from warren.replication.wire import Wire

STORE = b"s" * 16


def test_bytes_are_queued_until_the_thread_has_carried_them_out(tmp_path: Path) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            replica = ReplicaStore(OsFileSystem(str(tmp_path)))
            replica.open()
            replica.follow(7, STORE)
            wire = Wire(ours)
            worker = _Worker(wire, replica, 7)
            worker.put(Committed(100))
            worker.put(Committed(200))
            assert worker.queued_bytes == 16
            worker.start()
            with trio.fail_after(30):
                while worker.queued_bytes:
                    await trio.sleep(0.01)
            assert replica.committed_lsn == 200
            wire.close()
            replica.close()

    trio.run(main)
