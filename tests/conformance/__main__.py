"""Write ``docs/conformance.md``."""

from __future__ import annotations

from .rules import DOCUMENT, document

DOCUMENT.parent.mkdir(exist_ok=True)
DOCUMENT.write_text(document())
print(f"wrote {DOCUMENT.name}")
