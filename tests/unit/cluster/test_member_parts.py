"""The parts of a member, each alone: what each of them decides, and for how long (see the headers of the modules)."""

from __future__ import annotations

import dataclasses

import pytest

from warren.cluster.actions import Actions
from warren.cluster.asked_change import AskedChange
from warren.cluster.candidacy import Candidacy, Founding
from warren.cluster.disk_watch import DiskWatch
from warren.cluster.events import (
    Acknowledge,
    AnswerBeacon,
    AskPositions,
    BeaconReceived,
    ChangeRequested,
    KeepLives,
    Position,
    Read,
    RecordRead,
    RecoveryRequested,
    RefuseCommand,
    Report,
    Standing,
    StopAcknowledging,
    Swap,
    SwapRefused,
    Tick,
)
from warren.cluster.following import Following
from warren.cluster.handover import Handover
from warren.cluster.member import Member
from warren.cluster.own_directory import OwnDirectory
from warren.cluster.peers import ROUND_TRIPS, Peers
from warren.cluster.pre_vote import ASKING_S
from warren.cluster.record import Ask, LeaderBy, Life, Record, Refusal, Replica, Versioned, removed
from warren.cluster.record_view import RecordView
from warren.cluster.renewal import Renewal
from warren.cluster.timers import NEVER, Timers

A, B, C = (Replica(node, f"{node}1") for node in "abc")
TIMERS = Timers(limit_s=2.0, grace_s=3.0)
RETRY_S = TIMERS.retry_s


def record(*in_sync: Replica, leader: Replica = A, epoch: int = 5, least: int = 1) -> Record:
    return Record("s", epoch, leader, LeaderBy.TAKE_OVER, frozenset(in_sync), frozenset("abc"), least)


# --- actions ---


def test_reports_are_not_repeated_until_another_one_was_told() -> None:
    actions = Actions()
    for text in ("one", "one", "two", "one"):
        actions.report(text)
    actions.add(Read())
    assert actions.take() == [Report("one"), Report("two"), Report("one"), Read()]
    actions.report("one")
    assert actions.take() == []


# --- the record, as it is known ---


def viewed(now_s: float = 10.0) -> tuple[RecordView, Record]:
    """Return a view that has read a record at revision 7."""
    view, known = RecordView(now_s, RETRY_S), record(A, B, C)
    assert view.maybe_read(now_s) == Read() and view.maybe_read(now_s) is None, "one read at a time"
    assert view.read(Versioned(7, known), now_s) and view.record == known
    assert view.maybe_read(now_s) is None and view.may_propose(now_s)
    return view, known


def shorter(known: Record) -> Record:
    change = removed(known, A, 5, C)
    assert isinstance(change, Record)
    return change


def test_a_read_that_fails_is_repeated_after_a_moment() -> None:
    """(5)"""
    view = RecordView(10.0, RETRY_S)
    assert view.maybe_read(10.0) == Read()
    view.read_failed(12.0)
    assert view.maybe_read(12.0) is None
    assert view.maybe_read(12.0 + RETRY_S) == Read()


def test_nothing_is_read_while_a_proposal_waits_and_one_waits_at_a_time() -> None:
    """(3), (5)"""
    view, known = viewed()
    swap = view.propose(shorter(known))
    assert swap == Swap(1, 7, shorter(known)) and view.is_swapping and not view.may_propose(10.0)
    view.is_read = False
    assert view.maybe_read(10.0) is None
    view.unknown(swap.number + 1, 10.0)
    assert view.is_swapping, "that is the answer to another one"
    view.unknown(swap.number, 10.0)
    assert view.maybe_read(10.0) is None and view.maybe_read(10.0 + RETRY_S) == Read()
    assert not view.read(Versioned(7, known), 11.0)
    assert view.possible == [known, shorter(known)], "it may still be carried out"
    assert view.done(swap.number, 8) is False, "that answer was given up"


