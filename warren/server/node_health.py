"""Whether this node is healthy, and what is wrong: for the health checks of the API, and for `warren ctl status`."""

from __future__ import annotations

from warren.channels.broker import Broker
from warren.queues.damage import has_damage
from warren.server.catalogue.writer import CatalogueWriter
from warren.server.held_links import HeldLinks
from warren.server.management import Health
from warren.server.message_store import MessageStoreService
from warren.server.replication import Replication
from warren.server.supervision import ESSENTIAL, Supervision
from warren.server.threads import CATALOGUE, LOGINS, threads


class NodeHealth:
    """The health of the parts of one process."""

    def __init__(
        self,
        broker: Broker,
        messages: MessageStoreService,
        writer: CatalogueWriter,
        held_links: HeldLinks,
        tasks: Supervision,
        replication: Replication | None,
    ) -> None:
        self._broker = broker
        self._messages = messages
        self._writer = writer
        self._held_links = held_links
        self._tasks = tasks
        self._replication = replication

    def look(self, *, is_stopping: bool) -> Health:
        """Return how the node is now."""
        confirm = self._confirm_mode()
        if is_stopping:
            return Health(False, "stopping", confirm)
        if not self._writer.healthy:
            return Health(False, "the metadata store is unavailable; changes wait in the message log", confirm)
        failing = self._tasks.failing()
        stuck = threads().stuck()
        slow = ("disk",) if self._replication is not None and self._replication.trouble_of_disk() else ()
        is_damaged = bool(self._messages.damage.segments) or has_damage(self._broker.log)
        lost = ("messages",) if self._messages.losses.found or is_damaged else ()
        degraded = (*(task.name for task in failing), *(f"threads of {purpose}" for purpose in stuck), *slow, *lost)
        trouble = self._messages.trouble()
        if CATALOGUE in stuck:
            trouble = trouble or "the metadata store does not answer"
        elif LOGINS in stuck:
            trouble = trouble or "logins are stuck"
        if not trouble and failing and failing[0].need == ESSENTIAL:
            trouble = f"the {failing[0].name} fails and is started again"
        return Health(not trouble, trouble, confirm, degraded, self._held_links.reason)

    def _confirm_mode(self) -> str:
        """Return what a confirm promises: durable, os, or mixed when that differs between vhosts."""
        modes = {vhost.sync_confirms for vhost in self._broker.vhosts.values()}
        if len(modes) > 1:
            return "mixed"
        return "os" if False in modes else "durable"
