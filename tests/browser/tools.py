"""Tools for the tests of the web UI besides Python: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import importlib.util
import os
import shutil

# The shell has no window to draw, and so takes a third less of a processor than a browser that hides its own.
PROGRAMS = ("chromium-headless-shell", "chromium")
CHROMIUM = os.environ.get("WARREN_TEST_CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), "")


def _missing() -> str | None:
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is not installed: pip install playwright"
    return None if CHROMIUM else f"Chromium is not installed: apt-get install {PROGRAMS[0]}"


MISSING = _missing()