def test_a_refused_proposal_is_not_repeated_before_a_later_revision_is_known() -> None:
    """(6): else a leader without its record asks etcd as fast as that answers."""
    view, known = viewed()
    swap = view.propose(shorter(known))
    view.refused(swap.number)
    now_s = 10.0
    for found in (None, Versioned(6, known), None):
        assert view.maybe_read(now_s) == Read()
        assert not view.read(found, now_s)
        assert view.is_gone is (found is None)
        assert not view.may_propose(now_s) and view.maybe_read(now_s) is None
        now_s += RETRY_S
        assert not view.may_propose(now_s)
    assert view.learn(Versioned(9, known))
    assert view.may_propose(now_s) and view.maybe_read(now_s) is None


def test_a_proposal_is_made_again_when_the_key_is_as_it_was_known() -> None:
    """(6) Another node has written the key and removed it since."""
    view, known = RecordView(10.0, RETRY_S), record(A)
    view.read(None, 10.0)
    view.refused(view.propose(known).number)
    assert view.maybe_read(10.0) == Read()
    view.read(None, 11.0)
    assert not view.may_propose(11.0) and view.may_propose(11.0 + RETRY_S)
    assert view.propose(known).revision == 0


def test_a_refusal_that_comes_after_the_news_stops_nothing() -> None:
    view, known = viewed()
    swap = view.propose(shorter(known))
    assert view.learn(Versioned(8, known))
    view.refused(swap.number)
    assert view.maybe_read(10.0) == Read()
    view.read(Versioned(8, known), 10.0)
    assert view.may_propose(10.0)


# --- the directory ---


def directory(life: str | None, *, floor: tuple[int, int] = (5, 8)) -> tuple[OwnDirectory, Actions, Record]:
    """Return B's directory, whose log ends at (5, 10), and which has had three lives; and a record of one of them."""
    actions = Actions()
    lives = frozenset() if life is None else frozenset({Life("b", life)})
    found = dataclasses.replace(record(A, B, C), lives=lives, floor=floor)
    return OwnDirectory(B, Position(5, 10), ("b1", "b2", "b3"), TIMERS, actions), actions, found


@pytest.mark.parametrize(("life", "floor"), [("b9", (5, 8)), ("b2", (5, 11)), ("b2", (6, 0))])
def test_a_restored_copy_is_not_trusted_and_forgets_its_lives(life: str, floor: tuple[int, int]) -> None:
    """(1), (2), (3)"""
    place, actions, found = directory(life, floor=floor)
    place.compare(found)
    keep, report = actions.take()
    assert keep == KeepLives(("b3",)) and report == Report(place.trouble)
    place.compare(found)
    assert place.trouble and actions.take() == []
    place.compare(dataclasses.replace(found, lives=frozenset({Life("b", "b3")})))
    assert place.trouble == ""


def test_a_trusted_one_keeps_the_recorded_life_and_later_ones_and_passes_the_floor_later() -> None:
    """(1), (3)"""
    place, actions, found = directory("b2")
    place.compare(found)
    place.compare(dataclasses.replace(found, floor=(9, 9)))
    assert place.trouble == "" and actions.take() == [KeepLives(("b2", "b3"))]


def test_a_disk_is_stuck_after_a_while() -> None:
    place, _, _ = directory(None)
    assert not place.is_stuck(100.0)
    place.disk_since_s = 100.0
    assert not place.is_stuck(101.9) and place.is_stuck(102.0)


# --- following ---


def followed() -> tuple[Following, Actions]:
    actions = Actions()
    following = Following(100.0, TIMERS, actions)
    following.answer(101.0, BeaconReceived(A, 5, 1))
    assert actions.take() == [Acknowledge(A, 5), AnswerBeacon(A, 5, 1)]
    return following, actions


