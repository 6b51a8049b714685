"""Fixtures of the integration tests."""

from __future__ import annotations

from .metadata_urls import fresh_metadata_url, fresh_sqlite_url, metadata_url, postgres

__all__ = ["fresh_metadata_url", "fresh_sqlite_url", "metadata_url", "postgres"]
