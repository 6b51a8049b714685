"""Spares a command the import of pydantic: typer reads every value with it, and it takes longer than all the rest.

Text that stays text, options that were not given, and defaults that are of their type already need no reading.
Whatever else is given goes the way typer made for it. A typer that works otherwise is left alone.
"""

from __future__ import annotations

from typing import Any


def make_quick(parameter: Any) -> None:
    """Pass values that need no conversion through one parameter as they are; calling this twice changes nothing."""
    descriptor = getattr(parameter, "type_descriptor", None)
    if descriptor is None or "process_value" in vars(parameter):
        return
    read = parameter.process_value
    annotation = descriptor.annotation

    def process_value(context: Any, value: Any) -> Any:
        if value is None and not parameter.required:
            done: Any = None
        elif annotation == list[str] and (value or not parameter.required):
            done = list(value)
        elif annotation != list[str] and isinstance(annotation, type) and isinstance(value, annotation):
            done = value
        else:
            return read(context, value)
        return done if parameter.callback is None else parameter.callback(context, parameter, done)

    parameter.process_value = process_value
