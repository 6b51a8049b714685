"""A broker that is part of a cluster: a follower until it is promoted, and a leader from then on.

1. The data directory is locked from the beginning to the end, whatever this process is at the moment.
2. A process is a follower first, if it is told to follow, and a leader afterwards; never the other way round. A leader
   that was replaced is started again with `follow`.
3. Where nodes elect their leader (``elected_node.py``) a process follows first in any case, and leads when it was
   elected. Its cluster port is bound from the beginning: a process without its port ends before it can be elected.
4. A leader begins with the set that its directory has recorded; a promoted one is the only member of its set.
   It does not use `load_definitions`: it has the definitions of its leader.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from warren import __version__
from warren.msgstore.files.file_system import OsFileSystem
from warren.msgstore.files.store_errors import StoreError
from warren.replication import cluster_port, cluster_state, members
from warren.replication.advertised import readable_at
from warren.replication.cluster_state import ClusterState
from warren.replication.elected_node import by_etcd, restart_or_exit
from warren.replication.follower import Follower
from warren.replication.identity import Identity, identity
from warren.replication.leader import Leader
from warren.replication.metadata_copy import MetadataCopy
from warren.replication.pre_vote import PositionPort
from warren.replication.replica_store import NO_STORE, ReplicaStore
from warren.server import store_versions
from warren.server.catalogue.catalogue import Catalogue
from warren.server.clock import SteadyClock
from warren.server.data_dir import MESSAGES, DataDir
from warren.server.engine import NODE
from warren.server.following import FollowerPlugin, Following
from warren.server.logs import get_logger
from warren.server.management import Listening, Plugin
from warren.server.message_store import EXIT_CODE
from warren.server.network.tls import maybe_server_tls
from warren.server.process import STRAY_SIGNALS, SWITCH_INTERVAL_S, serve_locked
from warren.server.recovered_messages import messages_directory
from warren.server.reloading import reloaded
from warren.server.service_manager import ServiceManager
from warren.server.setting_kinds import Endpoint
from warren.server.settings import Settings
from warren.server.standard_streams import OUTPUT
from warren.server.start_errors import StartError
from warren.server.supervision import ESSENTIAL, Supervision

ANSWER_S: Final = 0.1  # for the answer to a promotion by HTTP, before its port is opened again

log = get_logger("replication")


@dataclass(frozen=True, slots=True)
class Promoted:
    """A follower has ended to be a leader, of that epoch, with the settings that are in force and its leader's time."""

    epoch: int
    settings: Settings
    clock: SteadyClock


class _InForce:
    """The settings of a follower, with those that SIGHUP has changed (`server.reloading`)."""

    def __init__(self, settings: Settings, read_again: Callable[[], Settings] | None) -> None:
        self.settings = settings
        self.tls = maybe_server_tls(settings)
        self._read_again = read_again

    def reload(self) -> None:
        settings = self.settings
        self.settings = reloaded(settings, self._read_again or (lambda: settings), self.tls)


async def serve(
    settings: Settings, plugins: Sequence[Plugin] = (), read_again: Callable[[], Settings] | None = None
) -> int:
    """Run this node until it is told to stop; return the exit code.

    Raises:
        StartError: something outside the program stands in the way; the text is one line.
    """
    for number in STRAY_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    own = identity(settings)
    epoch: int | None = None
    clock: SteadyClock | None = None
    with DataDir.open(settings.data_dir):
        if settings.etcd:
            return await _take_part(settings, own, plugins, read_again)
        if settings.follow is not None:
            ended = await _follow(settings, settings.follow, own, plugins, read_again)
            if not isinstance(ended, Promoted):
                return ended
            epoch, clock = ended.epoch, ended.clock
            settings = _of_leader(ended.settings)
            read = read_again
            if read is not None:
                read_again = lambda: _of_leader(read())  # noqa: E731
        leader = _leader(settings, settings.cluster_listen, own) if settings.cluster_listen is not None else None
        if leader is not None and clock is not None:
            leader.clock = clock
        return await serve_locked(settings, plugins, read_again, leader, epoch)


