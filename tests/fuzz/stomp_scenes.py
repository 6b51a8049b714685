"""A valid client of STOMP, as frames: scenes that together use every command, destination and option.

A scene is a list of frames that a correct broker accepts, with a number that makes its names its own. The sender puts
the ids of deliveries into ACK and NACK.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from peer_frames import PASSWORD, USER

Headers = list[tuple[str, str]]
HEART_BEAT: Final = ""  # instead of a command


class StompFrame(NamedTuple):
    """A frame before it is bytes."""

    command: str
    headers: Headers
    body: bytes = b""
    eol: str = "\n"
    end: bytes = b"\0"

    def encode(self, version: str) -> bytes:
        if self.command == HEART_BEAT:
            return self.eol.encode()
        lines = [f"{_escaped(name, version)}:{_escaped(value, version)}" for name, value in self.headers]
        if self.command in ("CONNECT", "STOMP"):
            lines = [f"{name}:{value}" for name, value in self.headers]
        head = self.eol.join([self.command, *lines, "", ""])
        return head.encode("utf-8", "surrogateescape") + self.body + self.end


def _escaped(text: str, version: str) -> str:
    if version == "1.0":
        return text.replace("\n", " ")
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace(":", "\\c")
    return text.replace("\r", "\\r") if version == "1.2" else text


def connect(version: str, beats: str = "0,0", command: str = "CONNECT") -> StompFrame:
    headers = [("login", USER), ("passcode", PASSWORD), ("host", "/"), ("client-id", "fuzz"), ("heart-beat", beats)]
    if version != "1.0":
        headers.append(("accept-version", f"1.0,{version}"))
    return StompFrame(command, headers)


def send(destination: str, body: bytes = b"body", *others: tuple[str, str], sized: bool = True) -> StompFrame:
    headers = [("destination", destination), *others]
    if sized:
        headers.append(("content-length", str(len(body))))
    return StompFrame("SEND", headers, body)


def subscribe(destination: str, name: str, mode: str = "auto", *others: tuple[str, str]) -> StompFrame:
    return StompFrame("SUBSCRIBE", [("destination", destination), ("id", name), ("ack", mode), *others])


def unsubscribe(name: str, *others: tuple[str, str]) -> StompFrame:
    return StompFrame("UNSUBSCRIBE", [("id", name), *others])


def answer(command: str, *others: tuple[str, str]) -> StompFrame:
    """Return an ACK or NACK without the id of what it answers, which comes later."""
    return StompFrame(command, [*others])


def bare(command: str, *headers: tuple[str, str]) -> StompFrame:
    return StompFrame(command, [*headers])


DESTINATIONS: Final = (
    "/queue/plain",
    "/queue/caf%C3%A9",
    "/amq/queue/plain",
    "/exchange/amq.topic/a.b",
    "/amq/queue/full",
    "/exchange/amq.fanout",
    "/exchange/amq.headers/",
    "/topic/a.b",
    "/topic/a.#",
    "/topic/x/y",
    "/reply-queue/plain",
)
WRONG_DESTINATIONS: Final = (
    "",
    "/",
    "/queue/",
    "/queue/a/b",
    "/queue/%zz",
    "/queue/%ff",
    "/queue/" + "x" * 300,
    "/amq/queue/nowhere",
    "/exchange/",
    "/exchange/nowhere/k",
    "/temp-queue/t",
    "/nonsense/x",
)
PROPERTIES: Final[Headers] = [
    ("content-type", "text/plain"),
    ("content-encoding", "utf-8"),
    ("persistent", "true"),
    ("priority", "4"),
    ("correlation-id", "c-1"),
    ("reply-to", "/queue/plain"),
    ("expiration", "60000"),
    ("amqp-message-id", "m-1"),
    ("type", "greeting"),
    ("app-id", "fuzz"),
    ("user-id", USER),
    ("timestamp", "1700000000"),
    ("colour", "red"),
    ("a:b", "line\nand:\\more"),
    ("caf\u00e9", "\U0001f407"),
    ("x-delay", "10"),
]


def _sent(number: int) -> list[StompFrame]:
    frames: list[StompFrame] = []
    for at, destination in enumerate(DESTINATIONS):
        body = (b"", b"body", b"with a \x00 in it", b"large" * 3000)[at % 4]
        others = PROPERTIES[: at + 6] if at % 2 else []
        if at % 3 == 0:
            others = [*others, ("receipt", f"sent-{number}-{at}")]
        frames.append(send(destination, body, *others, sized=b"\0" in body or at % 2 == 0))
    return frames


FULL: Final[Headers] = [("x-max-length", "3"), ("x-overflow", "reject-publish"), ("durable", "false")]


def _refused(number: int) -> list[StompFrame]:
    return [send("/queue/full", b"x", ("receipt", f"full-{number}-{at}"), *FULL) for at in range(5)]


def _declared(number: int) -> list[StompFrame]:
    return [
        send("/queue/full", b"1", *FULL),
        send("/queue/stream", b"1", ("x-queue-type", "stream"), ("x-max-length-bytes", "100000")),
        send("/amq/queue/stream", b"2", ("x-stream-filter-value", "red")),
        send(f"/queue/own{number}", b"1", ("exclusive", "true"), ("durable", "false")),
        send("/queue/gone", b"1", ("auto-delete", "true"), ("durable", "false"), ("x-message-ttl", "1000")),
        subscribe("/queue/gone", f"g{number}", "auto", ("auto-delete", "true"), ("durable", "false")),
        unsubscribe(f"g{number}"),
    ]


def _acknowledged(number: int) -> list[StompFrame]:
    name = f"s{number}"
    frames = [subscribe("/queue/plain", name, "client-individual", ("prefetch-count", "5"))]
    frames += [send("/queue/plain", b"n%d" % at) for at in range(4)]
    frames += [answer("ACK"), answer("NACK"), answer("NACK", ("requeue", "false"))]
    frames += [answer("ACK", ("receipt", f"ack-{number}")), unsubscribe(name, ("receipt", f"un-{number}"))]
    return frames


def _cumulative(number: int) -> list[StompFrame]:
    name = f"c{number}"
    frames = [subscribe("/queue/plain", name, "client", ("x-priority", "3"), ("receipt", f"sub-{number}"))]
    frames += [send("/queue/plain", b"n%d" % at) for at in range(6)]
    return [*frames, answer("ACK"), answer("NACK"), unsubscribe(name), answer("ACK")]


def _topics(number: int) -> list[StompFrame]:
    return [
        subscribe("/topic/a.*", f"t{number}"),
        subscribe("/exchange/amq.fanout", f"f{number}", "client", ("x-max-length", "10")),
        subscribe("/exchange/amq.topic/a.b", f"n{number}", "auto", ("x-queue-name", f"named-{number % 3}")),
        subscribe("/topic/a.#", f"d{number % 3}", "client-individual", ("durable", "true"), ("auto-delete", "false")),
        send("/topic/a.b", b"to three"),
        send("/exchange/amq.fanout/", b"to one"),
        answer("ACK"),
        StompFrame(HEART_BEAT, []),
        unsubscribe(f"t{number}"),
        unsubscribe(f"f{number}"),
        unsubscribe(f"n{number}"),
        unsubscribe(f"d{number % 3}", ("durable", "true"), ("destination", "/topic/a.#")),
    ]


def _streamed(number: int) -> list[StompFrame]:
    return [
        subscribe(
            "/queue/stream",
            f"x{number}",
            "client",
            *[("x-queue-type", "stream"), ("x-max-length-bytes", "100000")],
            *[("x-stream-offset", ("first", "last", "next", "0", "1D")[number % 5]), ("prefetch-count", "10")],
        ),
        answer("ACK"),
        answer("ACK"),
        unsubscribe(f"x{number}"),
    ]


def _committed(number: int) -> list[StompFrame]:
    one, other = ("transaction", f"tx{number}"), ("transaction", f"ty{number}")
    return [
        bare("BEGIN", one, ("receipt", f"begin-{number}")),
        bare("BEGIN", other),
        subscribe("/queue/plain", f"z{number}", "client-individual"),
        send("/queue/plain", b"one", one, ("receipt", f"in-{number}")),
        send("/topic/a.b", b"two", other, ("persistent", "true")),
        send("/queue/plain", b"three", one),
        answer("ACK", one),
        answer("NACK", other),
        bare("COMMIT", one, ("receipt", f"commit-{number}")),
        bare("ABORT", other, ("receipt", f"abort-{number}")),
        unsubscribe(f"z{number}"),
    ]


def _replied(number: int) -> list[StompFrame]:
    return [
        send("/queue/plain", b"question", ("reply-to", f"/temp-queue/r{number % 3}")),
        send("/queue/plain", b"again", ("reply-to", f"/temp-queue/r{number % 3}"), ("receipt", f"reply-{number}")),
        StompFrame(HEART_BEAT, [], eol="\r\n"),
        subscribe("/amq/queue/plain", f"a{number}"),
        unsubscribe(f"a{number}"),
    ]


Scene = Callable[[int], list[StompFrame]]
SCENES: Final[tuple[Scene, ...]] = (
    _sent,
    _sent,
    _declared,
    _acknowledged,
    _acknowledged,
    _cumulative,
    _topics,
    _streamed,
    _committed,
    _committed,
    _replied,
    _replied,
    _refused,
)


def declared() -> list[StompFrame]:
    """Return what declares whatever the scenes refer to."""
    return [*_declared(0)[:3], send("/queue/plain")]
