"""Shares of what all users have together: so many there may be, and so many of one user.

1. Nobody can use up what there is: each user has at most a share of it.
2. Administrators are not shut out by what the others have: of their own share they can use all, also when the whole is
   used up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from warren.channels.access import AccessControl

ADMINISTRATOR: Final = "administrator"


@dataclass(frozen=True, slots=True)
class Quota:
    """How many of something there may be, and how many of one user."""

    total: int
    of_user: int

    def maybe_refusal(self, what: str, access: AccessControl, user: str, has: int, all_have: int, more: int = 1) -> str:
        """Return why `user`, who `has` some of what `all_have`, cannot have so many `more`; "" when that is possible.

        `what` names them: ``snapshots``.
        """
        if has + more > self.of_user:
            return f"user '{user}' has {has} {what}, of at most {self.of_user}"
        record = access.get(user)
        if all_have + more > self.total and (record is None or ADMINISTRATOR not in record.tags):
            return f"there are {all_have} {what}, of at most {self.total}"
        return ""
