"""The epochs of a log: up to where two copies of one are the same, and what is forgotten."""

from __future__ import annotations

import random

import pytest

from warren.msgstore.log.epoch_table import EPOCHS_MAX, NO_LIFE, EpochTable


def table(*entries: tuple[int, int]) -> EpochTable:
    made = EpochTable()
    for epoch, first_lsn in entries:
        made.begin(epoch, first_lsn)
    return made


def test_an_epoch_ends_where_the_next_begins_and_the_last_with_the_log() -> None:
    epochs = table((1, 64), (4, 1000))
    assert (epochs.end(1, 5000), epochs.end(4, 5000), epochs.last()) == (1000, 5000, 4)
    assert EpochTable().last() == 0


@pytest.mark.parametrize(("epoch", "first_lsn"), [(4, 2000), (3, 2000), (5, 1000), (5, 64)])
def test_only_a_later_epoch_begins_and_only_behind(epoch: int, first_lsn: int) -> None:
    with pytest.raises(AssertionError, match="not the latest"):
        table((1, 64), (4, 1000)).begin(epoch, first_lsn)


@pytest.mark.parametrize(
    ("mine", "my_end", "theirs", "their_end", "common"),
    [
        pytest.param([(1, 64)], 500, [(1, 64)], 900, 500, id="one is behind"),
        pytest.param([(1, 64)], 900, [(1, 64), (2, 564)], 700, 564, id="the old leader wrote on where the new began"),
        pytest.param([(1, 64)], 400, [(1, 64), (2, 564)], 700, 400, id="the old one had not even come as far"),
        pytest.param([(1, 64), (2, 564)], 700, [(1, 64), (3, 464)], 900, 464, id="both have led since, alone"),
        pytest.param([(1, 64), (3, 564)], 700, [(1, 64), (2, 464), (3, 564)], 900, 700, id="one knows fewer"),
        pytest.param([(2, 564)], 700, [(3, 964)], 999, -1, id="none in common"),
        pytest.param([(1, 64), (2, 564)], 700, [(1, 64), (2, 664)], 900, 564, id="another life of the same number"),
        pytest.param([], 0, [(1, 64)], 500, -1, id="an empty one"),
    ],
)
def test_two_copies_are_the_same_up_to_the_end_of_the_largest_epoch_that_both_have(
    mine: list[tuple[int, int]], my_end: int, theirs: list[tuple[int, int]], their_end: int, common: int
) -> None:
    one, other = table(*mine), table(*theirs)
    assert one.common_end(my_end, other, their_end) == common
    assert other.common_end(their_end, one, my_end) == common


def test_whatever_two_copies_have_been_through_they_are_the_same_up_to_their_common_end_and_not_beyond() -> None:
    """Logs as lists of (epoch, contents), one for each byte: each leader appends to its own log."""
    for seed in range(300):
        chance = random.Random(seed)
        copies: list[list[tuple[int, int]]] = [[], []]
        epochs = [EpochTable(), EpochTable()]
        for epoch in range(1, 12):
            leader = chance.randrange(2)
            log = copies[leader]
            frames = [(epoch, chance.getrandbits(32)) for _ in range(chance.randrange(1, 4))]
            epochs[leader].begin(epoch, len(log))
            log += frames
            if chance.random() < 0.6:  # the other one follows, maybe not to the end
                end = epochs[leader].common_end(len(log), epochs[1 - leader], len(copies[1 - leader]))
                follower = copies[1 - leader]
                if end < 0:
                    end = 0
                same = 0
                while same < min(len(log), len(follower)) and log[same] == follower[same]:
                    same += 1
                assert end == same, f"seed {seed}"
                epochs[1 - leader].cut(end)
                stop = chance.randrange(end, len(log) + 1)
                copies[1 - leader] = follower[:end] + log[end:stop]
                for begun, first in epochs[leader].entries:
                    if begun > epochs[1 - leader].last() and first < stop:
                        epochs[1 - leader].begin(begun, first)


def test_epochs_are_cut_that_begin_at_the_place_or_behind_it() -> None:
    epochs = table((1, 64), (2, 564), (3, 764))
    epochs.cut(764)
    assert epochs.entries == [(1, 64), (2, 564)]
    epochs.cut(565)
    assert epochs.entries == [(1, 64), (2, 564)]
    epochs.cut(0)
    assert epochs.entries == []


def test_an_epoch_is_forgotten_when_it_has_ended_before_the_oldest_segment() -> None:
    epochs = table((1, 64), (2, 564), (3, 764))
    epochs.forget_before(564)
    assert epochs.entries == [(1, 64), (2, 564), (3, 764)], "who has all of epoch 1 and no more can go on at 564"
    epochs.forget_before(565)
    assert epochs.entries == [(2, 564), (3, 764)]
    epochs.forget_before(1 << 60)
    assert epochs.entries == [(3, 764)], "the last one stays"


def test_of_very_many_epochs_the_last_are_kept() -> None:
    epochs = EpochTable()
    for epoch in range(1, EPOCHS_MAX + 51):
        epochs.begin(epoch, 100 * epoch)
    assert (len(epochs.entries), epochs.entries[0], epochs.last()) == (EPOCHS_MAX, (51, 5100), EPOCHS_MAX + 50)


def test_the_life_at_an_lsn_is_the_one_that_has_written_the_byte_before_it() -> None:
    table = EpochTable()
    assert table.life_at(1000) == NO_LIFE
    for epoch, first_lsn, life_id in ((3, 64, b"a" * 16), (5, 4096, NO_LIFE), (6, 8192, b"c" * 16)):
        table.begin(epoch, first_lsn)
        table.name(epoch, life_id)
    found = [table.life_at(lsn)[:1] for lsn in (0, 64, 65, 4096, 4097, 8192, 8193, 1 << 50)]
    assert found == [b"\0", b"\0", b"a", b"a", b"\0", b"\0", b"c", b"c"]
