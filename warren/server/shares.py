"""Divide limits between users: a total for all of them, and a maximum for each.

1. No single user can use up the total: each has a maximum share of it.
2. Other users cannot shut administrators out: an administrator can use all of their own share, even when the total is
   used up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from warren.server.logins.authenticator import Users

ADMINISTRATOR: Final = "administrator"


@dataclass(frozen=True, slots=True)
class Quota:
    """The maximum number of something for all users together, and for one user."""

    total: int
    of_user: int

    def maybe_refusal(self, what: str, users: Users, user: str, has: int, all_have: int, more: int = 1) -> str:
        """Return why `user`, who `has` some of the `all_have` in use, cannot have `more`; "" if that is possible.

        `what` names them: ``snapshots``.
        """
        if has + more > self.of_user:
            return f"user '{user}' has {has} {what} (maximum {self.of_user})"
        record = users.get(user)
        if all_have + more > self.total and (record is None or ADMINISTRATOR not in record.tags):
            return f"there are {all_have} {what} (maximum {self.total})"
        return ""
