"""Which logins succeed, what an attacker learns, and what a login costs."""

from __future__ import annotations

import ast
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing
from jumping_clock import run_jumping

from warren.server.logins import authenticator as authenticator_module
from warren.server.logins import passwords
from warren.server.logins.authenticator import CACHE_S, KDF_THREADS, Authenticator, FailureBudget
from warren.server.logins.passwords import SCRYPT, PasswordHash, hash_password, hash_password_for_rabbitmq
from warren.vhosts.metadata import UserPut

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
    run_jumping(test)


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


def test_what_is_refused_without_a_password_is_told_as_late(fixture: Fixture) -> None:
    async def test() -> None:
        before = trio.current_time()
        assert not await fixture.make().refuse()
        assert trio.current_time() - before >= authenticator_module.FAILURE_DELAY_S
        assert fixture.scrypts == 0

    run(test)


def test_a_verified_password_is_remembered_for_its_time(fixture: Fixture) -> None:
    async def test() -> None:
        check = fixture.make().check
        assert await check("alice", b"wonderland", REMOTE)
        assert await check("alice", b"wonderland", REMOTE)
        assert fixture.hashes == 1
        fixture.now += CACHE_S
        assert await check("alice", b"wonderland", REMOTE)
        assert fixture.hashes == 2

    run(test)


def test_what_is_remembered_is_recalled_at_once_and_nothing_else(fixture: Fixture) -> None:
    async def test() -> None:
        authenticator = fixture.make()
        assert not authenticator.recalls("alice", b"wonderland", REMOTE)
        assert await authenticator.check("alice", b"wonderland", LOCAL)
        assert await authenticator.check("guest", b"guest", LOCAL)
        assert authenticator.recalls("alice", b"wonderland", REMOTE)
        assert authenticator.recalls("guest", b"guest", LOCAL)
        for name, password, address in (
            ("alice", b"wrong", REMOTE),
            ("alice", b"", REMOTE),
            ("nobody", b"wonderland", REMOTE),
            ("guest", b"guest", REMOTE),
        ):
            assert not authenticator.recalls(name, password, address)
        fixture.users["alice"] = user("alice", hash_password(b"other"))
        assert not authenticator.recalls("alice", b"wonderland", REMOTE)
        fixture.users["alice"] = ALICE
        fixture.now += CACHE_S
        assert not authenticator.recalls("alice", b"wonderland", REMOTE)

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
            turns = authenticator._turns
            async with turns.turn(("x", ""), "x"), turns.turn(("y", ""), "y"), trio.open_nursery() as first:
                first.start_soon(log_in)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(log_in)
                await trio.testing.wait_all_tasks_blocked()
                first.cancel_scope.cancel()
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


