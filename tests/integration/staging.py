"""A writer of staged messages, as small as it can be: encodes publishes, stores them as parts, commits them."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable
from urllib.parse import quote

import pika
import pika.spec

from .management.client import Answer, Api

FRAME_BYTES_MAX = 131072
_numbers = itertools.count(1)


def publish(
    exchange: str, routing_key: str, body: bytes, properties: pika.BasicProperties | None = None, channel: int = 1
) -> bytes:
    """Encode one message as a client sends it; persistent unless `properties` say otherwise."""
    given = pika.BasicProperties(delivery_mode=2) if properties is None else properties
    names = b"".join(bytes([len(raw)]) + raw for raw in (exchange.encode(), routing_key.encode()))
    header = struct.pack(">HHQ", 60, 0, len(body)) + b"".join(given.encode())
    frames = [
        frame(1, channel, struct.pack(">HHH", 60, 40, 0) + names + b"\0"),
        frame(2, channel, header),
    ]
    room = FRAME_BYTES_MAX - 8
    frames += [frame(3, channel, body[at : at + room]) for at in range(0, len(body), room)]
    return b"".join(frames)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def to_queue(queue: str, bodies: Iterable[bytes]) -> bytes:
    """Encode persistent messages to the default exchange."""
    return b"".join(publish("", queue, body) for body in bodies)


def new_stage() -> str:
    """Return a name that no other stage of this process has."""
    return f"stage-{next(_numbers)}"


class Stager:
    """Stages and commits in one vhost, as the user of `api`."""

    def __init__(self, api: Api, vhost: str) -> None:
        self.api = api
        self.v = quote(vhost, safe="")
        self._path = f"/warren/stages/{self.v}"

    def put(self, stage: str, part: int | str, content: bytes) -> Answer:
        return self.api.ask("PUT", f"{self._path}/{stage}/{part}", content)

    def stage(self, *parts: bytes) -> str:
        """Store parts as a new stage, and return its name."""
        name = new_stage()
        for number, content in enumerate(parts):
            answer = self.put(name, number, content)
            assert answer.status == 201, answer
        return name

    def commit(self, query: str, batch: int, *stages: str, **more: object) -> Answer:
        order = {"query": query, "batch": batch, "stages": stages, **more}
        return self.api.ask("POST", f"{self._path}/commit", order)

    def remove(self, stage: str) -> Answer:
        return self.api.ask("DELETE", f"{self._path}/{stage}")

    def names(self) -> list[str]:
        """Return the names of the stages there are."""
        return [each["name"] for each in self.api.get(self._path)]

    def commits(self) -> dict[str, dict[str, object]]:
        """Return what is remembered of each query."""
        return {each["query"]: each for each in self.api.get(f"{self._path}/commits")}

    def forget(self, query: str) -> Answer:
        return self.api.ask("DELETE", f"{self._path}/commits/{quote(query, safe='')}")
