"""What a build of the engine depends on, and what it makes of mypyc's code (scripts/engine_build.py)."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
# As mypyc 2.4 frees an object: with its header for the collector, and without.
WITH_HEADER = """    static void
    Plain_dealloc(PlainObject *self)
    {
        PyObject_GC_UnTrack(self);
        CPy_TRASHCAN_BEGIN(self, Plain_dealloc)
        Plain_clear(self);
        Py_TYPE(self)->tp_free((PyObject *)self);
        CPy_TRASHCAN_END(self)
        done: ;
    }
"""
WITHOUT_HEADER = WITH_HEADER.replace("        PyObject_GC_UnTrack(self);\n", "").replace("Plain", "Bare")


@pytest.fixture
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("engine_build", ROOT / "scripts/engine_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_build_depends_on_the_compiled_modules_and_what_they_import(build: ModuleType) -> None:
    inputs = {str(path.relative_to(ROOT)) for path in build.inputs()}
    assert set(build.compiled_sources()) < inputs
    assert "warren/amqp/declarations.py" in inputs  # interpreted, and imported by what is compiled
    outside = [name for name in inputs if name.split("/")[1] in ("mgmt_plugin", "lake", "spark_bridge", "ctl", "links")]
    assert outside == []


def test_another_source_makes_another_key(build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "version", lambda name: "1")
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "__file__", str(tmp_path / "engine_build.py"))
    texts = {
        "warren/amqp/codec.py": "from warren.amqp import table",
        "warren/amqp/table.py": "import warren.names",
        "warren/names.py": "",
        "warren/lake/other.py": "",
        "engine_build.py": "",
        "setup.py": "",
        "pyproject.toml": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    keys = [build.key()]
    for name in texts:
        (tmp_path / name).write_text(f"{texts[name]}\n# changed\n")
        keys.append(build.key())
    at = 1 + list(texts).index("warren/lake/other.py")
    assert keys[at] == keys[at - 1]
    assert len(set(keys)) == len(texts)


def test_an_object_without_a_header_does_not_go_through_the_trashcan(build: ModuleType) -> None:
    assert "TRASHCAN" in build.mended(WITH_HEADER)
    mended = build.mended(WITHOUT_HEADER)
    assert "TRASHCAN" not in mended and "Bare_clear(self);" in mended and "tp_free" in mended


def test_code_that_is_freed_in_another_way_ends_the_build(build: ModuleType) -> None:
    with pytest.raises(SystemExit, match="Bare_dealloc"):
        build.mended(WITHOUT_HEADER.replace("Bare_clear(self);", "Bare_clear(self); self->x = NULL;\n other();"))


def test_wrappers_are_cold_and_what_runs_once_is_not_optimized(build: ModuleType) -> None:
    once, wrapper = "char CPyDef_queue_____top_level__(void) {", "PyObject *CPyPy_queue___f(PyObject *self) {"
    text = f"{once}\n}}\n{wrapper}\n}}\nvoid f(void) {{}}\n"
    lines = build.mended(text).splitlines()
    assert lines[0].startswith('__attribute__((optimize("O0"))) char') and lines[2].startswith("__attribute__((cold))")
    assert lines[4] == "void f(void) {}"


def test_a_build_takes_what_an_earlier_one_has_kept(build: ModuleType, tmp_path: Path) -> None:
    made = tmp_path / "lib/warren/queue.so"
    made.parent.mkdir(parents=True)
    made.write_bytes(b"shared object")
    for number in range(build.KEPT_BUILDS + 2):
        kept = tmp_path / f"cache/key{number}"
        build.keep([str(made)], str(tmp_path / "lib"), kept)
        os.utime(kept, (number, number))
    left = sorted(path.name for path in (tmp_path / "cache").iterdir())
    assert left == [f"key{number}" for number in range(2, build.KEPT_BUILDS + 2)]
    build.take(kept, str(tmp_path / "again"))
    assert (tmp_path / "again/warren/queue.so").read_bytes() == b"shared object"


def test_builds_are_kept_only_where_that_is_asked_for(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "version", lambda name: "1")
    monkeypatch.delenv("WARREN_ENGINE_CACHE", raising=False)
    assert build.maybe_kept() is None
    monkeypatch.setenv("WARREN_ENGINE_CACHE", "somewhere")
    assert build.maybe_kept() == Path("somewhere") / build.key()