def test_one_epoch_is_acknowledged_at_a_time() -> None:
    """(1)"""
    following, actions = followed()
    following.answer(101.0, BeaconReceived(A, 5, 2))
    assert actions.take() == [AnswerBeacon(A, 5, 2)]
    assert following.rival(BeaconReceived(B, 5, 1)) == A and following.rival(BeaconReceived(B, 6, 1)) is None
    following.learn(101.5, record(A, B))
    assert actions.take() == [], "the record is that of the leader that is followed"
    following.learn(101.5, record(B, C, leader=C, epoch=6))
    assert actions.take() == [StopAcknowledging()] and following.answering(101.5) is None
    assert following.epoch == 5
    following.stop()
    assert actions.take() == []


def test_a_promise_holds_for_the_grace_time_also_one_of_an_earlier_life() -> None:
    """(2)"""
    assert Following(100.0, TIMERS, Actions()).released_at_s() == 103.0
    following, _ = followed()
    following.hear(102.0, A)
    following.learn(102.0, record(A, B, epoch=6))
    assert following.released_at_s() == 104.0


def test_a_leader_is_gone_after_the_grace_time_or_soon_when_its_process_is() -> None:
    """(3)"""
    following, _ = followed()
    following.hear(101.5, A)
    following.hear(102.0, B)
    assert following.gone_at_s() == 104.5 and following.answering(104.4) == A and following.answering(104.5) is None
    following.refuse()
    assert not following.is_refused, "the link is there"
    following.lose(102.0)
    following.lose(103.0)
    assert following.gone_at_s() == 104.5
    following.refuse()
    assert following.is_refused and following.gone_at_s() == 102.0 + TIMERS.refused_s
    following.answer(102.1, BeaconReceived(A, 5, 2))
    assert not following.is_refused and following.gone_at_s() == pytest.approx(105.1)


def test_a_new_leader_has_the_grace_time_to_be_heard() -> None:
    """(4)"""
    following, _ = followed()
    following.lose(101.0)
    following.refuse()
    following.learn(103.0, record(B, C, leader=C, epoch=6))
    assert following.gone_at_s() == 106.0


# --- candidacy ---


class Candidate:
    """B, with a log up to (5, 10). It has read the record; without `found` etcd has no record."""

    def __init__(
        self,
        found: Record | None,
        *,
        founding: Founding | None = None,
        recovery: Founding | None = None,
        lsn: int = 10,
    ) -> None:
        self.actions = Actions()
        self.view = RecordView(100.0, RETRY_S)
        self.directory = OwnDirectory(B, Position(5 if lsn else 0, lsn), (), TIMERS, self.actions)
        self.following = Following(100.0, TIMERS, self.actions)
        self.candidacy = Candidacy(
            B,
            100.0,
            view=self.view,
            directory=self.directory,
            following=self.following,
            founding=founding,
            recovery=recovery,
            timers=TIMERS,
            actions=self.actions,
        )
        self.view.read(None if found is None else Versioned(7, found), 100.0)

    def told(self, position: Position, committed: Position) -> None:
        """Make C answer the last questions."""
        (asked,) = [action for action in self.actions.take() if isinstance(action, AskPositions)]
        self.candidacy.told(asked.number, "c", C, Standing(position, committed))
        self.candidacy.asked_all(asked.number)


def test_a_store_is_founded_at_once_by_an_empty_node_that_may() -> None:
    place = Candidate(None, founding=Founding("s", 2), lsn=0)
    change = place.candidacy.wanted(100.0)
    assert change is not None and (change.epoch, change.by, change.min_in_sync) == (1, LeaderBy.FIRST, 2)
    assert place.candidacy.is_standing
    for other in (Candidate(None, lsn=0), Candidate(None, founding=Founding("s", 2))):
        assert other.candidacy.wanted(100.0) is None and len(other.actions.take()) == 1


