"""Count what is staged, for each user, and refuse what exceeds the shares or the disk."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import Final

from warren.server.management import Management
from warren.server.shares import Quota
from warren.server.staging.staged_batch import NoRoom

STAGES_QUOTA: Final = Quota(total=20_000, of_user=10_000)
PARTS_QUOTA: Final = Quota(total=200_000, of_user=100_000)
BYTES_QUOTA: Final = Quota(total=64 << 30, of_user=32 << 30)


@dataclass(slots=True)
class Used:
    """The staged data of a user, or of all."""

    stages: int = 0
    parts: int = 0
    bytes: int = 0

    def add(self, stages: int, parts: int, size: int) -> None:
        self.stages += stages
        self.parts += parts
        self.bytes += size


class StagedSpace:
    """The staged data of all users."""

    def __init__(self, management: Management) -> None:
        self._management = management
        self.all = Used()
        self.of_users: dict[str, Used] = {}

    def clear(self) -> None:
        """Forget all counts."""
        self.all = Used()
        self.of_users.clear()

    def count(self, user: str, stages: int, parts: int, size: int) -> None:
        """Add `stages`, `parts` and `size` bytes to the staged data of a user."""
        self.all.add(stages, parts, size)
        used = self.of_users.setdefault(user, Used())
        used.add(stages, parts, size)
        if not used.stages:
            del self.of_users[user]

    def check_stage(self, user: str) -> None:
        """Make sure that a user may begin another stage.

        Raises:
            NoRoom: there are too many.
        """
        self._check(STAGES_QUOTA, "stages", user, self._of(user).stages, self.all.stages)

    def check_part(self, user: str, size: int) -> None:
        """Make sure that a user may store another part, of `size` bytes.

        Raises:
            NoRoom: there are too many, or the disk is low on space.
        """
        mine = self._of(user)
        self._check(PARTS_QUOTA, "parts of stages", user, mine.parts, self.all.parts)
        self._check(BYTES_QUOTA, "bytes in stages", user, mine.bytes, self.all.bytes, size)
        settings = self._management.settings
        if shutil.disk_usage(settings.data_dir).free - size < settings.store.disk_free_min_bytes:
            raise NoRoom("the disk is low on space")

    def _of(self, user: str) -> Used:
        return self.of_users.get(user, Used())

    def _check(self, quota: Quota, what: str, user: str, has: int, all_have: int, more: int = 1) -> None:
        refusal = quota.maybe_refusal(what, self._management.view.permissions, user, has, all_have, more)
        if refusal:
            raise NoRoom(refusal)
