"""Where the network cuts the bytes of a client must not matter."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from engine import Client, Engine
from example_counts import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warren.amqp import methods as m
from warren.amqp.methods import PROTOCOL_HEADER

from .mutator import Mutator
from .session import SCENES, closed, goodbye, handshake, opened, whole_session, with_larger_frames
from .transcript import Transcript

START_OK, *REST = whole_session()
SESSION = b"".join(frame.encode() for frame in REST)
LARGER_SESSION = b"".join(frame.encode() for frame in with_larger_frames(whole_session(131072)[1:]))
# Consumers are served once per turn, so what they get when depends on the turns; everything else does not.
QUIET_SCENES = ["exchanges", "queues", "publishes", "gets", "confirms", "transactions"]

replayable = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])


def logged_in() -> tuple[Engine, Client]:
    engine = Engine(commits_at_once=True)
    client = engine.connect()
    client.connection.feed(PROTOCOL_HEADER + START_OK.encode())
    engine.settle()
    client.take()
    return engine, client


def answers_in_one_turn(chunks: list[bytes]) -> bytes:
    engine, client = logged_in()
    for chunk in chunks:
        client.connection.feed(chunk)
    engine.settle()
    return client.take()


def cut(data: bytes, places: list[int]) -> list[bytes]:
    return [data[start:end] for start, end in pairwise([0, *sorted(places), len(data)])]


def places_in(data: bytes) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, len(data)), max_size=40)


@pytest.mark.parametrize("session", [SESSION, LARGER_SESSION], ids=["small frames", "larger frames"])
def test_a_session_cut_anywhere_gets_byte_for_byte_the_same_answers(session: bytes) -> None:
    whole = answers_in_one_turn([session])
    assert len(whole) > 10_000

    @settings(replayable, max_examples=examples(60))
    @given(places_in(session))
    def check(places: list[int]) -> None:
        assert answers_in_one_turn(cut(session, places)) == whole

    check()


@pytest.mark.parametrize("size", [1, 2, 7, 8, 4095, 4097, 5000])
def test_a_session_in_chunks_of_one_size_gets_byte_for_byte_the_same_answers(size: int) -> None:
    chunks = [SESSION[start : start + size] for start in range(0, len(SESSION), size)]
    assert answers_in_one_turn(chunks) == answers_in_one_turn([SESSION])


@settings(replayable, max_examples=examples(150))
@given(st.integers(0, 2**32), st.data())
def test_a_broken_session_cut_anywhere_gets_the_same_answers(seed: int, data: st.DataObject) -> None:
    choices = random.Random(seed)
    mutator = Mutator(choices)
    broken = {choices.randrange(len(REST)) for _ in range(choices.randint(1, 4))}
    session = b"".join(
        mutator.mutated(frame) if place in broken else frame.encode() for place, frame in enumerate(REST)
    )
    places = data.draw(places_in(session))
    assert answers_in_one_turn(cut(session, places)) == answers_in_one_turn([session])


@settings(replayable, max_examples=examples(40))
@given(st.data())
def test_turns_between_the_chunks_change_nothing_but_how_confirms_are_grouped(data: st.DataObject) -> None:
    frames = handshake()[1:]
    for number, name in enumerate(QUIET_SCENES, start=1):
        frames += opened(number) + SCENES[name](number)
    session = b"".join(frame.encode() for frame in frames)

    def answers(chunks: list[bytes]) -> tuple[list[tuple[int, Any]], dict[int, int]]:
        engine, client = logged_in()
        for chunk in chunks:
            client.connection.feed(chunk)
            engine.settle()
        last = b"".join(frame.encode() for frame in [*closed(1), *goodbye()])
        client.connection.feed(last)
        engine.settle()
        transcript = Transcript(client.connection.login.frame_max_bytes)
        transcript.keep_methods = True
        transcript.read(client.take())
        confirmed = {number: channel.confirmed for number, channel in transcript.channels.items()}
        replies = [reply for reply in transcript.methods if not isinstance(reply[1], m.BasicAck)]
        return replies, confirmed

    assert answers(cut(session, data.draw(places_in(session)))) == answers([session])