def test_a_node_asks_the_others_before_its_leader_is_gone_and_again_when_the_answers_are_old() -> None:
    place = Candidate(record(A, B, C, least=2))
    place.following.answer(100.0, BeaconReceived(A, 5, 1))
    assert place.candidacy.wanted(102.4) is None and len(place.actions.take()) == 2
    assert place.candidacy.wanted(102.5) is None
    place.told(Position(5, 10), Position(5, 5))
    assert place.candidacy.wanted(102.9) is None
    change = place.candidacy.wanted(103.0)
    assert change is not None and (change.leader, change.epoch) == (B, 6)
    assert place.actions.take() == [StopAcknowledging()] and place.candidacy.is_standing
    assert place.candidacy.wanted(103.4) is None and place.actions.take() == []
    assert place.candidacy.wanted(103.5) is None
    place.told(Position(5, 10), Position(5, 5))
    assert place.candidacy.wanted(103.5 + ASKING_S) is None, "the answers are too old"
    assert [type(action) for action in place.actions.take()] == [AskPositions]


def test_answers_to_earlier_questions_count_for_nothing() -> None:
    place = Candidate(record(A, B, C, least=2))
    assert place.candidacy.wanted(102.5) is None
    (first,) = [action for action in place.actions.take() if isinstance(action, AskPositions)]
    place.candidacy.hears()
    place.following.answer(102.6, BeaconReceived(A, 5, 1))
    assert place.candidacy.wanted(105.1) is None
    place.candidacy.told(first.number, "c", C, Standing(Position(5, 99), Position(5, 99)))
    place.candidacy.asked_all(first.number)
    place.told(Position(5, 10), Position(5, 5))
    assert place.candidacy.wanted(105.6) is not None


def test_an_epoch_is_led_by_a_change_of_this_process_or_by_a_transfer_that_it_saw() -> None:
    """(1)"""
    place = Candidate(record(A, B, C))
    mine = record(B, C, leader=B, epoch=6)
    transfer = dataclasses.replace(mine, by=LeaderBy.TRANSFER)
    assert not place.candidacy.may_lead(mine), "of an earlier life"
    assert place.candidacy.may_lead(transfer) and place.candidacy.leads_from_s(100.0, transfer) == 100.0
    place.directory.trouble = "restored"
    assert not place.candidacy.may_lead(transfer)
    place.directory.trouble = ""
    place.following.answer(100.5, BeaconReceived(C, 6, 1))
    assert not place.candidacy.may_lead(transfer), "another one leads that epoch"
    assert not Candidate(transfer).candidacy.may_lead(transfer), "it was there at the first read"


# --- a leader's view of the others ---


def test_a_promise_is_that_of_the_beacon_and_the_least_of_all_counts() -> None:
    """(1)"""
    peers = Peers(100.0, TIMERS)
    assert peers.promised_until_s([]) == NEVER and peers.promised_until_s([B]) == -NEVER
    assert [peers.send_beacon(100.0), peers.send_beacon(101.0)] == [1, 2] and peers.beacon_at_s == 101.25
    peers.answered(B, 2, 101.5)
    peers.answered(B, 1, 101.6)
    peers.answered(C, 1, 101.5)
    peers.answered(C, 99, 101.5)
    assert peers.promised_until_s([B]) == 103.0 and peers.promised_until_s([B, C]) == 102.0
    assert peers.silence_s([B, C], 103.5) == 2.0 and peers.silence_s([], 103.5) == 0.0


def test_a_round_trip_is_that_of_the_first_answer_to_a_beacon() -> None:
    """(3): a replica acknowledges much between two beacons, and repeats the number of the last one."""
    peers, now_s = Peers(100.0, TIMERS), 100.0
    for _ in range(2 * ROUND_TRIPS):
        number = peers.send_beacon(now_s)
        for after_s in (0.3, 0.39, 0.48):
            peers.answered(B, number, now_s + after_s)
        now_s += 0.5
    assert peers.is_quick(B) and not peers.is_slow(B)


def test_a_link_is_slow_or_quick_when_that_is_known() -> None:
    peers = Peers(100.0, TIMERS)

    def beacon(now_s: float) -> None:
        number = peers.send_beacon(now_s)
        peers.answered(B, number, now_s + 0.5)
        peers.answered(C, number, now_s + 0.1)

    for at_s in range(ROUND_TRIPS - 1):
        beacon(100.0 + at_s)
    assert not any((peers.is_slow(B), peers.is_quick(B), peers.is_slow(C), peers.is_quick(C)))
    beacon(100.0 + ROUND_TRIPS)
    assert peers.is_slow(B) and not peers.is_quick(B) and peers.is_quick(C) and not peers.is_slow(C)


