"""Which statements are broken and which are left alone; and a reached statement is found by its number."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from .__main__ import FIRST, all_mutants, portions
from .mutants import Mutant, mutants
from .reached import Case, Reached
from .statements import statements_of, with_marks

PACKAGE = Path(__file__).parents[2] / "warren"


def changes(text: str) -> set[tuple[str, str, str]]:
    return {(mutant.kind, mutant.old, mutant.new) for mutant in mutants("queues/made.py", text)}


def in_function(*lines: str, head: str = "def f(a: int, b: int) -> int:") -> str:
    return head + "\n" + "".join(f"    {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("line", "kind", "old", "new"),
    [
        ("use(a < b)", "comparison", "a < b", "(a <= b)"),
        ("use(a == b)", "comparison", "a == b", "(a != b)"),
        ("use(a is None)", "comparison", "a is None", "(a is not None)"),
        ("use(a and b)", "and/or", "a and b", "(a or b)"),
        ("use(not a)", "no not", "not a", "a"),
        ("use(x=True)", "true/false", "True", "False"),
        ("use(7)", "one more", "7", "8"),
        ("use(7)", "one less", "7", "6"),
        ("use(a, b)", "dropped", "use(a, b)", "pass"),
        ("use(a, b)", "swapped", "a, b", ""),
        ("self.x[a] = b", "dropped", "self.x[a] = b", "pass"),
        ("return a", "dropped", "return a", "pass"),
        ("raise Fault(a)", "dropped", "raise Fault(a)", "pass"),
        ("return a if b else 0", "always", "a if b else 0", "a"),
        ("return a if b else 0", "never", "a if b else 0", "0"),
    ],
)
def test_a_line_is_broken_in_this_way(line: str, kind: str, old: str, new: str) -> None:
    expected = ("swapped", line, "use(b, a)") if kind == "swapped" else (kind, old, new)
    assert expected in changes(in_function(line))


def test_either_branch_of_an_if_may_be_gone() -> None:
    assert changes(in_function("if ask():", "    x = a", "else:", "    x = b")) == {
        ("never", "ask()", "False"),
        ("always", "ask()", "True"),
    }
    assert changes(in_function("if ask():", "    x = a")) == {("never", "ask()", "False")}


@pytest.mark.parametrize(
    "text",
    [
        '"""A docstring: 1 < 2."""\n',
        in_function('"""A docstring: 1 < 2."""', "x = a"),
        in_function("assert a < 1, not b"),
        in_function('raise AssertionError("overridden")'),
        in_function("raise NotImplementedError"),
        in_function("use(self.x == 1)", head="def check_invariants(self) -> None:"),
        in_function('self.note("warning", "event", {"count": 1, "is": not a})'),
        in_function('x = f"{a + 1}"'),
        in_function("x: Literal[1] = a"),
        in_function("x = cast(Callable[[bool], Literal[1]], a)"),
        "@cache(1)\n" + in_function("x = a"),
        "@dataclass(frozen=True)\nclass A(base(1)):\n    pass\n",
        in_function("x = a", head='def f(a: Literal[True]) -> "x and y":'),
        "from x import y\n",
        "MOST_BYTES: Final = 4096\nTIMES: Final = (10, 500)\n",
        in_function("x = a", head="def f(a: int, most: int = 5000):"),
    ],
)
def test_nothing_of_this_is_broken(text: str) -> None:
    assert not changes(text)


def test_a_small_number_with_a_name_may_mean_something() -> None:
    assert changes("KIND: Final = 2\n") == {("one more", "2", "3"), ("one less", "2", "1")}


def test_arguments_of_different_types_keep_their_places() -> None:
    head = "def f(a: int, b: i64, c: str, d):"
    swapped = {new for kind, _, new in changes(in_function("use(c, a, b, d)", head=head)) if kind == "swapped"}
    assert swapped == {"use(c, b, a, d)"}


def test_every_mutant_is_python_and_no_two_are_the_same() -> None:
    found = all_mutants("")
    assert len(set(found)) == len(found)
    for mutant in random.Random(1).sample(found, 100):
        source = (PACKAGE / mutant.path).read_bytes()
        assert source[mutant.begin : mutant.end].decode() == mutant.old != mutant.new
        compile(mutant.applied(source), mutant.path, "exec")


MODULE = '''"""A module."""

from __future__ import annotations

LIMIT: Final = 3


def judge(number):
    """Say something."""
    if number > LIMIT:
        return "many"
    for _ in range(number):
        number += 1
    return number
'''


def test_a_marked_module_does_the_same_and_says_what_was_reached() -> None:
    assert [text.strip() for text in statements_of(MODULE)] == [
        '"""Say something."""',
        "if number > LIMIT:",
        "for _ in range(number):",
        "return number",
        'return "many"',
        "number += 1",
    ]
    marked = with_marks(MODULE, 10).replace("from warren.seen_statements import SEEN as __seen__", "")
    seen = bytearray(16)
    names: dict[str, Any] = {"__seen__": seen}
    exec(compile(marked, "made", "exec"), names)
    assert names["judge"](4) == "many"
    assert seen == bytearray([0] * 10 + [1, 1, 0, 0, 1, 0])
    assert names["judge"](1) == 2
    assert seen == bytearray([0] * 10 + [1] * 6)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "queues").mkdir()
    (tmp_path / "queues" / "made.py").write_text(MODULE)
    (tmp_path / "queues" / "other.py").write_text(in_function("use(a)", "use(b)"))
    return tmp_path


def test_a_mutant_has_the_tests_that_reach_its_statement(package: Path) -> None:
    tests = [Case("unit/test_a.py::a", 1.0, 0b01000011), Case("unit/test_b.py::b", 1.0, 0b10000000)]
    known = Reached(tests, package)

    def names(path: str, kind: str, old: str) -> list[str]:
        of_path: list[Mutant] = mutants(path, (package / path).read_text())
        (mutant,) = (each for each in of_path if (each.kind, each.old) == (kind, old))
        return [test.name for test in known.by(mutant.path, mutant.statement, mutant.names)]

    assert names("queues/made.py", "comparison", "number > LIMIT") == ["unit/test_a.py::a"]
    assert names("queues/made.py", "one more", "3") == ["unit/test_a.py::a"], "its module, where the constant is used"
    assert names("queues/made.py", "dropped", "number += 1") == ["unit/test_a.py::a"], "nobody, but its module"
    assert names("queues/other.py", "dropped", "use(b)") == ["unit/test_b.py::b"]


def test_tests_that_are_about_the_module_come_first_and_no_test_twice(package: Path) -> None:
    (mutant,) = (each for each in mutants("queues/made.py", MODULE) if each.kind == "comparison")
    near = [Case(f"unit/test_near.py::{number}", 0.01, 0b00011111) for number in range(100)]
    far = [Case(f"unit/test_far.py::{number}", 0.01, 0b11000010) for number in range(200)]
    first, then = portions(mutant, Reached([*far, *near], package))
    assert len(first) == FIRST.tests
    assert [test.file for test in first] == ["unit/test_near.py"] * 20 + ["unit/test_far.py"] * 20
    assert len(set(first + then)) == len(first) + len(then)
