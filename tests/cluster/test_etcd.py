"""The client with a real etcd: members that die, hang, come back, and show old data."""

from __future__ import annotations

import shutil
import signal
import ssl
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

import pytest
import trio
from integration.certificates import Authority

from cluster.etcd_processes import EtcdCluster, EtcdProcess, ask, running_etcd, text
from warren.cluster.etcd import Etcd, EtcdError, EtcdSettings, LeaseGone, OutcomeUnknown, Refused, StaleMember
from warren.cluster.etcd_watch import Change, Watch
from warren.replication.etcd_access import etcd_settings
from warren.server.settings import Settings

TIMEOUT_S: Final = 90.0
PATIENCE_S: Final = 15.0
T = TypeVar("T")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with running_etcd(tmp_path_factory.mktemp("etcd"), members=3) as cluster:
        yield cluster


@pytest.fixture
def cluster(three: EtcdCluster) -> EtcdCluster:
    three.heal()
    return three


def run(work: Callable[[], Awaitable[T]]) -> T:
    async def bounded() -> T:
        with trio.fail_after(TIMEOUT_S):
            return await work()

    return trio.run(bounded)


def context_of(**files: Path) -> ssl.SSLContext | None:
    """Return how a node with `files` in its settings secures its connections."""
    return etcd_settings(Settings(etcd="https://etcd:2379", **files)).tls  # type: ignore[arg-type]


def client(cluster: EtcdCluster, first: EtcdProcess | None = None, *, attempt_s: float = PATIENCE_S) -> Etcd:
    """Return a client that begins with a member; a busy machine may keep etcd from answering in a second."""
    members = sorted(cluster.members, key=lambda member: member is not first)
    return Etcd(EtcdSettings([member.endpoint for member in members], attempt_s=attempt_s))


