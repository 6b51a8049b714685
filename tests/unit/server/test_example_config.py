"""The file of settings that is made for a person to edit. Numbers in parentheses: ``example_config.py``."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from warren.server.example_config import example
from warren.server.settings import KEYS, Settings
from warren.server.settings_reader import load_settings, value_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "warren.toml"


def uncommented(text: str) -> str:
    return re.sub(r"(?m)^#(?! |$)", "", text)


def test_as_it_is_the_file_changes_nothing(file: Path) -> None:
    """(2)."""
    file.write_text(example(Settings()))
    assert load_settings({}, {}, file) == load_settings({}, {})


def test_every_setting_is_there_once_with_its_default(file: Path) -> None:
    """(1), (2)."""
    text = uncommented(example(Settings()))
    tables = tomllib.loads(text)
    found = {f"{name}.{key}" for name, table in tables.items() if isinstance(table, dict) for key in table}
    found |= {name for name, value in tables.items() if not isinstance(value, dict)}
    assert found == set(KEYS)
    file.write_text(text)
    read = load_settings({}, {}, file)
    assert set(read.origins.values()) == {f"file {file}"}
    without_default = {key.key for key in KEYS.values() if key.example}
    assert [
        key for key in KEYS if key not in without_default and value_of(read, key) != value_of(Settings(), key)
    ] == []


def test_what_every_setting_means_and_takes_stands_above_it() -> None:
    lines = example(Settings()).splitlines()
    for key in KEYS.values():
        name = key.key.rpartition(".")[2]
        places = [number for number, line in enumerate(lines) if line.startswith(f"#{name} = ")]
        assert any(
            lines[place - 2] == f"# {key.description}" and lines[place - 1].startswith(f"# {key.values}")
            for place in places
        ), key.key


def test_what_is_set_is_set_in_the_file(file: Path) -> None:
    environment = {
        "WARREN_DATA_DIR": "/var/lib/warren",
        "WARREN_AMQPS": "off",
        "WARREN_STORE_VHOSTS": '{"a \\"quoted\\" name": "os"}',
        "WARREN_STORE_SEGMENT_BYTES": "70000",
        "WARREN_STORE_MEMORY_BYTES": "0",
        "WARREN_LIMITS_MEMORY_HIGH_WATERMARK": "2 GiB",
        "WARREN_LIMITS_SEND_TIMEOUT_S": "0.5",
        "WARREN_DEFINITIONS_SKIP_IF_UNCHANGED": "true",
    }
    settings = load_settings({}, environment)
    file.write_text(example(settings))
    read = load_settings({}, {}, file)
    assert replace(read, origins={}) == replace(settings, origins={})
    assert {key for key, origin in read.origins.items() if origin != "default"} == {
        key.key for key in KEYS.values() if key.variable in environment
    }


def test_secrets_are_not_written() -> None:
    """(3)."""
    secrets = {"WARREN_DEFAULT_PASS": "hunter2", "WARREN_TLS_PRIVATE_KEY_PASSWORD": "hunter2"}
    assert "hunter2" not in example(load_settings({}, secrets))
