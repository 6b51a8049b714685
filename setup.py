"""Build Warren: the hot modules are compiled with mypyc when a C compiler is there, and run interpreted when not.

WARREN_COMPILE=0 skips compilation. A failed compilation is an error, not a fall-back: silently slow is worse.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
COMPILED_PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["warren"]["compiled-packages"]
# The construct grammar and the declarations it is made of run at import time only; compiling them gains nothing. Values
# that are frozen data classes (declarations.py, metadata.py) are made when topology changes, and mypyc has no such.
INTERPRETED = {"__init__.py", "methods.py", "specification.py", "declarations.py", "metadata.py", "errors.py"}
COMPILED_MODULES = (
    "server/histogram.py",
    "server/network/reactor.py",
    "server/network/tls_records.py",
    "server/network/tls_session.py",
    "server/network/transport.py",
)
# Commands that only say what the package is. Two of them are given before each wheel is built; mypyc, which they do not
# need, takes most of a minute.
DESCRIBING = {"egg_info", "dist_info", "sdist"}
BUILDING = {"bdist_wheel", "build", "build_ext", "develop", "editable_wheel", "install"}


def compiled_sources() -> list[str]:
    root = ROOT / "warren"
    found = [path for package in COMPILED_PACKAGES for path in sorted((root / package).glob("*.py"))]
    found += [root / module for module in COMPILED_MODULES if (root / module).exists()]
    return [str(path.relative_to(root.parent)) for path in found if path.name not in INTERPRETED]


def compiler() -> str:
    """Return the command that compiles, with its arguments."""
    return str(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")


def has_compiler() -> bool:
    return shutil.which(compiler().split()[0]) is not None


def can_optimize_at_link_time() -> bool:
    """Whether the compiler is GCC with what it needs for that; clang takes other options."""
    asked = [*compiler().split()[:1], "-print-prog-name=lto-wrapper"]
    return os.path.isabs(subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip())


def processors() -> int:
    """Return the number of parallel compilers: a container may see all of its host's processors, but not its memory."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(mine, 8)


# Python asks for -Wall, which takes half of the time to compile, for code that nobody reads. C has no exceptions to
# unwind for; the tables are a third of what the assembler reads, which runs beside.
COMPILING = ["-Wno-all", "-pipe", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"]
# Nobody outside calls the engine but by its module. So the compiler may call its functions directly, and put small
# ones in line, such as those that look into a list: a tenth less CPU per message.
COMPILING.append("-fvisibility=hidden")

# mypyc's code that frees an object without a header for the collector (`mypyc_attr(acyclic=True)`), or keeps it for the
# next one (`free_list_len=1`). An object with a header is removed from the collector first.
ACYCLIC_DEALLOC = re.compile(
    r"""(?P<head> _dealloc\(\w+[ ]\*self\)\n \s*\{\n
            (?: \s*if[ ]\(\w+_free_instance[ ]==[ ]NULL\)[ ]\{\n (?: .*;\n)+ \s*\}\n )?)
        \s*CPy_TRASHCAN_BEGIN\(self,[ ]\w+\)\n
        (?P<body> .*_clear\(.*\n .*tp_free.*\n) \s*CPy_TRASHCAN_END\(self\)\n""",
    re.VERBOSE,
)
# mypyc 2.4 takes some of its indentation never back: of 290 MB of the engine 260 were spaces.
INDENTATION = re.compile(r"(?m)^[ \t]+")
# Functions that run once, when their module is imported: half a minute of optimizing that nothing gains from.
RUN_ONCE = re.compile(r"^(?=char CPyDef_\w+top_level__\(void\) \{|int CPyGlobalsInit\(void\)\s*\{)", re.MULTILINE)
# The wrapper by which the interpreter calls a compiled function. The engine calls its functions directly, so the code
# of such a function need not be inlined in the wrapper once more.
WRAPPER = re.compile(r"^(?=PyObject \*CPyPy_\w+\()", re.MULTILINE)
DEALLOC = re.compile(r"(?P<name>\w+_dealloc)\(\w+ \*self\)\n\s*\{(?P<body>.*?)\bdone: ;", re.DOTALL)


def phase(text: str) -> None:
    """Tell `scripts/setup` what happens now, in the file that it names."""
    if "WARREN_BUILD_PHASE" in os.environ:
        Path(os.environ["WARREN_BUILD_PHASE"]).write_text(text)


def mend(path: Path) -> None:
    """Mend what mypyc 2.4 gets wrong in the C file at `path`, and take away what costs the compiler time.

    The trashcan, where an interpreter puts what lies too deep to be freed at once, links its objects through the header
    for the collector. An object without one has its link written into whatever lies before it in memory. Our acyclic
    classes need no trashcan: they lead to nothing deep.
    """
    text = INDENTATION.sub("", path.read_text())
    mended = ACYCLIC_DEALLOC.sub(r"\g<head>\g<body>", text)
    mended = RUN_ONCE.sub('__attribute__((optimize("O0"))) ', mended)
    mended = WRAPPER.sub("__attribute__((cold)) ", mended)
    path.write_text(mended)
    for dealloc in DEALLOC.finditer(mended):
        if "CPy_TRASHCAN_BEGIN" in dealloc["body"] and "PyObject_GC_UnTrack" not in dealloc["body"]:
            raise SystemExit(f"{dealloc['name']} of the compiled engine would use the trashcan without a header for it")


if DESCRIBING.intersection(sys.argv) and BUILDING.isdisjoint(sys.argv):
    setup()
elif os.environ.get("WARREN_COMPILE", "1") == "0" or not has_compiler():
    print("warren: no C compiler used: the engine will run interpreted, several times slower", file=sys.stderr)
    setup()
else:
    from mypyc.build import mypycify

    phase("writing C")
    options = ["--config-file", "pyproject.toml"]
    extensions = mypycify(options + compiled_sources(), opt_level="3", debug_level="0", group_name="warren_engine")
    # The engine is one C file, so that its functions can be put in line. When it is linked, its parts are optimized on
    # several processors; that takes a quarter less of them, too.
    at_link_time = can_optimize_at_link_time()
    for extension in extensions:
        engine = [Path(source) for source in extension.sources if Path(source).name.startswith("__native")]
        for source in engine:
            mend(source)
        is_in_parts = at_link_time and bool(engine)
        # mypyc gives all extensions the same lists.
        extension.extra_compile_args = extension.extra_compile_args + COMPILING + ["-flto"] * is_in_parts
        extension.extra_link_args = extension.extra_link_args + [f"-flto={processors()}"] * is_in_parts
    phase("compiling C")
    # Beside the engine are some hundred small extensions, which lead to its modules.
    setup(ext_modules=extensions, options={"build_ext": {"parallel": processors()}})
