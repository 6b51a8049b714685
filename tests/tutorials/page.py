"""A page of the documentation as its readers follow it: programs that they save, and terminals that they type into.

1. A fenced block whose first line is a comment with a file name is a program. It is run as it stands on the page; only
   the broker's usual ports are replaced by those of the broker under test.
2. A block of ``console`` is a terminal: ``$ `` begins a command, and the lines below are what it prints. Each has to be
   printed so; ``…`` stands for anything, on a line of its own for any lines; a rate or a time (``4,200/s``, ``1.5 s``)
   for any other.
3. A command with ``^C`` below it runs beside the following ones, up to the next heading. Its first line (but ``…``)
   says that it is ready: nothing else begins before that. At the heading it is waited for until it has printed
   everything, then interrupted. Several that are the same command share their work, so their lines are compared
   together.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from broker_process import DEADLINE_S, WarrenProcess, wait_until
from free_ports import free_port
from warren_command import run_warren

ROOT = Path(__file__).parents[2]
INTERRUPT = "^C"
ANYTHING = "…"
# Spark takes long to start on a busy machine.
END_DEADLINE_S = 6 * DEADLINE_S
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} ", re.MULTILINE)
_PROGRAM = re.compile(r"(?:<\?php )?(?:#|//|--) ([\w/.-]+\.(?:py|js|ts|yml|sql|java|go|php|rb|cs))\n")
_MEASURED = re.compile(r"\b\d[\d,.]*(?=/s\b| s\b| ms\b)")


@dataclass(frozen=True)
class Command:
    """One line after a prompt, and its output according to the page."""

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
    # A comment in a program is not a heading.
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
    pattern = "".join(r"(?:.*\n)*?" if line == ANYTHING else f"{_pattern(line)}\n" for line in expected)
    if re.fullmatch(pattern, "".join(f"{_comparable(line)}\n" for line in printed)):
        return ""
    return "\n".join(["the page has", *expected, "printed was", *printed])


def _pattern(line: str) -> str:
    return ".*".join(map(re.escape, _comparable(line).split(ANYTHING)))


def _comparable(line: str) -> str:
    return " ".join(_MEASURED.sub("0", line).split())


class Reader:
    """A reader who follows a page in `directory`, with the programs of the folders `paths` at hand."""

    def __init__(
        self,
        page: Page,
        directory: Path,
        broker: WarrenProcess,
        paths: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
        *,
        sees_errors: bool = False,
    ) -> None:
        """`sees_errors`: the stderr of commands is printed, too."""
        self._page = page
        self._directory = directory
        self._sees_errors = sees_errors
        # 8000 is the port of a web application.
        self._ports = {"5672": broker.amqp_port, "15672": broker.http_port, "8000": free_port()}
        python_path = [str(Path(part).resolve()) for part in os.environ.get("PYTHONPATH", "").split(":") if part]
        self._paths = [*map(str, paths), str(Path(sys.executable).parent), os.environ["PATH"]]
        url = f"http://127.0.0.1:{broker.http_port}"
        self._of_warren = os.environ | {"WARREN_CTL_URL": url, "WARREN_MANAGEMENT_URL": url}
        self._environment = self._of_warren | {
            "PATH": ":".join(self._paths),
            "PYTHONPATH": ":".join(python_path),
            "PYTHONUNBUFFERED": "1",
            "AMQP_URI": f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/%2F",
            **(environment or {}),
        }
        self._running: list[Terminal] = []
        self._begun = 0

    def follow(self) -> None:
        """Save the programs, then type everything that the page says, and compare what comes of it."""
        for name, program in self._page.programs.items():
            place = self._directory / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(self._with_ports(program))
        try:
            for section in self._page.sections:
                for command in section:
                    self._type(command)
                self._end_section()
        finally:
            for terminal in self._running:
                terminal.kill()

    def _with_ports(self, text: str) -> str:
        for usual, port in self._ports.items():
            text = re.sub(rf"(\b127\.0\.0\.1(?::|', )|\blocalhost:|--port ){usual}\b", rf"\g<1>{port}", text)
        return text

    def _type(self, command: Command) -> None:
        if command.is_interrupted:
            terminal = self._start(command)
            self._running.append(terminal)
            terminal.wait_until_ready()
            return
        if not command.line.startswith("warren ctl "):
            self._start(command).end()
            return
        seen = ""

        def is_shown() -> bool:
            nonlocal seen
            ended = run_warren(*shlex.split(self._with_ports(command.line))[1:], environment=self._of_warren)
            printed = ended.stdout + (ended.stderr if self._sees_errors else "")
            seen = differs(command.output, [line for line in printed.splitlines() if line.strip()])
            return not seen

        try:
            wait_until(is_shown, command.line)
        except AssertionError:
            raise AssertionError(f"$ {command.line}\n{seen}") from None

    def _start(self, command: Command) -> Terminal:
        self._begun += 1
        arguments = shlex.split(self._with_ports(command.line))
        if arguments[0] == "warren":
            arguments[:1] = [sys.executable, "-P", "-m", "warren"]
        else:
            program = shutil.which(arguments[0], path=self._environment["PATH"])
            assert program is not None, f"{arguments[0]} is not at hand"
            arguments[0] = program
        return Terminal(
            command, arguments, self._directory, self._environment, self._begun, sees_errors=self._sees_errors
        )

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
        *,
        sees_errors: bool,
    ) -> None:
        self.command = command
        self._expected = [line for line in command.output if line.strip()]
        self._out = directory / f"terminal-{number}.out"
        self._errors = directory / f"terminal-{number}.errors"
        # A process that was begun in the background ignores Ctrl-C, and its children do.
        arguments = ["env", "--default-signal=INT", *arguments]
        with self._out.open("wb") as out, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                arguments,
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT if sees_errors else errors,
                start_new_session=True,
            )

    def lines(self) -> list[str]:
        """Return the lines that were printed so far."""
        return [line for line in self._out.read_text(errors="replace").splitlines() if line.strip()]

    def wait(self) -> None:
        """Wait until the command has ended by itself."""
        try:
            self._process.wait(END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"$ {self.command.line}\ndoes not end\n{self._told()}") from None

    def wait_until_ready(self) -> None:
        """Wait for the first line that the page has."""
        first = next((line for line in self._expected if line != ANYTHING), ANYTHING)
        self._wait_until(lambda: first == ANYTHING or any(not differs([first], [line]) for line in self.lines()))

    def _wait_until_printed(self) -> None:
        if ANYTHING in self._expected:
            self._wait_until(lambda: not differs(self._expected, self.lines()))
        else:
            self._wait_until(lambda: len(self.lines()) >= len(self._expected))

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        def is_fulfilled() -> bool:
            has_ended = self._process.poll() is not None
            if condition():
                return True
            assert not has_ended, "ended too early"
            return False

        try:
            wait_until(is_fulfilled, "what the page has", DEADLINE_S * 2)
        except AssertionError as error:
            page = "\n".join(self._expected)
            raise AssertionError(f"$ {self.command.line}\n{error}\nthe page has\n{page}\n{self._told()}") from None

    def interrupt(self) -> None:
        """Press Ctrl-C, which all processes of the terminal get, and wait for the end."""
        os.killpg(self._process.pid, signal.SIGINT)
        self.wait()

    def end(self) -> None:
        """Wait until everything is printed and the command has ended, and compare."""
        if self.command.is_interrupted:
            self._wait_until_printed()
            self.interrupt()
        else:
            self.wait()
        self.kill()
        difference = differs(self._expected, self.lines())
        assert not difference, f"$ {self.command.line}\n{difference}\n{self._told()}"

    def kill(self) -> None:
        """End what is left of it."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def _told(self) -> str:
        return "\n".join(["stdout:", *self.lines(), "stderr:", self._errors.read_text(errors="replace")])


def _end_together(terminals: list[Terminal]) -> None:
    """End terminals that share their work: any of them may print each expected line."""
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