async def _take_part(
    settings: Settings, own: Identity, plugins: Sequence[Plugin], read_again: Callable[[], Settings] | None
) -> int:
    """Follow the node that the nodes elect, and lead when it is this one; return the exit code."""
    name = _name(settings)
    state = cluster_state.read(settings.data_dir).with_new_life()
    _write(settings.data_dir, state)
    endpoint = settings.cluster_listen
    assert endpoint is not None
    port = await cluster_port.bound(endpoint)
    replica, metadata = _opened(settings)
    tasks = Supervision()
    try:
        follower = Follower(None, own, name, settings.data_dir, state, replica, metadata)
        follower.urls = readable_at(settings, socket.getfqdn())
        follower.space.min_bytes = settings.store.disk_free_min_bytes
        election = by_etcd(settings, name, state, follower.own_position(), replica.store_id)
        follower.obey(election.node)
        election.node.follower = follower
        cluster_port.listen(endpoint, port)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tasks.once, "election", election.drive)
            nursery.start_soon(tasks.keep, "registration", election.announce)
            nursery.start_soon(tasks.keep, "members", election.look)
            nursery.start_soon(tasks.keep, "election counts", election.count)
            async with trio.open_nursery() as asked:
                positions = PositionPort(own, follower.me, election.node.standing)
                asked.start_soon(tasks.keep, "position port", partial(positions.run, port), ESSENTIAL)
                ended = await _run(settings, "whom the nodes elect", follower, plugins, election.describe, read_again)
                asked.cancel_scope.cancel()
            if isinstance(ended, Promoted):
                settings = ended.settings
                replica.promote(force=True)  # it is recorded as in sync: it has everything that was confirmed
                replica.close()
                metadata.close()
                read = read_again
                if not election.is_first():
                    settings = _of_leader(settings)
                    if read is not None:
                        read_again = lambda: _of_leader(read())  # noqa: E731
                fs = OsFileSystem(str(messages_directory(settings.data_dir)))
                leader = election.leader(partial(Leader, endpoint, own, name, settings.data_dir, state, fs))
                leader.urls = follower.urls
                leader.reception.bound = port
                await nursery.start(tasks.begin, "cluster port", leader.listen, tasks, election.store_id(), ended.epoch)
                ended = await serve_locked(settings, plugins, read_again, leader, ended.epoch, election.store_id())
                if election.begins_anew():
                    restart_or_exit(True)  # it could not hand over in time
            nursery.cancel_scope.cancel()
        return ended
    finally:
        cluster_port.close(port)
        replica.close()
        metadata.close()


def _of_leader(settings: Settings) -> Settings:
    return replace(settings, follow=None, load_definitions=None)


def _name(settings: Settings) -> str:
    return settings.node_name or f"{NODE}@{socket.gethostname().partition('.')[0]}"


def _leader(settings: Settings, endpoint: Endpoint, own: Identity) -> Leader:
    name = _name(settings)
    state = cluster_state.read(settings.data_dir)
    me = state.me(name)
    was_leader = state.leader is not None and state.leader.incarnation == me.incarnation
    members = state.in_sync if was_leader else frozenset({me})
    state = replace(state, leader=me, in_sync=members, min_in_sync=settings.min_in_sync)
    _write(settings.data_dir, state)
    fs = OsFileSystem(str(messages_directory(settings.data_dir)))
    leader = Leader(endpoint, own, name, settings.data_dir, state, fs)
    leader.urls = readable_at(settings, socket.getfqdn())
    return leader


def _write(directory: Path, state: ClusterState) -> None:
    try:
        cluster_state.write(directory, state)
    except OSError as error:
        raise StartError(f"{directory / cluster_state.NAME}: {error.strerror or error}") from None


# --- as a follower ----------------------------------------------------------------------------------------------------


async def _follow(
    settings: Settings,
    endpoint: Endpoint,
    own: Identity,
    plugins: Sequence[Plugin],
    read_again: Callable[[], Settings] | None,
) -> int | Promoted:
    """Follow until told to stop, or promoted; return the exit code, or that."""
    state = cluster_state.read(settings.data_dir)
    _write(settings.data_dir, state)
    replica, metadata = _opened(settings)
    follower = Follower(endpoint, own, _name(settings), settings.data_dir, state, replica, metadata)
    try:
        follower.urls = readable_at(settings, socket.getfqdn())
        ended = await _run(settings, str(endpoint), follower, plugins, _with_members, read_again)
        if isinstance(ended, Promoted):
            # The caller has been told what this may lack.
            replica.promote(force=True)
        return ended
    finally:
        try:
            follower.write_contact()
        except OSError as error:
            log.warning("the time of being in sync cannot be written", reason=error.strerror or str(error))
        replica.close()
        metadata.close()


