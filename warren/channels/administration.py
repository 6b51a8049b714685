"""Administrative changes: users, permissions, vhosts, policies, limits and parameters, at a start and live.

1. A change that is refused changes nothing; one that is applied is in the journal, and then its listeners are told.
2. A deleted vhost is out of its directory at once; its connections and its queues end step by step (`jobs.VhostEnd`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.channels.jobs import ForcedClose, NewRights, VhostEnd
from warren.vhosts.limits import VHOST_LIMITS, parse_limits
from warren.vhosts.metadata import (
    BindingPut,
    ExchangePut,
    GlobalParameterDelete,
    GlobalParameterPut,
    MetadataChange,
    ParameterDelete,
    ParameterPut,
    PermissionDelete,
    PermissionPut,
    PolicyDelete,
    PolicyPut,
    QueuePut,
    TopicPermissionDelete,
    TopicPermissionPut,
    UserDelete,
    UserLimitsDelete,
    UserLimitsPut,
    UserPut,
    VhostDelete,
    VhostLimitsDelete,
    VhostLimitsPut,
    VhostPut,
    check_storable,
)
from warren.vhosts.parameters import ParameterChange, own_change
from warren.vhosts.virtual_host import DEFAULT_QUEUE_TYPES, VirtualHost

if TYPE_CHECKING:
    from warren.channels.broker import Broker


class Administration:
    """Applies administrative changes to `broker`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def restore(self, change: MetadataChange) -> None:
        """Apply the contents of the catalogue. Only at start, before the first connection (`vhosts.metadata`, 2).

        Raises:
            AmqpError, ValueError: the catalogue holds something that this version refuses.
        """
        broker = self._broker
        match change:
            case VhostPut():
                self._add_vhost(change)
            case ExchangePut() | QueuePut() | BindingPut():
                broker.vhosts[change.vhost].restore(change)
            case UserPut() | PermissionPut() | TopicPermissionPut():
                broker.access.apply(change, stored=True)
            case UserLimitsPut():
                broker.access.limit(change, stored=True)
            case VhostLimitsPut():
                self._limit_vhost(change, stored=True)
            case PolicyPut():
                self._restore_policy(change)
            case ParameterPut() | GlobalParameterPut():
                broker.parameters.restore(change)
            case _:
                raise ValueError(f"the catalogue may not hold {type(change).__name__}")

    def apply(self, change: MetadataChange, by: str, *, planned: bool) -> int:
        """Apply an administrative change that `by` asked for, live, and journal it. Return the ticket to wait for.

        `planned`: the right of `by` to the change has been checked; its content is checked again.

        Raises:
            ValueError: the change is not valid, a pattern for instance, or its vhost or user does not exist. The text
                is for the caller; nothing is changed.
        """
        broker = self._broker
        change = own_change(change)
        check_storable(change)
        asker = "" if planned else by
        told = broker.events.describe(change, by)
        changed: ParameterChange | None = None
        match change:
            case VhostPut():
                if change.default_queue_type not in DEFAULT_QUEUE_TYPES:
                    raise ValueError(
                        f"default queue type '{change.default_queue_type}' is not classic, quorum or stream"
                    )
                self._add_vhost(change)
            case VhostDelete():
                self._delete_vhost(change.name, by)
            case UserPut() | UserDelete():
                broker.access.apply(change)
            case PermissionPut() | PermissionDelete() | TopicPermissionPut() | TopicPermissionDelete():
                existing_vhost(broker.vhosts, change.vhost)
                if isinstance(change, PermissionPut | TopicPermissionPut) and change.user not in broker.access.users:
                    # The next user of that name would have it.
                    raise ValueError(f"user '{change.user}' does not exist")
                broker.access.apply(change)
            case UserLimitsPut() | UserLimitsDelete():
                broker.access.limit(change)
            case VhostLimitsPut() | VhostLimitsDelete():
                self._limit_vhost(change)
            case PolicyPut() | PolicyDelete():
                self._change_policy(change, by)
            case ParameterPut() | ParameterDelete():
                existing_vhost(broker.vhosts, change.vhost)
                changed = change if broker.parameters.apply(change, asker) else None
            case GlobalParameterPut() | GlobalParameterDelete():
                changed = change if broker.parameters.apply(change, asker) else None
            case _:
                raise ValueError("exchanges, queues and bindings are declared, not administered")
        ticket = broker.journal.append(change)
        broker.events.emit_all(told)
        if changed is not None:
            broker.parameters.tell(changed)
        if isinstance(change, UserDelete):
            broker.work.begin(ForcedClose(broker.connections_of_user(change.name), f"user '{change.name}' was deleted"))
        if isinstance(change, PermissionPut | PermissionDelete):
            broker.work.begin(NewRights(broker.connections_of_user(change.user), change.vhost))
        return ticket

    def _restore_policy(self, change: PolicyPut) -> None:
        broker = self._broker
        vhost = existing_vhost(broker.vhosts, change.vhost)
        try:
            vhost.policies.restore(change, vhost.exchanges.values())
        except ValueError as error:
            # An earlier version accepted it. The broker starts without it, and setting it again reports the error.
            reason = str(error)
            broker.note("error", "policy.invalid", {"vhost": change.vhost, "policy": change.name, "reason": reason})

    def _change_policy(self, change: PolicyPut | PolicyDelete, by: str) -> None:
        broker = self._broker
        vhost = existing_vhost(broker.vhosts, change.vhost)
        if isinstance(change, PolicyPut):
            is_other = vhost.policies.put(change)
        else:
            is_other = vhost.policies.delete(change.name, operator=change.operator)
        if is_other:
            broker.events.policy_changing(change, by)
            vhost.follow_policies(change, by)
            broker.events.policy_changed(change, by)
            broker.watchers.policies_changed(vhost.name)

    def _limit_vhost(self, change: VhostLimitsPut | VhostLimitsDelete, *, stored: bool = False) -> None:
        vhost = existing_vhost(self._broker.vhosts, change.vhost)
        limits: dict[str, int] = {}
        if isinstance(change, VhostLimitsPut):
            limits = parse_limits(change.definition, VHOST_LIMITS, "limits", stored=stored)
        vhost.limits = limits

    def _add_vhost(self, record: VhostPut) -> None:
        broker = self._broker
        if record.name in broker.vhosts:
            broker.vhosts[record.name].record = record
            return
        vhost = VirtualHost(
            record,
            broker.journal,
            broker.runnable,
            broker.seed,
            broker.log,
            broker.timers,
        )
        vhost.sync_confirms = broker.syncs_confirms(record.name)
        vhost.watcher = broker.watchers
        vhost.churn = broker.churn
        vhost.work = broker.work
        vhost.letters.in_line = broker.letters_in_line
        vhost.deaths = broker.deaths
        broker.vhosts[record.name] = vhost

    def _delete_vhost(self, name: str, by: str) -> None:
        broker = self._broker
        vhost = broker.vhosts.get(name)
        if vhost is None:
            return
        if vhost.record.protected_from_deletion:
            raise ValueError(f"Refusing to delete virtual host '{name}' because it is protected from deletion")
        del broker.vhosts[name]
        vhost.abandon()
        connected = [peer for peer in broker.connections.values() if peer.vhost is vhost]
        lost = broker.access.forget_vhost(name)
        cleared = broker.parameters.forget_vhost(name)
        broker.work.begin(VhostEnd(vhost, broker.journal, connected, self._let_go_of, broker.events, lost, cleared, by))
        broker.watchers.vhost_deleted(name)
        for parameter in cleared:
            broker.parameters.tell(parameter)

    def _let_go_of(self, vhost: VirtualHost) -> None:
        """Clean up a deleted vhost that has no connections left."""
        self._broker.counted.add(vhost.counted)
        vhost.letters.close()
        for seen in vhost.seen_keys.values():
            seen.close()
        for held in list(vhost.held.values()):
            held.close()
        if vhost.kept_sessions is not None:
            vhost.kept_sessions.close()
            vhost.kept_sessions = None
        vhost.records.close()


def existing_vhost(vhosts: dict[str, VirtualHost], name: str) -> VirtualHost:
    """Return the vhost called `name`.

    Raises:
        ValueError: it does not exist.
    """
    vhost = vhosts.get(name)
    if vhost is None:
        raise ValueError(f"vhost '{name}' does not exist")
    return vhost
