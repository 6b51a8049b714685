"""The guarantees of the metadata store to the engine, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, delete, table, text

from warren.server.catalogue import schema
from warren.server.catalogue.catalogue import Catalogue, CatalogueError, Position, fill
from warren.server.catalogue.schema import DEFINITIONS_HASH, SCHEMA_VERSION
from warren.server.catalogue.tables import DELETES
from warren.server.logins.passwords import PasswordHash, verify_password
from warren.vhosts.metadata import (
    BindingDelete,
    BindingPut,
    ExchangeDelete,
    ExchangePut,
    GlobalParameterDelete,
    GlobalParameterPut,
    MetadataChange,
    ParameterDelete,
    ParameterPut,
    PermissionDelete,
    PermissionPut,
    PolicyDelete,
    PolicyPut,
    QueueDelete,
    QueuePut,
    TopicPermissionDelete,
    TopicPermissionPut,
    UserDelete,
    UserLimitsDelete,
    UserLimitsPut,
    UserPut,
    VhostDelete,
    VhostLimitsDelete,
    VhostLimitsPut,
    VhostPut,
)

from .metadata_urls import FreshUrl

EMPTY = b"\x00\x00\x00\x00"
KINDS = ["vhost", "user", "permission", "topic", "exchange", "queue", "binding"]


@pytest.fixture(params=["sqlite", "postgresql"])
def fresh_url(request: pytest.FixtureRequest) -> FreshUrl:
    """Empty stores of either kind."""
    if request.param == "sqlite":
        made: FreshUrl = request.getfixturevalue("fresh_sqlite_url")
        return made
    return request.getfixturevalue("postgres").fresh_url  # type: ignore[no-any-return]


class Store:
    """An open catalogue, whose first contents are set aside, that can be closed and opened again."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.catalogue = Catalogue.open(url)
        self.first_contents = list(self.catalogue.load())

    def commit(self, *changes: MetadataChange) -> None:
        self.catalogue.commit(changes)

    def reopen(self) -> None:
        self.catalogue.close()
        self.catalogue = Catalogue.open(self.url)

    def loaded(self) -> list[MetadataChange]:
        """Return the changes since the store was made, as a new process would load them."""
        self.reopen()
        return [change for change in self.catalogue.load() if change not in self.first_contents]


@pytest.fixture
def store(fresh_url: FreshUrl) -> Iterator[Store]:
    """A new catalogue."""
    opened = Store(fresh_url())
    yield opened
    opened.catalogue.close()


def queue(name: str, vhost: str = "/", queue_id: int = 1) -> QueuePut:
    return QueuePut(vhost, name, False, EMPTY, queue_id)


def exchange(name: str, vhost: str = "/") -> ExchangePut:
    return ExchangePut(vhost, name, "topic", auto_delete=False, internal=False, arguments=EMPTY)


def binding(source: str, destination: str, kind: str = "queue", key: str = "k", vhost: str = "/") -> BindingPut:
    return BindingPut(vhost, source, destination, kind, key, EMPTY)


def test_an_empty_store_holds_the_default_vhost_and_guest_with_its_well_known_password(store: Store) -> None:
    vhost, user, permission = store.first_contents
    assert vhost == VhostPut("/", "Default virtual host")
    assert isinstance(user, UserPut)
    assert (user.name, user.tags) == ("guest", ("administrator",))
    assert verify_password(b"guest", PasswordHash(user.password_hash, user.hashing_algorithm))
    assert permission == PermissionPut("guest", "/", ".*", ".*", ".*")


def test_an_empty_store_gets_the_first_user_that_is_named_instead_of_guest(fresh_url: FreshUrl) -> None:
    url = fresh_url()
    with closing(Catalogue.open(url, first_user="admin", first_password="hunter2")) as catalogue:
        _, user, permission = catalogue.load()
    assert isinstance(user, UserPut)
    assert (user.name, user.tags) == ("admin", ("administrator",))
    assert verify_password(b"hunter2", PasswordHash(user.password_hash, user.hashing_algorithm))
    assert permission == PermissionPut("admin", "/", ".*", ".*", ".*")


