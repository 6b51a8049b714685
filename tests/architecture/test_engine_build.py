"""What a build of the engine depends on, and what it makes of mypyc's code (scripts/engine_build.py)."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
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
def build(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("engine_build", ROOT / "scripts/engine_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Data classes look their module up.
    monkeypatch.setitem(sys.modules, "engine_build", module)
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
        "pyproject.toml": "[tool.mypy]\nstrict = true\n[project]\nname = 'warren'",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    keys = [build.key()]
    (tmp_path / "pyproject.toml").write_text(texts["pyproject.toml"].replace("'warren'", "'other'"))
    assert build.key() == keys[0]
    for name in texts:
        (tmp_path / name).write_text(f"# changed\n{texts[name]}".replace("true", "false"))
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


def test_what_every_message_passes_through_is_a_unit_with_the_runtime(build: ModuleType) -> None:
    texts = {
        "": "globals\n",
        "warren.queues.queue": "queue\n",
        "warren.queues.expiry": "expiry\n",
        "warren.msgstore.log.batch": "batch\n",
        "warren.msgstore.log.scrub": "scrub\n",
        "warren.queues.claims": "claims\n",
    }
    assert build.joined(texts, ["init.c"]) == {
        "hot": ('#include "init.c"\nglobals\nqueue\nbatch\n', build.OF_HOT),
        "queues": ("expiry\nclaims\n", build.OF_OTHERS),
        "msgstore": ("scrub\n", build.OF_OTHERS),
    }


def test_every_hot_module_is_compiled(build: ModuleType) -> None:
    compiled = {source.removesuffix(".py").replace("/", ".") for source in build.compiled_sources()}
    assert {f"warren.{name}" for name in build.HOT} <= compiled


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_shim_shows_its_module_and_declares_all_that_it_uses(build: ModuleType, tmp_path: Path) -> None:
    import mypyc.build

    template = (Path(mypyc.build.include_dir()) / "module_shim.tmpl").read_text()
    text = template.format(modname="queue", libname="engine", full_modname="warren___queue")
    (tmp_path / "queue.c").write_text(build.with_own_declarations(text))
    options = ["-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Werror", "-o", "queue.so"]
    subprocess.run(["cc", *options, "queue.c"], cwd=tmp_path, check=True)
    shown = ctypes.CDLL(str(tmp_path / "queue.so"))
    assert hasattr(shown, "PyInit_queue") and hasattr(shown, "PyInit___init__")


def test_the_unit_that_takes_longest_is_compiled_first(build: ModuleType, tmp_path: Path) -> None:
    units = []
    for name, size, options in (("a", 1, build.OF_OTHERS), ("b", 3, build.OF_OTHERS), ("hot", 2, build.OF_HOT)):
        (tmp_path / f"{name}.c").write_text("x" * size)
        units.append(build.Unit(str(tmp_path / f"{name}.c"), options))
    objects = build.compile_units(units, lambda unit: [unit.source.replace(".c", ".o")])
    assert [Path(path).name for path in objects] == ["hot.o", "b.o", "a.o"]


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
    monkeypatch.setattr(build, "key", lambda: "key")
    monkeypatch.delenv("WARREN_ENGINE_CACHE", raising=False)
    assert build.maybe_kept() is None
    monkeypatch.setenv("WARREN_ENGINE_CACHE", "somewhere")
    assert build.maybe_kept() == Path("somewhere/key")
