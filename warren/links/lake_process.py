"""The process in which tables follow: the broker starts it, sends it orders, listens to it, and ends it.

`warren.lake.served` describes the lines that both sides write.

1. Nothing here waits for the process forever: it may hang, write nothing, write too much, or not read its input. Any
   such failure raises `ProcessFailed` and ends the process.
2. Its output is bounded: a line has `LINE_MAX` bytes at most, and both outputs are read at a pace that costs the broker
   little. A process that writes more has to wait. Only the end of its standard error is kept.
3. To end it, the broker closes its input, and kills it after `GRACE_S`. The process id is not used after the process
   was waited for, since another process may have it by then.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import trio

NUMBER_MAX: Final = 1 << 62
LINE_MAX: Final = 16 << 10
READ_BYTES: Final = 64 << 10
PACE_S: Final = 0.02
TAIL_MAX: Final = 2048
REASON_MAX: Final = 500
SILENCE_MAX_S: Final = 60.0
TOLD_WITHIN_S: Final = 20.0
GRACE_S: Final = 4.0
LAST_WORDS_S: Final = 0.2


# User, password and query of any URL: of catalogues, registries and stores.
_USERINFO: Final = re.compile(r"(://)[^\s'\"]*:[^\s'\"]*@")
_QUERY: Final = re.compile(r"(://[^\s?'\"]*)\?[^\s'\"]*")


def redact(text: str) -> str:
    """Return a text from outside without the passwords in its URLs, as one printable line."""
    shown = "".join(each if each.isprintable() else " " for each in text)
    return _QUERY.sub(r"\1", _USERINFO.sub(r"\1", shown))[:REASON_MAX]


class ProcessFailed(Exception):
    """The process has ended, or has to be ended. The text is the reason."""


def command() -> list[str]:
    """Return the command of the process: this interpreter, without modules from the working directory (-P)."""
    return [sys.executable, "-P", "-m", "warren.lake.served"]


def environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of the process: the broker's, with the path of this package and the settings of memory.

    Memory that it frees goes back to the system (``spark_bridge/commands.py`` (5)).
    """
    import sysconfig  # only here: it loads much about how Python was built

    root = str(Path(__file__).parents[2])
    found = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_MMAP_THRESHOLD_": str(1 << 19), **given}
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        found["PYTHONPATH"] = os.pathsep.join(filter(None, (given.get("PYTHONPATH"), root)))
    return found


class LakeProcess:
    """One process, from its start to its end. Made by `start`."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._stderr = b""
        self.pid = process.pid

    async def tell(self, order: Mapping[str, Any]) -> None:
        """Send it a line.

        Raises:
            ProcessFailed: it does not accept the line.
        """
        assert self._process.stdin is not None
        with trio.move_on_after(TOLD_WITHIN_S) as scope:
            try:
                await self._process.stdin.send_all(json.dumps(order).encode() + b"\n")
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                raise ProcessFailed("accepts no more orders") from None
        if scope.cancelled_caught:
            raise ProcessFailed(f"has not accepted an order for {TOLD_WITHIN_S:g} s")

    async def listen(self, hear: Callable[[dict[str, Any]], None]) -> None:
        """Hand over the lines of its output, until the output ends.

        Raises:
            ProcessFailed: a line is not valid, or the process has been silent for too long.
        """
        assert self._process.stdout is not None
        rest = b""
        while True:
            with trio.move_on_after(SILENCE_MAX_S) as scope:
                data = await self._process.stdout.receive_some(READ_BYTES)
            if scope.cancelled_caught:
                raise ProcessFailed(f"has been silent for {SILENCE_MAX_S:g} s")
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > LINE_MAX:
                raise ProcessFailed("writes lines that are too long")
            for line in lines:
                hear(_read(line))
            await trio.sleep(PACE_S)

    async def listen_to_errors(self) -> None:
        """Keep the end of its standard error."""
        assert self._process.stderr is not None
        while data := await self._process.stderr.receive_some(READ_BYTES):
            self._stderr = (self._stderr + data)[-TAIL_MAX:]
            await trio.sleep(PACE_S)

    def last_words(self) -> str:
        """Return the last line of its standard error, without credentials."""
        lines = [line.strip() for line in self._stderr.decode(errors="replace").splitlines()]
        said = next((line for line in reversed(lines) if line), "")
        return redact(said)

    async def end(self) -> str:
        """End the process, and return how it ended."""
        process = self._process
        assert process.stdin is not None
        with trio.CancelScope(shield=True):
            await process.stdin.aclose()
            with trio.move_on_after(GRACE_S):
                await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()
            assert process.stdout is not None and process.stderr is not None
            with trio.move_on_after(LAST_WORDS_S):
                self._stderr = (self._stderr + await process.stderr.receive_some(READ_BYTES))[-TAIL_MAX:]
            await process.stdout.aclose()
            await process.stderr.aclose()
        code = process.returncode
        assert code is not None
        return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"


async def start(arguments: Sequence[str], descriptors_below: int) -> LakeProcess:
    """Start the process; the caller has to end it.

    Raises:
        ProcessFailed: it cannot be started.
    """
    try:
        process = await trio.lowlevel.open_process(
            list(arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            start_new_session=True,  # Ctrl-C at a terminal goes to the broker, which ends this process when it is time
        )
    except (OSError, MemoryError, RuntimeError) as error:
        raise ProcessFailed(f"cannot be started: {error or type(error).__name__}") from None
    made = LakeProcess(process)
    if max(_numbers(process)) >= descriptors_below:
        await made.end()
        raise ProcessFailed("cannot be started: too many descriptors are in use")
    return made


def _numbers(process: trio.Process) -> list[int]:
    pipes = (process.stdin, process.stdout, process.stderr)
    return [each.fileno() for each in pipes if isinstance(each, trio.lowlevel.FdStream)]


def _read(line: bytes) -> dict[str, Any]:
    if len(line) > LINE_MAX:
        raise ProcessFailed("writes lines that are too long")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ProcessFailed("writes malformed lines")
    return found


def number_of(news: Mapping[str, Any], name: str) -> float:
    """Return a number that the process reports; 0 for anything else."""
    value = news.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < NUMBER_MAX:
        return 0
    return value


def text_of(news: Mapping[str, Any], name: str) -> str:
    """Return a text that the process reports, without credentials."""
    return redact(str(news.get(name, "")))
