"""Who gets in, what an attacker learns, and what a login costs."""

from __future__ import annotations

import ast
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from warren.queues.metadata import UserPut
from warren.server import authenticator as authenticator_module
from warren.server import passwords
from warren.server.authenticator import CACHE_S, KDF_THREADS, Authenticator, FailureBudget
from warren.server.passwords import SCRYPT, PasswordHash, hash_password, hash_password_for_rabbitmq

LOCAL = "127.0.0.1"
REMOTE = "192.0.2.7"
SHA256 = "rabbit_password_hashing_sha256"


def user(name: str, hashed: PasswordHash) -> UserPut:
    return UserPut(name, hashed.text, hashed.algorithm, ("administrator",))


ALICE = user("alice", hash_password(b"wonderland"))
GUEST = user("guest", hash_password(b"guest"))
OLD = user("old", hash_password_for_rabbitmq(b"rabbit", SHA256))


class Fixture:
    """An authenticator over a dictionary of users, a clock that stands still, and the hashes counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.users: dict[str, UserPut] = {u.name: u for u in (ALICE, GUEST, OLD)}
        self.upgrades: list[UserPut] = []
        self.hashes = 0
        self.scrypts = 0
        self.running = 0
        self.running_max = 0
        self.now = 0.0
        self._lock = threading.Lock()
        real = authenticator_module._compare

        def counted(record: UserPut | None, password: bytes) -> tuple[bool, PasswordHash | None]:
            with self._lock:
                self.hashes += 1
                self.running += 1
                self.running_max = max(self.running, self.running_max)
            try:
                return real(record, password)
            finally:
                with self._lock:
                    self.running -= 1

        monkeypatch.setattr(authenticator_module, "_compare", counted)
        real_scrypt = passwords._scrypt

        def counted_scrypt(*arguments: Any) -> bytes:
            with self._lock:
                self.scrypts += 1
            return real_scrypt(*arguments)

        monkeypatch.setattr(passwords, "_scrypt", counted_scrypt)

    def make(self) -> Authenticator:
        return Authenticator(self.users, self.upgrade, clock=lambda: self.now)

    def upgrade(self, record: UserPut) -> None:
        self.upgrades.append(record)
        self.users[record.name] = record


@pytest.fixture
def fixture(monkeypatch: pytest.MonkeyPatch) -> Fixture:
    return Fixture(monkeypatch)


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run on a clock that jumps over every wait."""
    trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0.01))


def test_the_right_password_lets_in_and_a_wrong_one_does_not(fixture: Fixture) -> None:
    async def test() -> None:
        check = fixture.make().check
        assert await check("alice", b"wonderland", REMOTE)
        assert not await check("alice", b"Wonderland", REMOTE)
        assert not await check("alice", b"", REMOTE)
        assert not await check("bob", b"wonderland", REMOTE)

    run(test)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"])
def test_guest_may_log_in_from_this_machine(fixture: Fixture, address: str) -> None:
    async def test() -> None:
        assert await fixture.make().check("guest", b"guest", address)

    run(test)


@pytest.mark.parametrize("address", ["192.0.2.7", "::ffff:192.0.2.7", "2001:db8::1", "", "localhost", "127.0.0.1.evil"])
def test_guest_may_not_log_in_from_anywhere_else_even_when_its_password_is_remembered(
    fixture: Fixture, address: str
) -> None:
    async def test() -> None:
        check = fixture.make().check
        assert await check("guest", b"guest", LOCAL)
        assert not await check("guest", b"guest", address)

    run(test)


def test_every_refusal_costs_one_hash_and_the_same_delay(fixture: Fixture) -> None:
    fixture.users["blank"] = UserPut("blank", "", "")

    async def test() -> None:
        check = fixture.make().check
        attempts = [
            ("alice", b"wrong", LOCAL),
            ("nobody", b"wrong", LOCAL),
            ("old", b"wrong", LOCAL),
            ("blank", b"", LOCAL),
            ("blank", b"x", LOCAL),
            ("guest", b"guest", REMOTE),
        ]
        for number, (name, password, address) in enumerate(attempts, start=1):
            before = trio.current_time()
            assert not await check(name, password, address)
            assert fixture.scrypts == number
            assert trio.current_time() - before >= authenticator_module.FAILURE_DELAY_S

    run(test)


