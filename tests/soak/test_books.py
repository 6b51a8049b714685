"""The judge of contents by itself: it accepts what a right broker does, and names what a wrong one did."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from .books import Books, Offsets, Promise, Rule, body_of, maybe_number
from .clients import reading_arguments

PLAIN = Promise("plain", ordered=frozenset({"q"}))
SERIAL = Promise("serial", serial=frozenset({"q"}))
ONCE = Promise("once", repeated=True)
PASSING = Promise("passing", passing=True)
COPIED = Promise("copied", exact=False)
FLEETING = Promise("fleeting", durable=False)
LASTING = Promise("lasting", lasting=True)
PAIR = ("p", "q")


class Told(Books):
    """Books with short names, for one queue, ``q``."""

    def send(self, promise: Promise = PLAIN, places: tuple[str, ...] = ("q",), due_s: float = 0.0) -> int:
        return self.sent(promise, places, 5, due_s=due_s)

    def confirm(self, number: int, places: tuple[str, ...] = ("q",)) -> None:
        self.confirmed(number, places)

    def come(
        self, number: int, client: str = "c", queue: str = "q", *, again: bool = False, now_s: float = 1.0
    ) -> None:
        place = queue if queue in PAIR else "q"
        self.delivered(client, queue, place, number, body_of(number, 5), now_s, redelivered=again)

    def settle(self, number: int, client: str = "c") -> None:
        self.acked(number, "q")
        self.processed(client, self.unsettled(client))

    def take(self, number: int) -> None:
        self.come(number)
        self.settle(number)

    def rules(self) -> list[Rule]:
        return [violation.rule for violation in self.violations]


Story = Callable[[Told], None]


def delivered_and_acked(told: Told) -> None:
    for _ in range(3):
        number = told.send()
        told.confirm(number)
        told.take(number)
    told.end_period(lasting=True)


def taken_before_its_confirm_is_read(told: Told) -> None:
    number = told.send()
    told.take(number)
    told.confirm(number)
    told.end_period(lasting=True)


def given_back_and_delivered_again(told: Told) -> None:
    number = told.send()
    told.come(number)
    told.released(number, "q")
    told.come(number, again=True)
    told.settle(number)
    told.end_period(lasting=True)


def its_client_goes_and_another_gets_it(told: Told) -> None:
    number = told.send()
    told.confirm(number)
    told.come(number)
    told.gone("c")
    told.come(number, "d", again=True)
    told.settle(number, "d")
    told.end_period(lasting=True)


def an_ack_of_which_nobody_knows_comes_again(told: Told) -> None:
    number = told.send()
    told.confirm(number)
    told.come(number)
    told.acked(number, "q")
    told.gone("c")
    told.come(number, "d", again=True)
    told.settle(number, "d")
    told.end_period(lasting=True)


def an_ack_of_which_nobody_knows_is_gone(told: Told) -> None:
    number = told.send()
    told.confirm(number)
    told.come(number)
    told.acked(number, "q")
    told.gone("c")
    told.end_period(lasting=True)


def the_latest_acks_come_back_after_a_kill(told: Told) -> None:
    number = told.send()
    told.confirm(number)
    told.take(number)
    told.restarted(clean=False)
    told.come(number, "d", again=True)
    told.settle(number, "d")
    told.end_period(lasting=True)


def the_latest_acks_come_back_in_the_next_period(told: Told) -> None:
    number = told.send()
    told.confirm(number)
    told.take(number)
    told.end_period(lasting=True)
    the_rest = told.send()
    told.restarted(clean=False)
    told.come(number, "d", again=True)
    told.settle(number, "d")
    told.confirm(the_rest)
    told.take(the_rest)
    told.end_period(lasting=True)


def a_message_that_nobody_confirmed_is_gone(told: Told) -> None:
    told.send()
    told.restarted(clean=False)
    told.end_period(lasting=True)


def a_repetition_is_taken_after_a_crash_lost_it_with_its_key(told: Told) -> None:
    number = told.send(ONCE)
    told.take(number)
    told.restarted(clean=False)
    told.come(number, "d")
    told.settle(number, "d")
    told.confirm(number)
    told.end_period(lasting=True)


def a_dead_letter_that_a_kill_undid_comes_as_new_again(told: Told) -> None:
    number = told.send(PASSING)
    told.come(number, queue="dead")
    told.restarted(clean=False)
    told.come(number, "d", "dead")
    told.settle(number, "d")
    told.end_period(lasting=True)


def a_copy_after_a_restart_of_what_may_have_copies(told: Told) -> None:
    number = told.send(COPIED)
    told.confirm(number)
    told.restarted(clean=True)
    told.take(number)
    told.come(number, "d")
    told.settle(number, "d")
    told.end_period(lasting=True)


def what_is_transient_is_gone_after_a_restart(told: Told) -> None:
    told.confirm(told.send(FLEETING))
    told.restarted(clean=True)
    told.end_period(lasting=True)


def what_waits_for_long_waits_over_periods(told: Told) -> None:
    number = told.send(LASTING)
    told.confirm(number)
    told.end_period(lasting=False)
    told.restarted(clean=False)
    told.come(number, again=True)
    told.settle(number)
    told.end_period(lasting=True)


def neither_queue_has_what_was_not_confirmed(told: Told) -> None:
    told.send(places=PAIR)
    told.restarted(clean=False)
    told.end_period(lasting=True)


def one_queue_delivered_it_before_a_kill_that_lost_it_in_both(told: Told) -> None:
    number = told.send(places=PAIR)
    told.come(number)
    told.restarted(clean=False)
    told.end_period(lasting=True)


def a_delayed_message_comes_when_it_is_due(told: Told) -> None:
    number = told.send(due_s=5.0)
    told.come(number, now_s=5.0)
    told.settle(number)
    told.end_period(lasting=True)


@pytest.mark.parametrize(
    "story",
    [
        delivered_and_acked,
        taken_before_its_confirm_is_read,
        given_back_and_delivered_again,
        its_client_goes_and_another_gets_it,
        an_ack_of_which_nobody_knows_comes_again,
        an_ack_of_which_nobody_knows_is_gone,
        the_latest_acks_come_back_after_a_kill,
        the_latest_acks_come_back_in_the_next_period,
        a_message_that_nobody_confirmed_is_gone,
        a_repetition_is_taken_after_a_crash_lost_it_with_its_key,
        a_dead_letter_that_a_kill_undid_comes_as_new_again,
        a_copy_after_a_restart_of_what_may_have_copies,
        what_is_transient_is_gone_after_a_restart,
        what_waits_for_long_waits_over_periods,
        neither_queue_has_what_was_not_confirmed,
        one_queue_delivered_it_before_a_kill_that_lost_it_in_both,
        a_delayed_message_comes_when_it_is_due,
    ],
)
def test_what_a_right_broker_does_is_accepted(story: Story) -> None:
    told = Told()
    story(told)
    assert told.violations == []


def a_confirmed_message_never_comes(told: Told) -> None:
    told.confirm(told.send())
    told.end_period(lasting=True)


def a_confirmed_message_is_gone_after_a_kill(told: Told) -> None:
    told.confirm(told.send())
    told.restarted(clean=False)
    told.end_period(lasting=True)


def a_message_that_waits_for_long_is_gone_when_it_is_wanted(told: Told) -> None:
    told.confirm(told.send(LASTING))
    told.end_period(lasting=False)
    told.end_period(lasting=True)


def one_of_two_queues_lost_what_was_confirmed(told: Told) -> None:
    number = told.send(places=PAIR)
    told.confirm(number, PAIR)
    told.take(number)
    told.end_period(lasting=True)


def one_of_two_queues_has_what_was_not_confirmed(told: Told) -> None:
    number = told.send(places=PAIR)
    told.restarted(clean=False)
    told.take(number)
    told.end_period(lasting=True)


def it_comes_as_new_twice(told: Told) -> None:
    number = told.send()
    told.come(number)
    told.gone("c")
    told.come(number, "d")


def it_comes_to_two_clients_at_once(told: Told) -> None:
    number = told.send()
    told.come(number)
    told.come(number, "d", again=True)


def it_is_in_two_queues_at_once(told: Told) -> None:
    number = told.send(PASSING)
    told.come(number, queue="work")
    told.come(number, "d", "dead")


def a_repetition_is_taken(told: Told) -> None:
    number = told.send(ONCE)
    told.take(number)
    told.come(number)


def a_repetition_is_taken_though_it_was_confirmed_before_the_kill(told: Told) -> None:
    number = told.send(ONCE)
    told.confirm(number)
    told.come(number)
    told.restarted(clean=False)
    told.come(number)


def what_was_acked_comes_again(told: Told) -> None:
    number = told.send()
    told.take(number)
    told.come(number, "d", again=True)


def what_was_acked_comes_back_after_a_clean_stop(told: Told) -> None:
    number = told.send()
    told.take(number)
    told.restarted(clean=True)
    told.come(number, "d", again=True)


def what_was_acked_before_something_stored_comes_back_after_a_kill(told: Told) -> None:
    number = told.send()
    told.take(number)
    told.confirm(told.send())
    told.restarted(clean=False)
    told.come(number, "d", again=True)


def what_was_settled_in_an_earlier_period_comes_back(told: Told) -> None:
    number = told.send()
    told.take(number)
    later = told.send()
    told.confirm(later)
    told.take(later)
    told.end_period(lasting=True)
    told.come(number, "d", again=True)


def nobody_sent_it(told: Told) -> None:
    told.come(17)


def its_body_is_another(told: Told) -> None:
    number = told.send()
    told.delivered("c", "q", "q", number, body_of(number, 4), 1.0, redelivered=False)


def the_second_comes_first(told: Told) -> None:
    first, second = told.send(), told.send()
    told.come(second)
    told.come(first)


def another_consumer_gets_an_earlier_one_of_the_same_key(told: Told) -> None:
    first, second = told.send(SERIAL), told.send(SERIAL)
    told.come(second, "c")
    told.come(first, "d")


def a_delayed_message_comes_too_early(told: Told) -> None:
    told.come(told.send(due_s=5.0), now_s=2.9)


def a_drain_reads_it_twice(told: Told) -> None:
    number = told.send()
    for _ in range(2):
        told.taken("q", number, body_of(number, 5))


def a_publish_is_refused(told: Told) -> None:
    told.refused(told.send(), "nack")


def the_stream_passes_an_offset_over(told: Told) -> None:
    offsets = Offsets(told, "s")
    offsets.read_next(0, 1)
    offsets.read_next(2, 2)


def an_offset_stands_for_another_message(told: Told) -> None:
    offsets = Offsets(told, "s")
    offsets.read_next(0, 1)
    offsets.read(0, 2)


@pytest.mark.parametrize(
    ("story", "rule"),
    [
        (a_confirmed_message_never_comes, Rule.LOST),
        (a_confirmed_message_is_gone_after_a_kill, Rule.LOST),
        (a_message_that_waits_for_long_is_gone_when_it_is_wanted, Rule.LOST),
        (one_of_two_queues_lost_what_was_confirmed, Rule.LOST),
        (one_of_two_queues_has_what_was_not_confirmed, Rule.TORN),
        (it_comes_as_new_twice, Rule.DOUBLED),
        (it_comes_to_two_clients_at_once, Rule.DOUBLED),
        (it_is_in_two_queues_at_once, Rule.DOUBLED),
        (a_repetition_is_taken, Rule.RETURNED),
        (a_repetition_is_taken_though_it_was_confirmed_before_the_kill, Rule.DOUBLED),
        (what_was_acked_comes_again, Rule.RETURNED),
        (what_was_acked_comes_back_after_a_clean_stop, Rule.RETURNED),
        (what_was_acked_before_something_stored_comes_back_after_a_kill, Rule.RETURNED),
        (what_was_settled_in_an_earlier_period_comes_back, Rule.UNKNOWN),
        (nobody_sent_it, Rule.UNKNOWN),
        (its_body_is_another, Rule.ALTERED),
        (the_second_comes_first, Rule.DISORDERED),
        (another_consumer_gets_an_earlier_one_of_the_same_key, Rule.DISORDERED),
        (a_delayed_message_comes_too_early, Rule.EARLY),
        (a_drain_reads_it_twice, Rule.DOUBLED),
        (a_publish_is_refused, Rule.REFUSED),
        (the_stream_passes_an_offset_over, Rule.GAP),
        (an_offset_stands_for_another_message, Rule.CHANGED),
    ],
)
def test_what_a_wrong_broker_does_is_named(story: Story, rule: Rule) -> None:
    told = Told()
    story(told)
    assert told.rules() == [rule]


def test_the_books_forget_what_is_over() -> None:
    told = Told()
    for _ in range(5):
        for _ in range(100):
            number = told.send()
            told.confirm(number)
            told.take(number)
        told.end_period(lasting=True)
        # The last ack may come back after a kill: no confirm of something later says that it is on disk.
        assert told.size() <= 1


def test_readers_begin_where_their_kind_says_however_long_it_has_gone_on() -> None:
    told = Told()
    shared, followed = Offsets(told, "s", kept=10), Offsets(told, "t", kept=10)
    for offset in range(30):
        shared.read(offset, offset + 1)
        followed.read_next(offset, offset + 1)
    chooser = random.Random(0)
    assert reading_arguments("group", shared, chooser) == {"x-stream-offset": "first", "x-group": "soak"}
    assert reading_arguments("next", followed, chooser) == {"x-stream-offset": 30}
    starts = {reading_arguments("again", followed, chooser)["x-stream-offset"] for _ in range(500)}
    assert starts == set(range(20, 31))
    assert told.violations == []


def test_a_body_says_which_message_it_is() -> None:
    assert maybe_number(body_of(1234, 0)) == 1234
    assert maybe_number(b"something else") is None
    assert maybe_number(b"") is None
