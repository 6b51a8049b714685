"""How the engine is compiled: which modules, the C code that mypyc makes of them and its faults, what a build keeps.

    sources --mypycify--> C of each module --mend, join--> units --compiler, linker--> shared objects
                                                                                    -> WARREN_ENGINE_CACHE/KEY/

1. The engine is one shared object, made of units: one of the modules that every message passes through (`HOT`) and
   mypyc's runtime, whose functions are put in line in each other, and one for each package, of its other modules.
   Small extensions lead to the modules.
2. `key` covers all that the shared objects depend on: the compiled modules, the modules that they import, the
   interpreter, the compiler, mypyc and its settings, and this file. A build with a known key takes what an earlier
   build has kept. So a change of the management API, a table or the user interface compiles nothing.

`setup.py` is the only user. It runs with the packages of requirements/build.txt.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
COMPILED_PACKAGES: Final[list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["warren"][
    "compiled-packages"
]
# The construct grammar and the declarations it is made of run at import time only; compiling them gains nothing. Values
# that are frozen data classes (declarations.py, metadata.py) are made when topology changes, and mypyc has no such.
INTERPRETED: Final = {
    "__init__.py",
    "methods.py",
    "specification.py",
    "declarations.py",
    "metadata.py",
    "errors.py",
    "error_conditions.py",
    "reason_codes.py",
    "store_errors.py",
}
COMPILED_MODULES: Final = (
    "server/histogram.py",
    "server/network/acceptor.py",
    "server/network/poller.py",
    "server/network/reactor.py",
    "server/network/sockets.py",
    "server/network/tls_records.py",
    "server/network/tls_session.py",
    "server/network/transport.py",
)
GROUP: Final = "warren_engine"
# What every message passes through, by the name of the module without `warren.`.
HOT: Final = {
    "amqp.codec",
    "amqp.outbox",
    "amqp.properties",
    "channels.channel_confirms",
    "channels.confirms",
    "channels.content_channel",
    "channels.fast_path",
    "channels.prepared_publish",
    "channels.reply_gate",
    "channels.route_cache",
    "channels.session",
    "msgstore.log.batch",
    "msgstore.log.message",
    "msgstore.log.message_log",
    "msgstore.log.queue_index",
    "msgstore.log.records",
    "msgstore.log.segments",
    "mqtt.fanout",
    "mqtt.outline",
    "mqtt.peer",
    "mqtt.subscriber",
    "queues.base_queue",
    "queues.content_frames",
    "queues.consumer",
    "queues.counters",
    "queues.delivery",
    "queues.dispatch",
    "queues.lanes",
    "queues.queue",
    "queues.ready_messages",
    "queues.receiver",
    "queues.unacked",
    "server.network.reactor",
    "server.network.transport",
}
KEPT_BUILDS: Final = 6


def compiled_sources() -> list[str]:
    """Return the modules that are compiled, as paths below the checkout."""
    root = ROOT / "warren"
    found = [path for package in COMPILED_PACKAGES for path in sorted((root / package).glob("*.py"))]
    found += [root / module for module in COMPILED_MODULES if (root / module).exists()]
    return [str(path.relative_to(ROOT)) for path in found if path.name not in INTERPRETED]


# --- the compiler ---------------------------------------------------------------------------------------------------

# Python asks for -Wall, which takes half of the time to compile, for code that nobody reads. C has no exceptions to
# unwind for; the tables are a third of what the assembler reads, which runs beside.
COMPILING: Final = ["-Wno-all", "-pipe", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"]
# Nobody outside calls the engine but by its module. So the compiler may call its functions directly, and put small
# ones in line, such as those that look into a list: a tenth less CPU per message.
COMPILING.append("-fvisibility=hidden")
# Functions of the interpreter are called through their addresses, without a jump between.
COMPILING.append("-fno-plt")
# Of 37 MB of C code most is not for messages one by one, and -O3 takes much longer than -O1 (docs/decisions/0003).
# More is put in line there than GCC would: 1.5 % fewer instructions per message.
OF_HOT: Final = ["-O3", "--param=max-inline-insns-auto=80", "--param=inline-unit-growth=80"]
OF_OTHERS: Final = ["-O1"]


def compiler() -> str:
    """Return the command that compiles, with its arguments."""
    return str(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")


def has_compiler() -> bool:
    return shutil.which(compiler().split()[0]) is not None


def processors() -> int:
    """Return the number of parallel compilers: a container may see all of its host's processors, but not its memory."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(mine, 8)


# --- the C code of mypyc --------------------------------------------------------------------------------------------

