"""Applies changed policies to the queues and exchanges of a vhost, one after the other (`queues.long_work`).

1. A queue or exchange that has not been reached yet follows the old policies, as if they had not changed. When it is
   reached, it follows the policies of that moment, and watchers are told once, even after several changes.
2. A vhost has one run. A change that comes while it is under way causes another round. Only the latest change of each
   policy is remembered meanwhile.
3. A queue or exchange that is declared alone follows its policies at once, and its declarer pays for finding them.
4. Messages that a queue drops because of other limits count as steps of the run.
5. If a bug of ours makes a queue or exchange fail, all others follow first. Then it is tried again, repeatedly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.exchanges.exchange import Exchange
from warren.queues.base_queue import BaseQueue
from warren.queues.destination import Destination
from warren.queues.effective_policy import EffectivePolicy, PolicySettings
from warren.queues.long_work import Job, Steps
from warren.vhosts.metadata import PolicyDelete, PolicyPut

if TYPE_CHECKING:
    from warren.vhosts.virtual_host import VirtualHost

POLICY_STEPS: Final = 8  # to apply policies to one queue or exchange, besides finding them


class PolicyChange:
    """A policy was set or deleted, as `by` asked."""

    def __init__(self, change: PolicyPut | PolicyDelete, by: str) -> None:
        self.change = change
        self.by = by


class PolicyRun(Job):
    """Has everything in `vhost` follow the policies that it has now."""

    def __init__(self, vhost: VirtualHost) -> None:
        self._vhost = vhost
        self._things: list[Destination] = []  # exchanges, then queues
        self._next: int = 0
        self._is_under_way: bool = False
        # The changes of this round, and those since it began; by kind (operator policy or not) and name.
        self._rounds: dict[tuple[bool, str], PolicyChange] = {}
        self._later: dict[tuple[bool, str], PolicyChange] = {}

    def is_to_begin(self, change: PolicyPut | PolicyDelete, by: str) -> bool:
        """Record `change` for the next round. Return True if no round is under way: the caller has to begin one."""
        self._later[(change.operator, change.name)] = PolicyChange(change, by)
        return not self._is_under_way

    def abandon(self) -> None:
        """Stop following: the vhost is deleted."""
        self._things = []
        self._next = 0
        self._later = {}

    def run(self, steps: Steps) -> bool:
        self._is_under_way = True
        vhost = self._vhost
        policies = vhost.policies
        timers = vhost.timers
        moved = False
        while self._next < len(self._things) or self._begin_round():
            if steps.left <= 0:
                break
            searched: i64 = policies.searched
            worked: i64 = timers.worked
            moved = True
            thing = self._things[self._next]
            self._next += 1
            if isinstance(thing, Exchange):
                policies.fit_exchange(thing)
            elif isinstance(thing, BaseQueue):
                self._follow(thing)
            steps.left -= POLICY_STEPS + policies.searched - searched + timers.worked - worked
        else:
            self._is_under_way = False
        if moved:
            vhost.topology_version += 1
        return not self._is_under_way

    def _begin_round(self) -> bool:
        """Begin another round if something has changed since the last one began; return whether it has."""
        is_due = len(self._later) > 0
        self._things = [*self._vhost.exchanges.values(), *self._vhost.queues.values()] if is_due else []
        self._next = 0
        self._rounds = self._later
        self._later = {}
        return is_due

    def failed(self) -> bool:
        if self._next > 0:
            self._next -= 1
            self._things.append(self._things.pop(self._next))
        self._vhost.topology_version += 1
        return True

    def _follow(self, queue: BaseQueue) -> None:
        if queue.deleted:
            return
        before = queue.policies
        self._vhost.policies.fit_queue(queue)
        self._tell(queue, _settings(before, False), _settings(queue.policies, False), False)
        self._tell(queue, _settings(before, True), _settings(queue.policies, True), True)

    def _tell(
        self, queue: BaseQueue, before: PolicySettings | None, after: PolicySettings | None, operator: bool
    ) -> None:
        if before is after:
            return
        made = self._maybe_change(after, operator) or self._maybe_change(before, operator)
        if made is not None:
            self._vhost.watcher.queue_policy_changed(queue, made.change, made.by)

    def _maybe_change(self, settings: PolicySettings | None, operator: bool) -> PolicyChange | None:
        if settings is None:
            return None
        key = (operator, settings.name)
        return self._later.get(key) or self._rounds.get(key)


class FirstPolicies(Job):
    """Applies policies to many queues that `VirtualHost.declare_queue` has declared without them.

    A queue that has not been reached yet follows no policy.
    """

    def __init__(self, vhost: VirtualHost, names: list[str]) -> None:
        self._vhost = vhost
        self._names = names if vhost.policies.size > 0 else []
        self._next: int = 0

    def run(self, steps: Steps) -> bool:
        policies = self._vhost.policies
        while self._next < len(self._names):
            if steps.left <= 0:
                return False
            searched: i64 = policies.searched
            queue = self._vhost.queues.get(self._names[self._next])
            self._next += 1
            if queue is not None:
                policies.fit_queue(queue)
            steps.left -= POLICY_STEPS + policies.searched - searched
        return True

    def failed(self) -> bool:
        return True


def _settings(policies: EffectivePolicy, operator: bool) -> PolicySettings | None:
    return policies.operator_policy if operator else policies.policy