def test_a_replica_is_useful_while_it_is_heard_and_makes_progress() -> None:
    """(2)"""
    peers = Peers(100.0, TIMERS)
    assert peers.useful_until_s(B) == 101.0 and not peers.is_useful(B, 101.0)
    peers.answered(B, 1, 101.0)
    assert peers.useful_until_s(B) == 102.0
    peers.appended(50, 101.0)
    peers.answered(B, 1, 101.8)
    assert not peers.is_useful(B, 102.0), "there is something to sync since 101"
    peers.synced(B, 40, 101.9)
    assert peers.is_useful(B, 102.0) and not peers.is_late(B, 102.3) and peers.is_late(B, 102.5)
    peers.lost(B)
    assert not peers.is_useful(B, 101.9) and peers.of(B).synced_lsn == 0


def test_the_best_has_most_of_the_log_and_is_drained_only_if_all_are() -> None:
    peers = Peers(100.0, TIMERS)
    peers.synced(B, 20, 100.0)
    peers.synced(C, 30, 100.0)
    assert peers.best([B, C], (), 100.5) == C and peers.best([B, C], {"c"}, 100.5) == B
    assert peers.best([B, C], {"b", "c"}, 100.5) == C
    assert peers.best([B, C], (), 101.0) is None
    peers.synced(C, 20, 100.5)
    peers.synced(B, 30, 100.5)
    assert peers.best([B, C], (), 100.5) == B


# --- handing over ---


def handing(node: str | None = "b") -> tuple[Handover, Peers]:
    peers = Peers(100.0, TIMERS)
    peers.appended(20, 100.0)
    peers.synced(B, 19, 100.0)
    peers.synced(C, 18, 100.0)
    handover = Handover(A, 5, peers, TIMERS)
    handover.drained(100.0, 20)
    assert handover.drained_lsn is None, "nothing hands over"
    assert handover.begin(100.0, record(A, B, C), node) == B
    return handover, peers


def test_it_hands_over_when_all_is_written_and_the_target_has_it() -> None:
    """(1), (2)"""
    handover, peers = handing()
    peers.synced(B, 20, 100.1)
    assert handover.wanted(100.2, record(A, B, C)) is None
    handover.drained(100.2, 21)
    assert handover.wanted(100.2, record(A, B, C)) is None and handover.until_s == 103.2
    peers.synced(B, 21, 100.3)
    change = handover.wanted(100.3, record(A, B, C))
    assert change is not None and (change.leader, change.epoch, change.by) == (B, 6, LeaderBy.TRANSFER)
    again = handover.begin(100.3, record(A, B, C), "c")
    assert isinstance(again, Refusal) and "already" in again.reason


def test_another_replica_takes_the_place_of_a_target_that_is_gone_or_left_the_set() -> None:
    for known, is_lost in ((record(A, B, C), True), (record(A, C), False)):
        handover, peers = handing(None)
        handover.drained(100.1, 20)
        peers.synced(B, 20, 100.2)
        peers.synced(C, 20, 100.2)
        if is_lost:
            peers.lost(B)
        change = handover.wanted(100.3, known)
        assert change is not None and change.leader == C


def test_a_drained_node_is_not_handed_over_to_by_name() -> None:
    """(3)"""
    known = dataclasses.replace(record(A, B, C), drained=frozenset("b"))
    peers = Peers(100.0, TIMERS)
    named = Handover(A, 5, peers, TIMERS).begin(100.0, known, "b")
    assert isinstance(named, Refusal) and "revive" in named.reason
    assert Handover(A, 5, peers, TIMERS).begin(100.0, known, None) == C