# mypyc's code that frees an object without a header for the collector (`mypyc_attr(acyclic=True)`), or keeps it for the
# next one (`free_list_len=1`). An object with a header is removed from the collector first.
ACYCLIC_DEALLOC: Final = re.compile(
    r"""(?P<head> _dealloc\(\w+[ ]\*self\)\n \s*\{\n
            (?: \s*if[ ]\(\w+_free_instance[ ]==[ ]NULL\)[ ]\{\n (?: .*;\n)+ \s*\}\n )?)
        \s*CPy_TRASHCAN_BEGIN\(self,[ ]\w+\)\n
        (?P<body> .*_clear\(.*\n .*tp_free.*\n) \s*CPy_TRASHCAN_END\(self\)\n""",
    re.VERBOSE,
)
# mypyc 2.4 takes some of its indentation never back, which the compiler has to read.
INDENTATION: Final = re.compile(r"(?m)^[ \t]+")
# Functions that run once, when their module is imported: half a minute of optimizing that nothing gains from.
RUN_ONCE: Final = re.compile(
    r"^(?=char CPyDef_\w+top_level__\(void\) \{|int CPyGlobalsInit\(void\)\s*\{)", re.MULTILINE
)
# The wrapper by which the interpreter calls a compiled function. The engine calls its functions directly, so the code
# of such a function need not be inlined in the wrapper once more.
WRAPPER: Final = re.compile(r"^(?=PyObject \*CPyPy_\w+\()", re.MULTILINE)
DEALLOC: Final = re.compile(r"(?P<name>\w+_dealloc)\(\w+ \*self\)\n\s*\{(?P<body>.*?)\bdone: ;", re.DOTALL)


def mended(text: str) -> str:
    """Return C code of mypyc without what mypyc 2.4 gets wrong, and without what costs the compiler time.

    The trashcan, where an interpreter puts what lies too deep to be freed at once, links its objects through the header
    for the collector. An object without one has its link written into whatever lies before it in memory. Our acyclic
    classes need no trashcan: they lead to nothing deep.

    Raises:
        SystemExit: A class without a header would still use the trashcan: mypyc writes other code than this knows.
    """
    found = ACYCLIC_DEALLOC.sub(r"\g<head>\g<body>", INDENTATION.sub("", text))
    found = RUN_ONCE.sub('__attribute__((optimize("O0"))) ', found)
    found = WRAPPER.sub("__attribute__((cold)) ", found)
    for dealloc in DEALLOC.finditer(found):
        if "CPy_TRASHCAN_BEGIN" in dealloc["body"] and "PyObject_GC_UnTrack" not in dealloc["body"]:
            raise SystemExit(f"{dealloc['name']} of the compiled engine would use the trashcan without a header for it")
    return found


# What a shim, the small extension that leads to a module, uses of the interpreter. To read all of Python.h instead
# takes 0.1 s of a processor for each of more than 200 shims.
SHIM_DECLARATIONS: Final = """typedef struct _object PyObject;
#define NULL ((void *)0)
#define PyMODINIT_FUNC __attribute__((visibility("default"))) PyObject *
#define Py_DECREF Py_DecRef
extern PyObject *PyImport_ImportModuleLevel(const char *, PyObject *, PyObject *, PyObject *, int);
extern PyObject *PyObject_GetAttrString(PyObject *, const char *);
extern PyObject *Py_BuildValue(const char *, ...);
extern void *PyCapsule_GetPointer(PyObject *, const char *);
extern void PyErr_Clear(void);
extern void Py_DecRef(PyObject *);
"""


def with_own_declarations(shim: str) -> str:
    """Return the C code of a shim without the interpreter's headers; code that uses more of them does not compile."""
    assert shim.startswith("#include <Python.h>\n"), shim[:100]
    return SHIM_DECLARATIONS + shim.removeprefix("#include <Python.h>\n")


def phase(text: str) -> None:
    """Tell `scripts/setup` what happens now, in the file that it names."""
    if "WARREN_BUILD_PHASE" in os.environ:
        Path(os.environ["WARREN_BUILD_PHASE"]).write_text(text)


@dataclass(frozen=True)
class Unit:
    """A C file that is compiled by itself, and how."""

    source: str
    options: list[str]


def joined(texts: Mapping[str, str], runtime: Sequence[str]) -> dict[str, tuple[str, list[str]]]:
    """Return the units that C code is compiled in: for each its name, its text, and the options of the compiler.

    `texts` has the code of each module, by the name of the module, and what they share under "". `runtime` are the
    paths of mypyc's own code.
    """
    units: dict[str, list[str]] = {"hot": [f'#include "{path}"\n' for path in runtime]}
    for module, text in texts.items():
        is_hot = not module or module.removeprefix("warren.") in HOT
        units.setdefault("hot" if is_hot else module.split(".")[1], []).append(text)
    return {name: ("".join(parts), OF_HOT if name == "hot" else OF_OTHERS) for name, parts in units.items()}


