"""Fixtures for all tests here."""

from __future__ import annotations

from object_store import object_store

__all__ = ["object_store"]
