"""The setting that applies to a queue or an exchange: from its argument, from its operator policy, or from its policy.

1. Among numbers the smallest applies. A negative delivery limit means no limit, and loses against any limit.
2. For all other values the argument wins, then the operator policy, then the policy.
3. An `EffectivePolicy` does not change: when policies come or go, another takes its place.

``vhosts.policies`` decides which policies apply, and makes these. Code that needs a setting asks one of these, and does
not read definitions: the rules of a queue, the alternate of an exchange, federation, and lists of queues.

Source: RabbitMQ, "Policies", "Operator policies".
"""

from __future__ import annotations

from typing import Final

from warren.amqp.field_table import Table
from warren.amqp.term_text import term_text
from warren.queues.arguments import BY_KEY, fault_of


class PolicySettings:
    """A policy as a queue or an exchange that follows it knows it: its name, and its settings by key."""

    def __init__(self, name: str, definition: dict[str, object]) -> None:
        self.name = name
        self.definition = definition


class EffectivePolicy:
    """The policy and the operator policy of one queue or exchange together; None: it does not have one."""

    def __init__(self, policy: PolicySettings | None, operator_policy: PolicySettings | None) -> None:
        self.policy = policy
        self.operator_policy = operator_policy

    def policy_name(self) -> str | None:
        """Return the name of the policy, if there is one."""
        return None if self.policy is None else self.policy.name

    def operator_policy_name(self) -> str | None:
        """Return the name of the operator policy, if there is one."""
        return None if self.operator_policy is None else self.operator_policy.name

    def definition(self) -> dict[str, object]:
        """Return the settings of both together, as a new dict."""
        merged: dict[str, object] = {}
        if self.policy is not None:
            merged.update(self.policy.definition)
        if self.operator_policy is not None:
            for key, value in self.operator_policy.definition.items():
                merged[key] = _winner(key, value, merged[key]) if key in merged else value
        return merged

    def maybe_text(self, key: str) -> str | None:
        """Return the setting `key`, if it is a text."""
        for settings in (self.operator_policy, self.policy):
            if settings is not None and key in settings.definition:
                value = settings.definition[key]
                return value if isinstance(value, str) else None
        return None

    def under_arguments(self, arguments: Table) -> Table:
        """Return `arguments` of a queue, by policy key, with the policy settings that add to them or replace them.

        Settings that `policy_key_error` would refuse are passed over.
        """
        if self.policy is None and self.operator_policy is None:
            return arguments
        values = dict(arguments)
        for settings in (self.operator_policy, self.policy):
            if settings is None:
                continue
            for key, value in settings.definition.items():
                row = BY_KEY.get(key)
                if row is not None and row.noun and not fault_of(row, value, ""):
                    values[key] = _winner(key, values[key], value) if key in values else value
        return values


NO_POLICY: Final = EffectivePolicy(None, None)


def policy_key_error(key: str, value: object) -> str:
    """Return why a policy for queues cannot have `key` with `value`, in RabbitMQ's words, or ``""``."""
    row = BY_KEY.get(key)
    if row is None or not row.noun:
        return f'[{{<<"{key}">>,{_policy_text(value)}}}] are not recognised policy settings'
    return f"{_policy_text(value)} is not a valid {row.noun}" if fault_of(row, value, "") else ""


def _policy_text(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        return "[" + ",".join([_policy_text(entry) for entry in value]) + "]"
    return term_text(value)


def _winner(key: str, first: object, second: object) -> object:
    """Return the value of `key` that wins; that is the `first` where they are not both numbers."""
    if isinstance(first, bool) or isinstance(second, bool):
        return first
    if not (isinstance(first, (int, float)) and isinstance(second, (int, float))):
        return first
    if key == "delivery-limit" and (first < 0 or second < 0):
        return max(first, second)
    return min(first, second)