def test_a_verified_password_is_remembered_for_a_minute(fixture: Fixture) -> None:
    async def test() -> None:
        check = fixture.make().check
        assert await check("alice", b"wonderland", REMOTE)
        assert await check("alice", b"wonderland", REMOTE)
        assert fixture.hashes == 1
        fixture.now += CACHE_S
        assert await check("alice", b"wonderland", REMOTE)
        assert fixture.hashes == 2

    run(test)


def test_a_changed_password_and_a_deleted_user_count_at_once(fixture: Fixture) -> None:
    async def test() -> None:
        check = fixture.make().check
        assert await check("alice", b"wonderland", REMOTE)
        fixture.users["alice"] = user("alice", hash_password(b"looking-glass"))
        assert not await check("alice", b"wonderland", REMOTE)
        assert await check("alice", b"looking-glass", REMOTE)
        del fixture.users["alice"]
        assert not await check("alice", b"looking-glass", REMOTE)

    run(test)


def test_a_password_changed_while_its_hash_is_computed_does_not_let_in(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = authenticator_module._compare

    def change_meanwhile(record: UserPut | None, password: bytes) -> tuple[bool, PasswordHash | None]:
        answer = counted(record, password)
        fixture.users["alice"] = user("alice", hash_password(b"looking-glass"))
        return answer

    monkeypatch.setattr(authenticator_module, "_compare", change_meanwhile)

    async def test() -> None:
        assert not await fixture.make().check("alice", b"wonderland", REMOTE)

    run(test)


def test_equal_logins_at_the_same_time_share_one_hash(fixture: Fixture) -> None:
    async def test() -> None:
        check = fixture.make().check
        answers: list[bool] = []

        async def log_in() -> None:
            answers.append(await check("alice", b"wonderland", REMOTE))

        async with trio.open_nursery() as nursery:
            for _ in range(500):
                nursery.start_soon(log_in)
        assert answers == [True] * 500
        assert fixture.hashes == 1

    run(test)


def test_a_login_that_hangs_up_does_not_answer_for_those_who_wait(fixture: Fixture) -> None:
    async def test() -> None:
        authenticator = fixture.make()
        answers: list[bool] = []

        async def log_in() -> None:
            answers.append(await authenticator.check("alice", b"wonderland", REMOTE))

        async with trio.open_nursery() as nursery:
            async with authenticator._kdf_slots, trio.open_nursery() as first:
                await authenticator._kdf_slots.acquire_on_behalf_of("the other slot")
                first.start_soon(log_in)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(log_in)
                await trio.testing.wait_all_tasks_blocked()
                first.cancel_scope.cancel()
            authenticator._kdf_slots.release_on_behalf_of("the other slot")
        assert answers == [True]

    run(test)


def test_only_two_hashes_run_at_a_time(fixture: Fixture) -> None:
    async def test() -> None:
        check = fixture.make().check
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(check, "alice", b"wrong %d" % number, REMOTE)
        assert fixture.hashes == 8
        assert fixture.running_max <= KDF_THREADS

    run(test)


def test_who_guesses_is_refused_without_hashing_until_time_has_passed(fixture: Fixture) -> None:
    async def test() -> None:
        check = fixture.make().check

        async def guess(number: int) -> None:
            assert not await check(f"nobody-{number}", b"guess", REMOTE)

        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(guess, number)
        assert fixture.hashes <= authenticator_module._PEER_BURST + KDF_THREADS
        assert not await check("alice", b"wonderland", "192.0.2.7")
        assert await check("alice", b"wonderland", "192.0.2.8")
        fixture.now += 60
        assert await check("old", b"rabbit", "192.0.2.7")

    run(test)


def test_guessing_at_a_user_from_many_addresses_runs_dry_but_does_not_lock_out_who_was_there_before(
    fixture: Fixture,
) -> None:
    async def test() -> None:
        check = fixture.make().check
        assert await check("alice", b"wonderland", LOCAL)
        fixture.now += CACHE_S

        async def guess(number: int) -> None:
            assert not await check("alice", b"guess %d" % number, f"2001:db8:0:{number:x}::1")

        async with trio.open_nursery() as nursery:
            for number in range(150):
                nursery.start_soon(guess, number)
        assert fixture.hashes <= 1 + authenticator_module._USER_BURST + KDF_THREADS
        assert not await check("alice", b"wonderland", "198.51.100.1")
        assert await check("alice", b"wonderland", LOCAL)

    run(test)


def test_addresses_of_one_ipv6_network_share_their_budget(fixture: Fixture) -> None:
    async def test() -> None:
        check = fixture.make().check

        async def guess(number: int) -> None:
            assert not await check(f"nobody-{number}", b"guess", f"2001:db8::{number:x}")

        async with trio.open_nursery() as nursery:
            for number in range(1, 100):
                nursery.start_soon(guess, number)
        assert fixture.hashes < 30

    run(test)


def test_a_rabbitmq_hash_is_upgraded_at_the_first_login_and_only_then(fixture: Fixture) -> None:
    async def test() -> None:
        check = fixture.make().check
        assert not await check("old", b"wrong", REMOTE)
        assert fixture.upgrades == []
        assert await check("old", b"rabbit", REMOTE)
        (upgraded,) = fixture.upgrades
        assert (upgraded.name, upgraded.hashing_algorithm, upgraded.tags) == ("old", SCRYPT, OLD.tags)
        assert await check("old", b"rabbit", REMOTE)
        assert fixture.hashes == 2
        fixture.now += CACHE_S
        assert await check("old", b"rabbit", REMOTE)
        assert len(fixture.upgrades) == 1

    run(test)


def test_an_upgrade_that_is_not_applied_still_lets_in(fixture: Fixture) -> None:
    async def test() -> None:
        announced: list[UserPut] = []
        assert await Authenticator(fixture.users, announced.append).check("old", b"rabbit", REMOTE)
        assert len(announced) == 1

    run(test)


def test_the_remembered_passwords_and_budgets_are_bounded(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticator_module, "_CACHE_ENTRIES_MAX", 5)
    monkeypatch.setattr(authenticator_module, "_BUDGET_ENTRIES_MAX", 5)
    budget = FailureBudget(burst=2, refill_per_s=1)
    for number in range(50):
        budget.spend(str(number), 0.0)
    assert len(budget._left) == 5

    async def test() -> None:
        authenticator = fixture.make()
        for number in range(20):
            authenticator._remember(b"%d" % number)
            authenticator._note_known_peer("alice", str(number))
        assert len(authenticator._verified_until) == 5
        assert len(authenticator._known_peers) == 5

    run(test)


def test_a_failure_budget_refills_with_time_and_not_beyond_its_burst() -> None:
    budget = FailureBudget(burst=3, refill_per_s=0.5)
    for _ in range(3):
        assert not budget.is_spent("k", 0.0)
        budget.spend("k", 0.0)
    assert budget.is_spent("k", 1.0)
    assert not budget.is_spent("k", 2.0)
    assert not budget.is_spent("other", 0.0)
    budget.spend("k", 1000.0)
    budget.spend("k", 1000.0)
    assert not budget.is_spent("k", 1000.0)
    budget.spend("k", 1000.0)
    assert budget.is_spent("k", 1000.0)


def test_nothing_the_authenticator_logs_carries_a_password() -> None:
    calls = [
        node
        for node in ast.walk(ast.parse(inspect.getsource(authenticator_module)))
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("log.")
    ]
    assert calls
    assert {keyword.arg for call in calls for keyword in call.keywords} <= {"user", "was"}
