"""What all tests here may ask for."""

from __future__ import annotations

from object_store import ObjectStore, object_store

__all__ = ["ObjectStore", "object_store"]
