"""The share that each user may take of something limited.

A user may have at most `SHARE` times as much as is free. So a single user can get three quarters, the next one three
quarters of the rest, and something is left for every other user. Nothing is reserved for users who need nothing.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 3


class UserShares:
    """The shares of users in `most`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.total: int = 0
        self._used: dict[str, int] = {}

    def used(self, user: str) -> int:
        """Return the amount that `user` has."""
        return self._used.get(user, 0)

    def allows(self, user: str, amount: int) -> bool:
        """Tell whether `user` may have `amount` more."""
        free = self.most - self.total
        return amount <= free and self._used.get(user, 0) + amount <= SHARE * free

    def add(self, user: str, amount: int) -> None:
        """Count `amount` more for `user`, or less when it is negative."""
        self.total += amount
        used = self._used.get(user, 0) + amount
        if used:
            self._used[user] = used
        elif user in self._used:
            del self._used[user]

    def check_invariants(self) -> None:
        """Assert that the parts add up to the whole. For tests."""
        assert self.total == sum(self._used.values())
        assert all(used > 0 for used in self._used.values())
