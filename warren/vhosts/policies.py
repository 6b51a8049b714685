"""The policies of a vhost: settings for all queues and exchanges whose names match a pattern.

1. An entity has at most one policy, and a queue at most one operator policy as well: of those that apply to it, the one
   with the highest priority, and of equal priorities the first by name.
2. A policy applies to entities of its kind in whose name its pattern is found, unless it has a key that the type of
   the queue does not support. Operator policies apply to queues only. Policies do not apply to claim queues
   (`queues.claims`), whatever their pattern.
3. A book holds valid policies only. Their keys are checked here, their values in ``queues.effective_policy``.
4. The total size of all patterns of a book is bounded, since a declaration may try every one of them. A change that
   does not make it larger is always accepted, and so are stored policies.
5. The default exchange has no alternate. Policies do not give one to the broker's own exchanges: a policy for all
   exchanges is not meant for traces and events.

If both policies and an argument have a setting, ``queues.effective_policy`` decides which of them applies.

Source: RabbitMQ, "Policies" and "Operator policies", and 3.10.8 for texts and for which type supports what.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mypy_extensions import i64

from warren.exchanges.exchange import ALTERNATE_EXCHANGE, Exchange
from warren.queues.arguments import BY_KEY
from warren.queues.base_queue import BaseQueue
from warren.queues.claim_names import is_claims_name
from warren.queues.effective_policy import NO_POLICY, EffectivePolicy, PolicySettings, policy_key_error
from warren.queues.rules import rules_of
from warren.vhosts.definitions import erlang_pairs, erlang_term, parse_definition
from warren.vhosts.metadata import PolicyPut
from warren.vhosts.pattern import Pattern

APPLY_TO: Final = ("all", "exchanges", "queues", "classic_queues", "quorum_queues", "streams")
PRIORITY_MAX: Final = (1 << 63) - 1
# The total size of the patterns of a vhost, in instructions of RE2, plus one for each policy. With this, searching in
# the longest name takes 20 ms.
SIZE_MAX: Final = 10_000
BROKERS_OWN: Final = "amq.rabbitmq."
# For hints: how many unknown keys of a definition are compared with the known ones, the longest such key, and the least
# likeness that counts.
HINTS_TRIED: Final = 3
HINT_CHARACTERS: Final = 64
HINT_LIKENESS: Final = 0.75

_EXCHANGES: Final = 1
_CLASSIC: Final = 2
_QUORUM: Final = 4
_STREAMS: Final = 8
_QUEUES: Final = _CLASSIC | _QUORUM | _STREAMS
_ALL: Final = _EXCHANGES | _QUEUES
_TARGETS: Final = {
    "all": _ALL,
    "exchanges": _EXCHANGES,
    "queues": _QUEUES,
    "classic_queues": _CLASSIC,
    "quorum_queues": _QUORUM,
    "streams": _STREAMS,
}
_QUEUE_TYPES: Final = {"classic": _CLASSIC, "quorum": _QUORUM, "stream": _STREAMS}

# The queue types that support a policy key, for two kinds of keys: those that are not an argument of our queues, and
# those that other types support in policies than in arguments. Exchanges do not matter here. Queues are not mirrored:
# the keys of mirroring are accepted so that definitions of RabbitMQ can be imported.
_SUPPORT: Final = {
    ALTERNATE_EXCHANGE: _QUEUES,
    "federation-upstream": _CLASSIC | _QUORUM,
    "federation-upstream-pattern": _CLASSIC | _QUORUM,
    "federation-upstream-set": _CLASSIC | _QUORUM,
    "ha-mode": _CLASSIC,
    "ha-params": _CLASSIC,
    "ha-promote-on-failure": _CLASSIC,
    "ha-promote-on-shutdown": _CLASSIC,
    "ha-sync-batch-size": _CLASSIC,
    "ha-sync-mode": _CLASSIC,
    "initial-cluster-size": _STREAMS,
    "max-in-memory-bytes": _CLASSIC | _QUORUM,
    "max-in-memory-length": _CLASSIC | _QUORUM,
    "queue-master-locator": _CLASSIC,
    "queue-version": _QUEUES,
    "stream-filter-size-bytes": _STREAMS,
    "target-group-size": _QUORUM,
}
# The three ways to name upstreams, and RabbitMQ's names for their values. A policy has at most one of them.
_FEDERATION: Final = {
    "federation-upstream": "name",
    "federation-upstream-set": "set name",
    "federation-upstream-pattern": "pattern name",
}
OPERATOR_KEYS: Final = (
    "delivery-limit",
    "expires",
    "max-in-memory-bytes",
    "max-in-memory-length",
    "max-length",
    "max-length-bytes",
    "message-ttl",
    "overflow",
    "queue-version",
    "target-group-size",
    # Warren's own.
    "consumer-prefetch-max",
    "max-unacked",
)


class Policy(PolicySettings):
    """A policy, read and compiled. `stored`: it comes from the catalogue.

    Raises:
        ValueError: it is not valid; the text is RabbitMQ's, with a line for each reason.
    """

    def __init__(self, put: PolicyPut, *, stored: bool = False) -> None:
        self.put = put
        super().__init__(put.name, {})
        self.priority = put.priority
        errors: list[str] = []
        try:
            self.definition = parse_definition(put.definition)
            error = _definition_error(self.definition, put.operator, stored)
            if error:
                errors.append(error)
        except ValueError as invalid:
            errors.append(str(invalid))
        if put.apply_to not in APPLY_TO:
            choices = ", ".join([f"'{choice}'" for choice in APPLY_TO[1:]])
            errors.append(f"apply-to '{put.apply_to}' unrecognised; should be one of: {choices}, or 'all'")
        try:
            # In a policy an empty pattern matches every name; in a permission it matches nothing.
            self.pattern = Pattern(put.pattern or ".*", stored=stored)
        except ValueError as invalid:
            errors.append(f"pattern should be regular expression but is invalid: {invalid}")
        if abs(put.priority) > PRIORITY_MAX:
            errors.append(f"priority should be a number, actually was {erlang_term(put.priority)}")
        if errors:
            raise ValueError("\n".join(errors))
        self._targets = _TARGETS[put.apply_to]
        for key in self.definition:
            self._targets &= _support(key) | _EXCHANGES

    @property
    def size(self) -> i64:
        """Its share of the size of all policies."""
        return 1 + self.pattern.size

    def is_for(self, target: int) -> bool:
        """Tell whether this applies to the kind `target`, one of the bits of `_ALL`, whatever the name."""
        return self._targets & target != 0

    def applies_to_exchange(self, name: str) -> bool:
        """Tell whether this is for the exchange called `name`."""
        return self.is_for(_EXCHANGES) and self.pattern.matches(name)


class PolicyBook:
    """The policies of one vhost by name; finds those that apply to an entity.

    ``searched``: how many steps these searches have taken so far; a caller pays for the difference.
    """

    def __init__(self) -> None:
        self.searched: i64 = 0
        self.size: i64 = 0
        self.policies: dict[str, Policy] = {}
        self.operator_policies: dict[str, Policy] = {}
        # The same policies in the order in which they are tried.
        self._ordered: list[Policy] = []
        self._operators_ordered: list[Policy] = []
        self._settings: set[str] = set()  # the keys that any of `policies` sets

    def put(self, change: PolicyPut, *, stored: bool = False) -> bool:
        """Add a policy, or replace the one of its name; False: it is the same. `stored`: it is in the catalogue, too.

        Raises:
            ValueError: it is not valid. Nothing is changed.
        """
        old = (self.operator_policies if change.operator else self.policies).get(change.name)
        if old is not None and old.put == change:
            return False
        policy = Policy(change, stored=stored)
        more: i64 = policy.size - (0 if old is None else old.size)
        if more > 0 and self.size + more > SIZE_MAX and not stored:
            raise ValueError(
                f"the patterns of all policies in vhost '{change.vhost}' would have a size of "
                f"{int(self.size + more)} when compiled, at most {SIZE_MAX} is allowed"
            )
        self.size += more
        if change.operator:
            self.operator_policies[change.name] = policy
            self._operators_ordered = _in_order(self.operator_policies)
        else:
            self.policies[change.name] = policy
            self._changed()
        return True

    def delete(self, name: str, *, operator: bool) -> bool:
        """Remove the policy, or operator policy, called `name`; False: it does not exist."""
        policy = (self.operator_policies if operator else self.policies).pop(name, None)
        if policy is None:
            return False
        self.size -= policy.size
        if operator:
            self._operators_ordered = _in_order(self.operator_policies)
        else:
            self._changed()
        return True

    def _changed(self) -> None:
        self._ordered = _in_order(self.policies)
        self._settings = set()
        for policy in self._ordered:
            self._settings.update(policy.definition)

    def maybe_policy(self, kind: str, name: str, queue_type: str = "classic") -> Policy | None:
        """Return the policy of the ``queue`` or ``exchange`` (`kind`) called `name`.

        `queue_type` is ``classic``, ``quorum`` or ``stream``, and does not matter for exchanges.
        """
        if is_claims_name(name) and kind == "queue":
            return None
        return self._first(self._ordered, _EXCHANGES if kind == "exchange" else _QUEUE_TYPES[queue_type], name)

    def maybe_operator_policy(self, name: str, queue_type: str = "classic") -> Policy | None:
        """Return the operator policy of the queue called `name`."""
        if is_claims_name(name):
            return None
        return self._first(self._operators_ordered, _QUEUE_TYPES[queue_type], name)

    def of_queue(self, name: str, queue_type: str = "classic") -> EffectivePolicy:
        """Return the policies of the queue called `name`, which is ``classic``, ``quorum`` or ``stream``."""
        return _together(self.maybe_policy("queue", name, queue_type), self.maybe_operator_policy(name, queue_type))

    def of_exchange(self, name: str) -> EffectivePolicy:
        """Return the policies of the exchange called `name`."""
        return _together(self.maybe_policy("exchange", name), None)

    def _first(self, ordered: list[Policy], target: int, name: str) -> Policy | None:
        for policy in ordered:
            self.searched += 1
            if policy.is_for(target):
                self.searched += policy.pattern.steps(name)
                if policy.pattern.matches(name):
                    return policy
        return None

    def restore(self, change: PolicyPut, exchanges: Iterable[Exchange]) -> None:
        """Add a policy of the catalogue; those of `exchanges` that it applies to follow it.

        Raises:
            ValueError: it is not valid.
        """
        self.put(change, stored=True)
        if not change.operator:
            policy = self.policies[change.name]
            for exchange in exchanges:
                if policy.applies_to_exchange(exchange.name):
                    self.fit_exchange(exchange)

    def fit_exchange(self, exchange: Exchange) -> None:
        """Apply the current policies to `exchange`; cached routes may be wrong then."""
        policies = self.of_exchange(exchange.name)
        exchange.policy = policies.policy_name()
        exchange.alternate = alternate_of(exchange, policies)

    def fit_queue(self, queue: BaseQueue) -> None:
        """Apply the current policies and its arguments to `queue`."""
        parsed = queue.parsed
        assert parsed is not None
        queue.policies = self.of_queue(queue.name, parsed.queue_type)
        queue.apply_rules(rules_of(parsed, queue.policies))

    def has_setting(self, keys: tuple[str, ...]) -> bool:
        """Tell whether any policy sets one of `keys`."""
        return not self._settings.isdisjoint(keys)


def alternate_of(exchange: Exchange, policies: EffectivePolicy) -> str:
    """Return the alternate of `exchange`, by its argument or by a policy; ``""``: it has none."""
    table = exchange.table
    if ALTERNATE_EXCHANGE in table:
        alternate = table[ALTERNATE_EXCHANGE]
        return alternate if isinstance(alternate, str) else ""
    if exchange.name == "" or exchange.name.startswith(BROKERS_OWN):
        return ""
    return policies.maybe_text(ALTERNATE_EXCHANGE) or ""


def _together(policy: Policy | None, operator_policy: Policy | None) -> EffectivePolicy:
    return NO_POLICY if policy is None and operator_policy is None else EffectivePolicy(policy, operator_policy)


def _in_order(policies: dict[str, Policy]) -> list[Policy]:
    by_name = [policies[name] for name in sorted(policies)]
    return sorted(by_name, key=_descending)  # the sort is stable: equal priorities stay in the order of names


def _descending(policy: Policy) -> int:
    return -policy.priority


def _definition_error(definition: dict[str, object], operator: bool, stored: bool) -> str:
    """Return why a policy cannot have `definition`, or ``""``. Wrong values come first, as in RabbitMQ."""
    if not definition:
        return "no policy provided"
    unknown: dict[str, object] = {}
    for key in sorted(definition):
        if _support(key) == 0 or (operator and key not in OPERATOR_KEYS):
            unknown[key] = definition[key]
            continue
        error = _value_error(key, definition[key], stored)
        if error:
            return error
    if unknown:
        return f"{erlang_pairs(unknown)} are not recognised policy settings{_hint(unknown, operator)}"
    if len([key for key in _FEDERATION if key in definition]) > 1:
        return "cannot specify federation-upstream, federation-upstream-set or federation-upstream-pattern together"
    return ""


def _hint(unknown: dict[str, object], operator: bool) -> str:
    """Return the key that was probably meant by the first of `unknown` that looks like one; ``""`` when none does."""
    from difflib import get_close_matches  # needed only after a misspelling

    known = list(OPERATOR_KEYS) if operator else [key for key in [*_SUPPORT, *BY_KEY] if _support(key)]
    for key in list(unknown)[:HINTS_TRIED]:
        if len(key) > HINT_CHARACTERS:
            continue
        # Arguments of queue.declare begin with x-, and many other programs use underscores.
        near = get_close_matches(key.lower().removeprefix("x-").replace("_", "-"), known, 1, HINT_LIKENESS)
        if near:
            return f"; did you mean {near[0]} instead of {key}?"
    return ""


def _support(key: str) -> int:
    """Return the queue types that support `key`, 0 for an unknown key."""
    if key in _SUPPORT:
        return _SUPPORT[key]
    row = BY_KEY.get(key)
    if row is None or not row.noun:
        return 0
    return (_CLASSIC if row.classic else 0) | (_QUORUM if row.quorum else 0) | (_STREAMS if row.stream else 0)


def _value_error(key: str, value: object, stored: bool) -> str:
    if key in BY_KEY and BY_KEY[key].noun:
        return policy_key_error(key, value)
    if key == ALTERNATE_EXCHANGE and not isinstance(value, str):
        return f"{erlang_term(value)} is not a valid alternate exchange name"
    if key in _FEDERATION:
        return _federation_error(key, value, stored)
    return ""


def _federation_error(key: str, value: object, stored: bool) -> str:
    if not isinstance(value, str):
        return f"{erlang_term(value)} is not a valid federation upstream {_FEDERATION[key]}"
    if key == "federation-upstream-pattern":
        try:
            Pattern(value, stored=stored)
        except ValueError as invalid:
            return f"could not compile pattern {value} to a regular expression. Error: {invalid}"
    return ""
