"""What the tests of the web UI need besides Python: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import importlib.util
import os
import shutil

CHROMIUM = os.environ.get("WARREN_TEST_CHROMIUM") or shutil.which("chromium") or ""


def _missing() -> str | None:
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is not installed: pip install playwright"
    return None if CHROMIUM else "Chromium is not installed: apt-get install chromium"


MISSING = _missing()
