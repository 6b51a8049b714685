"""The checker itself: it accepts every outcome that a right broker can have, and names what a wrong one broke."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from .history import History, Message, Rule
from .paper_broker import Fault, PaperBroker

SEEDS = 40

# The possible reports of a fault; the first of them must be among the reports.
REPORTED = {
    Fault.CONFIRMS_TOO_EARLY: [Rule.LOST, Rule.TORN],
    Fault.COMMITS_TOO_EARLY: [Rule.LOST, Rule.RETURNED, Rule.TORN],
    Fault.SPLITS_FAN_OUTS: [Rule.TORN],
    Fault.SPLITS_TRANSACTIONS: [Rule.TORN],
    Fault.FORGETS_ACKS: [Rule.RETURNED, Rule.TORN],
    Fault.FORGETS_DELETED_QUEUES: [Rule.RETURNED],
    Fault.FORGETS_PURGES: [Rule.RETURNED],
    Fault.KEEPS_TRANSIENT: [Rule.RETURNED],
    Fault.KEEPS_UNCOMMITTED: [Rule.PREMATURE],
    Fault.REVERSES_A_QUEUE: [Rule.DISORDERED],
    Fault.MOVES_REQUEUED_TO_THE_END: [Rule.DISORDERED],
    Fault.STORES_TWICE: [Rule.DUPLICATED],
    Fault.CHANGES_A_BYTE: [Rule.ALTERED],
    Fault.CHANGES_A_PROPERTY: [Rule.ALTERED],
    Fault.MIXES_UP_QUEUES: [Rule.INVENTED, Rule.LOST, Rule.TORN, Rule.DISORDERED, Rule.UNFLAGGED, Rule.RETURNED],
    Fault.REVIVES_WHAT_WAS_MISSING: [Rule.RETURNED, Rule.DISORDERED, Rule.TORN, Rule.UNFLAGGED, Rule.PREMATURE],
    Fault.FORGETS_DELIVERIES: [Rule.UNFLAGGED],
    Fault.FLAGS_EVERYTHING: [Rule.FLAGGED],
    Fault.REDELIVERS_UNFLAGGED: [Rule.UNFLAGGED, Rule.DISORDERED],
}


def _lived(seed: int, fault: Fault) -> History:
    """Return the history of a paper broker after four lives, or after the first that broke a rule."""
    chooser = random.Random(seed)
    broker = PaperBroker(chooser, fault)
    for _ in range(4):
        broker.work(chooser.randint(0, 60))
        broker.restart(clean=chooser.random() < 0.4)
        if broker.history.violations:
            break
    return broker.history


@pytest.mark.long
def test_every_outcome_that_a_right_broker_can_have_is_accepted() -> None:
    found = 0
    for seed in range(10 * SEEDS):
        history = _lived(seed, Fault.NONE)
        assert history.violations == [], f"seed {seed}"
        found += history.counts["found"]
    assert found > 10 * SEEDS


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.NONE])
def test_every_broken_promise_is_reported_and_as_what_it_is(fault: Fault) -> None:
    rules = set()
    for seed in range(SEEDS):
        rules |= {violation.rule for violation in _lived(seed, fault).violations}
    assert REPORTED[fault][0] in rules
    assert rules <= set(REPORTED[fault])


# --- the plainest cases, one by one --------------------------------------------------------------------------------


def _published(history: History, *queues: str) -> Message:
    return history.publish("p", "e", "k", queues, 5)


def _rules(history: History) -> list[Rule]:
    return [violation.rule for violation in history.violations]


def test_a_confirmed_message_that_is_missing_is_lost() -> None:
    history = History()
    history.confirmed(_published(history, "q"))
    history.restarted({"q": []}, clean=False)
    assert _rules(history) == [Rule.LOST]


def test_an_unconfirmed_message_may_be_missing_or_there() -> None:
    history = History()
    _published(history, "q")
    kept = _published(history, "q")
    history.restarted({"q": [kept.sighting("q")]}, clean=False)
    assert _rules(history) == []


def test_what_a_restart_showed_must_be_there_after_the_next() -> None:
    history = History()
    message = _published(history, "q")
    history.restarted({"q": [message.sighting("q")]}, clean=False)
    history.restarted({"q": []}, clean=False)
    assert _rules(history) == [Rule.LOST]


def test_a_message_nobody_sent_is_invented() -> None:
    history = History()
    stranger = _published(History(), "q")
    history.restarted({"q": [stranger.sighting("q")]}, clean=False)
    assert _rules(history) == [Rule.INVENTED]


def test_a_message_in_a_queue_it_was_not_for_is_invented() -> None:
    history = History()
    message = _published(history, "q")
    history.restarted({"other": [replace(message.sighting("q"), queue="other")]}, clean=False)
    assert _rules(history) == [Rule.INVENTED]


def test_a_body_that_was_cut_is_altered() -> None:
    history = History()
    sighting = _published(history, "q").sighting("q")
    history.restarted({"q": [replace(sighting, body=sighting.body[:-1])]}, clean=False)
    assert _rules(history) == [Rule.ALTERED]


def test_a_fan_out_of_which_one_queue_has_nothing_is_torn() -> None:
    history = History()
    message = _published(history, "q", "r")
    history.restarted({"q": [message.sighting("q")], "r": []}, clean=False)
    assert _rules(history) == [Rule.TORN]


def test_a_fan_out_of_which_one_queue_was_acked_is_not_torn() -> None:
    history = History()
    message = _published(history, "q", "r")
    place = history.delivered(message.sighting("r"), "c")
    assert place is not None
    history.acked(place)
    history.restarted({"q": [message.sighting("q")], "r": []}, clean=False)
    assert _rules(history) == []


def test_half_a_transaction_is_torn() -> None:
    history = History()
    transaction = history.begin()
    messages = [history.publish("p", "e", "k", ["q"], 5, transaction=transaction) for _ in range(2)]
    history.commit(transaction)
    history.restarted({"q": [messages[0].sighting("q")]}, clean=False)
    assert _rules(history) == [Rule.TORN]


def test_a_transaction_whose_publish_is_there_and_whose_ack_is_not_is_torn() -> None:
    history = History()
    old = _published(history, "q")
    history.confirmed(old)
    place = history.delivered(old.sighting("q"), "c")
    assert place is not None
    transaction = history.begin()
    new = history.publish("p", "e", "k", ["r"], 5, transaction=transaction)
    history.ack_in(transaction, place)
    history.commit(transaction)
    history.restarted({"q": [old.sighting("q", redelivered=True)], "r": [new.sighting("r")]}, clean=False)
    assert _rules(history) == [Rule.TORN]


def test_an_ack_whose_commit_was_answered_is_for_ever() -> None:
    history = History()
    message = _published(history, "q")
    history.confirmed(message)
    place = history.delivered(message.sighting("q"), "c")
    assert place is not None
    transaction = history.begin()
    history.ack_in(transaction, place)
    history.commit(transaction)
    history.committed(transaction)
    history.restarted({"q": [message.sighting("q", redelivered=True)]}, clean=False)
    assert Rule.RETURNED in _rules(history)


def test_an_ack_without_answer_may_come_back_but_only_flagged() -> None:
    history = History()
    messages = [_published(history, "q") for _ in range(2)]
    for message in messages:
        history.confirmed(message)
        place = history.delivered(message.sighting("q"), "c")
        assert place is not None
        history.acked(place)
    first, second = messages
    history.restarted({"q": [first.sighting("q", redelivered=True), second.sighting("q")]}, clean=False)
    assert _rules(history) == [Rule.UNFLAGGED]


def test_an_ack_that_was_processed_does_not_come_back_after_a_clean_stop() -> None:
    history = History()
    message = _published(history, "q")
    history.confirmed(message)
    place = history.delivered(message.sighting("q"), "c")
    assert place is not None
    history.acked(place)
    history.processed([place])
    history.restarted({"q": [message.sighting("q", redelivered=True)]}, clean=True)
    assert _rules(history) == [Rule.RETURNED]


def test_an_ack_that_was_processed_before_something_was_sent_that_is_stored_does_not_come_back() -> None:
    history = History()
    message = _published(history, "q")
    history.confirmed(message)
    place = history.delivered(message.sighting("q"), "c")
    assert place is not None
    history.acked(place)
    history.processed([place])
    later = _published(history, "q")
    history.confirmed(later)
    found = [message.sighting("q", redelivered=True), later.sighting("q")]
    history.restarted({"q": found}, clean=False)
    assert _rules(history) == [Rule.RETURNED]


def test_an_ack_that_was_processed_after_all_that_is_stored_may_come_back() -> None:
    history = History()
    message, later = (_published(history, "q") for _ in range(2))
    place = history.delivered(message.sighting("q"), "c")
    assert place is not None
    history.acked(place)
    history.processed([place])
    history.confirmed(later)
    found = [message.sighting("q", redelivered=True), later.sighting("q")]
    history.restarted({"q": found}, clean=False)
    assert _rules(history) == []


def test_messages_of_one_publisher_that_changed_places_are_out_of_order() -> None:
    history = History()
    first, second = (_published(history, "q") for _ in range(2))
    history.restarted({"q": [second.sighting("q"), first.sighting("q")]}, clean=False)
    assert _rules(history) == [Rule.DISORDERED]


def test_a_second_first_delivery_is_reported_while_the_broker_runs() -> None:
    history = History()
    message = _published(history, "q")
    history.delivered(message.sighting("q"), "c")
    history.delivered(message.sighting("q"), "d")
    assert _rules(history) == [Rule.UNFLAGGED]
