"""A follower's copies of entries that it cuts off its log, and their lifetime (``warren/replication/cut_copies.py``).

The numbers in parentheses are the invariants in the header of that module.
"""

from __future__ import annotations

from simulation.simulated_file_system import SimulatedFileSystem

from warren.msgstore.files.segment_names import segment_path
from warren.replication import cut_copies
from warren.replication.cut_copies import KEPT_BYTES_MAX, KEPT_S, SHARE, USAGE_S, CutCopies, Quarantine


class Node:
    def __init__(self, capacity: int | None = None) -> None:
        self.fs = SimulatedFileSystem()
        self.fs.mkdir("log")
        self.fs.mkdir("quarantine")
        self.fs.capacity = capacity
        self.now_ms = 1_000_000
        self.copies = CutCopies(self.fs, lambda: self.now_ms)

    def segment(self, number: int, content: bytes) -> None:
        handle = self.fs.create(segment_path(number), 0)
        self.fs.write(handle, [content], 0)
        self.fs.close(handle)

    def kept(self) -> list[str]:
        return self.fs.names("quarantine")


def test_a_copy_has_the_header_and_what_was_cut_off_at_its_place() -> None:
    node = Node()
    content = bytes(range(256)) * 4
    node.segment(7, content)
    assert node.copies.keep(7, 700, 900)
    assert node.kept() == ["cut-0000000007-200-1000000"]
    found = node.fs.contents()["quarantine/cut-0000000007-200-1000000"]
    assert found[:64] == content[:64] and found[64:700] == bytes(636) and found[700:] == content[700:900]


def test_all_copies_together_are_bounded_and_the_oldest_go_first() -> None:
    """(1)"""
    node = Node()
    node.segment(1, bytes(3000))
    with_bound = CutCopies(node.fs, lambda: node.now_ms)
    for _ in range(5):
        node.now_ms += 1
        assert with_bound.keep(1, 64, 1064)
    assert len(node.kept()) == 5
    assert with_bound.make_room(KEPT_BYTES_MAX - 2000)
    assert [name[-1] for name in node.kept()] == ["4", "5"]
    assert not with_bound.make_room(KEPT_BYTES_MAX + 1)
    assert node.kept() == []


def test_a_copy_goes_when_it_is_old() -> None:
    """(1)"""
    node = Node()
    node.segment(1, bytes(3000))
    assert node.copies.keep(1, 64, 164)
    node.now_ms += round(KEPT_S * 1000)
    assert node.copies.make_room(0) and len(node.kept()) == 1
    node.now_ms += 1
    assert node.copies.make_room(0) and node.kept() == []


def test_copies_leave_most_of_the_space_and_one_for_which_there_is_none_is_left_out() -> None:
    """(1, 2)"""
    node = Node(capacity=10_000)
    node.segment(1, bytes(4000))
    free = node.fs.free_bytes()
    assert not node.copies.keep(1, 64, 64 + free // SHARE + 1)
    for _ in range(100):
        node.now_ms += 1
        assert node.copies.keep(1, 64, 564)
    assert node.fs.free_bytes() > 4000 and node.kept()
    assert not node.copies.keep(2, 64, 100), "there is no such segment"


def test_copies_of_damaged_data_are_counted_and_stay() -> None:
    """(3)"""
    node = Node()
    node.segment(1, bytes(3000))
    handle = node.fs.create("quarantine/0000000001-5", 0)
    node.fs.write(handle, [bytes(100)], 0)
    node.fs.close(handle)
    now_s = 0.0
    quarantine = Quarantine(node.fs, lambda: now_s)
    assert quarantine.usage() == {"quarantine_files": 1, "quarantine_bytes": 100}
    assert node.copies.keep(1, 1000, 1030)
    now_s += USAGE_S
    assert quarantine.usage() == {"quarantine_files": 2, "quarantine_bytes": 130}
    assert not node.copies.make_room(cut_copies.KEPT_BYTES_MAX + 1)
    assert node.kept() == ["0000000001-5"]
    assert Quarantine(SimulatedFileSystem()).usage() == {"quarantine_files": 0, "quarantine_bytes": 0}
