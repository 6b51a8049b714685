"""A broker in a thread of the process that tests something else.

    Broker.start  ->  Life: a thread with a trio loop  ->  Application, as `warren serve` runs it

1. Everything of the broker happens on its loop. A call of a test is carried out there between two turns, and the caller
   waits for it: well under a millisecond, so that asyncio tests may call it on their loop. Calls that really wait for
   something say so in their docstrings, and refuse to wait on an event loop.
2. The ports are the same in all lives of a broker, and stay reserved while it is down: connecting is refused then.
3. Committed and synced messages survive `stop`, `crash` and `restart`: in `data_dir`, else in this object. A crash
   loses the rest; with a `data_dir` it loses only what was not written, as for a killed process.
4. After `close` the process has no thread, socket or open file of it.
5. A forked child has none of its sockets: connections end for their peers when they end here.
6. Signals, resource limits, the collector and standard output belong to the test runner.
7. `advance` carries out everything due in the order of its time. The consequences of one thing, such as the dead letter
   of a message that expires, are complete before time passes any further. Clients are not waited for.
8. Any thread may call anything. Calls that begin or end a life run one after the other; for other calls the broker is
   down until it serves.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self, TypeVar, Unpack
from urllib.parse import quote
from weakref import WeakSet

import trio

from warren.amqp import methods as m
from warren.amqp.declarations import ExchangeDeclaration, QueueDeclaration
from warren.amqp.field_table import Table, encode_table
from warren.channels.broker import Broker as Engine
from warren.channels.peer import Peer
from warren.server.setting_kinds import Endpoint
from warren.server.start_errors import StartError
from warren.testing.assertions import POLL_S, Assertions, AsyncAssertions, PublishedFilter
from warren.testing.disk import Disk
from warren.testing.life import JOIN_S, BrokerDown, Kept, Life
from warren.testing.messages import Properties, PublishedMessage, Wanted
from warren.testing.views import ConnectionView, QueueView

# How long clients have for close-ok when the broker stops in order.
GOODBYE_S: Final = 0.25

_Result = TypeVar("_Result")

# Log lines are for those who ask for them: pytest does; without a handler they would be on stderr.
logging.getLogger("warren").addHandler(logging.NullHandler())


class Broker(Assertions):
    """A broker on a free port of this machine; a context manager that starts and closes it.

    `users` maps names to passwords; each has all permissions in each of `vhosts`. With `data_dir` it keeps its data
    there, as `warren serve` would, else in memory. `port` 0 chooses a free one. With `management` it serves the
    management API, too, at a free port.
    """

    def __init__(
        self,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        users: Mapping[str, str] | None = None,
        vhosts: Sequence[str] = ("/",),
        host: str = "127.0.0.1",
        port: int = 0,
        management: bool = False,
    ) -> None:
        self.users = dict(users) if users is not None else {"guest": "guest"}
        self.vhosts = tuple(vhosts)
        if not self.users or not self.vhosts:
            raise ValueError("a broker needs a user and a vhost")
        self._kept = Kept(
            data_dir=None if data_dir is None else Path(data_dir),
            users=self.users,
            vhosts=self.vhosts,
            host=host,
            port=port,
            management=management,
        )
        self._kept.publishes.drop = lambda peer: self._require_life().tear_soon(peer)
        self._life: Life | None = None
        self._changes = threading.RLock()  # held by the thread that begins or ends a life
        self.host = host
        self.port = self._kept.port
        _brokers.add(self)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Broker {self.url} {'up' if self.is_up else 'down'}>"

    # --- where it is ------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The URL for the first user in the first vhost."""
        return self.url_of()

    def url_of(self, user: str | None = None, vhost: str | None = None) -> str:
        """Return the URL for `user`, by default the first, in `vhost`, by default the first."""
        name = next(iter(self.users)) if user is None else user
        password = self.users.get(name, "")
        host = f"[{self.host}]" if ":" in self.host else self.host
        path = quote(self.vhosts[0] if vhost is None else vhost, safe="")
        return f"amqp://{quote(name, safe='')}:{quote(password, safe='')}@{host}:{self.port}/{path}"

    @property
    def management_url(self) -> str:
        """The URL of the management API, without a user: those of the broker are administrators, with their passwords.

        Raises:
            RuntimeError: the broker was made without it.
        """
        port = self.management_port
        if port is None:
            raise RuntimeError("this broker has no management API: Broker(management=True) has one")
        return f"http://{Endpoint(self.host, port)}"

    @property
    def management_port(self) -> int | None:
        """The port of the management API; None without it."""
        return self._kept.management_port

    # --- life -------------------------------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        """Whether it runs."""
        life = self._life
        return life is not None and life.is_serving

    def start(self) -> Self:
        """Run; return when clients can connect.

        Raises:
            RuntimeError: it runs already, or is closed.
            StartError: the data directory cannot be used, and why.
        """
        with self._changing():
            if self._life is not None or self._kept.is_closed:
                raise RuntimeError("the broker runs already" if self._life is not None else "the broker is closed")
            life = Life(self._kept)
            self._life = life
            life.thread.start()
            life.started.wait()
            if life.error is not None:
                self._life = None
                life.thread.join()
                raise life.error
            return self

    def stop(self) -> None:
        """Stop in order: clients are told with 320, messages and metadata are kept. Waits for it."""
        with self._changing():
            life = self._require_life()
            self._say_goodbye(GOODBYE_S)
            life.call(life.application.stop)
            self._end(life)

    def crash(self) -> None:
        """Stop as a killed process does: clients are not told, unsynced data is lost. `start` starts it again."""
        with self._changing():
            life = self._require_life()
            life.call(life.crash)
            self._end(life)

    def restart(self) -> None:
        """Stop in order and start again, at the same port."""
        with self._changing():
            self.stop()
            self.start()

    def close(self) -> None:
        """End it for good, and give everything back. Connections that are open get 320."""
        with self._changing():
            life = self._life
            if life is not None and life.is_serving:
                self._say_goodbye(0)
                # A checkpoint of data in memory is useless: it will not be read again.
                life.call(life.crash if self._kept.data_dir is None else life.application.stop)
            if life is not None:
                self._end(life)
            self._kept.close()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Lock the lives of the broker, none of them half begun: a start may have been interrupted."""
        with self._changes:
            if self._life is not None:
                self._life.started.wait()
            yield

    def _say_goodbye(self, within_s: float) -> None:
        """Notify clients that the broker stops, and do not wait for those that do not answer."""
        life = self._require_life()

        def tell() -> None:
            life.management.reactor.acceptor.stop()
            self.engine.shut_down("shutdown")

        life.call(tell)
        deadline_s = time.monotonic() + within_s
        while life.call(life.management.reactor.connection_count) and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        life.call(lambda: life.tear_all(reset=False))

    def _end(self, life: Life) -> None:
        life.thread.join(JOIN_S)
        self._life = None
        if life.thread.is_alive():
            raise RuntimeError("the broker does not end")
        if life.error is not None:
            raise life.error

    def _require_life(self) -> Life:
        life = self._life
        if life is None or not life.is_serving:
            raise BrokerDown("the broker is not running")
        return life

    def reset(self) -> None:
        """Bring everything back to how it was after the start: for use between tests. Waits for its disk.

        Connections are dropped; queues, exchanges, bindings, policies, users and vhosts are those of the start.
        Published messages are forgotten, and all faults end. A broker that is down is started. If the test has moved
        the clock, the broker is restarted: time goes back between two lives only.
        """
        with self._changing():
            if not self.is_up:
                if self._life is not None:
                    self._end(self._life)
                self.start()
            life = self._require_life()
            life.call(life.reset)
            life.wait_for(life.commit)
            if self._kept.clock.is_moved:
                self.stop()
                self._kept.clock.reset()
                self.start()

    # --- time -------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The broker's time, in UTC, also while it is down."""
        return datetime.fromtimestamp(self._kept.clock.now_ms() / 1000, UTC)

    def advance(self, seconds: float) -> None:
        """Advance the clock of queues and exchanges by `seconds`: work that falls due is done.

        Expiry of messages and queues, delays, retries, visibility and consumer timeouts, deduplication and retention
        use this time. Heartbeats, and all else between the broker and its clients, do not, so that no
        connection is lost. Things happen in their order, and each with its consequences, such as a dead letter that
        expires in its turn. The reactions of clients are not waited for. While the broker is down time passes too.

        Raises:
            ValueError: `seconds` is negative.
        """
        ns = round(seconds * 1e9)
        if ns < 0:
            raise ValueError("time cannot go back; `reset` restores the time of this machine")
        if self.is_up:
            life = self._require_life()
            life.wait_for(lambda: life.advance(ns))
        else:
            self._kept.clock.advance(ns)

    @contextmanager
    def stopped_clock(self) -> Iterator[None]:
        """Stop the clock except for `advance`, so that nothing falls due because a test is slow."""
        self._kept.clock.stop()
        try:
            yield
        finally:
            self._kept.clock.resume()

    # --- what the parts need ----------------------------------------------------------------------------------------

    @property
    def stalled(self) -> set[int]:
        """The keys of the connections whose consumers get nothing; of the views."""
        return self._kept.stalled

    @property
    def engine(self) -> Engine:
        """The engine itself, for anything that is missing here; to be touched in `on_loop` only."""
        return self._require_life().management.broker

    @property
    def disk(self) -> Disk:
        """The disk of this life."""
        return self._require_life().disk

    def on_loop(self, work: Callable[[], _Result]) -> _Result:
        """Call `work` between two turns of the broker, let its engine finish the turn, and return the result.

        Raises:
            BrokerDown: it is not running.
        """
        return self._require_life().call(work)

    def tear(self, peer: Peer, *, reset: bool) -> None:
        """End the socket of `peer` at once. On the loop."""
        self._require_life().tear(peer, reset=reset)

    # --- preparing --------------------------------------------------------------------------------------------------

    def declare_queue(
        self,
        name: str,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        arguments: Table | None = None,
        vhost: str | None = None,
    ) -> QueueView:
        """Declare a queue, as a client would. Waits until it is committed; raises AmqpError as the client would get."""
        table = encode_table(arguments or {})
        declaration = QueueDeclaration(name, durable=durable, auto_delete=auto_delete, arguments=table)
        self._act(vhost, declaration)
        return self.queue(name, vhost)

    def declare_exchange(
        self,
        name: str,
        type: str = "topic",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Table | None = None,
        vhost: str | None = None,
    ) -> None:
        """Declare an exchange, likewise."""
        table = encode_table(arguments or {})
        declaration = ExchangeDeclaration(
            name, type, durable=durable, auto_delete=auto_delete, internal=internal, arguments=table
        )
        self._act(vhost, declaration)

    def bind(
        self,
        queue: str,
        exchange: str,
        binding_key: str = "",
        *,
        arguments: Table | None = None,
        vhost: str | None = None,
    ) -> None:
        """Bind a queue to an exchange, likewise."""
        self._act(
            vhost, m.QueueBind(0, queue, exchange, binding_key, no_wait=False, arguments=encode_table(arguments or {}))
        )

    def publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes | str = b"",
        *,
        properties: Properties | None = None,
        vhost: str | None = None,
    ) -> bool:
        """Publish into the engine; return whether a queue took it. Persistent unless `properties` say otherwise.

        Waits until it is stored. It is not in `published`, and no fault hits it: that is for clients.

        Raises:
            AmqpError: the broker refused it.
            RuntimeError: confirms are held back, so the result is unknown.
        """
        raw = body.encode() if isinstance(body, str) else body
        sent = (properties if properties is not None else Properties(delivery_mode=2)).encoded()
        life = self._require_life()
        if life.call(lambda: self.engine.shared.confirms.is_held):
            raise RuntimeError("the test holds confirms back, but this waits for one")

        async def publish() -> bool:
            with life.management.clients.open(self._acting_user(), vhost or self.vhosts[0]) as client:
                published = await client.publish(exchange, routing_key, sent, raw)
                return published.routed and published.accepted

        return life.wait_for(publish)

    def _act(self, vhost: str | None, method: Any) -> None:
        life = self._require_life()

        async def act() -> None:
            with life.management.clients.open(self._acting_user(), vhost or self.vhosts[0]) as client:
                await client.call(method)

        life.wait_for(act)

    def _acting_user(self) -> str:
        return next(iter(self.users))

    # --- looking ----------------------------------------------------------------------------------------------------

    @property
    def published(self) -> list[PublishedMessage]:
        """The published and accepted messages of clients, in order, since the start or `reset`; a list of your own."""
        return list(self._kept.publishes.published)

    @property
    def nacked(self) -> list[PublishedMessage]:
        """The messages that it refused because of `nack_next`."""
        return list(self._kept.publishes.nacked)

    def find_published(self, **wanted: Unpack[PublishedFilter]) -> list[PublishedMessage]:
        """Return those of `published` that fit everything given.

        ``exchange``, ``routing_key``, ``body``, ``headers``, ``vhost`` and ``queue``: see `PublishedFilter`.
        """
        meant = Wanted(**wanted)
        return [message for message in self.published if meant.fits(message)]

    @property
    def aio(self) -> AsyncAssertions:
        """The assertions and `wait_until`, to be awaited on an event loop, asyncio's or trio's."""
        return AsyncAssertions(self)

    def _broker(self) -> Broker:
        return self

    def queues(self, vhost: str | None = None) -> list[str]:
        """Return the names of the queues in `vhost`, by default the first."""
        name = self.vhosts[0] if vhost is None else vhost

        def names() -> list[str]:
            found = self.engine.vhosts.get(name)
            return [] if found is None else sorted(found.queues)

        return self.on_loop(names)

    def queue(self, name: str, vhost: str | None = None) -> QueueView:
        """Return a view of a queue, which need not exist."""
        return QueueView(self, name, self.vhosts[0] if vhost is None else vhost)

    @property
    def connections(self) -> list[ConnectionView]:
        """The connections that have been opened, oldest first."""
        return self.on_loop(
            lambda: [
                ConnectionView(self, peer)
                for peer in self.engine.connections.values()
                if peer.running and not peer.origin.is_direct
            ]
        )

    def connection(self, name: str) -> ConnectionView:
        """Return the connection that its client called `name`, or that comes from the peer `name`.

        Raises:
            LookupError: there is no such connection.
        """
        found = [each for each in self.connections if name in (each.name, each.peer)]
        if not found:
            raise LookupError(f"no connection {name!r}, only {[each.name for each in self.connections]}")
        return found[0]

    # --- faults -----------------------------------------------------------------------------------------------------

    def drop_connections(self) -> None:
        """End all connections without a word, with RST, as a network does. For one: `connection(name).drop()`."""
        life = self._require_life()
        life.call(lambda: life.tear_all(reset=True))

    def drop_next_publisher(self, count: int = 1) -> None:
        """End the next `count` connections that publish, at their publish: it is lost, and never confirmed."""
        self.on_loop(lambda: self._kept.publishes.drop_next(count))

    @contextmanager
    def refusing_connections(self) -> Iterator[None]:
        """Refuse new connections, like a host where nothing listens; open connections continue."""
        life = self._require_life()
        life.call(life.management.reactor.acceptor.stop)
        try:
            yield
        finally:
            if self._life is life and self.is_up:
                life.call(life.listen)

    @contextmanager
    def holding_confirms(self) -> Iterator[None]:
        """Hold back all confirms; they are sent at the end. Messages are delivered all the same."""
        self.on_loop(lambda: self.engine.hold_confirms(held=True))
        try:
            yield
        finally:
            if self.is_up:
                self.on_loop(lambda: self.engine.hold_confirms(held=False))

    def delay_confirms(self, delay_s: float) -> None:
        """Confirm no publish for the next `delay_s`, and then all.

        Raises:
            ValueError: `delay_s` is negative, or not a number.
        """
        if not delay_s >= 0:  # in the broker's loop that would be its end
            raise ValueError("the delay of confirms must not be negative")
        life = self._require_life()

        async def release() -> None:
            await trio.sleep(delay_s)
            life.management.broker.hold_confirms(held=False)
            life.management.settle()

        def hold() -> None:
            self.engine.hold_confirms(held=True)
            life.spawn(release)

        life.call(hold)

    def nack_next(self, count: int = 1) -> None:
        """Answer the next `count` publishes on channels with confirms by basic.nack; no queue gets them."""
        self.on_loop(lambda: self._kept.publishes.nack_next(count))

    def return_next(self, count: int = 1) -> None:
        """Route the next `count` publishes to no queue: they are returned if they are mandatory, else dropped."""
        self.on_loop(lambda: self._kept.publishes.return_next(count))

    @contextmanager
    def blocking_publishers(self, resource: str = "memory") -> Iterator[None]:
        """Simulate a shortage of ``memory`` or ``disk``: publishers get connection.blocked, and are not read."""
        self.on_loop(lambda: self.engine.set_alarm(resource, True))
        try:
            yield
        finally:
            if self.is_up:
                self.on_loop(lambda: self.engine.set_alarm(resource, False))

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Fill the disk: publishers are blocked, and nothing persistent is stored or confirmed."""
        disk = self.disk
        disk.full = True
        try:
            with self.blocking_publishers("disk"):
                yield
        finally:
            disk.full = False


_brokers: WeakSet[Broker] = WeakSet()


def _forget_in_child() -> None:
    for broker in list(_brokers):
        broker._life = None
        broker._changes = threading.RLock()  # the holder of the old one is not in this process
        broker._kept.forget()


os.register_at_fork(after_in_child=_forget_in_child)

__all__ = ["Broker", "BrokerDown", "StartError"]
