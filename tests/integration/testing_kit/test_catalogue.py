"""The metadata store in memory keeps the contract of the one on disk."""

from __future__ import annotations

import pytest

from integration.test_catalogue_contract import (  # noqa: F401
    test_a_policy_and_an_operator_policy_of_one_name_are_two,
    test_arguments_of_the_size_of_a_frame_fit,
    test_bindings_come_back_in_the_order_in_which_they_were_made,
    test_bindings_that_differ_in_any_of_their_five_fields_are_different,
    test_changes_take_effect_in_their_order,
    test_deleting_a_queue_deletes_bindings_to_it_but_not_those_of_an_exchange_of_its_name,
    test_deleting_a_user_deletes_its_permissions_and_limits_and_nobody_elses,
    test_deleting_a_vhost_deletes_everything_in_it_and_nothing_else,
    test_deleting_an_exchange_deletes_bindings_from_it_and_to_it_but_not_those_of_a_queue_of_its_name,
    test_deleting_what_is_not_there_does_nothing,
    test_limits_are_deleted_each_for_itself,
    test_names_are_equal_only_byte_for_byte,
    test_parameters_differ_by_vhost_component_and_name_and_are_deleted_one_by_one,
    test_permissions_are_deleted_one_by_one_and_topic_permissions_also_all_at_once,
    test_random_batches_leave_what_the_model_holds_even_when_each_is_committed_twice,
    test_the_last_of_several_puts_in_one_batch_wins,
)
from warren.testing.catalogue import MemoryCatalogue
from warren.vhosts.metadata import (
    BindingPut,
    ExchangePut,
    MetadataChange,
    PermissionPut,
    PolicyPut,
    QueueDelete,
    QueuePut,
    UserPut,
    VhostPut,
)


class Store:
    """A catalogue as those tests use one; to open it again changes nothing."""

    def __init__(self) -> None:
        self.catalogue = MemoryCatalogue()
        self.first_contents: list[MetadataChange] = []

    def commit(self, *changes: MetadataChange) -> None:
        self.catalogue.commit(changes)

    def reopen(self) -> None:
        self.catalogue.close()

    def loaded(self) -> list[MetadataChange]:
        return list(self.catalogue.load())


@pytest.fixture
def store() -> Store:
    """An empty one."""
    return Store()


def test_what_was_put_is_loaded_after_what_it_refers_to_whatever_the_order_it_came_in(store: Store) -> None:
    changes: list[MetadataChange] = [
        VhostPut("v"),
        UserPut("u", "hash", "scrypt"),
        PermissionPut("u", "v", ".*", ".*", ".*"),
        PolicyPut("v", "p", ".*", "all", 0, "{}"),
        ExchangePut("v", "t", "topic", auto_delete=False, internal=False, arguments=b""),
        QueuePut("v", "q", False, b"", 1),
        BindingPut("v", "t", "q", "queue", "a.#", b""),
    ]
    store.commit(*reversed(changes))
    assert store.loaded() == changes


def test_a_second_put_of_the_same_thing_replaces_the_first(store: Store) -> None:
    store.commit(QueuePut("v", "q", False, b"", 1), QueuePut("v", "r", False, b"", 2))
    store.commit(QueueDelete("v", "r"), QueuePut("v", "q", True, b"x", 3))
    assert store.loaded() == [QueuePut("v", "q", True, b"x", 3)]
