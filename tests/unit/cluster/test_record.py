"""The record of a cell: its transitions, what they refuse, and what is taken for a record (record.py)."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

import pytest

from warren.cluster.record import (
    MAJORITY,
    REPLICAS_MAX,
    Ask,
    LeaderBy,
    Life,
    Record,
    RecordError,
    Refusal,
    Replica,
    added,
    asked,
    decode,
    drained,
    encode,
    first,
    forgotten,
    left,
    made_anew,
    named,
    readmitted,
    recovered,
    removed,
    renewed,
    required,
    revived,
    taken_over,
    transferred,
)

A, B, C, D = (Replica(node, f"{node}1") for node in "abcd")
B_EMPTY = Replica("b", "b2")


def record(*in_sync: Replica, leader: Replica = A, epoch: int = 5, assigned: str = "abc", least: int = 2) -> Record:
    return Record("s", epoch, leader, LeaderBy.TAKE_OVER, frozenset(in_sync), frozenset(assigned), least)


def done(change: Record | Refusal) -> Record:
    assert isinstance(change, Record), change
    assert change.fault() is None
    return change


def reason(change: Record | Refusal) -> str:
    assert isinstance(change, Refusal), change
    return change.reason


def test_the_majority_of_the_assigned_nodes_grows_and_shrinks_with_them() -> None:
    nodes = [Replica(node, f"{node}1") for node in "abcde"]
    for least in (1, 2, 3):
        grown = first("s", A, least)
        for number, replica in enumerate(nodes[1:], 2):
            grown = done(required(done(added(grown, A, 1, replica, 5)), A, 1, MAJORITY))
            assert (len(grown.assigned), grown.least) == (number, number // 2 + 1)
        for number, replica in zip((4, 3, 2), reversed(nodes), strict=False):
            # Each is stopped first, and leaves the set as far as that may shrink.
            stopped = removed(grown, A, 1, replica)
            grown = done(forgotten(grown if isinstance(stopped, Refusal) else stopped, replica.node))
            grown = done(required(grown, A, 1, MAJORITY))
            assert (len(grown.assigned), grown.least) == (number, number // 2 + 1)


def test_as_many_are_required_as_the_leader_wants_once_so_many_are_in_sync() -> None:
    three = record(A, B, C, least=2)
    assert done(required(three, A, 5, 2)) is three
    assert done(required(three, A, 5, 1)).least == 1
    assert done(required(three, A, 5, 3)).least == 3
    # More than there are: all.
    assert done(required(three, A, 5, 7)).min_in_sync == 7
    alone = record(A, assigned="a", least=1)
    assert done(required(alone, A, 5, 3)) is alone
    assert "2 in sync, and 3 would be required" in reason(required(record(A, B, least=2), A, 5, 3))
    assert "leads epoch 5" in reason(required(three, B, 5, 1))
    assert "leads epoch 5" in reason(required(three, A, 4, 1))


def test_the_first_leader_is_alone_and_the_others_join_until_all_are_assigned() -> None:
    grown = first("s", A, 2)
    assert grown.fault() is None and grown.epoch == 1 and grown.least == 1
    for replica in (B, C):
        grown = done(added(grown, A, 1, replica, 3))
    assert grown.in_sync == {A, B, C} and grown.assigned == {"a", "b", "c"} and grown.least == 2
    assert "forget one" in reason(added(grown, A, 1, D, 3))


def test_a_take_over_leaves_the_old_leader_out_if_enough_remain() -> None:
    changed = done(taken_over(record(A, B, C), B, 5))
    assert (changed.epoch, changed.leader, changed.in_sync, changed.by) == (6, B, frozenset({B, C}), LeaderBy.TAKE_OVER)
    assert done(taken_over(record(A, B), B, 5)).in_sync == {A, B}
    assert done(taken_over(record(A, B, least=1), B, 5)).in_sync == {B}


def test_a_leader_that_restarts_takes_a_new_epoch_and_keeps_its_set() -> None:
    changed = done(taken_over(record(A, B, C), A, 5))
    assert (changed.epoch, changed.in_sync) == (6, frozenset({A, B, C}))


def test_only_a_replica_of_the_set_takes_over_and_not_a_later_incarnation_of_it() -> None:
    assert "not in sync" in reason(taken_over(record(A, B), C, 5))
    assert "not in sync" in reason(taken_over(record(A, B, C), B_EMPTY, 5))


def test_the_next_epoch_is_above_every_epoch_of_the_log() -> None:
    assert done(taken_over(record(A, B, epoch=5), B, 9)).epoch == 10
    assert recovered(record(A, B, epoch=5), C, 9).epoch == 10


def test_a_set_is_not_made_smaller_than_it_may_be() -> None:
    assert done(removed(record(A, B, C), A, 5, B)).in_sync == {A, C}
    assert "2 replicas have to" in reason(removed(record(A, C), A, 5, C))
    assert done(removed(record(A, C, least=1), A, 5, C)).in_sync == {A}
    assert "itself" in reason(removed(record(A, B, C), A, 5, A))
    assert "not in sync" in reason(removed(record(A, B), A, 5, C))


@pytest.mark.parametrize("leader", [A, B])
def test_only_the_leader_of_the_epoch_changes_the_set(leader: Replica) -> None:
    old = record(A, B, C, leader=leader)
    for who, epoch in ((A, 4), (B, 4), (C, 5), (A if leader == B else B, 5)):
        for change in (removed(old, who, epoch, C), added(old, who, epoch, D, 9), transferred(old, who, epoch, C)):
            assert "leads epoch 5" in reason(change)


def test_an_empty_directory_replaces_the_earlier_incarnation_of_its_node() -> None:
    assert done(added(record(A, B), A, 5, B_EMPTY, 3)).in_sync == {A, B_EMPTY}
    assert "in sync already" in reason(added(record(A, B), A, 5, B, 3))
    assert "the leader has" in reason(added(record(A, B), A, 5, Replica("a", "a2"), 3))


def test_a_transfer_names_another_of_the_set_for_the_next_epoch() -> None:
    changed = done(transferred(record(A, B), A, 5, B))
    assert (changed.epoch, changed.leader, changed.in_sync, changed.by) == (6, B, frozenset({A, B}), LeaderBy.TRANSFER)
    assert "not in sync" in reason(transferred(record(A, B), A, 5, C))
    assert reason(transferred(record(A, B), A, 5, A)) == "a leads already"
    # A node that hands over restarts: it leaves the set, if enough remain.
    assert done(transferred(record(A, B, C), A, 5, B)).in_sync == {B, C}


def test_who_may_lead_is_found_by_its_name() -> None:
    assert named(record(A, B), "b") == B
    for node, why in (("c", "not in sync"), ("x", "its nodes are a, b, c")):
        found = named(record(A, B), node)
        assert isinstance(found, Refusal) and why in found.reason


def test_a_node_is_forgotten_if_enough_others_are_in_sync() -> None:
    assert done(forgotten(record(A, B, C), "c")).in_sync == {A, B}
    assert done(forgotten(record(A, B), "c")).assigned == {"a", "b"}
    assert "2 are required" in reason(forgotten(record(A, B), "b"))
    assert "transfer" in reason(forgotten(record(A, B, C), "a"))
    assert "its nodes are a, b, c" in reason(forgotten(record(A, B, C), "x"))
    # Two of three are lost for good: they are forgotten one after the other, and the last node continues.
    without_b = done(forgotten(record(A, B, least=2), "c"))
    assert done(forgotten(without_b, "b")).in_sync == {A}


def test_a_node_that_was_forgotten_is_assigned_when_it_joins_again() -> None:
    gone = done(forgotten(record(A, B, C), "c"))
    assert gone.assigned == {"a", "b"} and gone.forgotten == {"c"}
    assert readmitted(gone, "c").forgotten == frozenset()
    joined = done(added(gone, A, 5, Replica("c", "c2"), 3))
    assert joined.assigned == {"a", "b", "c"} and not joined.forgotten
    full = dataclasses.replace(record(A, B, C), forgotten=frozenset(f"n{number}" for number in range(REPLICAS_MAX)))
    assert "forgotten already" in reason(forgotten(full, "c"))


def test_a_drained_node_stands_only_if_all_others_of_the_set_are_drained() -> None:
    one = done(drained(record(A, B, C), "b"))
    assert [each for each in (A, B, C) if one.may_stand(each)] == [A, C]
    both = done(drained(one, "c"))
    assert both.may_stand(B) and both.may_stand(C)
    assert done(revived(both, "c")).may_stand(C) and not done(revived(both, "c")).may_stand(B)
    assert done(drained(record(A, least=1), "a")).may_stand(A)
    assert not done(forgotten(one, "b")).drained
    for change in (drained(one, "x"), revived(one, "x")):
        assert "its nodes are" in reason(change)


def test_what_was_asked_for_and_is_so_changes_nothing() -> None:
    old = record(A, B, C)
    for ask, node in ((Ask.FORGET, "c"), (Ask.DRAIN, "b"), (Ask.REVIVE, "b"), (Ask.READMIT, "c")):
        changed = done(asked(old, ask, node))
        assert asked(changed, ask, node) == changed


def test_a_record_that_was_lost_is_made_anew_beyond_all_epochs() -> None:
    made = made_anew("s", B, 1007, 2)
    assert made.fault() is None
    assert (made.epoch, made.leader, made.by, made.in_sync) == (1008, B, LeaderBy.RECOVERY, frozenset({B}))


def test_a_record_without_drained_and_forgotten_nodes_is_written_as_it_always_was() -> None:
    assert b"drained" not in encode(record(A, B)) and b"forgotten" not in encode(record(A, B))
    changed = done(drained(done(forgotten(record(A, B), "c")), "b"))
    assert decode(encode(changed)) == changed
    for wrong in (
        dataclasses.replace(changed, drained=frozenset("x")),
        dataclasses.replace(changed, forgotten=frozenset("a")),
    ):
        with pytest.raises(RecordError):
            decode(encode(wrong))


def test_lives_are_of_nodes_in_sync_and_go_with_them() -> None:
    """(7)"""
    found = done(renewed(record(A, B, C), A, 5, {"a": "a9", "b": "b9", "d": "d9"}, (5, 40)))
    assert (found.life_of(A), found.life_of(B), found.life_of(C), found.floor) == ("a9", "b9", None, (5, 40))
    assert found.life_of(Replica("b", "another directory")) is None
    assert done(renewed(found, A, 5, {}, (5, 30))) == found, "the floor never sinks"
    assert reason(renewed(found, B, 5, {}, (5, 50))) == "a/a1 leads epoch 5"
    assert done(removed(found, A, 5, B)).lives == {Life("a", "a9")}
    assert done(taken_over(found, B, 5, life="b10")).lives == {Life("b", "b10")}
    assert done(transferred(found, A, 5, B)).lives == {Life("b", "b9")}
    empty = Replica("b", "b2")
    assert done(added(found, A, 5, empty, 3)).life_of(empty) is None
    assert done(added(found, A, 5, empty, 3, "b11")).life_of(empty) == "b11"
    assert recovered(found, B, 5).lives == frozenset() and recovered(found, B, 5).floor == (0, 0)


def test_a_replica_leaves_by_its_own_hand_if_enough_remain() -> None:
    """(7)"""
    assert done(left(record(A, B, C), C)).in_sync == {A, B}
    assert reason(left(record(A, B), B)) == "2 replicas have to be in sync"
    assert reason(left(record(A, B, C), A)) == "a leader does not remove itself"
    assert reason(left(record(A, B), C)) == "c/c1 is not in sync"


def test_a_take_over_keeps_those_that_answer_and_the_leader_until_now_last() -> None:
    def taken(*answering: Replica, least: int = 2) -> frozenset[Replica]:
        return done(taken_over(record(A, B, C, least=least), B, 5, frozenset(answering))).in_sync

    assert taken(A, C) == taken(C) == {B, C}
    assert taken(A) == {A, B} and taken() == {B, C}
    assert taken(A, least=1) == {B} and taken(A, C, least=3) == {A, B, C}
    assert taken(D, least=3) == {A, B, C}


def test_a_recovery_begins_anew_with_one_replica() -> None:
    changed = recovered(record(A, B, C), C, 5)
    assert changed.fault() is None
    assert (changed.in_sync, changed.assigned, changed.by) == (frozenset({C}), frozenset("c"), LeaderBy.RECOVERY)


def test_whatever_is_done_in_whatever_order_the_record_stays_valid() -> None:
    replicas = (A, B, C, B_EMPTY)
    for least in (1, 2, 3):
        known = {first("s", A, least)}
        for _ in range(4):
            for old in list(known):
                leader, epoch = old.leader, old.epoch
                changes = [asked(old, ask, node) for node in "abc" for ask in Ask]
                for each in replicas:
                    changes += [taken_over(old, each, 0), removed(old, leader, epoch, each)]
                    changes += [added(old, leader, epoch, each, 3), transferred(old, leader, epoch, each)]
                for change in changes:
                    if isinstance(change, Record):
                        assert change.fault() is None, (old, change)
                        assert change.epoch >= old.epoch and change.leader in change.in_sync
                        assert not change.in_sync - old.in_sync or change.epoch == old.epoch
                        assert (change.leader != old.leader) <= (change.epoch > old.epoch)
                        known.add(change)
        assert len(known) > 50


# --- JSON ---


def test_what_is_written_is_read_and_is_the_same_bytes_each_time() -> None:
    for in_sync in itertools.permutations((A, B, C)):
        assert encode(record(*in_sync)) == encode(record(A, B, C))
    for by in LeaderBy:
        written = dataclasses.replace(record(A, B, C), by=by)
        assert decode(encode(written)) == written


def test_lives_and_the_floor_are_written_and_read() -> None:
    found = done(renewed(record(A, B), A, 5, {"a": "a9"}, (5, 40)))
    assert decode(encode(found)) == found
    assert json.loads(encode(found))["lives"] == {"a": "a9"} and json.loads(encode(found))["floor"] == [5, 40]
    assert not {"lives", "floor"} & set(json.loads(encode(done(renewed(record(A, B), A, 5, {}, (0, 0))))))


def document(**changed: Any) -> bytes:
    fields = json.loads(encode(record(A, B)))
    fields.update(changed)
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode()


def test_a_newer_format_is_refused_with_what_to_do_whatever_else_it_has() -> None:
    with pytest.raises(RecordError, match="format 2, this Warren knows 1: a newer one leads the cluster, upgrade"):
        decode(document(format=2, in_sync={"new": "shape"}, more=1))


B_JSON = {"node": "b", "incarnation": "b1"}


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff",
        b'{"format":1}',
        b"[" * 100_000,
        b" " * 70_000 + encode(record(A, B)),
        document(format=0),
        document(format="1"),
        document(more=1),
        document(store=...),
        document(store=""),
        document(epoch=0),
        document(epoch=1.5),
        document(epoch=True),
        document(epoch=2**63),
        document(leader=None),
        document(leader={"node": "c", "incarnation": "c1"}),
        document(by="force"),
        document(in_sync=[B_JSON]),
        document(in_sync=[*json.loads(document())["in_sync"], B_JSON]),
        document(in_sync=[*json.loads(document())["in_sync"], {"node": "b", "incarnation": "b2"}]),
        document(assigned=["a"]),
        document(assigned=["a", "b", "b"]),
        document(assigned=["a", "b"] + [str(number) for number in range(200)]),
        document(min_in_sync=0),
        document(lives={"c": "c1"}),
        document(lives={"a": ""}),
        document(lives=["a"]),
        document(floor=[1]),
        document(floor=[1, -1]),
        document(min_in_sync=3),
        document(leader={"node": "a", "incarnation": "x" * 300}),
    ],
)
def test_what_is_not_exactly_a_record_is_refused(value: bytes) -> None:
    with pytest.raises(RecordError, match="record in etcd"):
        decode(value)
