"""A log that is damaged in the cache only, or cannot be read for a while, starts as if nothing had been."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from simulation.simulated_file_system import SimulatedFileSystem

from warren.msgstore.log.checkpoint import seal
from warren.server.recovered_messages import recover_messages
from warren.server.settings import Settings
from warren.server.start_errors import StartError


class Cached(SimulatedFileSystem):
    """Gives zeros for what a test says is damaged in the cache, until that is forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.damaged: set[str] = set()

    def read(self, handle: int, length: int, offset: int) -> bytes:
        data = super().read(handle, length, offset)
        path = self._opened(handle).path
        return data[:20] + bytes(len(data) - 20) if path in self.damaged and len(data) > 20 else data

    def forget_cached(self, handle: int, length: int, offset: int) -> None:
        self.damaged.discard(self._opened(handle).path)


def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path)


def begun(fs: SimulatedFileSystem, tmp_path: Path) -> None:
    """Put a checkpoint on the disk."""
    found = recover_messages(settings(tmp_path), fs, 8)
    log = found.log
    log.close_if_due()
    (job,) = log.commit_jobs
    found.store.commit(job, 0)
    log.committed(job)
    log.checkpoints.want()
    log.close_if_due()
    (checkpoint,) = log.checkpoint_jobs
    content = seal(checkpoint.content, log.checksum, int(checkpoint.last_crc))
    found.store.write_checkpoint(content)
    found.store.close()


def test_a_checkpoint_that_is_damaged_in_the_cache_only_is_read_again(tmp_path: Path) -> None:
    fs = Cached()
    begun(fs, tmp_path)
    fs.damaged.add("checkpoint")
    found = recover_messages(settings(tmp_path), fs, 8)
    assert not found.recovery.damaged and found.recovery.segments == 1


def test_a_checkpoint_that_is_damaged_twice_refuses_the_start(tmp_path: Path) -> None:
    fs = Cached()
    begun(fs, tmp_path)
    fs.flip_bit("checkpoint", 40, 1)
    with pytest.raises(StartError, match="its checksum is wrong; run `warren store repair`"):
        recover_messages(settings(tmp_path), fs, 8)


def test_a_start_reads_again_what_the_disk_does_not_give_at_once(tmp_path: Path) -> None:
    fs = Cached()
    begun(fs, tmp_path)
    failures = [errno.EIO] * 3
    fs.fails_read = lambda path, offset, length: bool(failures) and bool(failures.pop())
    found = recover_messages(settings(tmp_path), fs, 8)
    assert not found.recovery.damaged and not failures