def test_a_store_that_is_there_keeps_its_users_whatever_first_user_is_named(fresh_url: FreshUrl) -> None:
    url = fresh_url()
    with closing(Catalogue.open(url)) as catalogue:
        list(catalogue.load())
        assert catalogue.was_empty
    with closing(Catalogue.open(url, first_user="admin", first_password="hunter2")) as catalogue:
        assert [change.name for change in catalogue.load() if isinstance(change, UserPut)] == ["guest"]


def test_a_deleted_guest_does_not_come_back(store: Store) -> None:
    store.commit(UserDelete("guest"), VhostDelete("/"))
    store.reopen()
    assert list(store.catalogue.load()) == []


def test_a_new_store_that_is_left_to_definitions_is_filled_later_when_none_came(fresh_url: FreshUrl) -> None:
    url = fresh_url()
    for _ in range(2):
        Catalogue.open(url, first_contents=False).close()
    with closing(Catalogue.open(url)) as catalogue:
        assert [type(change) for change in catalogue.load()] == [VhostPut, UserPut, PermissionPut]


def test_a_store_that_definitions_have_filled_gets_nothing_else(fresh_url: FreshUrl) -> None:
    url = fresh_url()
    imported = GlobalParameterPut(DEFINITIONS_HASH, '"hash"')
    with closing(Catalogue.open(url, first_contents=False)) as catalogue:
        catalogue.commit([imported])
    with closing(Catalogue.open(url)) as catalogue:
        assert list(catalogue.load()) == [imported]


def test_everything_put_is_loaded_as_it_was_and_after_what_it_refers_to(store: Store) -> None:
    changes: list[MetadataChange] = [
        VhostPut("v", "a vhost", ("one", "two"), "quorum", protected_from_deletion=True),
        UserPut("u", "hash", "rabbit_password_hashing_sha256", ("monitoring", "policymaker")),
        PermissionPut("u", "v", "^a", "", ".*"),
        TopicPermissionPut("u", "v", "t", "^w", "^r"),
        VhostLimitsPut("v", '{"max-queues":5,"max-connections":-1}'),
        UserLimitsPut("u", '{"max-channels":7}'),
        PolicyPut("v", "p", "^a.*\\d", "classic_queues", 2**63 - 1, '{"dead-letter-exchange":"\u00e9"}'),
        PolicyPut("v", "p", "", "all", -(2**63), '{"expires":1}', operator=True),
        GlobalParameterPut("cluster_name", '"\u00e9"'),
        ParameterPut("v", "federation-upstream", "up", '{"uri":"amqp://"}'),
        ParameterPut("v", "shovel", "\u00e9", "[1,null]"),
        ExchangePut(
            "v", "t", "topic", auto_delete=True, internal=True, arguments=b"\x00\x00\x00\x02\x00V", declared_by="u"
        ),
        QueuePut("v", "q", True, b"\x00\x00\x00\x03\x01xV", 2**62 - 1),
        BindingPut("v", "t", "q", "queue", "a.#", b"\x00\x00\x00\x03\x01yV"),
    ]
    store.commit(*reversed(changes))
    assert store.loaded() == changes


def test_a_second_put_replaces_what_is_not_identity(store: Store) -> None:
    first: list[MetadataChange] = [
        VhostPut("v", "before", protected_from_deletion=True),
        UserPut("u", "before", "scrypt"),
        PermissionPut("u", "v", "before", "", ""),
        TopicPermissionPut("u", "v", "x", "before", ""),
        VhostLimitsPut("v", '{"max-queues":1}'),
        UserLimitsPut("u", '{"max-channels":1}'),
        PolicyPut("v", "p", "before", "all", 1, '{"expires":1}'),
        GlobalParameterPut("g", "1"),
        ParameterPut("v", "shovel", "s", "1"),
        ExchangePut("v", "x", "direct", auto_delete=False, internal=False, arguments=EMPTY),
        QueuePut("v", "q", False, EMPTY, 1),
    ]
    second: list[MetadataChange] = [
        VhostPut("v", "after", ("t",), "classic"),
        UserPut("u", "after", "rabbit_password_hashing_md5", ("t",)),
        PermissionPut("u", "v", "after", "after", "after"),
        TopicPermissionPut("u", "v", "x", "after", "after"),
        VhostLimitsPut("v", "{}"),
        UserLimitsPut("u", '{"max-connections":2}'),
        PolicyPut("v", "p", "after", "queues", -2, '{"max-length":2}'),
        GlobalParameterPut("g", "2"),
        ParameterPut("v", "shovel", "s", "2"),
        ExchangePut(
            "v", "x", "fanout", auto_delete=True, internal=True, arguments=b"\x00\x00\x00\x01", declared_by="u"
        ),
        QueuePut("v", "q", True, b"\x00\x00\x00\x01", 2),
    ]
    store.commit(*first)
    store.commit(*second)
    assert store.loaded() == second


