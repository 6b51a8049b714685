"""Diverging histories: a reader's position is on the path of a history, or it learns where the history diverged.

The broker's lineage and the client's lives are held to the same truth: two histories are lists of what was written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from warren.msgstore.log.epoch_table import NO_LIFE
from warren.msgstore.log.lineage import LIVES_MAX, NOT_HERE, ON_PATH, Lineage
from warren.spark_bridge.lives import UNKNOWN, Lives

NUMBERS = count(1)


@dataclass
class History:
    """One directory: its contents, its present writer, and its lineage."""

    written: list[int] = field(default_factory=list)
    lineage: Lineage = field(default_factory=Lineage)
    life: bytes = NO_LIFE
    is_noted: bool = True

    def start(self) -> None:
        self.life = next(NUMBERS).to_bytes(16, "big")
        self.is_noted = False

    def write(self, number: int) -> None:
        if number and not self.is_noted:
            self.lineage.begin(self.life, len(self.written))
            self.is_noted = True
        self.written += [next(NUMBERS) for _ in range(number)]

    def lose(self, number: int) -> None:
        """Lose the last `number` unsynced entries, and begin another life."""
        del self.written[max(0, len(self.written) - number) :]
        self.start()

    def copy(self) -> History:
        """Return a copy of the directory, which is started."""
        made = History(list(self.written), Lineage(self.lineage.encode()))
        made.start()
        return made

    def lives(self) -> Lives:
        """Return what a client is told."""
        told = [(life.hex(), first) for life, first in zip(self.lineage.life_ids, self.lineage.firsts, strict=True)]
        return Lives(told, len(self.written))


STEPS = st.lists(
    st.tuples(st.sampled_from(["write", "write", "write", "start", "lose", "copy"]), st.integers(0, 5), st.integers(0)),
    min_size=1,
    max_size=40,
)


@given(STEPS, st.data())
def test_a_position_is_on_the_path_or_the_reader_learns_where_the_histories_diverged(
    steps: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    first = History()
    first.write(data.draw(st.integers(0, 5)))  # by a version without lives
    first.start()
    histories = [first]
    for what, number, which in steps:
        history = histories[which % len(histories)]
        if what == "write":
            history.write(number)
        elif what == "start":
            history.start()
        elif what == "lose":
            history.lose(number)
        else:
            histories.append(history.copy())
    reader = data.draw(st.sampled_from(histories))
    number = data.draw(st.integers(0, len(reader.written)))
    life = reader.lineage.life_at(number)
    assert reader.lives().at(number) == life.hex()
    for asked in histories:
        end = len(asked.written)
        found = asked.lineage.diverged_at(life, number, end)
        told = asked.lives().maybe_divergence("s", life.hex(), number)
        assert (told is None) == (found == ON_PATH)
        common = next(
            (at for at, pair in enumerate(zip(reader.written, asked.written, strict=False)) if pair[0] != pair[1]),
            min(len(reader.written), end),
        )
        if found == ON_PATH:
            assert number <= common, "what was read is not what is here"
        else:
            assert number > common, "what was read is here"
            assert told is not None and told.offset == (None if found == NOT_HERE else found)
            assert found in (NOT_HERE, common)


def test_only_the_last_lives_are_remembered_and_the_others_are_unknown() -> None:
    history = History()
    lives = []
    for _ in range(LIVES_MAX + 10):
        history.start()
        lives.append(history.life)
        history.write(2)
    lineage, end = history.lineage, len(history.written)
    assert len(lineage.firsts) == LIVES_MAX
    assert lineage.life_at(20) == NO_LIFE and history.lives().at(20) == UNKNOWN
    assert lineage.life_at(21) == lives[10]
    assert lineage.diverged_at(NO_LIFE, 20, end) == ON_PATH
    assert lineage.diverged_at(lives[9], 20, end) == NOT_HERE, "what was forgotten is not taken for ours"
    assert lineage.diverged_at(lives[-1], end, end) == ON_PATH
    assert Lineage(lineage.encode()).encode() == lineage.encode()


def test_a_life_ends_with_the_history_when_a_crash_has_lost_more_than_the_life_after_it() -> None:
    earlier, later = b"a" * 16, b"b" * 16
    lineage = Lineage()
    lineage.begin(earlier, 0)
    lineage.begin(later, 10)
    lives = Lives([(earlier.hex(), 0), (later.hex(), 10)], 4)
    assert lineage.diverged_at(earlier, 4, 4) == ON_PATH
    assert lineage.diverged_at(earlier, 10, 4) == 4, "what was read is not here"
    assert lives.maybe_divergence("s", earlier.hex(), 4) is None
    told = lives.maybe_divergence("s", earlier.hex(), 10)
    assert told is not None and told.offset == 4


def test_a_life_whose_writes_were_lost_is_replaced_by_the_next() -> None:
    lineage = Lineage()
    lineage.begin(b"a" * 16, 0)
    lineage.begin(b"b" * 16, 10)
    lineage.begin(b"c" * 16, 10)
    assert lineage.life_ids == [b"a" * 16, b"c" * 16]
    lineage.begin(b"d" * 16, 4)
    assert (lineage.life_ids, lineage.firsts) == ([b"a" * 16, b"d" * 16], [0, 4])
