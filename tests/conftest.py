"""Fixtures of every suite that starts a broker: where it keeps its metadata."""

from __future__ import annotations

from integration.metadata_urls import fresh_metadata_url, fresh_sqlite_url, metadata_url, postgres

__all__ = ["fresh_metadata_url", "fresh_sqlite_url", "metadata_url", "postgres"]
