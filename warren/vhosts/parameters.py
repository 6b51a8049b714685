"""Runtime parameters: an administrator's settings for parts of the broker that the engine does not know.

A parameter belongs to a vhost and to a component, ``shovel`` for instance, whose validator checks its value.
A global parameter belongs to the broker; the engine reads one of them, `CLUSTER_NAME`.

1. A book holds JSON, and a parameter of a vhost was valid when it was set. A parameter from the catalogue is not
   checked again: its validator belongs to a part of the broker that may be missing now, or stricter than in the version
   that set it. The part that uses the parameter checks it again, and reports when it cannot use it.
2. Listeners are told of a change after it was made. They are not told when a parameter is set to its current value, nor
   when one is restored. A deleted vhost clears its parameters one by one.
3. The limits of a vhost and operator policies are set as parameters, too; `own_change` says how they are kept.

Source: RabbitMQ, "Parameters and Policies", and 3.10.8 for texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from warren.amqp.codec import NAME_MAX_BYTES
from warren.queues.long_work import LongWork
from warren.vhosts.definitions import erlang_pairs, erlang_term, is_integer, parse_definition, parse_json
from warren.vhosts.metadata import (
    GlobalParameterDelete,
    GlobalParameterPut,
    MetadataChange,
    ParameterDelete,
    ParameterPut,
    PolicyDelete,
    PolicyPut,
    VhostLimitsDelete,
    VhostLimitsPut,
)

CLUSTER_NAME: Final = "cluster_name"
NESTED_MAX: Final = 32  # levels of a value
VHOST_LIMITS_COMPONENT: Final = "vhost-limits"
VHOST_LIMITS_NAME: Final = "limits"
OPERATOR_POLICY_COMPONENT: Final = "operator_policy"

ParameterChange = ParameterPut | ParameterDelete | GlobalParameterPut | GlobalParameterDelete
# Gets vhost, name, the value read from JSON, and the user who sets it, ``""`` for the broker itself. Returns why the
# value is not valid, one reason per line, or nothing.
Validator = Callable[[str, str, object, str], list[str]]
Listener = Callable[[ParameterChange], None]


class Parameter:
    """A parameter, or a global one, of vhost ``""`` and component ``""``. `value` is the decoded JSON `text`.

    Raises:
        ValueError: it is not JSON.
    """

    def __init__(self, put: ParameterPut | GlobalParameterPut, *, stored: bool = False) -> None:
        self.vhost = ""
        self.component = ""
        self.is_global: bool = isinstance(put, GlobalParameterPut)
        if isinstance(put, ParameterPut):
            self.vhost = put.vhost
            self.component = put.component
        self.name = put.name
        self.value = parse_json(put.value, stored=stored)

    def is_same(self, other: Parameter | None) -> bool:
        """Tell whether `other` has the same value, however it is written."""
        return other is not None and _canonical(self.value) == _canonical(other.value)


class ParameterBook:
    """All parameters. The owner of a component adds its validator; code that follows changes adds a listener.

    A listener is called in the middle of a change: it may look at the book, but must not change anything in this turn.
    A defect that it meets goes to `work`, and stops neither the others nor the change.
    """

    def __init__(self, work: LongWork | None = None) -> None:
        self._work = LongWork() if work is None else work
        self.validators: dict[str, Validator] = {}
        self.listeners: list[Listener] = []
        self._parameters: dict[tuple[str, str, str], Parameter] = {}
        self._globals: dict[str, Parameter] = {}

    # --- look-up --------------------------------------------------------------------------------------------------

    def maybe_parameter(self, vhost: str, component: str, name: str) -> Parameter | None:
        """Return a parameter of a vhost."""
        return self._parameters.get((vhost, component, name))

    def parameters(self, vhost: str | None = None, component: str | None = None) -> list[Parameter]:
        """Return the parameters of all vhosts or one, of all components or one, in the order of their names."""
        found: list[Parameter] = []
        for key in sorted(self._parameters):
            if vhost in (None, key[0]) and component in (None, key[1]):
                found.append(self._parameters[key])
        return found

    def maybe_global(self, name: str) -> Parameter | None:
        """Return a global parameter."""
        return self._globals.get(name)

    def global_parameters(self) -> list[Parameter]:
        """Return the global parameters in the order of their names."""
        return [self._globals[name] for name in sorted(self._globals)]

    # --- changes --------------------------------------------------------------------------------------------------

    def apply(self, change: ParameterChange, by: str = "") -> bool:
        """Make `change`, which `by` asked for. Return whether anything is different now.

        Raises:
            ValueError: the value is not JSON, its component is unknown or refuses it; the text has a line for each
                reason. Nothing is changed.
        """
        if isinstance(change, ParameterPut | GlobalParameterPut):
            return self._put(self.checked(change, by))
        if isinstance(change, ParameterDelete):
            return self._parameters.pop((change.vhost, change.component, change.name), None) is not None
        return self._globals.pop(change.name, None) is not None

    def checked(self, change: ParameterPut | GlobalParameterPut, by: str = "") -> Parameter:
        """Return the parameter that `change` would set.

        Raises:
            ValueError: as for `apply`.
        """
        parameter = Parameter(change)
        _check_value(parameter.value, NESTED_MAX)
        if parameter.is_global:
            _check_global(parameter)
        else:
            self._check(parameter, by)
        return parameter

    def restore(self, change: ParameterPut | GlobalParameterPut) -> None:
        """Take a parameter from the catalogue.

        Raises:
            ValueError: the value is not JSON.
        """
        self._put(Parameter(change, stored=True))

    def would_change(self, change: ParameterChange) -> bool:
        """Tell whether anything would be different after `change`, provided that it is valid."""
        if isinstance(change, ParameterDelete):
            return (change.vhost, change.component, change.name) in self._parameters
        if isinstance(change, GlobalParameterDelete):
            return change.name in self._globals
        parameter = Parameter(change)
        return not parameter.is_same(self._old(parameter))

    def forget_vhost(self, vhost: str) -> list[ParameterDelete]:
        """Drop the parameters of a deleted vhost and return these changes."""
        gone = [ParameterDelete(vhost, each.component, each.name) for each in self.parameters(vhost)]
        for change in gone:
            self.apply(change)
        return gone

    def tell(self, change: ParameterChange) -> None:
        """Notify the listeners of `change`, which has been made."""
        for listener in self.listeners:
            try:
                listener(change)
            except Exception as error:
                self._work.report(error)

    def _put(self, parameter: Parameter) -> bool:
        old = self._old(parameter)
        if parameter.is_global:
            self._globals[parameter.name] = parameter
        else:
            self._parameters[(parameter.vhost, parameter.component, parameter.name)] = parameter
        return not parameter.is_same(old)

    def _old(self, parameter: Parameter) -> Parameter | None:
        if parameter.is_global:
            return self._globals.get(parameter.name)
        return self._parameters.get((parameter.vhost, parameter.component, parameter.name))

    def _check(self, parameter: Parameter, by: str) -> None:
        validator = self.validators.get(parameter.component)
        if validator is None:
            raise ValueError(f"component {parameter.component} not found")
        errors = validator(parameter.vhost, parameter.name, parameter.value, by)
        if errors:
            raise ValueError("\n".join(errors))


def own_change(change: MetadataChange) -> MetadataChange:
    """Return `change` in the form in which it is stored. Some parameters are stored as other things (3).

    Raises:
        ValueError: it cannot be set as a parameter.
    """
    if not isinstance(change, ParameterPut | ParameterDelete):
        return change
    if change.component == VHOST_LIMITS_COMPONENT:
        if change.name != VHOST_LIMITS_NAME:
            raise ValueError(f"{VHOST_LIMITS_COMPONENT} has one parameter, {VHOST_LIMITS_NAME}")
        if isinstance(change, ParameterPut):
            return VhostLimitsPut(change.vhost, change.value)
        return VhostLimitsDelete(change.vhost)
    if change.component == OPERATOR_POLICY_COMPONENT:
        if isinstance(change, ParameterPut):
            return _operator_policy(change)
        return PolicyDelete(change.vhost, change.name, operator=True)
    if change.component == "policy":
        raise ValueError("policies may not be set using this method")
    return change


def _operator_policy(change: ParameterPut) -> PolicyPut:
    value = parse_definition(change.value)
    pattern = value.pop("pattern", None)
    definition = value.pop("definition", None)
    apply_to = value.pop("apply-to", "all")
    priority = value.pop("priority", 0)
    errors: list[str] = []
    if value:
        errors.append(f"Unrecognised terms {erlang_pairs(value)} in {change.name}")
    if not isinstance(pattern, str):
        errors.append(_wrong("pattern", "text", pattern))
    if not isinstance(definition, dict):
        errors.append(_wrong("definition", "an object", definition))
    if not isinstance(apply_to, str):
        errors.append(_wrong("apply-to", "text", apply_to))
    if not is_integer(priority):
        errors.append(_wrong("priority", "a number", priority))
    if errors:
        raise ValueError("\n".join(errors))
    assert isinstance(pattern, str)
    assert isinstance(apply_to, str)
    assert isinstance(priority, int)
    text = json.dumps(definition)
    return PolicyPut(change.vhost, change.name, pattern, apply_to, priority, text, operator=True)


def _check_value(value: object, levels: int) -> None:
    """Refuse a value that some readers cannot read: with half of a surrogate pair, or more than `levels` levels."""
    if levels < 0:
        raise ValueError("a definition is nested too deeply")
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("a definition holds text that is not valid Unicode") from None
    elif isinstance(value, list):
        for each in value:
            _check_value(each, levels - 1)
    elif isinstance(value, dict):
        for key, each in value.items():
            _check_value(key, levels - 1)
            _check_value(each, levels - 1)


def _check_global(parameter: Parameter) -> None:
    """Refuse a name of the cluster that does not fit into connection.start."""
    if parameter.name != CLUSTER_NAME:
        return
    value = parameter.value
    if not isinstance(value, str):
        raise ValueError(_wrong(CLUSTER_NAME, "text", value))
    if not 0 < len(value.encode()) <= NAME_MAX_BYTES:
        raise ValueError(f"{CLUSTER_NAME} should have 1 to {NAME_MAX_BYTES} bytes")


def _wrong(key: str, wanted: str, value: object) -> str:
    return f"{key} should be {wanted}, actually was {erlang_term(value)}"


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True)  # values themselves cannot be compared: 1 == True