def test_the_last_of_several_puts_in_one_batch_wins(store: Store) -> None:
    store.commit(*(VhostPut("v", str(n)) for n in range(10)))
    assert store.loaded() == [VhostPut("v", "9")]


def test_bindings_come_back_in_the_order_in_which_they_were_made(store: Store) -> None:
    # The order in which hash exchanges number their destinations: another one would move every key.
    made = [BindingPut("/", "x", name, "queue", "1", EMPTY) for name in ("c", "a", "d", "b")]
    store.commit(*made[:2])
    store.commit(*made[2:])
    store.commit(made[0])
    assert [change for change in store.loaded() if isinstance(change, BindingPut)] == made


def test_bindings_that_differ_in_any_of_their_five_fields_are_different(store: Store) -> None:
    bindings = [
        BindingPut("/", "x", "q", "queue", "k", EMPTY),
        BindingPut("w", "x", "q", "queue", "k", EMPTY),
        BindingPut("/", "y", "q", "queue", "k", EMPTY),
        BindingPut("/", "x", "p", "queue", "k", EMPTY),
        BindingPut("/", "x", "q", "exchange", "k", EMPTY),
        BindingPut("/", "x", "q", "queue", "K", EMPTY),
        BindingPut("/", "x", "q", "queue", "k", b"\x00\x00\x00\x03\x01aV"),
    ]
    store.commit(*bindings, *bindings)
    assert set(store.loaded()) == set(bindings)
    assert len(store.loaded()) == len(bindings)
    gone = bindings.pop(3)
    store.commit(BindingDelete("/", gone.source, gone.destination, gone.destination_type, gone.routing_key, EMPTY))
    assert set(store.loaded()) == set(bindings)


def test_arguments_of_the_size_of_a_frame_fit(store: Store) -> None:
    arguments = random.Random(1).randbytes(128 << 10)
    big: list[MetadataChange] = [
        ExchangePut("/", "x", "headers", auto_delete=False, internal=False, arguments=arguments),
        QueuePut("/", "q", False, arguments, 1),
        BindingPut("/", "x", "q", "queue", "k" * 255, arguments),
    ]
    store.commit(*big)
    assert store.loaded() == big


@pytest.mark.parametrize(
    "names",
    [
        ("queue", "Queue", "QUEUE"),
        ("a", "a ", " a", "a  "),
        ("\u00e9", "e\u0301"),
        ("stra\u00dfe", "strasse"),
        ("\u0130", "i", "I", "\u0131"),
        ("%", "_", "'", '"', "\\", "\\'", "--", ":name", "%(name)s", "%s", "?"),
        ("", "\U0001f407", "\ufeff", "\u202e"),
    ],
)
def test_names_are_equal_only_byte_for_byte(store: Store, names: tuple[str, ...]) -> None:
    puts = [queue(name) for name in names] + [exchange(name) for name in names]
    store.commit(*puts)
    assert set(store.loaded()) == set(puts)
    store.commit(QueueDelete("/", names[0]))
    assert set(store.loaded()) == set(puts) - {queue(names[0])}


def test_names_of_255_bytes_fit_everywhere(store: Store) -> None:
    long = "\u20ac" * 85
    changes: list[MetadataChange] = [
        VhostPut(long),
        UserPut(long, "h", "scrypt"),
        PermissionPut(long, long, "", "", ""),
        TopicPermissionPut(long, long, long, "", ""),
        VhostLimitsPut(long, "{}"),
        UserLimitsPut(long, "{}"),
        PolicyPut(long, long, "", "all", 0, "{}"),
        GlobalParameterPut(long, "{}"),
        ParameterPut(long, long, long, "{}"),
        exchange(long, long),
        queue(long, long),
        BindingPut(long, long, long, "queue", long, EMPTY),
    ]
    store.commit(*changes)
    assert store.loaded() == changes


