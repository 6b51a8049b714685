"""The epochs of a log: their order, their lives, and what is forgotten."""

from __future__ import annotations

import pytest

from warren.msgstore.log.epoch_table import EPOCHS_MAX, NO_LIFE, EpochTable


def table(*entries: tuple[int, int]) -> EpochTable:
    made = EpochTable()
    for epoch, first_lsn in entries:
        made.begin(epoch, first_lsn)
    return made


def test_the_last_epoch_is_the_one_that_began_last() -> None:
    assert (table((1, 64), (4, 1000)).last(), EpochTable().last()) == (4, 0)


@pytest.mark.parametrize(("epoch", "first_lsn"), [(4, 2000), (3, 2000), (5, 1000), (5, 64)])
def test_only_a_later_epoch_begins_and_only_behind(epoch: int, first_lsn: int) -> None:
    with pytest.raises(AssertionError, match="not the latest"):
        table((1, 64), (4, 1000)).begin(epoch, first_lsn)


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
