"""What all tests here may ask for."""

from __future__ import annotations

from object_store import object_store

__all__ = ["object_store"]