# --- the record that a leader renews ---


def test_the_floor_is_renewed_now_and_then_and_lives_at_once() -> None:
    """(1), (2)"""
    renewal, known = Renewal(A, 5, "a1", 100.0, TIMERS), record(A, B, C)
    renewal.committed(20)
    renewal.told(B, "b1")
    assert renewal.wanted(100.0, known) is None and renewal.life_of(known, B) is None, "C may not understand it"
    renewal.told(C, "c1")
    assert renewal.life_of(known, B) == "b1"
    change = renewal.wanted(100.0, known)
    assert change is not None and change.floor == (5, 20)
    assert change.lives == {Life("a", "a1"), Life("b", "b1"), Life("c", "c1")}
    renewal.committed(15)
    assert renewal.wanted(110.0, change) is None, "the floor does not sink"
    renewal.committed(30)
    assert renewal.wanted(109.9, change) is None and renewal.renews_at_s == 110.0
    renewal.told(B, "b2")
    later = renewal.wanted(109.9, change)
    assert later is not None and later.life_of(B) == "b2" and later.floor == (5, 20)
    renewed = renewal.wanted(110.0, later)
    assert renewed is not None and renewed.floor == (5, 30)


def test_a_leader_without_a_life_renews_nothing() -> None:
    renewal = Renewal(A, 5, None, 100.0, TIMERS)
    renewal.committed(20)
    renewal.told(B, "b1")
    renewal.told(C, "c1")
    assert renewal.wanted(100.0, record(A, B, C)) is None and renewal.life_of(record(A, B, C), B) is None


# --- commands about nodes ---


def test_one_change_is_wanted_at_a_time_until_it_is_recorded_or_its_time_is_over() -> None:
    """(1)"""
    asked, peers, known = AskedChange(TIMERS), Peers(100.0, TIMERS), record(A, B, C)
    drain_b, drain_c = (ChangeRequested(Ask.DRAIN, node) for node in "bc")
    assert asked.wanted(100.0, known) is None
    assert asked.ask(100.0, known, drain_b, peers) == ""
    change = asked.wanted(104.9, known)
    assert change is not None and change.drained == {"b"}
    assert "another change" in asked.ask(104.9, known, drain_c, peers)
    assert asked.ask(104.9, known, drain_b, peers) == ""
    assert asked.wanted(109.8, known) == change
    assert asked.wanted(109.9, known) is None
    assert asked.ask(110.0, known, drain_c, peers) == ""
    assert asked.wanted(110.0, dataclasses.replace(known, drained=frozenset("c"))) is None, "it is recorded"
    assert asked.wanted(110.0, known) is None


def test_a_command_whose_time_is_over_keeps_no_other_one_out() -> None:
    """(1): nothing is wanted while etcd is away, so nothing else would notice that its time is over."""
    asked, peers, known = AskedChange(TIMERS), Peers(100.0, TIMERS), record(A, B, C)
    assert asked.ask(100.0, known, ChangeRequested(Ask.DRAIN, "b"), peers) == ""
    assert asked.ask(105.0, known, ChangeRequested(Ask.DRAIN, "c"), peers) == ""


def test_a_node_that_runs_is_not_forgotten() -> None:
    """(2)"""
    asked, peers, known = AskedChange(TIMERS), Peers(100.0, TIMERS), record(A, B, C)
    forget = ChangeRequested(Ask.FORGET, "c")
    assert "stop it for good" in asked.ask(100.9, known, forget, peers)
    assert "stop it for good" in asked.ask(101.0, known, dataclasses.replace(forget, is_there=True), peers)
    assert asked.ask(101.0, known, forget, peers) == ""


# --- giving way ---


def waits(
    watch: DiskWatch, peers: Peers, known: Record, *, from_s: float, seconds: float
) -> list[tuple[float, Replica]]:
    """Make the log grow; B and C sync it, and A's own disk does not."""
    given = []
    for step in range(int(seconds * 10)):
        now_s = from_s + step / 10
        peers.appended(1000 + step, now_s)
        for other in (B, C):
            peers.answered(other, 0, now_s)
            peers.synced(other, 1000 + step, now_s)
        target = watch.maybe_next(now_s, known, peers)
        if target is not None:
            given.append((now_s, target))
    return given