def test_a_binding_key_may_hold_any_character(store: Store) -> None:
    keys = [binding("x", "q", key=key) for key in ("\x00", "a\x00b", "\r\n", "\x7f", "\u2028")]
    store.commit(*keys)
    assert set(store.loaded()) == set(keys)


@pytest.mark.parametrize("name", ["a\x00b", "\x00", "\ud800"])
def test_a_name_that_text_columns_cannot_hold_is_refused_before_anything_is_written(store: Store, name: str) -> None:
    policy = PolicyPut("v", "p", name, "all", 0, "{}")
    for bad in (queue(name), VhostPut("v", name), UserPut("u", name, "scrypt"), policy, UserLimitsPut("u", name)):
        with pytest.raises(ValueError, match="no database stores"):
            store.commit(queue("good"), bad)
    assert store.loaded() == []


def test_deleting_a_vhost_deletes_everything_in_it_and_nothing_else(store: Store) -> None:
    def contents(vhost: str) -> list[MetadataChange]:
        return [
            VhostPut(vhost),
            PermissionPut("guest", vhost, "", "", ""),
            TopicPermissionPut("guest", vhost, "x", "", ""),
            VhostLimitsPut(vhost, "{}"),
            PolicyPut(vhost, "p", "", "all", 0, "{}"),
            PolicyPut(vhost, "p", "", "all", 0, "{}", operator=True),
            ParameterPut(vhost, "shovel", "s", "1"),
            exchange("x", vhost),
            queue("q", vhost),
            binding("x", "q", vhost=vhost),
        ]

    store.commit(*contents("a"), *contents("b"))
    store.commit(GlobalParameterPut("a", "1"), VhostDelete("a"))
    loaded = store.loaded()
    assert [change for change in loaded if not isinstance(change, GlobalParameterPut)] == contents("b")
    assert len(loaded) == len(contents("b")) + 1


def test_deleting_a_user_deletes_its_permissions_and_limits_and_nobody_elses(store: Store) -> None:
    def contents(user: str) -> list[MetadataChange]:
        return [
            UserPut(user, "h", "scrypt"),
            PermissionPut(user, "/", "", "", ""),
            TopicPermissionPut(user, "/", "x", "", ""),
            UserLimitsPut(user, "{}"),
        ]

    store.commit(*contents("a"), *contents("b"))
    store.commit(UserDelete("a"))
    assert store.loaded() == contents("b")


def test_deleting_an_exchange_deletes_bindings_from_it_and_to_it_but_not_those_of_a_queue_of_its_name(
    store: Store,
) -> None:
    kept: list[MetadataChange] = [
        exchange("other"),
        exchange("same", "v"),
        queue("same"),
        binding("other", "same"),
        binding("other", "same", "exchange", vhost="v"),
        binding("same", "same", vhost="v"),
    ]
    store.commit(*kept, exchange("same"), binding("same", "same"), binding("other", "same", "exchange"))
    store.commit(ExchangeDelete("/", "same"))
    assert store.loaded() == kept


def test_deleting_a_queue_deletes_bindings_to_it_but_not_those_of_an_exchange_of_its_name(
    store: Store,
) -> None:
    kept: list[MetadataChange] = [
        exchange("other"),
        exchange("same"),
        queue("same", "v"),
        binding("other", "same", "exchange"),
        binding("other", "same", vhost="v"),
    ]
    store.commit(*kept, queue("same"), binding("other", "same"), binding("same", "same"))
    store.commit(QueueDelete("/", "same"))
    assert store.loaded() == kept


def test_permissions_are_deleted_one_by_one_and_topic_permissions_also_all_at_once(store: Store) -> None:
    topics = [TopicPermissionPut("u", "/", name, "", "") for name in ("x", "y", "z")]
    other = TopicPermissionPut("w", "/", "x", "", "")
    store.commit(PermissionPut("u", "/", "", "", ""), *topics, other)
    store.commit(PermissionDelete("u", "/"), TopicPermissionDelete("u", "/", "y"))
    assert store.loaded() == [topics[0], topics[2], other]
    store.commit(TopicPermissionDelete("u", "/", ""))
    assert store.loaded() == [other]


