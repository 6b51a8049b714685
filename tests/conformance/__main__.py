"""Write the page of all rules: `python -m conformance FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

from .rules import document

Path(sys.argv[1]).write_text(document())
