"""What comes, goes and changes in the vhosts of an engine, for listeners outside."""

from __future__ import annotations

from warren.engine_view.refs import BindingRef, ExchangeRef, QueueRef
from warren.exchanges.binding import Binding
from warren.exchanges.exchange import Exchange
from warren.queues.base_queue import BaseQueue
from warren.vhosts.topology_watcher import TopologyWatcher


class TopologyListener:
    """Listens to all vhosts. It is called in the middle of a change: it may look, but must not change anything."""

    def exchange_changed(self, vhost: str, exchange: ExchangeRef) -> None:
        """Note that an exchange was declared, or is gone; its bindings go next."""

    def queue_changed(self, vhost: str, queue: QueueRef) -> None:
        """Note that a queue was declared, or is gone, with its consumers and bindings."""

    def binding_changed(self, vhost: str, source: ExchangeRef, binding: BindingRef, count: int) -> None:
        """Note that a binding was made (`count` 1), or is gone (-1)."""

    def policies_changed(self, vhost: str) -> None:
        """Note that other policies or operator policies may apply in a vhost."""

    def vhost_deleted(self, vhost: str) -> None:
        """Note that a vhost is gone with everything in it; its parts are not reported one by one."""


class Watcher(TopologyWatcher):
    """Passes what the engine tells on to a listener."""

    def __init__(self, listener: TopologyListener) -> None:
        self._listener = listener

    def exchange_created(self, vhost: str, exchange: Exchange, by: str) -> None:
        self._listener.exchange_changed(vhost, ExchangeRef(exchange))

    def exchange_deleted(self, vhost: str, exchange: Exchange, by: str) -> None:
        self._listener.exchange_changed(vhost, ExchangeRef(exchange))

    def queue_created(self, vhost: str, queue: BaseQueue, by: str) -> None:
        self._listener.queue_changed(vhost, QueueRef(queue))

    def queue_deleted(self, vhost: str, queue: BaseQueue, by: str) -> None:
        self._listener.queue_changed(vhost, QueueRef(queue))

    def binding_created(self, vhost: str, binding: Binding, by: str) -> None:
        self._listener.binding_changed(vhost, ExchangeRef(binding.source), BindingRef(binding), 1)

    def binding_deleted(self, vhost: str, binding: Binding, by: str) -> None:
        self._listener.binding_changed(vhost, ExchangeRef(binding.source), BindingRef(binding), -1)

    def policies_changed(self, vhost: str) -> None:
        self._listener.policies_changed(vhost)

    def vhost_deleted(self, vhost: str) -> None:
        self._listener.vhost_deleted(vhost)