def test_limits_are_deleted_each_for_itself(store: Store) -> None:
    kept: list[MetadataChange] = [VhostLimitsPut("b", "{}"), UserLimitsPut("b", "{}")]
    store.commit(*kept, VhostLimitsPut("a", "{}"), UserLimitsPut("a", "{}"))
    store.commit(VhostLimitsDelete("a"), UserLimitsDelete("a"))
    assert store.loaded() == kept


def test_a_policy_and_an_operator_policy_of_one_name_are_two(store: Store) -> None:
    policies = [PolicyPut("/", name, "", "all", 0, "{}", operator) for operator in (False, True) for name in "pq"]
    store.commit(*policies, PolicyPut("v", "p", "", "all", 0, "{}"))
    store.commit(PolicyDelete("/", "p", operator=True), PolicyDelete("v", "p"))
    assert store.loaded() == [policies[0], policies[1], policies[3]]
    store.commit(PolicyDelete("/", "p"))
    assert store.loaded() == [policies[1], policies[3]]


def test_parameters_differ_by_vhost_component_and_name_and_are_deleted_one_by_one(store: Store) -> None:
    parameters = [ParameterPut(v, c, n, "1") for v in ("v", "w") for c in ("shovel", "Shovel") for n in ("s", "S")]
    store.commit(*parameters, GlobalParameterPut("s", "1"), GlobalParameterPut("S", "1"))
    gone = parameters.pop(3)
    store.commit(ParameterDelete(gone.vhost, gone.component, gone.name), GlobalParameterDelete("s"))
    assert set(store.loaded()) == {*parameters, GlobalParameterPut("S", "1")}


def test_deleting_what_is_not_there_does_nothing(store: Store) -> None:
    store.commit(
        VhostDelete("v"),
        UserDelete("u"),
        PermissionDelete("u", "v"),
        TopicPermissionDelete("u", "v", ""),
        VhostLimitsDelete("v"),
        UserLimitsDelete("u"),
        PolicyDelete("v", "p"),
        PolicyDelete("v", "p", operator=True),
        ParameterDelete("v", "shovel", "s"),
        GlobalParameterDelete("g"),
        ExchangeDelete("v", "x"),
        QueueDelete("v", "q"),
        BindingDelete("v", "x", "q", "queue", "k", EMPTY),
    )
    assert store.loaded() == []


def test_changes_take_effect_in_their_order(store: Store) -> None:
    store.commit(queue("q"), QueueDelete("/", "q"), queue("q"), binding("x", "q"))
    assert store.loaded() == [queue("q"), binding("x", "q")]
    store.commit(QueueDelete("/", "q"), queue("q"), ExchangeDelete("/", "x"), QueueDelete("/", "q"))
    assert store.loaded() == []


class Model:
    """The store as an obviously right dictionary."""

    def __init__(self) -> None:
        self.rows: dict[tuple[object, ...], MetadataChange] = {}

    def apply(self, change: MetadataChange) -> None:
        match change:
            case BindingPut():
                self.rows[self._binding(change)] = change
            case QueuePut() | ExchangePut():
                self.rows[type(change), change.vhost, change.name] = change
            case BindingDelete():
                self.rows.pop(self._binding(change), None)
            case QueueDelete(vhost, name):
                self.rows.pop((QueuePut, vhost, name), None)
                self._unbind(lambda b: (b.vhost, b.destination_type, b.destination) == (vhost, "queue", name))
            case ExchangeDelete(vhost, name):
                self.rows.pop((ExchangePut, vhost, name), None)
                self._unbind(
                    lambda b: (
                        b.vhost == vhost
                        and (b.source == name or (b.destination_type, b.destination) == ("exchange", name))
                    )
                )
            case _:
                raise AssertionError(change)

    def _unbind(self, gone: Callable[[BindingPut], bool]) -> None:
        self.rows = {key: row for key, row in self.rows.items() if not (isinstance(row, BindingPut) and gone(row))}

    @staticmethod
    def _binding(b: BindingPut | BindingDelete) -> tuple[object, ...]:
        return (BindingPut, b.vhost, b.source, b.destination, b.destination_type, b.routing_key, b.arguments)


