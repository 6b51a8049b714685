"""``python counted_broker.py SOCKET … -m warren serve …``: a broker whose process tells its live objects by type.

A thread listens on the unix socket `SOCKET`. It takes one line of a connection, and answers in JSON:

    age       have everything that is there now survive the collections of young objects
    count     the live objects by type, of all types but the interpreter's own and trio's

Counting collects among young objects only. A cycle that has aged stays, and is counted.
"""

from __future__ import annotations

import gc
import json
import socket
import sys
import threading
from collections import Counter

# trio keeps a thousand scopes with a deadline after their end. The rest may be anybody's.
OTHERS = ("builtins", "trio", "weakref", "functools", "types")


def age() -> None:
    for _ in range(2):
        gc.collect(1)


def count() -> dict[str, int]:
    gc.collect(1)
    names = (f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
    return Counter(name for name in names if name.partition(".")[0] not in OTHERS)


def _answer(listener: socket.socket) -> None:
    while True:
        asked, _ = listener.accept()
        with asked:
            command = asked.recv(100).decode().strip()
            if command == "age":
                age()
            answer = count() if command == "count" else {}
            asked.sendall(json.dumps(answer).encode())


def main() -> None:
    path, *command = sys.argv[1:]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    threading.Thread(target=_answer, args=(listener,), daemon=True).start()
    sys.argv = command[command.index("warren") :]
    from warren.__main__ import main as serve
    from warren.server.cyclic_collector import FullCollections

    def collect_nothing(self: FullCollections, now_s: float, *, quiet: bool) -> None:
        """Leave old cycles where they are: they are what is looked for."""

    setattr(FullCollections, "look", collect_nothing)  # noqa: B010
    serve()


if __name__ == "__main__":
    main()
