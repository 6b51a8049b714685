"""A disk of a few megabytes: a tmpfs in a mount namespace of its own, so that nothing is left behind whatever happens.

1. The namespace belongs to a process that ends when its standard input does, which is at the latest when the test ends.
2. Root makes a mount namespace; others a user namespace too, where the system lets them. Where it does not, the test
   is skipped and says so.
3. The broker runs under `wrapper`, inside the namespace; the test looks in through `view`.
"""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from compat.broker import in_ci

_FILLER = "filler"
_MOUNT = 'mount -t tmpfs -o "size=$1,mode=700" tmpfs "$2" && echo mounted && exec cat'


class SmallDisk:
    """A tmpfs of `size_bytes` at `mount_point`, which is made if need be."""

    def __init__(self, mount_point: Path, size_bytes: int) -> None:
        mount_point.mkdir(parents=True, exist_ok=True)
        self._mount_point = mount_point
        self._size_bytes = size_bytes
        self._holder: subprocess.Popen[bytes] | None = None
        self._enter: list[str] = []

    def __enter__(self) -> Self:
        ways = [["-m"]] if os.geteuid() == 0 else []
        reasons = []
        for flags in [*ways, ["-U", "-r", "-m"]]:
            command = ["unshare", *flags, "sh", "-c", _MOUNT, "sh", str(self._size_bytes), str(self._mount_point)]
            try:
                holder = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
                )
            except FileNotFoundError:
                reasons.append("there is no unshare (Debian: util-linux)")
                continue
            assert holder.stdout is not None
            if holder.stdout.readline() == b"mounted\n":
                self._holder = holder
                kinds = ["--mount"] if flags == ["-m"] else ["--user", "--preserve-credentials", "--mount"]
                self._enter = ["nsenter", f"--target={holder.pid}", *kinds, f"--wd={os.getcwd()}"]
                return self
            _, said = holder.communicate()
            reasons.append(said.decode(errors="replace").strip())
        reason = f"no small disk can be mounted here: {'; '.join(reasons)}"
        assert not in_ci(), reason
        pytest.skip(reason)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._holder is not None:
            self._holder.communicate()

    @property
    def wrapper(self) -> list[str]:
        """The command under which a process sees the disk."""
        return self._enter

    @property
    def view(self) -> Path:
        """The disk as a path for the test."""
        assert self._holder is not None
        return Path(f"/proc/{self._holder.pid}/root{self._mount_point}")

    def free_bytes(self) -> int:
        """Return how much can still be written."""
        state = os.statvfs(self.view)
        return state.f_bavail * state.f_frsize

    def fill(self, but: int = 0) -> None:
        """Use up the free space, except for `but` bytes."""
        with open(self.view / _FILLER, "ab", buffering=0) as filler:
            for piece in (1 << 16, 1 << 12):
                try:
                    while self.free_bytes() >= but + piece:
                        filler.write(bytes(piece))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def empty(self) -> None:
        """Take away what `fill` wrote."""
        (self.view / _FILLER).unlink()

    def make_read_only(self) -> None:
        """Remount it read-only."""
        subprocess.run([*self._enter, "mount", "-o", "remount,bind,ro", str(self._mount_point)], check=True)