def extensions() -> list[Any]:
    """Write the C code of the engine, and return setuptools' extensions for it; the first has `units`."""
    from mypyc.build import mypycify
    from mypyc.namegen import exported_name

    phase("writing C")
    # As mypy itself does when it is started as a program: it makes millions of objects, and few die.
    gc.set_threshold(200_000, 30, 30)
    options = ["--config-file", "pyproject.toml"]
    found: list[Any] = mypycify(
        options + compiled_sources(), opt_level="3", debug_level="0", group_name=GROUP, multi_file=True
    )
    engine, *shims = found
    modules = {f"__native_{exported_name(shim.name)}.c": shim.name for shim in shims}
    texts: dict[str, str] = {}
    runtime = []
    for path in map(Path, engine.sources):
        if path.name.startswith("__native_"):
            texts[modules.get(path.name, "")] = mended(path.read_text())
        else:
            runtime.append(path.name)
    assert len(texts) == len(modules) + 1
    directory = Path(engine.sources[0]).parent
    engine.units = []
    for name, (text, unit_options) in joined(texts, runtime).items():
        source = directory / f"__unit_{name}.c"
        source.write_text(text)
        engine.units.append(Unit(str(source), engine.extra_compile_args + COMPILING + unit_options))
    for shim in shims:
        (source,) = map(Path, shim.sources)
        source.write_text(with_own_declarations(source.read_text()))
        shim.extra_compile_args = shim.extra_compile_args + COMPILING + OF_OTHERS
    phase("compiling C")
    return found


def compile_units(units: Sequence[Unit], compile_one: Callable[[Unit], list[str]]) -> list[str]:
    """Compile units side by side, and return the object files: first the one that takes longest, then the largest."""
    longest_first = sorted(
        units, key=lambda unit: (unit.options[-len(OF_HOT) :] != OF_HOT, -os.path.getsize(unit.source))
    )
    with ThreadPoolExecutor(processors()) as pool:
        return [path for paths in pool.map(compile_one, longest_first) for path in paths]


# --- what a build keeps ---------------------------------------------------------------------------------------------


def _modules(name: str) -> Iterator[Path]:
    """Yield the files that an import of `name` may read, of this package."""
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        path = ROOT.joinpath(*parts[:count])
        yield from (file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists())


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def inputs() -> list[Path]:
    """Return the compiled modules, and all modules of this package that they import, for types only as well."""
    waiting = [ROOT / source for source in compiled_sources()]
    found: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        for name in _imports(path):
            if name.partition(".")[0] == "warren":
                waiting += _modules(name)
    return sorted(found)


def _settings() -> list[Any]:
    """Return what pyproject.toml says about compiling; the metadata of the package make no other engine."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    tools = project.get("tool", {})
    return [project.get("build-system"), tools.get("warren"), tools.get("mypy")]


def key() -> str:
    """Return a name for the shared objects that these sources, this interpreter and this compiler make."""
    told = subprocess.run([*compiler().split()[:1], "--version"], capture_output=True, text=True, check=False).stdout
    digest = hashlib.sha256()
    for text in (
        sys.version,
        sysconfig.get_platform(),
        compiler(),
        told,
        version("mypy"),
        os.environ.get("CFLAGS", ""),
    ):
        digest.update(text.encode() + b"\0")
    digest.update(repr(_settings()).encode() + b"\0")
    for path in (Path(__file__), ROOT / "setup.py", *inputs()):
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def maybe_kept() -> Path | None:
    """Return where builds with this key are kept; None: builds are not kept."""
    directory = os.environ.get("WARREN_ENGINE_CACHE")
    return Path(directory) / key() if directory else None


def take(kept: Path, build_lib: str) -> None:
    """Put the shared objects of an earlier build where a build would leave them."""
    phase("taking the engine of an earlier build")
    os.utime(kept)
    shutil.copytree(kept, build_lib, dirs_exist_ok=True)


def keep(outputs: list[str], build_lib: str, kept: Path) -> None:
    """Keep the shared objects of a build, and forget older ones."""
    part = kept.with_name(f"{kept.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    for output in outputs:
        copy = part / Path(output).relative_to(build_lib)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(output, copy)
    shutil.rmtree(kept, ignore_errors=True)
    part.rename(kept)
    os.utime(kept)
    builds = sorted(kept.parent.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    for old in builds[:-KEPT_BUILDS]:
        shutil.rmtree(old, ignore_errors=True)