async def until_it_answers(ask_again: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await ask_again()
        except EtcdError:
            await trio.sleep(0.05)


async def count_up(etcd: Etcd, key: bytes) -> int:
    """Add one to a number, as a careful user does: after an unknown outcome it reads, and only then tries again."""
    found = await until_it_answers(lambda: etcd.get(key))
    before = 0 if found is None else int(found.value)
    revision = 0 if found is None else found.revision
    while True:
        try:
            if await etcd.swap(key, revision, b"%d" % (before + 1)) is not None:
                return before + 1
        except (EtcdError, OutcomeUnknown):
            pass
        found = await until_it_answers(lambda: etcd.get(key))
        if found is not None and int(found.value) == before + 1:
            return before + 1
        revision = 0 if found is None else found.revision


def test_keys_are_read_written_and_swapped_at_the_revision_that_was_read(cluster: EtcdCluster) -> None:
    async def work() -> None:
        etcd = client(cluster)
        assert await etcd.get(b"a/1") is None
        first = await etcd.swap(b"a/1", 0, b"one")
        assert first is not None and await etcd.swap(b"a/1", 0, b"other") is None
        second = await etcd.swap(b"a/1", first, b"\x00\xff")
        assert second is not None and second > first and await etcd.swap(b"a/1", first, b"late") is None
        found = await etcd.get(b"a/1")
        assert found is not None and (found.value, found.revision) == (b"\x00\xff", second)
        assert await etcd.put(b"a/2", b"") > second
        assert [(pair.key, pair.value) for pair in await etcd.get_all(b"a/")] == [(b"a/1", b"\x00\xff"), (b"a/2", b"")]
        assert await etcd.get_all(b"nothing") == []
        await etcd.close()

    run(work)


def test_a_lease_is_renewed_and_takes_its_keys_with_it(cluster: EtcdCluster) -> None:
    async def work() -> None:
        etcd = client(cluster)
        lease = await etcd.grant(60)
        await etcd.put(b"l/1", b"x", lease)
        assert await etcd.keep_alive(lease) == 60
        await trio.to_thread.run_sync(ask, cluster.endpoints[0], "lease/revoke", {"ID": str(lease)})
        assert await etcd.get(b"l/1") is None
        with pytest.raises(LeaseGone):
            await etcd.keep_alive(lease)
        with pytest.raises(OutcomeUnknown, match="lease not found"):
            await etcd.put(b"l/1", b"x", lease)
        await etcd.close()

    run(work)


def test_a_watch_tells_what_was_before_it_and_what_comes_and_what_goes(cluster: EtcdCluster) -> None:
    async def work() -> None:
        etcd = client(cluster)
        first = await etcd.put(b"w/1", b"one")
        await etcd.put(b"w/10", b"not this one")
        lease = await etcd.grant(60)
        second = await etcd.put(b"w/1", b"two", lease)
        watch = Watch(etcd, b"w/1", first)
        assert await told(watch, 2) == [Change(b"w/1", b"one", first), Change(b"w/1", b"two", second)]
        await trio.to_thread.run_sync(ask, cluster.endpoints[0], "lease/revoke", {"ID": str(lease)})
        (gone,) = await watch.next()
        assert gone.value is None and gone.revision > second
        await watch.close()
        await etcd.close()

    run(work)


async def told(watch: Watch, count: int) -> list[Change]:
    changes: list[Change] = []
    while len(changes) < count:
        changes += await watch.next()
    return changes


def test_what_was_compacted_before_it_was_told_is_read(cluster: EtcdCluster) -> None:
    async def work() -> None:
        etcd = client(cluster)
        first = await etcd.put(b"c/1", b"one")
        await etcd.put(b"c/1", b"two")
        last = await etcd.put(b"c/1", b"three")
        await trio.to_thread.run_sync(
            lambda: ask(cluster.endpoints[0], "kv/compaction", {"revision": str(last), "physical": True})
        )
        watch = Watch(etcd, b"c/1", first)
        assert await watch.next() == [Change(b"c/1", b"three", last)]
        later = await etcd.put(b"c/1", b"four")
        assert await watch.next() == [Change(b"c/1", b"four", later)]
        await watch.close()
        await etcd.close()

    run(work)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_reads_writes_and_watches_go_on_when_the_leader_of_etcd_dies_or_hangs(
    cluster: EtcdCluster, how: signal.Signals
) -> None:
    """It is also the member that is asked first."""
    key = f"f/{how.name}".encode()

    async def work() -> None:
        leader = cluster.leader()
        etcd = client(cluster, leader, attempt_s=1.0)
        assert await count_up(etcd, key) == 1
        watch = Watch(etcd, key, 1)
        assert [change.value for change in await watch.next()] == [b"1"]
        leader.signal(how)
        for number in range(2, 6):
            assert await count_up(etcd, key) == number
        if how is signal.SIGKILL:
            assert [change.value for change in await told(watch, 4)] == [b"2", b"3", b"4", b"5"]
        await watch.close()
        await etcd.close()
        if how is signal.SIGKILL:
            leader.kill()

    run(work)


def test_a_watch_of_a_member_that_hangs_goes_on_at_another(
    cluster: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warren.cluster.etcd_watch.IDLE_S", 0.2)

    async def work() -> None:
        other = next(member for member in cluster.members if member is not cluster.leader())
        etcd = client(cluster, other, attempt_s=1.0)
        first = await until_it_answers(lambda: put_again(etcd, b"h/1", b"one"))
        watch = Watch(etcd, b"h/1", first)
        assert [change.value for change in await watch.next()] == [b"one"]
        other.signal(signal.SIGSTOP)
        assert await count_up(etcd, b"h/2") == 1
        await until_it_answers(lambda: put_again(etcd, b"h/1", b"two"))
        assert (await watch.next())[0].value == b"two"
        await watch.close()
        await etcd.close()

    run(work)


async def put_again(etcd: Etcd, key: bytes, value: bytes) -> int:
    try:
        return await etcd.put(key, value)
    except OutcomeUnknown as unknown:
        raise EtcdError(str(unknown)) from None


def test_while_all_members_are_gone_everything_fails_and_goes_on_when_they_are_back(cluster: EtcdCluster) -> None:
    async def work() -> None:
        etcd = client(cluster)
        first = await etcd.put(b"g/1", b"one")
        watch = Watch(etcd, b"g/1", first)
        assert [change.value for change in await watch.next()] == [b"one"]
        cluster.kill_all()
        with pytest.raises(EtcdError):
            await etcd.get(b"g/1")
        with pytest.raises((EtcdError, OutcomeUnknown)):
            await etcd.swap(b"g/1", first, b"two")
        with pytest.raises(EtcdError, match="127"):  # the connection is already closed: nothing was sent
            await etcd.swap(b"g/1", first, b"two")
        cluster.start_all()
        assert (await until_it_answers(lambda: etcd.get(b"g/1"))) is not None
        second = await until_it_answers(lambda: put_again(etcd, b"g/1", b"two"))
        changes = await watch.next()
        assert changes[0].value == b"two" and changes[0].revision <= second
        await watch.close()
        await etcd.close()

    run(work)


def test_a_member_that_comes_back_with_old_data_shows_nothing_old(tmp_path: Path) -> None:
    """etcd brings it up to date, or the member ends itself; alone it does not answer."""

    async def work(cluster: EtcdCluster) -> None:
        leader = cluster.leader()
        member = next(each for each in cluster.members if each is not leader)
        etcd = client(cluster, member)
        await etcd.put(b"o/1", b"old")
        member.kill()
        shutil.copytree(member.directory, tmp_path / "old")
        cluster.start(member)
        cluster.wait_for(member)
        await put_again(etcd, b"o/1", b"new")
        member.kill()
        shutil.rmtree(member.directory)
        shutil.copytree(tmp_path / "old", member.directory)
        cluster.start(member)
        assert member.process is not None
        only = Etcd(EtcdSettings([member.endpoint]))
        while member.process.poll() is None:
            try:
                found = await only.get(b"o/1")
            except EtcdError:
                await trio.sleep(0.05)
            else:
                assert found is not None and found.value == b"new"
                break
        await only.close()
        found = await until_it_answers(lambda: etcd.get(b"o/1"))
        assert found is not None and found.value == b"new"
        await etcd.close()

    with running_etcd(tmp_path / "run", members=3) as cluster:
        run(lambda: work(cluster))


def test_an_etcd_that_was_restored_from_old_data_is_not_believed(tmp_path: Path) -> None:
    async def work() -> None:
        with running_etcd(tmp_path / "run") as restored:
            (member,) = restored.members
            etcd = client(restored)
            revision = await etcd.put(b"r/1", b"old")
            member.kill()
            shutil.copytree(member.directory, tmp_path / "old")
            restored.heal()
            for number in range(5):
                await etcd.put(b"r/1", b"%d" % number)
            member.kill()
            shutil.rmtree(member.directory)
            shutil.copytree(tmp_path / "old", member.directory)
            restored.heal()
            with pytest.raises(EtcdError, match="has old data"):
                await etcd.get(b"r/1")
            with pytest.raises(OutcomeUnknown, match="has old data"):
                await etcd.swap(b"r/1", revision, b"wrong")
            await etcd.close()

    run(work)


def test_another_cluster_at_the_same_endpoint_is_not_believed(cluster: EtcdCluster, tmp_path: Path) -> None:
    async def work() -> None:
        with running_etcd(tmp_path / "other") as other:
            etcd = Etcd(EtcdSettings([cluster.endpoints[0], other.endpoints[0]], attempt_s=PATIENCE_S))
            await etcd.put(b"x/1", b"here")
            cluster.members[0].kill()
            with pytest.raises(EtcdError, match="belongs to the cluster"):
                await etcd.get(b"x/1")
            with pytest.raises((OutcomeUnknown, EtcdError)):
                await etcd.swap(b"x/1", 0, b"there")
            await etcd.close()

    run(work)


def test_it_logs_in_and_again_when_the_token_is_of_no_use_any_more(tmp_path: Path) -> None:
    with running_etcd(tmp_path / "run") as secured:
        endpoint = secured.endpoints[0]
        ask(endpoint, "auth/user/add", {"name": "root", "password": "secret"})
        ask(endpoint, "auth/role/add", {"name": "root"})
        ask(endpoint, "auth/user/grant", {"user": "root", "role": "root"})
        ask(endpoint, "auth/enable", {})

        async def work() -> None:
            etcd = Etcd(EtcdSettings([endpoint], user="root", password="secret", attempt_s=PATIENCE_S))
            revision = await etcd.swap(b"u/1", 0, b"one")
            assert revision is not None
            secured.members[0].kill()  # etcd keeps tokens in memory
            secured.start_all()
            found = await until_it_answers(lambda: etcd.get(b"u/1"))
            assert found is not None and found.value == b"one"
            second = await etcd.swap(b"u/1", revision, b"two")
            assert second is not None
            watch = Watch(etcd, b"u/1", revision)
            assert [change.value for change in await told(watch, 2)] == [b"one", b"two"]
            await watch.close()
            await etcd.close()

        run(work)

        async def wrong() -> None:
            for settings in (
                EtcdSettings([endpoint]),
                EtcdSettings([endpoint], user="root", password="hidden"),
                EtcdSettings([endpoint], user="nobody", password="hidden"),
            ):
                etcd = Etcd(replace(settings, attempt_s=PATIENCE_S))
                with pytest.raises(Refused) as caught:
                    await etcd.get(b"u/1")
                assert "hidden" not in str(caught.value) and "hidden" not in repr(settings)
                assert ("set etcd_user" if not settings.user else "etcd_password_file is wrong") in str(caught.value)
                await etcd.close()

        run(wrong)


def test_tls_with_certificates_on_both_sides(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca", "etcd")
    server = authority.issue("/CN=etcd", "IP:127.0.0.1")
    mine = authority.issue("/CN=warren")
    options = [f"--cert-file={server.certificate}", f"--key-file={server.key}", "--client-cert-auth"]
    # etcd's gateway is a client of itself, with the server's certificate.
    options.append(f"--trusted-ca-file={authority.certificate}")
    with running_etcd(tmp_path / "run", options=options, scheme="https") as secured:
        context = context_of(etcd_ca=authority.certificate, etcd_certificate=mine.certificate, etcd_key=mine.key)
        etcd = Etcd(EtcdSettings(secured.endpoints, tls=context, attempt_s=PATIENCE_S))

        async def work() -> None:
            assert await until_it_answers(lambda: etcd.get(b"t/1")) is None
            first = await etcd.swap(b"t/1", 0, b"one")
            assert first is not None
            watch = Watch(etcd, b"t/1", first)
            assert [change.value for change in await watch.next()] == [b"one"]
            await watch.close()
            plain = [endpoint.replace("https:", "http:") for endpoint in secured.endpoints]
            elsewhere = [endpoint.replace("127.0.0.1", "localhost") for endpoint in secured.endpoints]
            trusting = context_of(etcd_ca=authority.certificate)
            for settings, words in (
                (EtcdSettings(secured.endpoints, tls=trusting), "it does not take the certificate of this node"),
                (EtcdSettings(secured.endpoints), "its certificate is not from an authority of etcd_ca"),
                (EtcdSettings(elsewhere, tls=trusting), "its certificate is for another name than this one"),
                (EtcdSettings(plain), "with TLS write https://"),
            ):
                stranger = Etcd(replace(settings, attempt_s=PATIENCE_S))
                with pytest.raises(EtcdError, match=words):
                    await stranger.get(b"t/1")
                assert words in stranger.traffic.failure
                await stranger.close()
            await etcd.close()

        run(work)


def test_a_certificate_of_etcd_that_has_expired_is_said_in_plain_words(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca", "etcd")
    server = authority.issue_expired("/CN=etcd", "IP:127.0.0.1")
    options = [f"--cert-file={server.certificate}", f"--key-file={server.key}"]
    with running_etcd(tmp_path / "run", options=options, scheme="https") as secured:
        context = context_of(etcd_ca=authority.certificate)
        etcd = Etcd(EtcdSettings(secured.endpoints, tls=context, attempt_s=PATIENCE_S))

        async def work() -> None:
            while True:
                with pytest.raises(EtcdError) as caught:
                    await etcd.get(b"t/1")
                if "Connection refused" not in str(caught.value):  # it listens by now
                    break
                await trio.sleep(0.05)
            assert "its certificate has expired" in str(caught.value)

        run(work)


def test_a_stale_member_is_an_error_of_its_own() -> None:
    assert issubclass(StaleMember, EtcdError) and not issubclass(OutcomeUnknown, EtcdError)


def test_the_ways_to_ask_are_those_of_etcd(cluster: EtcdCluster) -> None:
    """The tests themselves rely on these requests."""
    ask(cluster.endpoints[0], "kv/put", {"key": text("z"), "value": text("z")})
    assert ask(cluster.endpoints[1], "kv/range", {"key": text("z")})["kvs"][0]["value"] == text("z")
