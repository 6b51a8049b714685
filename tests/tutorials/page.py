"""A page of the documentation as its readers follow it: programs that they save, and terminals that they type into.

1. A fenced block whose first line is a comment with a file name is a program. It is run as it stands on the page; only
   the broker's usual ports are replaced by those of the broker under test.
2. A block of ``console`` is a terminal: ``$ `` begins a command, and the lines below are what it prints. Each has to be
   printed so; ``…`` stands for anything, a rate or a time (``4,200/s``, ``1.5 s``) for any other.
3. A command with ``^C`` below it runs beside the following ones, up to the next heading. Its first line says that it is
   ready: nothing else begins before that. At the heading it is waited for until it has printed everything, then
   interrupted. Several that are the same command share their work, so their lines are compared together.
4. ``warren ctl`` looks at what may be about to change, so it is asked again until it shows what the page does.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from broker_process import DEADLINE_S, WarrenProcess, wait_until

ROOT = Path(__file__).parents[2]
INTERRUPT = "^C"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} ", re.MULTILINE)
_PROGRAM = re.compile(r"(?:#|//) ([\w/.-]+\.(?:py|js|ts))\n")
_MEASURED = re.compile(r"\b\d[\d,.]*(?=/s\b| s\b| ms\b)")


@dataclass(frozen=True)
class Command:
    """One line behind a prompt, and what the page says that it prints."""

    line: str
    output: tuple[str, ...]
    is_interrupted: bool = False


@dataclass
class Page:
    """The programs of a page by their names, and the commands of each of its sections."""

    programs: dict[str, str] = field(default_factory=dict)
    sections: list[list[Command]] = field(default_factory=list)


def read_page(path: Path) -> Page:
    """Take a page apart."""
    page = Page()
    text = path.read_text()
    blocks = list(_BLOCK.finditer(text))
    # A comment in a program is no heading.
    headings = [
        heading.start()
        for heading in _HEADING.finditer(text)
        if not any(block.start() < heading.start() < block.end() for block in blocks)
    ]
    sections: dict[int, list[Command]] = {}
    for block in blocks:
        language, content = block[1], block[2]
        name = _PROGRAM.match(content)
        if language == "console":
            section = sum(start < block.start() for start in headings)
            sections.setdefault(section, []).extend(_commands(content))
        elif name is not None:
            page.programs[name[1]] = content
    page.sections = list(sections.values())
    return page


def _commands(terminal: str) -> list[Command]:
    commands = []
    for part in re.split(r"^\$ ", terminal, flags=re.MULTILINE)[1:]:
        line, *output = part.splitlines()
        is_interrupted = output[-1:] == [INTERRUPT]
        commands.append(Command(line, tuple(output[: len(output) - is_interrupted]), is_interrupted))
    return commands


def differs(expected: Sequence[str], printed: Sequence[str]) -> str:
    """Return what is wrong with what was printed, or nothing."""
    if len(expected) == len(printed) and all(map(_agrees, expected, printed)):
        return ""
    return "\n".join(["the page has", *expected, "printed was", *printed])


def _agrees(expected: str, printed: str) -> bool:
    expected, printed = (" ".join(_MEASURED.sub("0", line).split()) for line in (expected, printed))
    pattern = ".*".join(map(re.escape, expected.split("…")))
    return re.fullmatch(pattern, printed) is not None


class Reader:
    """Somebody who follows a page in `directory`, with the programs of the folders `paths` at hand."""

    def __init__(
        self,
        page: Page,
        directory: Path,
        broker: WarrenProcess,
        paths: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._page = page
        self._directory = directory
        self._ports = {"5672": broker.amqp_port, "15672": broker.http_port}
        python_path = [str(Path(part).resolve()) for part in os.environ.get("PYTHONPATH", "").split(":") if part]
        self._paths = [*map(str, paths), str(Path(sys.executable).parent), os.environ["PATH"]]
        self._environment = os.environ | {
            "PATH": ":".join(self._paths),
            "PYTHONPATH": ":".join(python_path),
            "PYTHONUNBUFFERED": "1",
            "AMQP_URI": f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/%2F",
            "WARREN_CTL_URL": f"http://127.0.0.1:{broker.http_port}",
            "WARREN_MANAGEMENT_URL": f"http://127.0.0.1:{broker.http_port}",
            **(environment or {}),
        }
        self._running: list[Terminal] = []
        self._begun = 0

    def follow(self) -> None:
        """Save the programs, then type everything that the page says, and compare what comes of it."""
        for name, program in self._page.programs.items():
            for usual, port in self._ports.items():
                program = re.sub(rf"\b(127\.0\.0\.1|localhost):{usual}\b", rf"\1:{port}", program)
            place = self._directory / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(program)
        try:
            for section in self._page.sections:
                for command in section:
                    self._type(command)
                self._end_section()
        finally:
            for terminal in self._running:
                terminal.kill()

    def _type(self, command: Command) -> None:
        if command.is_interrupted:
            terminal = self._start(command)
            self._running.append(terminal)
            terminal.wait_for_lines(1)
            return
        if not command.line.startswith("warren ctl "):
            self._start(command).end()
            return
        seen = ""

        def is_shown() -> bool:
            nonlocal seen
            terminal = self._start(command)
            terminal.wait()
            seen = differs(command.output, terminal.lines())
            return not seen

        try:
            wait_until(is_shown, command.line)
        except AssertionError:
            raise AssertionError(f"$ {command.line}\n{seen}") from None

    def _start(self, command: Command) -> Terminal:
        self._begun += 1
        arguments = shlex.split(command.line)
        if arguments[0] == "warren":
            arguments[:1] = [sys.executable, "-P", "-m", "warren"]
        else:
            program = shutil.which(arguments[0], path=self._environment["PATH"])
            assert program is not None, f"{arguments[0]} is not at hand"
            arguments[0] = program
        return Terminal(command, arguments, self._directory, self._environment, self._begun)

    def _end_section(self) -> None:
        groups: dict[str, list[Terminal]] = {}
        for terminal in self._running:
            groups.setdefault(terminal.command.line, []).append(terminal)
        for group in groups.values():
            if len(group) == 1:
                group[0].end()
            else:
                _end_together(group)
        self._running.clear()


class Terminal:
    """One command as a process, with what it prints in a file."""

    def __init__(
        self,
        command: Command,
        arguments: list[str],
        directory: Path,
        environment: Mapping[str, str],
        number: int,
    ) -> None:
        self.command = command
        self._out = directory / f"terminal-{number}.out"
        self._errors = directory / f"terminal-{number}.errors"
        # A process that was begun in the background ignores Ctrl-C, and its children do.
        arguments = ["env", "--default-signal=INT", *arguments]
        with self._out.open("wb") as out, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                arguments, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=errors
            )

    def lines(self) -> list[str]:
        """Return the lines that were printed so far."""
        return [line for line in self._out.read_text(errors="replace").splitlines() if line.strip()]

    def wait(self) -> None:
        """Wait until the command has ended by itself."""
        try:
            self._process.wait(DEADLINE_S * 3)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"$ {self.command.line}\ndoes not end\n{self._told()}") from None

    def wait_for_lines(self, count: int) -> None:
        """Wait until so much is printed; fail if the command ends before."""

        def is_printed() -> bool:
            has_ended = self._process.poll() is not None
            if len(self.lines()) >= count:
                return True
            assert not has_ended, f"$ {self.command.line}\nended too early\n{self._told()}"
            return False

        try:
            wait_until(is_printed, f"{count} lines", DEADLINE_S * 2)
        except AssertionError as error:
            raise AssertionError(f"$ {self.command.line}\n{error}\n{self._told()}") from None

    def interrupt(self) -> None:
        """Press Ctrl-C, and wait for the end."""
        self._process.send_signal(signal.SIGINT)
        self.wait()

    def end(self) -> None:
        """Wait until everything is printed and the command has ended, and compare."""
        if self.command.is_interrupted:
            self.wait_for_lines(len(self.command.output))
            self.interrupt()
        else:
            self.wait()
        difference = differs(self._expected(), self.lines())
        assert not difference, f"$ {self.command.line}\n{difference}\n{self._told()}"

    def _expected(self) -> list[str]:
        return [line for line in self.command.output if line.strip()]

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _told(self) -> str:
        return "\n".join(["stdout:", *self.lines(), "stderr:", self._errors.read_text(errors="replace")])


def _end_together(terminals: list[Terminal]) -> None:
    """End terminals that share their work: who did what is not said, what was done is."""
    expected = Counter(line for terminal in terminals for line in terminal.command.output)

    def printed() -> Counter[str]:
        return Counter(line for terminal in terminals for line in terminal.lines())

    wait_until(lambda: printed().total() >= expected.total(), f"{expected.total()} lines of all terminals")
    for terminal in terminals:
        terminal.interrupt()
    assert printed() == expected, f"$ {terminals[0].command.line}\n{printed()}"


def require(program: str, package: str) -> None:
    """Skip the test by hand, and fail in CI, when a program is not there."""
    if shutil.which(program) is None:
        text = f"`{program}` is not on this machine; on Debian: apt-get install {package}"
        if os.environ.get("CI", "").lower() in {"1", "true", "yes"}:
            pytest.fail(text)
        pytest.skip(text)