def _random_change(choose: random.Random) -> MetadataChange:
    name, source = choose.choice("abc"), choose.choice("abc")
    kind, key = choose.choice(["queue", "exchange"]), choose.choice("kl")
    arguments = choose.choice([EMPTY, b"\x00\x00\x00\x03\x01aV"])
    changes: list[MetadataChange] = [
        QueuePut("/", name, choose.random() < 0.5, arguments, choose.randrange(1, 2**62)),
        ExchangePut(
            "/", name, choose.choice(["direct", "topic"]), auto_delete=False, internal=False, arguments=arguments
        ),
        BindingPut("/", source, name, kind, key, arguments),
        BindingPut("/", source, name, kind, key, arguments),
        BindingDelete("/", source, name, kind, key, arguments),
        QueueDelete("/", name),
        ExchangeDelete("/", name),
    ]
    return choose.choice(changes)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_random_batches_leave_what_the_model_holds_even_when_each_is_committed_twice(store: Store, seed: int) -> None:
    print(f"seed {seed}")
    choose = random.Random(seed)
    model = Model()
    for _ in range(12):
        batch = [_random_change(choose) for _ in range(choose.randrange(1, 60))]
        for change in batch:
            model.apply(change)
        store.catalogue.commit(batch)
        store.catalogue.commit(batch)
        held = [c for c in store.catalogue.load() if c not in store.first_contents]
        assert set(held) == set(model.rows.values())
        assert len(held) == len(model.rows)


def test_how_far_a_log_is_applied_is_stored_with_its_changes(store: Store) -> None:
    one, other = b"1" * 16, b"2" * 16
    assert store.catalogue.applied(one) == 0
    store.catalogue.commit([queue("q")], one, 7)
    store.commit(queue("by somebody else"))
    store.reopen()
    assert store.catalogue.applied(one) == 7
    assert store.catalogue.applied(other) == 0, "a number of another log says nothing"
    store.catalogue.commit([], other, 3)
    assert (store.catalogue.applied(one), store.catalogue.applied(other)) == (0, 3)


def test_how_far_a_log_is_synced_is_stored_with_how_far_it_is_applied(store: Store) -> None:
    one, other = b"1" * 16, b"2" * 16
    assert store.catalogue.positions() == {}
    store.catalogue.commit([queue("q")], one, 7, 1 << 40)
    store.reopen()
    assert store.catalogue.positions() == {one: Position(7, 1 << 40)}
    assert (store.catalogue.applied(one), store.catalogue.queue_count()) == (7, 1)
    store.catalogue.commit([], one, 8)
    assert store.catalogue.positions() == {one: Position(8, 0)}, "who does not know says nothing"
    store.catalogue.commit([], other, 3, 9)
    assert store.catalogue.positions() == {other: Position(3, 9)}
    for life_id in (b"a" * 16, b"lifelsn" + bytes(9)):
        store.catalogue.commit([], one, 8, 9, life_id)
        assert store.catalogue.positions() == {one: Position(8, 9, life_id)}
    store.catalogue.commit([], one, 8, 10)
    assert store.catalogue.positions() == {one: Position(8, 10)}, "the life of another LSN is forgotten"


def test_a_copy_of_another_store_takes_the_place_of_everything(store: Store) -> None:
    one = b"1" * 16
    store.commit(VhostPut("v"), queue("q", "v"), exchange("e", "v"), binding("e", "q", vhost="v"))
    copied: list[MetadataChange] = [VhostPut("/"), VhostPut("w"), queue("p", "w"), UserPut("u", "hash", "scrypt", ())]
    store.catalogue.replace(copied, one, 9)
    store.reopen()
    assert sorted(map(repr, store.catalogue.load())) == sorted(map(repr, copied))
    assert store.catalogue.applied(one) == 9
    with pytest.raises(ValueError, match="no database stores"):
        store.catalogue.replace([queue("\ud800")], one, 11)
    store.reopen()
    assert len(list(store.catalogue.load())) == len(copied)
    assert store.catalogue.applied(one) == 9


def test_a_batch_that_fails_leaves_how_far_the_log_is_applied(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one = b"1" * 16
    store.catalogue.commit([queue("q")], one, 7)
    monkeypatch.setitem(DELETES, UserDelete, (delete(table("warren_no_such_table")),))
    with pytest.raises(CatalogueError):
        store.catalogue.commit([queue("p"), UserDelete("u")], one, 9)
    assert store.catalogue.applied(one) == 7
    assert store.loaded() == [queue("q")]


def test_a_batch_that_fails_in_the_middle_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DELETES, UserDelete, (delete(table("warren_no_such_table")),))
    with pytest.raises(CatalogueError):
        store.commit(queue("q"), UserDelete("u"), queue("p"))
    monkeypatch.undo()
    assert store.loaded() == []
    store.commit(queue("q"))
    assert store.loaded() == [queue("q")]


