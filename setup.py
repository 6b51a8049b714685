"""Build Warren: the hot modules are compiled with mypyc when a C compiler is there, and run interpreted when not.

WARREN_COMPILE=0 skips compilation. A failed compilation is an error, not a fall-back: silently slow is worse. How the
engine is compiled is in scripts/engine_build.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from setuptools import Distribution, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).resolve().parent / "scripts"))

import engine_build

# Commands that only say what the package is. Two of them are given before each wheel is built; mypyc, which they do not
# need, takes most of a minute.
DESCRIBING = {"egg_info", "dist_info", "sdist"}
BUILDING = {"bdist_wheel", "build", "build_ext", "develop", "editable_wheel", "install"}


class Compiled(Distribution):
    """A package for one kind of machine, also when its shared objects come from an earlier build."""

    def has_ext_modules(self) -> bool:
        return True


class BuildEngine(build_ext):
    """Compiles, and keeps the shared objects, or takes those that are kept."""

    def run(self) -> None:
        if is_kept:
            engine_build.take(kept, self.build_lib)
            return
        super().run()
        if kept is not None:
            engine_build.keep(self.get_outputs(), self.build_lib, kept)

    def build_extension(self, ext: Any) -> None:
        """Compile the units of the engine, each with its own options, and link them; shims as usual."""
        units = getattr(ext, "units", None)
        if units is not None:

            def compile_one(unit: engine_build.Unit) -> list[str]:
                objects: list[str] = self.compiler.compile(
                    [unit.source], self.build_temp, include_dirs=ext.include_dirs, extra_postargs=unit.options
                )
                return objects

            ext.sources, ext.extra_objects = [], engine_build.compile_units(units, compile_one)
        super().build_extension(ext)


if DESCRIBING.intersection(sys.argv) and BUILDING.isdisjoint(sys.argv):
    setup()
elif os.environ.get("WARREN_COMPILE", "1") == "0" or not engine_build.has_compiler():
    print("warren: no C compiler used: the engine will run interpreted, several times slower", file=sys.stderr)
    setup()
else:
    kept = engine_build.maybe_kept()
    is_kept = kept is not None and kept.exists()
    setup(
        distclass=Compiled,
        ext_modules=[] if is_kept else engine_build.extensions(),
        cmdclass={"build_ext": BuildEngine},
        options={"build_ext": {"parallel": engine_build.processors()}},
    )
