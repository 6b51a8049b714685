"""Fixtures for all tests here."""

from __future__ import annotations

from object_store import ObjectStore, object_store

__all__ = ["ObjectStore", "object_store"]
