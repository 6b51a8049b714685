"""The actions that one event asks for, gathered from all parts of a member.

1. They are carried out in the order in which they were added.
2. A report that repeats the previous report is left out.
"""

from __future__ import annotations

from warren.cluster.events import Action, Report


class Actions:
    """The actions of the current event."""

    def __init__(self) -> None:
        self._actions: list[Action] = []
        self._reported = ""

    def add(self, action: Action) -> None:
        """Add an action after all others."""
        self._actions.append(action)

    def report(self, text: str) -> None:
        """Report to the operator, unless the previous report had the same text."""
        if text != self._reported:
            self._reported = text
            self._actions.append(Report(text))

    def take(self) -> list[Action]:
        """Return the actions, and begin with none."""
        taken, self._actions = self._actions, []
        return taken
