"""Progress of long commands: a line every five seconds, one line on a terminal, silence where it is not wanted."""

from __future__ import annotations

import io

import pytest

from warren.ctl.progress import LINE_S, Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_line_comes_every_five_seconds_where_there_is_no_terminal() -> None:
    clock, stream = Clock(), io.StringIO()
    with Progress("copied", 4096, stream=stream, clock=clock) as progress:
        for _ in range(4):
            clock.now_s += LINE_S / 2
            progress.advance(1024)
    assert stream.getvalue() == "copied: 2.0 KiB of 4.0 KiB, 50 %\ncopied: 4.0 KiB of 4.0 KiB, 100 %\n"


def test_what_is_done_sooner_says_nothing() -> None:
    stream = io.StringIO()
    with Progress("copied", 4096, stream=stream, clock=Clock()) as progress:
        progress.advance(4096)
    assert stream.getvalue() == ""


def test_a_terminal_has_one_line_that_is_taken_away() -> None:
    clock, stream = Clock(), Terminal()
    with Progress("read", stream=stream, clock=clock) as progress:
        for _ in range(2):
            clock.now_s += 1
            progress.advance(1024)
    assert stream.getvalue() == "\r\x1b[Kread: 1.0 KiB\r\x1b[Kread: 2.0 KiB\r\x1b[K"


def test_more_than_the_total_is_told_without_it() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress("read", 1024, stream=stream, clock=clock)
    clock.now_s = LINE_S
    progress.advance(2048)
    assert stream.getvalue() == "read: 2.0 KiB\n"


@pytest.mark.parametrize(("wanted", "stream"), [(False, io.StringIO()), (True, Closed())])
def test_it_never_makes_a_command_fail_and_is_silent_when_it_is_not_wanted(wanted: bool, stream: io.StringIO) -> None:
    clock = Clock()
    progress = Progress("read", stream=stream, clock=clock, wanted=wanted)
    for _ in range(2):
        clock.now_s += LINE_S
        progress.advance(1)
    assert stream.getvalue() == ""
