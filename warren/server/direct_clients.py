"""Act on the engine for a user: commands and messages on a direct session (`channels.direct_session`), awaited on trio.

1. Errors of the broker are raised as the exceptions that would close a client's channel or connection. They end the
   session, and with it the client.
2. Answers come in the order of the commands, so several may be sent before the first answer is read (`send`).
3. When a client closes, its unacked messages return to their queue.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import trio

from warren.amqp import methods as m
from warren.amqp.declarations import ExchangeDeclaration, QueueDeclaration
from warren.amqp.errors import PRECONDITION_FAILED, AmqpError, ChannelException
from warren.amqp.properties import BasicProperties
from warren.channels.access import READ
from warren.channels.commit_check import CommitCheck
from warren.channels.direct_session import DirectSession, Publish, StagedPublishes
from warren.channels.direct_session import Got as Got
from warren.channels.direct_session import Published as Published
from warren.channels.transaction import commit_checked
from warren.queues.base_queue import BaseQueue
from warren.queues.long_work import Steps
from warren.queues.queue import Queue

SHORT_TEXT_BYTES_MAX: Final = 255
STEPS_AT_ONCE: Final = 4096  # of a check, without giving way


class Checked(NamedTuple):
    """How many messages of a transaction reach no queue, and a queue without room for its messages: vhost and name."""

    unroutable: int
    full_queue: tuple[str, str] | None


class DirectClients:
    """Opens clients of one broker, by its `open_direct`. `settle` lets the engine finish its turn."""

    def __init__(self, open_direct: Callable[[str, str], DirectSession], settle: Callable[[], None]) -> None:
        self._open_direct = open_direct
        self._settle = settle

    def open(self, user: str, vhost: str) -> DirectClient:
        """Return a client that acts for `user` in `vhost`; use it as a context manager.

        Raises:
            ConnectionException: 530, the vhost does not exist, or the user may not enter it.
        """
        return DirectClient(self._open_direct(user, vhost), self._settle)


class DirectClient:
    """One user's session. Do not share it between tasks."""

    def __init__(self, session: DirectSession, settle: Callable[[], None]) -> None:
        self.session = session
        self._peer = session.direct
        self._settle = settle
        self._woken = trio.Event()
        self._peer.on_answer = self._wake

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    async def call(self, command: Any) -> Any:
        """Send `command` and return its answer.

        Raises:
            ChannelException, ConnectionException: the broker refused.
        """
        self.send(command)
        return await self.reply()

    def send(self, *commands: Any) -> None:
        """Send commands. Read their answers in this order.

        Raises:
            ChannelException: a name is too long.
        """
        for command in commands:
            _check_texts(command)
        for command in commands:
            self.session.command(command)
        self._settle()

    async def reply(self) -> Any:
        """Return the next answer, when it is there."""
        answers = self._peer.answers
        while not answers:
            await self._next()
        answer = answers.popleft()
        if isinstance(answer, AmqpError):
            raise answer
        return answer

    async def get(self, queue: str, *, no_ack: bool) -> Got | None:
        """Take a message out of a queue; None when it is empty.

        Raises:
            ChannelException, ConnectionException: the broker refused.
        """
        answer = await self.call(m.BasicGet(0, queue, no_ack))
        return answer if isinstance(answer, Got) else None

    async def publish(self, exchange: str, routing_key: str, properties: BasicProperties, *body: bytes) -> Published:
        """Publish one message with a confirm and return the result. `body`: its parts.

        Raises:
            ChannelException, ConnectionException: the broker refused it.
        """
        _check_texts((exchange, routing_key))
        self.session.command(Publish(exchange, routing_key, properties.encode(), *body))
        self._settle()
        published: Published = await self.reply()
        return published

    # --- transactions -----------------------------------------------------------------------------------------------

    async def begin_transaction(self, *, is_announced: bool = True) -> None:
        """Make staged messages wait for `commit` from now on; traces and spans tell of them if `is_announced`."""
        await self.call(m.TxSelect())
        if not is_announced:
            self.session.disable_tracing()

    async def put(self, publishes: bytes) -> None:
        """Publish staged messages; waits while publishers are blocked.

        Raises:
            ChannelException, ConnectionException: the broker refused one of them, and forgets the transaction.
        """
        self.session.command(StagedPublishes(publishes))
        self._settle()
        while self.session.commands and not self._peer.answers:
            await self._next()
        if self._peer.answers:
            await self.reply()  # raises: a staged message is answered only with an error

    def staged(self, known: list[str], most: int) -> tuple[int, list[str]]:
        """Return how many messages wait for `commit`, and the first `most` of the exchanges `known` and theirs."""
        assert self.session.transaction is not None
        publishes = self.session.transaction.publishes
        found = dict.fromkeys(known)
        for each in publishes:
            if len(found) >= most:
                break
            found[each.exchange.name] = None
        return len(publishes), list(found)

    async def try_out(self, *, mandatory: bool, purged: str | None = None) -> Checked:
        """Return what a commit would come to; the transaction stays as it is.

        Raises:
            ChannelException, ConnectionException: the queue `purged` is not there, or may not be purged.
        """
        assert self.session.transaction is not None
        check = CommitCheck(mandatory=mandatory, purged=self._maybe_purgeable(purged))
        while not check.run(self.session.transaction.publishes, Steps(STEPS_AT_ONCE)):
            await trio.lowlevel.checkpoint()
        return _checked(check, self.session.vhost.name)

    def _maybe_purgeable(self, name: str | None) -> BaseQueue | None:
        if name is None:
            return None
        self.session.authorize(READ, "queue", name)
        queue = self.session.vhost.queue(name, self._peer)
        if not isinstance(queue, Queue):
            raise queue.refusal("queue.purge")
        return queue

    async def commit(
        self, note: Callable[[int], None], *, mandatory: bool, purged: str | None = None
    ) -> Checked | None:
        """Commit the transaction, and wait until it is written, as a client's tx.commit does; else return why not.

        `note` is called with the number of unroutable messages, and logged in the same frame as the transaction. A
        commit to very many queues takes several turns. `purged`: a queue whose messages go in that frame, before the
        new ones come.

        Raises:
            ChannelException, ConnectionException: it was refused; `note` was not done.
        """
        check = CommitCheck(mandatory=mandatory, purged=self._maybe_purgeable(purged))
        if self.session.is_open():
            assert not self.session.commands and not self._peer.paused
            commit_checked(self.session, check, lambda: note(int(check.unroutable)))
            self._settle()
        return None if isinstance(await self.reply(), m.TxCommitOk) else _checked(check, self.session.vhost.name)

    def close(self) -> None:
        """End the session; unacked messages return to their queue."""
        self._peer.lost()
        self._settle()

    # --- waiting ----------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._woken.set()

    async def _next(self) -> None:
        """Wait until there is an answer, or the session may continue; then resume it."""
        await self._woken.wait()
        self._woken = trio.Event()
        if self.session.commands:
            self.session.resume()
            self._settle()


def _checked(check: CommitCheck, vhost: str) -> Checked:
    queue = check.full_queue
    return Checked(int(check.unroutable), None if queue is None else (vhost, queue.name))


def _check_texts(command: Any) -> None:
    """Refuse texts that are too long for a command: their author may not know the limit.

    Raises:
        ChannelException: 406.
    """
    if isinstance(command, ExchangeDeclaration):
        command = (command.name, command.type)
    elif isinstance(command, QueueDeclaration):
        command = (command.name,)
    for value in command:
        if isinstance(value, str) and len(value.encode("utf-8", "replace")) > SHORT_TEXT_BYTES_MAX:
            raise ChannelException(PRECONDITION_FAILED, f"'{value[:50]}…' is longer than {SHORT_TEXT_BYTES_MAX} bytes")
