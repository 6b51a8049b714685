"""Schedule TLS handshakes under way: their deadlines, and whose next step is carried out first.

A step costs the processor a millisecond or more, while a ClientHello costs its sender nothing.

1. Address blocks (`admission.address_block`) take turns, and so do the handshakes of one block: a step each. Many
   handshakes from one block delay those from elsewhere by one step each time, whatever their number.
2. A handshake is due when its peer has sent something. It is not watched until its step is done.
"""

from __future__ import annotations


class Handshakes:
    """The handshakes of one reactor, named by their descriptors. Each has `timeout_s` from its beginning."""

    def __init__(self, timeout_s: float) -> None:
        self.due_count: int = 0
        self._timeout_s = timeout_s
        self._deadlines: dict[int, float] = {}  # the earliest first
        self._blocks: dict[int, str] = {}
        self._due: dict[str, dict[int, None]] = {}  # by block; the next first, in both

    def begin(self, fd: int, block: str, now_s: float) -> None:
        """Add a handshake with a peer in `block`."""
        self._deadlines[fd] = now_s + self._timeout_s
        self._blocks[fd] = block

    def make_due(self, fd: int) -> None:
        """Note that its peer has sent something: its step is done in its turn."""
        due = self._due.setdefault(self._blocks[fd], {})
        if fd not in due:
            due[fd] = None
            self.due_count += 1

    def take_next(self) -> int:
        """Return the handshake whose step is next; one is due."""
        block = next(iter(self._due))
        due = self._due.pop(block)
        fd = next(iter(due))
        del due[fd]
        if due:
            self._due[block] = due  # after all others
        self.due_count -= 1
        return fd

    def end(self, fd: int) -> None:
        """Forget a handshake that is done, or whose connection is closed. Ignores other connections."""
        if self._deadlines.pop(fd, None) is None:
            return
        block = self._blocks.pop(fd)
        due = self._due.get(block)
        if due is not None and fd in due:
            del due[fd]
            self.due_count -= 1
            if not due:
                del self._due[block]

    def overdue(self, now_s: float) -> list[int]:
        """Return the handshakes past their deadlines."""
        found: list[int] = []
        for fd, deadline_s in self._deadlines.items():
            if deadline_s > now_s:
                break
            found.append(fd)
        return found