def _with_members(status: dict[str, Any]) -> dict[str, Any]:
    """Add a row for this node, and one for its leader."""
    assigned = [status["leader"]] if status["leader"] else []
    in_sync = [status["node"]] if status["in_sync"] else []
    return status | {"members": members.of_follower(status, [*assigned, *in_sync], assigned, {}, time.time())}


def _opened(settings: Settings) -> tuple[ReplicaStore, MetadataCopy]:
    """Open a data directory as that of a follower.

    Raises:
        StartError: it cannot be used.
    """
    directory = messages_directory(settings.data_dir)
    with store_versions.told(directory):
        metadata = MetadataCopy(Catalogue.open(settings.catalogue_url(), first_contents=False))
    replica = ReplicaStore(OsFileSystem(str(directory)), on_catalogue=metadata.apply)
    try:
        replica.open()
        store_versions.note(directory, is_new=replica.store_id == NO_STORE)
    except StoreError as error:
        replica.close()
        metadata.close()
        reason = store_versions.explained(str(error), directory)
        raise StartError(f"message store {settings.data_dir / MESSAGES}: {reason}") from None
    return replica, metadata


async def _run(
    settings: Settings,
    leader: str,
    follower: Follower,
    plugins: Sequence[Plugin],
    describe: Callable[[dict[str, Any]], dict[str, Any]],
    read_again: Callable[[], Settings] | None,
) -> int | Promoted:
    """Follow until told to stop, or promoted. `describe` adds the state of the cluster to the status."""
    tasks = Supervision()
    manager = ServiceManager.from_environment(os.environ)
    in_force = _InForce(settings, read_again)
    following = Following(
        settings,
        tasks,
        lambda: follower.metadata.users,
        follower.health,
        lambda: describe(follower.status()),
        follower.promote,
        follower.current_leader,
        follower.to_leader,
        recover=follower.recover,
        readable=follower.readable,
        silent_s=follower.leader_silent_s,
        tls=in_force.tls,
    )
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async with trio.open_nursery() as nursery:
            obey = partial(_obey, signals, follower.life.over, manager, in_force.reload)
            nursery.start_soon(tasks.keep, "signals", obey, ESSENTIAL)
            nursery.start_soon(tasks.keep, "watchdog", manager.keep_alive)
            places: list[Listening] = []
            for plugin in plugins:
                if isinstance(plugin, FollowerPlugin):
                    name = type(plugin).__name__
                    places += await nursery.start(tasks.begin, name, plugin.follow, following)
            _announce(settings, leader, places, manager)
            nursery.start_soon(tasks.keep, "following", follower.run, ESSENTIAL)
            if not settings.etcd:
                nursery.start_soon(tasks.keep, "last contact", follower.keep_contact)
            if settings.store.scrub_bytes_per_s:
                scrub = partial(follower.scrub.run, settings.store.scrub_bytes_per_s)
                nursery.start_soon(tasks.keep, "scrubbing", scrub)
            await follower.life.over.wait()
            if follower.promotion.is_done and not settings.etcd:
                await trio.sleep(ANSWER_S)
            nursery.cancel_scope.cancel()
    if follower.failure:
        log.error("the message store has failed; the broker stops", reason=follower.failure)
        return EXIT_CODE
    if not follower.promotion.is_done:
        return 0
    return Promoted(follower.next_epoch(), in_force.settings, follower.leader_clock.continued())


async def _obey(
    signals: AsyncIterator[int], over: trio.Event, manager: ServiceManager, reload: Callable[[], None]
) -> None:
    async for number in signals:
        if number == signal.SIGHUP:
            with manager.reloading():
                reload()
        elif over.is_set():
            os._exit(1)  # asked once more: whatever hangs
        else:
            manager.stopping()
            over.set()


def _announce(settings: Settings, leader: str, opened: Sequence[Listening], manager: ServiceManager) -> None:
    places = ", ".join(sorted(f"{each.protocol}://{Endpoint(each.host, each.port)}" for each in opened)) or "nowhere"
    manager.ready(f"following {leader}, listening on {places}")
    lines = [
        f"Warren {__version__}, a follower of {leader}",
        f"  listening   {places}",
        f"  data        {settings.data_dir.absolute()}",
        *([] if settings.etcd else ["  promote     warren ctl cluster promote"]),
        f"  stop        Ctrl-C, or kill -TERM {os.getpid()}",
    ]
    OUTPUT.put("\n".join(lines) + "\n")
