"""Headers exchanges: a message goes where its headers agree with the binding arguments; keys are ignored.

    x-match      needs           looks at binding arguments
    all          every one       not starting with x-          (also without x-match)
    any          at least one    not starting with x-
    all-with-x   every one       other than x-match
    any-with-x   at least one    other than x-match

A void argument demands that the header is present; any other argument demands its value. ``all`` without arguments
always agrees, ``any`` without arguments never.

1. Values agree only within a kind: an integer does not equal a float, a bool or a timestamp, and the text ``1`` equals
   none of them. Within a kind the type does not matter: integers agree across widths, and strings agree with binaries.
2. A rule that needs all demands is looked up by one of them: the rarest when it was bound. A rule that needs any is
   looked up by each. So a message looks only at rules that share a demand with it, and its destination is found once
   for each rule. Looking at a rule takes steps of `Content.steps_left`: one for each demand if it needs all, else one.

Source: RabbitMQ 3.13; in 3.10.8 the integer 1 still equals the float 1.0.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from mypy_extensions import i64

from warren.amqp.declarations import ExchangeDeclaration
from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.amqp.field_table import TYPE_NAMES, Timestamp, decode_table, find_tag
from warren.amqp.term_text import term_text
from warren.exchanges.binding import Binding
from warren.exchanges.content import Content
from warren.exchanges.exchange import Exchange
from warren.queues.destination import Destination

X_MATCH: Final = "x-match"
ARGUMENTS_MAX: Final = 256
_FORMS: Final = ("all", "any", "all-with-x", "any-with-x")

_TRUE: Final = ("bool", True)
_FALSE: Final = ("bool", False)
_VOID: Final = ("void",)

# A header and its comparable value; the header alone (one element) demands only that it is present.
Demand = tuple[object, ...]


class HeadersRule:
    """The arguments of one binding, ready to compare."""

    def __init__(self, destination: Destination, arguments: bytes) -> None:
        self.destination = destination
        self.demands: list[Demand] = []
        table = decode_table(arguments)
        form = table.get(X_MATCH, "all")
        self.needs_all = form == "all" or form == "all-with-x"
        with_x = form == "all-with-x" or form == "any-with-x"
        for key, value in table.items():
            if key == X_MATCH or (not with_x and key.startswith("x-")):
                continue
            self.demands.append((key,) if value is None else (key, comparable(value)))
        # The demands by which the rule is looked up.
        self.look_ups: list[Demand] = []
        self.steps: i64 = len(self.demands) if self.needs_all else 1  # the cost of a look at the rule

    def agrees(self, offers: dict[Demand, None]) -> bool:
        """Return whether a message with these `offers` matches; one offer is known to match a demand."""
        return not self.needs_all or all(demand in offers for demand in self.demands)


class HeadersExchange(Exchange):
    """An exchange of type ``headers``."""

    def __init__(self, declaration: ExchangeDeclaration) -> None:
        super().__init__(declaration)
        self.cacheable = False
        self._rules: dict[Binding, HeadersRule] = {}
        self._always: dict[HeadersRule, None] = {}
        self._by_demand: dict[Demand, dict[HeadersRule, None]] = {}

    def match(self, routing_key: str, content: Content, found: list[Destination]) -> None:
        for rule in self._always:
            found.append(rule.destination)
        if not self._by_demand:
            return
        # A dict, not a set: the order of the result must not depend on the salt of string hashes.
        offers: dict[Demand, None] = {}
        for key, value in content.headers.items():
            offers[(key,)] = None
            offers[(key, comparable(value))] = None
        several: dict[HeadersRule, None] = {}  # rules with several look-ups that were found before
        for demand in offers:
            rules = self._by_demand.get(demand)
            if rules is None:
                continue
            for rule in rules:
                content.steps_left -= rule.steps
                if content.steps_left < 0:
                    return
                if not rule.agrees(offers):
                    continue
                if len(rule.look_ups) > 1:
                    if rule in several:
                        continue
                    several[rule] = None
                found.append(rule.destination)

    def match_keys(self, routing_keys: list[str], content: Content, found: list[Destination]) -> None:
        self.match("", content, found)

    def check_binding(self, routing_key: str, arguments: bytes) -> None:
        table = decode_table(arguments)
        if len(table) > ARGUMENTS_MAX:
            raise ChannelException(
                PRECONDITION_FAILED,
                f"binding has {len(table)} arguments, at most {ARGUMENTS_MAX} are allowed",
            )
        tag = find_tag(arguments, X_MATCH)
        if not tag:
            return
        form = table[X_MATCH]
        if tag != "S":
            raise ChannelException(
                PRECONDITION_FAILED,
                f"Invalid x-match field type {TYPE_NAMES[tag]} (value {term_text(form)}); expected longstr",
            )
        if form not in _FORMS:
            raise ChannelException(
                PRECONDITION_FAILED,
                f"Invalid x-match field value {term_text(form)}; expected all, any, all-with-x, or any-with-x",
            )

    def _index(self, binding: Binding) -> None:
        rule = HeadersRule(binding.destination, binding.arguments)
        self._rules[binding] = rule
        if not rule.needs_all:
            rule.look_ups = rule.demands
        elif rule.demands:
            rule.look_ups = [self._rarest(rule.demands)]
        else:
            self._always[rule] = None
        for demand in rule.look_ups:
            rules = self._by_demand.get(demand)
            if rules is None:
                self._by_demand[demand] = {rule: None}
            else:
                rules[rule] = None

    def _unindex(self, binding: Binding) -> None:
        rule = self._rules.pop(binding)
        self._always.pop(rule, None)
        for demand in rule.look_ups:
            rules = self._by_demand[demand]
            del rules[rule]
            if not rules:
                del self._by_demand[demand]

    def _rarest(self, demands: list[Demand]) -> Demand:
        """Return the demand by which the fewest rules are looked up; of equals, one for a value."""
        rarest = demands[0]
        fewest = -1
        for demand in demands:
            rules = self._by_demand.get(demand)
            count = 0 if rules is None else len(rules)
            if fewest < 0 or count < fewest or (count == fewest and len(demand) > len(rarest)):
                rarest = demand
                fewest = count
        return rarest


def comparable(value: object) -> object:
    """Return a hashable value that equals another one exactly when the two header values agree."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    if isinstance(value, Timestamp):
        return ("timestamp", int(value))
    if isinstance(value, int):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, float):
        return ("float", value)
    if isinstance(value, Decimal):
        return ("decimal", value.as_tuple())
    if isinstance(value, list):
        return ("array", tuple([comparable(entry) for entry in value]))
    if isinstance(value, dict):
        return ("table", tuple([(key, comparable(value[key])) for key in sorted(value)]))
    return _VOID