@pytest.fixture
def few_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make few failures enough for a suspect: each costs a hash."""
    monkeypatch.setattr(authenticator_module, "_PEER_BURST", 4.0)
    monkeypatch.setattr(authenticator_module, "_USER_BURST", 6.0)


async def guess(check: Callable[[str, bytes, str], Awaitable[bool]], user: str, password: bytes, peer: str) -> None:
    assert not await check(user, password, peer)


@pytest.mark.usefixtures("few_failures")
def test_a_right_password_is_never_refused_however_many_wrong_ones_came_before(fixture: Fixture) -> None:
    async def test() -> None:
        check = fixture.make().check
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(guess, check, f"nobody-{number}", b"guess", REMOTE)
                nursery.start_soon(guess, check, "alice", b"guess %d" % number, REMOTE)
        assert await check("alice", b"wonderland", REMOTE)
        assert await check("old", b"rabbit", REMOTE)
        assert await check("alice", b"wonderland", "198.51.100.1")

    run(test)


@pytest.mark.usefixtures("few_failures")
def test_right_passwords_do_not_wait_for_guesses_of_others_or_from_where_they_were_used_before(
    fixture: Fixture,
) -> None:
    """Of a flood from one address, and of one at this user from everywhere."""

    async def test() -> None:
        check = fixture.make().check
        assert await check("alice", b"wonderland", REMOTE)
        fixture.now += CACHE_S
        async with trio.open_nursery() as nursery:
            for number in range(8):  # until the address and the user have no failure left
                nursery.start_soon(guess, check, "alice", b"before %d" % number, f"2001:db8:0:{number:x}::1")
                nursery.start_soon(guess, check, f"nobody-{number}", b"guess", REMOTE)
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(guess, check, f"nobody-{number}", b"more", REMOTE)
                nursery.start_soon(guess, check, "alice", b"guess %d" % number, f"2001:db8:1:{number:x}::1")
            await trio.testing.wait_all_tasks_blocked()
            for user, password, peer in (
                ("alice", b"wonderland", REMOTE),
                ("old", b"rabbit", "198.51.100.1"),
            ):
                before = fixture.hashes
                assert await check(user, password, peer)
                assert fixture.hashes - before <= 2 * KDF_THREADS + 1
            nursery.cancel_scope.cancel()

    run(test)


def test_a_password_in_use_is_remembered_and_waits_for_nothing(fixture: Fixture) -> None:
    async def test() -> None:
        check = fixture.make().check
        assert await check("alice", b"wonderland", REMOTE)
        for _ in range(5):
            fixture.now += CACHE_S - 1
            assert await check("alice", b"wonderland", REMOTE)
        assert fixture.hashes == 1

    run(test)


@pytest.mark.usefixtures("few_failures")
def test_guessing_is_slow_after_some_failures_and_quick_again_later(fixture: Fixture) -> None:
    async def test() -> None:
        check = fixture.make().check

        async def seconds() -> float:
            before = trio.current_time()
            await guess(check, "nobody", b"guess", REMOTE)
            return trio.current_time() - before

        burst = int(authenticator_module._PEER_BURST)
        quick = [await seconds() for _ in range(burst)]
        slow = [await seconds() for _ in range(3)]
        delay_s = authenticator_module.FAILURE_DELAY_S
        assert max(quick) < 2 * delay_s and min(slow) >= authenticator_module.SLOW_FACTOR * delay_s
        fixture.now += 60
        assert await seconds() < 2 * delay_s

    run(test)


@pytest.mark.usefixtures("few_failures")
def test_who_hangs_up_during_its_hash_has_failed(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else guesses would cost hashes, and never make a suspect."""
    hashed = threading.Event()
    real = authenticator_module._compare

    def noted(record: UserPut | None, password: bytes) -> tuple[bool, PasswordHash | None]:
        hashed.set()
        return real(record, password)

    monkeypatch.setattr(authenticator_module, "_compare", noted)

    async def test() -> None:
        authenticator = fixture.make()
        for number in range(int(authenticator_module._PEER_BURST)):
            assert not authenticator._is_suspect((REMOTE, ""))
            hashed.clear()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(guess, authenticator.check, f"nobody-{number}", b"guess", REMOTE)
                await trio.to_thread.run_sync(hashed.wait)
                nursery.cancel_scope.cancel()
        assert authenticator._is_suspect((REMOTE, ""))

    run(test)


@pytest.mark.usefixtures("few_failures")
def test_guesses_of_suspects_are_hashed_one_at_a_time_with_pauses(fixture: Fixture) -> None:
    async def test() -> None:
        check = fixture.make().check
        async with trio.open_nursery() as nursery:
            for number in range(int(authenticator_module._PEER_BURST) + 10):
                nursery.start_soon(guess, check, f"nobody-{number}", b"guess", REMOTE)
        fixture.running_max = 0
        before_s, before = trio.current_time(), fixture.hashes
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(guess, check, f"nobody-{number}", b"more", REMOTE)
        assert fixture.running_max == 1
        pauses_s = (fixture.hashes - before) * authenticator_module.SUSPECT_PAUSE_S
        assert trio.current_time() - before_s >= pauses_s >= 1.0

    run(test)


@pytest.mark.usefixtures("few_failures")
def test_addresses_of_one_ipv6_network_share_their_budget(fixture: Fixture) -> None:
    authenticator = fixture.make()

    async def test() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(1, 8):
                nursery.start_soon(guess, authenticator.check, f"nobody-{number}", b"guess", f"2001:db8::{number:x}")

    run(test)
    assert authenticator._is_suspect(("2001:db8::/64", ""))
    assert not authenticator._is_suspect(("2001:db8:0:1::/64", ""))


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
    assert {keyword.arg for call in calls for keyword in call.keywords} <= {
        "user",
        "was",
        "reason",
    }  # of a bad hash, which holds none of it


def test_a_stored_hash_that_cannot_be_verified_refuses_its_logins_only_and_is_named(
    fixture: Fixture, caplog: pytest.LogCaptureFixture
) -> None:
    """At the cost of any other refusal."""
    fixture.users["bad"] = user("bad", PasswordHash(f"$scrypt$ln=17,r=1,p=1${'A' * 22}${'A' * 43}", SCRYPT))

    async def test() -> None:
        authenticator = fixture.make()
        before = trio.current_time()
        assert not await authenticator.check("bad", b"x", LOCAL)
        assert trio.current_time() - before == pytest.approx(authenticator_module.FAILURE_DELAY_S)
        assert fixture.scrypts == 1
        assert await authenticator.check("alice", b"wonderland", LOCAL)

    run(test)
    (line,) = [record for record in caplog.records if record.getMessage() == "nobody can log in with a password"]
    assert line.fields["user"] == "bad"  # type: ignore[attr-defined]
