"""Runtime parameters and policies, by their names. `Management.administer` changes them, as all metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from warren.engine_view.refs import ExchangeRef, QueueRef
from warren.exchanges.exchange import Exchange
from warren.queues.base_queue import BaseQueue
from warren.vhosts.metadata import PolicyPut
from warren.vhosts.parameters import OPERATOR_POLICY_COMPONENT as OPERATOR_POLICY_COMPONENT
from warren.vhosts.parameters import VHOST_LIMITS_COMPONENT as VHOST_LIMITS_COMPONENT
from warren.vhosts.parameters import VHOST_LIMITS_NAME as VHOST_LIMITS_NAME
from warren.vhosts.parameters import Parameter as Parameter
from warren.vhosts.parameters import ParameterBook, Validator
from warren.vhosts.policies import Policy
from warren.vhosts.virtual_host import VirtualHost


class PolicyRow(msgspec.Struct, frozen=True):
    """A policy as it was set, and its definition decoded."""

    put: PolicyPut
    definition: dict[str, Any]


class Parameters:
    """The parameters of one engine: a `Parameter` does not change."""

    def __init__(self, book: ParameterBook) -> None:
        self._book = book

    def validate_by(self, component: str, validator: Validator) -> None:
        """Check parameters of a component with `validator` before they are set; it returns what is wrong."""
        self._book.validators[component] = validator

    def watch(self, listener: Callable[[], None]) -> None:
        """Call `listener` in the middle of each change of a parameter: it may look, but must not change anything."""
        self._book.listeners.append(lambda change: listener())

    def of(self, vhost: str | None, component: str | None) -> list[Parameter]:
        """Return the parameters of all vhosts or one, of all components or one, by name."""
        return self._book.parameters(vhost, component)

    def maybe(self, vhost: str, component: str, name: str) -> Parameter | None:
        """Return a parameter of a vhost."""
        return self._book.maybe_parameter(vhost, component, name)

    def maybe_global(self, name: str) -> Parameter | None:
        """Return a global parameter."""
        return self._book.maybe_global(name)

    def all_global(self) -> list[Parameter]:
        """Return the global parameters by name."""
        return self._book.global_parameters()


class Policies:
    """The policies and operator policies of one engine."""

    def __init__(self, vhosts: Mapping[str, VirtualHost]) -> None:
        self._vhosts = vhosts

    def _book(self, vhost: str, operator: bool) -> Mapping[str, Policy]:
        found = self._vhosts.get(vhost)
        if found is None:
            return {}
        return found.policies.operator_policies if operator else found.policies.policies

    def have(self, vhost: str, keys: tuple[str, ...]) -> bool:
        """Tell whether a policy of a vhost has one of these keys."""
        found = self._vhosts.get(vhost)
        return found is not None and found.policies.has_setting(keys)

    def texts_of_exchange(self, vhost: str, exchange: ExchangeRef, keys: tuple[str, ...]) -> list[str | None]:
        """Return the texts that policies give an exchange for these keys."""
        assert isinstance(exchange, Exchange)
        found = self._vhosts.get(vhost)
        policies = None if found is None else found.policies.of_exchange(exchange.name)
        return [] if policies is None else [policies.maybe_text(key) for key in keys]

    def texts_of_queue(self, vhost: str, queue: QueueRef, keys: tuple[str, ...]) -> list[str | None]:
        """Return the texts that policies give a queue for these keys."""
        assert isinstance(queue, BaseQueue)
        found = self._vhosts.get(vhost)
        policies = None if found is None else found.policies.of_queue(queue.name, queue.rules.queue_type)
        return [] if policies is None else [policies.maybe_text(key) for key in keys]

    def of(self, vhost: str, *, operator: bool = False) -> list[PolicyRow]:
        """Return the policies of a vhost by name."""
        return [PolicyRow(policy.put, policy.definition) for _, policy in sorted(self._book(vhost, operator).items())]

    def maybe(self, vhost: str, name: str, *, operator: bool = False) -> PolicyRow | None:
        """Return a policy."""
        policy = self._book(vhost, operator).get(name)
        return None if policy is None else PolicyRow(policy.put, policy.definition)
