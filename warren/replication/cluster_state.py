"""The cluster state of a data directory: the file ``cluster.json`` beside the messages.

    format       1; a larger one is refused
    incarnation  32 hexadecimal digits, made with the file: another directory is another node
    epoch        of the leader that has recorded the set
    version      counts the changes of the set in that epoch
    leader       [name, incarnation]
    in_sync      [[name, incarnation], ...]: the nodes with every confirmed message, the leader among them
    min_in_sync  of that leader
    lives        random ids, each of one start of a process here: first the one that the record is known to have had,
                 the current one last; left out where nodes do not elect their leader

1. It is replaced in one step, and durable when `write` returns: file, rename, directory.
2. On a leader it is the truth about the set. On a follower it is the leader's last report: the set may have changed
   since the link was lost.
3. A life is in the file before another node hears of it, and stays there until the record has a later one. So whenever
   a process ends, its directory knows the life that the record has; an older copy of the directory does not.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, Final

from warren.replication.handshake import INCARNATION_BYTES, Node
from warren.server.data_dir import MESSAGES
from warren.server.durable_file import replace_file
from warren.server.start_errors import StartError
from warren.server.store_versions import explained

NAME: Final = "cluster.json"
FORMAT: Final = 1
_BYTES_MAX: Final = 1 << 20
# The lives that are kept; one more start without a look at the record continues the last one.
LIVES_MAX: Final = 16
LIFE_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class ClusterState:
    """See the header. `leader` is None in a directory that has never been part of a cluster."""

    incarnation: bytes
    epoch: int = 0
    version: int = 0
    leader: Node | None = None
    in_sync: frozenset[Node] = field(default_factory=frozenset)
    min_in_sync: int = 1
    lives: tuple[str, ...] = ()

    @property
    def life(self) -> str:
        """The life of the process here; empty where nodes do not elect their leader."""
        return self.lives[-1] if self.lives else ""

    def with_new_life(self) -> ClusterState:
        """Return the state of the next process on this directory."""
        if len(self.lives) >= LIVES_MAX:
            return self
        return replace(self, lives=(*self.lives, secrets.token_hex(LIFE_BYTES)))

    def me(self, name: str) -> Node:
        """Return this node, whose name is `name`."""
        return Node(name, self.incarnation)


def read(directory: Path) -> ClusterState:
    """Return the state of a data directory; a new incarnation if it does not have a state yet.

    Raises:
        StartError: the file cannot be used.
    """
    path = directory / NAME
    try:
        with path.open("rb") as file:
            content = file.read(_BYTES_MAX)
    except FileNotFoundError:
        return ClusterState(secrets.token_bytes(INCARNATION_BYTES))
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}") from None
    try:
        document = json.loads(content)
        if document["format"] != FORMAT:
            reason = (
                f"{path} has format {document['format']}, this Warren knows {FORMAT}: a newer Warren has written it"
            )
            raise StartError(explained(reason, directory / MESSAGES))
        return _parsed(document)
    except (ValueError, TypeError, KeyError) as error:
        raise StartError(
            f"{path} cannot be used: {error}; a leader may be started without it, as the only member of its set, and a "
            "follower begins with an empty data directory"
        ) from None


def write(directory: Path, state: ClusterState) -> None:
    """Replace the file. Raises OSError."""
    content = json.dumps(_document(state), indent=1).encode() + b"\n"
    replace_file(directory / NAME, lambda _: content)


class KeptState:
    """The state in `directory`, as it is on disk. Any thread."""

    def __init__(self, directory: Path, state: ClusterState) -> None:
        self._directory = directory
        self._state = state
        self._lock = Lock()

    @property
    def state(self) -> ClusterState:
        """The state."""
        return self._state

    def keep(self, **changes: Any) -> None:
        """Change some fields, durably. Blocks. Raises OSError."""
        with self._lock:
            state = replace(self._state, **changes)
            if state != self._state:
                write(self._directory, state)
                self._state = state


def recorded(state: ClusterState, members: frozenset[Node]) -> ClusterState:
    """Return the state of a leader after a change of its set."""
    return replace(state, version=state.version + 1, in_sync=members)


def _document(state: ClusterState) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "incarnation": state.incarnation.hex(),
        "epoch": state.epoch,
        "version": state.version,
        "leader": None if state.leader is None else _pair(state.leader),
        "in_sync": sorted(_pair(node) for node in state.in_sync),
        "min_in_sync": state.min_in_sync,
        **({"lives": list(state.lives)} if state.lives else {}),
    }


def _parsed(document: dict[str, Any]) -> ClusterState:
    leader = document["leader"]
    return ClusterState(
        _incarnation(document["incarnation"]),
        int(document["epoch"]),
        int(document["version"]),
        None if leader is None else _node(leader),
        frozenset(_node(pair) for pair in document["in_sync"]),
        int(document["min_in_sync"]),
        tuple(_life(text) for text in document.get("lives", [])),
    )


def _pair(node: Node) -> list[str]:
    return [node.name, node.incarnation.hex()]


def _node(pair: list[str]) -> Node:
    name, incarnation = pair
    return Node(name, _incarnation(incarnation))


def _life(text: str) -> str:
    if len(bytes.fromhex(text)) != LIFE_BYTES:
        raise ValueError(f"a life has {2 * LIFE_BYTES} digits")
    return text


def _incarnation(text: str) -> bytes:
    found = bytes.fromhex(text)
    if len(found) != INCARNATION_BYTES:
        raise ValueError("an incarnation has 32 digits")
    return found
