"""The last lines of the log, for administrators: they may hold names and addresses of all vhosts.

The broker keeps a bounded number of them, with credentials redacted (`server.logs`). A request looks at all of these,
and answers with at most `COUNT_MAX`.
"""

from __future__ import annotations

from typing import ClassVar, Final

from warren.mgmt_plugin.http.numbers import integer
from warren.mgmt_plugin.listing import Described
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request
from warren.server.logs import LEVELS, RecentLines

COUNT: Final = 200
COUNT_MAX: Final = 1000


class LogLineHandlers(Handlers):
    """The handler of the last lines of the log."""

    def __init__(self, recent: RecentLines) -> None:
        self._recent = recent

    async def list_lines(self, call: Call) -> Described:
        """Return the newest lines that fit, the oldest of them first."""
        query = call.query
        after, count = _number(call, "after", -1, -1, 1 << 62), _number(call, "count", COUNT, 1, COUNT_MAX)
        level = query.get("level", LEVELS[0])
        if level not in LEVELS:
            raise bad_request(f"level must be one of {', '.join(LEVELS)}")
        levels = LEVELS[LEVELS.index(level) :]
        text = query.get("q", "").lower()
        only_audit = call.flag("audit")
        lines = self._recent.lines()
        # A process that has begun again counts from 0.
        following = int(self._recent.next_number)
        if after >= following:
            after = -1
        found: list[Described] = []
        more = False
        for line in reversed(lines):
            number = line["number"]
            assert isinstance(number, int)
            if number <= after:
                break
            if line["level"] not in levels or (only_audit and line["event"] != "audit"):
                continue
            if text and not any(text in str(value).lower() for value in line.values()):
                continue
            if len(found) == count:
                more = True
                break
            found.append(line)
        return {"lines": found[::-1], "last": following - 1, "more": more}

    ROUTES: ClassVar = (
        Route(
            "GET",
            "/api/warren/logs",
            Access.ADMINISTRATOR,
            list_lines,
            "The last lines of the log of this node",
            query=("after", "count", "level", "audit", "q"),
        ),
    )


def _number(call: Call, name: str, default: int, least: int, most: int) -> int:
    try:
        value = integer(call.query.get(name, str(default)))
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise bad_request(f"{name} must be a number from {least} to {most}")
    return value
