"""Write a file of settings for a person to edit, from the descriptions in `warren.server.settings`.

1. Every setting is in it once, below its meaning and its allowed values.
2. A setting that was not set is commented out and shows its default, or an example if it has no fixed default. So the
   file as it is changes nothing. With all comment signs removed it can still be read.
3. A secret is never written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from warren.server.setting_kinds import Endpoint, MemoryWatermark, shown_size
from warren.server.settings import DEFAULT_ORIGIN, KEYS, SettingKey, Settings
from warren.server.settings_reader import value_of

_HEAD: Final = """\
# Settings of Warren, read by `warren serve --config FILE`.
#
# A line that is commented out shows the default, or an example where it says so. Flags and variables of the environment
# (WARREN_ and the key in capitals, dots as underscores) take precedence over this file. `warren config --config FILE`
# prints the values in force and their origins.
"""
_BYTES: Final = ("_bytes", "_bytes_per_s")


def example(settings: Settings) -> str:
    """Return the file; settings that `settings` does not have from the defaults are set in it."""
    lines = [_HEAD]
    table = ""
    for key in KEYS.values():
        of_table, _, name = key.key.rpartition(".")
        if of_table != table:
            table = of_table
            lines += [f"[{table}]", ""]
        lines += _entry(key, name, settings)
    return "\n".join(lines)


def _entry(key: SettingKey, name: str, settings: Settings) -> Iterator[str]:
    is_set = settings.origins.get(key.key, DEFAULT_ORIGIN) != DEFAULT_ORIGIN and not key.secret
    yield f"# {key.description}"
    yield f"# {key.values}{'; for example' if key.example and not is_set else ''}"
    if is_set:
        yield f"{name} = {_toml(key, value_of(settings, key.key))}"
    else:
        yield f"#{name} = {default_text(key)}"
    yield ""


def default_text(key: SettingKey) -> str:
    """Return the default as TOML, or the example if the default is not fixed."""
    return json.dumps(key.example) if key.example else _toml(key, value_of(Settings(), key.key))


def _toml(key: SettingKey, value: Any) -> str:
    match value:
        case None:
            return json.dumps(key.absent)
        case bool():
            return json.dumps(value)
        case int():
            return json.dumps(shown_size(value)) if key.key.endswith(_BYTES) and value >= 1 << 10 else str(value)
        case float():
            return f"{value:g}"
        case MemoryWatermark():
            return str(value)
        case Mapping():
            pairs = [f"{json.dumps(word, ensure_ascii=False)} = {json.dumps(each)}" for word, each in value.items()]
            return "{" + ", ".join(pairs) + "}"
        case str() | Path() | Endpoint():
            return json.dumps(str(value), ensure_ascii=False)
    raise AssertionError(f"{key.key}: no form for {type(value).__name__}")
