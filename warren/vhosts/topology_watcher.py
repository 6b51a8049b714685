"""Listeners for changes of a vhost: `channels.events`, which reports to the event exchange, and others.

`by` is the user who made the change. A change without a user has `INTERNAL_USER`: for instance, a queue is deleted with
its last consumer or with its connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from warren.exchanges.binding import Binding
from warren.exchanges.exchange import Exchange
from warren.queues.consumer import Consumer
from warren.queues.long_work import LongWork
from warren.vhosts.metadata import PolicyDelete, PolicyPut

if TYPE_CHECKING:
    from warren.queues.base_queue import BaseQueue

INTERNAL_USER: Final = "rmq-internal"  # as RabbitMQ calls it


@mypyc_attr(allow_interpreted_subclasses=True)  # watchers that connect vhosts with other brokers are not compiled
class TopologyWatcher:
    """Listens to one vhost or several. This class ignores everything: a vhost has it until it gets another one.

    It is called in the middle of a change: it may look at the arguments, but must not change anything in this turn.
    """

    def exchange_created(self, vhost: str, exchange: Exchange, by: str) -> None:
        """Note that `exchange` was declared."""

    def exchange_deleted(self, vhost: str, exchange: Exchange, by: str) -> None:
        """Note that `exchange` is gone; its bindings are removed after this."""

    def queue_created(self, vhost: str, queue: BaseQueue, by: str) -> None:
        """Note that `queue` was declared."""

    def queue_deleted(self, vhost: str, queue: BaseQueue, by: str) -> None:
        """Note that `queue` is gone, with its consumers and bindings."""

    def binding_created(self, vhost: str, binding: Binding, by: str) -> None:
        """Note that `binding` was made."""

    def binding_deleted(self, vhost: str, binding: Binding, by: str) -> None:
        """Note that `binding` is gone."""

    def consumer_created(self, consumer: Consumer) -> None:
        """Note that `consumer` has its queue and its channel."""

    def consumer_deleted(self, consumer: Consumer) -> None:
        """Note that `consumer` is about to go; its channel still has it."""

    def policies_changed(self, vhost: str) -> None:
        """Note that other policies or operator policies may apply in `vhost`."""

    def queue_policy_changed(self, queue: BaseQueue, change: PolicyPut | PolicyDelete, by: str) -> None:
        """Note that `queue` follows another policy, or operator policy, because of `change`."""

    def vhost_deleted(self, vhost: str) -> None:
        """Note that `vhost` is gone with everything in it; only `queue_let_go` reports its parts one by one."""

    def queue_let_go(self, queue: BaseQueue) -> None:
        """Note that `queue` of a deleted vhost is about to be closed, perhaps some turns after `vhost_deleted`."""


class TopologyWatchers(TopologyWatcher):
    """Several watchers, told in the order in which they came. `work` reports the defects that they meet.

    A watcher that meets one stops neither the others nor the change: the change is half made, and not in the journal.
    While a watcher fails again and again, only the first failure is reported.
    """

    def __init__(self, work: LongWork) -> None:
        self._work = work
        self._watchers: list[TopologyWatcher] = []
        self._failing: dict[TopologyWatcher, None] = {}  # those whose latest call has failed

    def add(self, watcher: TopologyWatcher) -> None:
        """Notify `watcher` of everything from now on."""
        self._watchers.append(watcher)

    def _tell(self, call: Callable[[TopologyWatcher], None]) -> None:
        for watcher in self._watchers:
            try:
                call(watcher)
            except Exception as error:
                self._fails(watcher, error)
            else:
                if self._failing:
                    self._failing.pop(watcher, None)

    def _fails(self, watcher: TopologyWatcher, error: Exception) -> None:
        if watcher not in self._failing:
            self._failing[watcher] = None
            self._work.report(error)

    # Of these there may be thousands in a turn: without a function for each call.

    def queue_deleted(self, vhost: str, queue: BaseQueue, by: str) -> None:
        for watcher in self._watchers:
            try:
                watcher.queue_deleted(vhost, queue, by)
            except Exception as error:
                self._fails(watcher, error)
            else:
                if self._failing:
                    self._failing.pop(watcher, None)

    def consumer_created(self, consumer: Consumer) -> None:
        for watcher in self._watchers:
            try:
                watcher.consumer_created(consumer)
            except Exception as error:
                self._fails(watcher, error)
            else:
                if self._failing:
                    self._failing.pop(watcher, None)

    def consumer_deleted(self, consumer: Consumer) -> None:
        for watcher in self._watchers:
            try:
                watcher.consumer_deleted(consumer)
            except Exception as error:
                self._fails(watcher, error)
            else:
                if self._failing:
                    self._failing.pop(watcher, None)

    # The rest.

    def exchange_created(self, vhost: str, exchange: Exchange, by: str) -> None:
        self._tell(lambda watcher: watcher.exchange_created(vhost, exchange, by))

    def exchange_deleted(self, vhost: str, exchange: Exchange, by: str) -> None:
        self._tell(lambda watcher: watcher.exchange_deleted(vhost, exchange, by))

    def queue_created(self, vhost: str, queue: BaseQueue, by: str) -> None:
        self._tell(lambda watcher: watcher.queue_created(vhost, queue, by))

    def binding_created(self, vhost: str, binding: Binding, by: str) -> None:
        self._tell(lambda watcher: watcher.binding_created(vhost, binding, by))

    def binding_deleted(self, vhost: str, binding: Binding, by: str) -> None:
        self._tell(lambda watcher: watcher.binding_deleted(vhost, binding, by))

    def policies_changed(self, vhost: str) -> None:
        self._tell(lambda watcher: watcher.policies_changed(vhost))

    def queue_policy_changed(self, queue: BaseQueue, change: PolicyPut | PolicyDelete, by: str) -> None:
        self._tell(lambda watcher: watcher.queue_policy_changed(queue, change, by))

    def vhost_deleted(self, vhost: str) -> None:
        self._tell(lambda watcher: watcher.vhost_deleted(vhost))

    def queue_let_go(self, queue: BaseQueue) -> None:
        self._tell(lambda watcher: watcher.queue_let_go(queue))