@pytest.mark.parametrize(("by", "tenure_s"), [(LeaderBy.TAKE_OVER, 10.0), (LeaderBy.TRANSFER, 30.0)])
def test_a_leader_gives_way_after_its_tenure_and_now_and_then(by: LeaderBy, tenure_s: float) -> None:
    """(4)"""
    watch, peers, known = DiskWatch(A, 100.0, TIMERS), Peers(100.0, TIMERS), record(A, B, C)
    peers.synced(A, 5, 100.0)
    assert waits(watch, peers, known, from_s=100.0, seconds=20.0) == [], "it does not lead yet"
    watch.begin(120.0, by)
    given = waits(watch, peers, known, from_s=120.0, seconds=tenure_s + 7.0)
    assert [at_s for at_s, _ in given] == pytest.approx([120.0 + tenure_s, 125.0 + tenure_s])
    assert "slower" in watch.trouble()
    watch.short = frozenset({"a", "b"})
    assert "full" in watch.trouble()
    drained = dataclasses.replace(known, drained=frozenset("c"))
    assert waits(watch, peers, drained, from_s=127.0 + tenure_s, seconds=10.0) == [], "B has no space, C is drained"


def test_refusals_of_a_recovery_name_what_is_to_be_done() -> None:
    place = Candidate(record(A, C))
    place.candidacy.recover(100.0, RecoveryRequested(True, 1000))
    (refusal,) = place.actions.take()
    assert isinstance(refusal, RefuseCommand) and "no messages" in refusal.reason


def test_a_recovery_is_refused_while_etcd_has_an_older_record() -> None:
    """(5): it would wait for a later one, and take the lead from the leader that has made that."""
    place = Candidate(record(A, B), recovery=Founding("s", 1))
    place.view.refused(place.view.propose(record(B, epoch=6)).number)
    place.view.read(Versioned(6, record(A, B)), 100.0)
    place.candidacy.recover(100.0, RecoveryRequested(True, 1000))
    (refusal,) = place.actions.take()
    assert isinstance(refusal, RefuseCommand) and "an older one: restart the node" in refusal.reason
    place.view.learn(Versioned(9, record(A, C, epoch=7)))
    assert place.candidacy.wanted(101.0) is None


def test_a_recovery_that_waits_for_etcd_is_over_when_a_leader_answers() -> None:
    """(5)"""
    place = Candidate(record(A, C), recovery=Founding("s", 1))
    place.candidacy.recover(100.0, RecoveryRequested(True, 1000))
    place.candidacy.hears()
    assert place.actions.take() == [Report("nothing is recovered: a leader answers")]
    assert place.candidacy.wanted(100.0) is None
    place.candidacy.recover(100.0, RecoveryRequested(True, 1000))
    change = place.candidacy.wanted(100.0)
    assert change is not None and (change.leader, change.by) == (B, LeaderBy.RECOVERY)


def test_an_operator_is_told_once_that_etcd_has_an_older_record() -> None:
    """Nothing can be proposed, and the record is read again and again."""
    member = Member(B, 100.0, position=Position(5, 10), timers=TIMERS)
    member.handle(100.0, RecordRead(Versioned(7, record(B, leader=B))))
    (swap,) = [action for action in member.handle(101.0, Tick()) if isinstance(action, Swap)]
    member.handle(101.0, SwapRefused(swap.number))
    told = member.handle(101.0, RecordRead(Versioned(6, record(B, leader=B))))
    assert told == [Report("etcd has an older record than this node knows: nothing in the cluster can change")]
    assert member.handle(101.0 + RETRY_S, Tick()) == [Read()]
    assert member.handle(102.0, RecordRead(Versioned(6, record(B, leader=B)))) == []