def test_a_store_written_by_a_newer_version_is_refused_in_one_clear_line_and_left_alone(store: Store) -> None:
    store.commit(queue("q"))
    _set_version(store, SCHEMA_VERSION + 1)
    store.catalogue.close()
    versions = rf"newer Warren \(schema version {SCHEMA_VERSION + 1}, this one knows {SCHEMA_VERSION}\)"
    with pytest.raises(CatalogueError, match=versions) as caught:
        Catalogue.open(store.url)
    assert "\n" not in str(caught.value)


def test_an_older_store_is_migrated_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def add_column(connection: Connection) -> None:
        runs.append(1)
        connection.execute(text("ALTER TABLE warren_queues ADD COLUMN extra INTEGER"))

    store.commit(queue("q"))
    append_migration(monkeypatch, add_column)
    store.reopen()
    store.reopen()
    assert runs == [1]
    assert store.loaded() == [queue("q")]


def test_a_migration_that_fails_changes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def drop_and_fail(connection: Connection) -> None:
        connection.execute(text("DROP TABLE warren_bindings"))
        connection.execute(text("DROP TABLE warren_no_such_table"))

    store.commit(queue("q"), binding("x", "q"))
    store.catalogue.close()
    append_migration(monkeypatch, drop_and_fail)
    with pytest.raises(CatalogueError):
        Catalogue.open(store.url)
    monkeypatch.undo()
    assert store.loaded() == [queue("q"), binding("x", "q")]


# Copies


def test_a_copy_is_a_store_of_sqlite_with_the_same_contents_in_the_same_order(store: Store, tmp_path: Path) -> None:
    store.commit(queue("q"), exchange("x"), *[binding("x", "q", key=key) for key in "cab"])
    store.catalogue.commit([queue("p", queue_id=2)], b"a store of ours..", 17)
    store.catalogue.copy_to(tmp_path / "copy.db", b"a store of ours..")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("copy")] == ["copy.db"]
    assert (tmp_path / "copy.db").stat().st_mode & 0o077 == 0
    with closing(Catalogue.open(f"sqlite:///{tmp_path / 'copy.db'}")) as copy:
        assert list(copy.load()) == list(store.catalogue.load())
        assert copy.applied(b"a store of ours..") == 17
        assert not copy.was_empty
    store.commit(queue("later"))
    assert queue("later") in store.loaded()


def test_a_copy_of_a_store_without_guest_has_none(store: Store, tmp_path: Path) -> None:
    store.commit(UserDelete("guest"), VhostDelete("/"))
    store.catalogue.copy_to(tmp_path / "copy.db", b"")
    with closing(Catalogue.open(f"sqlite:///{tmp_path / 'copy.db'}")) as copy:
        assert list(copy.load()) == []


def test_an_empty_store_is_filled_with_more_than_one_transaction_takes(fresh_url: FreshUrl) -> None:
    many: list[MetadataChange] = [VhostPut("/", ""), *[queue(str(number), queue_id=number) for number in range(2500)]]
    with closing(Catalogue.open(fresh_url(), first_contents=False)) as catalogue:
        fill(catalogue, iter(many), b"store id", 9)
        assert set(map(repr, catalogue.load())) == set(map(repr, many))
        assert catalogue.applied(b"store id") == 9


def test_what_cannot_be_copied_is_said_in_one_line(store: Store, tmp_path: Path) -> None:
    with pytest.raises(CatalogueError) as caught:
        store.catalogue.copy_to(tmp_path / "missing" / "copy.db", b"")
    assert "\n" not in str(caught.value)


def append_migration(monkeypatch: pytest.MonkeyPatch, migrate: Callable[[Connection], None]) -> None:
    """Make the program one schema version newer."""
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, migrate])
    monkeypatch.setattr(schema, "SCHEMA_VERSION", SCHEMA_VERSION + 1)


def _set_version(store: Store, version: int) -> None:
    with store.catalogue._database.transaction() as connection:
        connection.execute(text(f"UPDATE warren_schema SET version = {version}"))
